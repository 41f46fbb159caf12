"""Why a point answered as it did: every variable's value, every case that was tried, what they read, and the case that
fired.

The library behind ``policy explain``, the failures of ``policy test``, and ``why``. It asks the rules again with the
same facts; it remembers nothing and decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.bundle import Bundle
from controlplane.policy.compiled import (
    CompiledExpression,
    CompiledMatch,
    CompiledPolicy,
    CompiledVariable,
    is_portable,
    written_out,
)
from controlplane.policy.documents import ParamDocument, Place
from controlplane.policy.engine import Engine, Fault, Refused, Value, show
from controlplane.policy.evaluation import Evaluation, Observer, Outcome
from controlplane.policy.inputs import question
from controlplane.policy.problems import suggestion
from controlplane.policy.reads import Read, widest
from controlplane.policy.rules import clean
from controlplane.policy.vocabulary import BY_NAME, PARAMS, Point

ABSENT = "absent"
NO_ANSWER = "no answer"


class WrongInput(Exception):
    """The facts given to explain do not fit the point; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class ExplainedVariable:
    """A variable of a rule that was entered."""

    name: str
    file: str
    line: int
    value: str
    """As CEL writes it, or what went wrong."""
    erred: bool
    needed: bool
    """Whether anything that was tried names it. Variables are lazy: of one that is not needed, the value was computed
    only to be shown."""


@dataclass(frozen=True, slots=True)
class ExplainedFact:
    """A fact or parameter that was read by what was tried."""

    name: str
    """Such as ``job.priority``, ``job.labels['team']``, ``now`` or ``params.limit``."""
    value: str
    """As CEL writes it, or ``absent``."""
    unit: str


@dataclass(frozen=True, slots=True)
class ExplainedMatch:
    """A case that was tried."""

    file: str
    line: int
    condition: str
    """Its text on one line; empty if there is none."""
    held: bool | None
    """``None`` if the condition could not be decided."""
    fired: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one question went through."""

    point: str
    meaning: str
    """Of an answer, from the vocabulary."""
    answer: str
    """As CEL writes it; ``no answer`` if no case applies."""
    rule: str | None
    """``file:line`` of the case that answered."""
    reason: str | None
    """What the case's ``explanation`` says."""
    fault: str | None
    closed: str | None
    """What happens instead, if the rule erred."""
    variables: tuple[ExplainedVariable, ...]
    facts: tuple[ExplainedFact, ...]
    matches: tuple[ExplainedMatch, ...]

    def as_dict(self) -> dict[str, object]:
        """The explanation as JSON keeps it."""
        return dataclasses.asdict(self)

    def details(self, folder: str = "") -> list[str]:
        """The cases that were tried, then the variables, then what was read: a line each. ``folder`` stands before each
        file."""
        return [*self._tried(folder), *self._named(folder), *self._read()]

    def as_text(self, folder: str = "") -> str:
        """The explanation as people read it."""
        rule = f"  ({_before(folder)}{self.rule})" if self.rule else ""
        lines = [f"{self.point}: {self.answer}{rule}", f"  {self.meaning}"]
        if self.reason:
            lines.append(f"  because {self.reason}")
        if self.fault:
            lines.append(f"  the rule failed, so {self.closed}: {self.fault}")
        parts = (
            ("cases that were tried, in order", self._tried(folder)),
            ("variables", self._named(folder)),
            ("facts that were read", self._read()),
        )
        for head, part in parts:
            if part:
                lines.extend([f"{head}:", *(f"  {line}" for line in part)])
        return "\n".join(lines)

    def _tried(self, folder: str) -> list[str]:
        said = {True: "yes", False: "no", None: "failed"}
        return [
            f"{'-> ' if match.fired else '   '}{_before(folder)}{match.file}:{match.line}: {said[match.held]}: "
            f"{match.condition or 'otherwise'}"
            for match in self.matches
        ]

    def _named(self, folder: str) -> list[str]:
        lines: list[str] = []
        for variable in self.variables:
            lazy = "" if variable.needed else " (lazy: nothing that was tried needs it)"
            value = f"{'failed: ' if variable.erred else ''}{variable.value}{lazy}"
            lines.append(f"   variables.{variable.name} = {value}  ({_before(folder)}{variable.file}:{variable.line})")
        return lines

    def _read(self) -> list[str]:
        return [f"   {fact.name} = {fact.value}{_unit_of(fact)}" for fact in self.facts]


def _before(folder: str) -> str:
    return f"{folder.rstrip('/')}/" if folder else ""


