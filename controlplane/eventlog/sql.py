"""The log in a database: SQLAlchemy Core, the same code over SQLite and PostgreSQL.

PROBLEM: an append must be atomic, durable, refused when somebody else was faster, and not much slower than a bare
batched insert; a reader must neither hold up writers nor leave a transaction open when it stops half-way.

SOLUTION: entries are sealed before the transaction begins; inside it the one row of ``head`` is locked and compared
with what the caller expected, the rows go in as one batch, and the head is moved. Readers fetch ranges of positions,
each in its own short transaction: since nothing that was written ever changes, the ranges fit together as if read at
once.

Statements are SQLAlchemy expressions, compiled once per engine and then run on the driver's own cursor: going through
SQLAlchemy each time would cost 200 microseconds an append, which is more than SQLite itself takes.

What differs between engines (how to connect, the fastest batch insert, what its errors mean) is in a :class:`Backend`;
see :mod:`controlplane.eventlog.sqlite` and :mod:`controlplane.eventlog.postgresql`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from sqlalchemy import ClauseElement, Connection, Engine, bindparam, delete, func, insert, select, update
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.sql.compiler import SQLCompiler

from controlplane.eventlog.chain import Row, head_after, seal
from controlplane.eventlog.memory import FOREIGN_SNAPSHOT, SNAPSHOTS_KEPT
from controlplane.eventlog.port import (
    EMPTY,
    SHAPES,
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
from controlplane.eventlog.schema import EVENTS, HEAD, SNAPSHOTS, missing_tables

CHUNK = 2_000
"""Records fetched at once: some 1 MB, and 100 microseconds of SQLAlchemy per chunk do not show any more."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What one database engine does in its own way."""

    engine: Engine
    url: str
    """Without a password."""
    begin: str | None
    """What begins a transaction that will write; ``None`` if the driver does by itself."""
    insert: Callable[[DBAPICursor, Sequence[Row]], None]
    """Insert a batch within the transaction of the cursor."""
    error: type[Exception]
    """The driver's base of errors: what is fetched or copied past SQLAlchemy raises it bare."""
    fault: Callable[[Exception], LogError]
    """What the caller should do about an error of the driver."""
    guards: Callable[[Connection], Sequence[str]]
    """What is wrong with the triggers that refuse changes, one clause each."""


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
_FOREIGN = (
    select(SNAPSHOTS.c.position)
    .outerjoin(EVENTS, EVENTS.c.position == SNAPSHOTS.c.position)
    .where(func.coalesce(EVENTS.c.digest, "") != SNAPSHOTS.c.digest)
    .order_by(SNAPSHOTS.c.position, SNAPSHOTS.c.serial)
)
_LOADING = select(SNAPSHOTS.c.position, SNAPSHOTS.c.digest, SNAPSHOTS.c.core, SNAPSHOTS.c.body).where(
    SNAPSHOTS.c.serial == bindparam("serial")
)
_SNAPSHOT_SHAPE = (int, str, str, bytes)
_NEWEST = select(SNAPSHOTS.c.serial).order_by(SNAPSHOTS.c.serial.desc()).limit(SNAPSHOTS_KEPT)
_REPLACING = (
    delete(SNAPSHOTS).where(SNAPSHOTS.c.position == bindparam("at"), SNAPSHOTS.c.core == bindparam("core")),
    insert(SNAPSHOTS).values(
        position=bindparam("at"), digest=bindparam("digest"), core=bindparam("core"), body=bindparam("body")
    ),
    delete(SNAPSHOTS).where(SNAPSHOTS.c.serial.not_in(_NEWEST)),
)


class _Prepared:
    """A statement as text of one engine."""

    def __init__(self, statement: ClauseElement, engine: Engine) -> None:
        compiled = statement.compile(dialect=engine.dialect)
        assert isinstance(compiled, SQLCompiler)
        self._text = compiled.string
        self._order = compiled.positiontup
        self._constants = compiled.params
        """Names of the parameters where the engine counts them, ``None`` where it names them."""

    def run(self, cursor: DBAPICursor, **given: int | str | bytes) -> DBAPICursor:
        values = {**self._constants, **given}
        cursor.execute(self._text, values if self._order is None else [values[name] for name in self._order])
        return cursor


