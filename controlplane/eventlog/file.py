"""An exported log as a log: JSON Lines, plain or gzip, read only. Replay needs no database.

The first line says what the file is and where it must end; each further line is one record. A payload that is JSON
stands as such, as the last member of its line, and is cut out of the line byte by byte: no reader formats it anew. Any
other payload stands in base64.

    {"tidegate_log":1,"position":2,"digest":"9f..."}
    {"position":1,"type":"job_submitted/1","author":"requested",...,"digest":"03...","payload":{"spec":...}}
"""

from __future__ import annotations

import gzip
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import orjson

from controlplane.eventlog.paths import must_be_a_file, path_fault
from controlplane.eventlog.port import (
    SHAPES,
    Entry,
    Head,
    LogDamaged,
    LogUnusable,
    Record,
    Snapshot,
)

FORMAT = 1
MOST = 2**53
"""Records. No file has more, and counters beyond it would not fit where they are needed."""
HEADER_BYTES = 4_096
"""A first line longer than this is no header of ours; it keeps a foreign file from being read whole."""

_PAYLOAD = b',"payload":'
"""Cannot occur earlier in a line: inside a JSON string the quotes would be escaped."""
_PAYLOAD_BASE64 = b',"payload_base64":'
_COLUMNS = (
    "position",
    "type",
    "author",
    "recorded_at_ms",
    "actor",
    "correlation",
    "causation",
    "previous",
    "digest",
)


class FileLog:
    """The event log in an exported file."""

    def __init__(self, path: Path) -> None:
        """Raises :class:`LogUnusable` if the file is absent, not an exported log, or of a newer format."""
        self._path = path
        self._is_open = True
        with self._named_faults():
            must_be_a_file(path)
        with self._named_faults(), _opened(path) as file:
            self._head = _header(path, file.readline(HEADER_BYTES))

    @property
    def url(self) -> str:
        return str(self._path)

    def head(self) -> Head:
        """Where the file says that it ends; :func:`controlplane.eventlog.verify.verify_chain` proves it."""
        self._must_be_open()
        return self._head

    def append(self, entries: Sequence[Entry], expected: Head) -> Head:
        raise LogUnusable(f"{self._path} is an exported log, which cannot be appended to: import it first")

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Record]:
        self._must_be_open()
        return self._read(max(after, 0), until)

    def save_snapshot(self, snapshot: Snapshot) -> None:
        raise LogUnusable(f"{self._path} is an exported log, which keeps no snapshots: import it first")

    def snapshots(self, core: str) -> Iterator[Snapshot]:
        self._must_be_open()
        return iter(())

    def flaws(self) -> Sequence[str]:
        self._must_be_open()
        return ()

    def close(self) -> None:
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, after: int, until: int | None) -> Iterator[Record]:
        end = self._head.position if until is None else min(until, self._head.position)
        if after >= end and until is not None:
            return
        position = after
        with self._named_faults(), _opened(self._path) as file:
            try:
                for line in islice(file, after + 1, max(after, end) + 1):
                    position += 1
                    record = record_of(line, position)
                    if record.position != position:
                        raise LogDamaged(position, f"the record is missing; in its line stands {record.position}")
                    yield record
                if until is None and position >= end and next(file, None) is not None:
                    raise LogDamaged(end + 1, f"the file goes on after position {end}, where it says that it ends")
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise LogDamaged(position + 1, f"the compressed file breaks off or is damaged ({error})") from error
        if position < end:
            raise LogDamaged(position + 1, f"the record is missing; the file should go on to {self._head.position}")

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise LogUnusable(f"{self._path}: there is no such file") from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise LogUnusable(f"{self._path} is not a gzip file that can be read ({error})") from error
        except OSError as error:
            raise path_fault(self._path, error, "cannot be read") from error

    def _must_be_open(self) -> None:
        if not self._is_open:
            raise LogUnusable(f"{self._path}: the log is closed")


# --- lines ------------------------------------------------------------------------------------------------------------


def header_line(head: Head) -> bytes:
    """The first line of a file that ends at ``head``."""
    return orjson.dumps({"tidegate_log": FORMAT, "position": head.position, "digest": head.digest}) + b"\n"


def line_of(record: Record) -> bytes:
    """The line of one record."""
    position, type_name, author, payload, recorded_at_ms, actor, correlation, causation, previous, digest = record
    columns = orjson.dumps(
        {
            "position": position,
            "type": type_name,
            "author": author,
            "recorded_at_ms": recorded_at_ms,
            "actor": actor,
            "correlation": correlation,
            "causation": causation,
            "previous": previous,
            "digest": digest,
        }
    )
    if _is_one_line_of_json(payload):
        return columns[:-1] + _PAYLOAD + payload + b"}\n"
    return columns[:-1] + _PAYLOAD_BASE64 + b'"' + b64encode(payload) + b'"}\n'


def record_of(line: bytes, position: int) -> Record:
    """The record of one line, which should be the one at ``position``. Raises :class:`LogDamaged`."""
    columns, found, payload = line.partition(_PAYLOAD)
    try:
        if found:
            payload = _cut(payload, b"}\n")
        else:
            columns, _, encoded = line.partition(_PAYLOAD_BASE64)
            payload = b64decode(_cut(encoded, b'"}\n').removeprefix(b'"'), validate=True)
        of = orjson.loads(columns + b"}")
        record = Record(
            of["position"],
            of["type"],
            of["author"],
            payload,
            of["recorded_at_ms"],
            of["actor"],
            of["correlation"],
            of["causation"],
            of["previous"],
            of["digest"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(position, "the line is not a record of an exported log") from error
    if len(of) != len(_COLUMNS):
        raise LogDamaged(position, "the line has members that no record has")
    if tuple(map(type, record)) not in SHAPES:
        raise LogDamaged(position, "a member of the line is not of the type that it should be")
    return record


def _cut(text: bytes, end: bytes) -> bytes:
    if not text.endswith(end):
        raise ValueError("the line breaks off")
    return text[: -len(end)]


def _is_one_line_of_json(payload: bytes) -> bool:
    if b"\n" in payload or b"\r" in payload:
        return False
    try:
        orjson.loads(payload)
    except ValueError:
        return False
    return True


def _header(path: Path, line: bytes) -> Head:
    try:
        of = orjson.loads(line)
    except ValueError:
        of = None
    match of:
        case {"tidegate_log": int(version)} if version > FORMAT:
            raise LogUnusable(f"{path} is from a newer Tidegate (format {version}, this version reads {FORMAT})")
        case {"tidegate_log": int(), "position": int(position), "digest": str(digest)} if 0 <= position <= MOST:
            return Head(position, digest)
        case _:
            raise LogUnusable(f"{path} is not an exported log: its first line is no header of one")


def _opened(path: Path) -> BinaryIO:
    if path.name.endswith(".gz"):
        return cast("BinaryIO", gzip.open(path, "rb"))  # which reads, seeks and closes like one, in typeshed by halves
    return path.open("rb")
