"""A source of drawn numbers that is the same on every machine and every Python: SplitMix64, integers only.

The algorithms of the standard ``random`` module may change between versions of Python, and its floats invite rounding.
Here a seed fixes every draw for ever: the recurrence is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
number generators", OOPSLA 2014), bounded draws are Lemire's multiplication with rejection ("Fast random integer
generation in an interval", TOMACS 2019), shuffling is Fisher and Yates from the end. Drawn numbers make workloads; no
decision of the scheduler may ever depend on this module.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import TypeVar

Item = TypeVar("Item")

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio, made odd: the increment of SplitMix64."""
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
"""FNV-1a, 64 bits: turns the label of a branch into a number."""
_PPM = 1_000_000


def _mix(word: int) -> int:
    """The finaliser of SplitMix64 (David Stafford's variant 13)."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


class Draw:
    """One stream of draws. Seeds count modulo 2^64."""

    __slots__ = ("_seed", "_state")

    def __init__(self, seed: int) -> None:
        self._seed = seed & _MASK
        self._state = self._seed

    def branch(self, label: str) -> Draw:
        """An independent stream for one purpose. It depends on the seed and the label, not on what was drawn so far,
        so that a new purpose does not disturb the old ones."""
        digest = _FNV_OFFSET
        for byte in label.encode():
            digest = ((digest ^ byte) * _FNV_PRIME) & _MASK
        return Draw(_mix(self._seed ^ digest))

    def word(self) -> int:
        """Uniform in 0 .. 2^64 - 1."""
        self._state = (self._state + _GAMMA) & _MASK
        return _mix(self._state)

    def below(self, bound: int) -> int:
        """Uniform in 0 .. bound - 1, without bias, for a bound in 1 .. 2^64."""
        if not 1 <= bound <= _MASK + 1:
            raise ValueError(f"a bound is between 1 and 2^64, not {bound}")
        product = self.word() * bound
        if product & _MASK < bound:
            unfair = (_MASK + 1 - bound) % bound
            while product & _MASK < unfair:
                product = self.word() * bound
        return product >> 64

    def chance(self, parts_per_million: int) -> bool:
        """True this often in a million."""
        return self.below(_PPM) < parts_per_million

    def shuffled(self, items: Iterable[Item]) -> list[Item]:
        """The items in uniformly drawn order."""
        order = list(items)
        for last in range(len(order) - 1, 0, -1):
            other = self.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order


class Weights:
    """Draws an index in proportion to integer weights."""

    __slots__ = ("_ends",)

    def __init__(self, weights: Sequence[int]) -> None:
        if min(weights, default=0) < 0 or sum(weights) == 0:
            raise ValueError("weights are not negative and not all zero")
        self._ends = list(accumulate(weights))

    def draw(self, draw: Draw) -> int:
        """An index, with probability weight / sum of weights."""
        return bisect_right(self._ends, draw.below(self._ends[-1]))


def interpolate(positions: Sequence[int], values: Sequence[int], at: int) -> int:
    """The value of a piecewise linear table at a position, rounded down; constant beyond both ends.

    ``positions`` rise strictly and there is one value for each.
    """
    right = bisect_right(positions, at)
    if right == 0:
        return values[0]
    if right == len(positions):
        return values[-1]
    left_at, left = positions[right - 1], values[right - 1]
    return left + (values[right] - left) * (at - left_at) // (positions[right] - left_at)