def _unit_of(fact: ExplainedFact) -> str:
    return f" {fact.unit}" if fact.unit and fact.value != ABSENT else ""


def point_named(name: str) -> Point:
    """The decision point of that name. Raises :class:`WrongInput`."""
    found = BY_NAME.get(name)
    if found is None:
        hint = suggestion(name, BY_NAME)
        raise WrongInput(f"there is no decision point '{name}'{hint} (the points are {', '.join(BY_NAME)})")
    return found


def explain(bundle: Bundle, point: str, facts: Mapping[str, object]) -> Explanation:
    """Asks the rules of a point over plain facts: variable -> field -> value, and ``now``; ``params`` may be given too.

    Raises :class:`WrongInput` for a point or a name that does not exist.
    """
    found = point_named(point)
    data = question(bundle, found, _given(found, facts))
    return explain_policies(found, bundle.policies.get(point, ()), data, bundle.engine(point), bundle.params)


def explain_facts(bundle: Bundle, point: str, arguments: Sequence[object]) -> Explanation:
    """The same over the scheduler's own records, in the order of the port's method."""
    names = [variable.name for variable in BY_NAME[point].variables]
    return explain(bundle, point, {name: plain_facts(value) for name, value in zip(names, arguments, strict=True)})


def explain_policies(
    point: Point,
    policies: Sequence[CompiledPolicy],
    data: Mapping[str, Value],
    engine: Engine,
    params: Sequence[ParamDocument] = (),
) -> Explanation:
    """The same for some rule files of a point, over what the engine sees. ``params`` tell units."""
    observer = Observer()
    asking = Evaluation(data, engine, observer)
    outcome = asking.ask(policies)
    tried = _tried(observer, outcome)
    needed: dict[CompiledVariable, None] = {}
    for expression in tried:
        _need(expression, needed)
    shown = _Shown(asking, engine, data)
    return Explanation(
        point=point.name,
        meaning=point.meaning,
        answer=_answer(outcome, point, bool(policies)),
        rule=f"{outcome.at.file}:{outcome.at.line}" if outcome.at else None,
        reason=outcome.explanation,
        fault=f"{outcome.fault.kind} ({outcome.fault.detail})" if outcome.fault else None,
        closed=point.closed if outcome.fault else None,
        variables=tuple(
            shown.variable(variable, needed=variable in needed)
            for rule in observer.entered
            for variable in rule.variables
        ),
        facts=tuple(_facts(point, [*tried, *(variable.expression for variable in needed)], data, params)),
        matches=tuple(_matches(observer, outcome)),
    )


def plain_facts(record: object) -> Value:
    """A record of facts as the engine sees it: fields that are ``None`` are absent."""
    if record is None:
        return {}
    if not dataclasses.is_dataclass(record):
        return clean(record)
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: clean(value) for name, value in values.items() if value is not None}


def _given(point: Point, facts: Mapping[str, object]) -> dict[str, Value]:
    """The facts as the engine takes them, if they fit the point."""
    given: dict[str, Value] = {}
    for name, value in facts.items():
        variable = point.variable(name)
        if name == PARAMS and isinstance(value, Mapping):
            given[name] = clean(value)
            continue
        if variable is None:
            names = ", ".join(variable.name for variable in point.variables)
            raise WrongInput(f"the point '{point.name}' has no '{name}' (it has {names})")
        if variable.record is not None and not isinstance(value, Mapping):
            raise WrongInput(f"'{name}' is a record: give it as fields and values")
        if variable.record is not None and isinstance(value, Mapping):
            unknown = sorted(str(field) for field in value if variable.record.field(str(field)) is None)
            if unknown:
                raise WrongInput(f"{name} has no field '{unknown[0]}'")
        try:
            given[name] = clean(value)
        except TypeError as error:
            raise WrongInput(f"'{name}': whole numbers, texts, lists and maps are facts, and nothing else") from error
    return given


def _answer(outcome: Outcome, point: Point, has_rules: bool) -> str:
    if not has_rules:
        return f"no rule: {point.silent}"
    if outcome.fault is not None:
        return "failed"
    return show(outcome.value) if outcome.is_answer else NO_ANSWER


# --- what was tried --------------------------------------------------------------------------------------------------


def _by_place(observer: Observer) -> dict[Place, CompiledMatch]:
    return {match.at: match for rule in observer.entered for match in rule.matches}


def _undecided(observer: Observer, outcome: Outcome) -> CompiledMatch | None:
    """The case whose condition erred."""
    if outcome.fault is None or outcome.at is None or outcome.at in dict(observer.conditions):
        return None
    return _by_place(observer).get(outcome.at)


