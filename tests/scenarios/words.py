"""How amounts are written in a story: ``10m``, ``512Gi``, ``1/4`` of a GPU, ``$2.50``. Exact integers, or refused."""

from __future__ import annotations

import re
from fractions import Fraction

_TIME = re.compile(r"(\d+)(d|h|ms|m|s)")
_TIMES = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class BadStory(Exception):
    """A story that cannot be read: says where, what, and what to write instead."""


def milliseconds(text: object) -> int:
    """``0``, ``30s``, ``1h30m``, ``250ms``; a bare number is seconds."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text * 1_000
    parts = _TIME.findall(str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        raise BadStory(f"{text!r} is no time; write it like 30s, 10m, 1h30m or 250ms")
    return sum(int(number) * _TIMES[unit] for number, unit in parts)


def clock(at_ms: int) -> str:
    """The time as a story would write it."""
    if at_ms == 0:
        return "0s"
    left, text = at_ms, ""
    for unit in ("d", "h", "m", "s", "ms"):
        whole, left = divmod(left, _TIMES[unit])
        text += f"{whole}{unit}" if whole else ""
    return text


def byte_count(text: object) -> int:
    """``512Gi``; a bare number is bytes."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", str(text))
    if found is None:
        raise BadStory(f"{text!r} is no amount of memory; write it like 64Gi")
    return int(found.group(1)) * _BYTES[found.group(2)]


def milli(text: object) -> int:
    """Thousandths of a whole: ``2``, ``1/4``, ``0.6``. Refused when it is no whole number of thousandths."""
    try:
        exact = Fraction(str(text)) * 1_000
    except (ValueError, ZeroDivisionError):
        raise BadStory(f"{text!r} is no number; write it like 2, 1/4 or 0.6") from None
    if exact.denominator != 1:
        raise BadStory(f"{text!r} is no whole number of thousandths")
    return int(exact)


def micro_usd(text: object) -> int:
    """Dollars, as ``4`` or ``0.25``, exact to the millionth."""
    return milli(Fraction(str(text).removeprefix("$")) * 1_000)


def amount(resource: str, text: object) -> int:
    """An amount in the unit that the core counts the resource in."""
    if resource == "memory":
        return byte_count(text)
    return milli(text) if resource in ("gpu", "cpu") else int(str(text))


def said(resource: str, units: int) -> str:
    """The inverse of :func:`amount`, for sentences."""
    if resource == "memory":
        return next(f"{units // size}{unit}" for unit, size in reversed(_BYTES.items()) if units % size == 0)
    return str(Fraction(units, 1_000)) if resource in ("gpu", "cpu") else str(units)
