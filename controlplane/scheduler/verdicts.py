"""What a cycle says of a job that it did not place, and the account it keeps of a job that is watched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.events import Tally, TopologyShort
from controlplane.domain.reasons import Reason

_NOTHING: Mapping[str, int] = {}


@dataclass(frozen=True, slots=True)
class Refusal:
    """No, and why. ``short`` is what is missing by resource, in its unit."""

    reason: Reason
    short: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    rule: str | None = None
    topology: TopologyShort | None = None
    """The best that one domain of a required level has, where that is what is in the way."""


@dataclass(frozen=True, slots=True)
class OfferVerdict:
    """What became of one offer for one job."""

    offer: str
    """``cluster/offer``"""
    answer: str
    rule: str | None = None


@dataclass(frozen=True, slots=True)
class QueueStanding:
    """A queue among its siblings, as the ordering rules saw it at the end of the cycle."""

    queue: str
    order: tuple[int, ...]
    share_ppb: int
    pending: int


@dataclass(frozen=True, slots=True)
class QuotaStanding:
    """What one key of the quota leaves for a job: ``asked`` of ``available``; ``ceiling`` is the most ever."""

    flavor: str
    resource: str
    asked: int
    available: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class RoleStanding:
    """How one role fared: nodes by cause of refusal, how many members would have fitted, and what the nearest node
    lacks for one member, by resource."""

    role: str
    members: int
    would_fit: int
    tally: Tally
    nearest: str | None
    lacks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation: the job that it is for, its start (``None``: when the nodes have drained) and its nodes."""

    job: int
    start_ms: int | None
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WarmHold:
    """What a warm pool holds: so many GPUs on these nodes; ``queue`` whose services may take from it, if not all."""

    pool: str
    gpus: int
    nodes: tuple[str, ...]
    queue: str | None = None


@dataclass(slots=True, eq=False)
class Watch:
    """The account of one watched job in one cycle."""

    job: int
    refusal: Refusal | None = None
    detail: str = ""
    """What a job was told that is turned away for good."""
    is_granted: bool = False
    order: tuple[int, ...] = ()
    ahead: int = 0
    """Jobs of its queue that wait in front of it after the cycle."""
    first_ahead: list[int] = field(default_factory=list)
    queues: list[list[QueueStanding]] = field(default_factory=list)
    """From the top: at each level the siblings on the way to its queue, best first."""
    quotas: list[QuotaStanding] = field(default_factory=list)
    roles: list[RoleStanding] = field(default_factory=list)
    offers: list[OfferVerdict] = field(default_factory=list)
    topology: TopologyShort | None = None
    """The best that one domain of a level that it requires has."""
    after: list[int] = field(default_factory=list)
    """Jobs that must be over before it may start, and are not."""
    reservations: list[Hold] = field(default_factory=list)
    """Those of this cycle, in the order in which they were made."""
    warm: list[WarmHold] = field(default_factory=list)
    """What is held for services and not for it, where that is in its way."""
    waits_for: tuple[str, ...] = ()
    """Leases that must end before it gets the room that is promised to it."""
    served_by: str | None = None
    """The capacity request that is under way for it."""
    faults: dict[str, None] = field(default_factory=dict)
    """What the eligibility rules that erred for it said; each counts as a refusal of the node."""
