"""The tree of topology domains, and where in it the members of one role go. Arithmetic only: nothing is placed here.

Theory of operation. Every node lies in one domain of each level (:class:`~controlplane.domain.topology.Level`), and
levels are nested. Nodes are put in *tree order*: by cluster, then by the names of their domains from the widest level
down, then by their own name. In that order every domain of every level is one contiguous range, so that what a domain
holds is the difference of two prefix sums: one pass over the nodes answers for all domains of all levels.

What a node holds is counted in *slots*: how many alike members of one role fit what is free of it. That is known per
kind of node and remembered. A domain's room is the sum of its nodes' slots. Since alike members on different nodes
cannot get into each other's way, a role of n members fits a domain exactly if the domain has n slots.

*Best fit* (Kueue's and Slurm's): among domains with room for all, the one with the least room; on a tie the first by
name. Below it, :func:`fewest` or :func:`evenly` share the members out among its sub-domains, level by level, down to
the hosts.

A node that does not say in which domain of a level it is, lies in the narrowest domain that is known to be inside one:
a rack of an unnamed block stands for its block, and a node that says nothing is alone at every level below its cluster.
So a required level is never granted on a guess, and a gang that fits one host may run on any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.quantities import MAX_MEMBERS, MILLI
from controlplane.domain.topology import LEVELS, Arrangement, Level, TopologyRequest
from controlplane.scheduler.kinds import Kind, KindTable
from controlplane.scheduler.needs import INFEASIBLE, Column, Need
from controlplane.scheduler.rules import Rules

if TYPE_CHECKING:
    from controlplane.scheduler.state import Node, State

Counts = NDArray[np.int64]
Mask = NDArray[np.bool_]

CLUSTER = 0
"""The depth of the root of each tree: a gang stays in one cluster."""
HOST = Level.HOST.depth


@dataclass(frozen=True, slots=True)
class Nearness:
    """A :class:`TopologyRequest` with every question answered. Depths count from 0, the cluster; ``preferred`` is never
    wider than ``required``."""

    required: int = CLUSTER
    preferred: int = CLUSTER
    arrangement: Arrangement = Arrangement.PACKED

    def depths(self) -> range:
        """The levels to try, narrowest first."""
        return range(self.preferred, self.required - 1, -1)


def nearness(*requests: TopologyRequest | None) -> Nearness:
    """What several requests come to, for each field the word of the first that says something."""
    said = [request for request in requests if request is not None]
    required = next((request.required for request in said if request.required is not None), None)
    preferred = next((request.preferred for request in said if request.preferred is not None), None)
    arrangement = next((request.arrangement for request in said if request.arrangement is not None), Arrangement.PACKED)
    depth = required.depth if required is not None else CLUSTER
    return Nearness(depth, max(depth, preferred.depth if preferred is not None else CLUSTER), arrangement)


def within(inner: Nearness, outer: Nearness) -> Nearness:
    """Both at once, the narrower level of each; the arrangement is the inner one's."""
    return Nearness(
        max(inner.required, outer.required),
        max(inner.preferred, outer.preferred, inner.required, outer.required),
        inner.arrangement,
    )


def required_depth(need: Need) -> int:
    """The narrowest level in one domain of which the members of a role must be; the cluster's if any will do."""
    said = (need.ask.gang, need.ask.role.topology)
    return max((request.required.depth for request in said if request and request.required), default=CLUSTER)


def gang_depth(needs: Sequence[Need]) -> int:
    """The level in one domain of which the whole gang must be."""
    return nearness(needs[0].ask.gang).required


# --- the tree --------------------------------------------------------------------------------------------------------


