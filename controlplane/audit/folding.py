"""Folding and deciding again from a log that may have been written by anybody.

The core asserts and raises where it is given what cannot be (STYLE: bugs assert). Of a log that somebody has written
past us that is no bug of ours but damage, and is named by the position at which it shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Protocol

from controlplane.domain.codec import MalformedEvent, decode
from controlplane.domain.events import Author, CycleDecided, Event, Ticked
from controlplane.domain.version import CORE, KNOWN_CORES
from controlplane.eventlog.port import LogDamaged, Record
from controlplane.policy.problems import BundleRefused
from controlplane.scheduler.decide import Cycle, decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import State

CANNOT_BE = (LookupError, ValueError, TypeError, AttributeError, AssertionError, ArithmeticError)
"""How the core says that what it is given cannot be."""


def decoded(record: Record) -> Event:
    """The event of a record. Raises :class:`LogDamaged` for none of ours, and
    :class:`~controlplane.domain.codec.UnknownEvent` for one of a newer version."""
    try:
        return decode(record.type, record.payload)
    except MalformedEvent as error:
        raise LogDamaged(record.position, str(error)) from error


def fold(state: State, record: Record, event: Event) -> None:
    """Apply the event of a record. Raises :class:`LogDamaged` if it cannot follow; the state is of no use then."""
    try:
        apply(state, record.position, event)
    except CANNOT_BE as error:
        what = f"{record.type} does not follow from what stands before it: {error!r}"
        raise LogDamaged(record.position, what) from error


def with_cores(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    """The records, each tick with the version of the core that decided its cycle: the cycle's own record, which ends
    it, is read ahead. A version that is not known, and everything else, comes with the present one."""
    ahead: deque[Record] = deque()
    rest = iter(records)
    while (record := ahead.popleft() if ahead else next(rest, None)) is not None:
        if record.type != Ticked.TYPE:
            yield record, CORE
            continue
        while not ahead or (ahead[-1].type != CycleDecided.TYPE and ahead[-1].author == Author.DECIDED.value):
            following = next(rest, None)
            if following is None:
                break
            ahead.append(following)
        yield record, core_of(ahead[-1]) if ahead else CORE


def core_of(record: Record) -> str:
    """The version that a cycle's own record names, if it is a known one; else the present one."""
    if record.type == CycleDecided.TYPE:
        with suppress(MalformedEvent):
            event = decode(record.type, record.payload)
            if isinstance(event, CycleDecided) and event.core in KNOWN_CORES:
                return event.core
    return CORE


class Book(Protocol):
    """Something that knows the rules that a state says are active, such as the plane's own rulebook."""

    def active(self, state: State) -> Rules:
        """Raises :class:`~controlplane.policy.problems.BundleRefused`."""


def decide_again(state: State, rulebook: Book, tick: int, watched_job: int | None = None, core: str = CORE) -> Cycle:
    """The cycle of the tick at a position, to which the state was folded, as that version of the core decides it.
    Raises :class:`LogDamaged`."""
    try:
        rules = rulebook.active(state)
    except BundleRefused as error:
        raise LogDamaged(tick, f"the policy in the log does not load: {error}") from error
    try:
        return decide(state, rules, watched_job=watched_job, core=core)
    except CANNOT_BE as error:
        what = f"what stands in the log up to here leaves nothing to decide from: {error!r}"
        raise LogDamaged(tick, what) from error
