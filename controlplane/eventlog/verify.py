"""Is the chain whole? Every digest computed anew, from the first record to the head; the first break is named.

This proves that the records are those that were appended, in that order, up to the head that the log keeps of itself.
It does not prove that the decisions among them were right: ``controlplane.audit`` re-decides them. An attacker who
rewrites every digest from the change to the end is caught by comparing the head with one noted elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from controlplane.eventlog.port import EMPTY, SHAPES, EventLog, Head, LogDamaged, Record

STEP = 10_000
"""Records between two calls of ``progress``."""
REACH = 1_000
"""How far from its place a record is recognised: some milliseconds of hashing."""

SEPARATORS = 8
"""After each column before the payload. One more, and a border between columns was moved."""


class Kind(StrEnum):
    """In which way the chain is broken."""

    CHANGED = "changed"
    """Content and digest do not belong together: a byte of the payload or a column was edited."""
    MOVED = "moved"
    """A sound record that belongs elsewhere: rows were swapped, replaced or inserted."""
    MISSING = "missing"
    """No record, or none that can be read, at a position before the head."""
    FOREIGN = "foreign"
    """A record that holds in the chain and that no writer of a log makes."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The first break of a chain."""

    position: int
    kind: Kind
    what: str
    """One clause for a person."""


@dataclass(frozen=True, slots=True)
class ChainReport:
    """What verifying found."""

    head: Head
    """Of the sound part: everything up to it holds."""
    damage: Damage | None

    @property
    def ok(self) -> bool:
        """Whether the whole chain holds."""
        return self.damage is None


def verify_chain(
    log: EventLog,
    progress: Callable[[int, int], None] | None = None,
    judge: Callable[[Record], str | None] | None = None,
) -> ChainReport:
    """Check every record of the log and that it ends where it says. ``progress`` is given (records done, in all).

    ``judge`` says of a record that holds in the chain what else is wrong with it; this floor does not know what an
    event means. Damage is reported, not raised; :class:`LogUnavailable` and :class:`LogUnusable` are raised.
    """
    end, unsound_end = _end(log)
    sound = EMPTY
    try:
        for record in log.read():
            digest = _digest(record, sound)
            if digest is None:
                return ChainReport(sound, _diagnosis(log, record, sound))
            fault = judge(record) if judge is not None else None
            if fault is not None:
                return ChainReport(sound, Damage(record.position, Kind.FOREIGN, fault))
            sound = Head(record.position, digest)
            if progress is not None and sound.position % STEP == 0:
                progress(sound.position, max(end.position, sound.position))
    except LogDamaged as error:
        return ChainReport(sound, Damage(error.position, Kind.MISSING, error.what))
    if progress is not None:
        progress(sound.position, max(end.position, sound.position))
    return ChainReport(sound, unsound_end or _end_damage(sound, end))


def _digest(record: Record, sound: Head) -> str | None:
    """The record's digest if it is the sound successor of ``sound``, else ``None``.

    :func:`controlplane.eventlog.port.digest_of` written out, for speed; a test holds the two equal.
    """
    position, type_name, author, payload, recorded_at_ms, actor, correlation, causation, previous, digest = record
    columns = (
        f"{previous}\x1f{position}\x1f{type_name}\x1f{author}\x1f{recorded_at_ms}"
        f"\x1f{actor}\x1f{correlation}\x1f{causation}\x1f"
    )
    if (
        previous == sound.digest
        and sha256(columns.encode("utf-8", "surrogatepass") + payload).hexdigest() == digest
        and columns.count("\x1f") == SEPARATORS
        and tuple(map(type, record)) in SHAPES
    ):
        return digest
    return None


def _end(log: EventLog) -> tuple[Head, Damage | None]:
    try:
        return log.head(), None
    except LogDamaged as error:
        return EMPTY, Damage(error.position, Kind.MISSING, error.what)


def _end_damage(sound: Head, end: Head) -> Damage | None:
    if sound.position < end.position:
        return Damage(
            sound.position + 1, Kind.MISSING, f"the record is missing; the log should go on to {end.position}"
        )
    if sound.position == end.position and sound.digest != end.digest:
        return Damage(sound.position, Kind.CHANGED, "the last record is not the one that the head of the log names")
    return None


# --- naming what is wrong ---------------------------------------------------------------------------------------------


def _diagnosis(log: EventLog, record: Record, sound: Head) -> Damage:
    position = record.position
    if record.previous == sound.digest:
        return Damage(position, Kind.CHANGED, "payload or columns do not match the record's digest")
    clauses = []
    origin = _origin(record)
    if origin == position:
        clauses.append(f"the record does not follow the one at position {sound.position}")
    elif origin is not None:
        clauses.append(f"the record that stands here was appended at position {origin}")
    following = _found(log, sound)
    if following is not None:
        clauses.append(f"the record that belongs here stands at position {following}")
    if clauses:
        return Damage(position, Kind.MOVED, "; ".join(clauses))
    return Damage(position, Kind.CHANGED, "neither the link to the record before nor the record's own digest holds")


def _origin(record: Record) -> int | None:
    """The position for which the record was sealed, if that is not far from where it stands."""
    for distance in range(REACH + 1):
        for position in (record.position + distance, record.position - distance):
            if _digest(record._replace(position=position), Head(position - 1, record.previous)) is not None:
                return position
    return None


def _found(log: EventLog, sound: Head) -> int | None:
    """Where the record that follows ``sound`` stands instead, if it is anywhere."""
    try:
        for record in log.read(sound.position + 1):
            if record.previous == sound.digest:
                return record.position
    except LogDamaged:
        pass
    return None
