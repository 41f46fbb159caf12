"""Chance without randomness: tickets drawn by hashing, the same in every replay.

The mixing function is SplitMix64's finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators",
OOPSLA 2014), in exact 64-bit arithmetic.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

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
