"""The control plane: one log, the state folded from it, and the loop that asks, records, folds, decides, records.

It owns no clock: whoever runs it says what time it is. Nothing leaves it before it is in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controlplane.domain.codec import decode
from controlplane.domain.events import Event, PolicyActivated, Ticked
from controlplane.eventlog.port import Entry, EventLog, Head, Snapshot
from controlplane.domain.version import CORE
from controlplane.runtime.entries import entry_of
from controlplane.runtime.rulebook import Rulebook
from controlplane.scheduler.decide import decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.invariants import check_touched
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.state import State
from controlplane.scheduler.timers import needs_cycle, next_due_ms

Recorded = list[tuple[int, Event]]
"""(position, event) of what was appended."""


class ControlPlane:
    """See the module. ``state`` is for reading."""

    def __init__(self, log: EventLog, on_recorded: Callable[[int, Event], None] | None = None) -> None:
        """Open on a log: newest usable snapshot, then the tail. ``on_recorded`` sees every event appended from now on."""
        self._log = log
        self._on_recorded = on_recorded
        self._rulebook = Rulebook()
        self.state, self._head = open_state(log)

    @property
    def head(self) -> Head:
        """The end of the log as this plane knows it."""
        return self._head

    def record(self, events: Sequence[tuple[Event, str]], now_ms: int) -> Recorded:
        """Append inputs, each with its actor, and fold them: all or none. Raises what the log's ``append`` raises."""
        entries = [entry_of(event, actor, now_ms) for event, actor in events]
        return self._append(entries, [event for event, _ in events])

    def is_due(self, now_ms: int) -> bool:
        """Whether a cycle would have anything to look at."""
        if not self.state.policy_digest:
            return False
        due_ms = next_due_ms(self.state)
        return needs_cycle(self.state) or (due_ms is not None and due_ms <= now_ms)

    def next_due_ms(self) -> int | None:
        """When the next cycle is due by time alone."""
        return next_due_ms(self.state) if self.state.policy_digest else None

    def cycle(self, now_ms: int) -> Recorded:
        """Tick, decide, and append both as one batch; then fold it. A batch that another leader's append made stale is
        not written (:class:`~controlplane.eventlog.port.HeadMoved`), and the caller opens the plane anew."""
        tick = Ticked(now_ms=max(now_ms, self.state.now_ms))
        entries = [entry_of(tick, "clock", tick.now_ms)]
        position = self.state.position + 1
        apply(self.state, position, tick)
        cycle = decide(self.state, self._rulebook.active(self.state))
        entries.extend(
            entry_of(decision.event, "scheduler", tick.now_ms, position, decision.payload)
            for decision in cycle.decisions
        )
        self._head = self._log.append(entries, self._head)
        recorded: Recorded = [(position, tick)]
        self._tell(position, tick)
        for decision in cycle.decisions:
            position += 1
            apply(self.state, position, decision.event)
            recorded.append((position, decision.event))
            self._tell(position, decision.event)
        check_touched(self.state, [decision.event for decision in cycle.decisions])
        return recorded

    def save_snapshot(self) -> None:
        """Keep the state beside the log, so that the next opening reads only the tail."""
        self._log.save_snapshot(Snapshot(self._head.position, self._head.digest, CORE, take(self.state)))

    def _append(self, entries: list[Entry], events: list[Event]) -> Recorded:
        self._head = self._log.append(entries, self._head)
        recorded: Recorded = []
        for event in events:
            position = self.state.position + 1
            apply(self.state, position, event)
            recorded.append((position, event))
            self._tell(position, event)
            if isinstance(event, PolicyActivated):
                self._rulebook.active(self.state)
        return recorded

    def _tell(self, position: int, event: Event) -> None:
        if self._on_recorded is not None:
            self._on_recorded(position, event)


def open_state(log: EventLog) -> tuple[State, Head]:
    """The state at the log's head: from the newest usable snapshot and the tail behind it."""
    snapshot = next(iter(log.snapshots(CORE)), None)
    state = restore(snapshot.body) if snapshot is not None else State()
    head = Head(snapshot.position, snapshot.digest) if snapshot is not None else Head(0, "0" * 64)
    for record in log.read(state.position):
        apply(state, record.position, decode(record.type, record.payload))
        head = Head(record.position, record.digest)
    return state, head
