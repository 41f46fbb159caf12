"""What must hold after every event. Breaking one is a bug of ours: it stops the writer, loudly.

``check_touched`` looks at what one cycle's decisions touched, and costs what they cost; ``check_all`` recomputes
everything that is kept, from the leases up, and is run by tests, by the end of a simulation and by ``replay --verify``.
"""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import CapacityRequested, Event, LeaseGranted, LeaseGrown, LeaseShrunk
from controlplane.domain.mig import GEOMETRIES, gpu_of, start_of
from controlplane.domain.quantities import MILLI
from controlplane.scheduler.kept import InvariantBroken, check_kept, demand
from controlplane.scheduler.quota import available, charge
from controlplane.scheduler.state import Lease, Node, Phase, Seat, State

__all__ = ["InvariantBroken", "check_all", "check_touched"]

GEOMETRY = {geometry.name: geometry for geometry in GEOMETRIES}


def check_touched(state: State, events: Iterable[Event]) -> None:
    """Check the nodes, gangs, quotas and budgets that these decisions changed."""
    for event in events:
        if isinstance(event, LeaseGranted | LeaseGrown | LeaseShrunk):
            lease = state.leases[event.lease]
            _check_gang(lease)
            for at in {seat.node: None for seat in lease.seats}:
                _check_node(state, state.nodes[at])
            if not isinstance(event, LeaseShrunk):
                came = {(member.role, member.ordinal) for member in event.members}
                _check_quota(state, lease, [seat for seat in lease.seats if (seat.role, seat.ordinal) in came])
        elif isinstance(event, CapacityRequested):
            _check_request(state, event.request)


def check_all(state: State) -> None:
    """Recompute every kept figure and compare."""
    for node in state.nodes.values():
        _check_node(state, node)
    for lease in state.leases.values():
        _check_gang(lease)
        demand(state.jobs.get(lease.job.id) is lease.job, f"lease {lease.id} serves a job that is over")
    for job in state.jobs.values():
        waits = job.phase in (Phase.SUBMITTED, Phase.WAITING)
        demand(not (waits and job.lease is not None), f"job {job.id} both waits and holds a lease")
        placed = job.phase in (Phase.PLACED, Phase.RUNNING)
        demand(placed == (job.lease is not None), f"job {job.id} is {job.phase} with lease {job.lease}")
    for name in state.requests:
        _check_request(state, name)
    _check_usage(state)
    check_kept(state)


def _check_node(state: State, node: Node) -> None:
    if node.state is NodeState.LOST:
        return
    kind, build = state.kinds.kinds[node.kind], node.build
    cpu, memory = build.cpu_milli, build.memory_bytes
    gpus = [MILLI] * build.gpus
    slices = [0] * len(kind.slices)
    other = dict(build.other)
    for lease in node.leases.values():
        for seat in lease.seats:
            if seat.node != node.id:
                continue
            cpu -= seat.ask.amounts.cpu_milli
            memory -= seat.ask.amounts.memory_bytes
            for spot in seat.gpus:
                gpus[gpu_of(spot)] -= seat.ask.amounts.gpu_milli
                if slices:
                    _take_slices(node, slices, spot, seat)
            for resource, amount in seat.ask.amounts.other:
                other[resource] = other.get(resource, 0) - amount
    free = (cpu, memory, tuple(gpus), tuple(sorted(other.items())), tuple(slices))
    kept = (kind.cpu_free, kind.memory_free, kind.gpu_free, kind.other_free, kind.slices)
    demand(free == kept, f"node {node.id}: kept as {kept}, its leases say {free}")
    least = min(cpu, memory, *gpus, *other.values()) if gpus or other else min(cpu, memory)
    demand(least >= 0, f"node {node.id}: more is allocated than it has: {free} is left")


