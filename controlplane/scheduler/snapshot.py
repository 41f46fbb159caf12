"""The state as bytes and back. A snapshot is a shortcut past the log and never the truth.

Only what cannot be derived from the rest is kept; usage, charges and kinds are made anew from leases and nodes. The
order of jobs, leases and requests is kept, since it is the order in which the log brought them.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

import orjson

from controlplane.domain.clusters import Budget, ClusterSpec, NodeState, WarmPool
from controlplane.domain.events import OverPromise
from controlplane.domain.ids import NodeId
from controlplane.domain.model import Model
from controlplane.domain.queues import HistorySpec, QueueSpec
from controlplane.domain.workloads import JobSpec
from controlplane.scheduler.fold import reset_kinds
from controlplane.scheduler.fragmentation import Shape, TypicalJobs
from controlplane.scheduler.history import History
from controlplane.scheduler.kinds import Build
from controlplane.scheduler.state import (
    BudgetAccount,
    Counts,
    Job,
    JobClass,
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

Plain = dict[str, Any]


def take(state: State) -> bytes:
    """The state as JSON."""
    used = {cls.index for job in state.jobs.values() for cls in (job.cls, job.as_asked)}
    kept = [cls for cls in state.classes.values() if cls.index in used]
    classes = {cls.index: at for at, cls in enumerate(kept)}
    assert len(classes) == len(used), "a job of a forgotten class"
    plain: Plain = {
        "position": state.position,
        "now_ms": state.now_ms,
        "cycle": state.cycle,
        "reask_ms": state.reask_ms,
        "policy": [state.policy_name, state.policy_digest, state.policy_files],
        "faults": list(state.faults),
        "shadow": _shadow(state),
        "queues": [_plain(spec) for spec in state.queues.values()],
        "clusters": [_plain(spec) for spec in state.clusters.values()],
        "budgets": [
            [_plain(account.spec), list(account.settled.items()), list(account.promised.items())]
            for account in state.budgets.values()
        ],
        "nodes": [
            [node.name, asdict(node.build), node.state, node.request, node.topology, node.crowded]
            for node in state.nodes.values()
        ],
        "classes": [_plain(cls.spec) for cls in kept],
        "jobs": [_job(job, classes[job.cls.index], classes[job.as_asked.index]) for job in state.jobs.values()],
        "leases": [_lease(lease) for lease in state.leases.values()],
        "promises": [
            [p.job, p.cluster, _seats(p.seats), p.victims, p.rule, p.shrinks, p.lease] for p in state.promises.values()
        ],
        "pools": [[_plain(pool.spec), [[list(at), gpus] for at, gpus in pool.blocks]] for pool in state.pools.values()],
        "fresh_signals": list(state.fresh_signals),
        "services_ms": state.services_ms,
        "reservations": [
            [r.job, r.start_ms, [list(at) for at in r.nodes], r.rule] for r in state.reservations.values()
        ],
        "history": asdict(state.history) | {"spec": _plain(state.history.spec)} if state.history is not None else None,
        "over_promised": [_plain(promise) for promise in state.over_promised],
        "searched_ms": state.searched_ms,
        "requests": [asdict(request) for request in state.requests.values()],
        "rests": [[*offer, rest.failures, rest.until_ms] for offer, rest in state.rests.items()],
        "arrivals": [job.id for job in state.arrivals if job.id in state.jobs],
        "cancels": [job.id for job in state.cancels if job.id in state.jobs],
        "returned": [job.id for job in state.returned if job.id in state.jobs],
        "stranded": [lease.id for lease in state.stranded],
        "expiries": state.expiries,
        "time_limits": state.time_limits,
        "dependents": list(state.dependents.items()),
        "unfinished": list(state.unfinished),
        "is_requeued": state.is_requeued,
        "freed": [state.freed, state.freed_at_tick],
        "counts": asdict(state.counts),
        "typical": _typical(state.typical),
    }
    return orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS)


def restore(body: bytes) -> State:
    """The state behind :func:`take`."""
    plain: Plain = orjson.loads(body)
    state = State()
    state.position, state.now_ms, state.cycle = plain["position"], plain["now_ms"], plain["cycle"]
    state.reask_ms = plain["reask_ms"]
    state.policy_name, state.policy_digest, state.policy_files = plain["policy"]
    state.faults = dict.fromkeys(plain["faults"])
    state.shadow = _restored_shadow(plain["shadow"])
    for spec in plain["queues"]:
        state.set_queue(QueueSpec.model_validate(spec))
    state.clusters = {spec["name"]: ClusterSpec.model_validate(spec) for spec in plain["clusters"]}
    for spec, settled, promised in plain["budgets"]:
        budget = Budget.model_validate(spec)
        state.budgets[budget.name] = BudgetAccount(budget, dict(settled), dict(promised))
    _restore_nodes(state, plain)
    _restore_jobs(state, plain)
    state.requests = {request["id"]: _request(request) for request in plain["requests"]}
    state.rests = {(cluster, offer): Rest(failures, until_ms) for cluster, offer, failures, until_ms in plain["rests"]}
    if (history := plain["history"]) is not None:
        spec = HistorySpec.model_validate(history["spec"])
        state.history = History(
            spec, history["folded_ms"], {name: int(used) for name, used in history["usage"].items()}
        )
    for spec, blocks in plain["pools"]:
        held = WarmPool.model_validate(spec)
        state.pools[held.name] = Pool(held, tuple((NodeId(*at), tuple(gpus)) for at, gpus in blocks))
    state.fresh_signals = dict.fromkeys(plain["fresh_signals"])
    state.services_ms = plain["services_ms"]
    state.over_promised = tuple(OverPromise.model_validate(promise) for promise in plain["over_promised"])
    state.is_requeued = plain["is_requeued"]
    state.counts = Counts(**plain["counts"])
    counts, seen, typical, is_configured = plain["typical"]
    state.typical.restore(_restored_shapes(counts), seen, _restored_shapes(typical), is_configured)
    reset_kinds(state)
    state.freed, state.freed_at_tick = plain["freed"]
    state.columns_version += 1
    return state


def _shadow(state: State) -> Plain | None:
    """Of whom it told only those who live can be told of again."""
    shadow = state.shadow
    if shadow is None:
        return None
    told = [[*key, [job for job in jobs if job in state.jobs]] for key, jobs in shadow.told.items()]
    counts = [[*key, count] for key, count in shadow.counts.items()]
    return {**asdict(shadow), "told": told, "counts": counts, "faults": list(shadow.faults)}


def _restored_shadow(plain: Plain | None) -> Shadow | None:
    if plain is None:
        return None
    told = {(what, by_shadow): dict.fromkeys(jobs) for what, by_shadow, jobs in plain["told"]}
    counts = {(what, by_shadow): count for what, by_shadow, count in plain["counts"]}
    return Shadow(**{**plain, "told": told, "counts": counts, "faults": dict.fromkeys(plain["faults"])})


def _restore_nodes(state: State, plain: Plain) -> None:
    for name, build, node_state, request, topology, crowded in plain["nodes"]:
        pairs = {key: tuple((item[0], item[1]) for item in build[key]) for key in ("other", "labels")}
        made = Build(**{**build, **pairs})
        node = Node(name, made, 0, NodeState(node_state), request, topology=tuple(topology))
        node.crowded = list(crowded)
        state.add_node(node)
        if node.state is not NodeState.LOST:
            state.count_capacity(made, 1, is_rented=request is not None)


def _restore_jobs(state: State, plain: Plain) -> None:
    classes = [state.class_of(JobSpec.model_validate(spec), 0) for spec in plain["classes"]]
    for row in plain["jobs"]:
        job = _restored_job(row, classes)
        state.jobs[job.id] = job
        if job.phase in (Phase.SUBMITTED, Phase.WAITING):
            job.cls.waiting += 1
    _restore_leases(state, plain)
    state.searched_ms = plain["searched_ms"]
    state.arrivals = [state.jobs[id_] for id_ in plain["arrivals"] if id_ in state.jobs]
    state.cancels = [state.jobs[id_] for id_ in plain["cancels"] if id_ in state.jobs]
    state.returned = [state.jobs[id_] for id_ in plain["returned"] if id_ in state.jobs]
    state.stranded = [state.leases[id_] for id_ in plain["stranded"] if id_ in state.leases]
    state.expiries = [(expiry, id_) for expiry, id_ in plain["expiries"]]
    state.time_limits = [(limit, id_) for limit, id_ in plain["time_limits"]]
    state.dependents = {id_: list(jobs) for id_, jobs in plain["dependents"]}
    state.unfinished = dict.fromkeys(plain["unfinished"])


def _restore_leases(state: State, plain: Plain) -> None:
    """What holds room, or is to have it."""
    for row in plain["leases"]:
        lease = _restored_lease(state, row)
        state.leases[lease.id] = lease
        if lease.job.cls.is_elastic:
            state.elastic[lease.id] = lease
        if lease.service is not None:
            state.services[lease.id] = lease
        for seat in lease.seats:
            node = state.nodes.get(seat.node)
            if node is not None and lease.id not in node.crowded:
                node.leases[lease.id] = lease
    for job_id, cluster, seats, victims, rule, shrinks, lease_id in plain["promises"]:
        sat = _restored_seats(state.jobs[job_id], cluster, seats)
        awaited = tuple((name, revision) for name, revision in shrinks)
        state.promises[job_id] = Promise(job_id, cluster, sat, tuple(victims), rule, awaited, lease_id)
    for job_id, start_ms, nodes, rule in plain["reservations"]:
        state.reservations[job_id] = Reservation(job_id, start_ms, tuple(NodeId(*at) for at in nodes), rule)
    for lease in state.leases.values():
        if (array := lease.job.array) is not None:
            state.arrays[array] = state.arrays.get(array, 0) + 1
        if (hold_ms := lease.job.cls.spec.hold_ms) is not None and not lease.is_running:
            state.holds.append((lease.granted_ms + hold_ms, lease.id))
    state.holds.sort()


def _job(job: Job, cls: int, asked: int) -> list[object]:
    return [
        job.id,
        job.name,
        cls,
        asked,
        job.submitted_ms,
        job.phase,
        job.attempts,
        job.turn,
        job.lease,
        job.cause,
        job.failures,
        job.evictions,
        job.evicted,
        job.evicted_for,
        job.is_cancelled,
        job.recorded_reason,
        job.waits_for,
        job.orphaned_by,
    ]


def _restored_job(row: list[Any], classes: list[JobClass]) -> Job:
    id_, name, cls, asked, submitted_ms, phase, *rest = row
    job = Job(id_, name, classes[cls], submitted_ms, Phase(phase), *rest)
    job.asked = classes[asked] if asked != cls else None
    job.waits_for = tuple(job.waits_for)
    return job


def _lease(lease: Lease) -> list[object]:
    return [
        lease.id,
        lease.job.id,
        lease.attempt,
        lease.cluster,
        _seats(lease.seats),
        lease.requests,
        lease.granted_ms,
        lease.is_running,
        lease.revoked,
        lease.revision,
        lease.number,
        lease.is_rigid,
        asdict(lease.service) if lease.service is not None else None,
    ]


def _seats(seats: tuple[Seat, ...]) -> list[list[object]]:
    return [
        [
            seat.node.name,
            seat.role,
            seat.ordinal,
            seat.gpus,
            seat.flavor,
            seat.ask.amounts.gpu_milli,
            seat.since,
            seat.leaving,
            seat.is_taken,
        ]
        for seat in seats
    ]


def _restored_seats(job: Job, cluster: str, seats: list[list[Any]]) -> tuple[Seat, ...]:
    asks = {ask.role.name: ask for ask in job.cls.asks}
    return tuple(
        Seat(
            NodeId(cluster, name),
            role,
            ordinal,
            asks[role].counting(milli),
            tuple(gpus),
            flavor,
            since,
            leaving,
            is_taken,
        )
        for name, role, ordinal, gpus, flavor, milli, since, leaving, is_taken in seats
    )


def _typical(typical: TypicalJobs) -> list[object]:
    counts = [[list(shape), count] for shape, count in typical.counts.items()]
    taken = [[list(shape), count] for shape, count in typical.typical]
    return [counts, typical.seen, taken, typical.is_configured]


def _restored_shapes(rows: list[Any]) -> tuple[tuple[Shape, int], ...]:
    return tuple((Shape(*shape)._replace(models=tuple(Shape(*shape).models)), count) for shape, count in rows)


def _restored_lease(state: State, row: list[Any]) -> Lease:
    id_, job_id, attempt, cluster, seats, requests, *rest, service = row
    job = state.jobs[job_id]
    sat = _restored_seats(job, cluster, seats)
    lease = Lease(id_, job, attempt, cluster, sat, tuple(requests), *rest)
    lease.service = _restored_service(service)
    return lease


def _restored_service(plain: Plain | None) -> Service | None:
    if plain is None:
        return None
    signal = Signal(**plain["signal"]) if plain["signal"] is not None else None
    return Service(**{**plain, "signal": signal})


def _request(plain: Plain) -> Request:
    known = {field.name for field in fields(Request)}
    values = {name: value for name, value in plain.items() if name in known}
    return Request(**{**values, "budgets": tuple(plain["budgets"]), "phase": RequestPhase(plain["phase"])})


def _plain(model: Model) -> Plain:
    return model.model_dump(mode="json", exclude_defaults=True)
