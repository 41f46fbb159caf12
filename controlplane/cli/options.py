"""Options that several commands share, and how a job and a moment are written."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.audit.spans import instant
from controlplane.cli.faults import WrongUse

if TYPE_CHECKING:
    from controlplane.eventlog.port import EventLog

LogUrl = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="URL",
        envvar="TIDEGATE_LOG",
        help="FILE.db, sqlite:///FILE, postgresql://..., or an exported FILE.jsonl[.gz].",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer with one JSON object on standard output.")]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="POSITION|TIME",
        help="A position, or a time of the log's clock: 14:30:00, '1d 02:00:00', 90m, 2h30m, 2026-01-31T12:00:00Z.",
        show_default=False,
    ),
]

_CLOCK = re.compile(r"(?:([0-9]{1,9})d ?)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?")
_AMOUNT = "([0-9]{1,12})"
_SPAN = re.compile(f"(?:{_AMOUNT}d)? ?(?:{_AMOUNT}h)? ?(?:{_AMOUNT}(?:m|min))? ?(?:{_AMOUNT}s)?")
_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000)


def open_for_reading(url: str) -> EventLog:
    """The log that a URL names, as it stands. Raises what :func:`controlplane.eventlog.open_log` raises."""
    from controlplane.eventlog import open_log

    return open_log(url, create=False, read_only=True)


def job_number(text: str) -> int | None:
    """The job that a person means by ``j123`` or ``123``; ``None`` if the text is no number."""
    found = re.fullmatch(r"j?([1-9][0-9]{0,17})", text)
    return int(found.group(1)) if found is not None else None


def job_named(log: EventLog, text: str) -> int:
    """The job that a person means by its number or by its name."""
    number = job_number(text)
    if number is not None:
        return number
    from controlplane.audit.why import jobs_named

    found = jobs_named(log, text)
    if not found:
        raise WrongUse(f"{text!r} names no job; jobs are called j1, j2, ... or by name (`tidegate jobs` lists them)")
    if len(found) > 1:
        first = ", ".join(f"j{job}" for job in found[:8]) + (", ..." if len(found) > 8 else "")
        raise WrongUse(f"{len(found)} jobs are called {text!r}: say which ({first})")
    return found[0]


def instant_ms(text: str) -> int | None:
    """A time of the log's clock in milliseconds; ``None`` if the text is none, or no clock shows it."""
    if is_no_clock_time(text):
        return None
    for pattern in (_CLOCK, _SPAN):
        found = pattern.fullmatch(text.strip())
        if found is not None and any(found.groups()):
            return sum(int(part or 0) * unit for part, unit in zip(found.groups(), _UNITS_MS, strict=True))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1_000)


def is_no_clock_time(text: str) -> bool:
    """Whether the text is written as the time of a clock, and none shows it: 24:00:00, 12:60."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return False
    _, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return hours > 23 or minutes > 59 or seconds > 59


def position_of(log: EventLog, at: str | None) -> int | None:
    """The position that ``--at`` names; ``None`` for the head."""
    if at is None:
        return None
    head = log.head().position
    if at.isascii() and at.isdecimal():
        position = int(at) if len(at) < 20 else 0
        if not 1 <= position <= head:
            raise WrongUse(f"--at {at}: the log has positions 1 to {head}")
        return position
    if is_no_clock_time(at):
        raise WrongUse(
            f"--at {at!r}: no clock shows that; hours go to 23, minutes and seconds to 59, and a later day is written "
            f"'1d 01:30:00'"
        )
    at_ms = instant_ms(at)
    if at_ms is None or at_ms < 0:
        raise WrongUse(f"--at {at!r} is neither a position nor a time; write 1234, 14:30:00, 90m or 2h30m")
    end_ms = next((record.recorded_at_ms for record in log.read(head - 1, head)), 0) if head else 0
    if at_ms > end_ms:
        raise WrongUse(f"--at {at!r}: the log ends at {instant(end_ms)} (position {head}); leave --at out for its end")
    from controlplane.audit.why import position_at

    position = position_at(log, at_ms)
    if position == 0:
        raise WrongUse(f"--at {at!r}: the log begins after that time")
    return position


def start_of(log: EventLog, since: str | None) -> int:
    """The last position before what ``--since`` names; 0 for the whole log. A time names all from that instant on."""
    if since is None:
        return 0
    head = log.head().position
    if since.isdecimal():
        if int(since) > head:
            raise WrongUse(f"--since {since}: the log has positions 1 to {head}")
        return max(0, int(since) - 1)
    at_ms = instant_ms(since)
    if at_ms is None or at_ms < 0:
        raise WrongUse(f"--since {since!r} is neither a position nor a time; write 1234, 14:30:00, 90m or 2h30m")
    from controlplane.audit.why import position_at

    return position_at(log, at_ms - 1) if at_ms else 0
