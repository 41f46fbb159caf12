"""Which matches the rule tests reach, and whether each condition was seen both ways.

The library behind ``policy test --coverage``: text, JSON, JUnit and one annotated page, all from the same report.
"""

from __future__ import annotations

import html
import xml.etree.ElementTree as ET  # only written here, never read
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from controlplane.policy.bundle import Bundle, load_bundle
from controlplane.policy.compiled import CompiledMatch, CompiledRule
from controlplane.policy.documents import Place
from controlplane.policy.evaluation import Observer
from controlplane.policy.testing import TestReport, Verdict, run_bundle_tests


@dataclass(frozen=True, slots=True)
class MatchCoverage:
    """What the tests saw of one match."""

    file: str
    line: int
    column: int
    condition: str
    """Its text on one line; empty if it has none."""
    held: int
    """Times that it applied."""
    failed: int
    """Times that its condition was false."""
    has_condition: bool

    @property
    def is_reached(self) -> bool:
        """Whether it applied in a test."""
        return self.held > 0

    @property
    def missing(self) -> str | None:
        """What no test shows, in words."""
        if not self.is_reached:
            return "no test reaches this match"
        if self.has_condition and not self.failed:
            return "no test shows this condition to be false"
        return None


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """The tests of a bundle and what they reached."""

    tests: TestReport
    matches: tuple[MatchCoverage, ...]

    @property
    def reached(self) -> int:
        """Matches that applied in a test."""
        return sum(match.is_reached for match in self.matches)

    @property
    def sides(self) -> tuple[int, int]:
        """Sides of conditions that were seen, and sides in all."""
        conditions = [match for match in self.matches if match.has_condition]
        return sum((match.held > 0) + (match.failed > 0) for match in conditions), 2 * len(conditions)

    @property
    def is_complete(self) -> bool:
        """Whether every match and both sides of every condition were seen."""
        return all(match.missing is None for match in self.matches)

    def as_dict(self) -> dict[str, object]:
        """The report as JSON keeps it."""
        seen, sides = self.sides
        return {
            **self.tests.as_dict(),
            "coverage": {
                "matches": len(self.matches),
                "reached": self.reached,
                "sides": sides,
                "sides_seen": seen,
                "missing": [
                    {"file": match.file, "line": match.line, "column": match.column, "message": match.missing}
                    for match in self.matches
                    if match.missing
                ],
            },
        }

    def as_text(self) -> str:
        """The report as people read it: totals, then what is missing."""
        seen, sides = self.sides
        head = (
            f"{self.tests.passed} of {len(self.tests.cases)} tests passed; "
            f"{self.reached} of {len(self.matches)} matches reached; "
            f"{seen} of {sides} sides of conditions seen"
        )
        missing = [f"{m.file}:{m.line}:{m.column}: {m.missing}" for m in self.matches if m.missing]
        return "\n".join([head, *missing])


def measure(files: Mapping[str, str]) -> CoverageReport:
    """Runs the rule tests of a bundle and measures. Raises ``BundleRefused`` if it does not load."""
    bundle = load_bundle(files)
    observers: dict[str, list[Observer]] = {}
    tests = run_bundle_tests(bundle, files, observers)
    return CoverageReport(tests, tuple(_coverage(bundle, observers)))


def _coverage(bundle: Bundle, observers: Mapping[str, list[Observer]]) -> Iterator[MatchCoverage]:
    for listed in bundle.policies.values():
        for policy in listed:
            seen: Counter[tuple[Place, bool]] = Counter(
                side for observer in observers.get(policy.file, []) for side in observer.conditions
            )
            for match in _matches(policy.rule):
                condition = " ".join(match.condition.source.text.split()) if match.condition is not None else ""
                yield MatchCoverage(
                    match.at.file,
                    match.at.line,
                    match.at.column,
                    condition,
                    seen[match.at, True],
                    seen[match.at, False],
                    not match.is_unconditional,
                )


def _matches(rule: CompiledRule) -> Iterator[CompiledMatch]:
    for match in rule.matches:
        yield match
        if match.rule is not None:
            yield from _matches(match.rule)


# --- other forms -----------------------------------------------------------------------------------------------------


def junit(report: TestReport) -> str:
    """The tests as JUnit XML, one suite per section."""
    root = ET.Element("testsuites", name=report.bundle, tests=str(len(report.cases)))
    root.set("failures", str(sum(case.verdict is Verdict.FAILED for case in report.cases)))
    root.set("errors", str(sum(case.verdict is Verdict.BROKEN for case in report.cases)))
    suites: dict[tuple[str, str], ET.Element] = {}
    for case in report.cases:
        key = case.file, case.section
        if key not in suites:
            suites[key] = ET.SubElement(root, "testsuite", name=f"{case.file}: {case.section}")
        written = ET.SubElement(suites[key], "testcase", classname=case.file, name=case.name, line=str(case.line))
        if case.verdict is Verdict.FAILED:
            said = f"expected {case.expected}, got {case.got}"
            ET.SubElement(written, "failure", message=_plain(said)).text = _plain(case.message)
        elif case.verdict is Verdict.BROKEN:
            ET.SubElement(written, "error", message=_plain(case.message))
    for suite in suites.values():
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem }}
pre {{ font: 13px/1.5 ui-monospace, monospace; overflow-x: auto }}
pre span {{ display: block; padding: 0 .5rem; border-left: .3rem solid transparent; white-space: pre }}
.seen {{ border-color: #2a7d3f; background: #2a7d3f14 }}
.half {{ border-color: #b07d00; background: #b07d0022 }}
.none {{ border-color: #b3261e; background: #b3261e1f }}
b {{ display: inline-block; width: 4rem; color: #777; font-weight: normal; user-select: none }}
i {{ color: #555; padding-left: 2rem }}
</style>
<h1>{title}</h1><p>{totals}</p>
{files}
</html>
"""


def page(report: CoverageReport, files: Mapping[str, str]) -> str:
    """One self-contained page: each rule file with every match marked as seen, half seen or not reached."""
    title = f"Coverage of {report.tests.bundle}"
    by_file: dict[str, dict[int, MatchCoverage]] = {}
    for match in report.matches:
        by_file.setdefault(match.file, {})[match.line] = match
    shown = [_annotated(file, files[file], lines) for file, lines in by_file.items()]
    totals = report.as_text().split("\n", 1)[0]
    return _PAGE.format(title=html.escape(title), totals=html.escape(totals), files="\n".join(shown))


def _annotated(file: str, text: str, lines: Mapping[int, MatchCoverage]) -> str:
    written: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        match = lines.get(number)
        shown = f"<b>{number}</b>{html.escape(line)}"
        if match is None:
            written.append(f"<span>{shown}</span>")
            continue
        kind = "seen" if match.missing is None else "half" if match.is_reached else "none"
        note = match.missing or f"applied {match.held}, not {match.failed}"
        written.append(f'<span class="{kind}">{shown}<i>{html.escape(note)}</i></span>')
    return f"<h2>{html.escape(file)}</h2><pre>{''.join(written)}</pre>"
