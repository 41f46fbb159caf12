"""What a rule may depend on and what it may cost, decided from its typed tree, before it ever runs.

Determinism: nothing may depend on the order of a map, on the machine's time-zone files, or on types known only while
running. Cost: a bound on steps and on the size of every intermediate text and list, from the bounds of the vocabulary.
The same bound holds in check, test, replay and live, because it is not measured but derived.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from controlplane.policy.tree import Tree
from controlplane.policy.vocabulary import MAX_LABELS, MAX_MODELS, MAX_TEXT, PARAMS, VARIABLES

MAX_ROUNDS = 9_999
"""Rounds of all loops of one expression: the engine's own budget is the same number."""
MAX_COST = 100_000
"""Steps of one expression, a step being one node of its tree: some ten milliseconds."""
MAX_SIZE = 100_000
"""Characters or elements of any value that an expression makes."""
RESERVED = "__v"
"""Names that start so are made by the compiler."""
MAX_LOOPS = 2
"""Loops inside one another."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason against an expression. ``offset`` counts characters from its start."""

    offset: int
    message: str
    code: str


@dataclass(frozen=True, slots=True)
class Bound:
    """Upper bounds of a value and of making it."""

    cost: int
    size: int = 1
    """Characters of a text, elements of a list or map, those of lists and maps in it counted too; 1 for a number."""
    item: int = MAX_TEXT
    """The same of each element."""
    rounds: int = 0
    """Of all loops."""


def findings(tree: Tree, variables: Mapping[str, Bound]) -> tuple[list[Finding], Bound]:
    """What speaks against an expression, and its bounds. ``variables`` holds those of the rule, by dotted name."""
    found = _order_findings(tree)
    estimator = _Estimator(dict(variables))
    bound = estimator.bound(tree, 0)
    found.extend(estimator.found)
    if bound.rounds > MAX_ROUNDS:
        message = f"its loops may go round {bound.rounds:,} times, more than the {MAX_ROUNDS:,} allowed; loop over less"
        found.append(Finding(_costliest(tree), message, "too-costly"))
    elif bound.cost > MAX_COST:
        message = f"it may take {bound.cost:,} steps, more than the {MAX_COST:,} allowed; loop over less"
        found.append(Finding(_costliest(tree), message, "too-costly"))
    return found, bound


# --- determinism -----------------------------------------------------------------------------------------------------


def _order_findings(tree: Tree) -> list[Finding]:
    found: list[Finding] = []
    for node in tree.walk():
        check = _CHECKS.get(node.kind)
        if check is not None:
            found.extend(check(node))
    return found


def _of_call(node: Tree) -> list[Finding]:
    if node.name == "dyn":
        message = "dyn() hides the type from the check; leave it out, or convert with int(), double() or string()"
        return [Finding(node.offset, message, "dyn")]
    if node.name == "string" and node.children and node.children[0].type == "double":
        message = "a text made of a double differs between engines; make an int of it first"
        return [Finding(node.offset, message, "double-text")]
    if node.name == "format" and any(_may_hold(part, "map<") for part in node.children[1:]):
        message = "a text made of a map depends on its order, which is not fixed; name its keys one by one"
        return [Finding(node.offset, message, "map-order")]
    if (
        node.name.startswith("get")
        and node.is_member
        and len(node.children) == 2
        and not _is_fixed_zone(node.children[1])
    ):
        message = "a named time zone depends on files of the machine; write 'UTC' or an offset such as '+02:00'"
        return [Finding(node.children[1].offset, message, "time-zone")]
    return []


def _may_hold(node: Tree, mark: str) -> bool:
    return any(mark in part.type or (part.type == "dyn" and part.kind != "const") for part in [node, *node.children])


def _is_fixed_zone(node: Tree) -> bool:
    zone = node.constant
    return isinstance(zone, str) and re.fullmatch(r"UTC|[+-]?\d\d:\d\d", zone) is not None


