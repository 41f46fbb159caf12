"""Facts as people write them: what fits the vocabulary is taken, everything else is one sentence with its place."""

from __future__ import annotations

import pytest

from controlplane.policy.check import check
from controlplane.policy.inputs import Unusable, question, read_facts
from controlplane.policy.testing import Verdict, run_tests
from controlplane.policy.vocabulary import BY_NAME
from tests.policy.bundles import bundle, one_rule

BURST = BY_NAME["burst"]


@pytest.mark.parametrize(
    "text",
    [
        "job: {priority: 5, labels: {a: b}}\nnow: 7",
        "job: {value: {priority: 5, labels: {a: b}}}\nnow: {value: 7}",
        "job: {expr: \"{'priority': 2 + 3, 'labels': {'a': 'b'}}\"}\nnow: {expr: 3 + 4}",
        "name: a test\ninput:\n  job: {priority: 5, labels: {a: b}, estimate_ms: null}\n  now: 7\noutput: '3'",
        '{"job": {"priority": 5, "labels": {"a": "b"}}, "now": 7}',
        '{\t"job": {"priority": 5,\t"labels": {"a": "\\u0062"}},\r\n"now": 7}',
    ],
    ids=["bare", "values", "expressions", "a whole test", "JSON", "JSON with tabs"],
)
def test_facts_are_read_in_every_form(text: str) -> None:
    assert read_facts("f", text, BURST) == {"job": {"priority": 5, "labels": {"a": "b"}}, "now": 7}


def test_a_text_of_json_keeps_its_characters() -> None:
    assert read_facts("f", '{"job": {"name": "\\ud83d\\ude00"}}', BURST) == {"job": {"name": "\U0001f600"}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("jbo: {}", "f:1:6: the point 'burst' has no 'jbo'; did you mean 'job'? (it has job, queue, home, offer,"),
        ("job: {prio: 1}", "f:1:7: job has no field 'prio'; did you mean 'priority'?"),
        ("job: {prio: 1, nmae: a}", "(and 1 more)"),
        ("job: 3", "f:1:6: job is a record: give it as fields and values"),
        ("job: {priority: high}", "f:1:17: job.priority is a whole number"),
        ("job: {priority: true}", "f:1:17: job.priority is a whole number"),
        ("job: {priority: 1.5}", "f:1:17: job.priority is a whole number; fractions are written in a smaller unit"),
        ("job: {priority: 9223372036854775808}", "f:1:17: job.priority is a whole number"),
        ("job: {name: 3}", "f:1:13: job.name is a text; put it in quotes"),
        ("job: {gpu_models: A100}", "f:1:19: job.gpu_models is a list of texts"),
        ("job: {labels: {team: 1}}", "f:1:15: job.labels is a map of texts to texts; put each of them in quotes"),
        ("now: soon", "f:1:6: now is a whole number"),
        ("now: {expr: 1 +}", "f:1:16: this is not a valid expression: mismatched input 'the end'"),
        ("now: {expr: 1 / 0}", "f:1:13: a number was divided by zero"),
        ("now: {expr: nwo}", "f:1:13: undeclared reference to 'nwo'"),
        ("[1]", "f:1:1: 'the facts' is written as keys and values, not as a list"),
        ("", "f:1:1: the file is empty"),
        ("{,", "f:1:2: this is not valid YAML"),
        ("a: 1\na: 2", "f:2:1: the key 'a' is here twice"),
        ("a: &x [*x, *x]", "f:1:4: YAML anchors and aliases are not used"),
    ],
)
def test_what_does_not_fit_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(Unusable) as told:
        read_facts("f", text, BURST)
    assert sentence in str(told.value)
    assert "expecting" not in str(told.value)


def test_a_rule_test_with_a_fact_of_the_wrong_type_is_a_problem_of_the_check() -> None:
    tests = "section:\n  - name: s\n    tests:\n      - {name: t, input: {job: {priority: high}}}\n"
    files = {
        **one_rule("admission", "match:\n  - {condition: job.priority > 1, output: \"'no'\"}"),
        "rule.tests.yaml": tests,
    }
    [problem] = check(files)
    assert (problem.line, problem.code, problem.message) == (4, "wrong-input", "job.priority is a whole number")


def test_null_is_absent_as_none_is_in_the_facts_of_the_scheduler() -> None:
    rule = "match:\n  - {condition: has(job.estimate_ms), output: \"'estimated'\"}"
    tests = "section:\n  - name: s\n    tests:\n      - {name: t, input: {job: {estimate_ms: null}}}\n"
    report = run_tests({**one_rule("admission", rule), "rule.tests.yaml": tests})
    assert [case.verdict for case in report.cases] == [Verdict.PASSED]


def test_parameters_that_are_not_given_are_the_defaults() -> None:
    limits = bundle(
        "admission",
        "match:\n  - {condition: params.a > params.b, output: \"'no'\"}",
        "a: {type: int, default: 1}\nb: {type: int, default: 2}",
    )
    assert question(limits, BY_NAME["admission"], {"params": {"a": 5}})["params"] == {"a": 5, "b": 2}
