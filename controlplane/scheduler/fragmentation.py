"""Fragmentation as a figure: how much GPU of a node typical jobs could not use.

Theory of operation. The measure is that of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023, section 3).
*Typical jobs* are the distinct shapes of members by falling frequency (of equal ones the smaller shape first) until
95 per cent of all members are covered. The fragmentation of a node is the sum over typical shapes of the shape's
share times the GPU that is free on the node and that a member of the shape could not use: all of it if the shape asks
for no GPU, or if the model, the CPU or the number of GPUs with enough left does not suit it; else what is left on
GPUs with less than it needs. A MIG shape can use what is left of the GPUs on which one instance of it fits.

The shapes are learned from the log: every submission counts, and the distribution is taken anew whenever the number of
submissions reaches a power of two from 16 on, so that figures and what was decided by them are found again at most some
sixty times in the life of a log. An operator can set the distribution instead (``typical_jobs_configured``); it stands
until he sets it to nothing.

All is in whole numbers: shares are counts, and a figure is in millionths of a GPU, rounded down.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from controlplane.domain.quantities import MILLI, memory_milli
from controlplane.domain.workloads import Role
from controlplane.scheduler import mig

if TYPE_CHECKING:
    from controlplane.scheduler.kinds import Build

COVERED_PERCENT = 95
FIRST_TAKEN = 16
"""Submissions after which the distribution is first taken."""
SHAPES_KEPT = 65_536
"""Distinct shapes that are counted; later ones are not, so that nobody can fill the memory with shapes."""
MICRO = 1_000
"""Millionths of a GPU in one milli-GPU."""


class Shape(NamedTuple):
    """What a member asks for, as far as it matters here."""

    cpu_milli: int
    gpus: int
    gpu_milli: int
    gpu_memory_bytes: int
    mig_profile: str
    models: tuple[str, ...]
    """Sorted."""
    gpu_memory_min_bytes: int


def shape_of(role: Role) -> Shape:
    """The shape of the members of a role."""
    if role.gpus == 0:
        return Shape(role.cpu_milli, 0, 0, 0, "", (), 0)
    return Shape(
        role.cpu_milli,
        role.gpus,
        role.gpu_milli_least,
        role.gpu_memory_bytes,
        role.mig_profile,
        tuple(sorted(set(role.gpu_models))),
        role.gpu_memory_min_bytes,
    )


Counted = tuple[tuple[Shape, int], ...]


class TypicalJobs:
    """The distribution of typical jobs: ``counts`` of members by shape, ``seen`` submissions, ``typical`` as it is."""

    def __init__(self) -> None:
        self.counts: dict[Shape, int] = {}
        self.seen = 0
        self.typical: Counted = ()
        self.is_configured = False
        self.version = 0
        """Counts the times that it was taken anew by this process: names it and orders nothing."""

    def see(self, members: Sequence[tuple[Shape, int]]) -> bool:
        """A job was submitted; says whether the distribution was taken anew."""
        counts = self.counts
        for shape, count in members:
            known = counts.get(shape)
            if known is not None:
                counts[shape] = known + count
            elif len(counts) < SHAPES_KEPT:
                counts[shape] = count
        self.seen += 1
        if self.is_configured or self.seen < FIRST_TAKEN or self.seen & (self.seen - 1):
            return False
        self._take(counts)
        return True

    def configure(self, members: Sequence[tuple[Shape, int]]) -> None:
        """An operator says what is typical; nothing lets it be learned again, from all that was seen so far."""
        self.is_configured = bool(members)
        counts: dict[Shape, int] = {}
        for shape, count in members:
            counts[shape] = counts.get(shape, 0) + count
        self._take(counts if members else self.counts)

    def restore(self, counts: Counted, seen: int, typical: Counted, is_configured: bool) -> None:
        """As a snapshot has it."""
        self.counts, self.seen, self.typical, self.is_configured = dict(counts), seen, typical, is_configured
        self.version += 1

    def _take(self, counts: dict[Shape, int]) -> None:
        total, covered = sum(counts.values()), 0
        kept: list[tuple[Shape, int]] = []
        for shape, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
            if covered * 100 >= total * COVERED_PERCENT:
                break
            kept.append((shape, count))
            covered += count
        self.typical = tuple(kept)
        self.version += 1


class _Group(NamedTuple):
    """Typical shapes that differ in CPU only, of one build."""

    gpus: int
    milli: int
    mig_profile: str
    cpus: list[int]
    """Rising."""
    shares: list[int]
    """Of the shapes that ask for no more than the CPU of the same place, together; one more in front for none."""


class Meter:
    """Measures nodes. Remembers what it measured until the distribution is taken anew."""

    def __init__(self, typical: TypicalJobs) -> None:
        self._typical = typical
        self._version = -1
        self._total = 0
        self._groups: dict[int, list[_Group]] = {}
        self._measured: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], int] = {}

    def micro(
        self, build_id: int, build: Build, cpu_free: int, gpu_free: Sequence[int], slices: tuple[int, ...]
    ) -> int:
        """Fragmentation of a node in this state, in millionths of a GPU. ``build_id`` names the build."""
        if self._version != self._typical.version:
            self._version = self._typical.version
            self._total = sum(count for _, count in self._typical.typical)
            self._groups.clear()
            self._measured.clear()
        key = (build_id, cpu_free, tuple(gpu_free if slices else sorted(gpu_free)), slices)
        found = self._measured.get(key)
        if found is None:
            found = self._measured[key] = self._measure(build_id, build, cpu_free, key[2], slices)
        return found

    def _measure(
        self, build_id: int, build: Build, cpu_free: int, gpu_free: tuple[int, ...], slices: tuple[int, ...]
    ) -> int:
        free = sum(gpu_free)
        if self._total == 0 or free == 0:
            return 0
        groups = self._groups.get(build_id)
        if groups is None:
            groups = self._groups[build_id] = _groups(self._typical.typical, build)
        usable = 0
        for gpus, milli, profile, cpus, shares in groups:
            share = shares[bisect_right(cpus, cpu_free)]
            if share:
                usable += share * _usable(build, gpu_free, slices, gpus, milli, profile)
        return (free * self._total - usable) * MICRO // self._total


def _groups(typical: Counted, build: Build) -> list[_Group]:
    """The typical shapes that could use GPUs of the build at all."""
    found: dict[tuple[int, int, str], dict[int, int]] = {}
    for shape, count in typical:
        milli = shape.gpu_milli
        if shape.gpu_memory_bytes:
            milli = memory_milli(shape.gpu_memory_bytes, build.gpu_memory_bytes)
        is_suited = not shape.models or build.gpu_model in shape.models
        if shape.gpus == 0 or not is_suited or milli > MILLI or shape.gpu_memory_min_bytes > build.gpu_memory_bytes:
            continue
        by_cpu = found.setdefault((shape.gpus, milli, shape.mig_profile), {})
        by_cpu[shape.cpu_milli] = by_cpu.get(shape.cpu_milli, 0) + count
    groups: list[_Group] = []
    for (gpus, milli, profile), by_cpu in found.items():
        cpus, shares = sorted(by_cpu), [0]
        for cpu in cpus:
            shares.append(shares[-1] + by_cpu[cpu])
        groups.append(_Group(gpus, milli, profile, cpus, shares))
    return groups


def _usable(
    build: Build, gpu_free: tuple[int, ...], slices: tuple[int, ...], gpus: int, milli: int, profile: str
) -> int:
    """Milli-GPU that a member of a shape could use, its CPU aside."""
    if profile:
        return _usable_cut(build, gpu_free, slices, profile)
    if slices:
        gpu_free = tuple(
            [left if _may_share(build, gpu, milli) and not slices[gpu] else 0 for gpu, left in enumerate(gpu_free)]
        )
    count = usable = 0
    for left in gpu_free:
        if left >= milli:
            count += 1
            usable += left
    return usable if count >= gpus else 0


def _may_share(build: Build, gpu: int, milli: int) -> bool:
    return build.may_be_whole(gpu) if milli == MILLI else gpu >= build.mig_gpus


def _usable_cut(build: Build, gpu_free: tuple[int, ...], slices: tuple[int, ...], profile: str) -> int:
    return sum(
        left
        for gpu, (left, occupied) in enumerate(zip(gpu_free, slices, strict=False))
        if build.may_be_cut(gpu)
        and (occupied or left == MILLI)
        and mig.best_start(build.mig_geometry, profile, occupied) >= 0
    )


# --- the score -------------------------------------------------------------------------------------------------------

# fmt: off
_DESCENTS = (
    40_006, 80_043, 120_145, 160_343, 200_671, 241_163, 281_852, 322_774, 363_966, 405_466, 447_313, 489_549,
    532_217, 575_365, 619_040, 663_295, 708_186, 753_772, 800_120, 847_298, 895_385, 944_462, 994_623, 1_045_969,
    1_098_613, 1_152_680, 1_208_312, 1_265_667, 1_324_926, 1_386_295, 1_450_011, 1_516_348, 1_585_628, 1_658_229,
    1_734_602, 1_815_290, 1_900_959, 1_992_431, 2_090_742, 2_197_225, 2_313_635, 2_442_348, 2_586_690, 2_751_536,
    2_944_439, 3_178_054, 3_476_099, 3_891_821, 4_595_120,
)
# fmt: on
"""Least descent, in millionths of a GPU, from which int(100 sigmoid(descent in GPUs)) is 51, 52, ... 99: the logarithm
of k / (100 - k), times 10^6, rounded up. Written out, so that no machine's logarithm matters."""
_LEAST = (*[1 - descent for descent in reversed(_DESCENTS)], 0, *_DESCENTS)
"""The same for 1 to 99: the logarithm of (100 - k) / k is the negative of it, and none but that of 50 is whole."""


def descent_score(before_micro: int, after_micro: int) -> int:
    """int(100 sigmoid(d)), d being the GPUs by which a placement lessens fragmentation: 0 to 99, 50 changes nothing."""
    return bisect_right(_LEAST, before_micro - after_micro)
