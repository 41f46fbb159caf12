"""What can be wrong with a path that somebody gave, in the same words and to the same end for every kind of log."""

from __future__ import annotations

import errno
from pathlib import Path

from controlplane.eventlog.port import LogUnavailable, LogUnusable

BAD_PATHS = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.ENAMETOOLONG,
        errno.ELOOP,
    }
)
"""Faults for which somebody must name another path or change its rights; of all others the system is to blame."""


def must_be_a_file(path: Path) -> None:
    """Raise :class:`LogUnusable` for what is there and no file: a device or a pipe may have no end. Raises
    :class:`OSError` as the system does."""
    if path.is_dir():
        raise LogUnusable(f"{path} is a directory, not a log")
    if path.exists() and not path.is_file():
        raise LogUnusable(f"{path} is a device or a pipe, not a file, so it is no log")


def path_fault(path: Path, error: OSError, what: str = "cannot be written") -> LogUnavailable | LogUnusable:
    """What the system says of a path, as the error of a log."""
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return LogUnusable(f"{path}: the folder {path.parent} does not exist; make it first")
    fault = LogUnusable if error.errno in BAD_PATHS else LogUnavailable
    return fault(f"{path} {what}: {error.strerror or error}")
