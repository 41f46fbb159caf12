"""Explain: the variables, the cases that were tried, the one that fired, and why."""

from __future__ import annotations

import json

import pytest

from controlplane.policy.bundle import load_bundle
from controlplane.policy.explain import WrongInput, explain, explain_facts
from tests.policy.bundles import BUDGET, HOME, OFFER, bundle, job, queue, shipped

RULE = """
variables:
  - name: late
    expression: now - job.submitted_ms > 1000
  - name: big
    expression: job.gpus_milli / (job.members - 1) > 8000
  - name: asked
    expression: timestamp(job.submitted_ms / 1000)
match:
  - condition: variables.late
    output: "'too late'"
    explanation: "'it came ' + string(now - job.submitted_ms) + ' ms ago'"
  - condition: variables.asked > timestamp(3) && variables.big
    output: "'too big'"
"""


def test_it_shows_every_variable_and_which_match_fired() -> None:
    found = explain(bundle("admission", RULE), "admission", {"job": {"submitted_ms": 1}, "now": 5000})
    assert (found.answer, found.rule, found.reason) == ("'too late'", "rule.yaml:12", "it came 4999 ms ago")
    assert [(v.name, v.line, v.value, v.erred, v.needed) for v in found.variables] == [
        ("late", 6, "true", False, True),
        ("big", 8, "a field or key was read that is absent", True, False),
        ("asked", 10, "1970-01-01T00:00:00Z", False, False),
    ]
    assert [(fact.name, fact.value, fact.unit) for fact in found.facts] == [
        ("job.submitted_ms", "1", "ms since the epoch"),
        ("now", "5000", "ms since the epoch"),
    ]
    text = found.as_text("policies/mine/")
    assert "-> policies/mine/rule.yaml:12: yes: variables.late" in text
    assert "variables.late = true  (policies/mine/rule.yaml:6)" in text
    failed = "variables.big = failed: a field or key was read that is absent"
    assert f"{failed} (lazy: nothing that was tried needs it)  (policies/mine/rule.yaml:8)" in text
    assert [(m.line, m.condition, m.held, m.fired) for m in found.matches] == [(12, "variables.late", True, True)]


def test_a_case_that_did_not_hold_is_shown_too() -> None:
    facts = {"job": {"submitted_ms": 4900, "members": 2, "gpus_milli": 9000}, "now": 5000}
    found = explain(bundle("admission", RULE), "admission", facts)
    assert (found.answer, [m.held for m in found.matches]) == ("'too big'", [False, True])
    assert "-> rule.yaml:15" in found.as_text()
    assert json.loads(json.dumps(found.as_dict()))["rule"] == "rule.yaml:15"


def test_a_fault_is_explained_with_what_happens_instead() -> None:
    facts = {"job": {"submitted_ms": 4900, "members": 1, "gpus_milli": 9000}, "now": 5000}
    found = explain(bundle("admission", RULE), "admission", facts)
    assert found.answer == "failed"
    assert found.fault is not None
    assert "divided by zero" in found.fault
    assert found.closed == "the submission is refused"
    assert [m.held for m in found.matches] == [False, None]


def test_it_takes_the_facts_of_the_scheduler() -> None:
    default = load_bundle(shipped("default"))
    found = explain_facts(default, "burst", (job(), queue(), HOME, OFFER, BUDGET, 5000))
    assert found.answer == str(OFFER.cost_micro_usd)
    assert explain_facts(default, "burst", (job(), queue(), HOME, OFFER, None, 5000)).answer == "no answer"


def test_a_point_without_rules_says_so() -> None:
    empty = load_bundle({"bundle.yaml": "name: empty\n"})
    assert explain(empty, "scoring", {}).answer == "no rule: all nodes are alike"


@pytest.mark.parametrize(
    ("point", "facts", "sentence"),
    [
        ("scorin", {}, "there is no decision point 'scorin'"),
        ("scoring", {"job": {}}, "the point 'scoring' has no 'job'"),
        ("admission", {"job": {"prio": 1}}, "job has no field 'prio'"),
        ("admission", {"job": 3}, "'job' is a record"),
        ("admission", {"now": 1.5}, "whole numbers"),
    ],
)
def test_facts_that_do_not_fit_are_one_sentence(point: str, facts: dict[str, object], sentence: str) -> None:
    with pytest.raises(WrongInput, match=sentence):
        explain(load_bundle(shipped("default")), point, facts)