def _take_slices(node: Node, slices: list[int], spot: int, seat: Seat) -> None:
    """No slice of a GPU is given twice, and a GPU that is taken whole or in parts is not cut."""
    geometry, gpu, start = GEOMETRY[node.build.mig_geometry], gpu_of(spot), start_of(spot)
    profile = geometry.by_name.get(seat.ask.amounts.mig_profile)
    if start >= 0:
        demand(profile is not None and start in profile.starts, f"node {node.id}: {profile} cannot begin at {start}")
    taken = profile.mask(start) if profile is not None else geometry.whole * (seat.ask.amounts.gpu_milli == MILLI)
    demand(slices[gpu] & taken == 0, f"node {node.id}: slices of GPU {gpu} are given twice")
    slices[gpu] |= taken


def _check_gang(lease: Lease) -> None:
    """Each member once, none beyond the most, and never fewer than the gang needs, those who leave not counted."""
    cls = lease.job.cls
    seats = [(seat.role, seat.ordinal) for seat in lease.seats]
    demand(len(set(seats)) == len(seats), f"lease {lease.id} seats a member twice")
    in_bounds = all(0 <= ordinal < cls.most[role] for role, ordinal in seats)
    demand(in_bounds, f"lease {lease.id} seats a member beyond the most that its role may have")
    staying = [seat.role for seat in lease.seats if not seat.leaving]
    for ask in cls.asks:
        there, needed = staying.count(ask.role.name), ask.role.count
        demand(there >= needed, f"lease {lease.id} seats {there} of {needed} members that it needs")
    demand(lease.job.lease == lease.id, f"job {lease.job.id} holds {lease.job.lease}, not {lease.id}")


def _check_quota(state: State, lease: Lease, came: Iterable[Seat]) -> None:
    """Of what those who came are charged for: quota that was lowered below its use does not stop who asks for none of
    it."""
    queue = state.tree.by_name[lease.job.cls.spec.queue]
    charged = {
        key: None
        for seat in came
        for resource, key in state.keys_charged(queue, seat.flavor)
        if dict(seat.ask.resources).get(resource, 0)
    }
    for key in charged:
        left = available(queue, key, state.charged)
        demand(left >= 0, f"queue {queue.name}: {key} is exceeded by {-left}")


def _check_request(state: State, name: str) -> None:
    request = state.requests[name]
    demand(request.deadline_ms > request.asked_ms, f"request {name} has no deadline after it was asked for")
    for budget in request.budgets:
        account = state.budgets[budget]
        left = account.left(request.asked_ms)
        is_lowered = account.spec.limit_micro_usd < account.promised.get(account.window(request.asked_ms), 0)
        demand(left >= 0 or is_lowered or request.asked_ms < state.now_ms, f"budget {budget} is exceeded by {-left}")


def _check_usage(state: State) -> None:
    used: list[dict[str, int]] = [{} for _ in state.tree.nodes]
    charged = state.tree.empty_charges()
    running = [0 for _ in state.tree.nodes]
    pending = [0 for _ in state.tree.nodes]
    for job in state.jobs.values():
        if job.phase in (Phase.SUBMITTED, Phase.WAITING):
            for up in state.tree.by_name.get(job.cls.spec.queue, state.tree.root).path:
                pending[up.index] += 1
    for lease in state.leases.values():
        queue = state.tree.by_name.get(lease.job.cls.spec.queue, state.tree.root)
        for up in queue.path:
            running[up.index] += 1
        for seat in lease.seats:
            asked = dict(seat.ask.resources)
            for up in queue.path:
                for resource, amount in asked.items():
                    used[up.index][resource] = used[up.index].get(resource, 0) + amount
            for resource, key in state.keys_charged(queue, seat.flavor):
                charge(queue, key, asked.get(resource, 0), charged)
    kept = [{name: amount for name, amount in use.items() if amount} for use in state.used]
    demand(kept == used, "what queues use is not the sum of their leases")
    demand(state.charged == charged, "what queues are charged is not the sum of their leases")
    demand(state.running == running, "the number of running jobs by queue is wrong")
    demand(state.pending == pending, "the number of waiting jobs by queue is wrong")
    arrays: dict[tuple[str, str], int] = {}
    for lease in state.leases.values():
        if lease.job.array is not None:
            arrays[lease.job.array] = arrays.get(lease.job.array, 0) + 1
    demand(state.arrays == arrays, "the number of running jobs by array is wrong")
