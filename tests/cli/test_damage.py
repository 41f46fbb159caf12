"""A log that was tampered with: every command that could notice says no, and names the position."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import cast

import orjson
import pytest

from controlplane.cli import past
from controlplane.eventlog import open_log
from controlplane.eventlog.port import EMPTY, Entry
from controlplane.runtime.plane import sealed
from tests.cli.conftest import Tidegate
from tests.cli.worlds import part

HIT = 60
"""The position that is hit: in the midst of the small world."""


def tamper(log: Path, *statements: str) -> None:
    """Change rows as somebody with the file can, who first drops the triggers that refuse it."""
    with closing(sqlite3.connect(log)) as database:
        triggers = database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            database.execute(statement)
        database.commit()


FLIPPED = "CAST(replace(CAST(payload AS TEXT), '1', '2') AS BLOB)"
NEXT_WITH_A_ONE = f"(SELECT min(position) FROM events WHERE position >= {HIT} AND CAST(payload AS TEXT) LIKE '%1%')"
ATTACKS = {
    "one byte of a payload": [f"UPDATE events SET payload = {FLIPPED} WHERE position = {NEXT_WITH_A_ONE}"],
    "a row": [f"DELETE FROM events WHERE position = {HIT}"],
    "two rows": [
        f"UPDATE events SET position = -1 WHERE position = {HIT}",
        f"UPDATE events SET position = {HIT} WHERE position = {HIT + 1}",
        f"UPDATE events SET position = {HIT + 1} WHERE position = -1",
    ],
}


@pytest.mark.parametrize("command", ["log verify", "replay --verify"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_tampering_is_named_by_position(tidegate: Tidegate, day: Path, attack: str, command: str) -> None:
    tamper(day, *ATTACKS[attack])
    said = tidegate(*command.split(), "--log", day, "--json")
    answer = said.answer()
    assert (said.code, answer["ok"]) == (1, False)
    found = part(answer, "damage" if command == "log verify" else "divergence")
    assert HIT <= int(str(found["position"])) <= HIT + 5
    spoken = tidegate(*command.split(), "--log", day)
    assert (spoken.code, spoken.err) == (1, "")
    assert f"position {found['position']}" in spoken.out


@pytest.mark.parametrize("attack", ATTACKS)
def test_both_verifications_name_the_same_sound_part(tidegate: Tidegate, day: Path, attack: str) -> None:
    tamper(day, *ATTACKS[attack])
    chain, replayed = (
        tidegate(*command.split(), "--log", day, "--json").answer() for command in ("log verify", "replay --verify")
    )
    assert attack == "a row" or chain["position"] != 0  # a gap may be seen before what stands in front of it is read
    assert (replayed["position"], replayed["digest"]) == (chain["position"], chain["digest"])


def rewritten(day: Path, to: Path, edit: Callable[[bytes], bytes], type_name: str) -> int:
    """A log with a whole chain in which one decision is another; gives its position."""
    with open_log(str(day), create=False, read_only=True) as log:
        records = list(log.read())
    at = next(record.position for record in records if record.type == type_name)
    entries = [
        Entry(*record[1:8])._replace(payload=edit(record.payload) if record.position == at else record.payload)
        for record in records
    ]
    with open_log(str(to), create=True) as log:
        log.append(entries, EMPTY)
    return at


def test_an_edited_decision_under_a_sound_chain_is_named(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path
) -> None:
    log = tmp_path / "edited.db"
    at = rewritten(finished_day, log, lambda payload: payload.replace(b'"gpus":[0', b'"gpus":[1'), "lease_granted/1")
    assert tidegate("log", "verify", "--log", log).code == 0
    said = tidegate("replay", "--verify", "--log", log, "--json")
    assert said.code == 1
    assert part(said.answer(), "divergence")["position"] == at


def test_a_payload_that_is_written_otherwise_is_named_by_both(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path
) -> None:
    log = tmp_path / "edited.db"
    at = rewritten(finished_day, log, lambda payload: payload.replace(b":", b": "), "job_submitted/1")
    said = tidegate("log", "verify", "--log", log)
    assert (said.code, said.err) == (1, "")
    assert f"no writer made what stands at position {at} (foreign): job_submitted/1: the payload is not" in said.out
    damage = part(tidegate("log", "verify", "--log", log, "--json").answer(), "damage")
    assert (damage["position"], damage["kind"]) == (at, "foreign")
    assert part(tidegate("replay", "--verify", "--log", log, "--json").answer(), "divergence")["position"] == at


def test_a_record_that_cannot_follow_is_one_sentence_everywhere(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path
) -> None:
    log = tmp_path / "edited.db"
    at = rewritten(finished_day, log, lambda payload: payload.replace(b'"j', b'"j9'), "lease_granted/1")
    assert f"position {at}" in tidegate("queues", "--log", log).sentence(1)
    assert tidegate("replay", "--log", log).code == 1


def test_a_payload_that_is_no_event_is_one_sentence_everywhere(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path
) -> None:
    log = tmp_path / "edited.db"
    at = rewritten(finished_day, log, lambda _: b'{"spec":7}', "job_submitted/1")
    assert f"position {at}" in tidegate("top", "--log", log).sentence(1)
    assert tidegate("replay", "--log", log).code == 1
    assert tidegate("why", f"j{at}", "--log", log).sentence(1)


# --- what stands beside the records -----------------------------------------------------------------------------------


def forged_snapshot(day: Path) -> int:
    """Puts a state into the log's newest snapshot that never was, sealed anew; gives its position."""
    with closing(sqlite3.connect(day)) as database:
        position, body = database.execute("SELECT position, body FROM snapshots ORDER BY serial DESC").fetchone()
        plain = orjson.loads(body[32:])
        plain["counts"]["finished"] = 9_999
        database.execute("UPDATE snapshots SET body = ?", (sealed(orjson.dumps(plain)),))
        database.commit()
    return int(position)


