"""Are the snapshots that a log keeps the states that it folds to? A snapshot is a shortcut, and never the truth.

A snapshot's digest names the record at which it was taken, and nothing in the chain names the snapshot: whoever can
write to the log's database can write one that says anything. Only folding the log up to it shows whether it is true.
"""

from __future__ import annotations

from hashlib import sha256

from controlplane.domain.version import CORE
from controlplane.eventlog.port import EventLog
from controlplane.runtime.plane import UNREADABLE, sealed
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.state import State


class KeptSnapshots:
    """The snapshots of a log that an opening would begin with, to be compared while it is folded anew."""

    def __init__(self, log: EventLog) -> None:
        """Remembers digests, not bodies, which may be large. Raises what the log's ``snapshots`` raises."""
        self._log = log
        self._digests: dict[int, list[bytes]] = {}
        for snapshot in log.snapshots(CORE):
            self._digests.setdefault(snapshot.position, []).append(sha256(snapshot.body).digest())

    def fault(self, state: State) -> str | None:
        """What is wrong with a snapshot that was taken at the position of the state, which was folded from the log."""
        digests = self._digests.pop(state.position, None)
        if digests is None:
            return None
        body = take(state)
        if set(digests) == {sha256(sealed(body)).digest()}:
            return None
        bodies = [found.body for found in self._log.snapshots(CORE) if found.position == state.position]
        return next(filter(None, (_fault(found, body) for found in bodies)), None)


def _fault(found: bytes, expected: bytes) -> str | None:
    inside = found[sha256().digest_size :]
    if sealed(inside) != found:
        return "the snapshot that is kept here is damaged: its own digest does not hold; delete it, it only saves time"
    try:
        is_same = take(restore(inside)) == expected
    except UNREADABLE:
        return None  # written by another build of this core version: nobody can begin with it
    if is_same:
        return None
    return "the snapshot that is kept here is not the state that the log folds to: delete it, it only saves time"
