"""SQLite: the embedded log in one file.

A new log is made under another name and linked into place when it is complete, so that nobody ever sees half of one,
on a full disk or after a crash. Write-ahead log with full synchronisation: an append that returned is on the disk.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, Engine, QueuePool, create_engine, event
from sqlalchemy.engine.interfaces import DBAPICursor

from controlplane.eventlog.chain import Row
from controlplane.eventlog.drafts import draft_of
from controlplane.eventlog.paths import must_be_a_file, path_fault
from controlplane.eventlog.port import HeadMoved, LogDamaged, LogError, LogUnavailable, LogUnusable
from controlplane.eventlog.schema import migrate, must_be_current, must_be_known, revision_of
from controlplane.eventlog.sql import Backend, named_faults

MAGIC = b"SQLite format 3\x00"
APPLICATION_ID = 0x54494445
"""``TIDE``: lets file(1) and people tell a log from any other SQLite file."""
PAGE_BYTES = 8_192
"""Measured on records of 430 bytes: a tenth faster to write and to read than 4,096, and a seventh smaller."""
CHECKPOINT_PAGES = 4_000
"""32 MB of write-ahead log between checkpoints; the default of 1,000 small pages costs a tenth of bulk appends."""
BUSY_S = 10.0
"""How long to wait for another writer: longer than any batch that we write takes."""

BEGIN = "BEGIN IMMEDIATE"
"""Takes the write lock at once: a transaction that read first could be refused it later."""
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def open_sqlite(path: Path, *, create: bool, read_only: bool) -> Backend:
    """Open a log file, making it first if it is absent and ``create`` says so.

    Raises :class:`LogUnusable` for what is not a log, or not one of this version; :class:`LogUnavailable` if the disk
    is full or another process holds the file.
    """
    if create and not read_only and not path.exists():
        _make(path)
    is_empty = _inspect(path)
    if is_empty and (read_only or not create):
        raise LogUnusable(f"{path} is empty, not a Tidegate log")
    backend = _backend(path, _uri(path, "ro" if read_only else "rw"))
    try:
        _check(backend, path, may_fill=create and not read_only)
    except LogUnusable:
        backend.engine.dispose()
        if not (read_only and _is_at_rest(path)):
            raise
        # A folder that we may not write to: nobody else writes there either, so read without locks.
        backend = _backend(path, _uri(path, "ro") + "&immutable=1")
        _check(backend, path, may_fill=False)
    except BaseException:
        backend.engine.dispose()
        raise
    return backend


def upgrade_sqlite(path: Path) -> None:
    """Bring an existing log file to the schema of this version."""
    _inspect(path)
    backend = _backend(path, _uri(path, "rw"))
    try:
        with named_faults(backend), backend.engine.connect() as connection:
            connection.execution_options(begin=BEGIN)
            with connection.begin():
                must_be_known(revision_of(connection, str(path)), str(path))
                migrate(connection)
    finally:
        backend.engine.dispose()


# --- making and checking ----------------------------------------------------------------------------------------------


def _make(path: Path) -> None:
    if not path.parent.is_dir():
        raise LogUnusable(f"{path}: the folder {path.parent} does not exist; make it first")
    for left_over in (Path(f"{path}-wal"), Path(f"{path}-journal")):
        if left_over.exists():
            # SQLite would play it into the new file.
            raise LogUnusable(f"{left_over} is left over from a log that is gone: move it away first")
    try:
        with draft_of(path) as draft:
            _fill(draft, path)
            _settle(draft, path)
    except OSError as error:
        raise path_fault(path, error) from error


def _fill(draft: Path, path: Path) -> None:
    backend = _backend(path, _uri(draft, "rwc"))
    try:
        with named_faults(backend), backend.engine.connect() as connection:
            connection.execution_options(begin=BEGIN)
            with connection.begin():
                migrate(connection)
    finally:
        backend.engine.dispose()


def _settle(draft: Path, path: Path) -> None:
    """Give the finished draft its name, unless another process was faster: then its log is as good."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _inspect(path: Path) -> bool:
    """Whether the file is empty; :class:`LogUnusable` if it is none of SQLite's."""
    try:
        must_be_a_file(path)
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except FileNotFoundError:
        raise LogUnusable(f"{path}: there is no such log") from None
    except OSError as error:
        raise path_fault(path, error, "cannot be opened") from error
    if start and start != MAGIC:
        raise LogUnusable(f"{path} is not a SQLite database, so it is no log")
    return not start


