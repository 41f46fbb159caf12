"""Problems in SARIF 2.1.0, the format in which code review shows them beside the line."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.policy.problems import Problem

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(problems: Sequence[Problem], folder: str = "", version: str = "") -> dict[str, object]:
    """The log of one run. ``folder`` is put before each file, so that paths start at the root of the repository."""
    codes = sorted({problem.code for problem in problems})
    prefix = f"{folder.strip('/')}/" if folder.strip("/") else ""
    driver: dict[str, object] = {"name": "tidegate policy check", "rules": [{"id": code} for code in codes]}
    if version:
        driver["version"] = version
    results = [_result(problem, codes.index(problem.code), prefix) for problem in problems]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(problem: Problem, rule: int, prefix: str) -> dict[str, object]:
    region = {"startLine": problem.line, "startColumn": problem.column}
    place = {"artifactLocation": {"uri": f"{prefix}{problem.file}"}, "region": region}
    return {
        "ruleId": problem.code,
        "ruleIndex": rule,
        "level": str(problem.severity),
        "message": {"text": problem.message},
        "locations": [{"physicalLocation": place}],
    }
