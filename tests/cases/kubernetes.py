"""Amounts as Kubernetes writes them, in our units."""

from __future__ import annotations

from fractions import Fraction

_SUFFIX = {
    "m": Fraction(1, 1_000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
}
_PER_UNIT = {"cpu": 1_000}
"""Ours per one of theirs; memory is bytes on both sides, and other resources are counted."""


def quantity(text: str) -> Fraction:
    """A quantity such as ``2Gi``, ``1500m`` or ``3``, exactly."""
    digits = text.rstrip("kKMGim")
    return Fraction(digits) * _SUFFIX[text[len(digits) :]]


def amount(resource: str, text: str) -> int:
    """A quantity of a resource in our unit. Amounts in the cases are whole there."""
    found = quantity(text) * _PER_UNIT.get(resource, 1)
    assert found.denominator == 1, f"{text} of {resource}"
    return int(found)
