"""Whatever the bytes are, a reader answers with values or with one sentence that names the file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.intake import openb, philly, swf, tables
from controlplane.intake.traces import IntakeError

Parser = Callable[[str, bytes], object]

PARSERS: dict[str, tuple[Parser, bytes]] = {
    "nodes": (openb.parse_nodes, b"sn,cpu_milli,memory_mib,gpu,model\nn,1,1,1,T4\n"),
    "pods": (openb.parse_pods, b"name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,1,1000\n"),
    "philly": (philly.parse_jobs, b"timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,a\n"),
    "swf": (swf.parse_jobs, b"; MaxProcs: 8\n1 0 -1 10 4 -1 -1 -1 -1 -1 1 1 1 -1 1 -1 -1 -1\n"),
}
each_parser = pytest.mark.parametrize(("parse", "good"), PARSERS.values(), ids=PARSERS.keys())


@each_parser
def test_the_good_file_is_good(parse: Parser, good: bytes) -> None:
    assert parse("f", good)
    assert parse("f", gzip.compress(good))
    assert parse("f", b"\xef\xbb\xbf" + good)
    assert parse("f", good.replace(b"\n", b"\r\n"))


@each_parser
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "f: the file is empty; give a file with a header and rows"),
        (b" \n\n", "f: the file is empty; "),
        (gzip.compress(b"", mtime=0), "f: the file is empty; "),
        (b"\n\n\xff", "f:3: byte 0xff is not UTF-8 text; save the file as UTF-8"),
        (gzip.compress(b"x" * 5_000, mtime=0)[:-12], "f: the gzip file is cut off; copy or download it again"),
        (b"\x1f\x8b\x08\x00garbage...........", "f: the gzip file is damaged; copy or download it again"),
        (b"\x1f\x8b", "f: the gzip file is cut off; "),
    ],
)
def test_what_is_no_text_is_named(parse: Parser, good: bytes, data: bytes, sentence: str) -> None:
    with pytest.raises(IntakeError) as caught:
        parse("f", data)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["nodes", "pods", "philly"])
def test_each_required_column_is_missed(name: str) -> None:
    parse, good = PARSERS[name]
    header = good.split(b"\n")[0].decode().split(",")
    for column in (c for c in header if c != "gpu_time"):
        kept = [index for index, other in enumerate(header) if other != column]
        data = "\n".join(",".join(line.split(",")[i] for i in kept) for line in good.decode().strip().split("\n"))
        with pytest.raises(IntakeError, match=rf"^f:1: the header lacks column {column}; give a table with"):
            parse("f", data.encode())


@pytest.mark.parametrize("name", ["nodes", "pods", "philly"])
def test_a_header_alone_or_twice_the_same_column_is_refused(name: str) -> None:
    parse, good = PARSERS[name]
    header = good.split(b"\n")[0]
    with pytest.raises(IntakeError, match=r"^f: the file has no rows below its header; "):
        parse("f", header + b"\n")
    with pytest.raises(IntakeError, match=r"^f:1: column .* is there twice; keep one of them"):
        parse("f", header + b"," + header.split(b",")[0] + b"\n")


def _is_value_or_sentence(parse: Parser, data: bytes) -> bool:
    """Any other exception comes through."""
    try:
        return bool(parse("f", data))
    except IntakeError as error:
        sentence = str(error)
        return sentence.startswith("f:") and "\n" not in sentence and len(sentence) < 400


@each_parser
@given(data=st.binary(max_size=400))
@example(data=b"a\x00b\n")
@example(data=b'"unclosed\n')
def test_random_bytes_give_values_or_one_sentence(parse: Parser, good: bytes, data: bytes) -> None:
    for attempt in (data, gzip.compress(data, mtime=0), good + data, data + good):
        assert _is_value_or_sentence(parse, attempt)


@each_parser
@given(data=st.data())
def test_a_damaged_good_file_gives_values_or_one_sentence(parse: Parser, good: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    piece = data.draw(st.one_of(st.binary(max_size=6), st.sampled_from([b",", b"\n", b"-", b"9" * 20, b"nan", b'"'])))
    damaged = good[:at] + piece + good[at + data.draw(st.integers(0, 3)) :]
    assert _is_value_or_sentence(parse, damaged)


def test_a_file_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(IntakeError, match=r"none\.csv: cannot be read \(no such file or directory\); check the path"):
        openb.read_pods(tmp_path / "none.csv")
    with pytest.raises(IntakeError, match=r"cannot be read \(is a directory\)"):
        swf.read_jobs(tmp_path)


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BYTES", 1_000)
    with pytest.raises(IntakeError, match=r"^f: the file unpacks to more than 1,000 bytes; split it"):
        openb.parse_pods("f", gzip.compress(b"0" * 100_000))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MAX_BYTES", 10)
    (tmp_path / "f").write_bytes(b"0" * 11)
    with pytest.raises(IntakeError, match=r"the file is larger than 10 bytes; split it"):
        openb.read_pods(tmp_path / "f")