class DomainTree:
    """All domains of the nodes at these paths. A domain is (depth, index); at each depth indices go by path."""

    def __init__(self, paths: Sequence[Path]) -> None:
        order = sorted(range(len(paths)), key=paths.__getitem__)
        self._paths = [paths[row] for row in order]
        self.rows: Column = np.fromiter(order, dtype=np.int32, count=len(order))
        """Tree order: position -> row."""
        self.starts = [np.array([*starts, len(order)], dtype=np.int64) for starts in _starts(self._paths)]
        """By depth: where each domain begins in tree order, and, last, the number of nodes."""
        self._children = [
            np.searchsorted(self.starts[depth + 1], self.starts[depth]) for depth in range(len(self.starts) - 1)
        ]

    def children(self, depth: int, domain: int) -> tuple[int, int]:
        """The domains of the next narrower level in a domain: from, to (exclusive)."""
        firsts = self._children[depth]
        return int(firsts[domain]), int(firsts[domain + 1])

    def span(self, depth: int, domain: int) -> tuple[int, int]:
        """The positions of a domain's nodes in tree order: from, to (exclusive)."""
        starts = self.starts[depth]
        return int(starts[domain]), int(starts[domain + 1])

    def inside(self, inner: int, depth: int, domain: int) -> tuple[int, int]:
        """The domains of depth ``inner`` in a domain of the same or a wider level: from, to (exclusive)."""
        low, high = self.span(depth, domain)
        starts = self.starts[inner]
        return int(np.searchsorted(starts, low)), int(np.searchsorted(starts, high))

    def rows_beside(self, depth: int, row: int) -> Column:
        """The rows of the domain of that depth in which a node is, itself included."""
        position = int(np.flatnonzero(self.rows == row)[0])
        domain = int(np.searchsorted(self.starts[depth], position, side="right")) - 1
        low, high = self.span(depth, domain)
        return self.rows[low:high]

    def name(self, depth: int, domain: int) -> str:
        """The path of a domain, such as ``home/z1/b2/r7``; names that nobody gave are left out."""
        path = self._paths[self.span(depth, domain)[0]]
        return "/".join(part for part in path[: _known_depth(path, depth) + 1] if part)


Path = tuple[str, ...]
"""Cluster, region, ..., NVLink domain, node; empty where unknown."""


def declared(domains: Mapping[Level, str]) -> tuple[str, ...]:
    """The domains of a node as the state keeps them: by level without the host, empty where it says nothing; an empty
    tuple if it says nothing at all."""
    return tuple(domains.get(level, "") for level in LEVELS[:-1]) if domains else ()


def paths_of(state: State, nodes: Sequence[Node]) -> list[Path]:
    """Where the nodes are: by their own word, else by that of their cluster, else, for rented nodes that the offer
    promised to be together, in a domain named after their request."""
    return [(node.build.cluster, *_domains_of(state, node), node.name) for node in nodes]


_NOWHERE = ("",) * (HOST - 1)


def _domains_of(state: State, node: Node) -> tuple[str, ...]:
    spec = state.clusters.get(node.build.cluster)
    if spec is None or (not spec.topology and node.request is None):
        return node.topology or _NOWHERE
    own, all_of_it = node.topology or _NOWHERE, declared(spec.topology) or _NOWHERE
    domains = [name or other for name, other in zip(own, all_of_it, strict=True)]
    request = state.requests.get(node.request) if node.request is not None else None
    if request is not None:
        together = next((offer.together for offer in spec.offers if offer.name == request.offer), None)
        if together is not None and together is not Level.HOST and not domains[together.depth - 1]:
            domains[together.depth - 1] = request.id
    return tuple(domains)


def _known_depth(path: Path, depth: int) -> int:
    """The level that stands for a level: itself, or the next narrower one of which the name is known."""
    while not path[depth]:
        depth += 1
    return depth


def _starts(paths: list[Path]) -> list[list[int]]:
    """By depth: the positions at which a new domain begins. One begins where the paths differ at or above the level
    that stands for it."""
    starts: list[list[int]] = [[] for _ in range(HOST + 1)]
    before: Path = ()
    for position, path in enumerate(paths):
        differs = next((at for at in range(len(before)) if path[at] != before[at]), 0)
        stands = HOST
        for depth in range(HOST, -1, -1):
            stands = depth if path[depth] else stands
            if differs <= stands:
                starts[depth].append(position)
        before = path
    return starts


# --- slots -----------------------------------------------------------------------------------------------------------