def _of_loop(node: Tree) -> list[Finding]:
    loop_range, start, _, step, _ = node.children
    taken = [name for name in node.loop if name in (VARIABLES, PARAMS) or name.startswith(RESERVED)]
    found = [
        Finding(node.offset, f"'{name}' has a meaning already; name the loop variable otherwise", "name")
        for name in taken
    ]
    if node.loop[0] == "#unused":
        return found
    if (loop_range.type.startswith("map<") or loop_range.type == "dyn") and start.kind in ("list", "struct"):
        message = (
            "a list made from a map depends on the order of the map, which is not fixed; "
            "ask for keys by name, or use exists() or all()"
        )
        found.append(Finding(node.offset, message, "map-order"))
    if any(part.kind == "struct" or part.name == "cel.@mapInsert" for part in step.walk()):
        message = "a map made inside a loop has no fixed order; make a list"
        found.append(Finding(node.offset, message, "map-order"))
    return found


def _of_constant(node: Tree) -> list[Finding]:
    if (isinstance(node.constant, str) and "\0" in node.constant) or (
        isinstance(node.constant, bytes) and b"\0" in node.constant
    ):
        return [Finding(node.offset, "a text must not contain the character NUL", "nul")]
    return []


_CHECKS: dict[str, Callable[[Tree], list[Finding]]] = {
    "call": _of_call,
    "comprehension": _of_loop,
    "const": _of_constant,
}


# --- cost ------------------------------------------------------------------------------------------------------------


def _costliest(tree: Tree) -> int:
    loops = [node for node in tree.walk() if node.kind == "comprehension" and node.loop[0] != "#unused"]
    return loops[0].offset if loops else tree.offset


