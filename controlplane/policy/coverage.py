"""Which matches the tests of a bundle reach, and whether each condition was seen both ways.

The library behind ``policy test --coverage``: text, JSON, JUnit and one annotated page, all from the same report. Rule
tests and scenarios are counted apart: a rule test says what the case must answer, a scenario only passes through it.
"""

from __future__ import annotations

import html
import xml.etree.ElementTree as ET  # only written here, never read
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.bundle import Bundle, load_bundle
from controlplane.policy.compiled import CompiledMatch, CompiledPolicy, CompiledRule
from controlplane.policy.documents import Place
from controlplane.policy.evaluation import Observer
from controlplane.policy.testing import Kind, TestReport, Verdict, run_bundle_tests
from controlplane.policy.yamltext import normalise


@dataclass(frozen=True, slots=True)
class Seen:
    """How often a match applied, and how often its condition was false."""

    held: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class MatchCoverage:
    """What the tests saw of one match."""

    file: str
    line: int
    column: int
    condition: str
    """Its text on one line; empty if it has none."""
    has_condition: bool
    tests: Seen
    scenarios: Seen

    @property
    def held(self) -> int:
        """Times that it applied."""
        return self.tests.held + self.scenarios.held

    @property
    def failed(self) -> int:
        """Times that its condition was false."""
        return self.tests.failed + self.scenarios.failed

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

    def as_dict(self) -> dict[str, object]:
        """As JSON keeps it."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "condition": self.condition,
            "tests": {"held": self.tests.held, "failed": self.tests.failed},
            "scenarios": {"held": self.scenarios.held, "failed": self.scenarios.failed},
            "missing": self.missing,
        }


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
                "by_match": [match.as_dict() for match in self.matches],
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


def measure(files: Mapping[str, str], chosen: Callable[[str], bool] = lambda _: True) -> CoverageReport:
    """Runs the rule tests of a bundle, those that are chosen, and measures. Raises ``BundleRefused`` if it does not
    load."""
    bundle = load_bundle(files)
    observers: list[Observer] = []
    tests = run_bundle_tests(bundle, files, observers, chosen)
    return covered(bundle, tests, observers)


def covered(
    bundle: Bundle, tests: TestReport, observers: Sequence[Observer], played: Sequence[Observer] = ()
) -> CoverageReport:
    """What rule tests (``observers``) and scenarios (``played``) went through, by match of the bundle."""
    policies = [policy for listed in bundle.policies.values() for policy in listed]
    return CoverageReport(tests, tuple(matches_of(policies, observers, played)))


def matches_of(
    policies: Sequence[CompiledPolicy], observers: Sequence[Observer], played: Sequence[Observer] = ()
) -> Iterator[MatchCoverage]:
    """Every match of some rule files, in order, with what was seen of it."""
    by_tests, by_scenarios = _sides(observers), _sides(played)
    for policy in policies:
        for match in _matches(policy.rule):
            yield MatchCoverage(
                match.at.file,
                match.at.line,
                match.at.column,
                " ".join(match.condition.source.text.split()) if match.condition is not None else "",
                not match.is_unconditional,
                Seen(by_tests[match.at, True], by_tests[match.at, False]),
                Seen(by_scenarios[match.at, True], by_scenarios[match.at, False]),
            )


def _sides(observers: Sequence[Observer]) -> Counter[tuple[Place, bool]]:
    return Counter(side for observer in observers for side in observer.conditions)


def _matches(rule: CompiledRule) -> Iterator[CompiledMatch]:
    for match in rule.matches:
        yield match
        if match.rule is not None:
            yield from _matches(match.rule)


# --- other forms -----------------------------------------------------------------------------------------------------


def junit(report: TestReport) -> str:
    """The tests as JUnit XML, one suite per file and section."""
    root = ET.Element("testsuites", name=report.bundle)
    suites: dict[str, ET.Element] = {}
    for case in report.cases:
        key = f"{case.file}: {case.section}" if case.kind is Kind.RULE else case.file
        if key not in suites:
            suites[key] = ET.SubElement(root, "testsuite", name=_plain(key))
        written = ET.SubElement(suites[key], "testcase", classname=_plain(case.file), name=_plain(case.name))
        written.set("line", str(case.line))
        if case.verdict is Verdict.FAILED:
            said = f"expected {case.expected}, got {case.got}"
            text = "\n".join([*([case.message] if case.message else []), *case.why, *case.told])
            ET.SubElement(written, "failure", message=_plain(said)).text = _plain(text)
        elif case.verdict is Verdict.BROKEN:
            ET.SubElement(written, "error", message=_plain(case.message))
    for problem in report.problems:
        unread = ET.SubElement(root, "testsuite", name=_plain(problem.file))
        written = ET.SubElement(unread, "testcase", classname=_plain(problem.file), name="the file can be read")
        ET.SubElement(written, "error", message=_plain(f"{problem.line}:{problem.column}: {problem.message}"))
    for element in (root, *root):
        element.set("tests", str(len(element.findall(".//testcase"))))
        element.set("failures", str(len(element.findall(".//failure"))))
        element.set("errors", str(len(element.findall(".//error"))))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _plain(text: str) -> str:
    """Without characters that XML cannot hold."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --seen: #2a7d3f; --half: #b07d00; --none: #c0392b }}
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 80rem; padding: 0 1rem }}
pre {{ font: 13px/1.6 ui-monospace, monospace; overflow-x: auto }}
pre span {{ display: block; padding: 0 .5rem; border-left: .3rem solid transparent; white-space: pre }}
.seen {{ border-color: var(--seen) }}
.half {{ border-color: var(--half); background: color-mix(in srgb, var(--half) 14%, transparent) }}
.none {{ border-color: var(--none); background: color-mix(in srgb, var(--none) 14%, transparent) }}
b {{ display: inline-block; width: 3rem; opacity: .5; font-weight: normal; user-select: none }}
i {{ opacity: .75; padding-left: 2rem }}
.key span {{ border-left: .3rem solid; padding: 0 .5rem; margin-right: 1rem }}
.bad {{ color: var(--none) }}
td, th {{ text-align: left; padding: 0 1rem 0 0; vertical-align: top }}
</style></head><body>
<h1>{title}</h1>
<p class="key"><span class="seen">seen both ways</span><span class="half">seen one way only</span>
<span class="none">not reached</span></p>
{bundles}
</body></html>
"""


def page(measured: Sequence[tuple[str, CoverageReport, Mapping[str, str]]]) -> str:
    """One self-contained page: of each bundle (folder, report, files) the tests that did not pass, and every rule file
    with each match marked as seen, half seen or not reached."""
    title = "Coverage of " + ", ".join(report.tests.bundle for _, report, _ in measured)
    shown = [_bundle(folder, report, files) for folder, report, files in measured]
    return _PAGE.format(title=html.escape(title), bundles="\n".join(shown))


def _bundle(folder: str, report: CoverageReport, files: Mapping[str, str]) -> str:
    by_file: dict[str, dict[int, MatchCoverage]] = {}
    for match in report.matches:
        by_file.setdefault(match.file, {})[match.line] = match
    parts = [
        f"<h2>{html.escape(report.tests.bundle)}</h2>",
        f"<p>{html.escape(folder)}: {html.escape(report.as_text().split(chr(10), 1)[0])}</p>",
        _failures(report.tests),
        *(_annotated(file, normalise(files[file]), lines) for file, lines in by_file.items()),
    ]
    return "\n".join(parts)


def _failures(tests: TestReport) -> str:
    rows = [
        f"<tr><td>{html.escape(f'{case.file}:{case.line}')}</td><td class=bad>{case.verdict}</td>"
        f"<td>{html.escape(case.name)}</td><td>{html.escape(case.message)}</td>"
        f"<td>{html.escape(case.expected)}</td><td>{html.escape(case.got)}</td></tr>"
        for case in tests.cases
        if case.verdict is not Verdict.PASSED
    ]
    head = "<tr><th>where</th><th></th><th>test</th><th></th><th>expected</th><th>got</th></tr>"
    return f"<table>{head}{''.join(rows)}</table>" if rows else ""


def _annotated(file: str, text: str, lines: Mapping[int, MatchCoverage]) -> str:
    written: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = lines.get(number)
        shown = f"<b>{number}</b>{html.escape(line)}"
        if match is None:
            written.append(f"<span>{shown}</span>")
            continue
        kind = "seen" if match.missing is None else "half" if match.is_reached else "none"
        written.append(f'<span class="{kind}">{shown}<i>{html.escape(_note(match))}</i></span>')
    return f"<h3>{html.escape(file)}</h3><pre>{''.join(written)}</pre>"


def _note(match: MatchCoverage) -> str:
    said = [match.missing] if match.missing else []
    for what, seen in (("tests", match.tests), ("scenarios", match.scenarios)):
        if seen.held or seen.failed:
            false = f", false {seen.failed}" if match.has_condition else ""
            said.append(f"in {what}: applied {seen.held}{false}")
    return "; ".join(said)