class SlotCount:
    """How many members of one role fit each kind of node, as far as it was asked."""

    def __init__(self, need: Need, kinds: KindTable, is_steady: bool) -> None:
        self._need = need
        self._kinds = kinds
        self._is_steady = is_steady
        self._known: Counts = np.full(64, -1, dtype=np.int64)

    def of(self, column: Column) -> Counts:
        """Slots by row of a column of kinds."""
        if len(self._kinds) > len(self._known):
            grown = np.full(max(2 * len(self._known), len(self._kinds)), -1, dtype=np.int64)
            grown[: len(self._known)] = self._known
            self._known = grown
        slots = self._known[column]
        if slots.size and slots.min() < 0:
            self._learn(np.unique(column[slots < 0]))
            slots = self._known[column]
        return slots

    def _learn(self, kinds: Column) -> None:
        scores = self._need.scores(kinds)
        self._known[kinds[scores == INFEASIBLE]] = 0
        for id_ in kinds[scores > INFEASIBLE].tolist():
            self._known[id_] = self._slots(id_)

    def _slots(self, id_: int) -> int:
        """In one division where only amounts matter; else by putting members there one after the other, at most as many
        as the role has."""
        ask, table = self._need.ask, self._kinds
        if self._is_steady and (counted := _quotient(self._need, table.kinds[id_])) is not None:
            return min(counted, MAX_MEMBERS)
        count = 0
        while count < ask.role.count and int(self._need.scores(np.array([id_], dtype=np.int32))[0]) > INFEASIBLE:
            id_ = table.take(id_, ask.amounts, self._need.gpus(id_))
            count += 1
        return count


