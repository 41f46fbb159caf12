"""When is the next cycle due? Asked by whoever owns a clock; nothing here changes a decision."""

from __future__ import annotations

from controlplane.scheduler.promises import over_promises
from controlplane.scheduler.state import RequestPhase, State


def needs_cycle(state: State) -> bool:
    """Whether anything has happened since the last cycle that a cycle could act on."""
    if state.arrivals or state.cancels or state.returned or state.stranded or state.is_requeued:
        return True
    if over_promises(state) != state.over_promised:
        return True
    if any(
        request.phase is RequestPhase.ASKED and request.held_for not in state.jobs
        for request in state.requests.values()
    ):
        return True  # nodes are on their way for a job that is gone: they are given back before they cost anything
    if state.fresh_signals and state.services_ms is not None:
        return True
    if state.freed == state.freed_at_tick:
        return False
    if any(len(pool.blocks) < pool.spec.blocks for pool in state.pools.values()):
        return True
    return state.pending[0] > 0 or any(lease.may_grow for lease in state.elastic.values())


def next_due_ms(state: State) -> int | None:
    """The next instant at which a cycle is due by the passing of time alone; ``None`` if none is."""
    due: list[int] = []
    if state.pending[0]:
        if state.expiries:
            due.append(state.expiries[0][0])
        if state.reask_ms is not None:
            due.append(state.reask_ms)
    if state.services_ms is not None:
        due.append(state.services_ms)
    if state.history is not None and state.leases:
        due.append(state.history.folded_ms + state.history.spec.sample_ms)
    for limits in (state.time_limits, state.holds):
        limit = next((at_ms for at_ms, lease in limits if state.leases[lease].revoked is None), None)
        if limit is not None:
            due.append(limit)
    for request in state.requests.values():
        if request.phase is RequestPhase.RELEASING:
            continue
        due.append(request.deadline_ms)
        if request.phase is RequestPhase.PROVIDED and request.leases == 0:
            due.append(request.idle_since_ms + state.clusters[request.cluster].idle_release_ms)
    return min(due, default=None)
