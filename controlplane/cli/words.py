"""Figures as people read them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from controlplane.audit.spans import instant, span

__all__ = ["command", "gpus", "instant", "money", "percent", "plural", "program", "span"]


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
