"""A second opinion: every answer that the deciding engine gives is asked of an independent one, and compared.

What is compared is one expression over one set of values at a time (a condition, a variable, an output, an
explanation), so that a disagreement is named by the line of the rule file that it is in. Of equal values only the first
are asked about, and beyond :data:`EVERY` distinct ones of an expression fewer and fewer: the cost of an opinion grows
with the logarithm of what was evaluated.

Engines agree only over a portable subset of CEL, which is decided from the typed tree, not by trying. It was found
with the conformance set of the CEL project: what ``cel-python`` answers as the specification does, and nothing else.
Outside are texts of doubles, optional values, instants and durations, bytes, the extension libraries (so ``cel.bind``
and loops of two variables, too) and regular expressions beyond the plainest.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.policy.bundle import Bundle
from controlplane.policy.compiled import CompiledExpression
from controlplane.policy.engine import Engine, Fault, Program, Refused, Value, show
from controlplane.policy.rules import BundleRules
from controlplane.policy.tree import Tree
from controlplane.policy.vocabulary import PARAMS, VARIABLES, Point

EVERY = 500
"""Distinct evaluations of an expression that are all compared: a quarter of a second of the slower engine."""
SHOWN = 5
"""Disagreements of one expression that are shown; the others are counted."""
FORGOTTEN = 65_536
"""Distinct evaluations that are remembered of one expression; then all are forgotten, and some are counted twice."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One evaluation on which the engines differ."""

    given: str
    """The values that the expression reads."""
    first: str
    """What the deciding engine said."""
    second: str

    def as_dict(self) -> dict[str, str]:
        """JSON-ready."""
        return {"given": self.given, "first": self.first, "second": self.second}


@dataclass(slots=True)
class Opinion:
    """What came of one expression."""

    file: str
    line: int
    column: int
    point: str
    text: str
    """On one line."""
    outside: str = ""
    """Why it is not compared; empty if it is."""
    evaluated: int = 0
    """Times that the deciding engine evaluated it."""
    distinct: int = 0
    """Of those, how many were over other values."""
    compared: int = 0
    disagreed: int = 0
    shown: list[Disagreement] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        own: dict[str, object] = {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "point": self.point,
            "expression": self.text,
            "evaluated": self.evaluated,
        }
        if self.outside:
            return {**own, "outside": self.outside}
        return {
            **own,
            "distinct": self.distinct,
            "compared": self.compared,
            "disagreed": self.disagreed,
            "disagreements": [one.as_dict() for one in self.shown],
        }


class SecondOpinion:
    """Opinions of one engine on the rules of any number of bundles."""

    def __init__(self, engine: Engine, every: int | None = EVERY) -> None:
        """``every`` distinct evaluations of an expression are all compared; ``None`` compares all there are."""
        self.engine = engine
        self._every = every
        self._opinions: dict[tuple[str, int, int, str, str], Opinion] = {}

    def rules(self, bundle: Bundle) -> BundleRules:
        """The rules of a bundle, each of whose expressions is heard when it is evaluated. Answers that usually need no
        engine (bare fields) are evaluated, too. The bundle is changed, and to be used for nothing else."""
        for policies in bundle.policies.values():
            for policy in policies:
                for expression in policy.expressions:
                    self._listen(expression, policy.point)
        return bundle.rules(is_all_evaluated=True)

    def _listen(self, expression: CompiledExpression, point: Point) -> None:
        at, text = expression.source.at, " ".join(expression.source.text.split())
        outside = why_not_portable(expression, point)
        second: Program | None = None
        if not outside:
            try:
                second = self.engine.program(expression.source.text)
            except Refused as refused:
                outside = f"{self.engine.name} cannot read it: {refused.diagnostics[0].message}"
        key = (at.file, at.line, at.column, text, outside)
        opinion = self._opinions.setdefault(key, Opinion(at.file, at.line, at.column, point.name, text, outside))
        expression.program = _Heard(expression, second, opinion, self._every)

    @property
    def opinions(self) -> list[Opinion]:
        """Of every expression that was compiled, by place."""
        return [self._opinions[key] for key in sorted(self._opinions)]

    @property
    def is_agreed(self) -> bool:
        """Whether the engines agree on everything that was compared."""
        return not any(opinion.disagreed for opinion in self._opinions.values())

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        opinions = self.opinions
        compared = [opinion for opinion in opinions if not opinion.outside and opinion.evaluated]
        return {
            "engine": self.engine.name,
            "ok": self.is_agreed,
            "expressions": len(compared),
            "evaluated": sum(opinion.evaluated for opinion in opinions),
            "distinct": sum(opinion.distinct for opinion in compared),
            "compared_evaluations": sum(opinion.compared for opinion in compared),
            "disagreed": sum(opinion.disagreed for opinion in compared),
            "compared": [opinion.as_dict() for opinion in compared],
            "outside": [opinion.as_dict() for opinion in opinions if opinion.outside],
            "never_evaluated": [
                opinion.as_dict() for opinion in opinions if not opinion.outside and not opinion.evaluated
            ],
        }


