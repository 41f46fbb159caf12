"""Scenarios that stand in a policy bundle: played under it, told like rule tests, counted for coverage."""

from __future__ import annotations

import json

import pytest

from controlplane.policy.bundle import load_bundle
from controlplane.policy.coverage import junit
from controlplane.policy.testing import Kind, Verdict, scenario_files
from controlplane.simulate.scenarios.form import scenario_problems
from controlplane.simulate.scenarios.suite import own_bundle, play_scenarios, run_all
from controlplane.simulate.scenarios.words import BadStory
from tests.policy.bundles import SHIPPED, shipped

STORY = """story: Large jobs wait for the night.
given:
  clusters: {home: {nodes: {n: {gpus: 8}}}}
  queues: {team: {}}
when:
  - at: 0s
    submit: {small: {gpus: 1}, large: {gpus: 4}}
then:
  - at: 1m
    running: [small]
    refused: {large: {reason: refused-by-policy, says: too large}}
    because: four GPUs are large
"""
RULE = """name: rule
point: admission
rule:
  match:
    - condition: job.gpus_milli > params.largest_milli
      output: "'it is too large'"
"""
MANIFEST = """name: small
points: {admission: [rule.yaml]}
params: {largest_milli: {type: int, default: 2000}}
"""
BUNDLE = {"bundle.yaml": MANIFEST, "rule.yaml": RULE, "scenarios/night.yaml": STORY}


def everything(name: str) -> bool:
    return bool(name)


@pytest.mark.parametrize("name", SHIPPED)
def test_scenarios_of_shipped_bundles_go_as_told(name: str) -> None:
    results = play_scenarios(shipped(name), everything)
    assert [
        (case.file, case.verdict, case.got, case.told) for case in results if case.verdict is not Verdict.PASSED
    ] == []
    assert len(results) == len(scenario_files(shipped(name)))


def test_a_scenario_is_played_under_the_bundle_that_it_stands_in() -> None:
    report = run_all(BUNDLE, everything, coverage=False)
    [case] = report.tests.cases
    assert (case.kind, case.verdict, case.name) == (Kind.SCENARIO, Verdict.PASSED, "Large jobs wait for the night.")
    assert report.tests.digest == load_bundle(BUNDLE).digest
    assert (
        load_bundle(BUNDLE).digest == load_bundle({path: BUNDLE[path] for path in ("bundle.yaml", "rule.yaml")}).digest
    )


def test_what_goes_otherwise_is_told_with_expected_got_and_why() -> None:
    files = {**BUNDLE, "bundle.yaml": MANIFEST.replace("2000", "4000")}
    report = run_all(files, everything, coverage=False)
    [case] = report.tests.cases
    assert not report.tests.ok
    assert (case.verdict, case.file, case.line, case.section) == (
        Verdict.FAILED,
        "scenarios/night.yaml",
        10,
        "at 1m, running",
    )
    assert (case.expected, case.got, case.message) == ("small", "large, small", "four GPUs are large")
    assert case.why == ("large is seen running (at 1s)",)
    assert any("large is placed on n" in line for line in case.told)
    assert json.loads(json.dumps(case.as_dict()))["kind"] == "scenario"
    assert "four GPUs are large" in junit(report.tests)


def test_it_is_told_why_a_job_waits_that_was_expected_to_run() -> None:
    files = {
        **BUNDLE,
        "scenarios/night.yaml": STORY.replace("{gpus: 1}", "{copies: 9, gpus: 1}").replace("[small]", "{small: 9}"),
    }
    [case] = play_scenarios(files, everything)
    assert (case.expected, case.got) == ("small: 9", "small: 8")
    assert "small-9 waits: capacity" in case.why


def test_a_parameter_may_be_changed_for_one_scenario() -> None:
    changed = STORY.replace("  queues:", "  params: {largest_milli: 1}\n  queues:")
    [case] = play_scenarios({**BUNDLE, "scenarios/night.yaml": changed}, everything)
    assert (case.verdict, case.got) == (Verdict.FAILED, "nobody")


@pytest.mark.parametrize(
    ("change", "place", "sentence"),
    [
        (("  queues: {team: {}}", "  policy: default\n  queues: {team: {}}"), (4, 11), "leave 'policy' out"),
        (("    running: [small]", "    runing: [small]"), (10, 5), "then: runing is not known"),
    ],
)
def test_the_check_reads_scenarios_without_playing_them(
    change: tuple[str, str], place: tuple[int, int], sentence: str
) -> None:
    files = {**BUNDLE, "scenarios/night.yaml": STORY.replace(*change)}
    [problem] = scenario_problems(files)
    assert (problem.file, problem.line, problem.column) == ("scenarios/night.yaml", *place)
    assert sentence in problem.message
    assert "^" in problem.snippet
    [case] = play_scenarios(files, everything)
    assert case.verdict is Verdict.BROKEN
    assert case.message == f"scenarios/night.yaml:{place[0]}:{place[1]}: {problem.message}"
    assert scenario_problems(BUNDLE) == []


def test_another_bundle_cannot_be_configured_in_the_middle() -> None:
    with pytest.raises(BadStory, match="leave 'policy' out"):
        own_bundle(BUNDLE)("default")


def test_what_scenarios_go_through_counts_as_seen_apart_from_rule_tests() -> None:
    report = run_all(BUNDLE, everything, coverage=True)
    [match] = report.matches
    assert (match.tests.held, match.tests.failed) == (0, 0)
    assert (match.scenarios.held, match.scenarios.failed) == (1, 1)
    assert report.is_complete
    assert not run_all(BUNDLE, everything, coverage=False).is_complete


def test_only_what_is_chosen_is_played() -> None:
    files = {**BUNDLE, "scenarios/other.yaml": STORY.replace("Large jobs", "Huge jobs")}
    asked: list[str] = []

    def chosen(name: str) -> bool:
        asked.append(name)
        return "Huge" in name

    assert [case.file for case in play_scenarios(files, chosen)] == ["scenarios/other.yaml"]
    assert asked == [
        "scenarios/night.yaml: Large jobs wait for the night.",
        "scenarios/other.yaml: Huge jobs wait for the night.",
    ]
