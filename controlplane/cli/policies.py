"""``tidegate policy``: is a bundle right, and do its rules do what their tests say?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json
from controlplane.cli.faults import DONE, NO, WrongUse, refusal
from controlplane.cli.options import Json
from controlplane.cli.words import plural

if TYPE_CHECKING:
    from controlplane.policy.coverage import CoverageReport
    from controlplane.policy.problems import Problem
    from controlplane.policy.testing import CaseResult, TestReport

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A folder with a bundle.yaml.")]
Folders = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Folders with a bundle.yaml each.")]


def check(
    folder: Folder,
    sarif: Annotated[bool, typer.Option("--sarif", help="Answer in SARIF 2.1.0, for code review.")] = False,
    json: Json = False,
) -> int:
    """Find everything that is wrong with a bundle before it is activated: names, types, reach, cost, determinism."""
    from controlplane.policy.check import check_report

    if sarif and json:
        raise WrongUse("--sarif and --json are two answers; ask for one of them")
    report = check_report(_files(folder))
    if sarif:
        from controlplane.policy.sarif import sarif as as_sarif

        print_json(as_sarif(report.problems, str(folder)))
    elif json:
        print_json({**report.as_dict(), "folder": str(folder)})
    else:
        for problem in report.problems:
            print(_placed(problem, folder))
        if report.ok:
            warnings = f" ({plural(len(report.problems), 'warning')})" if report.problems else ""
            print(f"{folder}: good{warnings}; digest {report.digest}")
        else:
            print(f"{folder}: {plural(len(report.problems), 'problem')}")
    return DONE if report.ok else NO


def run_tests(
    folders: Folders,
    coverage: Annotated[bool, typer.Option("--coverage", help="Say which matches no test reaches.")] = False,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results as JUnit XML besides.", show_default=False)
    ] = None,
    json: Json = False,
) -> int:
    """Run the rule tests that stand beside the rules of one or more bundles."""
    measured = [(folder, _measured(folder)) for folder in folders]
    if junit is not None:
        from controlplane.policy.coverage import junit as as_junit

        junit.write_text(as_junit(_together([(folder, report.tests) for folder, report in measured])), encoding="utf-8")
    is_good = all(report.tests.ok for _, report in measured)
    if json:
        print_json(_as_dict(measured, coverage=coverage, is_good=is_good))
    else:
        for folder, report in measured:
            _tell(folder, report, coverage=coverage)
    return DONE if is_good else NO


def _files(folder: Path) -> dict[str, str]:
    from controlplane.policy.bundle import read_bundle_folder
    from controlplane.policy.problems import BundleRefused

    try:
        return read_bundle_folder(folder)
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error


def _measured(folder: Path) -> CoverageReport:
    """Tests cost so little that they are always measured. A bundle that does not load has no tests to run."""
    from controlplane.policy.coverage import measure
    from controlplane.policy.problems import BundleRefused

    files = _files(folder)
    try:
        return measure(files)
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error


def _as_dict(measured: Sequence[tuple[Path, CoverageReport]], *, coverage: bool, is_good: bool) -> dict[str, object]:
    return {
        "ok": is_good,
        "tests": sum(len(report.tests.cases) for _, report in measured),
        "passed": sum(report.tests.passed for _, report in measured),
        "bundles": [
            {"folder": str(folder), **(report if coverage else report.tests).as_dict()} for folder, report in measured
        ],
    }


def _tell(folder: Path, report: CoverageReport, *, coverage: bool) -> None:
    tests = report.tests
    for problem in tests.problems:
        print(_placed(problem, folder))
    for case in tests.cases:
        if case.verdict != "passed":
            print(_failure(case, folder))
    if coverage:
        totals, *missing = report.as_text().split("\n")
        print("\n".join([f"{folder}: {totals}", *(f"{folder}/{line}" for line in missing)]))
    else:
        print(f"{folder}: {tests.passed} of {plural(len(tests.cases), 'test')} passed")


def _failure(case: CaseResult, folder: Path) -> str:
    said = case.message if case.verdict == "broken" else f"expected {case.expected}, got {case.got}"
    more = f" ({case.message})" if case.message and case.verdict != "broken" else ""
    by = f", by {folder}/{case.rule}" if case.rule else ""
    return f"{folder}/{case.file}:{case.line}: {case.verdict}: {case.section}: {case.name}: {said}{more}{by}"


def _placed(problem: Problem, folder: Path) -> str:
    return str(dataclasses.replace(problem, file=f"{folder}/{problem.file}"))


def _together(reports: Sequence[tuple[Path, TestReport]]) -> TestReport:
    """Several bundles as one report, each file with its folder."""
    from controlplane.policy.testing import TestReport

    return TestReport(
        bundle=", ".join(report.bundle for _, report in reports),
        digest="",
        cases=tuple(
            dataclasses.replace(case, file=f"{folder}/{case.file}")
            for folder, report in reports
            for case in report.cases
        ),
        problems=tuple(problem for _, report in reports for problem in report.problems),
    )
