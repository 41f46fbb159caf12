"""A plane that is opened again is where it was, by the newest snapshot that is one and the tail behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from controlplane.domain.version import CORE
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import LogUnavailable, Record, Snapshot
from controlplane.runtime import plane
from controlplane.runtime.plane import ControlPlane, open_state
from controlplane.scheduler.snapshot import take
from tests.runtime.lives import begun, live, lived

EVERY = 40
"""Events between two snapshots here."""


class ReadLog(MemoryLog):
    """A log that knows from where it was read last."""

    read_after = -1

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Record]:
        self.read_after = after
        return super().read(after, until)


class FullLog(MemoryLog):
    """A log with room for events, and none for snapshots."""

    refused = 0

    def save_snapshot(self, snapshot: Snapshot) -> None:
        self.refused += 1
        raise LogUnavailable("nothing was written: the disk is full")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "SNAPSHOT_EVENTS", EVERY)
    monkeypatch.setattr(plane, "SNAPSHOT_EVENTS_PER_ROW", 0)


def test_a_plane_keeps_snapshots_as_it_goes_and_opens_from_the_newest() -> None:
    log = ReadLog()
    before = lived(log)
    newest = next(log.snapshots(CORE))
    assert before.head.position - newest.position < 2 * EVERY
    state, head = open_state(log)
    assert log.read_after == newest.position > 0
    assert head == before.head
    assert take(state) == take(before.state)


def test_a_plane_that_was_opened_from_a_snapshot_goes_on_as_if_it_had_never_stopped() -> None:
    log = MemoryLog()
    live(begun(log), range(1, 16))
    assert next(log.snapshots(CORE)).position > 0
    live(ControlPlane(log), range(16, 31))
    assert log.head() == lived(MemoryLog()).head


@pytest.mark.parametrize(
    "seen", ["cut", "changed", "not ours", "of another position", "empty", "of another log", "of another core"]
)
def test_a_snapshot_that_is_none_is_passed_over(seen: str) -> None:
    log = ReadLog()
    before = lived(log)
    expected = take(before.state)
    good = next(log.snapshots(CORE))
    head = log.head()
    earlier = list(log.read(0, head.position - 3))[-1]
    bad = {
        "cut": Snapshot(head.position, head.digest, CORE, good.body[:-1]),
        "changed": Snapshot(head.position, head.digest, CORE, good.body.replace(b"n1", b"n2")),
        "not ours": Snapshot(head.position, head.digest, CORE, plane.sealed(b'{"position": 1}')),
        "of another position": Snapshot(earlier.position, earlier.digest, CORE, good.body),
        "empty": Snapshot(head.position, head.digest, CORE, b""),
        "of another log": Snapshot(head.position, "f" * 64, CORE, plane.sealed(expected)),
        "of another core": Snapshot(head.position, head.digest, CORE + "x", plane.sealed(expected)),
    }[seen]
    log.save_snapshot(bad)
    state, opened = open_state(log)
    assert opened == head
    assert take(state) == expected
    assert log.read_after == good.position, "the good one behind it is taken"


def test_without_any_usable_snapshot_the_whole_log_is_read() -> None:
    log = ReadLog()
    before = lived(log)
    for position in range(1, 4):
        log.save_snapshot(Snapshot(position, next(log.read(position - 1)).digest, CORE, b"nothing"))
    state, head = open_state(log)
    assert (log.read_after, head) == (0, before.head)
    assert take(state) == take(before.state)


def test_a_snapshot_for_which_there_is_no_room_does_not_undo_what_was_recorded() -> None:
    log = FullLog()
    made = lived(log)
    assert log.refused > 1, "it is tried again after as many events"
    assert made.head == log.head()
