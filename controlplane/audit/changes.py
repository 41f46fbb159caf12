"""What a decision is about and what it says, so that the decisions of two courses can be laid side by side.

Two courses of the same history number their requests for capacity, and so their rented nodes, each in its own way,
and two bundles have their rules in other lines. Neither makes a decision another one: a *gist* is what is left of a
decision without either. What only tells about a decision (the tally of a refusal, the offers that were not taken) is
left out too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from controlplane.domain.events import (
    CapacityReleased,
    CapacityRequested,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobRequeued,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseRevoked,
    LeaseShrunk,
    Member,
    PromiseReleased,
    QuotaOverPromised,
    ReservationMade,
    ReservationReleased,
    RoomPromised,
    ServiceScaled,
    ServiceShort,
    TermsGiven,
    WarmPoolsHeld,
)
from controlplane.domain.ids import LeaseId, NodeId, job_of_lease
from controlplane.scheduler.state import EVICTED, State

KINDS: dict[str, str] = {
    "terms": "a gang is given other terms than it asked for",
    "placed": "a job has its place",
    "evicted": "a job loses its place to another, by priority or by quota",
    "scaled": "a service is to have another number of replicas",
    "resized": "an elastic gang or a service grows or shrinks",
    "stopped": "a job loses its place for another cause: cancelled, a node lost, a deadline",
    "refused": "a submission is turned away",
    "ended": "a job is over by decision: expired, failed for good, cancelled while it waited",
    "requeued": "a job whose start failed waits again",
    "promised": "room is promised to a job, or is no longer",
    "reserved": "a start is reserved for a blocked job, or is no longer",
    "rented": "cloud capacity is asked for",
    "returned": "cloud capacity is given back",
    "pools": "what warm pools hold",
    "waiting": "why jobs that are alike wait",
    "short": "why a service has fewer replicas than it is to have",
    "over-promised": "quota is promised beyond what there is",
}
"""Kind of decision -> what it says."""
_SHORT = 64
"""A gist of more characters is kept as its digest: gangs may have a hundred thousand members."""


class Gist(NamedTuple):
    """Kind of decision, the job that it is about (0 for none), and what it says."""

    kind: str
    job: int
    says: str


def gist_of(event: Event, state: State) -> Gist | None:
    """The gist of a decision that a state holds, or is about to; ``None`` for the record of a cycle."""
    return _GISTS[type(event)](event, state) if not isinstance(event, CycleDecided) else None


def gists_of(events: Iterable[Event], state: State) -> list[Gist]:
    """The gists of a cycle's decisions, in order."""
    return [gist for event in events if (gist := gist_of(event, state)) is not None]


def odd_ones(first: Sequence[Gist], second: Sequence[Gist]) -> tuple[list[int], list[int]]:
    """The places of those gists that the other list does not have as often, in each. The order does not matter: in one
    cycle all decisions take effect together."""
    return _beyond(first, second), _beyond(second, first)


def _beyond(gists: Sequence[Gist], others: Sequence[Gist]) -> list[int]:
    left: dict[Gist, int] = {}
    for gist in others:
        left[gist] = left.get(gist, 0) + 1
    odd: list[int] = []
    for at, gist in enumerate(gists):
        if left.get(gist, 0) > 0:
            left[gist] -= 1
        else:
            odd.append(at)
    return odd


def rule_of(event: Event) -> str | None:
    """``file:line`` of the rule behind a decision, where it names one."""
    rule: str | None = getattr(event, "rule", None)
    return rule


def _job(lease: str) -> int:
    return job_of_lease(LeaseId(lease))


def _places(cluster: str, members: Sequence[Member], state: State) -> str:
    return f"{cluster} " + ";".join(
        f"{member.role}.{member.ordinal}@{_node(NodeId(cluster, member.node), state)}"
        f":{_list(member.gpus)}:{_list(member.slices)}"
        for member in members
    )