class SqlLog:
    """The event log in SQLite or PostgreSQL. Safe to use from several threads; processes meet in the database."""

    def __init__(self, backend: Backend, *, read_only: bool = False) -> None:
        self._backend = backend
        self._read_only = read_only
        self._is_open = True
        engine = backend.engine
        self._range = _Prepared(_RANGE, engine)
        self._ends = _Prepared(_ENDS, engine)
        self._afterwards = _Prepared(_AFTERWARDS, engine)
        self._locked_head = _Prepared(_LOCKED_HEAD, engine)
        self._move_head = _Prepared(_MOVE_HEAD, engine)
        self._agreeing = _Prepared(_AGREEING, engine)
        self._loading = _Prepared(_LOADING, engine)
        self._replacing = tuple(_Prepared(statement, engine) for statement in _REPLACING)

    @property
    def url(self) -> str:
        return self._backend.url

    def head(self) -> Head:
        """The end of the log. Raises :class:`LogDamaged` if the last rows are not those that were appended last."""
        with self._reading() as cursor:
            row = self._ends.run(cursor).fetchone()
        if row is None:
            raise LogDamaged(1, "the head of the log is missing")
        position, digest, last, last_digest = row
        _must_be_a_head(position, digest)
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
        with self._writing() as cursor:
            for statement in self._replacing:
                statement.run(
                    cursor, at=snapshot.position, digest=snapshot.digest, core=snapshot.core, body=snapshot.body
                )

    def snapshots(self, core: str) -> Iterator[Snapshot]:
        with self._reading() as cursor:
            serials = [serial for (serial,) in self._agreeing.run(cursor, core=core).fetchall()]
        return self._loaded(serials)

    def flaws(self) -> Sequence[str]:
        self._must_be_open()
        with named_faults(self._backend), self._backend.engine.connect() as connection:
            missing = missing_tables(connection)
            foreign = [] if missing else [position for (position,) in connection.execute(_FOREIGN)]
            guards = self._backend.guards(connection)
        return (
            *(f"the table {name} is missing" for name in missing),
            *guards,
            *(FOREIGN_SNAPSHOT.format(position) for position in foreign),
        )

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

    def _append(self, batches: Iterable[Sequence[Row]], expected: Head) -> Head:
        head = expected
        try:
            with self._writing() as cursor:
                self._must_stand_at(cursor, expected)
                for rows in batches:
                    if rows:
                        self._backend.insert(cursor, rows)
                        head = head_after(rows, head)
                if head != expected:
                    self._move_head.run(cursor, to=head.position, to_digest=head.digest)
        except LogUnavailable:
            # The connection may have broken while the commit was on its way back. The log knows.
            if head != expected and self._stands_at(head):
                return head
            raise
        return head

    def _must_stand_at(self, cursor: DBAPICursor, expected: Head) -> None:
        row = self._locked_head.run(cursor).fetchone()
        if row is None:
            raise LogDamaged(1, "the head of the log is missing")
        position, digest = row
        _must_be_a_head(position, digest)
        if position != expected.position or digest != expected.digest:
            raise HeadMoved(
                f"{self.url}: expected the head at position {expected.position} ({expected.digest[:12]}), "
                f"it is at {position} ({digest[:12]})"
            )

    def _stands_at(self, head: Head) -> bool:
        try:
            return self.head() == head
        except LogError:
            return False

    @contextmanager
    def _writing(self) -> Iterator[DBAPICursor]:
        """A transaction that commits at the end, or leaves no trace."""
        self._must_be_open()
        if self._read_only:
            raise LogUnusable(f"{self.url} was opened for reading only")
        with named_faults(self._backend), closing(self._backend.engine.raw_connection()) as connection:
            cursor = connection.cursor()
            try:
                if self._backend.begin is not None:
                    cursor.execute(self._backend.begin)
                yield cursor
                connection.commit()
            except BaseException:
                with suppress(self._backend.error):  # a connection that is gone has rolled back by itself
                    connection.rollback()
                raise

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
            with self._reading() as cursor:
                rows = self._range.run(cursor, after=after, end=end).fetchall()
        except LogDamaged as error:
            # One row of the range cannot be decoded: halve the range until it is found.
            if end - after <= 1:
                raise LogDamaged(end, error.what) from error
            middle = (after + end) // 2
            before = self._fetch(after, middle)
            return before + self._fetch(middle, end) if len(before) == middle - after else before
        return list(map(Record._make, rows))

    def _is_end(self, after: int, until: int | None) -> bool:
        """Whether the log ends after this position; :class:`LogDamaged` if it goes on behind a hole."""
        with self._reading() as cursor:
            row = self._afterwards.run(cursor, after=after).fetchone()
        following, head = row if row is not None else (None, 0)
        _must_be_a_head(head, "")
        if following == after + 1:
            return False  # somebody appended meanwhile
        if following is not None and (until is None or following <= until):
            raise LogDamaged(after + 1, f"the record is missing; the next one is {following}")
        if head > after and (until is None or until > after):
            raise LogDamaged(after + 1, f"the record is missing; the log goes on to {head}")
        return True

    def _loaded(self, serials: Sequence[int]) -> Iterator[Snapshot]:
        for serial in serials:
            with self._reading() as cursor:
                row = self._loading.run(cursor, serial=serial).fetchone()
            # Another process may have replaced it meanwhile; and what is no snapshot is passed over.
            if row is not None and _shape(row) == _SNAPSHOT_SHAPE:
                yield Snapshot(*row)

    @contextmanager
    def _reading(self) -> Iterator[DBAPICursor]:
        self._must_be_open()
        with named_faults(self._backend), closing(self._backend.engine.raw_connection()) as connection:
            yield connection.cursor()

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
    except (SQLAlchemyError, UnicodeDecodeError, backend.error) as error:
        raise backend.fault(error) from error


def _sealed(batches: Iterable[Sequence[Entry]], head: Head) -> Iterator[list[Row]]:
    for batch in batches:
        rows = seal(batch, head)
        head = head_after(rows, head)
        yield rows


def _must_be_a_head(position: object, digest: object) -> None:
    """Raise :class:`LogDamaged` for what is no head; SQLite keeps values of any type in any column."""
    if type(position) is not int or type(digest) is not str or position < 0:
        raise LogDamaged(1, "the head of the log is no position and digest")


def _contiguous(records: Sequence[Record], after: int) -> Iterator[Record]:
    """The records themselves; :class:`LogDamaged` at the first that is missing or is none."""
    if not records or (records[-1].position == after + len(records) and SHAPES.issuperset(map(_shape, records))):
        yield from records
        return
    for number, record in enumerate(records, after + 1):
        if record.position != number:
            raise LogDamaged(number, f"the record is missing; the next one is {record.position}")
        if _shape(record) not in SHAPES:
            raise LogDamaged(number, "a column does not hold the type of value that was written into it")
        yield record


def _shape(row: Sequence[object]) -> tuple[type, ...]:
    return tuple(map(type, row))
