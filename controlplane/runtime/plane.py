"""The control plane: one log, the state folded from it, and the loop that asks, records, folds, decides, records.

It owns no clock: whoever runs it says what time it is. Nothing leaves it before it is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256

from controlplane.domain.codec import decode
from controlplane.domain.events import Event, PolicyActivated, PolicyShadowed, Ticked
from controlplane.domain.version import CORE
from controlplane.eventlog.port import EMPTY, Entry, EventLog, Head, LogUnavailable, Snapshot
from controlplane.policy.bundle import Bundle
from controlplane.policy.rules import BundleRules
from controlplane.runtime.entries import SCHEDULER, entry_of
from controlplane.runtime.rulebook import Rulebook
from controlplane.runtime.shadow import Cycles
from controlplane.scheduler.fold import apply
from controlplane.scheduler.invariants import check_touched
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.state import State
from controlplane.scheduler.timers import needs_cycle, next_due_ms

Recorded = list[tuple[int, Event]]
"""(position, event) of what was appended."""
_Batch = list[tuple[Entry, int, Event]]
PLANE = "plane"
"""Who observes that a shadow failed."""
SNAPSHOT_EVENTS = 40_000
"""Between two snapshots: what is folded in half a second when the log is opened."""
SNAPSHOT_EVENTS_PER_ROW = 4
"""And at least so many events for each job, lease and node that has to be written, so that the cost per event does not
grow with the state (a row costs half of what folding an event costs)."""
UNREADABLE = (KeyError, ValueError, TypeError, IndexError, AttributeError, AssertionError, ArithmeticError)
"""How a snapshot that another build wrote, or nobody, fails to become a state."""


class ControlPlane:
    """See the module. ``state`` is for reading."""

    def __init__(self, log: EventLog, on_folded: Callable[[int, Event], None] | None = None) -> None:
        """Open on a log: newest usable snapshot, then the tail. ``on_folded`` sees every event from now on, right after
        it was folded into the state (and before its batch is appended)."""
        self._log = log
        self._on_folded = on_folded
        self._rulebook = Rulebook()
        self._cycles = Cycles(self._rulebook)
        self.state, self._head, self._snapshot_position = _opened(log)

    @property
    def head(self) -> Head:
        """The end of the log as this plane knows it."""
        return self._head

    @property
    def rules(self) -> BundleRules:
        """The active rules, with their counters."""
        return self._rulebook.active(self.state)

    @property
    def asked(self) -> list[tuple[Bundle, BundleRules]]:
        """Every bundle that this plane has asked or is to ask, with its rules and their counters."""
        return self._rulebook.asked()

    def record(self, events: Sequence[tuple[Event, str]], now_ms: int) -> Recorded:
        """Append inputs, each with its actor, and fold them: all or none.

        Raises what the log's ``append`` raises; the plane is stale then, and the caller opens it anew. So for all
        methods that append.
        """
        return self._append(self._take_in(events, now_ms))

    def is_due(self, now_ms: int) -> bool:
        """Whether a cycle would have anything to look at."""
        if not self.state.policy_digest:
            return False
        due_ms = next_due_ms(self.state)
        return needs_cycle(self.state) or (due_ms is not None and due_ms <= now_ms)

    def next_due_ms(self) -> int | None:
        """When the next cycle is due by time alone."""
        return next_due_ms(self.state) if self.state.policy_digest else None

    def advance(self, now_ms: int, inputs: Sequence[tuple[Event, str]] = ()) -> Recorded:
        """Take in what came; if a cycle is due then, tick and decide; append all of it as one batch.

        Where another leader has appended in between (:class:`~controlplane.eventlog.port.HeadMoved`), nothing was
        written and nothing has been sent.
        """
        batch = self._take_in(inputs, now_ms)
        if self.is_due(now_ms):
            self._decide(batch, now_ms)
        return self._append(batch) if batch else []

    def _decide(self, batch: _Batch, now_ms: int) -> None:
        tick = Ticked(now_ms=max(now_ms, self.state.now_ms))
        position = self._fold(tick)
        batch.append((entry_of(tick, "clock", tick.now_ms), position, tick))
        decided = self._cycles.decide(self.state)
        for decision in decided.decisions:
            entry = entry_of(decision.event, SCHEDULER, tick.now_ms, position, decision.payload)
            batch.append((entry, self._fold(decision.event), decision.event))
        check_touched(self.state, [decision.event for decision in decided.decisions])
        if (failure := decided.failure) is not None:
            batch.append((entry_of(failure, PLANE, tick.now_ms, position), self._fold(failure), failure))

    def _take_in(self, inputs: Sequence[tuple[Event, str]], now_ms: int) -> _Batch:
        batch: _Batch = []
        for event, actor in inputs:
            batch.append((entry_of(event, actor, now_ms), self._fold(event), event))
            if isinstance(event, PolicyActivated):
                self._rulebook.active(self.state)
            elif isinstance(event, PolicyShadowed) and self.state.shadow is not None:
                self._rulebook.shadow(self.state.shadow)
        return batch

    def _fold(self, event: Event) -> int:
        position = self.state.position + 1
        apply(self.state, position, event)
        if self._on_folded is not None:
            self._on_folded(position, event)
        return position

    def _append(self, batch: _Batch) -> Recorded:
        self._head = self._log.append([entry for entry, _, _ in batch], self._head)
        if self._is_snapshot_due():
            # What was asked for is in the log. A log that is out of room says so at the next append.
            with suppress(LogUnavailable):
                self.save_snapshot()
        return [(position, event) for _, position, event in batch]

    def _is_snapshot_due(self) -> bool:
        passed = self._head.position - self._snapshot_position
        if passed < SNAPSHOT_EVENTS:
            return False
        rows = len(self.state.jobs) + len(self.state.leases) + len(self.state.nodes)
        return passed >= SNAPSHOT_EVENTS_PER_ROW * rows

    def save_snapshot(self) -> None:
        """Keep the state beside the log, so that the next opening reads only the tail. Raises what the log raises."""
        self._snapshot_position = self._head.position
        body = sealed(take(self.state))
        self._log.save_snapshot(Snapshot(self._head.position, self._head.digest, CORE, body))


def sealed(body: bytes) -> bytes:
    """A snapshot's body behind its own digest: one that was damaged, or cut, is recognised."""
    return sha256(body).digest() + body


def open_state(log: EventLog) -> tuple[State, Head]:
    """The state at the log's head: from the newest usable snapshot and the tail behind it."""
    state, head, _ = _opened(log)
    return state, head


def restored(log: EventLog, until: int | None = None) -> tuple[State, Head]:
    """The state of the newest usable snapshot, not beyond ``until``, and where it was taken; else the empty state.

    Usable is a snapshot of this core and of this very log (the log sees to both), whole, and of the position that it
    claims. Anything else is passed over: a snapshot only saves time, and there is always the log.
    """
    for snapshot in log.snapshots(CORE):
        body = snapshot.body[sha256().digest_size :]
        if sealed(body) != snapshot.body or (until is not None and snapshot.position > until):
            continue
        with suppress(*UNREADABLE):  # written by another build of the same core version
            state = restore(body)
            if state.position == snapshot.position:
                return state, Head(snapshot.position, snapshot.digest)
    return State(), EMPTY


def _opened(log: EventLog) -> tuple[State, Head, int]:
    """The state, the head, and the position of the snapshot that it began with (0 for none)."""
    state, head = restored(log)
    begun = head.position
    for record in log.read(begun):
        apply(state, record.position, decode(record.type, record.payload))
        head = Head(record.position, record.digest)
    return state, head, begun
