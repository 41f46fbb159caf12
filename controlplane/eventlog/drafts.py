"""Drafts: a file is written beside its place and gets its name when it is complete. What was left behind is swept.

PROBLEM: a process that is killed outright removes nothing. Its number in a file's name does not say whether it lives:
numbers are given again, and two containers that share a folder do not share their numbers.

SOLUTION: a draft lies in a folder of its own, which its process holds locked. The system lets go of the lock however
the process ends; so whoever gets it knows that nobody writes there any more. Where a file system has no locks, drafts
are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controlplane.eventlog.paths import path_fault

PREFIX = ".tidegate-draft-"
_TRIES = 10
"""A new folder may be swept before it is locked, by somebody who starts at the very same moment."""


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write what is to be called ``path``: on the same disk, and gone at the end with all that lies beside it.

    Drafts of processes that are no more are removed from the folder first. Raises
    :class:`~controlplane.eventlog.port.LogUnusable` or :class:`~controlplane.eventlog.port.LogUnavailable` if nothing
    can be written.
    """
    sweep(path.parent)
    try:
        folder, lock = _made(path.parent)
    except OSError as error:
        raise path_fault(path, error) from error
    try:
        yield folder / path.name
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def sweep(folder: Path) -> None:
    """Remove the drafts in a folder whose processes are no more. Says nothing of what it may not remove."""
    with suppress(OSError):
        for left in folder.glob(f"{PREFIX}*"):
            with suppress(OSError):  # held by who writes it, or no folder
                lock = _lock(left)
                shutil.rmtree(left, ignore_errors=True)
                os.close(lock)


def _made(parent: Path) -> tuple[Path, int | None]:
    """A new folder and the lock on it; ``None`` where there are no locks."""
    for _ in range(_TRIES):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = None
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:  # a file system without locks: nobody sweeps there either
            pass
        if folder.is_dir():
            return folder, lock
        if lock is not None:
            os.close(lock)
    raise OSError(errno.EAGAIN, "drafts are swept away as soon as they are made")


def _lock(folder: Path) -> int:
    """The descriptor that holds a folder. Raises :class:`BlockingIOError` if another process does."""
    found = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(found)
        raise
    return found
