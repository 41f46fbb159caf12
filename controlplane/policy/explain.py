"""Why a point answered as it did: every variable's value, every case that was tried, and the one that fired.

The library behind ``policy explain`` and ``why``. It asks the rules again with the same facts; it remembers nothing and
decides nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.bundle import Bundle
from controlplane.policy.compiled import CompiledMatch, CompiledRule, is_portable
from controlplane.policy.documents import Place
from controlplane.policy.engine import Fault, Value
from controlplane.policy.evaluation import Evaluation, Observer, Outcome
from controlplane.policy.rules import clean
from controlplane.policy.testing import show
from controlplane.policy.vocabulary import BY_NAME, PARAMS, Point


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
    matches: tuple[ExplainedMatch, ...]

    def as_dict(self) -> dict[str, object]:
        """The explanation as JSON keeps it."""
        return dataclasses.asdict(self)

    def as_text(self) -> str:
        """The explanation as people read it."""
        lines = [f"{self.point}: {self.answer}" + (f"  ({self.rule})" if self.rule else "")]
        if self.reason:
            lines.append(f"  because {self.reason}")
        if self.fault:
            lines.append(f"  the rule failed: {self.fault}; {self.closed}")
        for match in self.matches:
            mark = "->" if match.fired else "  "
            held = {True: "yes", False: "no", None: "failed"}[match.held]
            lines.append(f"  {mark} {match.file}:{match.line}  {match.condition or 'otherwise'}: {held}")
        lines.extend(f"     {variable.name} = {variable.value}" for variable in self.variables)
        return "\n".join(lines)


def explain(bundle: Bundle, point: str, facts: Mapping[str, object]) -> Explanation:
    """Asks the rules of a point over plain facts: variable -> field -> value, and ``now``; ``params`` may be given too.

    Raises :class:`WrongInput` for a point or a name that does not exist.
    """
    found = BY_NAME.get(point)
    if found is None:
        raise WrongInput(f"there is no decision point '{point}' (the points are {', '.join(BY_NAME)})")
    data = _data(bundle, found, facts)
    policies = bundle.policies.get(point, ())
    observer = Observer()
    asking = Evaluation(data, bundle.engine(point) if policies else bundle.environment.engine(found), observer)
    outcome = asking.ask(policies)
    return Explanation(
        point=point,
        answer=_answer(outcome, found, bool(policies)),
        rule=f"{outcome.at.file}:{outcome.at.line}" if outcome.at else None,
        reason=outcome.explanation,
        fault=f"{outcome.fault.kind} ({outcome.fault.detail})" if outcome.fault else None,
        closed=found.closed if outcome.fault else None,
        variables=tuple(_variables(asking, observer.entered)),
        matches=tuple(_matches(observer, outcome)),
    )


def explain_facts(bundle: Bundle, point: str, arguments: Sequence[object]) -> Explanation:
    """The same over the scheduler's own records, in the order of the port's method."""
    names = [variable.name for variable in BY_NAME[point].variables]
    return explain(bundle, point, {name: plain_facts(value) for name, value in zip(names, arguments, strict=True)})


def plain_facts(record: object) -> Value:
    """A record of facts as the engine sees it: fields that are ``None`` are absent."""
    if record is None:
        return {}
    if not dataclasses.is_dataclass(record):
        return clean(record)
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: clean(value) for name, value in values.items() if value is not None}


def _data(bundle: Bundle, point: Point, facts: Mapping[str, object]) -> dict[str, Value]:
    data: dict[str, Value] = {variable.name: {} if variable.record else 0 for variable in point.variables}
    params: dict[Value, Value] = dict(bundle.param_values().items())
    for name, given in facts.items():
        variable = point.variable(name)
        if name == PARAMS and isinstance(given, Mapping):
            params.update((str(key), clean(value)) for key, value in given.items())
            continue
        if variable is None:
            names = ", ".join(variable.name for variable in point.variables)
            raise WrongInput(f"the point '{point.name}' has no '{name}' (it has {names})")
        if variable.record is not None and not isinstance(given, Mapping):
            raise WrongInput(f"'{name}' is a record: give it as fields and values")
        if variable.record is not None and isinstance(given, Mapping):
            unknown = sorted(str(field) for field in given if variable.record.field(str(field)) is None)
            if unknown:
                raise WrongInput(f"{name} has no field '{unknown[0]}'")
        try:
            data[name] = clean(given)
        except TypeError as error:
            raise WrongInput(f"'{name}': whole numbers, texts, lists and maps are facts, and nothing else") from error
    data[PARAMS] = params
    return data


def _answer(outcome: Outcome, point: Point, has_rules: bool) -> str:
    if not has_rules:
        return f"no rule: {point.silent}"
    if outcome.fault is not None:
        return "failed"
    return show(outcome.value) if outcome.is_answer else "no answer"


def _variables(asking: Evaluation, entered: Sequence[CompiledRule]) -> list[ExplainedVariable]:
    found: list[ExplainedVariable] = []
    for rule in entered:
        for variable in rule.variables:
            at, spelled = variable.expression.source.at, variable.expression.type
            if not is_portable(spelled):
                found.append(ExplainedVariable(variable.name, at.file, at.line, f"a {spelled}", erred=False))
                continue
            value = asking.variable(variable)
            said = value.kind if isinstance(value, Fault) else show(value)
            found.append(ExplainedVariable(variable.name, at.file, at.line, said, isinstance(value, Fault)))
    return found


def _matches(observer: Observer, outcome: Outcome) -> list[ExplainedMatch]:
    by_place = {match.at: match for rule in observer.entered for match in rule.matches}
    tried = [_explained(by_place[at], held, at in observer.fired) for at, held in observer.conditions]
    if outcome.fault is not None and outcome.at in by_place and outcome.at not in dict(observer.conditions):
        tried.append(_explained(by_place[outcome.at], None, fired=False))
    return tried


def _explained(match: CompiledMatch, held: bool | None, fired: bool) -> ExplainedMatch:
    at: Place = match.at
    text = " ".join(match.condition.source.text.split()) if match.condition is not None else ""
    return ExplainedMatch(at.file, at.line, text, held, fired)
