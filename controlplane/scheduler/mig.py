"""Placing MIG instances on one GPU: bit arithmetic over the tables of :mod:`controlplane.domain.mig`.

The occupancy of a GPU is the mask of its memory slices that are taken (and of its media extensions). An instance fits
at a start if its mask and the occupancy have no bit in common. Of the starts that fit, the one is taken after which
most placements remain possible, counted over all profiles of the GPU (:func:`capability`); the lowest on a tie.
Whatever depends on geometry and occupancy alone is computed once and remembered: there are at most 2^9 occupancies of
a GPU.
"""

from __future__ import annotations

from functools import cache

from controlplane.domain.mig import GEOMETRIES, Geometry

BY_NAME: dict[str, Geometry] = {geometry.name: geometry for geometry in GEOMETRIES}


@cache
def _masks(geometry: str) -> tuple[int, ...]:
    """The mask of every placement of every profile."""
    return tuple(profile.mask(start) for profile in BY_NAME[geometry].profiles for start in profile.starts)


@cache
def capability(geometry: str, occupied: int) -> int:
    """Placements that are still possible on a GPU: the sum over its profiles of the starts that are free."""
    return sum(mask & occupied == 0 for mask in _masks(geometry))


@cache
def best_start(geometry: str, profile: str, occupied: int) -> int:
    """Where to begin an instance; -1 if it fits nowhere or the GPU has no such profile."""
    found = BY_NAME[geometry].by_name.get(profile)
    if found is None:
        return -1
    free = [start for start in found.starts if found.mask(start) & occupied == 0]
    return max(free, key=lambda start: (capability(geometry, occupied | found.mask(start)), -start), default=-1)


@cache
def mask_of(geometry: str, profile: str, start: int) -> int:
    """The slices of one instance; none of a profile that the GPU does not have (its node has changed under it)."""
    found = BY_NAME[geometry].by_name.get(profile)
    return found.mask(start) if found is not None else 0


@cache
def has_room(geometry: str, profile: str, occupied: int) -> bool:
    """Whether as many slices are free as an instance takes, wherever they lie: if it does not fit then, what is there
    lies in its way."""
    found = BY_NAME[geometry].by_name.get(profile)
    if found is None or (found.has_media and occupied & BY_NAME[geometry].whole & ~_slices(geometry)):
        return False
    return (_slices(geometry) & ~occupied).bit_count() >= found.memory


def _slices(geometry: str) -> int:
    return (1 << BY_NAME[geometry].memory_slices) - 1


def whole(geometry: str) -> int:
    """The mask of a GPU that is taken as a whole."""
    return BY_NAME[geometry].whole
