"""Sealing: entries become records with positions and digests. The one place that makes new links of the chain.

It knows no storage; every log seals with it, so that the same entries give the same digests everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from controlplane.eventlog.port import Entry, Head, Record


def seal(entries: Sequence[Entry], head: Head) -> list[Record]:
    """The records that follow ``head``, in the order given.

    The digest is :func:`controlplane.eventlog.port.digest_of`, written out: a call per entry costs a tenth of a
    batched append. A test holds the two equal.

    Raises :class:`ValueError` for a text that is not printable: it could move the border between two columns.
    """
    position, previous = head
    records: list[Record] = []
    for type_name, author, payload, recorded_at_ms, actor, correlation, causation in entries:
        if not f"{type_name}{author}{actor}{correlation}".isprintable():
            raise ValueError(f"an entry's texts must be printable: {(type_name, author, actor, correlation)!r}")
        position += 1
        columns = (
            f"{previous}\x1f{position}\x1f{type_name}\x1f{author}\x1f{recorded_at_ms}"
            f"\x1f{actor}\x1f{correlation}\x1f{causation}\x1f"
        )
        digest = sha256(columns.encode() + payload).hexdigest()
        records.append(
            Record(
                position,
                type_name,
                author,
                payload,
                recorded_at_ms,
                actor,
                correlation,
                causation,
                previous,
                digest,
            )
        )
        previous = digest
    return records


def head_after(records: Sequence[Record], before: Head) -> Head:
    """The head once ``records`` stand in the log; ``before`` if there are none."""
    return Head(records[-1].position, records[-1].digest) if records else before
