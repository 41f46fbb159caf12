"""Which facts an expression reads: the key under which its answer may be remembered.

A rule that asks only for one label by name is keyed by that label's value, not by all labels of the job: the difference
between one evaluation per job and one per kind of job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controlplane.policy.tree import Tree
from controlplane.policy.vocabulary import PARAMS, VARIABLES, CelType, Point


@dataclass(frozen=True, slots=True, order=True)
class Read:
    """One fact: ``now``, a field of a record, or one key of a map field."""

    variable: str
    field: str = ""
    """Empty for ``now``."""
    key: str | None = None
    """Of a map field: the one key that is asked for; ``None`` reads the whole field."""

    @property
    def path(self) -> str:
        """As the scheduler sees it: without the key."""
        return f"{self.variable}.{self.field}" if self.field else self.variable


@dataclass(frozen=True, slots=True)
class Reading:
    """What one expression reads."""

    facts: frozenset[Read]
    variables: frozenset[str]
    """Names after ``variables.``"""
    params: frozenset[str]
    whole: tuple[tuple[int, str], ...]
    """Records that are used as a whole, which no rule may: offset and name."""


def reading(tree: Tree, point: Point) -> Reading:
    """What the expression reads of the variables of a point. Loop variables hide names of the point."""
    walker = _Walker(point)
    walker.walk(tree, frozenset())
    facts = frozenset(read for read in walker.facts if read.key is None or _whole(read) not in walker.facts)
    return Reading(facts, frozenset(walker.variables), frozenset(walker.params), tuple(sorted(set(walker.whole))))


def _whole(read: Read) -> Read:
    return Read(read.variable, read.field)


def widest(reads: frozenset[Read]) -> frozenset[Read]:
    """Reads without those keys whose whole map is read anyway."""
    return frozenset(read for read in reads if read.key is None or _whole(read) not in reads)


class _Walker:
    def __init__(self, point: Point) -> None:
        self.point = point
        self.facts: set[Read] = set()
        self.variables: set[str] = set()
        self.params: set[str] = set()
        self.whole: list[tuple[int, str]] = []

    def walk(self, node: Tree, hidden: frozenset[str]) -> None:
        keyed = self._keyed(node, hidden)
        if keyed is not None:
            self.facts.add(keyed)
            return
        match node.kind:
            case "ident":
                self._ident(node, hidden)
            case "select":
                self._select(node, hidden)
            case "comprehension":
                self._loop(node, hidden)
            case _:
                for child in node.children:
                    self.walk(child, hidden)

    def _select(self, node: Tree, hidden: frozenset[str]) -> None:
        operand = node.children[0]
        if operand.kind == "ident" and operand.name == PARAMS and PARAMS not in hidden:
            self.params.add(node.name)
            return
        found = self._field(node, hidden)
        if found is not None:
            self.facts.add(found)
        else:
            self.walk(operand, hidden)

    def _loop(self, node: Tree, hidden: frozenset[str]) -> None:
        over, start, condition, step, result = node.children
        self.walk(over, hidden)
        self.walk(start, hidden)
        first, second, accumulator = node.loop
        for child in (condition, step):
            self.walk(child, hidden | {first, second, accumulator})
        self.walk(result, hidden | {accumulator})

    def _ident(self, node: Tree, hidden: frozenset[str]) -> None:
        name = node.name
        if name in hidden:
            return
        head, _, rest = name.partition(".")
        if head == VARIABLES and rest:
            self.variables.add(rest)
        elif (variable := self.point.variable(name)) is not None:
            if variable.record is None:
                self.facts.add(Read(name))
            else:
                self.whole.append((node.offset, name))
        elif name == PARAMS:
            self.whole.append((node.offset, name))

    def _field(self, node: Tree, hidden: frozenset[str]) -> Read | None:
        """The read behind ``variable.field``."""
        if node.kind != "select" or node.children[0].kind != "ident" or node.children[0].name in hidden:
            return None
        name = node.children[0].name
        variable = self.point.variable(name)
        if variable is None or variable.record is None or variable.record.field(node.name) is None:
            return None
        return Read(name, node.name)

    def _keyed(self, node: Tree, hidden: frozenset[str]) -> Read | None:
        """The read behind one key of a map field, however it is asked for."""
        for holder, key in _key_forms(node):
            found = self._field(holder, hidden)
            if found is not None and holder.type == str(CelType.LABELS):
                return Read(found.variable, found.field, key)
        return None


def _key_forms(node: Tree) -> Iterator[tuple[Tree, str]]:
    if node.kind == "select":
        yield node.children[0], node.name
    elif node.kind == "call" and len(node.children) == 2:
        left, right = node.children
        if node.name in ("_[_]", "_[?_]", "_?._") and isinstance(right.constant, str):
            yield left, right.constant
        if node.name == "@in" and isinstance(left.constant, str):
            yield right, left.constant
