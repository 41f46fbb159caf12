"""The overlay on which a cycle tries things out: later placements see earlier ones, and the state stays as it was."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.domain.quantities import MAX_AMOUNT, ceil_div, share_ppb
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.facts import HomeFacts, QueueFacts
from controlplane.scheduler.needs import Need
from controlplane.scheduler.quota import QueueNode, borrowed, charge
from controlplane.scheduler.state import Ask, Job, State

GPU = "gpu"


@dataclass(slots=True, eq=False)
class DraftSeat:
    """One member of a gang where the draft put it."""

    need: Need
    ordinal: int
    row: int
    kind_before: int
    gpus: tuple[int, ...]
    flavor: str


class Draft:
    """What placements change: copies of what queues use, hold and are charged, and the nodes' kinds themselves, which
    :meth:`undo` puts back (a copy would make every reader of the nodes read all of them again)."""

    def __init__(self, state: State, agenda: Agenda) -> None:
        self._state = state
        self._kinds = state.kinds
        self.column = agenda.column
        self._before: list[tuple[int, int]] = []
        """(row, kind) as they were, for every change that stands, in order."""
        self.used = [dict(used) for used in state.used]
        self.charged = [dict(charged) for charged in state.charged]
        self.pending = list(state.pending)
        self.running = list(state.running)
        self.gone: set[int] = set()
        """Jobs that this cycle placed, refused or ended; asked for membership only."""

    def sit(self, queue: QueueNode, seat: DraftSeat) -> None:
        """Put one member on its node."""
        self._before.append((seat.row, seat.kind_before))
        self.column.put(seat.row, self._kinds.take(seat.kind_before, seat.need.ask.amounts, seat.gpus))
        self._use(queue, seat.flavor, seat.need.ask_on(seat.kind_before), 1)

    def stand_up(self, queue: QueueNode, seats: list[DraftSeat]) -> None:
        """Undo :meth:`sit` for the members of a gang that did not fit as a whole, last first."""
        for seat in reversed(seats):
            self._before.pop()
            self.column.put(seat.row, seat.kind_before)
            self._use(queue, seat.flavor, seat.need.ask_on(seat.kind_before), -1)

    def _use(self, queue: QueueNode, flavor: str, ask: Ask, sign: int) -> None:
        for node in queue.path:
            used = self.used[node.index]
            for resource, amount in ask.resources:
                used[resource] = used.get(resource, 0) + sign * amount
        keys = self._state.keys_charged(queue, flavor)
        if keys:
            asked = dict(ask.resources)
            for resource, key in keys:
                charge(queue, key, sign * asked.get(resource, 0), self.charged)

    def rent_in_use(self, agenda: Agenda) -> set[str]:
        """Capacity requests of which a node changed in this cycle; asked for membership only."""
        return {request for row, _ in self._before if (request := agenda.nodes[row].request) is not None}

    def undo(self) -> None:
        """Put the nodes back as they were: the cycle is over, and folding its decisions is what changes them."""
        for row, kind in reversed(self._before):
            self.column.put(row, kind)
        self._before.clear()

    def leave(self, queue: QueueNode, job: Job, is_placed: bool) -> None:
        """The job no longer waits; if placed, it counts as running."""
        self.gone.add(job.id)
        for node in queue.path:
            self.pending[node.index] -= 1
            if is_placed:
                self.running[node.index] += 1

    def queue_facts(self, node: QueueNode, oldest_ms: int) -> QueueFacts:
        """What rules see of a queue now."""
        share = self.share_ppb(node)
        gpu_keys = [key for key in node.limited if key[1] == GPU]
        return QueueFacts(
            name=node.name,
            parent=node.parent.name if node.parent is not None else "",
            weight=node.weight,
            share_ppb=share,
            weighted_share_ppb=_weighted(share, node.weight),
            gpu_used_milli=self.used[node.index].get(GPU, 0),
            gpu_nominal_milli=sum(node.cells[key].subtree for key in gpu_keys),
            gpu_borrowed_milli=sum(borrowed(node, key, self.charged) for key in gpu_keys),
            pending=self.pending[node.index],
            running=self.running[node.index],
            oldest_ms=oldest_ms,
        )

    def share_ppb(self, node: QueueNode) -> int:
        """Dominant share of the capacity that is there, in parts per billion, rounded up (DRF, NSDI'11)."""
        used, capacity = self.used[node.index], self._state.capacity
        return max((share_ppb(amount, capacity.get(name, 0)) for name, amount in used.items()), default=0)


def home_facts(state: State, draft: Draft) -> HomeFacts:
    """All home clusters together. Counted over jobs and nodes: ask once per cycle."""
    there = free = 0
    for node in state.nodes.values():
        if not state.is_cloud(node.build.cluster):
            there += 1_000 * node.build.gpus
            free += sum(state.kinds.kinds[node.kind].gpu_free)
    pending = sum(job.cls.facts.gpus_milli for job in state.jobs.values() if job.lease is None and job.id not in draft.gone)
    pressure = ceil_div((there - free + pending) * 1_000_000, there) if there else MAX_AMOUNT if pending else 0
    return HomeFacts(gpu_milli=there, gpu_free_milli=free, gpu_pending_milli=pending, pressure_ppm=pressure)


def _weighted(share: int, weight: int) -> int:
    """Weight zero never beats a positive weight."""
    return ceil_div(share, weight) if weight > 0 else MAX_AMOUNT
