"""Fills in the account of a watched job, from the same draft on which the cycle tried it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from controlplane.domain.quantities import CPU, GPU, MEMORY
from controlplane.scheduler.agenda import Agenda, Order
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.kinds import gpu_milli_on
from controlplane.scheduler.needs import INFEASIBLE, Column, Need, could_ever_fit, tally
from controlplane.scheduler.outlook import Outlook
from controlplane.scheduler.quota import QueueNode, available
from controlplane.scheduler.state import Job, State
from controlplane.scheduler.verdicts import QueueStanding, QuotaStanding, RoleStanding, Watch

NAMED_AHEAD = 10
"""So many of the jobs in front are named; all of them are counted."""


def fill_in(
    watch: Watch, state: State, agenda: Agenda, draft: Draft, job: Job, order_of: Callable[[QueueNode], Order]
) -> None:
    """Everything that a person would ask about the job, as it stood when the cycle had tried all it could."""
    queue = state.tree.by_name.get(job.cls.spec.queue)
    if queue is None:
        return
    _stand_in_line(watch, agenda, draft, queue, job)
    for up in reversed(queue.path[:-1]):
        assert up.parent is not None
        siblings = [
            QueueStanding(node.name, order_of(node), draft.share_ppb(node), draft.pending[node.index])
            for node in up.parent.children
        ]
        watch.queues.append(sorted(siblings, key=lambda standing: (standing.order, standing.queue)))
    asked = dict(job.cls.resources)
    watch.quotas = [
        QuotaStanding(key[0], key[1], asked[key[1]], available(queue, key, draft.charged), queue.cells[key].potential)
        for key in queue.limited
        if key[1] in asked
    ]
    needs = agenda.needs_of(state, job)
    for need in needs:
        watch.roles.append(_role(need, state, agenda, draft.column.kinds, watch.faults))
    told = watch.refusal.topology if watch.refusal is not None else None
    watch.topology = told or Outlook(state, agenda).nearest(needs, draft.column.kinds)
    served = (request.id for request in state.requests.values() if request.held_for == job.id and request.is_held)
    watch.served_by = next(served, None)


def _stand_in_line(watch: Watch, agenda: Agenda, draft: Draft, queue: QueueNode, job: Job) -> None:
    entries = [
        entry
        for group in agenda.groups[queue.index].values()
        for entry in group.live()
        if entry.id not in draft.gone or entry.id == job.id
    ]
    mine = next((entry for entry in entries if entry.id == job.id), None)
    if mine is None:
        return
    watch.order = mine.order
    ahead = sorted((entry.order, entry.id) for entry in entries if (entry.order, entry.id) < (mine.order, mine.id))
    watch.ahead = len(ahead)
    watch.first_ahead = [id_ for _, id_ in ahead[:NAMED_AHEAD]]


def _role(need: Need, state: State, agenda: Agenda, column: Column, faults: dict[str, None]) -> RoleStanding:
    row, lacks = _nearest(need, state, column)
    return RoleStanding(
        role=need.ask.role.name,
        members=need.ask.role.count,
        would_fit=_would_fit(need, state, column.copy()),
        tally=tally(need, state.kinds, column, faults),
        nearest=state.label(agenda.nodes[row].id) if row is not None else None,
        lacks=lacks,
    )


def _would_fit(need: Need, state: State, column: Column) -> int:
    """How many members of the role alone have room, up to all of them."""
    for placed in range(need.ask.role.count):
        scores = need.scores(column)
        row = int(scores.argmax()) if scores.size else -1
        if row < 0 or scores[row] == INFEASIBLE:
            return placed
        kind = int(column[row])
        column[row] = state.kinds.take(kind, need.ask.amounts, need.gpus(kind))
    return need.ask.role.count


def _nearest(need: Need, state: State, column: Column) -> tuple[int | None, dict[str, int]]:
    """The node that lacks least for one member (GPUs first, then CPU, then memory), and what it lacks."""
    best: tuple[tuple[int, int, int], int] | None = None
    kinds, first = np.unique(column, return_index=True)
    for id_, row in sorted(zip(kinds.tolist(), first.tolist(), strict=True), key=lambda pair: pair[1]):
        kind = state.kinds.kinds[id_]
        if need.ask.models and kind.build.gpu_model not in need.ask.models:
            continue
        if not could_ever_fit(need.ask, kind) or not kind.build.is_open or not need.is_eligible(kind):
            continue
        amounts = need.ask.amounts
        milli = gpu_milli_on(kind.build, amounts)
        usable = sorted(kind.gpu_free, reverse=True)[: need.ask.gpus]
        gpu = sum(max(0, milli - free) for free in usable)
        lack = (gpu, max(0, amounts.cpu_milli - kind.cpu_free), max(0, amounts.memory_bytes - kind.memory_free))
        if best is None or (lack, row) < best:
            best = (lack, row)
    if best is None:
        return None, {}
    names = (GPU, CPU, MEMORY)
    return best[1], {name: amount for name, amount in zip(names, best[0], strict=True) if amount}
