"""``tidegate policy test``: rule tests and scenarios of bundles, and what they reach, once or at every change."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json
from controlplane.cli.faults import DONE, NO, WrongUse, refusal
from controlplane.cli.options import Json
from controlplane.cli.policy_sources import (
    Environment,
    Functions,
    bundle_files,
    elsewhere,
    in_folder,
    no_functions,
    read_text,
)
from controlplane.cli.watching import Looks
from controlplane.cli.words import plural

if TYPE_CHECKING:
    from controlplane.policy.coverage import CoverageReport
    from controlplane.policy.testing import CaseResult, TestReport

Targets = Annotated[
    list[Path],
    typer.Argument(metavar="PATH...", help="Folders with a bundle.yaml, or with --environment policy files."),
]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked for."""

    paths: Sequence[Path]
    only: Sequence[str]
    coverage: bool
    junit: Path | None
    html: Path | None
    environment: Path | None
    functions: Path | None

    def chosen(self, name: str) -> bool:
        """Whether the test of that name is wanted: it has one of the texts in it, in whatever case."""
        return not self.only or any(text.casefold() in name.casefold() for text in self.only)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The tests of one bundle, or of one policy of another host, and the files that they are about."""

    path: Path
    report: CoverageReport
    files: Mapping[str, str] = field(repr=False)
    is_bundle: bool = True

    def here(self, file: str) -> str:
        """A file of it, as seen from here."""
        return f"{self.path}/{file}" if self.is_bundle else file


def run_tests(
    paths: Targets,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", "-k", metavar="TEXT", help="Only tests with TEXT in file, section or name.", show_default=False
        ),
    ] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Say which matches no test reaches.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write what is covered as an annotated page besides.", show_default=False),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the results as JUnit XML besides.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again at every change, until interrupted.")] = False,
    environment: Environment = None,
    functions: Functions = None,
    json: Json = False,
) -> int:
    """Run the tests of bundles: rule tests beside the rules, and the scenarios in their `scenarios` folders."""
    no_functions(environment, functions)
    wanted = _Wanted(paths, only or (), coverage or html is not None, junit, html, environment, functions)
    if watch and json:
        raise WrongUse("--watch is for people and goes on; leave --json out")
    if watch:
        return _watch(wanted)
    return _run(wanted, json=json, shows_coverage=coverage)


def _run(wanted: _Wanted, *, json: bool, shows_coverage: bool) -> int:
    measured = [_measured(path, wanted) for path in wanted.paths]
    if wanted.only and not any(one.report.tests.cases for one in measured):
        texts = " nor ".join(repr(text) for text in wanted.only)
        raise WrongUse(f"--only: no test of {', '.join(map(str, wanted.paths))} has {texts} in file, section or name")
    _write(wanted, measured)
    is_good = all(one.report.tests.ok for one in measured)
    if json:
        print_json(_as_dict(measured, coverage=shows_coverage, is_good=is_good))
    else:
        for one in measured:
            _tell(one, coverage=shows_coverage)
    return DONE if is_good else NO


def _measured(path: Path, wanted: _Wanted) -> _Measured:
    """A bundle that does not load has no tests to run."""
    from controlplane.policy.problems import BundleRefused

    try:
        if wanted.environment is not None:
            return _measured_elsewhere(path, wanted.environment, wanted)
        files = bundle_files(path)
        return _Measured(path, _tested(files, wanted), files)
    except BundleRefused as error:
        raise WrongUse(refusal(error, "" if wanted.environment is not None else str(path))) from error


def _tested(files: Mapping[str, str], wanted: _Wanted) -> CoverageReport:
    from controlplane.policy.testing import scenario_files

    if scenario_files(files):
        from controlplane.simulate.scenarios.suite import run_all  # with the whole scheduler behind it

        return run_all(files, wanted.chosen, coverage=wanted.coverage)
    from controlplane.policy.coverage import measure

    return measure(files, wanted.chosen)


def _measured_elsewhere(path: Path, environment: Path, wanted: _Wanted) -> _Measured:
    source = elsewhere(path, environment, wanted.functions)
    policy = source.load()
    if not source.tests.exists():
        raise WrongUse(f"{source.policy}: there are no tests beside it; write {source.tests.name}")
    report = policy.measure(read_text(source.tests), str(source.tests), wanted.chosen)
    return _Measured(path, report, {str(source.policy): read_text(source.policy)}, is_bundle=False)


# --- answers ---------------------------------------------------------------------------------------------------------


def _write(wanted: _Wanted, measured: Sequence[_Measured]) -> None:
    if wanted.junit is not None:
        from controlplane.policy.coverage import junit

        wanted.junit.write_text(junit(_together(measured)), encoding="utf-8")
    if wanted.html is not None:
        from controlplane.policy.coverage import page

        shown = [(str(one.path), one.report, one.files) for one in measured]
        wanted.html.write_text(page(shown), encoding="utf-8")


def _as_dict(measured: Sequence[_Measured], *, coverage: bool, is_good: bool) -> dict[str, object]:
    return {
        "ok": is_good,
        "tests": sum(len(one.report.tests.cases) for one in measured),
        "passed": sum(one.report.tests.passed for one in measured),
        "bundles": [
            {"folder": str(one.path), **(one.report if coverage else one.report.tests).as_dict()} for one in measured
        ],
    }


def _tell(one: _Measured, *, coverage: bool) -> None:
    tests = one.report.tests
    for problem in tests.problems:
        print(in_folder(problem, one.path) if one.is_bundle else problem)
    for case in tests.cases:
        if case.verdict != "passed":
            print("\n".join(_failure(case, one)))
    if coverage:
        totals, *missing = one.report.as_text().split("\n")
        print("\n".join([f"{one.path}: {totals}", *(one.here(line) for line in missing)]))
    else:
        scenarios = sum(case.kind == "scenario" for case in tests.cases)
        among = f" ({plural(scenarios, 'scenario')} among them)" if scenarios else ""
        print(f"{one.path}: {tests.passed} of {plural(len(tests.cases), 'test')} passed{among}")


def _failure(case: CaseResult, one: _Measured) -> list[str]:
    """Where and what; then expected, got and why, a line each."""
    place = f"{one.here(case.file)}:{case.line}: {case.verdict}"
    if case.verdict == "broken":
        return [f"{place}: {case.name}: {case.message}"]
    if case.kind == "scenario":
        head, told = (
            f"{place}: {case.name.rstrip('.')}: {case.section}",
            [f"because:  {case.message}"] if case.message else [],
        )
        told += ["what happened:", *(f"  {line}" for line in case.told)]
    else:
        head, told = f"{place}: {case.section}: {case.name}", []
    more = f" ({case.message})" if case.message and case.kind == "rule" else ""
    by = f", by {one.here(case.rule)}" if case.rule else ""
    why = [f"{'' if number else 'why:':8}  {line}" for number, line in enumerate(case.why)]
    lines = [f"expected: {case.expected}", f"got:      {case.got}{more}{by}", *why, *told]
    return [head, *(f"    {line}" for line in lines)]


def _together(measured: Sequence[_Measured]) -> TestReport:
    """Several bundles as one report, each file as seen from here."""
    from controlplane.policy.testing import TestReport

    reports = [(one, one.report.tests) for one in measured]
    return TestReport(
        bundle=", ".join(tests.bundle for _, tests in reports),
        digest="",
        cases=tuple(
            dataclasses.replace(case, file=one.here(case.file)) for one, tests in reports for case in tests.cases
        ),
        problems=tuple(
            dataclasses.replace(problem, file=one.here(problem.file))
            for one, tests in reports
            for problem in tests.problems
        ),
    )


# --- at every change -------------------------------------------------------------------------------------------------


def _watch(wanted: _Wanted) -> int:
    """Run whenever a file changes. The way to end it is to interrupt it."""
    alone = [path for path in (wanted.environment, wanted.functions) if path is not None]
    try:
        for changed in Looks([*wanted.paths, *alone]).changes():
            if changed:
                print(f"\n{changed} changed", flush=True)
            try:
                _run(wanted, json=False, shows_coverage=wanted.coverage)
            except (WrongUse, OSError) as wrong:  # such as half an edit: the next change may mend it
                print(wrong)
            print("watching; interrupt to end", flush=True)
    except KeyboardInterrupt:
        pass
    return DONE
