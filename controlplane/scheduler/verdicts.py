"""What a cycle says of a job that it did not place, and the account it keeps of a job that is watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.reasons import Reason

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Refusal:
    """No, and why. ``short`` is what is missing by resource, in its unit."""

    reason: Reason
    short: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class OfferVerdict:
    """What became of one offer for one job."""

    offer: str
    """``cluster/offer``"""
    answer: str
    rule: str | None = None


@dataclass(slots=True, eq=False)
class Watch:
    """The account of one watched job in one cycle."""

    job: int
    offers: list[OfferVerdict] = field(default_factory=list)
