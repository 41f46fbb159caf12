"""Chance without randomness: tickets drawn by hashing, the same in every replay.

The mixing function is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014), in exact 64-bit arithmetic.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """A bijection of 64-bit integers that scatters neighbours."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@lru_cache(maxsize=65_536)
def _hash_of(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def lottery(job: int, node: str, gpu: int) -> int:
    """The ticket of a candidate: 31 bits of (job, node), then 31 bits of (job, node, GPU)."""
    of_node = mix(mix(job) ^ _hash_of(node))
    return (of_node >> 33) << 31 | mix(of_node + gpu + 1) >> 33


class Tickets:
    """The tickets of many nodes at once, by row."""

    def __init__(self, names: Sequence[str]) -> None:
        self._hashes: NDArray[np.uint64] = np.fromiter((_hash_of(name) for name in names), np.uint64, len(names))

    def best(self, job: int, rows: Sequence[int]) -> list[int]:
        """Of these rows those with the largest upper half of the ticket, in order: nearly always one. The largest
        ticket is among them."""
        chosen = np.array(rows, dtype=np.intp)
        upper = _mixed(self._hashes[chosen] ^ np.uint64(mix(job))) >> np.uint64(33)
        best: list[int] = chosen[upper == upper.max()].tolist()
        return best


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """:func:`mix` of every value; NumPy's unsigned integers wrap as the mask of 64 bits does."""
    values = values + np.uint64(_GOLDEN)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


_last: list[tuple[Sequence[str], Tickets]] = []


def draw(names: Sequence[str]) -> Tickets:
    """The tickets of nodes by their names. Those of the last list that was asked for are remembered."""
    if not _last or _last[0][0] is not names:
        _last[:] = [(names, Tickets(names))]
    return _last[0][1]
