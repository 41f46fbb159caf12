"""New logs that appear when they are complete, or not at all.

A simulation or an import that fails, is interrupted or runs out of disk leaves nothing: a log file is written as a
draft beside its place and gets its own name at the end; what goes to a server is written to a draft first and copied in
one transaction. Half a simulation is not a true log of anything, so it is not kept; if the process is killed outright,
whoever writes into that folder next removes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from controlplane.cli.faults import WrongUse
from controlplane.cli.words import plural
from controlplane.eventlog import file_of, is_exported, open_log
from controlplane.eventlog.drafts import draft_of
from controlplane.eventlog.paths import path_fault
from controlplane.eventlog.port import EMPTY, EventLog, LogUnavailable, LogUnusable

if TYPE_CHECKING:
    from controlplane.eventlog.port import Entry

MEMORY = "memory:"
BATCH = 10_000
DRAFT = "log.db"
"""The name of a log while it is a draft, whatever it is to be called: this one is a database."""


@contextmanager
def new_log(url: str) -> Iterator[EventLog]:
    """A log to be written; when the block ends well, it stands at ``url``, complete and durable.

    Raises :class:`WrongUse` if something stands there already, and what opening and writing raise; then nothing of it
    is left.
    """
    if url == MEMORY:
        with open_log(MEMORY, create=True) as log:
            yield log
        return
    file = file_of(url)
    is_there = _refuse_taken(url, file)
    place = file if file is not None else Path(tempfile.gettempdir(), "log.db")
    with draft_of(place) as beside:
        draft = beside.with_name(DRAFT)
        yield from _drafted(url, file, draft, is_there=is_there)


def _drafted(url: str, file: Path | None, draft: Path, *, is_there: bool) -> Iterator[EventLog]:
    with _named(draft, file or draft):
        with open_log(str(draft), create=True) as log:
            yield log
            _keep_elsewhere(log, url, file, is_there=is_there)
        if file is not None and not is_there and not is_exported(url):
            _settle(draft, file)


def _refuse_taken(url: str, file: Path | None) -> bool:
    """Whether an empty log stands there already, which is then filled."""
    if file is not None and not file.exists():
        return False
    if is_exported(url):
        raise WrongUse(f"{url} exists already; name another file, or remove that one first")
    with open_log(url, create=True) as log:
        head = log.head()
        if head != EMPTY:
            raise WrongUse(
                f"{log.url} already holds a log of {plural(head.position, 'event')}; "
                f"name another place, or remove that log first"
            )
    return True


def _keep_elsewhere(log: EventLog, url: str, file: Path | None, *, is_there: bool) -> None:
    """Copy the draft to where a file cannot simply be renamed to."""
    if file is not None and is_exported(url):
        from controlplane.eventlog.export import export_log

        export_log(log, file)
    elif is_there:
        from controlplane.eventlog.export import Importable

        with open_log(url, create=False) as target:
            assert isinstance(target, Importable), "a database takes many batches at once"
            target.append_all(_batches(log), EMPTY)


def _batches(log: EventLog) -> Iterator[Sequence[Entry]]:
    from controlplane.eventlog.port import Entry

    records = log.read()
    while batch := [Entry(*record[1:8]) for record in islice(records, BATCH)]:
        yield batch


@contextmanager
def _named(draft: Path, file: Path) -> Iterator[None]:
    """Errors speak of the file that was asked for, not of the draft."""
    try:
        yield
    except (LogUnavailable, LogUnusable) as error:
        raise type(error)(str(error).replace(str(draft), str(file))) from error
    except OSError as error:
        if not str(error.filename).startswith(str(draft.parent)):
            raise
        raise path_fault(file, error) from error


def _settle(draft: Path, file: Path) -> None:
    """Give the closed draft its name, unless a file of that name has come in the meantime."""
    behind = draft.with_name(f"{draft.name}-wal")
    if behind.exists() and behind.stat().st_size:
        raise LogUnavailable(f"{file}: the last records could not be written into the file: look at the disk")
    try:
        os.link(draft, file)
    except FileExistsError:
        raise WrongUse(f"{file} has appeared in the meantime, and was left alone; name another file") from None
    except OSError:  # a file system without links
        draft.rename(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
