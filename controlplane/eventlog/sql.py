"""The log in a database: SQLAlchemy Core, the same code over SQLite and PostgreSQL.

PROBLEM: an append must be atomic, durable, refused when somebody else was faster, and not much slower than a bare
batched insert; a reader must neither hold up writers nor leave a transaction open when it stops half-way.

SOLUTION: entries are sealed before the transaction begins; inside it the one row of ``head`` is locked and compared
with what the caller expected, the rows go in as one batch, and the head is moved. Readers fetch ranges of positions,
each in its own short transaction: since nothing that was written ever changes, the ranges fit together as if read at
once.

What differs between engines (how to connect, the fastest batch insert, what its errors mean) is in a :class:`Backend`;
see :mod:`controlplane.eventlog.sqlite` and :mod:`controlplane.eventlog.postgresql`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sqlalchemy import Connection, Engine, bindparam, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from controlplane.eventlog.chain import head_after, seal
from controlplane.eventlog.memory import SNAPSHOTS_KEPT
from controlplane.eventlog.port import (
    EMPTY,
    Entry,
    Head,
    HeadMoved,
    LogDamaged,
    LogError,
    LogUnavailable,
    LogUnusable,
    Record,
    Snapshot,
)
from controlplane.eventlog.schema import EVENTS, HEAD, SNAPSHOTS

CHUNK = 2_000
"""Records fetched at once: some 1 MB, and 100 microseconds of SQLAlchemy per chunk do not show any more."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What one database engine does in its own way."""

    engine: Engine
    url: str
    """Without a password."""
    insert: Callable[[Connection, Sequence[Record]], None]
    """Insert a batch of records within the transaction of the connection."""
    error: type[Exception]
    """The driver's base of errors: what is fetched or copied past SQLAlchemy raises it bare."""
    fault: Callable[[Exception], LogError]
    """What the caller should do about an error of the driver."""


_RANGE = select(EVENTS).where(EVENTS.c.position > bindparam("after"), EVENTS.c.position <= bindparam("end"))
_RANGE = _RANGE.order_by(EVENTS.c.position)
_LAST = select(func.max(EVENTS.c.position)).scalar_subquery()
_NEXT = select(func.min(EVENTS.c.position)).where(EVENTS.c.position > bindparam("after")).scalar_subquery()
_ENDS = select(HEAD.c.position, HEAD.c.digest, _LAST, EVENTS.c.digest).select_from(
    HEAD.outerjoin(EVENTS, EVENTS.c.position == HEAD.c.position)
)
_AFTERWARDS = select(_NEXT, HEAD.c.position)
_LOCKED_HEAD = select(HEAD.c.position, HEAD.c.digest).with_for_update()
_MOVE_HEAD = update(HEAD).values(position=bindparam("to"), digest=bindparam("to_digest"))
_AGREEING = (
    select(SNAPSHOTS.c.serial)
    .join(EVENTS, EVENTS.c.position == SNAPSHOTS.c.position)
    .where(SNAPSHOTS.c.core == bindparam("core"), SNAPSHOTS.c.digest == EVENTS.c.digest)
    .order_by(SNAPSHOTS.c.position.desc(), SNAPSHOTS.c.serial.desc())
)


