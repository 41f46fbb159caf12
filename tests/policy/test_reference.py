"""What is generated is fresh, and describes the files as they are read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controlplane.policy import documents
from controlplane.policy.check import check
from controlplane.policy.reference import bundle_schema, rule_schema, suite_schema, written_files
from controlplane.policy.sarif import sarif
from controlplane.policy.vocabulary import POINTS, RECORDS
from tests.policy.bundles import POLICIES, one_rule


@pytest.mark.parametrize("name", written_files())
def test_generated_files_are_fresh(name: str) -> None:
    written = (POLICIES / name).read_text(encoding="utf-8")
    assert written == written_files()[name], "write it anew: python -m controlplane.policy.reference policies"


def test_the_page_has_every_point_variable_field_and_unit() -> None:
    page = written_files()["REFERENCE.md"]
    for point in POINTS:
        section = page.split(f"### {point.name}\n", 1)[1].split("\n### ", 1)[0]
        for variable in point.variables:
            assert f"| `{variable.name}` |" in section
    for record in RECORDS:
        section = page.split(f"### {record.name}\n", 1)[1].split("\n### ", 1)[0]
        for field in record.fields:
            assert f"| `{field.name}` | `{field.type}` | {field.unit} | {field.meaning}" in section


def properties(schema: dict[str, Any]) -> set[str]:
    return set(schema["properties"])


def test_schemas_know_the_keys_that_the_reader_knows() -> None:
    rule: Any = rule_schema()
    inner = rule["$defs"]["rule"]
    assert properties(rule) == set(documents._POLICY_KEYS)
    assert properties(inner) == set(documents._RULE_KEYS)
    assert properties(inner["properties"]["match"]["items"]) == set(documents._MATCH_KEYS)
    assert properties(inner["properties"]["variables"]["items"]["anyOf"][0]) == set(documents._VARIABLE_KEYS)
    assert properties(bundle_schema()) == set(documents._BUNDLE_KEYS)
    suite: Any = suite_schema()
    section = suite["properties"]["section"]["items"]
    assert properties(section) == set(documents._SECTION_KEYS)
    assert properties(section["properties"]["tests"]["items"]) == set(documents._CASE_KEYS)
    assert {point["const"] for point in rule["properties"]["point"]["oneOf"]} == {point.name for point in POINTS}


def test_sarif_places_each_problem() -> None:
    problems = check(one_rule("scoring", "match:\n  - output: after.gpu"))
    log: Any = json.loads(json.dumps(sarif(problems, "policies/mine/", "0.1.0")))
    [run] = log["runs"]
    [result] = run["results"]
    assert log["version"] == "2.1.0"
    assert (result["level"], result["ruleId"]) == ("error", "does-not-compile")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "policies/mine/rule.yaml"
    assert place["region"] == {"startLine": 5, "startColumn": 20}
