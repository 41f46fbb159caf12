"""Stands in for the clusters where a course leaves the log: what would they have reported of decisions never made?

Theory of operation. It is told every decision of the course and gives observations, each at its instant, as agents
would report them. It draws no chance: whatever takes time takes as long as the log shows
(:mod:`controlplane.audit.observed`).

- A lease runs after the launch delay of its job, and ends by itself after the job's run time, as finished or failed.
- A lease that is revoked ends after the median stop of its cluster, and no later than its grace. So leave the members
  that an elastic gang or a service is told to give up; its run time does not depend on how many they are.
- Nodes that are asked for are there after the offer's lead time; given back, they are gone after the median of their
  cluster. They cost their price from when they are there until they are given back, and for as much longer as the
  bills of their cluster show.
- A lease ends as lost with a node of its own that the log loses.

What the log has only seen happen to decisions of its own does not happen here: launches that were refused, leases
that were lost on a sound node, requests that failed although others of their offer did not, spot nodes that were
taken away.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import IntEnum
from itertools import count

from controlplane.audit.observed import Observed, Runtime
from controlplane.domain.clusters import NodeState, Offer
from controlplane.domain.events import (
    CapacityObserved,
    CapacityPhase,
    CapacityReleased,
    CapacityRequested,
    Event,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    MemberName,
    NodeObserved,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.quantities import cost_micro_usd
from controlplane.scheduler.state import Lease, Request, RequestPhase, State


class Due(IntEnum):
    """What can be due. The order is that within one instant: work that is done is done before it is stopped."""

    FINISH = 0
    STOP = 1
    START = 2
    JOIN = 3
    FAIL = 4
    LEAVE = 5
    SHRINK = 6


class StandIn:
    """See the module. It reads the state of the course and changes nothing in it."""

    def __init__(self, state: State, observed: Observed, position: int) -> None:
        """Takes over from the real clusters at a position of the log, in the state as it was there."""
        self._state = state
        self._observed = observed
        self._position = position
        self._due: list[tuple[int, Due, int, str, int]] = []
        """(instant, what, number, lease or request, revision)."""
        self._number = count()
        self._ended: dict[int, int] = {}
        """Job -> how often it has ended by itself."""
        self._joined: dict[str, dict[str, int]] = {}
        """Request -> its nodes, each since when it is there."""
        self._released: dict[str, int] = {}
        """Request -> when it was given back."""
        self._names: dict[str, tuple[str, ...]] = {}
        """Request of the log -> the nodes with which the log answers it."""
        self.runtimes: dict[int, Runtime] = {}
        """Job -> where its run time comes from."""
        for lease in state.leases.values():
            self._take_over_lease(lease)
        for request in state.requests.values():
            self._take_over_request(request)

    def next_ms(self) -> int | None:
        """When something is due; ``None`` if nothing ever is."""
        return self._due[0][0] if self._due else None

    def due(self, now_ms: int) -> Iterator[Event]:
        """The observations that are due, each to be folded before the next is taken."""
        while self._due and self._due[0][0] <= now_ms:
            at_ms, due, _, name, revision = heapq.heappop(self._due)
            yield from self._observe(at_ms, due, name, revision)

    def tell(self, event: Event, now_ms: int) -> None:
        """A decision of the course that was just folded."""
        match event:
            case LeaseGranted():
                start_ms = now_ms + self._observed.launch_ms(event.job, event.cluster)
                self._push(start_ms, Due.START, event.lease)
            case LeaseRevoked() if event.lease in self._state.leases:
                lease = self._state.leases[event.lease]
                self._push(now_ms + self._stop_ms(lease, event.grace_ms), Due.STOP, event.lease)
            case LeaseShrunk():
                lease = self._state.leases[event.lease]
                self._push(now_ms + self._stop_ms(lease, event.grace_ms), Due.SHRINK, event.lease, event.revision)
            case CapacityRequested():
                self._ask(self._state.requests[event.request], now_ms)
            case CapacityReleased() if event.request in self._state.requests:
                self._released[event.request] = now_ms
                self._push(now_ms + self._observed.release_ms(event.cluster), Due.LEAVE, event.request)
            case _:
                pass

    def lose(self, node: NodeId, at_ms: int) -> Iterator[Event]:
        """A node is about to be lost: what runs there is lost first."""
        known = self._state.nodes.get(node)
        for lease in list(known.leases.values()) if known is not None else ():
            yield _report(lease, LeasePhase.LOST, at_ms, detail=f"node {node.name} was lost")

    # --- taking over -------------------------------------------------------------------------------------------------

    def _take_over_lease(self, lease: Lease) -> None:
        seen = self._observed.leases[lease.id]
        if lease.revoked is not None:
            revoked_ms = seen.revoked_ms if seen.revoked_ms is not None else self._state.now_ms
            self._push(revoked_ms + self._stop_ms(lease, None), Due.STOP, lease.id)
        elif lease.is_running and seen.started_ms is not None:
            self._run(lease, seen.started_ms)
        else:
            self._push(lease.granted_ms + self._observed.launch_ms(lease.job.id, lease.cluster), Due.START, lease.id)
        for revision in sorted({seat.leaving for seat in lease.seats if seat.leaving}):
            self._push(self._state.now_ms + self._stop_ms(lease, None), Due.SHRINK, lease.id, revision)

    def _take_over_request(self, request: Request) -> None:
        seen, now_ms = self._observed.requests[request.id], self._state.now_ms
        there = {node.name for node in self._state.nodes.values() if node.request == request.id}
        self._joined[request.id] = {name: at_ms for name, at_ms in seen.joined.items() if name in there}
        later = {name: at_ms for name, at_ms in seen.joined.items() if name not in there and at_ms >= now_ms}
        if request.phase is RequestPhase.RELEASING:
            released_ms = seen.released_ms if seen.released_ms is not None else now_ms
            self._released[request.id] = released_ms
            self._push(released_ms + self._observed.release_ms(request.cluster), Due.LEAVE, request.id)
        elif later:
            self._names[request.id] = tuple(later)
            self._push(max(later.values()), Due.JOIN, request.id)
        elif request.phase is RequestPhase.ASKED and seen.failed_ms is not None:
            self._push(seen.failed_ms, Due.FAIL, request.id)
        elif request.phase is RequestPhase.ASKED:
            self._ask(request, request.asked_ms)

    def _ask(self, request: Request, asked_ms: int) -> None:
        promised_ms = self._offer(request).lead_time_ms
        lead_ms = self._observed.lead_ms(request.cluster, request.offer, promised_ms)
        if lead_ms is None:
            self._push(asked_ms + promised_ms, Due.FAIL, request.id)
        else:
            self._push(asked_ms + lead_ms, Due.JOIN, request.id)

    def _offer(self, request: Request) -> Offer:
        offers = self._state.clusters[request.cluster].offers
        return next(offer for offer in offers if offer.name == request.offer)

    def _push(self, at_ms: int, due: Due, name: str, revision: int = 0) -> None:
        heapq.heappush(self._due, (at_ms, due, next(self._number), name, revision))

    def _stop_ms(self, lease: Lease, grace_ms: int | None) -> int:
        grace_ms = lease.job.cls.spec.grace_ms if grace_ms is None else grace_ms
        return min(self._observed.stop_ms(lease.cluster), grace_ms)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _observe(self, at_ms: int, due: Due, name: str, revision: int) -> Iterator[Event]:
        if due in (Due.JOIN, Due.FAIL, Due.LEAVE):
            request = self._state.requests.get(name)
            if request is not None:
                yield from self._capacity(at_ms, due, request)
            return
        lease = self._state.leases.get(name)
        if lease is None or (due in (Due.START, Due.FINISH) and lease.revoked is not None):
            return
        match due:
            case Due.START:
                self._run(lease, at_ms)
                yield _report(lease, LeasePhase.RUNNING, at_ms)
            case Due.FINISH:
                _, phase, _ = self._observed.run_of(lease.job, self._times_ended(lease.job.id))
                self._ended[lease.job.id] = self._times_ended(lease.job.id) + 1
                yield _report(lease, phase, at_ms)
            case Due.STOP:
                yield _report(lease, LeasePhase.ENDED, at_ms)
            case Due.SHRINK:
                there = (seat for seat in lease.seats if not 0 < seat.leaving <= revision)
                members = tuple(MemberName(role=seat.role, ordinal=seat.ordinal) for seat in there)
                yield _report(lease, LeasePhase.RESIZED, at_ms, revision=revision, members=members)

    def _run(self, lease: Lease, started_ms: int) -> None:
        length_ms, _, known = self._observed.run_of(lease.job, self._times_ended(lease.job.id))
        self.runtimes[lease.job.id] = known
        if length_ms is not None:
            self._push(started_ms + length_ms, Due.FINISH, lease.id)

    def _times_ended(self, job: int) -> int:
        found = self._ended.get(job)
        return found if found is not None else self._observed.ended_before(job, self._position)

    def _capacity(self, at_ms: int, due: Due, request: Request) -> Iterator[Event]:
        joined = self._joined.setdefault(request.id, {})
        if due is Due.FAIL:
            yield _capacity(request, CapacityPhase.FAILED, at_ms)
        elif due is Due.LEAVE:
            yield from self._leave(at_ms, request)
        elif request.phase is not RequestPhase.RELEASING:
            offer = self._offer(request)
            named = tuple(f"{request.cluster}/{request.id}.{number}" for number in range(request.nodes))
            for name in self._names.get(request.id, named):
                joined[name] = at_ms
                yield _node(request, offer, name, NodeState.READY)
            yield _capacity(request, CapacityPhase.PROVIDED, at_ms, nodes=tuple(joined))

    def _leave(self, at_ms: int, request: Request) -> Iterator[Event]:
        offer, joined = self._offer(request), self._joined.get(request.id, {})
        for name in joined:
            yield from self.lose(NodeId(request.cluster, name), at_ms)
        for name in joined:
            if NodeId(request.cluster, name) in self._state.nodes:
                yield _node(request, offer, name, NodeState.LOST)
        until_ms = self._released[request.id] + self._observed.billed_ms(request.cluster)
        length_ms = sum(max(0, until_ms - since_ms) for since_ms in joined.values())
        cost = min(cost_micro_usd(offer.price_micro_usd_per_hour, length_ms), request.promised_micro_usd)
        yield _capacity(request, CapacityPhase.RELEASED, at_ms, charged_micro_usd=cost)


def _report(
    lease: Lease,
    phase: LeasePhase,
    at_ms: int,
    *,
    detail: str = "",
    revision: int = 0,
    members: tuple[MemberName, ...] = (),
) -> LeaseObserved:
    return LeaseObserved(
        cluster=lease.cluster,
        lease=lease.id,
        phase=phase,
        observed_ms=at_ms,
        detail=detail,
        revision=revision,
        members=members,
    )


def _capacity(
    request: Request,
    phase: CapacityPhase,
    at_ms: int,
    *,
    nodes: tuple[str, ...] = (),
    charged_micro_usd: int = 0,
) -> CapacityObserved:
    return CapacityObserved(
        cluster=request.cluster,
        request=request.id,
        phase=phase,
        observed_ms=at_ms,
        nodes=nodes,
        charged_micro_usd=charged_micro_usd,
    )


def _node(request: Request, offer: Offer, name: str, state: NodeState) -> NodeObserved:
    return NodeObserved(
        cluster=request.cluster,
        node=name,
        state=state,
        shape=offer.shape,
        flavor=offer.flavor,
        labels=dict(offer.labels),
        request=request.id,
    )
