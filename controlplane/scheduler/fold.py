"""The only function that changes state: ``apply(state, position, event)``.

A fold never refuses: what is in the log happened. An event about something that the state does not know (a report on a
lease that has ended, the cancellation of a finished job) changes nothing, because deliveries may come late, twice and
out of order. Wrong requests are kept out before they are recorded, by the ingress.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from controlplane.domain.clusters import Budget, NodeState, WarmPool
from controlplane.domain.events import (
    BudgetConfigured,
    CapacityObserved,
    CapacityPhase,
    CapacityReleased,
    CapacityRequested,
    ClusterConfigured,
    CycleDecided,
    Event,
    HistoryConfigured,
    JobCancelRequested,
    JobEnded,
    JobRefused,
    JobRequeued,
    JobSubmitted,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    Member,
    NodeObserved,
    PolicyActivated,
    PolicyShadowed,
    PromiseReleased,
    QueueConfigured,
    QuotaOverPromised,
    ReservationMade,
    ReservationReleased,
    RoomPromised,
    ServiceObserved,
    ServiceScaled,
    ServiceShort,
    ShadowDecided,
    ShadowEnded,
    ShadowFailed,
    TermsGiven,
    Ticked,
    TypicalJobsConfigured,
    WarmPoolConfigured,
    WarmPoolsHeld,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.mig import spots
from controlplane.domain.quantities import MAX_MS
from controlplane.domain.reasons import Reason
from controlplane.scheduler.blocks import let_go_of
from controlplane.scheduler.facts import ClusterFacts
from controlplane.scheduler.fragmentation import shape_of
from controlplane.scheduler.history import History
from controlplane.scheduler.kinds import Build, KindTable, can_sit
from controlplane.scheduler.quota import QueueNode, check_ancestors
from controlplane.scheduler.state import (
    EVICTED,
    EVICTIONS_KEPT,
    TAKEN,
    BudgetAccount,
    Job,
    Lease,
    Node,
    Phase,
    Pool,
    Promise,
    Request,
    RequestPhase,
    Reservation,
    Rest,
    Seat,
    Service,
    Shadow,
    Signal,
    State,
)
from controlplane.scheduler.terms import expiries, take_on
from controlplane.scheduler.topology import declared

UNFINISHED_KEPT = 100_000
"""Jobs that did not finish, the last so many: a job that names an older one is taken to depend on one that did."""
_OWN_FAULT = (LeasePhase.FAILED, LeasePhase.REFUSED)
"""Ends that use up the attempts of a service, which outlives many nodes."""
KINDS_KEPT = 100_000
CLASSES_KEPT = 100_000
SHADOW_TOLD = 1_000
"""Caches are made anew beyond these sizes; what is decided does not depend on them."""


def apply(state: State, position: int, event: Event) -> None:
    """Advance the state by one event. ``position`` must be the next one."""
    assert position == state.position + 1, f"fold at {state.position} was given position {position}"
    state.position = position
    _FOLDS[type(event)](state, event)


# --- jobs ------------------------------------------------------------------------------------------------------------


def _job_submitted(state: State, event: JobSubmitted) -> None:
    spec = event.spec
    job = Job(state.position, spec.name, state.class_of(spec, event.submitted_ms), event.submitted_ms)
    state.jobs[job.id] = job
    state.counts.submitted += 1
    state.arrivals.append(job)
    _depend(state, job)
    if not job.waits_for:
        state.began_waiting.append(job)
    _count_pending(state, job, state.queue_of(job), 1)
    if state.typical.see(job.cls.shapes):
        _typical_changed(state)
    for expiry in expiries(job):
        insort(state.expiries, expiry)


def _depend(state: State, job: Job) -> None:
    """Who was over before it came is not waited for."""
    spec = job.cls.spec
    if not spec.after_ok and not spec.after_any:
        return
    bad = (id_ for id_ in spec.after_ok if id_ >= job.id or id_ in state.unfinished)
    job.orphaned_by = next(bad, next((id_ for id_ in spec.after_any if id_ >= job.id), 0))
    live = (id_ for id_ in (*spec.after_ok, *spec.after_any) if id_ in state.jobs or id_ == job.orphaned_by)
    job.waits_for = tuple(sorted(set(live)))
    for id_ in job.waits_for:
        if id_ in state.jobs:
            state.dependents.setdefault(id_, []).append(job.id)


def _dependents_go_on(state: State, over: int, is_finished: bool) -> None:
    """A job is over: who waited for it may start, or never will."""
    if not is_finished:
        state.unfinished[over] = None
        if len(state.unfinished) > UNFINISHED_KEPT:
            del state.unfinished[next(iter(state.unfinished))]
    for id_ in state.dependents.pop(over, ()):
        job = state.jobs.get(id_)
        if job is None or job.orphaned_by:
            continue
        if not is_finished and over in job.cls.spec.after_ok:
            job.orphaned_by = over
            if job.phase is Phase.WAITING:
                job.phase = Phase.SUBMITTED
                state.arrivals.append(job)
            continue
        job.waits_for = tuple(other for other in job.waits_for if other != over)
        if not job.waits_for:
            job.recorded_reason = 0
            state.began_waiting.append(job)
            state.freed += 1


def _job_cancel_requested(state: State, event: JobCancelRequested) -> None:
    job = state.jobs.get(event.job)
    if job is not None and not job.is_cancelled:
        job.is_cancelled = True
        state.cancels.append(job)


def _job_refused(state: State, event: JobRefused) -> None:
    job = state.jobs.get(event.job)
    if job is not None:
        state.counts.refused += 1
        _forget(state, job)
        _dependents_go_on(state, job.id, is_finished=False)


def _terms_given(state: State, event: TermsGiven) -> None:
    job = state.jobs.get(event.job)
    if job is None or job.phase not in (Phase.SUBMITTED, Phase.WAITING):
        return
    take_on(state, job, event.terms)
    if job.phase is Phase.WAITING:  # it has a place in the line of another class, which it leaves
        job.turn += 1
        job.recorded_reason = 0
        state.is_requeued = True
        state.began_waiting.append(job)


def _job_requeued(state: State, event: JobRequeued) -> None:
    job = state.jobs.get(event.job)
    if job is not None and job.phase is Phase.RETURNED:
        job.phase = Phase.WAITING
        job.turn += 1
        job.recorded_reason = 0
        state.is_requeued = True
        state.began_waiting.append(job)
        _count_pending(state, job, state.queue_of(job), 1)


def _job_ended(state: State, event: JobEnded) -> None:
    job = state.jobs.get(event.job)
    if job is not None:
        setattr(state.counts, event.outcome, getattr(state.counts, event.outcome) + 1)
        _forget(state, job)
        _dependents_go_on(state, job.id, is_finished=False)


def _jobs_waiting(state: State, event: JobsWaiting) -> None:
    job = state.jobs.get(event.head)
    if job is not None:
        job.recorded_reason = event.reason


def _forget(state: State, job: Job) -> None:
    if job.phase in (Phase.SUBMITTED, Phase.WAITING):
        _count_pending(state, job, state.queue_of(job), -1)
    job.phase = Phase.RETURNED
    del state.jobs[job.id]
    if _let_go_of_room(state, job.id):
        state.freed += 1
    for request in state.requests.values():
        if request.held_for == job.id:
            _release_hold(state, request)


def _count_pending(state: State, job: Job, queue: QueueNode | None, change: int) -> None:
    job.cls.waiting += change
    state.count_pending(queue, change)


# --- leases ----------------------------------------------------------------------------------------------------------


def _lease_granted(state: State, event: LeaseGranted) -> None:
    job = state.jobs[event.job]
    seats = _seats(state, job, event.cluster, event.members)
    rented = {name for seat in seats if (name := state.nodes[seat.node].request) is not None}
    requests = tuple(sorted(rented)) if rented else ()
    queue = state.queue_of(job)
    lease = Lease(event.lease, job, event.attempt, event.cluster, seats, requests, state.now_ms, number=state.position)
    if job.phase in (Phase.SUBMITTED, Phase.WAITING):
        _count_pending(state, job, queue, -1)
    job.phase = Phase.PLACED
    job.lease = lease.id
    job.attempts = event.attempt
    _keep_lease(state, lease)
    if _let_go_of_room(state, job.id):
        state.freed += 1
    state.counts.placements += 1
    if job.array is not None:
        state.arrays[job.array] = state.arrays.get(job.array, 0) + 1
    if job.cls.spec.time_limit_ms is not None:
        insort(state.time_limits, (state.now_ms + job.cls.spec.time_limit_ms, lease.id))
    if job.cls.spec.hold_ms is not None:
        insort(state.holds, (state.now_ms + job.cls.spec.hold_ms, lease.id))
    state.count_running(queue, 1)
    for seat in seats:
        _sit(state, lease, queue, seat)
    _take_from_pools(state, lease, seats)
    if state.is_cloud(lease.cluster):
        state.counts.burst_placements += 1
    _count_rented(state, lease, 1, state.now_ms)
    for request in state.requests.values():
        if request.held_for == job.id:
            _release_hold(state, request)


def _keep_lease(state: State, lease: Lease) -> None:
    state.leases[lease.id] = lease
    if lease.job.cls.is_elastic:
        state.elastic[lease.id] = lease
    if lease.job.cls.is_service:
        lease.service = Service(len(lease.seats), state.now_ms)
        state.services[lease.id] = lease


def _let_go_of_room(state: State, job: int) -> bool:
    """Nothing is held for the job any more; whether anything was."""
    promise, reservation = state.promises.pop(job, None), state.reservations.pop(job, None)
    return promise is not None or reservation is not None


def _seats(state: State, job: Job, cluster: str, members: tuple[Member, ...]) -> tuple[Seat, ...]:
    asks = {ask.role.name: ask for ask in job.cls.asks}
    seats: list[Seat] = []
    for m in members:
        node = state.node_of(cluster, m.node)
        ask, gpus = asks[m.role].on(node.build), spots(m.gpus, m.slices)
        seats.append(Seat(node.id, m.role, m.ordinal, ask, gpus, node.build.flavor))
    return tuple(seats)


def _sit(state: State, lease: Lease, queue: QueueNode | None, seat: Seat) -> None:
    node = state.nodes[seat.node]
    node.leases[lease.id] = lease
    _set_kind(state, node, state.kinds.take(node.kind, seat.ask.amounts, seat.gpus))
    state.use(queue, seat.flavor, seat.ask, 1)


def _take_from_pools(state: State, lease: Lease, seats: tuple[Seat, ...]) -> None:
    """A service takes what warm pools hold where it sits. After all that is counted by queue, which is looked at."""
    if state.pools and lease.service is not None:
        queue = state.books.queue_of(lease.job)
        for seat in seats:
            let_go_of(state, state.nodes[seat.node], queue)


def _set_kind(state: State, node: Node, kind: int) -> None:
    node.kind = kind
    if state.agenda is not None:
        state.agenda.node_changed(node)


def _lease_revoked(state: State, event: LeaseRevoked) -> None:
    lease = state.leases.get(event.lease)
    if lease is not None and lease.revoked is None:
        lease.revoked = event.cause
        if event.cause in EVICTED and event.for_job is not None:
            lease.job.evicted_for = [*lease.job.evicted_for, event.for_job][-EVICTIONS_KEPT:]


def _lease_observed(state: State, event: LeaseObserved) -> None:
    lease = state.leases.get(event.lease)
    if lease is None or lease.cluster != event.cluster:  # a cluster speaks for itself only
        return
    if event.phase is LeasePhase.LAUNCHING:
        return
    if event.phase is LeasePhase.RUNNING:
        _no_longer_awaited(state, lease)
        lease.is_running = True
        if lease.job.phase is Phase.PLACED:
            lease.job.phase = Phase.RUNNING
        return
    if event.phase is LeasePhase.RESIZED:
        _lease_resized(state, lease, event)
        return
    _release(state, lease, event.observed_ms)
    _lease_over(state, lease, event)


def _no_longer_awaited(state: State, lease: Lease) -> None:
    """It runs, or is over."""
    hold_ms = lease.job.cls.spec.hold_ms
    if hold_ms is not None and not lease.is_running:
        state.holds.remove((lease.granted_ms + hold_ms, lease.id))


def _lease_over(state: State, lease: Lease, event: LeaseObserved) -> None:
    job = lease.job
    if event.phase is LeasePhase.FINISHED:
        state.counts.finished += 1
        _forget(state, job)
        _dependents_go_on(state, job.id, is_finished=True)
        if job.is_cancelled:
            state.cancels = [other for other in state.cancels if other is not job]
        return
    job.phase = Phase.RETURNED
    job.lease = None
    job.cause = lease.revoked or event.phase.value
    if job.cause == LeasePhase.ENDED and any(seat.leaving for seat in lease.seats):
        job.cause = EVICTED[0]  # a cluster that could not take members out of it stopped it as a whole
    if job.cause in EVICTED:
        job.evicted += 1
        job.evictions = [*job.evictions, event.observed_ms][-EVICTIONS_KEPT:]
    elif job.cause != "deadline" and not (job.cls.is_service and event.phase not in _OWN_FAULT):
        job.failures += 1
    state.returned.append(job)


def _release(state: State, lease: Lease, at_ms: int) -> None:
    del state.leases[lease.id]
    _no_longer_awaited(state, lease)
    if lease.service is not None:
        del state.services[lease.id]
        state.fresh_signals.pop(lease.id, None)
    if lease.job.cls.spec.time_limit_ms is not None:
        state.time_limits.remove((lease.granted_ms + lease.job.cls.spec.time_limit_ms, lease.id))
    if (array := lease.job.array) is not None:
        state.arrays[array] -= 1
        if state.arrays[array] == 0:
            del state.arrays[array]
    state.elastic.pop(lease.id, None)
    if state.stranded:
        state.stranded = [other for other in state.stranded if other is not lease]
    queue = state.queue_of(lease.job)
    state.count_running(queue, -1)
    for seat in lease.seats:
        _stand_up(state, queue, lease, seat)
    for seat in lease.seats:
        _no_longer_crowded(state, lease, seat.node)
    state.freed += 1
    _count_rented(state, lease, -1, at_ms)


def _no_longer_crowded(state: State, lease: Lease, at: NodeId) -> None:
    """The lease has left a node that had no room for it; who else is there has not moved."""
    node = state.nodes.get(at)
    if node is None or lease.id not in node.crowded:
        return
    node.crowded.remove(lease.id)
    if node.state is NodeState.LOST:
        _forget_if_empty(state, node)
    elif not node.crowded:
        _set_kind(state, node, _kind_of(state, node))


def _kind_of(state: State, node: Node) -> int:
    """The kind of a node with those who sit on it."""
    kind = state.kinds.empty(node.build_now)
    for lease in node.leases.values():
        for seat in lease.seats:
            if seat.node == node.id:
                kind = state.kinds.take(kind, seat.ask.amounts, seat.gpus)
    return kind


def _forget_if_empty(state: State, node: Node) -> None:
    """A lost node is kept for as long as the leases on it are."""
    if not node.leases and not node.crowded:
        state.drop_node(node)


def _stand_up(state: State, queue: QueueNode | None, lease: Lease, seat: Seat) -> None:
    """Give back what one member took. The lease no longer counts as being on the node."""
    state.use(queue, seat.flavor, seat.ask, -1)
    node = state.nodes.get(seat.node)
    if node is None:
        return
    if lease.id in node.crowded:
        return
    node.leases.pop(lease.id, None)
    if node.state is not NodeState.LOST:
        _set_kind(state, node, state.kinds.give_back(node.kind, seat.ask.amounts, seat.gpus))
    else:
        _forget_if_empty(state, node)


# --- gangs whose members change --------------------------------------------------------------------------------------


def _lease_grown(state: State, event: LeaseGrown) -> None:
    lease = state.leases[event.lease]
    is_taken = event.cause == TAKEN
    made = _seats(state, lease.job, lease.cluster, event.members)
    seats = tuple(replace(seat, since=event.revision, is_taken=is_taken) for seat in made)
    lease.revision = event.revision
    if lease.service is not None:
        lease.service.recorded_reason = 0
    if is_taken and _let_go_of_room(state, lease.job.id):
        state.freed += 1
    _set_seats(state, lease, lease.seats + seats)
    for seat in seats:
        _sit(state, lease, state.queue_of(lease.job), seat)
    _take_from_pools(state, lease, seats)


def _lease_shrunk(state: State, event: LeaseShrunk) -> None:
    lease = state.leases[event.lease]
    lease.revision = event.revision
    leaving = {(member.role, member.ordinal) for member in event.members}
    seats = (replace(s, leaving=event.revision) if (s.role, s.ordinal) in leaving else s for s in lease.seats)
    _set_seats(state, lease, tuple(seats))


def _set_seats(state: State, lease: Lease, seats: tuple[Seat, ...]) -> None:
    lease.seats = seats
    if state.agenda is not None:
        state.agenda.members_changed(lease)


def _lease_resized(state: State, lease: Lease, event: LeaseObserved) -> None:
    """Whoever was wanted up to the reported revision and is not there holds no room any more. That a gang goes on with
    fewer members than it needs is nothing that an agent may say, and is passed over."""
    there = {(member.role, member.ordinal) for member in event.members}
    gone = [seat for seat in lease.seats if seat.since <= event.revision and (seat.role, seat.ordinal) not in there]
    spare = {ask.role.name: -ask.role.count for ask in lease.job.cls.asks}
    for seat in lease.staying():
        spare[seat.role] += 1
    out: list[Seat] = []
    for seat in reversed(gone):
        if not seat.leaving:
            if spare[seat.role] <= 0:
                continue
            spare[seat.role] -= 1
            lease.is_rigid = True
        out.append(seat)
    if out:
        _let_go(state, lease, out, event.observed_ms)


def _let_go(state: State, lease: Lease, out: list[Seat], at_ms: int) -> None:
    _set_seats(state, lease, tuple(seat for seat in lease.seats if not any(seat is other for other in out)))
    queue = state.queue_of(lease.job)
    for seat in out:
        _stand_up(state, queue, lease, seat)
        if not any(other.node == seat.node for other in lease.seats):
            _no_longer_crowded(state, lease, seat.node)
    for at in {seat.node: None for seat in lease.seats}:
        if at in state.nodes and lease.id not in state.nodes[at].crowded:
            state.nodes[at].leases[lease.id] = lease
    rented = {state.nodes[seat.node].request for seat in lease.seats if seat.node in state.nodes}
    requests = tuple(name for name in lease.requests if name in rented)
    left = [name for name in lease.requests if name not in rented]
    lease.requests = tuple(left)
    _count_rented(state, lease, -1, at_ms)
    lease.requests = requests
    state.freed += 1


def _room_promised(state: State, event: RoomPromised) -> None:
    job = state.jobs[event.job]
    seats = _seats(state, job, event.cluster, event.members)
    job.recorded_reason = Reason.ROOM_PROMISED
    shrinks = tuple((awaited.lease, awaited.revision) for awaited in event.shrinks)
    promise = Promise(event.job, event.cluster, seats, event.victims, event.rule, shrinks, event.lease)
    state.promises[event.job] = promise
    if event.lease is not None and (service := state.leases[event.lease].service) is not None:
        service.recorded_reason = Reason.ROOM_PROMISED


def _promise_released(state: State, event: PromiseReleased) -> None:
    promise = state.promises.pop(event.job, None)
    if promise is None:
        return
    state.freed += 1
    lease = state.services.get(promise.lease or "")
    if lease is not None and lease.service is not None:
        lease.service.recorded_reason = 0


def _reservation_made(state: State, event: ReservationMade) -> None:
    state.reservations.pop(event.job, None)
    at = (NodeId(event.cluster or state.homes.get(name, ("",))[0], name) for name in event.nodes)
    state.reservations[event.job] = Reservation(event.job, event.start_ms, tuple(at), event.rule)
    state.freed += 1


def _reservation_released(state: State, event: ReservationReleased) -> None:
    if state.reservations.pop(event.job, None) is not None:
        state.freed += 1


# --- services and warm pools -----------------------------------------------------------------------------------------


def _service_observed(state: State, event: ServiceObserved) -> None:
    lease = state.services.get(event.lease)
    if lease is None or lease.service is None or lease.cluster != event.cluster:
        return
    known = lease.service.signal
    if known is None or known.observed_ms < event.observed_ms:
        lease.service.signal = Signal(event.observed_ms, event.p99_ms, event.objective_ms, event.queue_depth)
        state.fresh_signals[lease.id] = None


def _service_scaled(state: State, event: ServiceScaled) -> None:
    service = state.leases[event.lease].service
    assert service is not None, f"{event.lease} serves no service"
    service.wanted, service.changed_ms, service.recorded_reason = event.wanted, state.now_ms, 0


def _service_short(state: State, event: ServiceShort) -> None:
    service = state.leases[event.lease].service
    assert service is not None, f"{event.lease} serves no service"
    service.recorded_reason = event.reason


def _warm_pool_configured(state: State, event: WarmPoolConfigured) -> None:
    """What it holds stays held as far as it is what the pool is to hold now; the next cycle holds the rest."""
    spec, known = event.spec, state.pools.pop(event.spec.name, None)
    if spec.blocks:
        pool = state.pools[spec.name] = Pool(spec)
        if known is not None and _like(known.spec) == _like(spec):
            pool.blocks = known.blocks[: spec.blocks]
    state.freed += 1


def _like(spec: WarmPool) -> tuple[object, ...]:
    return (spec.cluster, spec.flavor, spec.gpus)


def _warm_pools_held(state: State, event: WarmPoolsHeld) -> None:
    for held in event.pools:
        pool = state.pools[held.pool]
        pool.blocks = tuple((NodeId(pool.spec.cluster, block.node), block.gpus) for block in held.blocks)


# --- nodes -----------------------------------------------------------------------------------------------------------


def _node_observed(state: State, event: NodeObserved) -> None:
    build = Build.of(event.cluster, event.flavor, event.shape, event.labels, is_open=event.state is NodeState.READY)
    node = state.nodes.get(NodeId(event.cluster, event.node))
    if node is not None and node.state is not NodeState.LOST:
        state.count_capacity(node.build, -1, is_rented=node.request is not None)
    if event.state is not NodeState.LOST:
        state.count_capacity(build, 1, is_rented=event.request is not None)
    if node is None:
        node = Node(event.node, build, state.kinds.empty(build), event.state, event.request)
        state.add_node(node)
    node.build, node.state, node.request = build, event.state, event.request
    node.topology = declared(event.topology)
    node.kind = state.kinds.empty(build)
    if event.state is not NodeState.LOST:
        _seat_again(state, node)
    if event.state is NodeState.LOST:
        stranded = (lease for lease in node.leases.values() if lease.revoked is None)
        state.stranded.extend(sorted(stranded, key=lambda lease: lease.number))
        _forget_if_empty(state, node)
    if state.pools:
        let_go_of(state, node)
    state.freed += 1
    state.columns_version += 1


def _seat_again(state: State, node: Node) -> None:
    """Put what runs on a node onto what it is now, in the order of the grants. Who finds no room, because a GPU died
    or the node was resized, is released as if it had lost the node."""
    for lease in list(node.leases.values()):
        kind: int | None = node.kind
        for seat in lease.seats:
            if seat.node != node.id or kind is None:
                continue
            is_room = can_sit(state.kinds.kinds[kind], seat.ask.amounts, seat.gpus)
            kind = state.kinds.take(kind, seat.ask.amounts, seat.gpus) if is_room else None
        if kind is not None:
            node.kind = kind
            continue
        del node.leases[lease.id]
        node.crowded.append(lease.id)
        if lease.revoked is None:
            state.stranded.append(lease)
    if node.crowded:
        node.kind = _kind_of(state, node)


# --- rented capacity -------------------------------------------------------------------------------------------------


def _capacity_requested(state: State, event: CapacityRequested) -> None:
    request = Request(
        id=event.request,
        cluster=event.cluster,
        offer=event.offer,
        nodes=event.nodes,
        held_for=event.for_job,
        asked_ms=state.now_ms,
        deadline_ms=event.deadline_ms,
        promised_micro_usd=event.promised_micro_usd,
        budgets=event.budgets,
        idle_since_ms=state.now_ms,
    )
    state.requests[request.id] = request
    state.counts.requests += 1
    for name in request.budgets:
        account = state.budgets[name]
        window = account.window(request.asked_ms)
        account.promised[window] = account.promised.get(window, 0) + request.promised_micro_usd


def _capacity_observed(state: State, event: CapacityObserved) -> None:
    request = state.requests.get(event.request)
    if request is None or request.cluster != event.cluster:
        return
    offer = (request.cluster, request.offer)
    if event.phase is CapacityPhase.FAILED and request.phase is RequestPhase.ASKED:
        rest = state.rests.setdefault(offer, Rest())
        rest.failures, rest.until_ms = rest.failures + 1, None
    if event.phase is CapacityPhase.PROVIDED:
        state.rests.pop(offer, None)
        if request.phase is RequestPhase.ASKED:
            request.phase = RequestPhase.PROVIDED
            request.idle_since_ms = event.observed_ms
            state.freed += 1
        return
    _settle(state, request, event.charged_micro_usd)
    del state.requests[request.id]
    state.freed += 1


def _settle(state: State, request: Request, charged: int) -> None:
    state.counts.charged_micro_usd += charged
    for name in request.budgets:
        account = state.budgets[name]
        window = account.window(request.asked_ms)
        account.promised[window] = account.promised.get(window, 0) - request.promised_micro_usd
        if account.promised[window] == 0:
            del account.promised[window]
        account.settled[window] = account.settled.get(window, 0) + charged


def _capacity_released(state: State, event: CapacityReleased) -> None:
    request = state.requests.get(event.request)
    if request is not None:
        request.phase = RequestPhase.RELEASING


def _count_rented(state: State, lease: Lease, change: int, at_ms: int) -> None:
    for name in lease.requests:
        request = state.requests.get(name)
        if request is None:
            continue
        request.leases += change
        if request.leases == 0:
            request.idle_since_ms = at_ms


def _release_hold(state: State, request: Request) -> None:
    if request.is_held:
        request.is_held = False
        state.freed += 1


# --- configuration ---------------------------------------------------------------------------------------------------


def _queue_configured(state: State, event: QueueConfigured) -> None:
    parent = event.spec.parent
    check_ancestors(state.queues, event.spec)
    has_become_cohort = parent is not None and not state.children.get(parent)
    state.set_queue(event.spec)
    state.freed += 1
    if not has_become_cohort:
        return
    for job in state.jobs.values():
        if job.phase is Phase.WAITING and job.cls.spec.queue == parent:
            # In what has become a cohort it is a new arrival, which the next cycle refuses.
            job.phase = Phase.SUBMITTED
            state.arrivals.append(job)


def _history_configured(state: State, event: HistoryConfigured) -> None:
    known = state.history.usage if state.history is not None else {}
    state.history = History(event.spec, state.now_ms, known) if event.spec is not None else None


def _quota_over_promised(state: State, event: QuotaOverPromised) -> None:
    state.over_promised = event.promises


def _cluster_configured(state: State, event: ClusterConfigured) -> None:
    spec = event.spec
    state.clusters[spec.name] = spec
    reset_kinds(state)
    state.freed += 1
    state.columns_version += 1


def reset_kinds(state: State) -> None:
    """What rules see of a cluster is part of every kind: make all kinds anew."""
    state.kinds = KindTable(state.typical)
    state.asks = {}
    if state.agenda is not None:
        state.agenda.forget_kinds()
    for spec in state.clusters.values():
        facts = ClusterFacts(name=spec.name, site=spec.site.value, labels=dict(sorted(spec.labels.items())))
        state.kinds.describe_cluster(facts)
    for cls in state.classes.values():
        cls.asks = tuple(state.ask_of(ask.role, ask.gang) for ask in cls.asks)
    for lease in state.leases.values():
        by_role = {ask.role.name: ask for ask in lease.job.cls.asks}
        lease.seats = tuple(
            replace(seat, ask=by_role[seat.role].counting(seat.ask.amounts.gpu_milli)) for seat in lease.seats
        )
    for node in state.nodes.values():
        node.kind = _kind_of(state, node) if node.state is not NodeState.LOST else state.kinds.empty(node.build)


def _typical_jobs_configured(state: State, event: TypicalJobsConfigured) -> None:
    state.typical.configure([(shape_of(role), role.count) for role in event.roles])
    _typical_changed(state)


def _typical_changed(state: State) -> None:
    """Rules that read fragmentation would say something else now."""
    state.freed += 1
    if state.agenda is not None:
        state.agenda.typical_changed()


def _budget_configured(state: State, event: BudgetConfigured) -> None:
    account = state.budgets.get(event.spec.name)
    if account is None:
        state.budgets[event.spec.name] = BudgetAccount(event.spec)
    else:
        _set_budget(state, account, event.spec)
    state.freed += 1


def _set_budget(state: State, account: BudgetAccount, spec: Budget) -> None:
    """Windows of another length: what was spent counts in the new window that holds the end of its old one, or the
    present if that is earlier, so that nothing which may still matter is forgotten."""
    length, settled = account.spec.window_ms, account.settled
    account.spec, account.settled, account.promised = spec, {}, {}
    for window, amount in settled.items():
        now = account.window(min(state.now_ms, (window + 1) * length - 1))
        account.settled[now] = account.settled.get(now, 0) + amount
    for request in state.requests.values():
        if spec.name in request.budgets:
            asked = account.window(request.asked_ms)
            account.promised[asked] = account.promised.get(asked, 0) + request.promised_micro_usd


def _policy_activated(state: State, event: PolicyActivated) -> None:
    state.policy_digest = event.digest
    state.policy_name = event.name
    state.policy_files = event.files
    state.faults = {}
    state.agenda = None
    state.freed += 1
    if state.services:
        state.services_ms = state.now_ms
    shadow = state.shadow
    if shadow is not None and shadow.digest == event.digest:
        state.shadow = None
    elif shadow is not None:
        shadow.told = {}  # it is compared with other rules now


def _policy_shadowed(state: State, event: PolicyShadowed) -> None:
    state.shadow = Shadow(event.name, event.digest, event.files, state.position, state.cycle)


def _shadow_ended(state: State, _: ShadowEnded) -> None:
    state.shadow = None


def _shadow_failed(state: State, event: ShadowFailed) -> None:
    if state.shadow is not None and state.shadow.digest == event.policy:
        state.shadow.failure = event.cause


def _shadow_decided(state: State, event: ShadowDecided) -> None:
    shadow = state.shadow
    if shadow is None:
        return
    shadow.differed += bool(event.differences)
    shadow.faults.update(dict.fromkeys(event.faults))
    for difference in event.differences:
        key = (difference.what, difference.by_shadow)
        told = shadow.told.setdefault(key, {})
        told.update(dict.fromkeys(difference.jobs))
        if len(told) > 2 * len(state.jobs) + SHADOW_TOLD:
            shadow.told[key] = {job: None for job in told if job in state.jobs}
        shadow.counts[key] = shadow.counts.get(key, 0) + len(difference.jobs)
        shadow.promised_micro_usd += difference.promised_micro_usd


# --- time and cycles -------------------------------------------------------------------------------------------------


def _ticked(state: State, event: Ticked) -> None:
    state.now_ms = max(state.now_ms, event.now_ms)
    if state.history is not None and state.history.is_due(state.now_ms):
        shares = {name: state.share_ppb(node) for name, node in state.tree.by_name.items()}
        state.history.fold(state.now_ms, shares)
    for rest in state.rests.values():
        rest.begin(state.now_ms)
    state.is_requeued = False
    state.freed_at_tick = state.freed


def _cycle_decided(state: State, event: CycleDecided) -> None:
    state.cycle = event.cycle
    state.reask_ms = event.reask_ms
    state.services_ms = event.services_ms
    state.fresh_signals = {}
    if event.searched_ms is not None:
        state.searched_ms = event.searched_ms
    state.faults.update(dict.fromkeys(event.faults))
    for job in state.arrivals:
        if job.phase is Phase.SUBMITTED and not job.orphaned_by:
            job.phase = Phase.WAITING
    state.expiries = state.expiries[bisect_right(state.expiries, (state.now_ms, MAX_MS)) :]
    # Who was orphaned by a decision of this very cycle is refused by the next.
    state.arrivals = [job for job in state.arrivals if job.phase is Phase.SUBMITTED and job.orphaned_by]
    state.cancels = []
    state.returned = []
    state.stranded = []
    if len(state.kinds) > KINDS_KEPT + 16 * len(state.nodes):
        reset_kinds(state)
    if len(state.classes) > CLASSES_KEPT + 2 * len(state.jobs):
        _forget_classes(state)


def _forget_classes(state: State) -> None:
    """Drop the classes of which no job is left."""
    live = {job.cls.index for job in state.jobs.values()}
    state.classes = {key: cls for key, cls in state.classes.items() if cls.index in live}


_FOLDS: dict[type[Event], Callable[[State, Any], None]] = {
    JobSubmitted: _job_submitted,
    JobCancelRequested: _job_cancel_requested,
    QueueConfigured: _queue_configured,
    HistoryConfigured: _history_configured,
    ClusterConfigured: _cluster_configured,
    BudgetConfigured: _budget_configured,
    PolicyActivated: _policy_activated,
    PolicyShadowed: _policy_shadowed,
    ShadowEnded: _shadow_ended,
    ShadowFailed: _shadow_failed,
    ShadowDecided: _shadow_decided,
    NodeObserved: _node_observed,
    LeaseObserved: _lease_observed,
    CapacityObserved: _capacity_observed,
    Ticked: _ticked,
    JobRefused: _job_refused,
    TermsGiven: _terms_given,
    LeaseGranted: _lease_granted,
    LeaseGrown: _lease_grown,
    LeaseShrunk: _lease_shrunk,
    LeaseRevoked: _lease_revoked,
    RoomPromised: _room_promised,
    PromiseReleased: _promise_released,
    ReservationMade: _reservation_made,
    ReservationReleased: _reservation_released,
    QuotaOverPromised: _quota_over_promised,
    JobRequeued: _job_requeued,
    JobEnded: _job_ended,
    JobsWaiting: _jobs_waiting,
    TypicalJobsConfigured: _typical_jobs_configured,
    CapacityRequested: _capacity_requested,
    CapacityReleased: _capacity_released,
    CycleDecided: _cycle_decided,
    ServiceObserved: _service_observed,
    ServiceScaled: _service_scaled,
    ServiceShort: _service_short,
    WarmPoolConfigured: _warm_pool_configured,
    WarmPoolsHeld: _warm_pools_held,
}
