"""Rule tests: what passes, what fails with expected and got, what cannot be run."""

from __future__ import annotations

import pytest

from controlplane.policy.bundle import is_test_file, load_bundle
from controlplane.policy.check import check
from controlplane.policy.testing import Verdict, run_bundle_tests, run_tests
from tests.policy.bundles import SHIPPED, one_rule, shipped

RULE = """
match:
  - condition: job.priority > params.limit
    output: "'too high'"
"""
LIMIT = "limit: {type: int, default: 10}"


def with_tests(tests: str) -> dict[str, str]:
    body = "".join(f"      {line}\n" for line in tests.strip("\n").split("\n"))
    suite = f"description: priorities\nsection:\n  - name: limit\n    tests:\n{body}"
    return {**one_rule("admission", RULE, LIMIT), "rule.tests.yaml": suite}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_bundles_pass_their_own_tests(name: str) -> None:
    report = run_tests(shipped(name))
    assert report.ok, [case for case in report.cases if case.verdict is not Verdict.PASSED]
    assert {case.file.removesuffix(".tests.yaml") for case in report.cases} == {
        path.removesuffix(".yaml") for path in shipped(name) if not is_test_file(path) and path != "bundle.yaml"
    }


def test_a_failing_test_says_what_was_expected_and_what_came() -> None:
    files = with_tests("- name: wrong words\n  input: {job: {value: {priority: 11}}}\n  output: \"'too low'\"")
    report = run_tests(files)
    [case] = report.cases
    assert (case.verdict, case.expected, case.got, case.rule) == (
        Verdict.FAILED,
        "'too low'",
        "'too high'",
        "rule.yaml:5",
    )
    assert (case.file, case.line, case.section) == ("rule.tests.yaml", 5, "limit")
    assert case.why == (
        "-> rule.yaml:5: yes: job.priority > params.limit",
        "   job.priority = 11",
        "   params.limit = 10",
    )
    assert not report.ok
    assert report.as_dict()["passed"] == 0


def test_no_output_wants_no_answer() -> None:
    passing = with_tests("- name: fine\n  input: {job: {value: {priority: 10}}}")
    failing = with_tests("- name: not fine\n  input: {job: {value: {priority: 11}}}")
    assert run_tests(passing).ok
    assert [(case.expected, case.got) for case in run_tests(failing).cases] == [("no answer", "'too high'")]


def test_parameters_are_the_defaults_unless_a_test_gives_its_own() -> None:
    given = "{job: {value: {priority: 3}}, params: {value: {limit: 2}}}"
    files = with_tests(f"- name: stricter\n  input: {given}\n  output: \"'too high'\"")
    assert run_tests(files).ok


def test_inputs_may_be_expressions_or_bare_values() -> None:
    files = with_tests(
        "- name: computed\n  input: {job: {expr: \"{'priority': 5 + 6}\"}}\n  output: \"'too ' + 'high'\"\n"
        "- name: bare\n  input: {job: {priority: 11}}\n  output: \"'too high'\""
    )
    assert run_tests(files).ok


def test_a_rule_that_errs_fails_its_test_with_the_reason() -> None:
    [case] = run_tests(with_tests("- name: nothing given\n  output: \"'x'\"")).cases
    assert case.verdict is Verdict.FAILED
    assert case.got == "error: a field or key was read that is absent"


def test_a_test_that_cannot_be_run_is_broken_with_its_place() -> None:
    [case] = run_tests(with_tests("- name: bad\n  input: {job: {value: {priority: 1}}}\n  output: \"'a' +\"")).cases
    assert case.verdict is Verdict.BROKEN
    assert case.message.startswith("rule.tests.yaml:7:")


def test_types_are_compared_too() -> None:
    files = one_rule("scoring", "match:\n  - output: '1 + after.gpus'")
    suite = "section:\n  - name: s\n    tests:\n      - {name: n, input: {after: {value: {gpus: 1}}}, output: '2.0'}\n"
    assert [case.verdict for case in run_tests({**files, "rule.tests.yaml": suite}).cases] == [Verdict.FAILED]


@pytest.mark.parametrize(
    ("wanted", "verdict"),
    [
        ("{'hold_ms': 1, 'max_attempts': 1}", Verdict.PASSED),
        ("{'max_attempts': 1, 'hold_ms': 1}", Verdict.PASSED),
        ("{'hold_ms': 1}", Verdict.FAILED),
        ("{'hold_ms': 1, 'max_attempts': 1, 'grace_ms': 1}", Verdict.FAILED),
        ("{'hold_ms': 1, 'max_attempts': 2}", Verdict.FAILED),
        ("{'hold_ms': 1, 'max_attempts': true}", Verdict.FAILED),
    ],
)
def test_maps_are_compared_part_by_part(wanted: str, verdict: Verdict) -> None:
    files = one_rule("gang", "match:\n  - output: |\n      {'hold_ms': 1, 'max_attempts': job.priority}")
    case = f'      - {{name: n, input: {{job: {{value: {{priority: 1}}}}}}, output: {{expr: "{wanted}"}}}}\n'
    suite = f"section:\n  - name: s\n    tests:\n{case}"
    [found] = run_tests({**files, "rule.tests.yaml": suite}).cases
    assert found.verdict is verdict, found


@pytest.mark.parametrize(
    ("tests", "place", "sentence"),
    [
        ("- name: a\n  input: {jb: {value: {}}}", (6, 21), "the point 'admission' has no 'jb'; did you mean 'job'?"),
        ("- name: a\n  input: {job: {value: {prio: 1}}}", (6, 31), "job has no field 'prio'"),
        ("- name: a\n  input: {job: {value: {priority: 1.5}}}", (6, 41), "job.priority is a whole number"),
        ("- nam: a", (5, 9), "a test has no key 'nam'; did you mean 'name'?"),
    ],
)
def test_the_check_reads_tests_too(tests: str, place: tuple[int, int], sentence: str) -> None:
    [found] = check(with_tests(tests))
    assert sentence in found.message
    assert (found.file, found.line, found.column) == ("rule.tests.yaml", *place)


def test_tests_of_no_rule_are_told() -> None:
    files = {**one_rule("admission", RULE, LIMIT), "rul.tests.yaml": "description: lost\n"}
    [found] = check(files)
    assert "this tests 'rul.yaml', which is not a rule file of the bundle; did you mean 'rule.yaml'?" in found.message


def test_only_what_is_chosen_is_run() -> None:
    files = with_tests("- name: one\n  input: {job: {priority: 1}}\n- name: two\n  input: {job: {priority: 2}}")
    asked: list[str] = []

    def chosen(name: str) -> bool:
        asked.append(name)
        return name.endswith("two")

    report = run_bundle_tests(load_bundle(files), files, None, chosen)
    assert [case.name for case in report.cases] == ["two"]
    assert asked == ["rule.tests.yaml: limit: one", "rule.tests.yaml: limit: two"]
