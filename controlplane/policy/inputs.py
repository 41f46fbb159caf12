"""Facts as people write them, in rule tests and for ``policy explain``: variable -> value, or expression that gives it.

What does not fit the vocabulary is refused with its place, so that no test passes because of a misspelt field. ``null``
means absent, as ``None`` does in the scheduler's own facts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from controlplane.policy.bundle import Bundle
from controlplane.policy.documents import Expression, InputDocument, Place, Reader, plain_value
from controlplane.policy.engine import CelExprPython, Fault, Refused, Value, plain_words
from controlplane.policy.problems import Problem, snippet, suggestion
from controlplane.policy.vocabulary import PARAMS, CelType, Point, Record, Variable
from controlplane.policy.yamltext import Node, normalise

Inputs = Sequence[tuple[str, InputDocument]]


class Unusable(Exception):
    """An expression of an input or an output that cannot be evaluated: place and cause in one sentence."""


def input_problems(inputs: Inputs, point: Point, text: str) -> list[Problem]:
    """What does not fit the point; ``text`` is the file that they stand in."""
    return _Checking(text).check(inputs, point)


class _Checking:
    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []

    def check(self, inputs: Inputs, point: Point) -> list[Problem]:
        names = [variable.name for variable in point.variables]
        for name, given in inputs:
            variable = point.variable(name)
            if variable is None and name != PARAMS:
                message = f"the point '{point.name}' has no '{name}'{suggestion(name, names)}"
                self._say(given.at, f"{message} (it has {', '.join([*names, PARAMS])})")
            elif given.value is not None and variable is not None:
                self._value(given.value, variable, given.at)
        return self.problems

    def _value(self, node: Node, variable: Variable, at: Place) -> None:
        if node.is_null:
            return
        if variable.record is not None and node.kind != "map":
            self._say(at, f"{variable.name} is a record: give it as fields and values")
        elif variable.record is None and misfit(node, CelType.INT):
            self._say(at, f"{variable.name} is {misfit(node, CelType.INT)}")
        elif variable.record is not None:
            self._fields(node, variable.record, variable.name, at)

    def _fields(self, node: Node, record: Record, name: str, at: Place) -> None:
        for key, value in node.entries:
            field = record.field(key.text)
            if field is None:
                place = Place(file=at.file, line=key.line, column=key.column)
                self._say(
                    place, f"{name} has no field '{key.text}'{suggestion(key.text, [f.name for f in record.fields])}"
                )
            elif wrong := misfit(value, field.type):
                place = Place(file=at.file, line=value.line, column=value.column)
                self._say(place, f"{name}.{key.text} is {wrong}")

    def _say(self, at: Place, message: str) -> None:
        shown = snippet(self.text, at.line, at.column)
        self.problems.append(Problem(at.file, at.line, at.column, message, shown, code="wrong-input"))


def misfit(node: Node, spelled: CelType) -> str:
    """What a fact should be, if the node does not stand for it; empty if it does, or is absent."""
    value = plain_value(node)
    if value is None:
        return ""
    match spelled:
        case CelType.INT:
            if isinstance(value, float):
                return "a whole number; fractions are written in a smaller unit"
            fits = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
            return "" if fits else "a whole number"
        case CelType.BOOL:
            return "" if isinstance(value, bool) else "true or false"
        case CelType.STRING:
            return "" if isinstance(value, str) else "a text; put it in quotes"
        case CelType.STRINGS:
            fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
            return "" if fits else "a list of texts"
        case CelType.INTS:
            fits = isinstance(value, list) and not any(misfit(item, CelType.INT) for item in node.items)
            return "" if fits else "a list of whole numbers"
        case CelType.LABELS:
            fits = isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
            return "" if fits else "a map of texts to texts; put each of them in quotes"
        case CelType.DOUBLE:
            return "" if isinstance(value, int | float) and not isinstance(value, bool) else "a number"


def given_value(given: InputDocument, plain: CelExprPython) -> Value:
    """The value of one input; fields that are ``null`` are left out. Raises :class:`Unusable`."""
    if given.expr is not None:
        return evaluated(given.expr, plain)
    assert given.value is not None, "an input has a value or an expression"
    value: Value = plain_value(given.value)  # type: ignore[assignment]
    if isinstance(value, dict):
        return {name: held for name, held in value.items() if held is not None}
    return value


def evaluated(expression: Expression, plain: CelExprPython, form: str = "{}") -> Value:
    """The value of an expression that names nothing. Raises :class:`Unusable`."""
    try:
        found = plain.program(form.replace("{}", expression.text)).evaluate({})
    except Refused as refused:
        at = expression.locate(refused.diagnostics[0].offset)
        raise Unusable(f"{at.file}:{at.line}:{at.column}: {plain_words(refused.diagnostics[0].message)}") from refused
    if isinstance(found, Fault):
        raise Unusable(f"{expression.at.file}:{expression.at.line}:{expression.at.column}: {found.kind}")
    return found


def question(bundle: Bundle, point: Point, given: Mapping[str, Value]) -> dict[str, Value]:
    """What the engine sees: the values that are given, and what nobody gave as absent, 0, or a parameter's default."""
    data: dict[str, Value] = {variable.name: {} if variable.record else 0 for variable in point.variables}
    params: dict[Value, Value] = dict(bundle.param_values().items())
    for name, value in given.items():
        if name == PARAMS:
            params.update(value if isinstance(value, dict) else {})
        elif value is not None:
            data[name] = value
    data[PARAMS] = params
    return data


def read_facts(file: str, text: str, point: Point) -> dict[str, Value]:
    """The facts of one question in a file (YAML or JSON): variable -> value, ``{value: ...}`` or ``{expr: ...}``, or a
    whole rule test, of which ``input`` is taken. Raises :class:`Unusable` for the first thing that is wrong."""
    reader = Reader(file, _as_yaml(text))
    inputs = reader.facts()
    problems = reader.problems or input_problems(inputs, point, reader.text)
    if problems:
        first, more = problems[0], len(problems) - 1
        rest = f" (and {more} more)" if more else ""
        raise Unusable(f"{first.file}:{first.line}:{first.column}: {first.message}{rest}")
    plain = CelExprPython({})
    return {name: given_value(given, plain) for name, given in inputs}


def _as_yaml(text: str) -> str:
    """JSON that YAML does not take (tabs, surrogates in escapes) as JSON that it takes; else the text as it is."""
    if not text.lstrip().startswith("{") or ("\t" not in text and "\\" not in text):
        return normalise(text)
    try:
        return json.dumps(json.loads(text), ensure_ascii=False, indent=1)
    except ValueError:
        return normalise(text)
