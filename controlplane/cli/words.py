"""Figures as people read them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

S, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def span(value_ms: int) -> str:
    """A length of time in its two largest units, such as ``3.8 s``, ``5 min 41 s``, ``1 d 03 h``."""
    if value_ms < MINUTE:
        return f"{value_ms / S:.1f} s"
    if value_ms < HOUR:
        return f"{value_ms // MINUTE} min {value_ms % MINUTE // S:02d} s"
    if value_ms < DAY:
        return f"{value_ms // HOUR} h {value_ms % HOUR // MINUTE:02d} min"
    return f"{value_ms // DAY} d {value_ms % DAY // HOUR:02d} h"


def money(micro_usd: int) -> str:
    """Dollars and cents; the cents are rounded to the nearest."""
    cents = (micro_usd + 5_000) // 10_000
    return f"${cents // 100:,}.{cents % 100:02d}"


def gpus(milli: int) -> str:
    """GPUs, with thousandths only where there are some."""
    return f"{milli // 1_000:,}" if milli % 1_000 == 0 else f"{milli / 1_000:,.3f}".rstrip("0")


def percent(part: int, whole: int) -> str:
    """A share; ``-`` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def plural(count: int, noun: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def program() -> str:
    """How this program was started, so that a command that begins so works when it is pasted."""
    started = sys.argv[0]
    if Path(started).name != "tidegate":
        return "tidegate"
    found = shutil.which("tidegate")
    if os.sep not in started or (found is not None and Path(found).absolute() == Path(started).absolute()):
        return "tidegate"
    return shlex.quote(started)


def command(*words: str) -> str:
    """A command line of this program."""
    return " ".join([program(), *map(shlex.quote, words)])
