"""Logs to files and back. A file appears when it is complete, a log receives all of a file or nothing."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

from controlplane.eventlog.drafts import draft_of
from controlplane.eventlog.file import FileLog, header_line, line_of
from controlplane.eventlog.paths import path_fault
from controlplane.eventlog.port import (
    EMPTY,
    Entry,
    EventLog,
    Head,
    HeadMoved,
    LogDamaged,
    LogUnusable,
    Record,
)
from controlplane.eventlog.verify import verify_chain

Progress = Callable[[int, int], None]
"""Called with (records done, records in all), every :data:`BATCH` records and at the end."""

BATCH = 10_000
COMPRESSION = 6
"""gzip's own default; 9 takes three times as long for two in a hundred."""


@runtime_checkable
class Importable(Protocol):
    """A log that can take many batches in one transaction."""

    def append_all(self, batches: Iterable[Sequence[Entry]], expected: Head) -> Head: ...


def export_log(log: EventLog, path: Path, progress: Progress | None = None) -> Head:
    """Write the log as it stands now to a file (``.gz``: compressed), in place of an older one. Gives its head.

    The chain is copied, not judged. The same log gives the same bytes. Raises what reading the log raises, and
    :class:`LogUnavailable` or :class:`LogUnusable` if the file cannot be written; then an older file is still there.
    """
    head = log.head()
    if path.exists() and not path.is_file():
        raise LogUnusable(f"{path} cannot be written: it is there, and is no file; name another")
    try:
        with draft_of(path) as draft:
            _write(log, head, draft, path.name, progress)
            draft.replace(path)
    except OSError as error:
        raise path_fault(path, error) from error
    return head


def import_log(path: Path, log: EventLog, progress: Progress | None = None) -> Head:
    """Append an exported file to a log that is empty or holds the beginning of it. Gives the new head.

    The whole chain of the file is verified before anything is written, and it is written in one transaction, so that
    whatever goes wrong, the log is as it was. The digests come out the same, since they are computed anew.
    ``progress`` counts each record twice: once verified, once written.

    Raises :class:`LogDamaged` if the file's chain is broken, :class:`HeadMoved` if the log holds something else, and
    what appending raises.
    """
    with FileLog(path) as file:
        report = verify_chain(file, _half(progress, 0))
        if report.damage is not None:
            raise LogDamaged(report.damage.position, report.damage.what)
        start = _common_head(file, log)
        if not isinstance(log, Importable):
            raise LogUnusable(f"{log.url} cannot be imported into: it is read-only")
        head = log.append_all(_batches(file, start.position, _half(progress, 1)), start)
    if head != report.head:  # unreachable unless the file changed under us; then the chain says so
        raise LogDamaged(head.position, f"{path} changed while it was imported")
    return head


def _write(log: EventLog, head: Head, draft: Path, name: str, progress: Progress | None) -> None:
    with draft.open("xb") as file:
        if name.endswith(".gz"):
            # No name and no time inside, so that the same log gives the same bytes.
            with gzip.GzipFile(filename="", mode="wb", compresslevel=COMPRESSION, fileobj=file, mtime=0) as packed:
                _write_lines(log, head, packed.write, progress)
        else:
            _write_lines(log, head, file.write, progress)
        file.flush()
        os.fsync(file.fileno())


def _write_lines(log: EventLog, head: Head, write: Callable[[bytes], int], progress: Progress | None) -> None:
    write(header_line(head))
    for batch in _chunks(log.read(until=head.position)):
        write(b"".join(map(line_of, batch)))
        if progress is not None:
            progress(batch[-1].position, head.position)


def _half(progress: Progress | None, which: int) -> Progress | None:
    """The progress of one pass of two."""
    if progress is None:
        return None
    return lambda done, total: progress(which * total + done, 2 * total)


def _common_head(file: FileLog, log: EventLog) -> Head:
    """The head of the log, once it is clear that the file begins with what the log holds."""
    head = log.head()
    if head == EMPTY:
        return head
    if head.position <= file.head().position:
        record = next(file.read(head.position - 1, head.position))
        if record.digest == head.digest:
            return head
    raise HeadMoved(f"{log.url} already holds another log: import into an empty one")


def _batches(file: FileLog, after: int, progress: Progress | None) -> Iterator[list[Entry]]:
    for batch in _chunks(file.read(after)):
        yield [
            Entry(
                record.type,
                record.author,
                record.payload,
                record.recorded_at_ms,
                record.actor,
                record.correlation,
                record.causation,
            )
            for record in batch
        ]
        if progress is not None:
            progress(batch[-1].position, file.head().position)


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    while batch := list(islice(records, BATCH)):
        yield batch
