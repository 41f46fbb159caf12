"""A log in memory: for tests, simulations and questions that need no file. It ends with the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from types import TracebackType
from typing import Self

from controlplane.eventlog.chain import head_after, seal
from controlplane.eventlog.port import EMPTY, Entry, Head, HeadMoved, LogUnusable, Record, Snapshot

SNAPSHOTS_KEPT = 3
"""As many as it takes to lose the newest two and still start quickly."""
FOREIGN_SNAPSHOT = "the snapshot at position {} names no record of this log"


class MemoryLog:
    """The event log as a list of records. Safe to use from several threads."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._snapshots: list[Snapshot] = []
        self._lock = Lock()
        self._is_open = True

    @property
    def url(self) -> str:
        return "memory:"

    def head(self) -> Head:
        self._must_be_open()
        return self._head()

    def append(self, entries: Sequence[Entry], expected: Head) -> Head:
        return self.append_all((entries,), expected)

    def append_all(self, batches: Iterable[Sequence[Entry]], expected: Head) -> Head:
        """Append every batch, or none of them. Raises like :meth:`append`."""
        self._must_be_open()
        with self._lock:
            head = self._head()
            if head != expected:
                raise HeadMoved(f"expected the head at position {expected.position}, it is at {head.position}")
            sealed: list[Record] = []
            for batch in batches:
                rows = seal(batch, head)
                head = head_after(rows, head)
                sealed += map(Record._make, rows)
            self._records += sealed
            return head

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Record]:
        self._must_be_open()
        end = len(self._records) if until is None else max(until, 0)
        return iter(self._records[max(after, 0) : end])

    def save_snapshot(self, snapshot: Snapshot) -> None:
        self._must_be_open()
        with self._lock:
            kept = [
                other for other in self._snapshots if (other.position, other.core) != (snapshot.position, snapshot.core)
            ]
            self._snapshots = [*kept, snapshot][-SNAPSHOTS_KEPT:]

    def snapshots(self, core: str) -> Iterator[Snapshot]:
        self._must_be_open()
        newest_first = sorted(self._snapshots, key=lambda snapshot: snapshot.position, reverse=True)
        return iter(
            [
                snapshot
                for snapshot in newest_first
                if snapshot.core == core and snapshot.digest == self._digest_at(snapshot.position)
            ]
        )

    def flaws(self) -> Sequence[str]:
        self._must_be_open()
        kept = sorted(self._snapshots, key=lambda snapshot: snapshot.position)
        return [
            FOREIGN_SNAPSHOT.format(snapshot.position)
            for snapshot in kept
            if snapshot.digest != self._digest_at(snapshot.position)
        ]

    def close(self) -> None:
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _head(self) -> Head:
        return head_after(self._records, EMPTY)

    def _digest_at(self, position: int) -> str | None:
        return self._records[position - 1].digest if 0 < position <= len(self._records) else None

    def _must_be_open(self) -> None:
        if not self._is_open:
            raise LogUnusable("memory: the log is closed")
