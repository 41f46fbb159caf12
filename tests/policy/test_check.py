"""Whatever is wrong with a rule is refused with file, line, column and a caret."""

from __future__ import annotations

import json

import pytest

from controlplane.policy.bundle import load_bundle
from controlplane.policy.check import check, check_report
from controlplane.policy.problems import BundleRefused, Severity
from tests.policy.bundles import SHIPPED, one_rule, only_problem, problems, shipped

# point, rule, line and column in rule.yaml, a part of the sentence
REFUSED = {
    "typo in a field": (
        "ordering.job",
        "match:\n  - output: '[job.priorty]'",
        (5, 20),
        "job has no field 'priorty'; did you mean 'priority'?",
    ),
    "typo inside a loop": (
        "admission",
        "match:\n  - condition: job.gpu_models.exists(m, m == queue.nam)\n    output: \"'x'\"",
        (5, 53),
        "queue has no field 'nam'; did you mean 'name'?",
    ),
    "int against double": (
        "eligibility",
        "match:\n  - output: job.priority > 1.5",
        (5, 28),
        "'>' cannot be applied to (int, double); write both as whole numbers",
    ),
    "unknown name": (
        "eligibility",
        "match:\n  - output: tenant.name == 'x'",
        (5, 15),
        "there is no 'tenant' at the point 'eligibility'",
    ),
    "unknown variable": (
        "eligibility",
        "variables:\n  - name: late\n    expression: job.attempts > 1\nmatch:\n  - output: variables.lat",
        (8, 15),
        "no variable 'lat' is defined above; did you mean 'late'?",
    ),
    "variable used before it is defined": (
        "eligibility",
        (
            "variables:\n  - {name: a, expression: variables.b}\n  - {name: b, expression: 'true'}\n"
            "match:\n  - output: variables.a && variables.b"
        ),
        (5, 29),
        "no variable 'b' is defined above",
    ),
    "unknown parameter": (
        "eligibility",
        "match:\n  - output: job.priority > params.limit",
        (5, 36),
        "the bundle has no parameter 'limit'",
    ),
    "wrong output": (
        "scoring",
        "match:\n  - output: after.gpus > 1",
        (5, 15),
        "answered with a whole number (int), but this is of type bool",
    ),
    "wrong condition": (
        "admission",
        "match:\n  - condition: job.priority\n    output: \"'x'\"",
        (5, 18),
        "a condition is true or false, but this is of type int",
    ),
    "unreachable match": (
        "scoring",
        "match:\n  - output: '1'\n  - condition: after.gpus > 1\n    output: '2'",
        (6, 7),
        "can never be reached: the one in line 5 always applies",
    ),
    "the same condition twice": (
        "scoring",
        (
            "match:\n  - {condition: after.gpus > 1, output: '1'}\n  - {condition: 'after.gpus  > 1', output: '2'}\n"
            "  - output: '3'"
        ),
        (6, 7),
        "line 5 has the same condition",
    ),
    "a condition that is false": (
        "scoring",
        "match:\n  - {condition: 'false', output: '1'}\n  - output: '3'",
        (5, 7),
        "its condition is always false",
    ),
    "no default": (
        "scoring",
        "match:\n  - condition: after.gpus > 1\n    output: '2'",
        (5, 7),
        "needs an answer in every case",
    ),
    "a list made from a map": (
        "scoring",
        "match:\n  - output: size(after.labels.map(k, k)[0])",
        (5, 36),
        "depends on the order of the map",
    ),
    "a text made from a map": (
        "admission",
        "match:\n  - output: \"'%s'.format([job.labels])\"",
        (5, 27),
        "a text made of a map depends on its order",
    ),
    "dyn": (
        "scoring",
        "match:\n  - output: int(dyn(after.gpus))",
        (5, 22),
        "dyn() hides the type",
    ),
    "loops three deep": (
        "eligibility",
        "match:\n  - output: '[1].all(a, [2].all(b, [3].all(c, a < b)))'",
        (5, 45),
        "loops stand more than 2 deep",
    ),
    "too costly": (
        "eligibility",
        "match:\n  - output: job.labels.all(a, node.labels.all(b, a + b + a + b != a))",
        (5, 29),
        "steps, more than the 100,000 allowed",
    ),
    "too many rounds": (
        "eligibility",
        "match:\n  - output: lists.range(5000).all(a, [1, 2].all(b, a > b))",
        (5, 36),
        "its loops may go round 15,000 times, more than the 9,999 allowed",
    ),
    "a named time zone": (
        "scoring",
        "match:\n  - output: timestamp(0).getHours('Europe/Berlin')",
        (5, 37),
        "a named time zone depends on files of the machine",
    ),
    "a whole record": (
        "eligibility",
        "match:\n  - output: job == job",
        (5, 15),
        "'job' as a whole is not a value",
    ),
    "a syntax error in a block": (
        "scoring",
        "match:\n  - output: |\n      after.gpus +\n      * 3",
        (7, 9),
        "this is not a valid expression",
    ),
    "an error in a quoted text with escapes": (
        "admission",
        "match:\n  - condition: job.name == ''\n    output: '''it\\''s '' + job.nme'",
        (6, 33),
        "job has no field 'nme'",
    ),
    "a nested rule's typo": (
        "scoring",
        "match:\n  - rule:\n      match:\n        - output: after.gpu\n",
        (7, 26),
        "after has no field 'gpu'; did you mean 'gpus'?",
    ),
    "an answer that is no map": (
        "gang",
        "match:\n  - output: |\n      job.priority",
        (6, 1),
        "is answered with a map written out, such as {'min_members': ...}",
    ),
    "a map that is worked out": (
        "gang",
        "match:\n  - output: |\n      job.priority > 1 ? {'hold_ms': 1} : {}",
        (6, 1),
        "give each case a match of its own",
    ),
    "a typo in a part of the answer": (
        "gang",
        "match:\n  - output: |\n      {'hold_msec': 1}",
        (6, 10),
        "the answer of 'gang' has no 'hold_msec'; did you mean 'hold_ms'?",
    ),
    "a part that is worked out": (
        "gang",
        "match:\n  - output: |\n      {job.name: 1}",
        (6, 13),
        "the answer of 'gang' has no 'something worked out'",
    ),
    "a part that stands there twice": (
        "gang",
        "match:\n  - output: |\n      {'hold_ms': 1, 'hold_ms': 2}",
        (6, 24),
        "'hold_ms' stands here twice",
    ),
    "a part of another type": (
        "gang",
        "match:\n  - output: |\n      {'hold_ms': job.name}",
        (6, 24),
        "'hold_ms' is a whole number (int), but this is of type string",
    ),
    "a level that is none": (
        "gang",
        "match:\n  - output: |\n      {'topology_required': 'rak'}",
        (6, 31),
        "topology_required is 'rak', and it should be 'region', 'zone'",
    ),
    "a number that is no term": (
        "gang",
        "match:\n  - output: |\n      {'max_attempts': 0}",
        (6, 26),
        "max_attempts is 0, and it should be greater than or equal to 1",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_each_mistake_is_refused_at_its_place(name: str) -> None:
    point, rule, place, sentence = REFUSED[name]
    found = only_problem(point, rule)
    assert sentence in found.message
    assert (found.file, found.line, found.column) == ("rule.yaml", *place)
    shown, caret = found.snippet.split("\n")
    assert caret.index("^") == len("  | ") + found.column - 1
    assert shown[4:] == one_rule(point, rule)["rule.yaml"].split("\n")[found.line - 1]


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_check_refuses_does_not_load(name: str) -> None:
    point, rule, place, _ = REFUSED[name]
    with pytest.raises(BundleRefused) as refused:
        load_bundle(one_rule(point, rule))
    assert f"rule.yaml:{place[0]}:{place[1]}: error: " in str(refused.value)


def test_several_mistakes_are_told_at_once() -> None:
    rule = "match:\n  - condition: job.priorty > 1\n    output: job.nam\n  - condition: foo\n    output: \"'x'\""
    assert [(found.line, found.column) for found in problems("admission", rule)] == [(5, 21), (6, 18), (7, 18)]


def test_a_rule_that_no_bundle_lists_is_refused() -> None:
    files = {**one_rule("scoring", "match:\n  - output: '1'"), "old/forgotten.yaml": "name: forgotten\n"}
    [found] = check(files)
    assert (found.file, found.line, found.column) == ("old/forgotten.yaml", 1, 1)
    assert "lists this rule file" in found.message


def test_an_unused_variable_is_a_warning_and_loads() -> None:
    rule = "variables:\n  - {name: spare, expression: '1'}\nmatch:\n  - output: '1'"
    found = only_problem("scoring", rule)
    assert found.severity is Severity.WARNING
    assert "never used" in found.message
    assert load_bundle(one_rule("scoring", rule)).warnings == (found,)


def test_a_file_that_is_never_asked_is_refused() -> None:
    files = one_rule("scoring", "match:\n  - output: '1'")
    files["second.yaml"] = files["rule.yaml"]
    files["bundle.yaml"] = files["bundle.yaml"].replace("[rule.yaml]", "[rule.yaml, second.yaml]")
    [found] = check(files)
    assert (found.file, found.line, found.column) == ("bundle.yaml", 3, 24)
    assert "never asked" in found.message


def test_a_file_under_the_wrong_point_is_refused() -> None:
    files = one_rule("scoring", "match:\n  - output: '1'")
    files["bundle.yaml"] = files["bundle.yaml"].replace("scoring", "burst")
    [found] = check(files)
    assert (found.file, found.line, found.column) == ("rule.yaml", 2, 8)
    assert "serves 'scoring', but bundle.yaml:3 lists it under 'burst'" in found.message


def test_unknown_keys_points_and_files_come_with_a_suggestion() -> None:
    files = one_rule("scoring", "matches:\n  - output: '1'")
    assert "did you mean 'match'?" in check(files)[0].message
    files = one_rule("scoring", "match:\n  - output: '1'")
    assert (
        "did you mean 'rule.yaml'?"
        in check({**files, "bundle.yaml": files["bundle.yaml"].replace("rule.", "rul.")})[0].message
    )
    manifest = files["bundle.yaml"].replace("scoring", "scorin")
    assert "did you mean 'scoring'?" in check({**files, "bundle.yaml": manifest})[0].message


def test_the_report_is_ready_for_json() -> None:
    report = check_report(one_rule("scoring", "match:\n  - output: after.gpu"))
    written = json.loads(json.dumps(report.as_dict()))
    assert (written["ok"], written["digest"]) == (False, None)
    [found] = written["problems"]
    assert (found["line"], found["code"]) == (5, "does-not-compile")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_bundles_have_nothing_wrong(name: str) -> None:
    assert check(shipped(name)) == []
