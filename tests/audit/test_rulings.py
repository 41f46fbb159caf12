"""``why`` shows what the rule that binds a job looked at, with the values of that moment."""

from __future__ import annotations

import json

import pytest

from controlplane.audit.rulings import Ruling
from controlplane.audit.why import Account, why
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import read_story
from tests.scenarios.policies import shipped

HOME = "clusters: {home: {nodes: {n: {gpus: 8}}}}\n  queues: {team: {}}"


def account(job: str, given: str, submit: str, at: str = "1m") -> Account:
    """The account of a job of a story of one submission, as of its end."""
    when = f"when:\n  - at: 0s\n    submit: {{{submit}}}\nthen:\n  - at: {at}\n    because: nothing\n    charged: 0\n"
    stage = Stage(read_story("s.yaml", f"story: a story\ngiven:\n  {given}\n{when}"), shipped)
    stage.play(lambda expected: None)
    return why(stage.log, stage.jobs[job])


def facts(ruling: Ruling) -> dict[str, str]:
    return {fact.name: fact.value for fact in ruling.explanation.facts}


def test_quota_that_may_not_be_borrowed() -> None:
    given = (
        "rules: {quota: job.priority > 5}\n  clusters: {home: {nodes: {n: {gpus: 8}}}}\n"
        "  queues: {team: {quota: {gpu: 2}}, other: {quota: {gpu: 6}}}"
    )
    found = account("a", given, "a: {gpus: 4, priority: 3}")
    assert found.reason is not None
    assert found.reason.slug == "quota"
    [ruling] = found.rulings
    assert (ruling.explanation.point, ruling.explanation.answer, ruling.explanation.rule) == (
        "quota",
        "false",
        "story-quota.yaml:6",
    )
    assert facts(ruling) == {"job.priority": "3"}
    text = "\n".join(found.sentences())
    assert f"The quota rules said of j{found.job}: false, by story-quota.yaml:6. They looked at:\n" in text
    assert "\n  job.priority = 3\n" in text
    assert json.loads(json.dumps(found.as_dict()))["rulings"][0]["facts"] == [
        {"name": "job.priority", "value": "3", "unit": ""}
    ]


def test_nodes_that_are_not_eligible() -> None:
    given = f"rules: {{eligibility: \"node.flavor in ['h100']\"}}\n  {HOME}"
    [ruling] = account("a", given, "a: {gpus: 4}").rulings
    assert (ruling.explanation.answer, facts(ruling)) == ("false", {"node.flavor": "'a100'"})


def test_a_job_that_admission_turned_away() -> None:
    given = f"rules: {{admission: [{{condition: job.members > 1, output: \"'no gangs'\"}}]}}\n  {HOME}"
    [ruling] = account("a", given, "a: {gang: 2}").rulings
    assert ruling.explanation.answer == "'no gangs'"
    assert facts(ruling) == {"job.members": "2"}
    assert [(match.line, match.held, match.fired) for match in ruling.explanation.matches] == [(6, True, True)]


def test_a_rule_that_erred_is_told_with_what_happens_instead() -> None:
    given = f"rules: {{admission: [{{condition: job.members / (job.members - 1) > 1, output: \"'x'\"}}]}}\n  {HOME}"
    [ruling] = account("a", given, "a: {gpus: 1}").rulings
    assert "failed (a number was divided by zero" in ruling.sentences()[0]
    assert "so the submission is refused" in ruling.sentences()[0]


def test_who_goes_before_it_is_the_job_that_was_asked_about() -> None:
    given = f"policy: examples/strict-fifo\n  {HOME}"
    found = account("behind", given, "full: {gpus: 6}, head: {gpus: 8}, behind: {gpus: 1}")
    assert found.reason is not None
    assert found.reason.slug == "behind-head"
    [ruling] = found.rulings
    assert (ruling.explanation.point, ruling.about) == ("overtaking", f"j{found.job - 1}")


def test_room_that_is_reserved_for_another() -> None:
    given = f"params: {{reserve_after_ms: 0s}}\n  {HOME}"
    submit = "full: {gpus: 6, runs: 1h, estimate: 1h}, head: {gpus: 8, estimate: 1h}, behind: {gpus: 1, estimate: 9h}"
    found = account("behind", given, submit)
    assert found.reason is not None
    assert found.reason.slug == "reserved"
    [ruling] = found.rulings
    assert (ruling.explanation.point, ruling.explanation.answer, ruling.about) == (
        "reservation",
        "1",
        f"j{found.job - 1}",
    )
    assert facts(ruling)["params.reserve_after_ms"] == "0"


CLOUD = (
    "params: {crowded_ppm: 10000000}\n"
    "  clusters:\n    home: {nodes: {n: {gpus: 8}}}\n"
    "    cloud: {offers: {a: {gpus: 8, usd_per_hour: 1}, b: {gpus: 8, usd_per_hour: 2}}}\n"
    "  queues: {team: {}}\n  budgets: {daily: {usd: 100, per: 1d}}"
)


def test_what_keeps_it_at_home_is_told_of_every_offer() -> None:
    """The rule about the time is asked again every minute, so that it is the last cycle that is told about."""
    found = account("stays", CLOUD, "full: {gpus: 8}, stays: {gpus: 8, estimate: 1h}", at="2m")
    assert [ruling.about for ruling in found.rulings] == ["cloud/a", "cloud/b"]
    explained = found.rulings[0].explanation
    assert explained.answer == "no answer"
    assert {variable.name: variable.value for variable in explained.variables} == {
        "must_stay_home": "false",
        "has_waited": "false",
        "home_is_crowded": "false",
        "has_budget": "true",
    }
    assert facts(found.rulings[0])["now"] == str(found.at_ms)
    text = "\n".join(found.sentences())
    assert "  variables.has_waited = false  (burst.yaml:9)" in text
    assert "(--json has what they said of cloud/b)" in text


@pytest.mark.parametrize("submit", ["a: {gpus: 1}", "full: {gpus: 8}, a: {gpus: 8}"], ids=["placed", "no room"])
def test_where_no_rule_stands_in_the_way_none_is_told(submit: str) -> None:
    found = account("a", HOME, submit)
    assert found.rulings == []
    assert "looked at" not in "\n".join(found.sentences())
