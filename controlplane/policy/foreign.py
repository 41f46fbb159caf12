"""CEL policies that were written for another host: the same format and semantics, another vocabulary.

A policy comes with its environment file (variables, types, functions, extensions, as the CEL project writes them) and
functions of the host, given in Python. It is checked and tested by the same compiler and evaluator as rules, without
the restrictions on what a decision may depend on: it decides nothing here. Semantics are those of cel-go's policy
package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.compiled import CompiledExpression, CompiledPolicy, CompiledRule, written_out
from controlplane.policy.compiler import PolicyCompiler, Scope
from controlplane.policy.coverage import CoverageReport, matches_of
from controlplane.policy.documents import (
    CaseDocument,
    Expression,
    InputDocument,
    ParamDocument,
    Place,
    PolicyDocument,
    Reader,
    SuiteDocument,
    plain_value,
)
from controlplane.policy.engine import Base, CelExprPython, Checker, Engine, Fault, HostFunction, Refused, Value, show
from controlplane.policy.evaluation import Evaluation, Observer, RuleErred
from controlplane.policy.explain import explain_policies
from controlplane.policy.problems import BundleRefused, Problem, errors, snippet, suggestion
from controlplane.policy.reads import Reading
from controlplane.policy.restrictions import Bound
from controlplane.policy.testing import CaseResult, TestReport, Verdict
from controlplane.policy.tree import Tree
from controlplane.policy.vocabulary import VARIABLES, Answer, Point
from controlplane.policy.yamltext import Node, normalise, parse_yaml

_NOWHERE = Point("the environment", "", (), Answer.BOOL, "", "", "")
"""Stands for the decision point that a foreign policy has not got."""
_ALWAYS = ("optional", "bindings")
"""Libraries that the format itself rests on."""


@dataclass(frozen=True, slots=True)
class ForeignAnswer:
    """What a policy said."""

    is_answer: bool
    value: object
    """As Python has it: a timestamp is a ``datetime``."""
    at: Place | None
    fault: Fault | None = None


class ForeignEnvironment:
    """The surroundings of a foreign policy."""

    def __init__(self, text: str, file: str, functions: Mapping[str, HostFunction], imports: Sequence[str]) -> None:
        """Raises :class:`BundleRefused` for a file that the engine cannot read."""
        self.params: Mapping[str, ParamDocument] = {}
        self.file = file
        self.names: tuple[str, ...] = ()
        self._base = Base(self._config(normalise(text)), None, "", tuple(imports), functions)
        try:
            self._checker = Checker(self._base, {})
            self.cel = CelExprPython({VARIABLES: "map<string, dyn>"}, self._base)
        except Refused as refused:
            raise BundleRefused([Problem(file, 1, 1, item.message) for item in refused.diagnostics]) from refused

    def checker(self, point: Point) -> Checker:
        """The same at every point."""
        del point
        return self._checker

    def engine(self, point: Point) -> Engine:
        """The same at every point."""
        del point
        return self.cel

    def _config(self, text: str) -> str:
        """The environment file with the libraries that the format needs."""
        if not text.strip():
            return _written({"extensions": [{"name": name} for name in _ALWAYS]})
        root, problems = parse_yaml(self.file, text)
        if root is None or root.kind != "map":
            message = "an environment is written as keys and values"
            raise BundleRefused(problems or [Problem(self.file, 1, 1, message, snippet(text, 1, 1))])
        config: dict[str, object] = {key.text: plain_value(value) for key, value in root.entries}
        extensions = config.get("extensions")
        listed: list[object] = list(extensions) if isinstance(extensions, list) else []
        there = {entry.get("name") for entry in listed if isinstance(entry, dict)}
        listed.extend({"name": name} for name in _ALWAYS if name not in there)
        config["extensions"] = [_with_text_version(entry) for entry in listed]
        self.names = tuple(_declared(root))
        return _written(config)


def _written(config: Mapping[str, object]) -> str:
    """JSON is YAML."""
    return json.dumps(config)


def _with_text_version(entry: object) -> object:
    if isinstance(entry, dict) and "version" in entry:
        return {**entry, "version": str(entry["version"])}
    return entry


def _declared(root: Node) -> list[str]:
    names: list[str] = []
    for key, value in root.entries:
        for item in value.items if key.text == "variables" else []:
            names.extend(part.text for name, part in item.entries if name.text == "name")
    return names


class _ForeignCompiler(PolicyCompiler):
    """The compiler without our vocabulary and its restrictions; outputs must agree with one another."""

    def _restrict(self, source: Expression, tree: Tree, read: Reading, scope: Scope) -> Bound | None:
        del source, tree, read, scope
        return Bound(0)

    def _refuse_wrong_output(self, source: Expression, output: CompiledExpression) -> None:
        """Any type is fine, as long as all agree."""

    def _refuse_disagreement(self, rule: CompiledRule) -> None:
        first: CompiledExpression | None = None
        for output in _outputs(rule):
            if first is None:
                first = output
            elif not agree(first.type, output.type):
                line = first.source.at.line
                message = f"outputs differ: this is of type {output.type}, the one in line {line} of type {first.type}"
                self._say(output.source.locate(0), message, "wrong-output")
                return

    def _no_such_field(self, name: str, struct: str, source: str, offset: int) -> str:
        del source, offset
        return f"{struct} has no field '{name}'"

    def _no_such_name(self, name: str, source: str, offset: int, scope: Scope) -> str:
        head = name.partition(".")
        if head[0] == VARIABLES:
            after = head[2] or source[offset:].partition(".")[2].split()[0]
            return f"no variable '{after}' is defined above{suggestion(after, scope.variables)}"
        assert isinstance(self.environment, ForeignEnvironment)
        return f"the environment has no '{name}'{suggestion(name, self.environment.names)}"


def _outputs(rule: CompiledRule) -> list[CompiledExpression]:
    """Outputs of a rule, those of nested rules at their place."""
    found: list[CompiledExpression] = []
    for match in rule.matches:
        if match.output is not None:
            found.append(match.output)
        elif match.rule is not None:
            found.extend(_outputs(match.rule))
    return found


def agree(one: str, other: str) -> bool:
    """Whether a value of one type may stand where the other is, either way: ``dyn`` fits everything."""
    if one == other or "dyn" in (one, other):
        return True
    (head, parts), (other_head, other_parts) = _split(one), _split(other)
    if head != other_head or not parts or len(parts) != len(other_parts):
        return False
    return all(agree(part, other_part) for part, other_part in zip(parts, other_parts, strict=True))


def _split(spelled: str) -> tuple[str, list[str]]:
    """``map<string, list<int>>`` as ``map`` and its two parts."""
    head, _, rest = spelled.partition("<")
    parts: list[str] = []
    depth = start = 0
    inner = rest[:-1]
    for at, char in enumerate(inner):
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            parts.append(inner[start:at].strip())
            start = at + 1
    if inner:
        parts.append(inner[start:].strip())
    return head, parts


class ForeignPolicy:
    """A policy that compiles, ready to be asked and tested."""

    def __init__(self, policy: CompiledPolicy, environment: ForeignEnvironment, warnings: Sequence[Problem]) -> None:
        self.policy = policy
        self.environment = environment
        self.warnings = tuple(warnings)

    def answer(self, inputs: Mapping[str, object]) -> ForeignAnswer:
        """What the policy says of these variables."""
        asking = Evaluation(inputs, self.environment.cel)  # type: ignore[arg-type]
        try:
            match = asking.find([self.policy])
        except RuleErred as erred:
            return ForeignAnswer(False, None, erred.at, erred.fault)
        if match is None or match.output is None:
            return ForeignAnswer(False, None, None)
        text = written_out(match.output) or match.output.source.text
        if match.output.presence is not None:
            if not self.environment.cel.native(f"({text}\n).hasValue()", inputs):
                return ForeignAnswer(False, None, match.at)
            text = f"({text}\n).value()"
        value = self.environment.cel.native(text, inputs)
        if isinstance(value, Fault):
            return ForeignAnswer(False, None, match.at, value)
        return ForeignAnswer(True, value, match.at)

    def run_suite(
        self,
        text: str,
        file: str = "tests.yaml",
        observers: list[Observer] | None = None,
        chosen: Callable[[str], bool] = lambda _: True,
    ) -> list[CaseResult]:
        """Runs a file of tests. ``observers`` collects what each went through; ``chosen`` is asked with
        ``file: section: name`` which to run. Raises :class:`BundleRefused` if the file cannot be read."""
        suite = read_suite(text, file)
        return [
            self._run(suite, section, case, observers if observers is not None else [])
            for section, cases in suite.sections
            for case in cases
            if chosen(f"{file}: {section}: {case.name}")
        ]

    def measure(self, text: str, file: str, chosen: Callable[[str], bool] = lambda _: True) -> CoverageReport:
        """Runs a file of tests and measures what they reach. Raises :class:`BundleRefused` if it cannot be read."""
        observers: list[Observer] = []
        cases = self.run_suite(text, file, observers, chosen)
        tests = TestReport(self.policy.name, "", tuple(cases), ())
        return CoverageReport(tests, tuple(matches_of([self.policy], observers)))

    def _run(self, suite: SuiteDocument, section: str, case: CaseDocument, observers: list[Observer]) -> CaseResult:
        wanted = _wanted_text(case)
        why: list[str] = []
        message = ""
        try:
            inputs = {name: self._given(given) for name, given in case.input}
            observers.append(Observer())
            verdict, got, at = self._compare(inputs, wanted, observers[-1])
            if verdict is Verdict.FAILED:
                given: Mapping[str, Value] = inputs  # type: ignore[assignment]
                why = explain_policies(_NOWHERE, [self.policy], given, self.environment.cel).details()
        except (Refused, _Unusable) as error:
            verdict, got, at, message = Verdict.BROKEN, "", None, f"{suite.file}:{case.at.line}: {error}"
        rule = f"{at.file}:{at.line}" if at is not None else None
        return CaseResult(
            suite.file,
            case.at.line,
            suite.description,
            section,
            case.name,
            verdict,
            wanted,
            got,
            rule,
            message,
            why=tuple(why),
        )

    def _compare(
        self, inputs: Mapping[str, object], wanted: str, observer: Observer
    ) -> tuple[Verdict, str, Place | None]:
        """Compared inside the engine, where every type can be compared."""
        asking = Evaluation(inputs, self.environment.cel, observer)  # type: ignore[arg-type]
        try:
            match = asking.find([self.policy])
        except RuleErred as erred:
            return Verdict.FAILED, f"error: {erred.fault.detail}", erred.at
        if match is None or match.output is None:
            said, at = ["optional.none()"], None
        else:
            text = written_out(match.output) or match.output.source.text
            said, at = [f"({text}\n)", f"optional.of({text}\n)"], match.at
        for form in said:
            same = self.environment.cel.native(f"dyn({form}) == dyn({wanted}\n)", inputs)
            if same is True:
                return Verdict.PASSED, wanted, at
            if isinstance(same, Fault):
                return Verdict.FAILED, f"error: {same.detail}", at
        answer = self.answer(inputs)
        return Verdict.FAILED, show(answer.value) if answer.is_answer else "no answer", at  # type: ignore[arg-type]

    def _given(self, given: InputDocument) -> object:
        if given.expr is None:
            return plain_value(given.value) if given.value is not None else None
        value = self.environment.cel.native(given.expr.text, {})
        if isinstance(value, Fault):
            raise _Unusable(f"{given.at.file}:{given.at.line}: {value.detail}")
        return value


class _Unusable(Exception):
    """An input of a test that cannot be evaluated."""


def _wanted_text(case: CaseDocument) -> str:
    if case.output_value is not None:
        return json.dumps(plain_value(case.output_value))
    return case.output.text if case.output is not None else "optional.none()"


def read_suite(text: str, file: str = "tests.yaml") -> SuiteDocument:
    """A file of tests. Raises :class:`BundleRefused` with everything that is wrong with its form."""
    reader = Reader(file, text)
    suite = reader.suite()
    if suite is None:
        raise BundleRefused(reader.problems)
    return suite


def load_policy(
    policy: str,
    environment: str = "",
    functions: Mapping[str, HostFunction] | None = None,
    file: str = "policy.yaml",
    environment_file: str = "config.yaml",
) -> ForeignPolicy:
    """A policy file with its environment file. Raises :class:`BundleRefused` with every error found."""
    reader = Reader(file, policy)
    document = reader.policy()
    if document is None:
        raise BundleRefused(reader.problems)
    imports = [name for name, _ in document.imports]
    surroundings = ForeignEnvironment(environment, environment_file, functions or {}, imports)
    compiled, problems = _compiled(document, surroundings, reader.text)
    if compiled is None:
        raise BundleRefused(sorted(errors(problems)))
    return ForeignPolicy(compiled, surroundings, problems)


def _compiled(
    document: PolicyDocument, surroundings: ForeignEnvironment, text: str
) -> tuple[CompiledPolicy | None, list[Problem]]:
    compiler = _ForeignCompiler(document, _NOWHERE, surroundings, text)
    return compiler.compile(), compiler.problems