def test_a_forged_snapshot_is_named_and_not_shown(tidegate: Tidegate, finished_day: Path, day: Path) -> None:
    position = forged_snapshot(day)
    assert tidegate("replay", "--verify", "--log", finished_day).code == 0
    said = tidegate("replay", "--verify", "--log", day, "--json")
    assert (said.code, part(said.answer(), "divergence")["position"]) == (1, position)
    for view in ("jobs", "queues", "clusters", "top"):
        assert (
            tidegate(view, "--log", day, "--json").answer() == tidegate(view, "--log", finished_day, "--json").answer()
        )


def test_a_view_of_a_long_log_says_from_which_snapshot_it_is(
    tidegate: Tidegate, day: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long log a forged snapshot is believed until it is verified; so it is named."""
    monkeypatch.setattr(past, "FOLDED_WHOLE", HIT)
    assert tidegate("jobs", "--at", str(HIT), "--log", day, "--json").answer()["snapshot"] is None
    position = forged_snapshot(day)
    answer = tidegate("jobs", "--log", day, "--json").answer()
    assert (answer["snapshot"], part(answer, "jobs")["finished"]) == (position, 9_999)
    assert f"Position {position} (from the snapshot at {position}), " in tidegate("jobs", "--log", day).out


def test_a_log_without_its_guards_is_told_of(tidegate: Tidegate, finished_day: Path, day: Path, tmp_path: Path) -> None:
    assert tidegate("log", "verify", "--log", finished_day, "--json").answer()["flaws"] == []
    tamper(day, "DROP TABLE snapshots")
    said = tidegate("log", "verify", "--log", day)
    assert (said.code, said.err) == (1, "")
    assert said.out.startswith("The chain holds: ")
    assert "the trigger events_refuse_update is missing" in said.out
    answer = tidegate("log", "verify", "--log", day, "--json").answer()
    assert (answer["ok"], answer["damage"]) == (False, None)
    assert "the table snapshots is missing" in cast("list[str]", answer["flaws"])
    # The way out that it names works.
    tidegate("log", "export", tmp_path / "a.jsonl", "--log", day)
    tidegate("log", "import", tmp_path / "a.jsonl", "--log", tmp_path / "b.db")
    assert tidegate("log", "verify", "--log", tmp_path / "b.db").code == 0


def test_a_missing_row_is_one_sentence_for_every_reader(tidegate: Tidegate, day: Path, tmp_path: Path) -> None:
    tamper(day, f"DELETE FROM events WHERE position = {HIT}", "DELETE FROM snapshots")
    for command in (["queues"], ["why", "j10"], ["log", "tail", "-n", "9999"], ["log", "export", tmp_path / "a.jsonl"]):
        assert f"position {HIT}" in tidegate(*command, "--log", day).sentence(1)
    assert not (tmp_path / "a.jsonl").exists()


def test_a_damaged_file_is_not_imported(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    tidegate("log", "export", file, "--log", finished_day)
    lines = file.read_bytes().split(b"\n")
    lines[HIT] = lines[HIT].replace(b"1", b"2", 1)
    file.write_bytes(b"\n".join(lines))
    tidegate("log", "import", file, "--log", tmp_path / "b.db").sentence(1)
    assert not (tmp_path / "b.db").exists()
