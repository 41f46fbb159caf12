"""What was observed and is not yet known to be in the log, and what is to be tried again.

Reports are kept until they are acknowledged, only the latest per subject: a report says how things *are*, so a newer
one replaces an older one, and memory is bounded by what is alive. The alternative, a numbered stream to resend from,
would have to keep every report or a durable cursor, and would resend what no longer matters.

It may not act on a cluster, and knows no clock.
"""

from __future__ import annotations

import heapq

from controlplane.domain.events import (
    CapacityObserved,
    Event,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    ServiceObserved,
)

Subject = tuple[str, str]
"""Kind and id of what a report is about."""

RETRY_FIRST_MS = 1_000
"""Doubled with every failure, up to ``RETRY_MAX_MS``: a cluster that is down is asked once a minute."""
RETRY_MAX_MS = 60_000


def subject_of(event: Event) -> Subject | None:
    """What an observation is about; ``None`` for any other event."""
    if isinstance(event, LeaseObserved):
        return ("members" if event.phase is LeasePhase.RESIZED else "lease", event.lease)
    if isinstance(event, NodeObserved):
        return ("node", event.node)
    if isinstance(event, CapacityObserved):
        return ("capacity", event.request)
    if isinstance(event, ServiceObserved):
        return ("service", event.lease)
    return None


class Reports:
    """The reports of one agent, in the order in which they were made."""

    def __init__(self) -> None:
        self._fresh: list[Event] = []
        self._unacknowledged: dict[Subject, Event] = {}

    def add(self, subject: Subject, event: Event) -> None:
        """A new observation; it replaces an older one about the same subject among those kept for resending."""
        self._fresh.append(event)
        self._unacknowledged.pop(subject, None)
        self._unacknowledged[subject] = event

    def take(self) -> list[Event]:
        """The reports made since the last call."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def unacknowledged(self) -> list[Event]:
        """The latest report of each subject that is not known to be in the log, oldest first."""
        return list(self._unacknowledged.values())

    def acknowledge(self, event: Event) -> None:
        """This report is in the log. If a newer one about its subject exists, that one is kept."""
        subject = subject_of(event)
        if subject is None:
            return
        kept = self._unacknowledged.get(subject)
        if kept is event or kept == event:
            del self._unacknowledged[subject]


def retry_delay_ms(tries: int) -> int:
    """How long to wait after the given number of failures in a row (1 or more)."""
    return min(RETRY_MAX_MS, RETRY_FIRST_MS << min(tries - 1, 16))


def earliest(first_ms: int | None, second_ms: int | None) -> int | None:
    """The earlier of two instants, of which either may never come."""
    if first_ms is None or second_ms is None:
        return second_ms if first_ms is None else first_ms
    return min(first_ms, second_ms)


class Alarms:
    """Ids to be woken for at an instant. An id has one instant at a time; setting it again replaces it."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._at_ms: dict[str, int] = {}

    def __bool__(self) -> bool:
        """Whether anything may be set; never false when something is."""
        return bool(self._heap)

    def set(self, name: str, at_ms: int) -> None:
        """Wake for ``name`` at ``at_ms`` and not before."""
        self._at_ms[name] = at_ms
        heapq.heappush(self._heap, (at_ms, name))

    def clear(self, name: str) -> None:
        """No longer wake for ``name``."""
        self._at_ms.pop(name, None)

    def due(self, now_ms: int) -> list[str]:
        """Ids whose instant has come, earliest first, each cleared as it is given."""
        names: list[str] = []
        while (next_ms := self.next_ms()) is not None and next_ms <= now_ms:
            name = heapq.heappop(self._heap)[1]
            del self._at_ms[name]
            names.append(name)
        return names

    def next_ms(self) -> int | None:
        """The earliest instant that is set."""
        while self._heap:
            at_ms, name = self._heap[0]
            if self._at_ms.get(name) == at_ms:
                return at_ms
            heapq.heappop(self._heap)
        return None
