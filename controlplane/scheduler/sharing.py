"""Which GPUs of a node could take a member, where some are cut into MIG instances or shares go by memory.

Whole GPUs go to GPUs that are not in MIG mode, parts to GPUs that are neither in MIG mode nor cut nor taken whole,
instances to GPUs in MIG mode. Where the node lets idle GPUs change their mode, a whole member may also have an empty
GPU that is in MIG mode, and an instance may be cut from an idle GPU that is not; both prefer a GPU of the right mode.

Several instances of one profile may share a GPU. They are placed one after the other on the GPU that loses the fewest
placements by it; placements of one profile on one GPU never overlap, so that this finds room whenever there is room.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.mig import MILLI_OF_PROFILE, spot
from controlplane.domain.quantities import MILLI
from controlplane.scheduler import mig
from controlplane.scheduler.kinds import Amounts, Build, gpu_milli_on

Spots = tuple[int, ...]


def choices(build: Build, gpu_free: Sequence[int], slices: Spots, amounts: Amounts, gpus: int) -> list[Spots]:
    """Ways to choose spots that differ in the state that they leave, those that spoil least first; none if it does not
    fit. ``gpu_free`` in milli-GPU and ``slices`` as in :class:`~controlplane.scheduler.kinds.Kind`."""
    if amounts.mig_profile:
        return _instances(build, gpu_free, slices, amounts.mig_profile, gpus)
    milli = gpu_milli_on(build, amounts)
    if milli == MILLI:
        return _whole(build, gpu_free, slices, gpus)
    first: dict[int, int] = {}
    for gpu in _uncut(build, gpu_free, slices, milli):
        first.setdefault(gpu_free[gpu], gpu)
    return [(first[free],) for free in sorted(first)]


def candidates(build: Build, gpu_free: Sequence[int], slices: Spots, amounts: Amounts, gpus: int) -> list[Spots]:
    """Every GPU that would do for a part of one; as :func:`choices` otherwise."""
    milli = gpu_milli_on(build, amounts)
    if amounts.mig_profile or milli == MILLI:
        return choices(build, gpu_free, slices, amounts, gpus)
    return [(gpu,) for gpu in _uncut(build, gpu_free, slices, milli)]


def fits_empty(build: Build, amounts: Amounts, gpus: int) -> bool:
    """Whether the GPUs of an unused node would do."""
    slices = (0,) * build.gpus if build.mig_geometry else ()
    return bool(choices(build, (MILLI,) * build.gpus, slices, amounts, gpus))


def is_misplaced(build: Build, gpu_free: Sequence[int], slices: Spots, amounts: Amounts) -> bool:
    """Whether some GPU has slices enough for the profile, and none of its starts: what is there lies in the way."""
    profile, geometry = amounts.mig_profile, build.mig_geometry
    return any(
        occupied != 0
        and free >= amounts.gpu_milli
        and mig.has_room(geometry, profile, occupied)
        and mig.best_start(geometry, profile, occupied) < 0
        for free, occupied in zip(gpu_free, slices, strict=False)
    )


def _whole(build: Build, gpu_free: Sequence[int], slices: Spots, gpus: int) -> list[Spots]:
    free = [
        gpu
        for gpu in range(len(gpu_free))
        if gpu_free[gpu] == MILLI and build.may_be_whole(gpu) and (not slices or slices[gpu] == 0)
    ]
    if len(free) < gpus:
        return []
    free.sort(key=lambda gpu: (gpu < build.mig_gpus, gpu))
    return [tuple(sorted(free[:gpus]))]


def _uncut(build: Build, gpu_free: Sequence[int], slices: Spots, milli: int) -> list[int]:
    """GPUs that may be shared by parts and have so much left."""
    return [
        gpu
        for gpu in range(build.mig_gpus, len(gpu_free))
        if gpu_free[gpu] >= milli and (not slices or slices[gpu] == 0)
    ]


def _instances(build: Build, gpu_free: Sequence[int], slices: Spots, profile: str, gpus: int) -> list[Spots]:
    if gpus == 1:
        first: dict[tuple[bool, int, int], int] = {}
        for gpu, start, loss in _starts(build, gpu_free, slices, profile):
            first.setdefault((gpu >= build.mig_gpus, loss, slices[gpu]), spot(gpu, start))
        return [(first[key],) for key in sorted(first)]
    milli, free, cut, taken = MILLI_OF_PROFILE[profile], list(gpu_free), list(slices), []
    for _ in range(gpus):
        ways = _starts(build, free, tuple(cut), profile)
        if not ways:
            return []
        gpu, start, _ = min(ways, key=lambda way: (way[0] >= build.mig_gpus, way[2], way[0]))
        taken.append(spot(gpu, start))
        free[gpu] -= milli
        cut[gpu] |= mig.mask_of(build.mig_geometry, profile, start)
    return [tuple(taken)]


def _starts(build: Build, gpu_free: Sequence[int], slices: Spots, profile: str) -> list[tuple[int, int, int]]:
    """(GPU, where to begin, placements that are lost by it) for every GPU that can take an instance."""
    geometry = build.mig_geometry
    ways: list[tuple[int, int, int]] = []
    for gpu, occupied in enumerate(slices):
        if not build.may_be_cut(gpu) or (occupied == 0 and gpu_free[gpu] != MILLI):
            continue
        start = mig.best_start(geometry, profile, occupied)
        if start >= 0:
            after = occupied | mig.mask_of(geometry, profile, start)
            ways.append((gpu, start, mig.capability(geometry, occupied) - mig.capability(geometry, after)))
    return ways
