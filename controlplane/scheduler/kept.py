"""What the state keeps beside the records themselves, made anew from these and compared: counts, lists by instant,
who waits for whom. Whatever is kept twice can come apart; a check for each says that it has not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from controlplane.domain.clusters import NodeState
from controlplane.domain.ids import NodeId
from controlplane.domain.quantities import CPU, GPU, MEMORY, MILLI
from controlplane.scheduler.blocks import amounts_of, suits
from controlplane.scheduler.kinds import can_sit
from controlplane.scheduler.state import Job, Lease, Node, Phase, State
from controlplane.scheduler.terms import expiries

T = TypeVar("T")
_WAITS = (Phase.SUBMITTED, Phase.WAITING)


class InvariantBroken(AssertionError):
    """The core contradicts itself. Not to be caught by anything that goes on writing."""


def demand(holds: bool, sentence: str) -> None:
    """Raises :class:`InvariantBroken` with the sentence if something does not hold."""
    if not holds:
        raise InvariantBroken(sentence)


def check_kept(state: State) -> None:
    """Everything below."""
    _check_classes(state)
    _check_lines(state)
    _check_instants(state)
    _check_dependents(state)
    _check_elastic(state)
    _check_capacity(state)
    _check_nodes(state)
    _check_rent(state)
    _check_kept_room(state)
    _check_services(state)
    _check_pools(state)


# --- jobs ------------------------------------------------------------------------------------------------------------


def _check_classes(state: State) -> None:
    """How many jobs of each class wait."""
    waiting: dict[int, int] = {}
    known = {cls.index: cls for cls in state.classes.values()}
    for job in state.jobs.values():
        known[job.cls.index] = job.cls
        if job.phase in _WAITS:
            waiting[job.cls.index] = waiting.get(job.cls.index, 0) + 1
    for index, cls in known.items():
        there = waiting.get(index, 0)
        demand(cls.waiting == there, f"{cls.waiting} jobs of a class of queue {cls.spec.queue} wait, not {there}")


def _check_lines(state: State) -> None:
    """Nobody is forgotten: who is new, came back or was cancelled is in line for the next cycle."""
    arrivals, returned = _ids(state.arrivals), _ids(state.returned)
    cancels, stranded = _ids(state.cancels), {lease.id for lease in state.stranded}
    for job in state.jobs.values():
        is_new, is_back = job.phase is Phase.SUBMITTED, job.phase is Phase.RETURNED
        demand(not is_new or job.id in arrivals, f"j{job.id} is new and in no line for admission")
        demand(not is_back or job.id in returned, f"j{job.id} came back and in no line to be settled")
        is_settled = job.lease is not None and state.leases[job.lease].revoked is not None
        is_cancelled = not job.is_cancelled or is_settled or is_back or job.id in cancels
        demand(is_cancelled, f"j{job.id} is cancelled and in no line to be ended")
    for name in stranded:
        demand(name in state.leases, f"lease {name} is to be revoked and is over")


def _ids(jobs: Iterable[Job]) -> set[int]:
    return {job.id for job in jobs}


def _check_instants(state: State) -> None:
    """Leases that end, and jobs that give up, at some instant."""
    limits: list[tuple[int, str]] = []
    holds: list[tuple[int, str]] = []
    for lease in state.leases.values():
        spec = lease.job.cls.spec
        if spec.time_limit_ms is not None:
            limits.append((lease.granted_ms + spec.time_limit_ms, lease.id))
        if spec.hold_ms is not None and not lease.is_running:
            holds.append((lease.granted_ms + spec.hold_ms, lease.id))
    demand(state.time_limits == sorted(limits), "the time limits are not those of the leases")
    demand(state.holds == sorted(holds), "the times by which leases must run are not those of the leases")
    demand(state.expiries == sorted(state.expiries), "the times at which jobs give up are out of order")
    there = set(state.expiries)
    for job in state.jobs.values():
        ahead = [at for at in expiries(job) if at[0] > state.now_ms and job.phase in _WAITS]
        demand(all(at in there for at in ahead), f"j{job.id} gives up waiting at an instant that is not kept")


def _check_dependents(state: State) -> None:
    """Who waits for whom. Lists may still name jobs that are gone."""
    waits: dict[int, list[int]] = {}
    for job in state.jobs.values():
        for other in job.waits_for:
            if other in state.jobs:
                waits.setdefault(other, []).append(job.id)
            else:
                demand(job.orphaned_by != 0, f"j{job.id} waits for j{other}, which is over")
    kept = {other: [id_ for id_ in ids if id_ in state.jobs] for other, ids in state.dependents.items()}
    kept = {other: ids for other, ids in kept.items() if ids}
    demand(kept == waits, f"jobs wait for {waits}, and {kept} is kept")


# --- leases and nodes ------------------------------------------------------------------------------------------------


def _check_elastic(state: State) -> None:
    there = [lease.id for lease in state.leases.values() if lease.job.cls.is_elastic]
    demand(list(state.elastic) == there, "the elastic leases are not those of elastic gangs, in their order")
    numbers = [lease.number for lease in state.leases.values()]
    demand(numbers == sorted(numbers), "the leases are not in the order of their grants")


def _check_capacity(state: State) -> None:
    capacity: dict[str, int] = {}
    owned: dict[tuple[str, str], int] = {}
    for node in state.nodes.values():
        build = node.build
        amounts = {CPU: build.cpu_milli, MEMORY: build.memory_bytes, GPU: build.gpus * MILLI, **dict(build.other)}
        for resource, amount in amounts.items() if node.state is not NodeState.LOST else ():
            capacity[resource] = capacity.get(resource, 0) + amount
            if node.request is None:
                key = (build.flavor, resource)
                owned[key] = owned.get(key, 0) + amount
    demand(_positive(state.capacity) == _positive(capacity), "the capacity is not that of the nodes")
    demand(_positive(state.owned) == _positive(owned), "what is owned is not what the nodes are that are not rented")


def _positive(amounts: dict[T, int]) -> dict[T, int]:
    return {key: amount for key, amount in amounts.items() if amount}


def _check_nodes(state: State) -> None:
    """Each member is known to its node: as seated, or as one for which it has no room any more."""
    seated: dict[NodeId, set[str]] = {}
    for lease in state.leases.values():
        for seat in lease.seats:
            seated.setdefault(seat.node, set()).add(lease.id)
    for node in state.nodes.values():
        there = {*node.leases, *node.crowded}
        demand(
            len(there) == len(node.leases) + len(node.crowded), f"node {node.id} both seats a lease and crowds it out"
        )
        demand(there == seated.get(node.id, set()), f"node {node.id} knows {sorted(there)}, not who is there")
        demand(bool(there) or node.state is not NodeState.LOST, f"node {node.id} is lost, and nobody is on it")
        for name in node.crowded:
            is_leaving = _is_leaving(state, state.leases[name])
            demand(is_leaving, f"lease {name} has no room on node {node.id}, and nobody ends it")
        _check_kind(state, node)


def _is_leaving(state: State, lease: Lease) -> bool:
    return lease.revoked is not None or any(other is lease for other in state.stranded)


def _check_kind(state: State, node: Node) -> None:
    is_same = node.state is NodeState.LOST or state.kinds.kinds[node.kind].build == node.build_now
    demand(is_same, f"node {node.id} is of a kind of another build")


# --- rent, promises and reservations ---------------------------------------------------------------------------------


def _check_rent(state: State) -> None:
    """Who uses what is rented, and what of it is still promised to be paid."""
    uses: dict[str, int] = {}
    for lease in state.leases.values():
        for name in lease.requests:
            uses[name] = uses.get(name, 0) + 1
    for request in state.requests.values():
        demand(request.leases == uses.get(request.id, 0), f"request {request.id} counts {request.leases} leases")
        job = state.jobs.get(request.held_for)
        is_held = not request.is_held or (job is not None and job.lease is None)
        demand(is_held, f"request {request.id} is held for a job that does not wait for it")
    for name, account in state.budgets.items():
        promised: dict[int, int] = {}
        for request in state.requests.values():
            if name in request.budgets:
                window = account.window(request.asked_ms)
                promised[window] = promised.get(window, 0) + request.promised_micro_usd
        is_counted = _positive(account.promised) == _positive(promised)
        demand(is_counted, f"budget {name} counts other promises than those of the requests")


def _check_kept_room(state: State) -> None:
    """Room is kept for jobs that wait and for services that are to have more replicas, and for nobody else."""
    for_replicas = {id_: promise.lease for id_, promise in state.promises.items()}
    for kept in (state.promises, state.reservations):
        for id_ in kept:
            job = state.jobs.get(id_)
            waits_as = for_replicas.get(id_) if kept is state.promises else None
            is_for_it = job is not None and (job.lease is None or job.lease == waits_as)
            demand(is_for_it, f"room is kept for j{id_}, which does not wait")
    for promise in state.promises.values():
        for name, revision in promise.shrinks:
            lease = state.leases.get(name)
            demand(lease is None or lease.revision >= revision, f"j{promise.job} waits for members of {name} to leave")


# --- services --------------------------------------------------------------------------------------------------------


def _check_services(state: State) -> None:
    """Every lease of a service is known as one, and is to have no fewer and no more replicas than its job allows."""
    served = {lease.id: lease for lease in state.leases.values() if lease.job.cls.spec.service is not None}
    demand(state.services == served, "the leases that serve services are not those that are known")
    for lease in served.values():
        cls, service = lease.job.cls, lease.service
        assert service is not None, f"lease {lease.id} serves a service of which nothing is known"
        least, most = sum(ask.role.count for ask in cls.asks), sum(cls.most.values())
        demand(least <= service.wanted <= most, f"lease {lease.id} is to have {service.wanted} of {least} to {most}")


def _check_pools(state: State) -> None:
    """Pools hold no more than they should, each GPU once, on ready nodes of their own, and nobody is there."""
    kinds: dict[NodeId, int] = {}
    for pool in state.pools.values():
        spec = pool.spec
        demand(len(pool.blocks) <= spec.blocks, f"pool {spec.name} holds {len(pool.blocks)} of {spec.blocks} blocks")
        for at, gpus in pool.blocks:
            node = state.nodes.get(at)
            is_there = node is not None and suits(spec, node.build_now, is_rented=node.request is not None)
            demand(is_there and len(gpus) == spec.gpus, f"pool {spec.name} holds {gpus} of {at.name}, which it may not")
            assert node is not None, "it was looked at"
            kind = kinds.get(at, node.kind)
            amounts = amounts_of(state.kinds, node.build, len(gpus))
            is_free = can_sit(state.kinds.kinds[kind], amounts, gpus)
            demand(is_free, f"pool {spec.name} holds {gpus} of {at.name}, and somebody else has them")
            kinds[at] = state.kinds.take(kind, amounts, gpus)
