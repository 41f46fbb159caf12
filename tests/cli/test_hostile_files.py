"""Files that anybody may have written: every command ends with an answer or one sentence, whatever stands in them."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.domain.model import canonical_bytes
from controlplane.eventlog import open_log
from controlplane.eventlog.port import EMPTY, Entry, Record
from tests.cli.conftest import Tidegate
from tests.cli.test_bad_input import openb_world
from tests.cli.worlds import POLICIES, small_world, write_world

COMMANDS = [
    ["replay"],
    ["replay", "--verify"],
    ["why", "j10"],
    ["why", "train-2", "--at", "00:05:30"],
    ["log", "verify"],
    ["log", "tail", "-n", "9999"],
    ["log", "tail", "--json"],
    ["jobs"],
    ["jobs", "--at", "60", "--json"],
    ["queues"],
    ["clusters"],
    ["top"],
    ["policy", "history"],
    ["policy", "shadow", "--report"],
    ["db", "upgrade"],
]
DIFF = ["policy", "diff", "--against", str(POLICIES / "examples" / "strict-fifo")]


def ends_well(tidegate: Tidegate, *words: str | Path) -> int:
    """The exit code of a command, of which nothing is a traceback."""
    said = tidegate(*words)
    assert said.code in (0, 1, 2, 3), said
    assert "Traceback" not in said.out + said.err
    assert said.err.count("\n") <= 1, said
    assert bool(said.out) or bool(said.err), words
    return said.code


def all_end_well(tidegate: Tidegate, log: Path) -> list[int]:
    """What every command that reads comes to, and copying the log there and back."""
    codes = [ends_well(tidegate, *command, "--log", log) for command in COMMANDS if command[0] != "db" or is_db(log)]
    codes.append(ends_well(tidegate, "log", "export", log.with_name("copy.jsonl"), "--log", log))
    if not is_db(log):
        codes.append(ends_well(tidegate, "log", "import", log, "--log", log.with_name("copy.db")))
    return codes


def is_db(log: Path) -> bool:
    return log.suffix == ".db"


# --- databases whose tables hold anything -----------------------------------------------------------------------------

STATEMENTS = [
    "UPDATE head SET position = 'abc'",
    "UPDATE head SET position = ''",
    "UPDATE head SET position = x'ff'",
    "UPDATE head SET position = 1.5",
    "UPDATE head SET position = -7",
    "UPDATE head SET position = 9223372036854775807",
    "UPDATE head SET digest = 7",
    "UPDATE head SET digest = CAST(x'ff' AS TEXT)",
    "DELETE FROM head",
    "DROP TABLE head",
    "DROP TABLE events",
    "DROP TABLE snapshots",
    "DROP TABLE tidegate_schema",
    "DELETE FROM tidegate_schema",
    "UPDATE tidegate_schema SET version_num = x'00ff'",
    "UPDATE tidegate_schema SET version_num = '0000'",
    "UPDATE tidegate_schema SET version_num = -1",
    "ALTER TABLE events RENAME COLUMN payload TO content",
    "ALTER TABLE snapshots RENAME COLUMN body TO content",
    "UPDATE snapshots SET body = 'text'",
    "UPDATE snapshots SET body = 7, position = 'x'",
    "UPDATE snapshots SET digest = x'00'",
    "UPDATE events SET recorded_at_ms = 'soon' WHERE position = 30",
    "UPDATE events SET correlation = x'00' WHERE position = 30",
    "UPDATE events SET actor = 7.5 WHERE position = 30",
    "UPDATE events SET type = CAST(x'ff' AS TEXT) WHERE position = 30",
    "UPDATE events SET type = 'ticked/1' WHERE position = 1",
    "UPDATE events SET payload = 'text' WHERE position = 30",
    "UPDATE events SET payload = x'' WHERE position = 30",
    "UPDATE events SET causation = 'x' WHERE causation IS NOT NULL",
    "UPDATE events SET position = -1 WHERE position = 1",
    "UPDATE events SET recorded_at_ms = 9223372036854775807",
    "UPDATE events SET recorded_at_ms = -9223372036854775808",
]


@pytest.mark.slow
@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_value_in_any_column_ends_in_a_traceback(tidegate: Tidegate, day: Path, statement: str) -> None:
    with closing(sqlite3.connect(day)) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
        database.commit()
    all_end_well(tidegate, day)
    assert ends_well(tidegate, "log", "verify", "--log", day) != 0


def test_a_head_that_is_no_number_is_damage(tidegate: Tidegate, day: Path) -> None:
    with closing(sqlite3.connect(day)) as database:
        database.execute("DROP TRIGGER head_refuse_return")
        database.execute("UPDATE head SET position = 'abc'")
        database.commit()
    assert "the head of the log is no position and digest" in tidegate("jobs", "--log", day).sentence(1)
    assert tidegate("log", "verify", "--log", day).code == 1


# --- files in which bytes have changed --------------------------------------------------------------------------------


def changed(content: bytes, chance: random.Random) -> bytes:
    """A few bytes are others; or the end is missing, or something stands in between."""
    found = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 8, 40])):
        at = chance.randrange(len(found) if chance.random() < 0.7 else min(len(found), 16_384))
        found[at] = chance.choice([found[at] ^ 1 << chance.randrange(8), 0, 255, chance.randrange(256)])
    at = chance.randrange(len(found))
    if chance.random() < 0.1:
        del found[at:]
    elif chance.random() < 0.1:
        found[at:at] = chance.randbytes(chance.randrange(50))
    return bytes(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["day.db", "day.jsonl", "day.jsonl.gz"])
@pytest.mark.parametrize("seed", range(4))
def test_changed_bytes_end_in_a_sentence(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, name: str, seed: int
) -> None:
    """Kills: errors of SQLite, of its driver, of gzip and of JSON that nobody expected."""
    whole = finished_day
    if name != "day.db":
        whole = tmp_path / f"whole-{name}"
        tidegate("log", "export", whole, "--log", finished_day)
    (tmp_path / "work").mkdir()
    log = tmp_path / "work" / name
    log.write_bytes(changed(whole.read_bytes(), random.Random(f"{name} {seed}")))
    all_end_well(tidegate, log)


@pytest.mark.parametrize(
    "line",
    [
        b'{"tidegate_log":1,"position":18446744073709551615,"digest":"x"}',
        b'{"tidegate_log":1,"position":9223372036854775807,"digest":"x"}',
        b'{"tidegate_log":true,"position":1,"digest":"x"}',
        b'{"tidegate_log":1,"position":-1,"digest":"x"}',
        b'{"tidegate_log":1e400,"position":1,"digest":"x"}',
        b"[" * 4_000,
        b"\xff\xfe",
        b"",
    ],
)
def test_no_header_ends_in_a_traceback(tidegate: Tidegate, tmp_path: Path, line: bytes) -> None:
    log = tmp_path / "a.jsonl"
    log.write_bytes(line + b"\n")
    assert 0 not in all_end_well(tidegate, log)


@pytest.mark.parametrize("member", ["type", "author", "recorded_at_ms", "actor", "correlation", "causation", "digest"])
@pytest.mark.parametrize("value", [[], {}, 1.5, "text", True, None, 7])
def test_no_member_of_a_line_ends_in_a_traceback(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, member: str, value: object
) -> None:
    log = tmp_path / "a.jsonl"
    tidegate("log", "export", log, "--log", finished_day)
    lines = log.read_bytes().split(b"\n")
    columns, _, payload = lines[30].partition(b',"payload":')
    forged = json.dumps({**json.loads(columns + b"}"), member: value}, separators=(",", ":")).encode()
    lines[30] = forged[:-1] + b',"payload":' + payload
    log.write_bytes(b"\n".join(lines))
    for command in (["log", "tail", "-n", "9999"], ["why", "j10"], ["replay"], ["log", "verify"]):
        ends_well(tidegate, *command, "--log", log)


# --- records under a chain that was made for them ---------------------------------------------------------------------

NUMBERS = [0, -1, 1, 7, 10**12, 2**31, 2**52, 2**53 - 1, 2**53, 2**63 - 1]
TEXTS = ["", "x", "cloud", "idc", "j1", "j10.1", "research", "company", "A100", "\0", "lost", "finished", "resized"]


def mutated(value: object, chance: random.Random) -> object:
    """The value with one thing in it that is another, gone, or there twice."""
    if isinstance(value, dict) and value:
        key = chance.choice(sorted(value))
        rest = {name: item for name, item in value.items() if name != key}
        return rest if chance.random() < 0.1 else {**rest, key: mutated(value[key], chance)}
    if isinstance(value, list) and value:
        at = chance.randrange(len(value))
        return chance.choice([value + value, value[:at], [*value[:at], mutated(value[at], chance), *value[at + 1 :]]])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice([*NUMBERS, value + 1, value - 1, 2 * value])
    return chance.choice([*TEXTS, f"{value}x", None, [], {}])


def forged(records: list[Record], chance: random.Random) -> list[Entry]:
    """Entries that a log once had, some of them changed, gone, or elsewhere."""
    entries = [Entry(*record[1:8]) for record in records]
    for _ in range(chance.choice([1, 1, 2, 4])):
        at, to = chance.randrange(len(entries)), chance.randrange(len(entries))
        match chance.randrange(10):
            case 0:
                entries.insert(to, entries[at])
            case 1:
                del entries[at]
            case 2:
                entries[at] = entries[at]._replace(type=entries[to].type)
            case 3:
                entries[at] = entries[at]._replace(recorded_at_ms=chance.choice(NUMBERS))
            case _:
                payload = mutated(json.loads(entries[at].payload), chance)
                text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
                entries[at] = entries[at]._replace(payload=text.encode())
    return entries


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_forged_records_end_in_a_sentence(tidegate: Tidegate, finished_day: Path, tmp_path: Path, seed: int) -> None:
    """Kills: a fold or a cycle that meets what cannot be, and shows how it is written."""
    with open_log(str(finished_day), create=False, read_only=True) as log:
        entries = forged(list(log.read()), random.Random(seed))
    with open_log(str(tmp_path / "a.db"), create=True) as log:
        log.append(entries, EMPTY)
    all_end_well(tidegate, tmp_path / "a.db")
    ends_well(tidegate, *DIFF, "--log", tmp_path / "a.db")


def test_what_a_difference_meets_in_a_log_that_does_not_verify_is_the_logs_doing(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in one that does, a bug."""
    with open_log(str(finished_day), create=False, read_only=True) as log:
        records = list(log.read())
    later = next(record for record in reversed(records) if record.type == "job_submitted/1")
    gone = next(record for record in records if record.type == "job_ended/1" and record.position < later.position)
    ended = canonical_bytes({**json.loads(gone.payload), "job": later.position})
    entries = [
        Entry(*record[1:8])._replace(payload=ended) if record is gone else Entry(*record[1:8]) for record in records
    ]
    with open_log(str(tmp_path / "a.db"), create=True) as log:
        log.append(entries, EMPTY)
    assert f"position {gone.position}: " in tidegate(*DIFF, "--log", tmp_path / "a.db").sentence(1)

    def bug(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("controlplane.audit.diff.diff", bug)
    said = tidegate(*DIFF, "--log", finished_day)
    assert (said.code, "Traceback" in said.err) == (70, True)


# --- what has no end --------------------------------------------------------------------------------------------------


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def zeros(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("endless", [pipe, zeros])
@pytest.mark.parametrize("name", ["a.db", "a.jsonl", "a.jsonl.gz"])
def test_a_log_without_an_end_is_not_read(
    tidegate: Tidegate, tmp_path: Path, endless: Callable[[Path], Path], name: str
) -> None:
    log = endless(tmp_path / name)
    for command in COMMANDS:
        if command[0] != "db" or is_db(log):
            assert f"{log} is a device or a pipe" in tidegate(*command, "--log", log).sentence()
    if not is_db(log):
        assert "a device or a pipe" in tidegate("log", "import", log, "--log", tmp_path / "b.db").sentence()
    tidegate("simulate", write_world(tmp_path), "--log", log).sentence()
    assert not log.is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, "world.yaml"]


def test_nothing_is_exported_over_what_is_no_file(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    target = pipe(tmp_path / "a.jsonl")
    assert "is no file" in tidegate("log", "export", target, "--log", finished_day).sentence()
    assert target.is_fifo()


@pytest.mark.parametrize("name", ["nodes.csv", "pods.csv"])
@pytest.mark.parametrize("endless", [pipe, zeros])
def test_a_table_without_an_end_is_not_read(
    tidegate: Tidegate, tmp_path: Path, name: str, endless: Callable[[Path], Path]
) -> None:
    world = openb_world(tmp_path)
    (tmp_path / name).unlink()
    endless(tmp_path / name)
    said = tidegate("simulate", world, "--log", "memory:").sentence()
    assert said.startswith(f"{tmp_path / name}: this is not a file"), said


# --- worlds at the end of time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["until_ms", "drain_ms", "at_ms"])
@pytest.mark.parametrize("value", [2**50, 2**50 + 1, 2**53 - 1, 2**53, 2**63])
def test_an_instant_that_no_run_reaches_is_refused_by_name(
    tidegate: Tidegate, tmp_path: Path, field: str, value: int
) -> None:
    world = small_world()
    jobs = world["workload"]["jobs"]  # type: ignore[index]
    (jobs[0] if field == "at_ms" else world)[field] = value
    said = tidegate("simulate", write_world(tmp_path, world), "--log", "memory:")
    if value <= 2**50:
        assert (said.code, said.err) == (0, "")
    else:
        assert f"{field}: input should be less than or equal to {2**50}" in said.sentence()


def test_a_trace_that_begins_at_the_end_of_time_is_refused(tidegate: Tidegate, tmp_path: Path) -> None:
    (tmp_path / "late.swf").write_text("1 9000000000000 0 60 1 -1 -1 1 60 -1 1 1 1 1 1 1 -1 -1\n")
    world = {**small_world(), "workload": {"swf": {"file": "late.swf"}}}
    said = tidegate("simulate", write_world(tmp_path, world), "--log", "memory:").sentence()
    assert "no run goes beyond" in said
    assert f"{tmp_path}/world.yaml:" in said


def test_a_path_with_a_nul_is_refused(tidegate: Tidegate, tmp_path: Path) -> None:
    world = {**small_world(), "workload": {"swf": {"file": "a\0b"}}}
    assert "is no path" in tidegate("simulate", write_world(tmp_path, world), "--log", "memory:").sentence()


@pytest.mark.parametrize("command", [["jobs", "--log"], ["log", "export", "x.jsonl", "--log"]])
def test_a_name_that_is_too_long_is_bad_input(tidegate: Tidegate, command: list[str]) -> None:
    for suffix in (".db", ".jsonl"):
        tidegate(*command, "a" * 300 + suffix).sentence()
