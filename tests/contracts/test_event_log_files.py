"""The read-only contract: an exported file answers as the log that it came from, and refuses what it cannot do."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.eventlog import open_log
from controlplane.eventlog.chain import seal
from controlplane.eventlog.export import export_log, import_log
from controlplane.eventlog.file import line_of, record_of
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import (
    EMPTY,
    Entry,
    EventLog,
    LogDamaged,
    LogUnusable,
    Record,
    Snapshot,
)
from controlplane.eventlog.verify import Kind, verify_chain
from tests.contracts.test_event_log import ENTRIES, entry, filled

TEN = 10


@pytest.fixture
def original() -> MemoryLog:
    log = MemoryLog()
    filled(log, TEN)
    return log


@pytest.fixture(params=["log.jsonl", "log.jsonl.gz"])
def path(request: pytest.FixtureRequest, original: MemoryLog, tmp_path: Path) -> Path:
    path = tmp_path / str(request.param)
    export_log(original, path)
    return path


@pytest.fixture
def log(path: Path) -> Iterator[EventLog]:
    with open_log(str(path), create=False) as log:
        yield log


def lines_of(path: Path) -> list[bytes]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.splitlines(keepends=True)


def rewrite(path: Path, lines: list[bytes]) -> None:
    content = b"".join(lines)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_a_file_has_the_records_and_the_head_of_its_log(log: EventLog, original: MemoryLog) -> None:
    assert log.head() == original.head()
    assert list(log.read()) == list(original.read())
    assert verify_chain(log).ok


@given(after=st.integers(-2, 12), until=st.none() | st.integers(-2, 14))
def test_reading_gives_exactly_the_asked_positions(
    tmp_path_factory: pytest.TempPathFactory, after: int, until: int | None
) -> None:
    """Kills: the header counted as a record, an end that is one off."""
    path = tmp_path_factory.getbasetemp() / "slices.jsonl"
    if not path.exists():
        with MemoryLog() as original:
            filled(original, TEN)
            export_log(original, path)
    end = TEN if until is None else until
    with open_log(str(path), create=False) as log:
        positions = [record.position for record in log.read(after, until)]
    assert positions == [position for position in range(1, TEN + 1) if after < position <= end]


def test_an_empty_log_makes_a_file_of_one_line(tmp_path: Path) -> None:
    with MemoryLog() as empty:
        export_log(empty, tmp_path / "empty.jsonl")
    with open_log(str(tmp_path / "empty.jsonl"), create=False) as log:
        assert log.head() == EMPTY
        assert list(log.read()) == []
        assert verify_chain(log).ok


def test_a_file_is_read_only(log: EventLog) -> None:
    with pytest.raises(LogUnusable, match="import it first"):
        log.append([entry()], log.head())
    with pytest.raises(LogUnusable, match="import it first"):
        log.save_snapshot(Snapshot(1, "", "core", b""))
    assert list(log.snapshots("core")) == []


def test_a_closed_file_says_so(log: EventLog) -> None:
    log.close()
    for use in (log.head, log.read, lambda: log.snapshots("core"), log.flaws):
        with pytest.raises(LogUnusable, match="closed"):
            use()


@given(sealed=st.lists(ENTRIES, min_size=1, max_size=3))
def test_a_line_gives_back_its_record(sealed: list[Entry]) -> None:
    """Kills: a payload parsed and formatted anew, a payload found inside another column, base64 taken for text."""
    for row in seal(sealed, EMPTY):
        record = Record._make(row)
        line = line_of(record)
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        orjson.loads(line)
        assert record_of(line, record.position) == record


# --- the format is a promise ------------------------------------------------------------------------------------------


def test_every_line_is_json_with_the_payload_inside(path: Path) -> None:
    header, *rest = [orjson.loads(line) for line in lines_of(path)]
    assert header["tidegate_log"] == 1
    assert [line["position"] for line in rest] == list(range(1, TEN + 1))
    assert [line["payload"] for line in rest] == [{"job": number} for number in range(TEN)]


def test_the_same_log_gives_the_same_bytes(path: Path, original: MemoryLog, tmp_path: Path) -> None:
    """Kills: a time or a name inside the gzip header."""
    other = tmp_path / f"another-{path.name}"
    export_log(original, other)
    assert other.read_bytes() == path.read_bytes()


def test_an_export_replaces_an_older_file_only_when_complete(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()

    class Breaking(MemoryLog):
        def read(self, after: int = 0, until: int | None = None) -> Iterator[Record]:
            yield from super().read(after, 1)
            raise LogDamaged(2, "planted")

    with Breaking() as log:
        filled(log, 3)
        with pytest.raises(LogDamaged):
            export_log(log, path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path]


# --- attacks ----------------------------------------------------------------------------------------------------------


def damage(path: Path) -> tuple[int, Kind]:
    with open_log(str(path), create=False) as log:
        report = verify_chain(log)
    assert report.damage is not None
    assert report.head.position == report.damage.position - 1
    return report.damage.position, report.damage.kind


def test_a_changed_payload_byte_is_named(path: Path) -> None:
    lines = lines_of(path)
    lines[4] = lines[4].replace(b'{"job":3}', b'{"job":4}')
    rewrite(path, lines)
    assert damage(path) == (4, Kind.CHANGED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"ada"', b'"eve"'),
        (b'"job_submitted/1"', b'"job_submitted/2"'),
        (b'"requested"', b'"decided"'),
        (b'"recorded_at_ms":1700000000003', b'"recorded_at_ms":1700000000004'),
        (b'"correlation":"j3"', b'"correlation":"j4"'),
        (b'"causation":3', b'"causation":null'),
        (b'"causation":3', b'"causation":"3"'),
        (b'"recorded_at_ms":1700000000003', b'"recorded_at_ms":"1700000000003"'),
    ],
)
def test_an_edited_column_is_named(path: Path, old: bytes, new: bytes) -> None:
    lines = lines_of(path)
    assert old in lines[4]
    lines[4] = lines[4].replace(old, new)
    rewrite(path, lines)
    assert damage(path)[0] == 4


def test_a_dropped_line_is_named(path: Path) -> None:
    lines = lines_of(path)
    del lines[4]
    rewrite(path, lines)
    assert damage(path) == (4, Kind.MISSING)


def test_a_dropped_last_line_is_named(path: Path) -> None:
    rewrite(path, lines_of(path)[:-1])
    assert damage(path) == (TEN, Kind.MISSING)


def test_a_header_that_names_another_digest_is_noticed(path: Path) -> None:
    """Kills: believing the header; believing the last line."""
    lines = lines_of(path)
    header = orjson.loads(lines[0])
    lines[0] = orjson.dumps({**header, "digest": "0" * 64}) + b"\n"
    rewrite(path, lines)
    with open_log(str(path), create=False) as log:
        found = verify_chain(log).damage
    assert found is not None
    assert (found.position, found.kind) == (TEN, Kind.CHANGED)


def test_swapped_lines_are_named(path: Path) -> None:
    lines = lines_of(path)
    lines[4], lines[6] = lines[6], lines[4]
    rewrite(path, lines)
    assert damage(path)[0] == 4


def test_an_added_line_is_named(path: Path) -> None:
    lines = lines_of(path)
    rewrite(path, [*lines, lines[-1]])
    assert damage(path) == (TEN + 1, Kind.MISSING)


@pytest.mark.parametrize("line", [b"\n", b"{}\n", b"[1]\n", b'"x"\n', b"\xff\n", b'{"position":4,"payload":{}}\n'])
def test_a_line_that_is_no_record_is_named(path: Path, line: bytes) -> None:
    lines = lines_of(path)
    lines[4] = line
    rewrite(path, lines)
    assert damage(path) == (4, Kind.MISSING)


def test_a_file_cut_short_is_named(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 20])
    position, kind = damage(path)
    assert kind is Kind.MISSING
    assert 1 <= position <= TEN


def test_nothing_of_a_damaged_file_is_imported(path: Path) -> None:
    lines = lines_of(path)
    lines[TEN] = lines[TEN].replace(b'{"job":9}', b'{"job":8}')
    rewrite(path, lines)
    with MemoryLog() as log:
        with pytest.raises(LogDamaged, match="position 10"):
            import_log(path, log)
        assert log.head() == EMPTY


# --- wrong files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no header"),
        (b"\n", "no header"),
        (b"position,type\n1,x\n", "no header"),
        (b'{"tidegate_log":"1","position":0,"digest":"0"}\n', "no header"),
        (b'{"tidegate_log":1,"position":-1,"digest":"0"}\n', "no header"),
        (b"[" * 10_000, "no header"),
        (b'{"tidegate_log":2,"anything":0}\n', "from a newer Tidegate"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "foreign.jsonl"
    path.write_bytes(content)
    with pytest.raises(LogUnusable, match=sentence):
        open_log(str(path), create=False)


def test_a_plain_file_named_gz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(b'{"tidegate_log":1}\n')
    with pytest.raises(LogUnusable, match="gzip"):
        open_log(str(path), create=False)


def test_an_absent_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogUnusable, match="no such file"):
        open_log(str(tmp_path / "absent.jsonl"), create=True)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(LogUnusable, match="directory"):
        open_log(str(tmp_path / "folder.jsonl"), create=False)


def test_an_export_into_no_folder_is_refused(original: MemoryLog, tmp_path: Path) -> None:
    with pytest.raises(LogUnusable, match="make it first"):
        export_log(original, tmp_path / "absent" / "log.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(LogUnusable, match="cannot be written"):
        export_log(original, tmp_path / "folder.jsonl")
    assert sorted(tmp_path.iterdir()) == [tmp_path / "folder.jsonl"]
