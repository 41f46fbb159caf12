"""Asking compiled rules: first match wins, variables are evaluated when needed and once, a nested unconditional rule
that finds nothing falls through, a nested conditional one that finds nothing ends without an answer.

The semantics are those of cel-go's policy package. Nothing here is remembered between questions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.policy.compiled import (
    CompiledExpression,
    CompiledMatch,
    CompiledPolicy,
    CompiledRule,
    CompiledVariable,
    written_out,
)
from controlplane.policy.documents import Place
from controlplane.policy.engine import Engine, Fault, Program, Refused, Value
from controlplane.policy.vocabulary import VARIABLES


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a point's rules said."""

    value: Value
    """``None`` also stands for no answer; see ``is_answer``."""
    is_answer: bool
    at: Place | None
    """The match that fired, or the one that was being tried when the rule erred."""
    fault: Fault | None = None
    explanation: str | None = None


class RuleErred(Exception):
    """An expression ended in an error."""

    def __init__(self, fault: Fault, at: Place) -> None:
        self.fault = fault
        self.at = at
        super().__init__(fault.kind)


@dataclass(slots=True)
class Observer:
    """What is told about an evaluation: coverage and explanation are built on it."""

    entered: list[CompiledRule] = field(default_factory=list)
    """Rules whose cases were tried, in order."""
    conditions: list[tuple[Place, bool]] = field(default_factory=list)
    """Match and whether its condition held, in the order of trying."""
    fired: list[Place] = field(default_factory=list)


class Evaluation:
    """One question to the rules of one point."""

    __slots__ = ("_cells", "_data", "_engine", "_observer", "evaluations")

    def __init__(self, data: Mapping[str, Value], engine: Engine, observer: Observer | None = None) -> None:
        """``data`` gives each variable of the point, ``params`` included. ``engine`` compiles fallbacks."""
        self._data = data
        self._engine = engine
        self._observer = observer
        self._cells: dict[CompiledVariable, Value | Fault] = {}
        self.evaluations = 0

    def ask(self, policies: Sequence[CompiledPolicy]) -> Outcome:
        """The first answer of the files in their order."""
        try:
            found = self.find(policies)
            return self._fire(found) if found is not None else Outcome(None, False, None)
        except RuleErred as erred:
            return Outcome(None, False, erred.at, erred.fault)

    def variable(self, variable: CompiledVariable) -> Value | Fault:
        """The value of a variable of a rule that was entered."""
        return self._variable(variable)

    def find(self, policies: Sequence[CompiledPolicy]) -> CompiledMatch | None:
        """The case that answers. Raises :class:`RuleErred`."""
        for policy in policies:
            found = self._rule(policy.rule)
            if found is not None:
                return found
        return None

    def _rule(self, rule: CompiledRule) -> CompiledMatch | None:
        if self._observer is not None:
            self._observer.entered.append(rule)
        for match in rule.matches:
            if not self._holds(match):
                continue
            if match.rule is not None:
                found = self._rule(match.rule)
                if found is not None:
                    return found
                if not match.is_unconditional:
                    return None
                continue
            return match
        return None

    def _holds(self, match: CompiledMatch) -> bool:
        held = True
        if match.condition is not None:
            said = self._value(match.condition, match.at)
            if not isinstance(said, bool):
                raise RuleErred(Fault("a condition is neither true nor false", str(said)), match.at)
            held = said
        if self._observer is not None:
            self._observer.conditions.append((match.at, held))
        return held

    def _fire(self, match: CompiledMatch) -> Outcome:
        if self._observer is not None:
            self._observer.fired.append(match.at)
        output = match.output
        assert output is not None, "a match has an output or a rule"
        is_answer = output.presence is None or bool(self._value(output, match.at, presence=True))
        value = self._value(output, match.at) if is_answer else None
        explanation = None
        if match.explanation is not None:
            said = self._value(match.explanation, match.at)
            explanation = said if isinstance(said, str) else None
        return Outcome(value, is_answer, match.at, None, explanation)

    def _value(self, expression: CompiledExpression, at: Place, *, presence: bool = False) -> Value:
        program = expression.presence if presence and expression.presence is not None else expression.program
        if not expression.variables or expression.is_written_out:
            self.evaluations += 1
            result = program.evaluate(self._data)
        else:
            given = {name: self._variable(variable) for name, variable in expression.variables}
            if any(isinstance(value, Fault) for value in given.values()):
                result = self._written_out(expression, presence)
            else:
                self.evaluations += 1
                result = program.evaluate({**self._data, VARIABLES: given})  # type: ignore[dict-item]
        if isinstance(result, Fault):
            raise RuleErred(result, at)
        return result

    def _variable(self, variable: CompiledVariable) -> Value | Fault:
        if variable not in self._cells:
            at = variable.expression.source.at
            try:
                value: Value | Fault = self._value(variable.expression, at)
                if isinstance(value, str) and "\0" in value:
                    value = Fault("a text contains the character NUL", "")
            except RuleErred as erred:
                value = erred.fault
            self._cells[variable] = value
        return self._cells[variable]

    def _written_out(self, expression: CompiledExpression, presence: bool) -> Value | Fault:
        """A variable that errs may not matter (``true || variables.bad``): ask with it in place."""
        self.evaluations += 1
        fallback = expression.fallbacks.get(presence)
        if fallback is None:
            fallback = expression.fallbacks[presence] = self._fallback(expression, presence)
        return fallback if isinstance(fallback, Fault) else fallback.evaluate(self._data)

    def _fallback(self, expression: CompiledExpression, presence: bool) -> Program | Fault:
        text = written_out(expression)
        if text is None:
            return Fault("it takes too many steps", "the expression is too long with its variables written into it")
        if expression.presence is not None:
            text = f"({text}\n).hasValue()" if presence else f"({text}\n).value()"
        try:
            return self._engine.program(text)
        except Refused as refused:
            return Fault("the evaluation failed", refused.diagnostics[0].message)
