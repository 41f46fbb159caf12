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

from controlplane.policy.bundle import TEST_SUFFIX, Bundle, is_test_file, load_bundle
from controlplane.policy.compiled import CompiledPolicy
from controlplane.policy.documents import (
    CaseDocument,
    Expression,
    InputDocument,
    Place,
    Reader,
    SuiteDocument,
    plain_value,
)
from controlplane.policy.engine import CelExprPython, Fault, Refused, Value
from controlplane.policy.evaluation import Evaluation, Observer, Outcome
from controlplane.policy.problems import Problem, snippet, suggestion
from controlplane.policy.vocabulary import BY_NAME, PARAMS, Point, Record
from controlplane.policy.yamltext import normalise

_Say = Callable[[Place, str], None]


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

    def as_dict(self) -> dict[str, object]:
        """The result as JSON keeps it."""
        return {
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
        }


@dataclass(frozen=True, slots=True)
class TestReport:
    """All rule tests of one bundle."""

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
    bundle: Bundle, files: Mapping[str, str], observers: dict[str, list[Observer]] | None = None
) -> TestReport:
    """The same for a bundle that is loaded. ``observers`` collects, per rule file, what each test went through."""
    found = read_suites(files, bundle)
    cases: list[CaseResult] = []
    for suite, rule_file in found.suites:
        policy = next(policy for listed in bundle.policies.values() for policy in listed if policy.file == rule_file)
        runner = _Runner(bundle, policy, suite)
        for section, tests in suite.sections:
            cases.extend(runner.run(section, case) for case in tests)
        if observers is not None:
            observers.setdefault(rule_file, []).extend(runner.observers)
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
        problems.extend(_input_problems(suite, BY_NAME[point], normalise(files[path])))
        suites.append((suite, rule_file))
    return Suites(tuple(suites), tuple(problems))


def _input_problems(suite: SuiteDocument, point: Point, text: str) -> list[Problem]:
    problems: list[Problem] = []

    def say(at: Place, message: str) -> None:
        shown = snippet(text, at.line, at.column)
        problems.append(Problem(at.file, at.line, at.column, message, shown, code="wrong-input"))

    names = [variable.name for variable in point.variables]
    for _, cases in suite.sections:
        for case in cases:
            for name, given in case.input:
                variable = point.variable(name)
                if variable is None and name != PARAMS:
                    message = f"the point '{point.name}' has no '{name}'{suggestion(name, names)}"
                    say(given.at, f"{message} (it has {', '.join(names)})")
                elif variable is not None and variable.record is not None:
                    _unknown_fields(given, variable.record, name, say)
    return problems


def _unknown_fields(given: InputDocument, record: Record, name: str, say: _Say) -> None:
    if given.value is None:
        return
    for key, value in given.value.entries:
        if record.field(key.text) is None:
            known = [field.name for field in record.fields]
            place = Place(file=given.at.file, line=key.line, column=key.column)
            say(place, f"{name} has no field '{key.text}'{suggestion(key.text, known)}")
        elif value.kind == "text" and isinstance(plain_value(value), float):
            place = Place(file=given.at.file, line=value.line, column=value.column)
            say(place, f"{name}.{key.text} is a whole number; fractions are written in a smaller unit")


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

        def result(verdict: Verdict, expected: str, got: str, rule: str | None = None, message: str = "") -> CaseResult:
            return CaseResult(
                self.suite.file,
                case.at.line,
                self.suite.description,
                section,
                case.name,
                verdict,
                expected,
                got,
                rule,
                message,
            )

        try:
            data = self._data(case)
            wanted = self._wanted(case)
            why = self._expected(case.explanation) if case.explanation is not None else None
        except _Broken as broken:
            return result(Verdict.BROKEN, "", "", None, str(broken))
        observer = Observer()
        outcome = Evaluation(data, self.engine, observer).ask([self.policy])
        self.observers.append(observer)
        said = _words(outcome)
        at = f"{outcome.at.file}:{outcome.at.line}" if outcome.at else None
        expected = show(wanted.value) if wanted.is_answer else "no answer"
        if outcome.fault is None and wanted.agrees(outcome):
            if why is None or why == outcome.explanation:
                return result(Verdict.PASSED, expected, said, at)
            return result(Verdict.FAILED, show(why), show(outcome.explanation), at, "the explanation differs")
        detail = f"{outcome.fault.kind} ({outcome.fault.detail})" if outcome.fault else ""
        return result(Verdict.FAILED, expected, said, at, detail)

    def _data(self, case: CaseDocument) -> dict[str, Value]:
        data: dict[str, Value] = {
            variable.name: {} if variable.record else 0 for variable in self.policy.point.variables
        }
        params: dict[Value, Value] = dict(self.bundle.param_values().items())
        for name, given in case.input:
            value = self._given(given)
            if name != PARAMS:
                data[name] = value
            elif isinstance(value, dict):
                params.update(value)
        data[PARAMS] = params
        return data

    def _given(self, given: InputDocument) -> Value:
        if given.expr is not None:
            return self._expected(given.expr)
        assert given.value is not None, "an input has a value or an expression"
        value: Value = plain_value(given.value)  # type: ignore[assignment]
        return value

    def _wanted(self, case: CaseDocument) -> _Wanted:
        """What the test wants; an output of an optional type wants what is in it, or no answer."""
        if case.output_value is not None:
            value: Value = plain_value(case.output_value)  # type: ignore[assignment]
            return _Wanted(True, value)
        if case.output is None:
            return _Wanted(False, None)
        if not re.match(r"\s*optional\.(of|none|ofNonZeroValue)\(", case.output.text):
            return _Wanted(True, self._expected(case.output))
        if not self._expected(case.output, "({}\n).hasValue()"):
            return _Wanted(False, None)
        return _Wanted(True, self._expected(case.output, "({}\n).value()"))

    def _expected(self, expression: Expression, form: str = "{}") -> Value:
        try:
            found = self.plain.program(form.replace("{}", expression.text)).evaluate({})
        except Refused as refused:
            at = expression.locate(refused.diagnostics[0].offset)
            raise _Broken(f"{at.file}:{at.line}:{at.column}: {refused.diagnostics[0].message}") from refused
        if isinstance(found, Fault):
            raise _Broken(f"{expression.at.file}:{expression.at.line}: {found.detail}")
        return found


@dataclass(frozen=True, slots=True)
class _Wanted:
    is_answer: bool
    value: Value

    def agrees(self, outcome: Outcome) -> bool:
        if outcome.is_answer != self.is_answer:
            return False
        return not self.is_answer or _same(outcome.value, self.value)


class _Broken(Exception):
    """A test that cannot be run, and why."""


def _same(got: Value, expected: Value) -> bool:
    """Equal in value and in type: 1 is not 1.0, true is not 1."""
    if isinstance(got, list) and isinstance(expected, list):
        return len(got) == len(expected) and all(_same(a, b) for a, b in zip(got, expected, strict=True))
    return type(got) is type(expected) and got == expected


def _words(outcome: Outcome) -> str:
    if outcome.fault is not None:
        return f"error: {outcome.fault.kind}"
    return show(outcome.value) if outcome.is_answer else "no answer"


def show(value: Value) -> str:
    """A value as CEL writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{show(key)}: {show(value[key])}' for key in sorted(value, key=show))}}}"
    return repr(value)
