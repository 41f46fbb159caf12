"""Randomness of the simulated cluster: a hash of the seed and of what is drawn for, never a stream.

A stream of random numbers would make every draw depend on how many were made before it, and so on the order of calls.
Here the jitter of a lease depends on the seed and on that lease only.
"""

from __future__ import annotations

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014."""


def mix(value: int) -> int:
    """The output function of SplitMix64 (variant 13 of Stafford's mixers, as in the paper's successor): a bijection."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def draw(seed: int, purpose: str, subject: str, ordinal: int = 0) -> int:
    """A number in 0 .. 2^64-1 that depends on the arguments and on nothing else."""
    state = mix((seed + _GAMMA) & _MASK)
    for text in (purpose, subject):
        data = text.encode()
        state = mix((state + _GAMMA + len(data)) & _MASK)
        for start in range(0, len(data), 8):
            state = mix(((state + _GAMMA) & _MASK) ^ int.from_bytes(data[start : start + 8], "little"))
    return mix((state + _GAMMA * (ordinal + 1)) & _MASK)


def draw_below(bound: int, seed: int, purpose: str, subject: str, ordinal: int = 0) -> int:
    """A number in 0 .. bound-1 (the high bits of a 128-bit product; the bias is below bound / 2^64)."""
    return (draw(seed, purpose, subject, ordinal) * bound) >> 64


def happens(chance_ppm: int, seed: int, purpose: str, subject: str, ordinal: int = 0) -> bool:
    """True with a chance in parts per million; never for 0, always for a million."""
    return draw_below(1_000_000, seed, purpose, subject, ordinal) < chance_ppm
