"""Kubernetes quantities to exact integers, rounded up to the unit in which the domain counts, as Kubernetes does."""

from __future__ import annotations

import re
from fractions import Fraction

from controlplane.domain.quantities import MAX_AMOUNT, MILLI
from controlplane.intake.manifests.documents import Field
from controlplane.intake.tables import shown

_QUANTITY = re.compile(
    r"\+?([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,2}|[KMGTPE]i|[numkMGTPE])?\Z"
)
_SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{suffix: Fraction(10 ** (3 * power)) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}


def quantity(field: Field) -> Fraction:
    """The exact value of a quantity such as ``500m``, ``1.5Gi`` or ``2e3``; not negative."""
    text = field.text()
    match = _QUANTITY.match(text)
    if not match:
        raise field.fault(f"is {shown(text)}, not a quantity", "write it as 500m, 2, 1.5Gi or 2e3")
    number, suffix = match.groups()
    value = Fraction(number if number[-1] != "." else number[:-1])
    if suffix and suffix[0] in "eE" and len(suffix) > 1 and suffix[1] != "i":
        return value * Fraction(10) ** int(suffix[1:])
    return value * _SUFFIXES.get(suffix or "", Fraction(1))


def cpu_milli(field: Field) -> int:
    """Milli-CPU."""
    return _bounded(field, quantity(field) * MILLI)


def bytes_of(field: Field) -> int:
    """Bytes."""
    return _bounded(field, quantity(field))


def count(field: Field) -> int:
    """Pieces of an extended resource, which come whole."""
    value = quantity(field)
    if value.denominator != 1:
        raise field.fault(f"is {shown(field.text())}, not a whole number", "ask for whole pieces")
    return _bounded(field, value)


def _bounded(field: Field, value: Fraction) -> int:
    amount = -(-value.numerator // value.denominator)
    if amount > MAX_AMOUNT:
        raise field.fault(f"is {shown(field.text())}, above the limit of 2^53", "correct it")
    return amount
