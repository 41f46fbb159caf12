"""Folding and deciding again from a log that may have been written by anybody.

The core asserts and raises where it is given what cannot be (STYLE: bugs assert). Of a log that somebody has written
past us that is no bug of ours but damage, and is named by the position at which it shows.
"""

from __future__ import annotations

from controlplane.domain.codec import MalformedEvent, decode
from controlplane.domain.events import Event
from controlplane.eventlog.port import LogDamaged, Record
from controlplane.policy.problems import BundleRefused
from controlplane.runtime.rulebook import Rulebook
from controlplane.scheduler.decide import Cycle, decide
from controlplane.scheduler.fold import apply
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


def decide_again(state: State, rulebook: Rulebook, tick: int, watched_job: int | None = None) -> Cycle:
    """The cycle of the tick at a position, to which the state was folded. Raises :class:`LogDamaged`."""
    try:
        rules = rulebook.active(state)
    except BundleRefused as error:
        raise LogDamaged(tick, f"the policy in the log does not load: {error}") from error
    try:
        return decide(state, rules, watched_job=watched_job)
    except CANNOT_BE as error:
        what = f"what stands in the log up to here leaves nothing to decide from: {error!r}"
        raise LogDamaged(tick, what) from error
