"""Somebody edits the SQLite file behind our back: each attack is detected and named by position.

And without dropping the triggers first, the engine itself refuses.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.eventlog import open_log
from controlplane.eventlog.port import EMPTY, Head, LogDamaged, Snapshot, digest_of
from controlplane.eventlog.verify import ChainReport, Kind, verify_chain
from tests.contracts.test_event_log import entry, filled

TEN = 10


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        filled(log, TEN)
    return path


@contextmanager
def attacker(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection on which no trigger is left."""
    with closing(sqlite3.connect(path)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        yield connection
        connection.commit()


def verified(path: Path) -> ChainReport:
    with open_log(str(path), create=False) as log:
        return verify_chain(log)


def attack(path: Path, *statements: str) -> tuple[int, Kind]:
    """Where verification finds the damage, and which kind."""
    with attacker(path) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount != 0
    report = verified(path)
    assert report.damage is not None
    assert not report.ok
    assert report.head.position < report.damage.position
    return report.damage.position, report.damage.kind


# --- the engine refuses -----------------------------------------------------------------------------------------------

FORBIDDEN = [
    "UPDATE events SET actor = 'eve' WHERE position = 3",
    "UPDATE events SET position = 99 WHERE position = 3",
    "DELETE FROM events WHERE position = 10",
    "DELETE FROM events",
    "DELETE FROM head",
    "UPDATE head SET position = 9",
]
SQLITE_ONLY = [
    "REPLACE INTO events SELECT position, type, author, payload, 0, actor, '', NULL, previous, digest FROM events",
    "INSERT INTO events SELECT NULL, type, author, payload, 0, actor, '', NULL, previous, digest FROM events LIMIT 1",
    "INSERT INTO events SELECT 0, type, author, payload, 0, actor, '', NULL, previous, digest FROM events LIMIT 1",
]


@pytest.mark.parametrize("statement", FORBIDDEN + SQLITE_ONLY)
def test_sqlite_refuses_to_rewrite(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute(statement)
    assert verified(path).ok


@pytest.mark.services
@pytest.mark.parametrize("statement", [*FORBIDDEN, "TRUNCATE events", "TRUNCATE head"])
def test_postgresql_refuses_to_rewrite(postgres_url: str, statement: str) -> None:
    with open_log(postgres_url, create=True) as log:
        filled(log, TEN)
        with psycopg.connect(postgres_url) as connection, pytest.raises(psycopg.errors.RaiseException, match="refused"):
            connection.execute(statement.encode())
        assert verify_chain(log).ok


def flaws(url: str) -> list[str]:
    with open_log(url, create=False, read_only=True) as log:
        return list(log.flaws())


SQLITE_GUARDS = [
    "events_refuse_delete",
    "events_refuse_replace",
    "events_refuse_update",
    "head_refuse_delete",
    "head_refuse_return",
]


@pytest.mark.parametrize("guard", SQLITE_GUARDS)
def test_sqlite_says_which_guard_is_gone(path: Path, guard: str) -> None:
    assert flaws(str(path)) == []
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TRIGGER {guard}")
    assert flaws(str(path)) == [f"the trigger {guard} is missing"]
    assert verified(path).ok, "the chain is another matter"


def test_sqlite_says_that_a_guard_was_weakened_or_added(path: Path) -> None:
    """Kills: looking for names only."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER events_refuse_delete")
        connection.execute("CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events BEGIN SELECT 1; END")
        connection.execute("CREATE TRIGGER quiet AFTER INSERT ON head BEGIN SELECT 1; END")
    assert flaws(str(path)) == [
        "the trigger events_refuse_delete is not as it was made",
        "the trigger quiet is none of a log's",
    ]


def test_sqlite_says_that_the_snapshots_are_gone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TABLE snapshots")
    assert flaws(str(path)) == ["the table snapshots is missing"]
    assert verified(path).ok


@pytest.mark.services
@pytest.mark.parametrize(
    ("statement", "flaw"),
    [
        ("DROP TRIGGER events_refuse ON events", "the trigger events_refuse is missing"),
        ("ALTER TABLE head DISABLE TRIGGER head_refuse_return", "the trigger head_refuse_return is switched off"),
        (
            "CREATE OR REPLACE FUNCTION tidegate_refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
            "the trigger events_refuse is switched off",
        ),
        (
            "CREATE TRIGGER quiet BEFORE INSERT ON events EXECUTE FUNCTION tidegate_refuse()",
            "the trigger quiet is none of a log's",
        ),
        ("DROP TABLE snapshots", "the table snapshots is missing"),
    ],
)
def test_postgresql_says_what_is_gone(postgres_url: str, statement: str, flaw: str) -> None:
    with open_log(postgres_url, create=True) as log:
        filled(log, TEN)
    assert flaws(postgres_url) == []
    with psycopg.connect(postgres_url) as connection:
        connection.execute(statement.encode())
    assert flaw in flaws(postgres_url)


# --- and what it cannot refuse is found -------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(position=st.integers(1, TEN), bit=st.integers(0, 7), at=st.integers(0, 8))
def test_any_flipped_bit_of_any_payload_is_named(
    tmp_path_factory: pytest.TempPathFactory, position: int, bit: int, at: int
) -> None:
    """Kills: a digest that leaves out the payload, or its end."""
    path = tmp_path_factory.mktemp("flip") / "log.db"
    with open_log(str(path), create=True) as log:
        filled(log, TEN)
    with attacker(path) as connection:
        (payload,) = connection.execute("SELECT payload FROM events WHERE position = ?", (position,)).fetchone()
        changed = bytearray(payload)
        changed[at % len(changed)] ^= 1 << bit
        connection.execute("UPDATE events SET payload = ? WHERE position = ?", (bytes(changed), position))
    report = verified(path)
    assert report.damage is not None
    assert (report.damage.position, report.damage.kind) == (position, Kind.CHANGED)


@pytest.mark.parametrize(
    "change",
    [
        "type = 'job_submitted/2'",
        "author = 'decided'",
        "recorded_at_ms = recorded_at_ms + 1",
        "actor = 'eve'",
        "correlation = 'j99'",
        "causation = NULL",
        "causation = 1",
        "causation = 'three'",
        "digest = replace(digest, substr(digest, 1, 1), 'x')",
        "payload = CAST(payload AS TEXT)",
        "actor = 'ada' || char(31) || 'j3', correlation = '3'",
    ],
)
def test_an_edited_column_is_named(path: Path, change: str) -> None:
    """Kills: a column left out of the digest; a text and a number with the same digest."""
    assert attack(path, f"UPDATE events SET {change} WHERE position = 4")[0] == 4


def test_a_causation_written_as_text_is_named(path: Path) -> None:
    """Kills: digests that do not tell None from the text None."""
    assert attack(path, "UPDATE events SET causation = 'None' WHERE position = 1")[0] == 1


def test_a_border_moved_between_two_columns_is_named(tmp_path: Path) -> None:
    """Kills: trusting the digest alone; the bytes under it are the same before and after."""
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        log.append([entry(1, b"7\x1f{}")._replace(actor="a", correlation="b", causation=None)], EMPTY)
    moved = "UPDATE events SET correlation = 'b' || char(31) || 'None', causation = 7, payload = CAST('{}' AS BLOB)"
    assert attack(path, moved) == (1, Kind.CHANGED)


def test_text_that_is_no_text_is_named(path: Path) -> None:
    assert attack(path, "UPDATE events SET actor = CAST(x'ff' AS TEXT) WHERE position = 7") == (7, Kind.MISSING)
    with open_log(str(path), create=False) as log:
        assert [record.position for record in log.read(until=6)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("position", [1, 5, 10])
def test_a_dropped_row_is_named(path: Path, position: int) -> None:
    """Kills: reading in order without counting; an end that is nobody's word (position 10)."""
    assert attack(path, f"DELETE FROM events WHERE position = {position}") == (position, Kind.MISSING)
    with open_log(str(path), create=False) as log, pytest.raises(LogDamaged, match=f"position {position}:"):
        list(log.read())


def test_a_dropped_row_with_the_rest_moved_up_is_named(path: Path) -> None:
    position, kind = attack(
        path,
        "DELETE FROM events WHERE position = 5",
        "UPDATE events SET position = position - 1 WHERE position > 5",
        "UPDATE head SET position = 9",
    )
    assert (position, kind) == (5, Kind.MOVED)
    assert "appended at position 6" in str(verified(path).damage)


def test_swapped_rows_are_named_with_where_they_went(path: Path) -> None:
    swap = [
        "UPDATE events SET position = -1 WHERE position = 4",
        "UPDATE events SET position = 4 WHERE position = 8",
        "UPDATE events SET position = 8 WHERE position = -1",
    ]
    assert attack(path, *swap) == (4, Kind.MOVED)
    damage = verified(path).damage
    assert damage is not None
    assert "appended at position 8" in damage.what
    assert "belongs here stands at position 8" in damage.what


def test_an_inserted_row_is_named(path: Path) -> None:
    assert attack(
        path,
        "INSERT INTO events SELECT 11, type, author, payload, recorded_at_ms, actor, correlation, causation, previous, "
        "digest FROM events WHERE position = 10",
    ) == (11, Kind.MOVED)


def test_a_row_behind_a_gap_is_named(path: Path) -> None:
    insert = "INSERT INTO events SELECT 12, type, author, payload, 0, actor, '', NULL, previous, digest FROM events"
    assert attack(path, f"{insert} LIMIT 1") == (11, Kind.MISSING)


def test_a_record_replaced_with_a_digest_of_its_own_is_named_by_the_next(path: Path) -> None:
    """Kills: checking each record by itself only."""
    with attacker(path) as connection:
        row = connection.execute("SELECT * FROM events WHERE position = 5").fetchone()
        forged = digest_of(row[8], row[0], row[1], row[2], b"{}", row[4], row[5], row[6], row[7])
        connection.execute("UPDATE events SET payload = x'7b7d', digest = ? WHERE position = 5", (forged,))
    damage = verified(path).damage
    assert damage is not None
    assert (damage.position, damage.kind) == (6, Kind.MOVED)


def test_the_last_record_replaced_with_a_digest_of_its_own_is_named(path: Path) -> None:
    with attacker(path) as connection:
        row = connection.execute("SELECT * FROM events WHERE position = 10").fetchone()
        forged = digest_of(row[8], row[0], row[1], row[2], b"{}", row[4], row[5], row[6], row[7])
        connection.execute("UPDATE events SET payload = x'7b7d', digest = ? WHERE position = 10", (forged,))
    damage = verified(path).damage
    assert damage is not None
    assert damage.position == 10


def test_a_cut_off_tail_is_noticed_by_head_itself(path: Path) -> None:
    attack(path, "DELETE FROM events WHERE position > 7")
    with open_log(str(path), create=False) as log:
        with pytest.raises(LogDamaged, match="position 8"):
            log.head()
        with pytest.raises(LogDamaged, match="position 8"):
            list(log.read())
        assert len(list(log.read(until=7))) == 7


def test_a_snapshot_of_another_history_is_not_offered(path: Path) -> None:
    with open_log(str(path), create=False) as log:
        head: Head = log.head()
        log.save_snapshot(Snapshot(head.position, head.digest, "core", b"state"))
    with attacker(path) as connection:
        connection.execute("UPDATE events SET digest = ? WHERE position = 10", ("0" * 64,))
    with open_log(str(path), create=False) as log:
        assert list(log.snapshots("core")) == []
