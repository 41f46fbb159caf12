"""How a service is used over time, and how fast one replica answers: what a simulated cluster makes signals of.

Real clusters measure; a simulated one needs to be told. Exact integers, so that a simulated day is the same everywhere.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from controlplane.domain.model import Model
from controlplane.domain.quantities import MAX_MS, Millis

Rate = Annotated[int, Field(ge=0, le=10**12, strict=True)]
"""Requests per second, in thousandths."""


class LoadPoint(Model):
    """How much is asked of a service at one instant."""

    at_ms: Millis
    rate_milli: Rate


class ServiceLoad(Model):
    """A curve through points, straight between them, and the speed of a replica."""

    curve: Annotated[tuple[LoadPoint, ...], Field(min_length=1, max_length=10_000)]
    """In order of time. Before the first point and behind the last the load is as there."""
    period_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)] | None = None
    """The curve repeats after so long, such as a day, and goes straight from its last point to its first."""
    every_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)] = 15_000
    """How often the service is observed."""
    latency_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)]
    """The 99th percentile of the latency of a replica of which little is asked."""
    replica_rate_milli: Annotated[int, Field(ge=1, le=10**12, strict=True)]
    """What one replica can answer."""

    @model_validator(mode="after")
    def _points_are_in_order(self) -> Self:
        for earlier, later in pairwise(self.curve):
            if earlier.at_ms >= later.at_ms:
                raise ValueError(f"the point at {later.at_ms} ms stands behind that at {earlier.at_ms} ms; sort them")
        if self.period_ms is not None and self.curve[-1].at_ms >= self.period_ms:
            raise ValueError(f"the point at {self.curve[-1].at_ms} ms is not within the period of {self.period_ms} ms")
        return self

    def rate_at(self, at_ms: int) -> int:
        """Requests per second at an instant, in thousandths, rounded down."""
        if self.period_ms is None:
            points = [(point.at_ms, point.rate_milli) for point in self.curve]
        else:
            at_ms %= self.period_ms
            first, last = self.curve[0], self.curve[-1]
            before = (last.at_ms - self.period_ms, last.rate_milli)
            behind = (first.at_ms + self.period_ms, first.rate_milli)
            points = [before, *((point.at_ms, point.rate_milli) for point in self.curve), behind]
        if at_ms <= points[0][0]:
            return points[0][1]
        for (from_ms, rate), (to_ms, next_rate) in pairwise(points):
            if at_ms < to_ms:
                return rate + (next_rate - rate) * (at_ms - from_ms) // (to_ms - from_ms)
        return points[-1][1]
