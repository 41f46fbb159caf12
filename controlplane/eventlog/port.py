"""The log as everybody else sees it: records, a head, and the errors by who must act.

The log is the only truth (law 1): totally ordered, append-only, hash-chained. Positions are 1, 2, 3, ... without gaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

GENESIS = "0" * 64
"""The digest before the first record."""


class Head(NamedTuple):
    """The end of a log: the position of its last record (0 for an empty log) and that record's digest."""

    position: int
    digest: str


EMPTY = Head(0, GENESIS)


class Entry(NamedTuple):
    """What is handed in for appending; position and digests are given by the log.

    The texts hold printable characters only: a separator inside one would let two entries share a digest.
    """

    type: str
    author: str
    payload: bytes
    """Canonical bytes (:func:`controlplane.domain.codec.encode`)."""
    recorded_at_ms: int
    actor: str
    """Who, within the author: a user, an agent, ``scheduler``, ``clock``."""
    correlation: str = ""
    """What it is about over its whole life, such as ``j12``."""
    causation: int | None = None
    """Position of the event that it follows from."""


class Record(NamedTuple):
    """One row of the log, in the order of the stored columns.

    A named tuple, not a dataclass: a row of the database becomes one in 0.3 instead of 2.1 microseconds, which is the
    difference between 400,000 and 200,000 records read in a second.
    """

    position: int
    type: str
    author: str
    payload: bytes
    recorded_at_ms: int
    actor: str
    correlation: str
    causation: int | None
    previous: str
    digest: str


SHAPES = frozenset((int, str, str, bytes, int, str, str, causation, str, str) for causation in (int, type(None)))
"""The types of a record's columns. SQLite and JSON keep any type anywhere; as text, ``None`` and 7 would have the same
digest as the causations None and 7."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A derived state, named by where it was taken; never trusted over the log."""

    position: int
    digest: str
    """Of the record at ``position``: a snapshot whose digest is not the log's is ignored."""
    core: str
    """Core version that took it: a snapshot of another core is ignored."""
    body: bytes


def digest_of(
    previous: str,
    position: int,
    type_name: str,
    author: str,
    payload: bytes,
    recorded_at_ms: int,
    actor: str,
    correlation: str,
    causation: int | None,
) -> str:
    """SHA-256, in hex, over the previous digest and every column of the record.

    The columns before the payload contain no control characters, so that the unit separator delimits them.
    """
    head = (
        f"{previous}\x1f{position}\x1f{type_name}\x1f{author}\x1f{recorded_at_ms}"
        f"\x1f{actor}\x1f{correlation}\x1f{causation}\x1f"
    )
    return hashlib.sha256(head.encode() + payload).hexdigest()


class LogError(Exception):
    """Base of what can go wrong with a log; the text is one clear sentence."""


class HeadMoved(LogError):
    """Somebody else appended: refold and decide again. Nothing was written."""


class LogUnavailable(LogError):
    """The database cannot be reached or is out of room: try again, or ask its operator. Nothing was written."""


class LogUnusable(LogError):
    """Not a Tidegate log, not readable, not writable, or from a newer version: a person must look."""


class LogDamaged(LogError):
    """The chain does not hold; names the first position at which it breaks."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(f"position {position}: {what}")
        self.position = position
        self.what = what


class EventLog(Protocol):
    """One log, in memory, in a database, or in an exported file (read only)."""

    @property
    def url(self) -> str:
        """What it was opened by, without a password."""

    def head(self) -> Head:
        """The end of the log as stored now."""

    def append(self, entries: Sequence[Entry], expected: Head) -> Head:
        """Append all entries in one transaction, or none; durable when it returns. Gives the new head.

        Raises :class:`HeadMoved` if the log's head is not ``expected``, :class:`LogUnavailable`,
        :class:`LogUnusable` (read-only).
        """

    def read(self, after: int = 0, until: int | None = None) -> Iterator[Record]:
        """Records with ``after < position <= until``, in order, streamed. The chain is not checked here (``verify``
        does), but a gap or an unreadable row raises :class:`LogDamaged`."""

    def save_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot, replacing older ones as the implementation sees fit."""

    def snapshots(self, core: str) -> Iterator[Snapshot]:
        """Kept snapshots of this core, newest first, each checked to agree with the log's digest at its position."""

    def flaws(self) -> Sequence[str]:
        """What is not as it was made around the records: a guard that refuses changes, a table, a snapshot that names
        no record of this log; one clause each, none if all is well. The records themselves are not looked at."""

    def close(self) -> None:
        """Release files and connections."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
