"""A log that lost its end is sound as a chain; that the last cycle is not whole shows only when it is decided again."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.audit.replay import replay
from controlplane.domain.events import CycleDecided, Ticked
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import EMPTY, Entry, Record
from tests.runtime.lives import lived


def log_of(records: Sequence[Record]) -> MemoryLog:
    """These records, sealed anew."""
    log = MemoryLog()
    log.append([Entry(*record[1:8]) for record in records], EMPTY)
    return log


def test_every_cut_through_the_last_cycle_is_named_by_the_first_position_that_is_missing() -> None:
    whole = MemoryLog()
    lived(whole)
    records = list(whole.read())
    assert records[-1].type == CycleDecided.TYPE
    tick = next(record.position for record in reversed(records) if record.type == Ticked.TYPE)
    assert len(records) - tick > 2
    for end in range(tick, len(records)):
        report = replay(log_of(records[:end]), verify=True)
        assert report.divergence is not None, end
        assert report.divergence.position == end + 1
        assert "is missing" in report.divergence.what


def test_a_log_that_is_whole_or_lost_whole_batches_verifies() -> None:
    whole = MemoryLog()
    lived(whole)
    records = list(whole.read())
    before = next(record.position for record in reversed(records[:-1]) if record.type == CycleDecided.TYPE)
    assert replay(log_of(records), verify=True).ok
    assert replay(log_of(records[:before]), verify=True).ok


def test_replay_may_be_asked_to_stop_within_a_cycle() -> None:
    log = MemoryLog()
    end = lived(log).head.position
    report = replay(log, verify=True, until=end - 1)
    assert report.ok
    assert report.position == end - 1
