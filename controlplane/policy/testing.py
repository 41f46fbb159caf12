"""Rule tests: given facts, the expected answer of one rule file. The library behind ``policy test``.

The layout is that of CEL policy tests: ``description``, ``section[].name``, ``tests[].name/input/output``; an input is
a ``value``, or an ``expr`` that gives it; ``output`` is an expression, and a test without one wants no answer. A suite
tests the rule file that it is named after (``burst.tests.yaml`` tests ``burst.yaml``). ``params`` are the defaults of
the bundle unless a test gives its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from controlplane.policy.bundle import TEST_SUFFIX, Bundle, is_test_file, load_bundle
from controlplane.policy.compiled import CompiledPolicy
from controlplane.policy.documents import CaseDocument, Reader, SuiteDocument, plain_value
from controlplane.policy.engine import CelExprPython, Value, show
from controlplane.policy.evaluation import Evaluation, Observer, Outcome
from controlplane.policy.explain import explain_policies
from controlplane.policy.inputs import Unusable, evaluated, given_value, input_problems, question
from controlplane.policy.problems import Problem, snippet, suggestion
from controlplane.policy.vocabulary import BY_NAME

SCENARIOS = "scenarios"
"""Folder of a bundle."""


class Kind(StrEnum):
    """What a test asks."""

    RULE = "rule"
    """Given facts, one answer of one rule file."""
    SCENARIO = "scenario"
    """Given clusters, queues, jobs and events, what the whole scheduler does."""


class Verdict(StrEnum):
    """How a test ended."""

    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    """The test itself cannot be run."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One test and how it ended."""

    file: str
    line: int
    suite: str
    section: str
    name: str
    verdict: Verdict
    expected: str
    got: str
    rule: str | None
    """``file:line`` of the match that answered."""
    message: str = ""
    kind: Kind = Kind.RULE
    why: tuple[str, ...] = ()
    """Of a test that failed: the cases that were tried with the values of what they read, or what was last said of the
    jobs that are not where they were expected."""
    told: tuple[str, ...] = ()
    """Of a scenario that failed: what happened, in order."""

    def as_dict(self) -> dict[str, object]:
        """The result as JSON keeps it."""
        return {
            "kind": str(self.kind),
            "file": self.file,
            "line": self.line,
            "suite": self.suite,
            "section": self.section,
            "name": self.name,
            "verdict": str(self.verdict),
            "expected": self.expected,
            "got": self.got,
            "rule": self.rule,
            "message": self.message,
            "why": list(self.why),
            "told": list(self.told),
        }


@dataclass(frozen=True, slots=True)
class TestReport:
    """All tests of one bundle that were run."""

    __test__ = False

    bundle: str
    digest: str
    cases: tuple[CaseResult, ...]
    problems: tuple[Problem, ...]
    """Test files that cannot be read."""

    @property
    def passed(self) -> int:
        """Tests that passed."""
        return sum(case.verdict is Verdict.PASSED for case in self.cases)

    @property
    def ok(self) -> bool:
        """Whether all passed and all could be read."""
        return self.passed == len(self.cases) and not self.problems

    def as_dict(self) -> dict[str, object]:
        """The report as JSON keeps it."""
        return {
            "ok": self.ok,
            "bundle": self.bundle,
            "digest": self.digest,
            "tests": len(self.cases),
            "passed": self.passed,
            "cases": [case.as_dict() for case in self.cases],
            "problems": [problem.as_dict() for problem in self.problems],
        }


def scenario_files(files: Mapping[str, str]) -> list[str]:
    """The files of a bundle that hold a scenario each (:mod:`controlplane.simulate.scenarios` plays them)."""
    return sorted(path for path in files if SCENARIOS in PurePosixPath(path).parts[:-1])


@dataclass(frozen=True, slots=True)
class Suites:
    """The test files of a bundle, and what is wrong with them."""

    suites: tuple[tuple[SuiteDocument, str], ...]
    """Each with the rule file that it tests."""
    problems: tuple[Problem, ...]


def run_tests(files: Mapping[str, str]) -> TestReport:
    """Runs every rule test of a bundle. Raises ``BundleRefused`` if it does not load."""
    return run_bundle_tests(load_bundle(files), files)


def run_bundle_tests(
    bundle: Bundle,
    files: Mapping[str, str],
    observers: list[Observer] | None = None,
    chosen: Callable[[str], bool] = lambda _: True,
) -> TestReport:
    """The same for a bundle that is loaded. ``observers`` collects what each test went through; ``chosen`` is asked
    with ``file: section: name`` which tests to run."""
    found = read_suites(files, bundle)
    cases: list[CaseResult] = []
    for suite, rule_file in found.suites:
        policy = next(policy for listed in bundle.policies.values() for policy in listed if policy.file == rule_file)
        runner = _Runner(bundle, policy, suite)
        for section, tests in suite.sections:
            picked = [case for case in tests if chosen(f"{suite.file}: {section}: {case.name}")]
            cases.extend(runner.run(section, case) for case in picked)
        if observers is not None:
            observers.extend(runner.observers)
    return TestReport(bundle.name, bundle.digest, tuple(cases), found.problems)