def _tried(observer: Observer, outcome: Outcome) -> list[CompiledExpression]:
    """Conditions that were asked, and what the case that fired says."""
    by_place = _by_place(observer)
    undecided = _undecided(observer, outcome)
    asked = [by_place[at] for at, _ in observer.conditions] + ([undecided] if undecided is not None else [])
    found = [match.condition for match in asked]
    for at in observer.fired:
        found.extend((by_place[at].output, by_place[at].explanation))
    return [expression for expression in found if expression is not None]


def _need(expression: CompiledExpression, needed: dict[CompiledVariable, None]) -> None:
    """Collects the variables that an expression names, and those that they name."""
    for _, variable in expression.variables:
        if variable not in needed:
            needed[variable] = None
            _need(variable.expression, needed)


def _matches(observer: Observer, outcome: Outcome) -> list[ExplainedMatch]:
    by_place = _by_place(observer)
    tried = [_explained(by_place[at], held, at in observer.fired) for at, held in observer.conditions]
    undecided = _undecided(observer, outcome)
    return tried if undecided is None else [*tried, _explained(undecided, None, fired=False)]


def _explained(match: CompiledMatch, held: bool | None, fired: bool) -> ExplainedMatch:
    at: Place = match.at
    text = " ".join(match.condition.source.text.split()) if match.condition is not None else ""
    return ExplainedMatch(at.file, at.line, text, held, fired)


# --- what was read ---------------------------------------------------------------------------------------------------


def _facts(
    point: Point, expressions: Sequence[CompiledExpression], data: Mapping[str, Value], params: Sequence[ParamDocument]
) -> Iterator[ExplainedFact]:
    reads = widest(frozenset(read for expression in expressions for read in expression.facts))
    order = [variable.name for variable in point.variables]
    for read in sorted(reads, key=lambda read: (order.index(read.variable), read.field, read.key or "")):
        yield ExplainedFact(_path(read), _fact(read, data), _unit(point, read))
    units = {param.name: param.unit for param in params}
    held = data.get(PARAMS)
    for name in sorted({name for expression in expressions for name in expression.params}):
        value = held.get(name) if isinstance(held, dict) else None
        yield ExplainedFact(f"{PARAMS}.{name}", show(value), units.get(name, ""))


def _path(read: Read) -> str:
    return f"{read.path}[{show(read.key)}]" if read.key is not None else read.path


def _fact(read: Read, data: Mapping[str, Value]) -> str:
    value: Value = data[read.variable]
    for step in ([read.field] if read.field else []) + ([read.key] if read.key is not None else []):
        if not isinstance(value, dict) or step not in value:
            return ABSENT
        value = value[step]
    return show(value)


def _unit(point: Point, read: Read) -> str:
    variable = point.variable(read.variable)
    if variable is None or variable.record is None:
        return "ms since the epoch"
    field = variable.record.field(read.field)
    return field.unit if field is not None else ""


class _Shown:
    """Values of variables, as people read them."""

    def __init__(self, asking: Evaluation, engine: Engine, data: Mapping[str, Value]) -> None:
        self._asking = asking
        self._engine = engine
        self._data = data

    def variable(self, variable: CompiledVariable, *, needed: bool) -> ExplainedVariable:
        at, spelled = variable.expression.source.at, variable.expression.type
        value = self._asking.variable(variable) if is_portable(spelled) else self._inside(variable.expression)
        said = value.kind if isinstance(value, Fault) else value if not is_portable(spelled) else show(value)
        assert isinstance(said, str)
        return ExplainedVariable(variable.name, at.file, at.line, said, isinstance(value, Fault), needed)

    def _inside(self, expression: CompiledExpression) -> str | Fault:
        """Of a value that cannot leave the engine, what the engine itself makes of it as a text."""
        text = written_out(expression)
        if text is None:
            return f"a {expression.type}"
        if expression.type.startswith("optional_type<"):
            there = self._evaluate(f"({text}\n).hasValue()")
            if isinstance(there, Fault) or there is not True:
                return there if isinstance(there, Fault) else "optional.none()"
            inside = self._evaluate(f"({text}\n).value()")
            return f"optional.of({show(inside)})" if not isinstance(inside, Fault) else f"a {expression.type}"
        said = self._evaluate(f"string({text}\n)")
        return said if isinstance(said, str | Fault) else f"a {expression.type}"

    def _evaluate(self, text: str) -> Value | Fault:
        try:
            return self._engine.program(text).evaluate(self._data)
        except Refused:
            return None
