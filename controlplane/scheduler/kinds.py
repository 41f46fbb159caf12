"""Kinds of node: what a node is and what is free of it, interned.

Theory of operation. The state of one node is the pair (build, free amounts). Clusters hold few builds, and packing
drives nodes through few states, so equal states are stored once, as a *kind* with a small integer id, and the whole
cluster is one integer column. Whatever depends only on a node's state is then computed once per kind and looked up for
all nodes by indexing with the column: whether a member fits, on which GPUs, what the scoring rule says. A placement
moves one node from a kind to another; the move is remembered, so that folding a placement is a dictionary look-up.

Ids are given in the order of first appearance. They are names inside one process and must never order anything: they
are not written down and no decision compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, TypeVar

from controlplane.domain.clusters import NodeShape
from controlplane.domain.mig import gpu_of, start_of
from controlplane.domain.quantities import MAX_GPUS_PER_NODE, MILLI, memory_milli
from controlplane.scheduler import mig
from controlplane.scheduler.facts import AfterFacts, ClusterFacts, NodeFacts
from controlplane.scheduler.fragmentation import Meter, TypicalJobs


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """What one member takes from a node. Interned by :meth:`KindTable.amounts`, so that identity is equality."""

    cpu_milli: int
    memory_bytes: int
    gpu_milli: int
    """Of each GPU that it is given; for a part by memory the least that it can be, see :func:`gpu_milli_on`."""
    other: tuple[tuple[str, int], ...]
    gpu_memory_bytes: int = 0
    """Of one GPU, instead of a part in milli-GPU; 0 otherwise."""
    mig_profile: str = ""
    """Of each instance that it is given; empty for whole GPUs and parts of them."""


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
    gpu_memory_bytes: int = 0
    """Of each GPU; 0 if not known."""
    mig_gpus: int = 0
    """GPUs in MIG mode: the first so many."""
    mig_geometry: str = ""
    """How its GPUs are cut; empty if none is and none may be."""
    mig_repartition: bool = False
    """Whether idle GPUs may change their mode."""

    @classmethod
    def of(cls, cluster: str, flavor: str, shape: NodeShape, labels: Mapping[str, str], *, is_open: bool) -> Self:
        """The build of a node that is there, or of one that an offer promises: the same shape is the same build."""
        geometry = shape.mig_geometry if shape.mig_gpus or shape.mig_repartition else None
        return cls(
            cluster=cluster,
            flavor=flavor,
            gpu_model=shape.gpu_model or "",
            cpu_milli=shape.cpu_milli,
            memory_bytes=shape.memory_bytes,
            gpus=shape.gpus,
            other=tuple(sorted(shape.other.items())),
            labels=tuple(sorted(labels.items())),
            is_open=is_open,
            gpu_memory_bytes=shape.gpu_memory_bytes,
            mig_gpus=shape.mig_gpus,
            mig_geometry=geometry.name if geometry is not None else "",
            mig_repartition=shape.mig_repartition,
        )

    def may_be_cut(self, gpu: int) -> bool:
        """Whether MIG instances may be on a GPU while nothing else is."""
        return gpu < self.mig_gpus or self.mig_repartition

    def may_be_whole(self, gpu: int) -> bool:
        """Whether a member may have all of a GPU while nothing else is on it."""
        return gpu >= self.mig_gpus or self.mig_repartition


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
    slices: tuple[int, ...] = ()
    """Occupancy of each GPU, see :mod:`controlplane.scheduler.mig`; empty where no GPU may be cut."""


class _State(NamedTuple):
    build_id: int
    cpu_free: int
    memory_free: int
    gpu_free: tuple[int, ...]
    other_free: tuple[tuple[str, int], ...]
    slices: tuple[int, ...] = ()


class KindTable:
    """All kinds seen by this process, by id."""

    def __init__(self, typical: TypicalJobs | None = None) -> None:
        self._meter = Meter(typical or TypicalJobs())
        self.kinds: list[Kind] = []
        self._builds: list[Build] = []
        self._build_ids: dict[Build, int] = {}
        self._ids: dict[_State, int] = {}
        self._moves: dict[tuple[int, Amounts, tuple[int, ...], bool], int] = {}
        self._amounts: dict[tuple[int, int, int, tuple[tuple[str, int], ...], int, str], Amounts] = {}
        self._clusters: dict[str, ClusterFacts] = {}
        self._labels: dict[tuple[tuple[str, str], ...], Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def amounts(
        self,
        cpu_milli: int,
        memory_bytes: int,
        gpu_milli: int,
        other: tuple[tuple[str, int], ...],
        gpu_memory_bytes: int = 0,
        mig_profile: str = "",
    ) -> Amounts:
        """The interned amounts; ``other`` sorted by name."""
        key = (cpu_milli, memory_bytes, gpu_milli, other, gpu_memory_bytes, mig_profile)
        found = self._amounts.get(key)
        if found is None:
            found = self._amounts[key] = Amounts(*key)
        return found

    def describe_cluster(self, facts: ClusterFacts) -> None:
        """Set what the rules see of a cluster. Kinds made before keep the old facts: reset the table on a change."""
        self._clusters[facts.name] = facts

    def empty(self, build: Build) -> int:
        """The kind of an unused node of the build."""
        index = self._build_ids.setdefault(build, len(self._build_ids))
        if index == len(self._builds):
            self._builds.append(build)
        slices = (0,) * build.gpus if build.mig_geometry else ()
        return self._intern(
            _State(index, build.cpu_milli, build.memory_bytes, (MILLI,) * build.gpus, build.other, slices)
        )

    def take(self, kind: int, amounts: Amounts, gpus: tuple[int, ...]) -> int:
        """The kind that a node becomes when a member is placed on it. ``gpus`` are spots, see
        :mod:`controlplane.domain.mig`."""
        return self._move(kind, amounts, gpus, True)

    def give_back(self, kind: int, amounts: Amounts, gpus: tuple[int, ...]) -> int:
        """The kind that a node becomes when a member leaves it."""
        return self._move(kind, amounts, gpus, False)

    def hold(
        self,
        kind: Kind,
        cpu_milli: int,
        memory_bytes: int,
        gpus: Mapping[int, int],
        slices: Mapping[int, int],
        other: Mapping[str, int],
    ) -> int:
        """The kind that is left of a node when so much is kept from everybody, as far as it is free. ``gpus`` in
        milli-GPU and ``slices`` as masks, by GPU."""
        gpu_free = tuple(free - min(free, gpus.get(gpu, 0)) for gpu, free in enumerate(kind.gpu_free))
        taken = tuple(mask | slices.get(gpu, 0) for gpu, mask in enumerate(kind.slices))
        other_free = tuple((name, free - min(free, other.get(name, 0))) for name, free in kind.other_free)
        cpu, memory = min(kind.cpu_free, cpu_milli), min(kind.memory_free, memory_bytes)
        state = _State(kind.build_id, kind.cpu_free - cpu, kind.memory_free - memory, gpu_free, other_free, taken)
        return self._intern(state)

    def fragmentation_micro(self, kind: Kind, amounts: Amounts | None = None, gpus: tuple[int, ...] = ()) -> int:
        """GPU that typical jobs could not use on such a node, in millionths; with amounts, after they are taken."""
        if amounts is None:
            return self._meter.micro(kind.build_id, kind.build, kind.cpu_free, kind.gpu_free, kind.slices)
        gpu_free, slices = _gpus_after(kind, amounts, gpus, -1)
        return self._meter.micro(kind.build_id, kind.build, kind.cpu_free - amounts.cpu_milli, gpu_free, slices)

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
        build_id, cpu, memory, gpu_free, other, slices = state
        build = self._builds[build_id]
        cluster = self._clusters.get(build.cluster) or ClusterFacts(name=build.cluster, site="home", labels={})
        labels = self._labels.setdefault(build.labels, dict(build.labels))
        facts = _facts(NodeFacts, build, labels, cpu, memory, gpu_free, slices)
        return Kind(
            id_,
            build,
            build_id,
            cpu,
            memory,
            gpu_free,
            other,
            facts.gpus_free,
            facts.gpu_free_largest_milli,
            facts,
            cluster,
            slices,
        )


def gpu_milli_on(build: Build, amounts: Amounts) -> int:
    """What a member takes of each GPU that it is given on a node of the build."""
    if amounts.gpu_memory_bytes:
        return memory_milli(amounts.gpu_memory_bytes, build.gpu_memory_bytes)
    return amounts.gpu_milli


def facts_after(kind: Kind, amounts: Amounts, gpus: tuple[int, ...]) -> AfterFacts:
    """What rules would see of a node after a member was placed on it, without making a kind of it."""
    gpu_free, slices = _gpus_after(kind, amounts, gpus, -1) if gpus else (kind.gpu_free, kind.slices)
    cpu, memory = kind.cpu_free - amounts.cpu_milli, kind.memory_free - amounts.memory_bytes
    return _facts(AfterFacts, kind.build, kind.facts.labels, cpu, memory, gpu_free, slices)


_N = TypeVar("_N", bound=NodeFacts)


def _facts(
    record: type[_N],
    build: Build,
    labels: Mapping[str, str],
    cpu: int,
    memory: int,
    gpu_free: Sequence[int],
    slices: tuple[int, ...],
) -> _N:
    return record(  # by position: several for each placement
        build.cluster,
        build.flavor,
        build.gpu_model,
        labels,
        build.cpu_milli,
        build.memory_bytes,
        build.gpus,
        cpu,
        memory,
        sum(gpu_free),
        gpu_free.count(MILLI),
        max(gpu_free) if gpu_free else 0,
        build.gpu_memory_bytes,
        build.mig_gpus,
        _placements(build, gpu_free, slices) if slices else 0,
    )


def _placements(build: Build, gpu_free: Sequence[int], slices: tuple[int, ...]) -> int:
    """MIG placements that are still possible, over all GPUs that are cut or may be."""
    return sum(
        mig.capability(build.mig_geometry, occupied)
        for gpu, (free, occupied) in enumerate(zip(gpu_free, slices, strict=True))
        if build.may_be_cut(gpu) and (occupied or free == MILLI)
    )


def _gpus_after(kind: Kind, amounts: Amounts, gpus: tuple[int, ...], sign: int) -> tuple[list[int], tuple[int, ...]]:
    gpu_free = list(kind.gpu_free)
    milli = sign * (gpu_milli_on(kind.build, amounts) if amounts.gpu_memory_bytes else amounts.gpu_milli)
    if not kind.slices:
        for index in gpus:
            gpu_free[index if index < MAX_GPUS_PER_NODE else gpu_of(index)] += milli
        return gpu_free, ()
    slices = list(kind.slices)
    for spot in gpus:
        index = gpu_of(spot)
        gpu_free[index] += milli
        slices[index] ^= slices_taken(kind.build, amounts, spot)
    return gpu_free, tuple(slices)


def can_sit(kind: Kind, amounts: Amounts, gpus: tuple[int, ...]) -> bool:
    """Whether a member fits onto these very spots of a node, eligibility aside."""
    if kind.cpu_free < amounts.cpu_milli or kind.memory_free < amounts.memory_bytes:
        return False
    if amounts.mig_profile and not kind.slices:
        return False
    milli = gpu_milli_on(kind.build, amounts) if amounts.gpu_memory_bytes else amounts.gpu_milli
    gpu_free, slices = list(kind.gpu_free), list(kind.slices)
    for spot in gpus:
        index = gpu_of(spot)
        if index >= len(gpu_free) or gpu_free[index] < milli:
            return False
        if slices:
            taken = slices_taken(kind.build, amounts, spot)
            is_in_parts = slices[index] == 0 and gpu_free[index] < MILLI
            if slices[index] & taken or (slices[index] if taken == 0 else is_in_parts):
                return False  # what is cut is not shared in parts as well, nor the other way round
            slices[index] |= taken
        gpu_free[index] -= milli
    other = dict(kind.other_free) if amounts.other else {}
    return all(other.get(name, 0) >= amount for name, amount in amounts.other)


def slices_taken(build: Build, amounts: Amounts, spot: int) -> int:
    """The slices that a spot takes: those of its instance, all of a whole GPU, none for a part of a GPU that is not
    cut."""
    if amounts.mig_profile:
        return mig.mask_of(build.mig_geometry, amounts.mig_profile, start_of(spot))
    return mig.whole(build.mig_geometry) if gpu_milli_on(build, amounts) == MILLI else 0


def _moved(kind: Kind, amounts: Amounts, gpus: tuple[int, ...], sign: int) -> _State:
    gpu_free, slices = _gpus_after(kind, amounts, gpus, sign)
    other = kind.other_free
    if amounts.other:
        free = dict(other)
        for name, amount in amounts.other:
            free[name] = free.get(name, 0) + sign * amount
        other = tuple(sorted(free.items()))
    return _State(
        kind.build_id,
        kind.cpu_free + sign * amounts.cpu_milli,
        kind.memory_free + sign * amounts.memory_bytes,
        tuple(gpu_free),
        other,
        slices,
    )
