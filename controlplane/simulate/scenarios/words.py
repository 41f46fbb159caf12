"""How amounts are written in a story: ``10m``, ``512Gi``, ``1/4`` of a GPU, ``$2.50``. Exact integers, or refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from pydantic import ValidationError

from controlplane.policy.yamltext import Node

_TIME = re.compile(r"(\d{1,9})(d|h|ms|m|s)")
_TIMES = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_BYTES = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,15}|/\d{1,15})?")
MAX_STORY_MS = 10 * 366 * 86_400_000
"""Ten years: no story is longer."""


class BadStory(Exception):
    """A story that cannot be read or played: what is wrong and what to write instead. ``place`` is its line and column,
    counted from 1, once they are known."""

    def __init__(self, message: str, place: tuple[int, int] | None = None) -> None:
        self.message = message
        self.place = place
        super().__init__(message)


@contextmanager
def placed(place: Node | tuple[int, int]) -> Iterator[None]:
    """What is refused in the block is refused at this place, unless it says a closer one."""
    at = (place.line, place.column) if isinstance(place, Node) else place
    try:
        yield
    except BadStory as bad:
        raise BadStory(bad.message, bad.place or at) from bad
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        raise BadStory(f"{where + ': ' if where else ''}{what[:1].lower()}{what[1:]}; correct it", at) from error


def milliseconds(text: object) -> int:
    """``0``, ``30s``, ``1h30m``, ``250ms``; a bare number is seconds."""
    if isinstance(text, int) and not isinstance(text, bool):
        found = text * 1_000
    else:
        parts = _TIME.findall(str(text))
        if not parts or "".join(number + unit for number, unit in parts) != str(text):
            raise BadStory(f"{text!r} is no time; write it like 30s, 10m, 1h30m or 250ms")
        found = sum(int(number) * _TIMES[unit] for number, unit in parts)
    if not 0 <= found <= MAX_STORY_MS:
        raise BadStory(f"{text!r} is no time of a story; it is at least 0s and at most ten years")
    return found


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
    found = re.fullmatch(r"(\d{1,15})(Ki|Mi|Gi|Ti|)", str(text))
    if found is None:
        raise BadStory(f"{text!r} is no amount of memory; write it like 64Gi")
    return int(found.group(1)) * _BYTES[found.group(2)]


def exact(text: object) -> Fraction:
    """``2``, ``1/4``, ``0.6``."""
    found = _NUMBER.fullmatch(str(text))
    try:
        return Fraction(found.group() if found is not None else "")
    except (ValueError, ZeroDivisionError):
        raise BadStory(f"{text!r} is no number; write it like 2, 1/4 or 0.6") from None


def milli(text: object) -> int:
    """Thousandths of a whole: ``2``, ``1/4``, ``0.6``. Refused when it is no whole number of thousandths."""
    return _times(exact(text), 1_000, text, "thousandths")


def micro_usd(text: object) -> int:
    """Dollars, as ``4`` or ``0.25``, exact to the millionth."""
    return _times(exact(str(text).removeprefix("$")), 1_000_000, text, "millionths of a dollar")


def dollars(micro: int) -> str:
    """The inverse of :func:`micro_usd`, for sentences."""
    whole_dollars, rest = divmod(abs(micro), 1_000_000)
    return f"{'-' if micro < 0 else ''}${whole_dollars}" + f".{rest:06d}".rstrip("0").rstrip(".")


def _times(number: Fraction, parts: int, text: object, unit: str) -> int:
    scaled = number * parts
    if scaled.denominator != 1:
        raise BadStory(f"{text!r} is no whole number of {unit}")
    return int(scaled)


def whole(text: object, what: str, most: int) -> int:
    """A whole number from 0 to ``most``."""
    if not re.fullmatch(r"\d{1,15}", str(text)) or int(str(text)) > most:
        raise BadStory(f"{what}: {text!r} is no whole number from 0 to {most:,}")
    return int(str(text))


def amount(resource: str, text: object) -> int:
    """An amount in the unit that the core counts the resource in."""
    if resource == "memory":
        return byte_count(text)
    return milli(text) if resource in ("gpu", "cpu") else whole(text, resource, 2**53 - 1)


def said(resource: str, units: int) -> str:
    """The inverse of :func:`amount`, for sentences."""
    if resource == "memory":
        return next(f"{units // size}{unit}" for unit, size in reversed(_BYTES.items()) if units % size == 0)
    return str(Fraction(units, 1_000)) if resource in ("gpu", "cpu") else str(units)