class _Estimator:
    """Walks a tree once, from the leaves up. A value that grows too large is reported once and then cut."""

    def __init__(self, names: dict[str, Bound]) -> None:
        self.names = names
        self.found: list[Finding] = []

    def bound(self, node: Tree, depth: int) -> Bound:
        made = self._of(node, depth)
        if made.size <= MAX_SIZE:
            return made
        if not any(finding.code == "too-large" for finding in self.found):
            message = f"it may make a value of {made.size:,} parts, more than the {MAX_SIZE:,} allowed; make it smaller"
            self.found.append(Finding(node.offset, message, "too-large"))
        return Bound(made.cost, MAX_SIZE, made.item, made.rounds)

    def _of(self, node: Tree, depth: int) -> Bound:
        match node.kind:
            case "const":
                constant = node.constant
                return Bound(0, len(constant) if isinstance(constant, str | bytes) else 1)
            case "ident":
                return self.names.get(node.name) or _bound_of_type(node.type)
            case "select":
                inner = self.bound(node.children[0], depth)
                made = _bound_of_type(node.type)
                return Bound(inner.cost + 1, made.size, made.item, inner.rounds)
            case "list" | "struct":
                parts = [self.bound(child, depth) for child in node.children]
                item = max((part.size for part in parts), default=1)
                held = zip(node.children, parts, strict=True)
                size = sum(part.size if _is_container(child.type) else 1 for child, part in held)
                return Bound(1 + sum(part.cost for part in parts), size, item, sum(part.rounds for part in parts))
            case "call":
                return self._call(node, depth)
            case "comprehension":
                return self._loop(node, depth)

    def _call(self, node: Tree, depth: int) -> Bound:
        parts = [self.bound(child, depth) for child in node.children]
        made = self._of_call(node, parts)
        size = 1 if node.type in _SCALARS else made.size
        return Bound(made.cost, size, made.item, sum(part.rounds for part in parts))

    def _of_call(self, node: Tree, parts: list[Bound]) -> Bound:
        cost = 1 + sum(part.cost for part in parts)
        sizes = [part.size for part in parts]
        item = max((part.item for part in parts), default=1)
        match node.name:
            case "_+_":
                return Bound(cost + sum(sizes) // 64, sum(sizes), item)
            case "_?_:_":
                return Bound(cost, max(sizes[1:]), item)
            case "replace":
                return Bound(cost + sizes[0], sizes[0] * max(1, sizes[2] if len(sizes) > 2 else 1), item)
            case "join":
                separator = sizes[1] if len(sizes) > 1 else 0
                return Bound(cost + sizes[0], sizes[0] * (parts[0].item + separator), 1)
            case "format":
                return Bound(cost + sizes[0], sizes[0] + sizes[1] * parts[1].item, 1)
            case "split":
                return Bound(cost + sizes[0], sizes[0] + 1, sizes[0])
            case "flatten":
                return Bound(cost + sizes[0], sizes[0] * parts[0].item, item)
            case "lists.range":
                count = node.children[0].constant
                return Bound(cost, count if isinstance(count, int) and count >= 0 else MAX_SIZE + 1, 1)
            case "@in" | "distinct" | "sort" | "@sortByAssociatedKeys" | "sets.contains" | "sets.intersects":
                return Bound(cost + _scan(node.name, sizes), max(sizes), item)
            case "matches" | "regex.extract" | "regex.extractAll" | "regex.replace":
                return Bound(cost + sizes[0] // 8 + sum(sizes[1:]), sum(sizes) + 1, item)
            case _:
                made = _bound_of_type(node.type)
                return Bound(cost + sum(sizes) // 512, max([*sizes, 1]) if made.size > 1 else 1, item)

    def _loop(self, node: Tree, depth: int) -> Bound:
        first, second, result = node.loop
        over = self.bound(node.children[0], depth)
        start = self.bound(node.children[1], depth)
        if first == "#unused":
            return self._within({result: start}, lambda: self._binding(node, start, depth))
        if depth == MAX_LOOPS:
            message = f"loops stand more than {MAX_LOOPS} deep inside one another; take the inner one apart"
            self.found.append(Finding(node.offset, message, "too-deep"))
            return Bound(over.cost, over.size, over.item, over.rounds)
        element = Bound(0, over.item)
        names = {first: element, **({second: element} if second else {}), result: Bound(0, over.size, over.item)}
        return self._within(names, lambda: self._rounds(node, over, start, depth))

    def _binding(self, node: Tree, start: Bound, depth: int) -> Bound:
        body = self.bound(node.children[4], depth)
        return Bound(start.cost + body.cost + 1, body.size, body.item, start.rounds + body.rounds)

    def _rounds(self, node: Tree, over: Bound, start: Bound, depth: int) -> Bound:
        condition = self.bound(node.children[2], depth + 1)
        step = self.bound(node.children[3], depth + 1)
        result = self.bound(node.children[4], depth + 1)
        cost = over.cost + start.cost + over.size * (1 + condition.cost + step.cost) + result.cost
        rounds = over.rounds + over.size * (1 + condition.rounds + step.rounds) + result.rounds
        grown = max(1, step.size - over.size)  # by one round; the result was reckoned with as many as are gone over
        size = over.size * grown if _is_container(node.type) else 1
        return Bound(cost, size, max(over.item, step.item), rounds)

    def _within(self, names: dict[str, Bound], inside: Callable[[], Bound]) -> Bound:
        outer = self.names
        self.names = {**outer, **names}
        try:
            return inside()
        finally:
            self.names = outer


_SCALARS = {"bool", "int", "uint", "double", "google.protobuf.Timestamp", "google.protobuf.Duration"}


def _is_container(spelled: str) -> bool:
    return spelled.startswith(("list<", "map<")) or spelled == "dyn"


def _scan(function: str, sizes: list[int]) -> int:
    """Steps that a built-in loop of the engine takes."""
    if function == "@in":
        return sizes[-1]
    return sizes[0] * (sizes[1] if len(sizes) > 1 else sizes[0])


def _bound_of_type(spelled: str) -> Bound:
    if spelled.startswith("map<"):
        return Bound(0, MAX_LABELS, MAX_TEXT)
    if spelled.startswith("list<int"):
        return Bound(0, MAX_MODELS, 1)
    if spelled.startswith("list<"):
        return Bound(0, MAX_MODELS, MAX_TEXT)
    if spelled in ("string", "bytes", "dyn"):
        return Bound(0, MAX_TEXT, 1)
    return Bound(0, 1, 1)
