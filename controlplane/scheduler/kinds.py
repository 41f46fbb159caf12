"""Kinds of node: what a node is and what is free of it, interned.

Theory of operation. The state of one node is the pair (build, free amounts). Clusters hold few builds, and packing
drives nodes through few states, so equal states are stored once, as a *kind* with a small integer id, and the whole
cluster is one integer column. Whatever depends only on a node's state is then computed once per kind and looked up for
all nodes by indexing with the column: whether a member fits, on which GPUs, what the scoring rule says. A placement
moves one node from a kind to another; the move itself is remembered, so that folding a placement is a dictionary look-up.

Ids are given in the order of first appearance. They are names inside one process and must never order anything: they
are not written down and no decision compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.domain.quantities import MILLI
from controlplane.scheduler.facts import ClusterFacts, NodeFacts


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """What one member takes from a node. Interned by :meth:`KindTable.amounts`, so that identity is equality."""

    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    """Of each GPU that it is given."""
    other: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Build:
    """What a node is, used or not. Nodes of one build differ only in their names."""

    cluster: str
    flavor: str
    gpu_model: str
    cpu_milli: int
    memory_bytes: int
    gpus: int
    other: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...]
    is_open: bool
    """False for a cordoned node: it takes nothing new."""


@dataclass(slots=True, eq=False)
class Kind:
    """One state of a node; never changed. ``gpu_free`` is in milli-GPU by GPU index."""

    id: int
    build: Build
    build_id: int
    cpu_free: int
    memory_free: int
    gpu_free: tuple[int, ...]
    other_free: tuple[tuple[str, int], ...]
    gpus_free: int
    """GPUs of which nothing is used."""
    gpu_largest: int
    """Milli-GPU free on the GPU with most free."""
    facts: NodeFacts
    cluster: ClusterFacts


_State = tuple[int, int, int, tuple[int, ...], tuple[tuple[str, int], ...]]


class KindTable:
    """All kinds seen by this process, by id."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []
        self._builds: list[Build] = []
        self._build_ids: dict[Build, int] = {}
        self._ids: dict[_State, int] = {}
        self._moves: dict[tuple[int, Amounts, tuple[int, ...], bool], int] = {}
        self._amounts: dict[tuple[int, int, int, tuple[tuple[str, int], ...]], Amounts] = {}
        self._clusters: dict[str, ClusterFacts] = {}
        self._labels: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def amounts(self, cpu_milli: int, memory_bytes: int, gpu_milli: int, other: tuple[tuple[str, int], ...]) -> Amounts:
        """The interned amounts; ``other`` sorted by name."""
        key = (cpu_milli, memory_bytes, gpu_milli, other)
        found = self._amounts.get(key)
        if found is None:
            found = self._amounts[key] = Amounts(cpu_milli, memory_bytes, gpu_milli, other)
        return found

    def describe_cluster(self, facts: ClusterFacts) -> None:
        """Set what the rules see of a cluster. Kinds made before keep the old facts: reset the table on a change."""
        self._clusters[facts.name] = facts

    def empty(self, build: Build) -> int:
        """The kind of an unused node of the build."""
        index = self._build_ids.setdefault(build, len(self._build_ids))
        if index == len(self._builds):
            self._builds.append(build)
        return self._intern((index, build.cpu_milli, build.memory_bytes, (MILLI,) * build.gpus, build.other))

    def take(self, kind: int, amounts: Amounts, gpus: tuple[int, ...]) -> int:
        """The kind that a node becomes when a member is placed on it."""
        return self._move(kind, amounts, gpus, True)

    def give_back(self, kind: int, amounts: Amounts, gpus: tuple[int, ...]) -> int:
        """The kind that a node becomes when a member leaves it."""
        return self._move(kind, amounts, gpus, False)

    def _move(self, kind: int, amounts: Amounts, gpus: tuple[int, ...], is_taking: bool) -> int:
        key = (kind, amounts, gpus, is_taking)
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = self._intern(_moved(self.kinds[kind], amounts, gpus, -1 if is_taking else 1))
        return found

    def _intern(self, state: _State) -> int:
        found = self._ids.get(state)
        if found is None:
            found = self._ids[state] = len(self.kinds)
            self.kinds.append(self._kind(found, state))
        return found

    def _kind(self, id_: int, state: _State) -> Kind:
        build_id, cpu, memory, gpu_free, other = state
        build = self._builds[build_id]
        cluster = self._clusters.get(build.cluster) or ClusterFacts(name=build.cluster, site="home", labels={})
        labels = self._labels.setdefault(build.labels, dict(build.labels))
        facts = _facts(build, labels, cpu, memory, gpu_free)
        return Kind(id_, build, build_id, cpu, memory, gpu_free, other, facts.gpus_free, facts.gpu_free_largest_milli, facts, cluster)


def facts_after(kind: Kind, amounts: Amounts, gpus: tuple[int, ...]) -> NodeFacts:
    """What rules would see of a node after a member was placed on it, without making a kind of it."""
    gpu_free = list(kind.gpu_free)
    for index in gpus:
        gpu_free[index] -= amounts.gpu_milli
    cpu, memory = kind.cpu_free - amounts.cpu_milli, kind.memory_free - amounts.memory_bytes
    return _facts(kind.build, kind.facts.labels, cpu, memory, gpu_free)


def _facts(build: Build, labels: Mapping[str, str], cpu: int, memory: int, gpu_free: Sequence[int]) -> NodeFacts:
    return NodeFacts(
        cluster=build.cluster,
        flavor=build.flavor,
        gpu_model=build.gpu_model,
        labels=labels,
        cpu_milli=build.cpu_milli,
        memory_bytes=build.memory_bytes,
        gpus=build.gpus,
        cpu_free_milli=cpu,
        memory_free_bytes=memory,
        gpu_free_milli=sum(gpu_free),
        gpus_free=gpu_free.count(MILLI),
        gpu_free_largest_milli=max(gpu_free, default=0),
    )


def _moved(kind: Kind, amounts: Amounts, gpus: tuple[int, ...], sign: int) -> _State:
    gpu_free = list(kind.gpu_free)
    for index in gpus:
        gpu_free[index] += sign * amounts.gpu_milli
    other = kind.other_free
    if amounts.other:
        free = dict(other)
        for name, amount in amounts.other:
            free[name] = free.get(name, 0) + sign * amount
        other = tuple(sorted(free.items()))
    return (
        kind.build_id,
        kind.cpu_free + sign * amounts.cpu_milli,
        kind.memory_free + sign * amounts.memory_bytes,
        tuple(gpu_free),
        other,
    )
