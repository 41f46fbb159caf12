"""How lengths of time and instants of the log's clock are written for people, everywhere. Imports nothing."""

from __future__ import annotations

S, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def span(value_ms: int) -> str:
    """A length of time in its two largest units, such as ``3.8 s``, ``5 min 41 s``, ``1 d 03 h``."""
    if value_ms < MINUTE:
        return f"{value_ms / S:.1f} s"
    if value_ms < HOUR:
        return f"{value_ms // MINUTE} min {value_ms % MINUTE // S:02d} s"
    if value_ms < DAY:
        return f"{value_ms // HOUR} h {value_ms % HOUR // MINUTE:02d} min"
    return f"{value_ms // DAY} d {value_ms % DAY // HOUR:02d} h"


def instant(value_ms: int) -> str:
    """An instant of the log's clock, such as ``1d 02:03:04``, as ``--at`` understands it."""
    clock = f"{value_ms % DAY // HOUR:02d}:{value_ms % HOUR // MINUTE:02d}:{value_ms % MINUTE // S:02d}"
    return f"{value_ms // DAY}d {clock}" if value_ms >= DAY else clock