def _list(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _node(at: NodeId, state: State) -> str:
    """The name of an owned node; of a rented one, the offer by which it came."""
    node = state.nodes.get(at)
    request = state.requests.get(node.request) if node is not None and node.request is not None else None
    return f"{request.cluster}/{request.offer}" if request is not None else at.name


def _brief(text: str) -> str:
    return text if len(text) <= _SHORT else blake2b(text.encode(), digest_size=16).hexdigest()


# --- one kind after the other -----------------------------------------------------------------------------------------


def _granted(event: LeaseGranted, state: State) -> Gist:
    return Gist("placed", event.job, _brief(f"{event.attempt} {_places(event.cluster, event.members, state)}"))


def _revoked(event: LeaseRevoked, _: State) -> Gist:
    kind = "evicted" if event.cause in EVICTED else "stopped"
    return Gist(kind, _job(event.lease), f"{event.lease} {event.cause} {event.for_job or ''}")


def _grown(event: LeaseGrown, state: State) -> Gist:
    lease = state.leases.get(event.lease)  # none if it is granted in the same cycle
    cluster = lease.cluster if lease is not None else next(iter(state.homes.get(event.members[0].node, ())), "")
    return Gist("resized", _job(event.lease), _brief(f"{event.revision} {_places(cluster, event.members, state)}"))


def _shrunk(event: LeaseShrunk, _: State) -> Gist:
    leaving = ",".join(f"{member.role}.{member.ordinal}" for member in event.members)
    return Gist("resized", _job(event.lease), _brief(f"{event.revision} {event.for_job or ''} {leaving}"))


def _promised(event: RoomPromised, state: State) -> Gist:
    places = _places(event.cluster, event.members, state)
    return Gist("promised", event.job, _brief(f"{places} {','.join(event.victims)}"))


def _reserved(event: ReservationMade, state: State) -> Gist:
    homes = (event.cluster or next(iter(state.homes.get(name, ())), "") for name in event.nodes)
    nodes = ",".join(_node(NodeId(cluster, name), state) for cluster, name in zip(homes, event.nodes, strict=True))
    return Gist("reserved", event.job, _brief(f"{event.start_ms} {nodes}"))


def _requested(event: CapacityRequested, _: State) -> Gist:
    return Gist("rented", event.for_job, f"{event.cluster}/{event.offer} {event.nodes}")


def _released(event: CapacityReleased, state: State) -> Gist:
    request = state.requests.get(event.request)
    return Gist("returned", request.held_for if request is not None else 0, event.cause)


_GISTS: dict[type[Event], Callable[[Any, State], Gist]] = {
    TermsGiven: lambda event, _: Gist("terms", event.job, _brief(repr(event.terms))),
    LeaseGranted: _granted,
    LeaseRevoked: _revoked,
    LeaseGrown: _grown,
    LeaseShrunk: _shrunk,
    RoomPromised: _promised,
    PromiseReleased: lambda event, _: Gist("promised", event.job, f"released {event.cause}"),
    ReservationMade: _reserved,
    ReservationReleased: lambda event, _: Gist("reserved", event.job, "released"),
    JobsWaiting: lambda event, _: Gist("waiting", event.head, str(event.reason)),
    JobRefused: lambda event, _: Gist("refused", event.job, str(event.reason)),
    JobEnded: lambda event, _: Gist("ended", event.job, event.outcome),
    JobRequeued: lambda event, _: Gist("requeued", event.job, event.cause),
    CapacityRequested: _requested,
    CapacityReleased: _released,
    ServiceScaled: lambda event, _: Gist("scaled", event.job, str(event.wanted)),
    ServiceShort: lambda event, _: Gist("short", event.job, str(event.reason)),
    WarmPoolsHeld: lambda event, _: Gist("pools", 0, _brief(repr(event.pools))),
    QuotaOverPromised: lambda event, _: Gist("over-promised", 0, _brief(repr(event.promises))),
}
