"""Quota as a recursive tree: what a queue may still use, what it uses of others, and whom that is charged to.

The algebra is Kueue's (``pkg/cache/.../resource_node.go``): each node of the tree keeps ``guaranteed`` for itself (what
it does not lend) and hands the rest to its parent; usage first fills what is guaranteed and overflows to the parent.

    subtree(n)    = nominal(n) + sum over children c of (subtree(c) - guaranteed(c))
    guaranteed(n) = max(0, subtree(n) - lending_limit(n)), or 0 without a lending limit
    available(root) = subtree(root) - charged(root)
    available(n)    = max(0, guaranteed(n) - charged(n))
                      + min(available(parent), subtree(n) - guaranteed(n) - overflow(n) + borrowing_limit(n))

A key (flavor, resource) that neither a queue nor any of its ancestors lists is not limited for it and is not charged.
The tree is immutable; what is charged lives beside it, so that a draft can copy it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controlplane.domain.quantities import MAX_AMOUNT
from controlplane.domain.queues import QueueSpec

Key = tuple[str, str]
"""(flavor or ``any``, resource)."""

ROOT = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """The limits of one queue for one key, in the unit of the resource."""

    nominal: int
    subtree: int
    guaranteed: int
    borrowing_limit: int | None
    potential: int
    """The most that it could ever use, if nobody else used anything."""


@dataclass(slots=True, eq=False)
class QueueNode:
    """A queue in the tree. ``path`` goes from itself to the root, both included."""

    index: int
    name: str
    spec: QueueSpec | None
    parent: QueueNode | None
    children: list[QueueNode] = field(default_factory=list)
    path: tuple[QueueNode, ...] = ()
    cells: dict[Key, Cell] = field(default_factory=dict)
    limited: tuple[Key, ...] = ()
    """The keys that limit it: listed by itself or by an ancestor; sorted."""
    is_held: bool = False
    """Held itself or by an ancestor."""

    @property
    def weight(self) -> int:
        """Of the queue among its siblings."""
        return self.spec.weight if self.spec is not None else 1


Charged = list[dict[Key, int]]
"""By node index: what is charged to each key, overflow of the children included."""


MAX_DEPTH = 64
"""Levels of a tree that is let in. Every question of quota goes the whole way up, and each queue keeps its way, so that
a chain costs the square of its length; organisations are some five levels deep."""


class QueueTree:
    """All queues, from their specifications. Raises ``ValueError`` in one sentence for a cycle or a missing parent."""

    def __init__(self, specs: Mapping[str, QueueSpec]) -> None:
        self.root = QueueNode(0, ROOT, None, None)
        self.nodes: list[QueueNode] = [self.root]
        self.by_name: dict[str, QueueNode] = {}
        for name in sorted(specs):
            check_ancestors(specs, specs[name])
        children: dict[str, list[str]] = {}
        for name in sorted(specs):
            children.setdefault(specs[name].parent or ROOT, []).append(name)
        self._grow(self.root, children, specs)
        for node in self.nodes:
            node.path = tuple(_ascend(node))
            node.is_held = any(up.spec is not None and up.spec.held for up in node.path)
        self._set_cells()

    def _grow(self, node: QueueNode, children: Mapping[str, list[str]], specs: Mapping[str, QueueSpec]) -> None:
        stack = [node]
        while stack:
            parent = stack.pop()
            for name in children.get(parent.name, ()):
                child = QueueNode(len(self.nodes), name, specs[name], parent)
                parent.children.append(child)
                self.nodes.append(child)
                self.by_name[name] = child
                stack.append(child)

    def _set_cells(self) -> None:
        for node in self.nodes:
            listed = {key for up in node.path if up.spec is not None for key in _listed(up.spec)}
            node.limited = tuple(sorted(listed))
        below: dict[int, dict[Key, int]] = {}
        for node in reversed(self.nodes):
            self._sum_up(node, below)
        for node in self.nodes:
            node.cells = {key: _with_potential(node, key, cell) for key, cell in node.cells.items()}

    def _sum_up(self, node: QueueNode, below: dict[int, dict[Key, int]]) -> None:
        """Children have larger indices than their parent, so that walking backwards meets them first."""
        lent = below.get(node.index, {})
        for key in sorted({*node.limited, *lent}):
            quota = node.spec.quotas.get(key[0], {}).get(key[1]) if node.spec is not None else None
            nominal = quota.nominal if quota is not None else 0
            subtree = nominal + lent.get(key, 0)
            guaranteed = 0
            if quota is not None and quota.lending_limit is not None:
                guaranteed = max(0, subtree - quota.lending_limit)
            limit = quota.borrowing_limit if quota is not None else None
            node.cells[key] = Cell(nominal, subtree, guaranteed, limit, 0)
            if node.parent is not None:
                up = below.setdefault(node.parent.index, {})
                up[key] = up.get(key, 0) + subtree - guaranteed

    def empty_charges(self) -> Charged:
        """Nothing charged to anyone."""
        return [{} for _ in self.nodes]


def available(node: QueueNode, key: Key, charged: Charged) -> int:
    """How much more the queue may use, borrowing included; negative when quota was lowered below what is used."""
    left = 0
    for at in reversed(node.path):
        cell = at.cells[key]
        used = charged[at.index].get(key, 0)
        if at.parent is None:
            left = cell.subtree - used
            continue
        if cell.borrowing_limit is not None:
            overflow = max(0, used - cell.guaranteed)
            left = min(left, cell.subtree - cell.guaranteed - overflow + cell.borrowing_limit)
        left += max(0, cell.guaranteed - used)
    return left


def available_nominal(node: QueueNode, key: Key, charged: Charged) -> int:
    """How much more the queue may use without borrowing: what is left of its own subtree, if others left it there."""
    own = node.cells[key].subtree - charged[node.index].get(key, 0)
    return min(own, available(node, key, charged))


def borrowed(node: QueueNode, key: Key, charged: Charged) -> int:
    """What the queue uses above its own subtree's quota."""
    return max(0, charged[node.index].get(key, 0) - node.cells[key].subtree)


