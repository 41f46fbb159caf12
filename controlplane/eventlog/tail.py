"""Following a log as it grows. It neither sleeps nor knows a clock: the caller says how to wait, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from controlplane.eventlog.port import EventLog, Record


def tail(log: EventLog, after: int, wait: Callable[[], bool]) -> Iterator[Record]:
    """Records after a position, for as long as ``wait`` says so.

    Whenever everything that is there was given, ``wait`` is called; it returns when it is worth to look again (true),
    or to end (false). Raises what reading the log raises.
    """
    position = after
    while True:
        for record in log.read(position):
            position = record.position
            yield record
        if not wait():
            return
