"""Coverage of matches and of both sides of conditions, and its forms."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from controlplane.policy.coverage import junit, measure, page
from controlplane.policy.testing import run_tests
from tests.policy.bundles import SHIPPED, one_rule, shipped

RULE = """
match:
  - condition: job.priority > 10
    output: "'too high'"
  - condition: job.members > 1
    rule:
      match:
        - condition: job.members > 100
          output: "'too <many>'"
"""


def files(*cases: str) -> dict[str, str]:
    tests = "".join(f"      - {case}\n" for case in cases)
    suite = f"description: sizes\nsection:\n  - name: all\n    tests:\n{tests}"
    return {**one_rule("admission", RULE), "rule.tests.yaml": suite}


HIGH = "{name: high, input: {job: {priority: 11, members: 1}}, output: \"'too high'\"}"
LOW = "{name: low, input: {job: {priority: 1, members: 1}}}"
MANY = "{name: many, input: {job: {priority: 1, members: 101}}, output: \"'too <many>'\"}"
SOME = "{name: some, input: {job: {priority: 1, members: 2}}}"
WRONG = "{name: wrong, input: {job: {priority: 1, members: 2}}, output: \"'x'\"}"


def test_every_match_and_side_is_counted() -> None:
    report = measure(files(HIGH, LOW, MANY, SOME))
    assert report.is_complete
    assert (report.reached, report.sides) == (3, (6, 6))


def test_what_is_missing_is_named_with_its_line() -> None:
    report = measure(files(HIGH, SOME))
    assert not report.is_complete
    assert report.as_text().split("\n") == [
        "2 of 2 tests passed; 2 of 3 matches reached; 4 of 6 sides of conditions seen",
        "rule.yaml:7:7: no test shows this condition to be false",
        "rule.yaml:10:13: no test reaches this match",
    ]
    written = json.loads(json.dumps(report.as_dict()))
    assert written["coverage"]["missing"][1] == {
        "file": "rule.yaml",
        "line": 10,
        "column": 13,
        "message": "no test reaches this match",
    }


def test_a_rule_without_tests_is_not_reached() -> None:
    assert [match.missing for match in measure(one_rule("scoring", "match:\n  - output: '1'")).matches] == [
        "no test reaches this match"
    ]


def test_junit_counts_failures() -> None:
    root = ET.fromstring(junit(run_tests(files(HIGH, WRONG))))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("2", "1", "0")
    [failed] = root.findall("testsuite/testcase/failure")
    assert failed.get("message") == "expected 'x', got no answer"


def test_the_page_marks_lines_and_escapes_text() -> None:
    given = files(HIGH, SOME)
    shown = page(measure(given), given)
    assert "too &lt;many&gt;" in shown
    assert '<span class="none"><b>10</b>' in shown
    assert '<span class="half"><b>7</b>' in shown
    assert '<span class="seen"><b>5</b>' in shown
    assert "http" not in shown


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_bundles_are_covered_wholly(name: str) -> None:
    report = measure(shipped(name))
    assert report.is_complete, report.as_text()
