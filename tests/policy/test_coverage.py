"""Coverage of matches and of both sides of conditions, and its forms."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

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
    assert "rule.yaml:7: yes: job.members > 1" in str(failed.text)


def test_junit_counts_what_cannot_be_run_or_read_as_errors() -> None:
    broken = "{name: broken, input: {job: {priority: 1}}, output: \"'a' +\"}"
    root = ET.fromstring(junit(run_tests(files(HIGH, broken))))
    assert [(root.get(key)) for key in ("tests", "failures", "errors")] == ["2", "0", "1"]
    unread = ET.fromstring(junit(run_tests({**files(HIGH), "rule.tests.yaml": "section: 3"})))
    assert [(unread.get(key)) for key in ("tests", "failures", "errors")] == ["1", "0", "1"]
    assert "rule.tests.yaml" in str(unread.find("testsuite/testcase").get("classname"))  # type: ignore[union-attr]


def test_the_page_marks_lines_and_escapes_text() -> None:
    given = files(HIGH, SOME, WRONG)
    shown = page([("policies/<mine>", measure(given), given)])
    assert "too &lt;many&gt;" in shown
    assert "policies/&lt;mine&gt;: 2 of 3 tests passed" in shown
    assert '<span class="none"><b>10</b>' in shown
    assert '<span class="half"><b>7</b>' in shown
    assert '<span class="seen"><b>5</b>' in shown
    assert "in tests: applied 1, false 2" in shown
    assert "<td class=bad>failed</td><td>wrong</td><td></td><td>&#x27;x&#x27;</td><td>no answer</td>" in shown


def test_the_page_asks_no_network_and_is_one_document() -> None:
    given = files(HIGH, LOW)
    shown = page([("a", measure(given), given), ("b", measure(given), given)])
    assert not re.search(r"https?:|//|url\(|<script|<link|<img|@import|src=", shown)
    outline = Outline()
    outline.feed(shown)
    outline.close()
    assert outline.open == []
    assert outline.headings == 1 + 2 * 2  # the title, and of each bundle its name and its one file


class Outline(HTMLParser):
    """What is open, and how many headings there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.headings += tag in ("h1", "h2", "h3")
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_bundles_are_covered_wholly(name: str) -> None:
    report = measure(shipped(name))
    assert report.is_complete, report.as_text()