def _check(backend: Backend, path: Path, *, may_fill: bool) -> None:
    with named_faults(backend), backend.engine.connect() as connection:
        if may_fill:
            connection.execution_options(begin=BEGIN)
        with connection.begin():
            revision = revision_of(connection, str(path))
            if revision is None and may_fill:
                migrate(connection)
                return
            must_be_current(revision, str(path))


def _is_at_rest(path: Path) -> bool:
    """No records wait in a write-ahead log: the file alone is the whole log."""
    waiting = Path(f"{path}-wal")
    return not waiting.exists() or waiting.stat().st_size == 0


def _guard_faults(connection: Connection) -> list[str]:
    """Compares the triggers with those of a log that is made for it, in memory."""
    with create_engine("sqlite://").begin() as pristine:
        migrate(pristine)
        wanted = _triggers(pristine)
    there = _triggers(connection)
    return [
        *(f"the trigger {name} is missing" for name in wanted if name not in there),
        *(
            f"the trigger {name} is not as it was made"
            for name in wanted
            if there.get(name, wanted[name]) != wanted[name]
        ),
        *(f"the trigger {name} is none of a log's" for name in there if name not in wanted),
    ]


def _triggers(connection: Connection) -> dict[str, str]:
    rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'trigger' ORDER BY name")
    return {str(name): " ".join(str(sql).split()) for name, sql in rows}


# --- connecting -------------------------------------------------------------------------------------------------------


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"


def _backend(path: Path, uri: str) -> Backend:
    def fault(error: Exception) -> LogError:
        return _fault(path, error)

    engine = _engine(uri, is_new=uri.endswith("=rwc"))
    return Backend(engine, f"sqlite:///{path}", BEGIN, _insert, sqlite3.Error, fault, _guard_faults)


def _engine(uri: str, *, is_new: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        if is_new:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        if "mode=ro" not in uri:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute("PRAGMA trusted_schema = OFF")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    # The driver would begin transactions by itself, too late and not around DDL; so it is told not to, and we begin.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))

    return engine


def _insert(cursor: DBAPICursor, rows: Sequence[Row]) -> None:
    cursor.executemany(_INSERT, rows)


# --- errors -----------------------------------------------------------------------------------------------------------

_UNUSABLE = {
    "SQLITE_NOTADB": "is not a SQLite database, so it is no log",
    "SQLITE_CORRUPT": "is damaged below the level of records: restore it from a copy or an export",
    "SQLITE_READONLY": "cannot be written: the file, its folder or the disk is read-only",
    "SQLITE_CANTOPEN": "cannot be opened: look at the rights of the file and its folder (it must be writable too)",
    "SQLITE_PERM": "cannot be opened: access is denied",
    "SQLITE_AUTH": "cannot be opened: access is denied",
}
_UNAVAILABLE = {
    "SQLITE_FULL": "nothing was written: the disk is full",
    "SQLITE_IOERR": "nothing was written: the disk fails or a limit on file size is reached",
    "SQLITE_BUSY": f"is held by another process for more than {BUSY_S:g} s: try again",
    "SQLITE_LOCKED": f"is held by another process for more than {BUSY_S:g} s: try again",
    "SQLITE_NOMEM": "is not available: out of memory",
}


def _fault(path: Path, error: Exception) -> LogError:
    name: str = getattr(error, "sqlite_errorname", "")
    primary = "_".join(name.split("_")[:2])
    if primary == "SQLITE_CONSTRAINT":
        return HeadMoved(f"{path}: somebody else appended at the same position ({error})")
    if primary in _UNUSABLE:
        return LogUnusable(f"{path} {_UNUSABLE[primary]}")
    if primary in _UNAVAILABLE:
        return LogUnavailable(f"{path} {_UNAVAILABLE[primary]}")
    if isinstance(error, UnicodeDecodeError):  # of the schema, or of the words with which it is refused
        return LogUnusable(f"{path} {_UNUSABLE['SQLITE_CORRUPT']}")
    if re.match("no such (table|column)", str(error)):
        return LogUnusable(f"{path} lacks a part of a log ({error}): restore it from a copy or an export")
    if "decode" in str(error):
        return LogDamaged(0, "a column is not valid text")
    return LogUnusable(f"{path} cannot be used as a log: {error}")