def charge(node: QueueNode, key: Key, amount: int, charged: Charged) -> None:
    """Add usage (or take it away, with a negative amount) at the queue and let it overflow to the ancestors."""
    at: QueueNode | None = node
    while at is not None and amount != 0:
        before = charged[at.index].get(key, 0)
        after = before + amount
        if after:
            charged[at.index][key] = after
        else:
            charged[at.index].pop(key, None)
        guaranteed = at.cells[key].guaranteed
        amount = max(0, after - guaranteed) - max(0, before - guaranteed)
        at = at.parent


def over_promised(tree: QueueTree, capacity: Mapping[Key, int]) -> list[tuple[Key, int, int]]:
    """Keys whose promises exceed the capacity: (key, promised, there), sorted by key."""
    promised = {key: cell.subtree for key, cell in tree.root.cells.items()}
    return [
        (key, promised[key], capacity.get(key, 0)) for key in sorted(promised) if promised[key] > capacity.get(key, 0)
    ]


def _listed(spec: QueueSpec) -> Iterable[Key]:
    return [(flavor, resource) for flavor, quotas in spec.quotas.items() for resource in quotas]


def _ascend(node: QueueNode) -> Iterable[QueueNode]:
    at: QueueNode | None = node
    while at is not None:
        yield at
        at = at.parent


def _with_potential(node: QueueNode, key: Key, cell: Cell) -> Cell:
    """Parents come before children in index order, so the parent's potential is already set."""
    if node.parent is None:
        most = cell.subtree
    else:
        most = cell.guaranteed + node.parent.cells[key].potential
        if cell.borrowing_limit is not None:
            most = min(most, cell.subtree + cell.borrowing_limit)
    return Cell(cell.nominal, cell.subtree, cell.guaranteed, cell.borrowing_limit, min(most, MAX_AMOUNT))


def check_ancestors(specs: Mapping[str, QueueSpec], spec: QueueSpec) -> int:
    """Whether the way from a queue to the root would be sound, and its levels. ``specs`` need not hold the queue, or
    not as it is to be. Raises ``ValueError`` in one sentence if it is not."""
    seen = {spec.name}
    at = spec.parent
    while at is not None:
        if at in seen:
            raise ValueError(f"queue {spec.name!r} is below itself by way of {at!r}; break the cycle")
        if at not in specs:
            raise ValueError(f"queue {spec.name!r} is below {at!r}, which is not a queue; configure {at!r} first")
        seen.add(at)
        at = specs[at].parent
    return len(seen)


def check_depth(specs: Mapping[str, QueueSpec], spec: QueueSpec) -> None:
    """For whoever lets queues in: logs of core 1 may hold deeper trees, and are folded as they are. Raises
    ``ValueError`` in one sentence."""
    if check_ancestors(specs, spec) > MAX_DEPTH:
        raise ValueError(f"queue {spec.name!r} is more than {MAX_DEPTH} levels below the root; make the tree flatter")
