"""Sealing: entries become records with positions and digests. The one place that makes new links of the chain.

It knows no storage; every log seals with it, so that the same entries give the same digests everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from operator import itemgetter

from controlplane.eventlog.port import Entry, Head

Row = tuple[int, str, str, bytes, int, str, str, int | None, str, str]
"""The columns of a :class:`~controlplane.eventlog.port.Record` as a bare tuple, which SQLite's driver binds a third
faster than a named one."""

_FEW = itemgetter(0, 1, 4)
"""Type, author and actor of an entry: a batch has few different ones."""
_CORRELATION = itemgetter(5)


def seal(entries: Sequence[Entry], head: Head) -> list[Row]:
    """The rows that follow ``head``, in the order given.

    The digest is :func:`controlplane.eventlog.port.digest_of`, written out: a call per entry costs a tenth of a
    batched append. A test holds the two equal.

    Raises :class:`ValueError` for a text that is not printable: it could move the border between two columns.
    """
    _must_be_printable(entries)
    position, previous = head
    rows: list[Row] = []
    for type_name, author, payload, recorded_at_ms, actor, correlation, causation in entries:
        position += 1
        columns = (
            f"{previous}\x1f{position}\x1f{type_name}\x1f{author}\x1f{recorded_at_ms}"
            f"\x1f{actor}\x1f{correlation}\x1f{causation}\x1f"
        )
        digest = sha256(columns.encode() + payload).hexdigest()
        rows.append(
            (position, type_name, author, payload, recorded_at_ms, actor, correlation, causation, previous, digest)
        )
        previous = digest
    return rows


def head_after(rows: Sequence[Row], before: Head) -> Head:
    """The head once ``rows`` stand in the log; ``before`` if there are none."""
    return Head(rows[-1][0], rows[-1][-1]) if rows else before


def _must_be_printable(entries: Sequence[Entry]) -> None:
    texts = "".join(map(_CORRELATION, entries)), *("".join(few) for few in dict.fromkeys(map(_FEW, entries)))
    for text in texts:
        if not text.isprintable():
            raise ValueError(f"the texts of an entry must be printable, this is not: {text[:80]!r}")
