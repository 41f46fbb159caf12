"""Is a payload written as its event is? One event has one encoding: whatever else decodes to it, nobody of ours wrote.

PROBLEM: a key twice, white space, another order, a number as text or a default written out all decode to a sound event,
under digests that were made for these very bytes. Two readers could then read two things out of one log.

SOLUTION: what was decoded is encoded again and compared, a fifth of what decoding costs.
"""

from __future__ import annotations

import orjson

from controlplane.domain.codec import MalformedEvent, UnknownEvent, decode, encode
from controlplane.domain.events import Event
from controlplane.domain.model import canonical_bytes
from controlplane.eventlog.port import Record

NOT_CANONICAL = "the payload is not written as such an event is (a key twice, another order, a default or white space)"


def payload_fault(record: Record) -> str | None:
    """What is wrong with the payload of a record, whoever wrote it; ``None`` if it is the encoding of an event.

    Of a type that only a newer version knows, it is at least known how it must be written.
    """
    try:
        event = decode(record.type, record.payload)
    except MalformedEvent as error:
        return str(error)
    except UnknownEvent:
        return None if _is_canonical_json(record.payload) else f"{record.type}: {NOT_CANONICAL}"
    return None if canonical(event) == record.payload else f"{record.type}: {NOT_CANONICAL}"


def canonical(event: Event) -> bytes | None:
    """The one encoding of an event; ``None`` for one that has none, with a number that is too large to be written."""
    try:
        return encode(event)
    except TypeError:
        return None


def _is_canonical_json(payload: bytes) -> bool:
    try:
        return canonical_bytes(orjson.loads(payload)) == payload
    except (ValueError, TypeError):
        return False