class SqlLog:
    """The event log in SQLite or PostgreSQL. Safe to use from several threads; processes meet in the database."""

    def __init__(self, backend: Backend, *, read_only: bool = False) -> None:
        self._backend = backend
        self._read_only = read_only
        self._is_open = True

    @property
    def url(self) -> str:
        return self._backend.url

    def head(self) -> Head:
        """The end of the log. Raises :class:`LogDamaged` if the last rows are not those that were appended last."""
        with self._reading() as connection:
            row = connection.execute(_ENDS).one_or_none()
        if row is None:
            raise LogDamaged(1, "the head of the log is missing")
        position, digest, last, last_digest = row
        if (last or 0) != position:
            raise LogDamaged(min(last or 0, position) + 1, f"the head says {position}, the last record is {last or 0}")
        if position and last_digest != digest:
            raise LogDamaged(position, "the digest of the last record is not the one that was appended")
        return Head(position, digest) if position else EMPTY

    def append(self, entries: Sequence[Entry], expected: Head) -> Head:
        return self._append((seal(entries, expected),), expected)

    def append_all(self, batches: Iterable[Sequence[Entry]], expected: Head) -> Head:
        """Append every batch in one transaction, sealing each as it comes. Raises like :meth:`append`."""
        return self._append(_sealed(batches, expected), expected)

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Record]:
        self._must_be_open()
        return self._read(max(after, 0), until)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        same = (SNAPSHOTS.c.position == snapshot.position) & (SNAPSHOTS.c.core == snapshot.core)
        newest = select(SNAPSHOTS.c.serial).order_by(SNAPSHOTS.c.serial.desc()).limit(SNAPSHOTS_KEPT)
        with self._writing() as connection:
            connection.execute(delete(SNAPSHOTS).where(same))
            connection.execute(
                insert(SNAPSHOTS).values(
                    position=snapshot.position, digest=snapshot.digest, core=snapshot.core, body=snapshot.body
                )
            )
            connection.execute(delete(SNAPSHOTS).where(SNAPSHOTS.c.serial.not_in(newest)))

    def snapshots(self, core: str) -> Iterator[Snapshot]:
        with self._reading() as connection:
            serials = connection.execute(_AGREEING, {"core": core}).scalars().all()
        return self._loaded(serials)

    def close(self) -> None:
        self._is_open = False
        self._backend.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- writing ------------------------------------------------------------------------------------------------------

    def _append(self, batches: Iterable[Sequence[Record]], expected: Head) -> Head:
        head = expected
        try:
            with self._writing() as connection:
                self._must_stand_at(connection, expected)
                for records in batches:
                    if records:
                        self._backend.insert(connection, records)
                        head = head_after(records, head)
                connection.execute(_MOVE_HEAD, {"to": head.position, "to_digest": head.digest})
        except LogUnavailable:
            # The connection may have broken while the commit was on its way back. The log knows.
            if head != expected and self._stands_at(head):
                return head
            raise
        return head

    def _must_stand_at(self, connection: Connection, expected: Head) -> None:
        row = connection.execute(_LOCKED_HEAD).one_or_none()
        if row is None:
            raise LogDamaged(1, "the head of the log is missing")
        if tuple(row) != expected:
            raise HeadMoved(
                f"{self.url}: expected the head at position {expected.position} ({expected.digest[:12]}), "
                f"it is at {row[0]} ({row[1][:12]})"
            )

    def _stands_at(self, head: Head) -> bool:
        try:
            return self.head() == head
        except LogError:
            return False

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        self._must_be_open()
        if self._read_only:
            raise LogUnusable(f"{self.url} was opened for reading only")
        with named_faults(self._backend), self._backend.engine.connect() as connection:
            connection.execution_options(begin="BEGIN IMMEDIATE")
            with connection.begin():
                yield connection

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, after: int, until: int | None) -> Iterator[Record]:
        while until is None or after < until:
            end = after + CHUNK if until is None else min(until, after + CHUNK)
            records = self._fetch(after, end)
            yield from _contiguous(records, after)
            after += len(records)
            if after < end and self._is_end(after, until):
                return

    def _fetch(self, after: int, end: int) -> list[Record]:
        try:
            with self._reading() as connection:
                rows = self._rows(connection, after, end)
        except LogDamaged as error:
            # One row of the range cannot be decoded: halve the range until it is found.
            if end - after <= 1:
                raise LogDamaged(end, error.what) from error
            middle = (after + end) // 2
            before = self._fetch(after, middle)
            return before + self._fetch(middle, end) if len(before) == middle - after else before
        return list(map(Record._make, rows))

    def _rows(self, connection: Connection, after: int, end: int) -> Sequence[Sequence[object]]:
        # The driver's own rows: SQLAlchemy's would cost as much again as the query.
        rows: Sequence[Sequence[object]] = connection.execute(_RANGE, {"after": after, "end": end}).cursor.fetchall()
        return rows

    def _is_end(self, after: int, until: int | None) -> bool:
        """Whether the log ends after this position; :class:`LogDamaged` if it goes on behind a hole."""
        with self._reading() as connection:
            row = connection.execute(_AFTERWARDS, {"after": after}).one_or_none()
        following, head = row if row is not None else (None, 0)
        if following == after + 1:
            return False  # somebody appended meanwhile
        if following is not None and (until is None or following <= until):
            raise LogDamaged(after + 1, f"the record is missing; the next one is {following}")
        if head > after and (until is None or until > after):
            raise LogDamaged(after + 1, f"the record is missing; the log should go on to {head}")
        return True

    def _loaded(self, serials: Sequence[int]) -> Iterator[Snapshot]:
        body = select(SNAPSHOTS.c.position, SNAPSHOTS.c.digest, SNAPSHOTS.c.core, SNAPSHOTS.c.body)
        for serial in serials:
            with self._reading() as connection:
                row = connection.execute(body.where(SNAPSHOTS.c.serial == serial)).one_or_none()
            if row is not None:  # another process may have replaced it meanwhile
                yield Snapshot(*row)

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._must_be_open()
        with named_faults(self._backend), self._backend.engine.connect() as connection:
            yield connection

    def _must_be_open(self) -> None:
        if not self._is_open:
            raise LogUnusable(f"{self.url}: the log is closed")


@contextmanager
def named_faults(backend: Backend) -> Iterator[None]:
    """No exception of a driver crosses this floor: each becomes a :class:`LogError`."""
    try:
        yield
    except DBAPIError as error:
        original = error.orig
        raise backend.fault(original if isinstance(original, Exception) else error) from error
    except (SQLAlchemyError, backend.error) as error:
        raise backend.fault(error) from error


def _sealed(batches: Iterable[Sequence[Entry]], head: Head) -> Iterator[list[Record]]:
    for batch in batches:
        records = seal(batch, head)
        head = head_after(records, head)
        yield records


def _contiguous(records: Sequence[Record], after: int) -> Sequence[Record]:
    """The records themselves; :class:`LogDamaged` at the first that is missing or is not bytes and text."""
    if records and records[-1].position != after + len(records):
        position = next(number for number, record in enumerate(records, after + 1) if record.position != number)
        raise LogDamaged(position, f"the record is missing; the next one is {records[position - after - 1].position}")
    for record in records:
        if record.payload.__class__ is not bytes:
            raise LogDamaged(record.position, "the payload is not stored as bytes")
    return records