class _Heard:
    """A program whose answers the second engine is asked about."""

    __slots__ = ("_every", "_expression", "_first", "_opinion", "_second", "_seen")

    def __init__(
        self, expression: CompiledExpression, second: Program | None, opinion: Opinion, every: int | None
    ) -> None:
        self._expression = expression
        self._first = expression.program
        self._second = second
        self._opinion = opinion
        self._every = every
        self._seen: set[Hashable] = set()

    def evaluate(self, data: Mapping[str, Value]) -> Value | Fault:
        first = self._first.evaluate(data)
        self._opinion.evaluated += 1
        if self._second is not None:
            self._compare(self._second, narrowed(self._expression, data), first)
        return first

    def _compare(self, second: Program, given: dict[str, Value], first: Value | Fault) -> None:
        key, opinion = _frozen(given), self._opinion
        if key in self._seen:
            return
        if len(self._seen) >= FORGOTTEN:
            self._seen.clear()
        self._seen.add(key)
        opinion.distinct += 1
        if self._every is not None and opinion.distinct % (1 + opinion.distinct // self._every):
            return
        opinion.compared += 1
        said = second.evaluate(given)
        if is_same(first, said):
            return
        opinion.disagreed += 1
        if len(opinion.shown) < SHOWN:
            values = ", ".join(f"{name}: {show(value)}" for name, value in given.items())
            opinion.shown.append(Disagreement(values, _said(first), _said(said)))


def _said(value: Value | Fault) -> str:
    return f"an error: {value.kind}" if isinstance(value, Fault) else show(value)


def is_same(first: Value | Fault, second: Value | Fault) -> bool:
    """Whether two engines say the same: equal values of equal types. Errors are equal, whatever their words are."""
    if isinstance(first, Fault) or isinstance(second, Fault):
        return isinstance(first, Fault) and isinstance(second, Fault)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(is_same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(is_same(first[key], second[key]) for key in first)
    return type(first) is type(second) and first == second


def narrowed(expression: CompiledExpression, data: Mapping[str, Value]) -> dict[str, Value]:
    """Of the values that a point's rules are given only those that this expression reads, names sorted."""
    given: dict[str, Value] = {}
    for read in sorted(expression.facts):
        value = data[read.variable]
        if not read.field:
            given[read.variable] = value
            continue
        record = given.setdefault(read.variable, {})
        assert isinstance(record, dict), "a variable is a record or a number"
        if not isinstance(value, dict) or read.field not in value:
            continue
        held = value[read.field]
        if read.key is None:
            record[read.field] = held
        else:
            part = record.setdefault(read.field, {})
            if isinstance(part, dict) and isinstance(held, dict) and read.key in held:
                part[read.key] = held[read.key]
    _narrow_names(given, data, PARAMS, sorted(expression.params))
    _narrow_names(given, data, VARIABLES, [name for name, _ in expression.variables])
    return given


def _narrow_names(given: dict[str, Value], data: Mapping[str, Value], owner: str, names: list[str]) -> None:
    held = data.get(owner)
    if names and isinstance(held, dict):
        given[owner] = {name: held[name] for name in names if name in held}


def _frozen(value: Value | Mapping[str, Value]) -> Hashable:
    """A key that is equal for equal values of equal types."""
    if isinstance(value, Mapping):
        return tuple([(key, _frozen(item)) for key, item in value.items()])
    if isinstance(value, list):
        return (list, *map(_frozen, value))
    return (type(value), value) if isinstance(value, bool | float) else value


# --- the portable subset ---------------------------------------------------------------------------------------------

_LOGIC = frozenset(["_&&_", "_||_", "!_", "_?_:_", "@not_strictly_false"])
_COMPARISONS = frozenset(["_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@in"])
_ARITHMETIC = frozenset(["_+_", "_-_", "_*_", "_/_", "_%_", "-_", "_[_]"])
_FUNCTIONS = frozenset(["size", "startsWith", "endsWith", "contains", "matches", "string", "int", "bool"])
_PORTABLE = _LOGIC | _COMPARISONS | _ARITHMETIC | _FUNCTIONS
_WRITTEN = {"math.@min": "math.least", "math.@max": "math.greatest"}
"""Functions that are not written as the engine calls them."""
_TYPE = re.compile(r"(?:list<|map<string, )*(?:bool|int|double|string|null|dyn|tidegate\.\w+)>*")
_ESCAPE = re.compile(r"\\[^nrt\\'\"]")
_PLAIN_REGEX = re.compile(r"[^\\(\[$]*")
_ROUNDING = frozenset(["_/_", "int", "string"])
"""What is done to doubles otherwise at the ends of their range, or in other words."""


def why_not_portable(expression: CompiledExpression, point: Point) -> str:
    """Why an expression is outside the portable subset; empty if it is inside."""
    if expression.presence is not None:
        return "it is an optional value"
    if expression.is_written_out:
        spelled = next(v.expression.type for _, v in expression.variables if not _is_portable_type(v.expression.type))
        return f"it names a variable of type {spelled}"
    taken = {PARAMS, VARIABLES, *(variable.name for variable in point.variables)}
    return why_outside(expression.tree, expression.source.text, taken)


def why_outside(tree: Tree, text: str, taken: set[str]) -> str:
    """The same of a typed tree and its source; ``taken`` are the names of variables."""
    if _ESCAPE.search(text) or '"""' in text or "'''" in text:
        return "a text in it is written with escapes or quotes that the engines read otherwise"
    return next(_reasons(tree, taken), "")


def _reasons(tree: Tree, taken: set[str]) -> Iterator[str]:
    for node in tree.walk():
        if not _is_portable_type(node.type):
            yield f"it makes a value of type {node.type}"
        elif node.kind == "call":
            yield from _of_call(node)
        elif node.kind == "comprehension":
            yield from _of_loop(node, taken)
        elif node.kind == "struct" and (node.name or len({child.type for child in node.children[1::2]}) > 1):
            yield "it makes a map of values of several types"
        elif node.kind == "list" and len({child.type for child in node.children}) > 1:
            yield "it makes a list of elements of several types"


def _is_portable_type(spelled: str) -> bool:
    return _TYPE.fullmatch(spelled) is not None


def _of_call(node: Tree) -> Iterator[str]:
    name, arguments = node.name, node.children
    if name not in _PORTABLE:
        yield f"it uses {_WRITTEN.get(name, name.removeprefix('@'))}(), which the engines do not have alike"
    elif name in _ROUNDING and any(child.type == "double" for child in arguments):
        yield "it divides or converts a double"
    elif name == "matches" and not _is_plain_regex(arguments[-1]):
        yield "it uses a regular expression beyond plain characters, '.', '*', '+', '?' and '|'"
    elif name in ("_==_", "_!=_", "@in") and any(child.type in ("null", "dyn") for child in arguments):
        yield "it compares with null, or with a value of a type that is not known before"


def _is_plain_regex(node: Tree) -> bool:
    return isinstance(node.constant, str) and _PLAIN_REGEX.fullmatch(node.constant) is not None


def _of_loop(node: Tree, taken: set[str]) -> Iterator[str]:
    first, second, _ = node.loop
    if first == "#unused":
        yield "it uses cel.bind() or what is made of it, which the engines do not have alike"
    elif second:
        yield "it loops with two variables"
    elif first in taken:
        yield f"its loop variable hides '{first}'"
