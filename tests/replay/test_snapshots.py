"""A snapshot is never trusted over the log: verifying compares each that is kept with what the log folds to."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from controlplane.audit.replay import Divergence, replay
from controlplane.domain.version import CORE
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import Snapshot
from controlplane.runtime import plane
from controlplane.runtime.plane import open_state, sealed
from controlplane.scheduler.snapshot import restore
from tests.runtime.lives import lived


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plane, "SNAPSHOT_EVENTS", 40)
    monkeypatch.setattr(plane, "SNAPSHOT_EVENTS_PER_ROW", 0)


def life() -> tuple[MemoryLog, list[Snapshot]]:
    """A log and its snapshots, oldest first."""
    log = MemoryLog()
    lived(log)
    kept = sorted(log.snapshots(CORE), key=lambda snapshot: snapshot.position)
    assert len(kept) == 3
    return log, kept


def put(log: MemoryLog, snapshot: Snapshot, body: bytes) -> None:
    """Another body under the same position and digest, as whoever can write to the database can do."""
    log.save_snapshot(Snapshot(snapshot.position, snapshot.digest, snapshot.core, body))


def forged(snapshot: Snapshot, field: str = "counts") -> bytes:
    """A state that never was, sealed as ours are."""
    plain = orjson.loads(snapshot.body[32:])
    plain[field] = {**plain[field], "finished": 9_999} if field == "counts" else plain[field] + 1
    return sealed(orjson.dumps(plain))


def divergence(log: MemoryLog, until: int | None = None) -> Divergence:
    found = replay(log, verify=True, until=until).divergence
    assert found is not None
    return found


def test_true_snapshots_verify() -> None:
    log, _ = life()
    assert replay(log, verify=True).ok


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_forged_snapshot_is_named_by_its_position(which: int) -> None:
    """Kills: comparing the digest that a snapshot names and not what it says."""
    log, kept = life()
    put(log, kept[which], forged(kept[which]))
    assert open_state(log)[0].counts.finished >= (9_999 if which == 2 else 0), "an opening believes the newest"
    found = divergence(log)
    assert found.position == kept[which].position
    assert "is not the state that the log folds to" in found.what
    assert replay(log).ok, "without --verify nothing is compared"


def test_of_several_the_first_is_named() -> None:
    log, kept = life()
    for snapshot in reversed(kept):
        put(log, snapshot, forged(snapshot, "now_ms"))
    assert divergence(log).position == kept[0].position


def test_only_snapshots_of_the_part_that_is_verified_are_compared() -> None:
    log, kept = life()
    put(log, kept[2], forged(kept[2]))
    assert replay(log, verify=True, until=kept[2].position - 1).ok
    assert divergence(log, until=kept[2].position).position == kept[2].position


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: b"", lambda body: body.replace(b"n1", b"n2")])
def test_a_damaged_snapshot_is_named(damage: Callable[[bytes], bytes]) -> None:
    log, kept = life()
    put(log, kept[1], damage(kept[1].body))
    found = divergence(log)
    assert (found.position, "is damaged" in found.what) == (kept[1].position, True)


def test_what_another_build_of_this_core_wrote_is_no_fault() -> None:
    """As it cannot be read, nobody begins with it; or it reads as the very same state."""
    log, kept = life()
    put(log, kept[0], sealed(b'{"position": 1}'))
    spaced = sealed(orjson.dumps(orjson.loads(kept[1].body[32:]), option=orjson.OPT_INDENT_2))
    assert spaced != kept[1].body
    assert restore(spaced[32:]).position == kept[1].position
    put(log, kept[1], spaced)
    assert replay(log, verify=True).ok


def test_a_snapshot_of_another_core_is_nobodys_business() -> None:
    log, kept = life()
    log.save_snapshot(Snapshot(kept[2].position, kept[2].digest, f"{CORE}x", b"anything"))
    assert replay(log, verify=True).ok
