"""PostgreSQL through psycopg: the log that several machines share.

The database must exist; its tables are made on first opening, under a lock, so that two control planes that start
together make them once. Batches go in by COPY, twice as fast as a batched INSERT.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import ConnectionPoolEntry

from controlplane.eventlog.chain import Row
from controlplane.eventlog.port import HeadMoved, LogError, LogUnavailable, LogUnusable
from controlplane.eventlog.schema import migrate, must_be_current, must_be_known, revision_of
from controlplane.eventlog.sql import Backend, named_faults

CONNECT_S = 5
MIGRATION_LOCK = 0x54494445
"""``TIDE``, as the key of the advisory lock around making tables."""

GUARDS = {"events_refuse": "events", "head_refuse_return": "head", "head_refuse_delete": "head"}
"""Trigger -> table, as the migrations make them."""
_TRIGGERS = text(
    """
    SELECT t.tgname, c.relname, t.tgenabled IN ('O', 'A') AND p.prosrc LIKE '%RAISE EXCEPTION%'
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace AND c.relname = ANY(:tables)
    ORDER BY t.tgname
    """
)
"""Name, table, and whether it still refuses (``pg_trigger.tgenabled``: origin or always)."""

_DURABLE = "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
"""An append that returned is on the disk, whatever the server's habit; a stricter one is left alone."""
_COPY = "COPY events FROM STDIN (FORMAT BINARY)"
_TYPES = ("int8", "text", "text", "bytea", "int8", "text", "text", "int8", "text", "text")


def open_postgresql(url: str, *, create: bool, read_only: bool) -> Backend:
    """Open a log in a PostgreSQL database, making its tables if there are none and ``create`` says so.

    Raises :class:`LogUnavailable` if the server cannot be reached, :class:`LogUnusable` for a database that does not
    exist, is not ours or belongs to another version.
    """
    backend = _backend(url, read_only=read_only)
    try:
        _check(backend, may_fill=create and not read_only)
    except BaseException:
        backend.engine.dispose()
        raise
    return backend


def upgrade_postgresql(url: str) -> None:
    """Bring the log in a database to the schema of this version."""
    backend = _backend(url, read_only=False)
    try:
        with named_faults(backend), backend.engine.begin() as connection:
            _lock(connection)
            must_be_known(revision_of(connection, backend.url), backend.url)
            migrate(connection)
    finally:
        backend.engine.dispose()


def _check(backend: Backend, *, may_fill: bool) -> None:
    with named_faults(backend), backend.engine.begin() as connection:
        revision = revision_of(connection, backend.url)
        if revision is None and may_fill:
            _lock(connection)
            if revision_of(connection, backend.url) is None:
                migrate(connection)
            return
        must_be_current(revision, backend.url)


def _guard_faults(connection: Connection) -> list[str]:
    rows = connection.execute(_TRIGGERS, {"tables": list(dict.fromkeys(GUARDS.values()))})
    there = {(str(name), str(on)): bool(refuses) for name, on, refuses in rows}
    return [
        *(f"the trigger {name} is missing" for name, on in GUARDS.items() if (name, on) not in there),
        *(f"the trigger {name} is switched off" for (name, _), refuses in there.items() if not refuses),
        *(f"the trigger {name} is none of a log's" for name, on in there if GUARDS.get(name) != on),
    ]


def _lock(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})


def _backend(url: str, *, read_only: bool) -> Backend:
    try:
        parsed = make_url(url).set(drivername="postgresql+psycopg")
    except (ArgumentError, ValueError):
        raise LogUnusable("the log's URL is not of the form postgresql://user@host:port/database") from None
    name = parsed.set(drivername="postgresql", password=None).render_as_string()
    engine = create_engine(
        parsed,
        connect_args={"connect_timeout": CONNECT_S, "application_name": "tidegate"},
        pool_pre_ping=True,  # a server that was started again costs nobody an error
        hide_parameters=True,
    )

    @event.listens_for(engine, "connect")
    def connected(connection: psycopg.Connection, _entry: ConnectionPoolEntry) -> None:
        connection.execute(_DURABLE)
        connection.commit()
        connection.read_only = read_only

    def fault(error: Exception) -> LogError:
        return _fault(name, error)

    return Backend(engine, name, None, _insert, psycopg.Error, fault, _guard_faults)


def _insert(cursor: DBAPICursor, rows: Sequence[Row]) -> None:
    assert isinstance(cursor, psycopg.Cursor)
    with cursor.copy(_COPY) as copy:
        copy.set_types(_TYPES)
        for row in rows:
            copy.write_row(row)


# --- errors -----------------------------------------------------------------------------------------------------------

_UNUSABLE = {
    "28": "the server refuses the user or the password",
    "3D": "there is no such database: create it first",
    "42": "the tables are not those of a log, or the user has no right to them",
    "25": "the database is read-only",
}
"""By SQLSTATE class (PostgreSQL manual, appendix A)."""


def _fault(name: str, error: Exception) -> LogError:
    state = getattr(error, "sqlstate", None) or ""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if state.startswith("23"):
        return HeadMoved(f"{name}: somebody else appended at the same position")
    if state.startswith("53"):
        return LogUnavailable(f"{name}: nothing was written: the server is out of room ({reason})")
    if state[:2] in _UNUSABLE:
        return LogUnusable(f"{name}: {_UNUSABLE[state[:2]]} ({reason})")
    if not state and "does not exist" in reason:
        return LogUnusable(f"{name}: {_UNUSABLE['3D']} ({reason})")
    if not state and "authentication failed" in reason:
        return LogUnusable(f"{name}: {_UNUSABLE['28']}")
    return LogUnavailable(f"{name} is not available: {reason}")
