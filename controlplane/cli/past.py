"""The state at one position of a log, for the commands that show it. It reads and folds; it never decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from controlplane.cli.console import Report

if TYPE_CHECKING:
    from controlplane.audit.rule_faults import RuleFault
    from controlplane.eventlog.port import EventLog, Head
    from controlplane.scheduler.state import State

STEP = 2_000
"""Records between two reports of progress."""
FOLDED_WHOLE = 40_000
"""A log of so many records is folded from its beginning: half a second, and no snapshot is believed."""


@dataclass(frozen=True, slots=True)
class Past:
    """The state after one record."""

    state: State
    head: Head
    snapshot: int
    """The position of the snapshot that folding began with, which only ``replay --verify`` proves; 0 for none."""
    faults: tuple[RuleFault, ...]
    """Rules of the active policy that have erred."""


def state_at(log: EventLog, position: int | None, show: Report | None) -> Past:
    """The state after the record at ``position`` (``None``: the head); of a long log, from the newest snapshot before.

    Raises :class:`~controlplane.eventlog.port.LogDamaged` for a record that cannot follow what stands before it, and
    :class:`~controlplane.domain.codec.UnknownEvent` for a log of a newer version.
    """
    from controlplane.audit.folding import decoded, fold
    from controlplane.audit.rule_faults import RuleFaults
    from controlplane.eventlog.port import EMPTY, Head
    from controlplane.runtime.plane import restored
    from controlplane.scheduler.state import State

    end = log.head().position if position is None else position
    state, head = (State(), EMPTY) if end <= FOLDED_WHOLE else restored(log, end)
    begun = head.position
    faults = RuleFaults()
    for record in log.read(begun, end):
        event = decoded(record)
        fold(state, record, event)
        faults.see(record.position, event)
        head = Head(record.position, record.digest)
        if show is not None and record.position % STEP == 0:
            show(record.position, end)
    return Past(state, head, begun, tuple(faults.known(state.policy_digest, state.faults)))
