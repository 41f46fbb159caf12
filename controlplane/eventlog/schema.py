"""What the log's tables are called, which revision this version reads, and how a database gets there.

The tables are made by the Alembic scripts in ``migrations/`` and nowhere else; here stand only the names that
statements need, and the verdict on a database that is not ours, too old or too new.
"""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import Connection, column, inspect, select, table

from controlplane.eventlog.port import LogUnusable

REVISION = "0001"
"""The revision that this version reads and writes; a test holds it equal to the newest script."""

VERSION_TABLE = "tidegate_schema"
"""Alembic's own table under our name: by it a Tidegate log is told from any other database."""

EVENTS = table(
    "events",
    column("position"),
    column("type"),
    column("author"),
    column("payload"),
    column("recorded_at_ms"),
    column("actor"),
    column("correlation"),
    column("causation"),
    column("previous"),
    column("digest"),
)
"""In the order of :class:`controlplane.eventlog.port.Record`."""

HEAD = table("head", column("one"), column("position"), column("digest"))
"""One row: where the log ends. Appending compares and sets it, and a cut-off tail shows by it."""

SNAPSHOTS = table("snapshots", column("serial"), column("position"), column("digest"), column("core"), column("body"))
VERSION = table(VERSION_TABLE, column("version_num"))


def scripts() -> Path:
    """The folder of the Alembic scripts: inside an installed package, else at the top of the checkout."""
    package = Path(__file__).resolve().parent
    for folder in (package / "migrations", package.parents[1] / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise LogUnusable("this installation lacks its migrations folder: install Tidegate again")


def revision_of(connection: Connection, name: str) -> str | None:
    """The revision of the database, ``None`` if it holds no tables at all.

    Raises :class:`LogUnusable` for a database of somebody else.
    """
    tables = sorted(inspect(connection).get_table_names())
    if VERSION_TABLE in tables:
        return str(connection.execute(select(VERSION.c.version_num)).scalar())
    if tables:
        shown = ", ".join(tables[:3]) + (", ..." if len(tables) > 3 else "")
        raise LogUnusable(
            f"{name} is not a Tidegate log: it holds other tables ({shown}); give the log a place of its own"
        )
    return None


def missing_tables(connection: Connection) -> list[str]:
    """The tables of a log that the database lacks."""
    there = set(inspect(connection).get_table_names())
    return [made.name for made in (EVENTS, HEAD, SNAPSHOTS) if made.name not in there]


def must_be_current(revision: str | None, name: str) -> None:
    """Raise :class:`LogUnusable` unless this version can read a log of that revision."""
    must_be_known(revision, name)
    if revision != REVISION:
        raise LogUnusable(f"{name} is from an older Tidegate (revision {revision}): run `tidegate db upgrade` on it")


def must_be_known(revision: str | None, name: str) -> None:
    """Raise :class:`LogUnusable` unless this version can bring a log of that revision to its own."""
    if revision is None:
        raise LogUnusable(f"{name} is empty, not a Tidegate log")
    if revision != REVISION and not (re.fullmatch(r"[0-9]{4}", revision) and revision < REVISION):
        shown = revision if revision.isprintable() else repr(revision)
        raise LogUnusable(
            f"{name} is from a newer Tidegate (revision {shown}, this version knows {REVISION}): install that version"
        )


def migrate(connection: Connection) -> None:
    """Bring a database from any older revision, or from nothing, to :data:`REVISION`, in the caller's transaction.

    Raises :class:`LogUnusable` for a revision that there has never been.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.util.exc import CommandError

    configuration = Config()
    configuration.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    configuration.set_main_option("path_separator", "os")
    configuration.attributes["connection"] = connection
    try:
        command.upgrade(configuration, REVISION)
    except CommandError as error:
        raise LogUnusable(f"the database cannot be brought to the schema of this version: {error}") from error
