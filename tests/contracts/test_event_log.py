"""One contract, held by every log that can be appended to: memory, SQLite, PostgreSQL.

Each property names the mutant that it kills.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.eventlog import open_log
from controlplane.eventlog.chain import seal
from controlplane.eventlog.export import Importable, export_log, import_log
from controlplane.eventlog.memory import SNAPSHOTS_KEPT, MemoryLog
from controlplane.eventlog.port import (
    EMPTY,
    GENESIS,
    Entry,
    EventLog,
    Head,
    HeadMoved,
    LogError,
    LogUnusable,
    Record,
    Snapshot,
    digest_of,
)
from controlplane.eventlog.tail import tail
from controlplane.eventlog.verify import verify_chain


def entry(number: int = 0, payload: bytes | None = None) -> Entry:
    """Any entry, told from others by its number."""
    text = b'{"job":%d}' % number if payload is None else payload
    return Entry("job_submitted/1", "requested", text, 1_700_000_000_000 + number, "ada", f"j{number}", number or None)


def filled(log: EventLog, size: int) -> Head:
    return log.append([entry(number) for number in range(size)], log.head())


# Texts as the port allows them: printable. NUL, separators and line ends are not.
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), max_size=20)
ENTRIES = st.builds(
    Entry,
    type=TEXTS,
    author=TEXTS,
    payload=st.binary(max_size=50),
    recorded_at_ms=st.integers(0, 2**53 - 1),
    actor=TEXTS,
    correlation=TEXTS,
    causation=st.none() | st.integers(1, 2**53 - 1),
)
per_log = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors])
"""The log of a test goes on from example to example, since the contract holds from any head; and the same property runs
for each kind of log."""


class EventLogContract:
    """What every log owes to its callers. A subclass provides ``log`` (empty) and ``again`` (a second way in)."""

    # --- appending and reading ---

    def test_a_new_log_is_empty(self, log: EventLog) -> None:
        assert log.head() == EMPTY == Head(0, GENESIS)
        assert list(log.read()) == []

    @per_log
    @given(batch=st.lists(ENTRIES, max_size=8))
    def test_what_is_appended_is_read(self, log: EventLog, batch: list[Entry]) -> None:
        """Kills: swapped columns, a payload stored as text, a lost causation, a batch written twice."""
        before = log.head()
        head = log.append(batch, before)
        records = list(log.read(after=before.position))
        assert [record[1:8] for record in records] == [tuple(one) for one in batch]
        assert [record.position for record in records] == list(range(before.position + 1, head.position + 1))
        assert log.head() == head

    @per_log
    @given(batch=st.lists(ENTRIES, min_size=1, max_size=8))
    def test_each_digest_is_the_ports_digest_of_its_record(self, log: EventLog, batch: list[Entry]) -> None:
        """Kills: a column left out of the digest, columns in another order, ``previous`` not advanced."""
        before = log.head()
        log.append(batch, before)
        previous = before.digest
        for record in log.read(after=before.position):
            assert record.previous == previous
            assert record.digest == digest_of(previous, *record[:8])
            previous = record.digest
        assert log.head().digest == previous

    def test_entries_give_the_same_digests_in_every_log(self, log: EventLog) -> None:
        filled(log, 5)
        assert list(log.read()) == [Record._make(row) for row in seal([entry(number) for number in range(5)], EMPTY)]

    @per_log
    @given(after=st.integers(-2, 12), until=st.none() | st.integers(-2, 14))
    def test_reading_gives_exactly_the_asked_positions(self, log: EventLog, after: int, until: int | None) -> None:
        """Kills: ``<=`` for ``<`` at either end, ``until`` taken for a count."""
        if log.head() == EMPTY:
            filled(log, 10)
        end = 10 if until is None else until
        expected = [position for position in range(1, 11) if after < position <= end]
        assert [record.position for record in log.read(after, until)] == expected

    def test_reading_crosses_the_borders_of_chunks(self, log: EventLog) -> None:
        """Kills: a chunk read twice, a chunk left out, an end taken for a gap."""
        head = filled(log, 4_000)
        assert [record.position for record in log.read()] == list(range(1, 4_001))
        assert log.append([entry(1)], head).position == 4_001
        assert [record.position for record in log.read(after=1_999)] == list(range(2_000, 4_002))

    def test_a_reader_that_stops_half_way_holds_up_nobody(self, log: EventLog) -> None:
        head = filled(log, 3_000)
        reader = log.read()
        assert next(reader).position == 1
        head = log.append([entry(7)], head)
        assert log.head() == head
        assert sum(1 for _ in reader) >= 2_999

    def test_a_second_way_in_sees_what_was_appended(self, log: EventLog, again: EventLog) -> None:
        head = filled(log, 3)
        assert again.head() == head
        assert list(again.read()) == list(log.read())

    def test_nothing_appended_changes_nothing(self, log: EventLog) -> None:
        head = filled(log, 2)
        assert log.append([], head) == head == log.head()

    def test_a_tail_gives_each_record_once_as_the_log_grows(self, log: EventLog, again: EventLog) -> None:
        """Kills: starting again at the first position, ending when caught up."""
        filled(log, 3)
        rounds = iter([True, False])

        def wait() -> bool:
            filled(again, 2)
            return next(rounds)

        assert [record.position for record in tail(log, 1, wait)] == [2, 3, 4, 5]

    # --- refusing ---

    @pytest.mark.parametrize("size", [0, 1, 3])
    def test_an_append_behind_the_head_is_refused_and_writes_nothing(self, log: EventLog, size: int) -> None:
        """Kills: appending wherever the log stands, comparing positions only after writing."""
        head = filled(log, 4)
        with pytest.raises(HeadMoved, match="position 0"):
            log.append([entry(number) for number in range(size)], EMPTY)
        assert log.head() == head
        assert log.append([entry(9)], head).position == 5

    def test_an_append_with_the_wrong_digest_is_refused(self, log: EventLog) -> None:
        """Kills: comparing positions only."""
        head = filled(log, 4)
        with pytest.raises(HeadMoved):
            log.append([entry(9)], Head(4, "f" * 64))
        assert log.head() == head

    def test_an_append_ahead_of_the_log_is_refused(self, log: EventLog) -> None:
        """Kills: a gap."""
        head = filled(log, 1)
        with pytest.raises(HeadMoved):
            log.append([entry(9)], Head(7, head.digest))
        assert [record.position for record in log.read()] == [1]

    @pytest.mark.parametrize("text", ["a\x1fb", "a\nb", "a\x00b"])
    def test_texts_that_could_move_a_border_are_refused(self, log: EventLog, text: str) -> None:
        """Kills: two different entries with one digest."""
        head = filled(log, 1)
        good = entry(3)
        for bad in (
            good._replace(type=text),
            good._replace(author=text),
            good._replace(actor=text),
            good._replace(correlation=text),
        ):
            with pytest.raises(ValueError, match="printable"):
                log.append([entry(2), bad], head)
        assert log.head() == head

    def test_of_two_writers_exactly_one_wins_each_position(self, log: EventLog, again: EventLog) -> None:
        """Kills: a head read outside of the transaction."""
        won: list[tuple[str, Head]] = []
        faults: list[LogError] = []
        start = threading.Barrier(2)

        def write(mine: EventLog, name: str) -> None:
            start.wait(10)
            wins = 0
            while wins < 25:
                head = mine.head()
                try:
                    appended = mine.append([entry(wins)._replace(actor=name)] * 2, head)
                except HeadMoved:
                    continue
                except LogError as error:
                    faults.append(error)
                    return
                won.append((name, appended))
                wins += 1

        writers = [threading.Thread(target=write, args=pair) for pair in ((log, "ada"), (again, "bob"))]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(60)
        assert not faults
        positions = sorted(head.position for _, head in won)
        assert positions == list(range(2, 101, 2))
        names = {head.position: name for name, head in won}
        assert [record.actor for record in log.read()] == [names[at] for at in positions for _ in range(2)]
        assert verify_chain(log).ok

    def test_who_began_to_write_finishes_before_another_may(self, log: EventLog, again: EventLog) -> None:
        """Kills: a lock that is taken only when the first row goes in; no lock at all."""
        head = filled(log, 2)
        outcome: list[Head | HeadMoved] = []

        def intrude() -> None:
            try:
                outcome.append(again.append([entry(9)], head))
            except HeadMoved as error:
                outcome.append(error)

        intruder = threading.Thread(target=intrude)

        def batches() -> Iterator[list[Entry]]:
            intruder.start()
            intruder.join(0.2)  # time enough to slip in, if nothing holds it up
            yield [entry(5)] * 3

        assert isinstance(log, Importable)
        assert log.append_all(batches(), head).position == 5
        intruder.join(30)
        assert [type(one) for one in outcome] == [HeadMoved]
        assert log.head().position == 5

    def test_a_closed_log_says_so(self, log: EventLog) -> None:
        filled(log, 1)
        log.close()
        for use in (log.head, log.read, lambda: log.append([entry()], EMPTY), lambda: log.snapshots("1"), log.flaws):
            with pytest.raises(LogUnusable, match="closed"):
                use()

    # --- snapshots ---

    def test_snapshots_come_newest_first_and_only_of_the_same_core(self, log: EventLog) -> None:
        filled(log, 6)
        digests = [record.digest for record in log.read()]
        older, newer = (Snapshot(at, digests[at - 1], "core-1", b"\x00state %d" % at) for at in (2, 5))
        other = Snapshot(6, digests[5], "core-2", b"other")
        for snapshot in (newer, older, other):
            log.save_snapshot(snapshot)
        assert list(log.snapshots("core-1")) == [newer, older]
        assert list(log.snapshots("core-2")) == [other]
        assert list(log.snapshots("core-3")) == []

    def test_a_snapshot_that_disagrees_with_the_log_is_not_offered(self, log: EventLog) -> None:
        """Kills: trusting a snapshot over the log."""
        head = filled(log, 3)
        assert list(log.flaws()) == []
        log.save_snapshot(Snapshot(3, head.digest, "core", b"right"))
        log.save_snapshot(Snapshot(9, head.digest, "core", b"beyond the end"))
        log.save_snapshot(Snapshot(2, "f" * 64, "core", b"wrong digest"))
        assert [snapshot.body for snapshot in log.snapshots("core")] == [b"right"]
        assert list(log.flaws()) == [f"the snapshot at position {at} names no record of this log" for at in (2, 9)]

    def test_only_the_newest_snapshots_are_kept(self, log: EventLog) -> None:
        filled(log, 9)
        taken = [Snapshot(record.position, record.digest, "core", b"s%d" % record.position) for record in log.read()]
        for snapshot in taken:
            log.save_snapshot(snapshot)
        assert list(log.snapshots("core")) == taken[: -SNAPSHOTS_KEPT - 1 : -1]

    def test_a_snapshot_at_the_same_position_is_replaced(self, log: EventLog) -> None:
        head = filled(log, 1)
        for body in (b"first", b"second"):
            log.save_snapshot(Snapshot(1, head.digest, "core", body))
        assert [snapshot.body for snapshot in log.snapshots("core")] == [b"second"]

    # --- the whole chain, out and in ---

    def test_the_chain_verifies_and_reports_its_progress(self, log: EventLog) -> None:
        head = filled(log, 3)
        seen: list[tuple[int, int]] = []
        report = verify_chain(log, lambda done, total: seen.append((done, total)))
        assert report.ok
        assert report.head == head
        assert seen == [(3, 3)]

    def test_an_export_imports_to_the_same_head(self, log: EventLog, tmp_path: Path) -> None:
        """Kills: a payload formatted anew, a causation of 0 for none."""
        payloads = [b'{"b":1, "a":"\\u00e9"}', b"", b"\xff\x00\n", b'"]}', b'{"payload":",\\"payload\\":"}', b"{\n}"]
        head = log.append([entry(number, payload) for number, payload in enumerate(payloads)], EMPTY)
        path = tmp_path / "log.jsonl"
        assert export_log(log, path) == head
        with MemoryLog() as copy:
            assert import_log(path, copy) == head
            assert list(copy.read()) == list(log.read())

    def test_an_export_of_a_growing_log_is_a_whole_beginning_of_it(
        self, log: EventLog, again: EventLog, tmp_path: Path
    ) -> None:
        """Kills: a header that names another end than the file has."""
        head = log.append([entry(number) for number in range(25_000)], EMPTY)
        path = tmp_path / "log.jsonl"

        def grow(_done: int, _total: int) -> None:
            filled(again, 1)

        assert export_log(log, path, grow) == head
        with open_log(str(path), create=False) as file:
            assert file.head() == head
            assert verify_chain(file).ok

    def test_an_import_goes_on_where_the_log_stands(self, log: EventLog, tmp_path: Path) -> None:
        with MemoryLog() as whole:
            head = filled(whole, 50)
            export_log(whole, tmp_path / "log.jsonl.gz")
        log.append([entry(number) for number in range(20)], EMPTY)
        assert import_log(tmp_path / "log.jsonl.gz", log) == head == log.head()
        assert import_log(tmp_path / "log.jsonl.gz", log) == head

    def test_an_import_over_something_else_is_refused(self, log: EventLog, tmp_path: Path) -> None:
        with MemoryLog() as other:
            filled(other, 5)
            export_log(other, tmp_path / "log.jsonl")
        head = log.append([entry(99)], EMPTY)
        with pytest.raises(HeadMoved, match="another log"):
            import_log(tmp_path / "log.jsonl", log)
        assert log.head() == head

    def test_many_batches_go_in_together_or_not_at_all(self, log: EventLog) -> None:
        """Kills: a commit per batch."""
        head = filled(log, 2)

        def batches() -> Iterator[list[Entry]]:
            yield [entry(1), entry(2)]
            yield [entry(3)._replace(actor="\n")]

        assert isinstance(log, Importable)
        with pytest.raises(ValueError, match="printable"):
            log.append_all(batches(), head)
        assert log.head() == head
        assert log.append([entry(4)], head).position == 3


class TestMemoryLog(EventLogContract):
    @pytest.fixture
    def log(self) -> Iterator[EventLog]:
        with open_log("memory:", create=True) as log:
            yield log

    @pytest.fixture
    def again(self, log: EventLog) -> EventLog:
        return log


class TestSqliteLog(EventLogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Iterator[EventLog]:
        with open_log(f"sqlite:///{tmp_path}/log.db", create=True) as log:
            yield log

    @pytest.fixture
    def again(self, log: EventLog, tmp_path: Path) -> Iterator[EventLog]:
        with open_log(str(tmp_path / "log.db"), create=False) as again:
            yield again


@pytest.mark.services
class TestPostgresLog(EventLogContract):
    @pytest.fixture
    def log(self, postgres_url: str) -> Iterator[EventLog]:
        with open_log(postgres_url, create=True) as log:
            yield log

    @pytest.fixture
    def again(self, log: EventLog, postgres_url: str) -> Iterator[EventLog]:
        with open_log(postgres_url, create=False) as again:
            yield again