def _quotient(need: Need, kind: Kind) -> int | None:
    """Members that a kind on which one fits holds by its amounts alone; ``None`` if the choice of GPUs could matter."""
    ask, amounts = need.ask, need.ask.amounts
    if ask.gpus and (kind.slices or not ask.is_plain):
        return None
    least = MAX_MEMBERS
    if amounts.cpu_milli:
        least = min(least, kind.cpu_free // amounts.cpu_milli)
    if amounts.memory_bytes:
        least = min(least, kind.memory_free // amounts.memory_bytes)
    if ask.gpus:
        if kind.slices or not ask.is_plain:
            return None
        if amounts.gpu_milli == MILLI:
            least = min(least, kind.gpus_free // ask.gpus)
        elif ask.gpus == 1 and amounts.gpu_milli:
            least = min(least, sum(free // amounts.gpu_milli for free in kind.gpu_free))
        else:
            return None
    if amounts.other:
        free = dict(kind.other_free)
        least = min(least, *(free.get(name, 0) // amount for name, amount in amounts.other))
    return least


COUNTS_KEPT = 1_024
"""Roles of which slots are remembered; beyond that all are counted anew. What is decided does not depend on it."""


class Domains:
    """The tree of the present nodes with what is remembered about slots. Derived: the agenda drops it when the set of
    nodes or the table of kinds changes."""

    def __init__(self, state: State, nodes: Sequence[Node], rules: Rules) -> None:
        self.tree = DomainTree(paths_of(state, nodes))
        self._kinds = state.kinds
        self._is_steady = not any("free" in path for path in rules.eligibility_reads)
        self._counts: dict[Need, SlotCount] = {}
        self._free = np.zeros((3, 64), dtype=np.int64)
        self._free_known = 0

    def room(self, need: Need, column: Column, mask: Mask | None = None) -> Room:
        """What every domain has for members of a role; rows outside the mask hold nothing."""
        count = self._counts.get(need)
        if count is None:
            if len(self._counts) >= COUNTS_KEPT:
                self._counts.clear()
            count = self._counts[need] = SlotCount(need, self._kinds, self._is_steady)
        slots = count.of(column)
        return Room(self.tree, slots if mask is None else np.where(mask, slots, 0))

    def has_in_all(self, needs: Sequence[Need], column: Column, mask: Mask | None) -> bool:
        """Whether all rows together have the GPUs, CPU and memory that the roles ask for: a gang for which they have
        not need not be tried."""
        return bool((self.asked(needs) <= self._free_by_row(column, mask).sum(axis=1)).all())

    def has_each(self, depth: int, needs: Sequence[Need], column: Column) -> Mask:
        """The same for every domain of a level, by domain."""
        sums = np.zeros((3, len(column) + 1), dtype=np.int64)
        np.cumsum(self._free_by_row(column, None)[:, self.tree.rows], axis=1, out=sums[:, 1:])
        starts = self.tree.starts[depth]
        is_short: Mask = sums[:, starts[1:]] - sums[:, starts[:-1]] < self.asked(needs)[:, None]
        return np.logical_not(is_short.any(axis=0))

    def _free_by_row(self, column: Column, mask: Mask | None) -> Counts:
        self._learn_free()
        free: Counts = self._free[:, column if mask is None else column[mask]]
        return free

    @staticmethod
    def asked(needs: Sequence[Need]) -> Counts:
        """GPU, CPU and memory of all members together; of GPUs that are shared by memory, the least."""
        asked = np.zeros(3, dtype=np.int64)
        for need in needs:
            amounts = need.ask.amounts
            member = (need.ask.gpus * amounts.gpu_milli, amounts.cpu_milli, amounts.memory_bytes)
            asked += need.ask.role.count * np.array(member, dtype=np.int64)
        return asked

    def _learn_free(self) -> None:
        kinds = self._kinds.kinds
        if len(kinds) > self._free.shape[1]:
            grown = np.zeros((3, 2 * len(kinds)), dtype=np.int64)
            grown[:, : self._free_known] = self._free[:, : self._free_known]
            self._free = grown
        for id_ in range(self._free_known, len(kinds)):
            kind = kinds[id_]
            self._free[:, id_] = (sum(kind.gpu_free), kind.cpu_free, kind.memory_free)
        self._free_known = len(kinds)


class Room:
    """Slots of one role, for every domain of the tree."""

    def __init__(self, tree: DomainTree, slots: Counts) -> None:
        self._tree = tree
        self.slots = slots
        """By row."""
        self._sums: Counts = np.zeros(len(slots) + 1, dtype=np.int64)
        np.cumsum(slots[tree.rows], out=self._sums[1:])

    def at(self, depth: int) -> Counts:
        """Slots by domain of one level."""
        starts = self._tree.starts[depth]
        by_domain: Counts = self._sums[starts[1:]] - self._sums[starts[:-1]]
        return by_domain

    def share_out(self, depth: int, domain: int, members: int, arrangement: Arrangement) -> list[tuple[int, int]]:
        """(row, members) for a domain that has room for all, in tree order."""
        share = fewest if arrangement is Arrangement.PACKED else evenly
        parts = [(domain, members)]
        for at in range(depth, HOST):
            rooms = self.at(at + 1)
            below: list[tuple[int, int]] = []
            for parent, some in parts:
                low, high = self._tree.children(at, parent)
                below += [(low + child, part) for child, part in share(rooms[low:high], some)]
            parts = below
        rows = self._tree.rows
        return [(int(rows[host]), some) for host, some in parts]


# --- sharing out -----------------------------------------------------------------------------------------------------


def fewest(room: Counts, members: int) -> list[tuple[int, int]]:
    """Packed: (index, members) over the fewest domains, by index.

    The largest are filled first, until one domain holds the rest; of those that do, the tightest takes it. No choice
    uses fewer domains, since no choice of as many has more room than the largest.
    """
    assert int(room.sum()) >= members, "shared out more than there is room for"
    largest = np.argsort(-room, kind="stable")
    parts: list[tuple[int, int]] = []
    for taken, domain in enumerate(largest.tolist()):
        if room[domain] >= members:
            rest = np.sort(largest[taken:])
            able = rest[room[rest] >= members]
            parts.append((int(able[room[able].argmin()]), members))
            break
        parts.append((domain, int(room[domain])))
        members -= int(room[domain])
    return sorted(parts)


def evenly(room: Counts, members: int) -> list[tuple[int, int]]:
    """Balanced: (index, members) over as few domains as :func:`fewest`, none of them with less than it must have.

    If enough domains hold an equal part, the tightest of those take equal parts (which differ by one at most). Else the
    largest take part, and what one of them lacks is shared among the larger ones.
    """
    assert int(room.sum()) >= members, "shared out more than there is room for"
    largest = np.argsort(-room, kind="stable")
    number = int(np.searchsorted(np.cumsum(room[largest]), members)) + 1
    able = np.flatnonzero(room >= -(-members // number))
    if able.size >= number:
        chosen = able[np.argsort(room[able], kind="stable")][:number].tolist()
    else:
        chosen = largest[:number][::-1].tolist()
    parts: list[tuple[int, int]] = []
    for at, domain in enumerate(chosen):
        part = min(int(room[domain]), members // (number - at))
        parts.append((domain, part))
        members -= part
    assert members == 0, "the last domain has room for what is left"
    return sorted(part for part in parts if part[1])
