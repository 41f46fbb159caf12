"""What a simulated service's monitoring shows: latency that goes up with the load of each replica, and a queue.

Each replica answers like an M/M/1 queue, of which the time in the system is exponential with mean 1 / (mu - lambda)
(Kleinrock, "Queueing Systems" I, 1975, 3.2): its 99th percentile is that of an idle replica times mu / (mu - lambda).
What is asked beyond what all replicas can answer waits, as a fluid, and whoever comes waits behind it. Exact integers.
"""

from __future__ import annotations

from controlplane.domain.loads import ServiceLoad
from controlplane.domain.quantities import MAX_MS, MILLI, ceil_div

NEAREST_TO_FULL = 100
"""Latency grows up to this many times that of an idle replica; the formula has no end where load meets capacity."""


class Gauge:
    """Of one service. ``read_ms`` and what was read are as of the last reading."""

    def __init__(self, load: ServiceLoad, now_ms: int) -> None:
        self.load = load
        self.read_ms = now_ms
        self.is_read = False
        self.p99_ms = 0
        self._backlog = 0
        """Requests that wait, in millionths."""

    @property
    def queue_depth(self) -> int:
        """Requests that wait."""
        return self._backlog // MILLI**2

    def read(self, now_ms: int, replicas: int) -> None:
        """Look at the service, which has had so many replicas since the last reading."""
        rate = self.load.rate_at(now_ms)
        capacity = replicas * self.load.replica_rate_milli
        waiting = self._backlog + (rate - capacity) * (now_ms - self.read_ms)
        self.read_ms, self.is_read, self._backlog = now_ms, True, max(0, waiting)
        spare = max(capacity - rate, ceil_div(capacity, NEAREST_TO_FULL))
        answering_ms = ceil_div(self.load.latency_ms * capacity, spare)
        self.p99_ms = min(MAX_MS, answering_ms + ceil_div(self._backlog, capacity))