def read_suites(files: Mapping[str, str], bundle: Bundle | None) -> Suites:
    """The test suites among the files. Without a bundle, only their form is looked at."""
    suites: list[tuple[SuiteDocument, str]] = []
    problems: list[Problem] = []
    for path in sorted(files):
        if not path.endswith(TEST_SUFFIX) or not is_test_file(path):
            continue
        reader = Reader(path, files[path])
        suite = reader.suite()
        problems.extend(reader.problems)
        rule_file = f"{path.removesuffix(TEST_SUFFIX)}.yaml"
        if suite is None or bundle is None:
            continue
        point = next(
            (point for point, listed in bundle.policies.items() if rule_file in {p.file for p in listed}), None
        )
        if point is None:
            known = [policy.file for listed in bundle.policies.values() for policy in listed]
            hint = suggestion(rule_file, known)
            message = f"this tests '{rule_file}', which is not a rule file of the bundle{hint}"
            problems.append(Problem(path, 1, 1, message, snippet(files[path], 1, 1), code="stray-tests"))
            continue
        cases = [case for _, tests in suite.sections for case in tests]
        for case in cases:
            problems.extend(input_problems(case.input, BY_NAME[point], reader.text))
        suites.append((suite, rule_file))
    return Suites(tuple(suites), tuple(problems))


class _Runner:
    """Runs the tests of one suite."""

    def __init__(self, bundle: Bundle, policy: CompiledPolicy, suite: SuiteDocument) -> None:
        self.bundle = bundle
        self.policy = policy
        self.suite = suite
        self.engine = bundle.engine(policy.point.name)
        self.plain = CelExprPython({})
        self.observers: list[Observer] = []

    def run(self, section: str, case: CaseDocument) -> CaseResult:
        """One test."""
        try:
            data = self._data(case)
            wanted = self._wanted(case)
            why = evaluated(case.explanation, self.plain) if case.explanation is not None else None
        except Unusable as broken:
            return self._result(section, case, Verdict.BROKEN, "", "", message=str(broken))
        observer = Observer()
        outcome = Evaluation(data, self.engine, observer).ask([self.policy])
        self.observers.append(observer)
        expected, got = show(wanted.value) if wanted.is_answer else "no answer", _words(outcome)
        at = f"{outcome.at.file}:{outcome.at.line}" if outcome.at else None
        if outcome.fault is None and wanted.agrees(outcome):
            if case.explanation is None or why == outcome.explanation:
                return self._result(section, case, Verdict.PASSED, expected, got, at)
            expected, got, message = show(why), show(outcome.explanation), "the explanation differs"
        else:
            message = f"{outcome.fault.kind} ({outcome.fault.detail})" if outcome.fault else ""
        told = explain_policies(self.policy.point, [self.policy], data, self.engine, self.bundle.params).details()
        return self._result(section, case, Verdict.FAILED, expected, got, at, message, tuple(told))

    def _result(
        self,
        section: str,
        case: CaseDocument,
        verdict: Verdict,
        expected: str,
        got: str,
        rule: str | None = None,
        message: str = "",
        why: tuple[str, ...] = (),
    ) -> CaseResult:
        suite = self.suite
        return CaseResult(
            suite.file,
            case.at.line,
            suite.description,
            section,
            case.name,
            verdict,
            expected,
            got,
            rule,
            message,
            why=why,
        )

    def _data(self, case: CaseDocument) -> dict[str, Value]:
        given = {name: given_value(value, self.plain) for name, value in case.input}
        return question(self.bundle, self.policy.point, given)

    def _wanted(self, case: CaseDocument) -> _Wanted:
        """What the test wants; an output of an optional type wants what is in it, or no answer."""
        if case.output_value is not None:
            value: Value = plain_value(case.output_value)  # type: ignore[assignment]
            return _Wanted(True, value)
        if case.output is None:
            return _Wanted(False, None)
        if not re.match(r"\s*optional\.(of|none|ofNonZeroValue)\(", case.output.text):
            return _Wanted(True, evaluated(case.output, self.plain))
        if not evaluated(case.output, self.plain, "({}\n).hasValue()"):
            return _Wanted(False, None)
        return _Wanted(True, evaluated(case.output, self.plain, "({}\n).value()"))


@dataclass(frozen=True, slots=True)
class _Wanted:
    is_answer: bool
    value: Value

    def agrees(self, outcome: Outcome) -> bool:
        if outcome.is_answer != self.is_answer:
            return False
        return not self.is_answer or _same(outcome.value, self.value)


def _same(got: Value, expected: Value) -> bool:
    """Equal in value and in type: 1 is not 1.0, true is not 1."""
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(_same(a, b) for a, b in zip(got, expected, strict=True))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(_same(value, expected[key]) for key, value in got.items())
    return type(got) is type(expected) and got == expected


def _words(outcome: Outcome) -> str:
    if outcome.fault is not None:
        return f"error: {outcome.fault.kind}"
    return show(outcome.value) if outcome.is_answer else "no answer"
