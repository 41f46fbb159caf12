"""Events as entries of the log: who said it, and what it is about over its whole life."""

from __future__ import annotations

from controlplane.domain.codec import encode
from controlplane.domain.events import (
    CapacityObserved,
    CapacityReleased,
    CapacityRequested,
    CycleDecided,
    Event,
    JobCancelRequested,
    JobEnded,
    JobRefused,
    JobRequeued,
    JobSubmitted,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeaseRevoked,
    LeaseShrunk,
    NodeObserved,
    ServiceObserved,
    ServiceScaled,
    ServiceShort,
    TermsGiven,
    Ticked,
)
from controlplane.eventlog.port import Entry

SCHEDULER = "scheduler"
"""Who decides, in every log."""


def entry_of(
    event: Event, actor: str, now_ms: int, causation: int | None = None, payload: bytes | None = None
) -> Entry:
    """The entry for an event. ``payload`` are its canonical bytes, where they are known already."""
    if payload is None:
        payload = encode(event)
    return Entry(event.TYPE, event.AUTHOR.value, payload, now_ms, actor, correlation_of(event), causation)


def correlation_of(event: Event) -> str:
    """What the event is about: a job, a request for capacity, a node; empty for what is about the whole plane. (A
    submission is about the job that its own position names, which nobody knows before it is appended.)"""
    match event:  # the commonest first: each case is a question to the event
        case JobSubmitted() | Ticked() | CycleDecided():
            return ""
        case LeaseObserved() | LeaseRevoked() | LeaseGrown() | LeaseShrunk() | ServiceObserved():
            return event.lease.partition(".")[0]
        case LeaseGranted() | JobEnded() | JobRequeued() | JobRefused() | JobCancelRequested() | TermsGiven():
            return f"j{event.job}"
        case ServiceScaled() | ServiceShort():
            return f"j{event.job}"
        case CapacityRequested() | CapacityReleased() | CapacityObserved():
            return event.request
        case NodeObserved():
            return event.node
        case _:
            return ""
