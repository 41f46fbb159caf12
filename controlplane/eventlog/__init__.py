"""The event log: SQL lives here and nowhere else.

:func:`open_log` opens whatever a URL names; what it gives back is an :class:`~controlplane.eventlog.port.EventLog`.
"""

from __future__ import annotations

import re
from pathlib import Path

from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import EventLog, LogUnusable

__all__ = ["file_of", "is_exported", "open_log", "upgrade_log"]

FORMS = "sqlite:///FILE, FILE.db, FILE.sqlite, postgresql://..., memory:, or an exported FILE.jsonl or FILE.jsonl.gz"
_DATABASE_FILES = (".db", ".sqlite", ".sqlite3")
_EXPORTED_FILES = (".jsonl", ".jsonl.gz")


def open_log(url: str, *, create: bool, read_only: bool = False) -> EventLog:
    """Open the log that ``url`` names: a database, an exported file (always read-only), or a new one in memory.

    With ``create`` an absent SQLite file is made, and an empty database gets its tables; otherwise the log must be
    there. The password of a URL is never repeated in a message.

    Raises :class:`LogUnusable` (not a log, not of this version, not allowed) or :class:`LogUnavailable` (out of reach,
    out of room); in both cases nothing was left behind.
    """
    # Each kind is imported where it is needed: SQLAlchemy takes longer to import than a small log to read.
    if url == "memory:":
        return MemoryLog()
    if url.endswith(_EXPORTED_FILES):
        from controlplane.eventlog.file import FileLog

        return FileLog(Path(url))
    if _is_postgresql(url):
        from controlplane.eventlog.postgresql import open_postgresql
        from controlplane.eventlog.sql import SqlLog

        return SqlLog(open_postgresql(url, create=create, read_only=read_only), read_only=read_only)
    from controlplane.eventlog.sql import SqlLog
    from controlplane.eventlog.sqlite import open_sqlite

    return SqlLog(open_sqlite(_sqlite_path(url), create=create, read_only=read_only), read_only=read_only)


def upgrade_log(url: str) -> None:
    """Bring the schema of an older log to this version's; events are not touched. Raises like :func:`open_log`."""
    if url == "memory:" or url.endswith(_EXPORTED_FILES):
        raise LogUnusable(f"{url} has no schema to upgrade; only databases have")
    if _is_postgresql(url):
        from controlplane.eventlog.postgresql import upgrade_postgresql

        upgrade_postgresql(url)
        return
    from controlplane.eventlog.sqlite import upgrade_sqlite

    upgrade_sqlite(_sqlite_path(url))


def file_of(url: str) -> Path | None:
    """The file that a URL names; ``None`` for a log in memory or on a server.

    Raises :class:`LogUnusable` for what names no log.
    """
    if url == "memory:" or _is_postgresql(url):
        return None
    return Path(url) if is_exported(url) else _sqlite_path(url)


def is_exported(url: str) -> bool:
    """Whether a URL names an exported file, which is never appended to."""
    return url.endswith(_EXPORTED_FILES)


def _is_postgresql(url: str) -> bool:
    return re.match(r"postgres(ql)?(\+psycopg)?://", url) is not None


def _sqlite_path(url: str) -> Path:
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return Path(url.removeprefix("sqlite:///"))
    if "://" not in url and url.endswith(_DATABASE_FILES):
        return Path(url)
    shown = re.sub(r"//[^/@]*@", "//...@", url)
    raise LogUnusable(f"{shown!r} names no log; use {FORMS}")
