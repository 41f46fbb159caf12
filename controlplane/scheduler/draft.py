"""The overlay on which a cycle tries things out: later placements see earlier ones, and the state stays as it was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from controlplane.domain.events import Member
from controlplane.domain.mig import gpu_of, gpus_of, slices_of
from controlplane.domain.quantities import MAX_AMOUNT, ceil_div, share_ppb
from controlplane.domain.queues import ANY_FLAVOR
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.facts import HomeFacts, QueueFacts
from controlplane.scheduler.kinds import Amounts, Build, KindTable, can_sit, slices_taken
from controlplane.scheduler.needs import Need
from controlplane.scheduler.occupants import Occupant, SeatAt
from controlplane.scheduler.quota import Charged, Key, QueueNode, available, borrowed, charge
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

    def member(self, names: list[str]) -> Member:
        """The member as an event says it; ``names`` are those of the nodes, by row."""
        role, node = self.need.ask.role.name, names[self.row]
        if not self.need.ask.amounts.mig_profile:
            return Member(role=role, ordinal=self.ordinal, node=node, gpus=gpus_of(self.gpus))
        slices = slices_of(self.gpus)
        return Member(role=role, ordinal=self.ordinal, node=node, gpus=gpus_of(self.gpus), slices=slices)


class Draft:
    """What placements change: copies of what queues use, hold and are charged, and the nodes' kinds themselves, which
    :meth:`undo` puts back (a copy would make every reader of the nodes read all of them again)."""

    def __init__(self, state: State, agenda: Agenda) -> None:
        self._state = state
        self._kinds = state.kinds
        self.column = agenda.column
        self._original: dict[int, int] = {}
        """Row -> the kind that it had before the cycle touched it."""
        self.used = [dict(used) for used in state.used]
        self.charged = [dict(charged) for charged in state.charged]
        self._standing: Charged | None = None
        """The same with those in the way of promises still there, and nobody in their place; ``None`` without promises.
        Quota holds for both: what an eviction gives back is not used before the cluster says that it is over."""
        self.pending = list(state.pending)
        self.running = list(state.running)
        self.arrays = dict(state.arrays)
        self.gone: set[int] = set()
        """Jobs that this cycle placed, refused or ended; asked for membership only."""
        self.left: dict[int, int] = {}
        """How many of each class they are."""
        self._facts: dict[tuple[int, int, str], QueueFacts] = {}
        """What rules saw of queues since the last change: who is refused changes nothing, and most are refused."""

    def sit(self, queue: QueueNode, seat: DraftSeat) -> None:
        """Put one member on its node."""
        self._put(seat.row, self._kinds.take(seat.kind_before, seat.need.ask.amounts, seat.gpus))
        self._use(queue, seat.flavor, seat.need.ask_on(seat.kind_before), 1)

    def stand_up(self, queue: QueueNode, seats: list[DraftSeat]) -> None:
        """Undo :meth:`sit` for the members of a gang, last first. Others may have come and gone on their nodes: what
        the members took is given back, and what they found is not put back."""
        for seat in reversed(seats):
            now = self.column[seat.row]
            self._put(seat.row, self._kinds.give_back(now, seat.need.ask.amounts, seat.gpus))
            self._use(queue, seat.flavor, seat.need.ask_on(seat.kind_before), -1)

    def _use(self, queue: QueueNode, flavor: str, ask: Ask, sign: int, *, is_promised: bool = False) -> None:
        self._facts.clear()
        for node in queue.path:
            used = self.used[node.index]
            for resource, amount in ask.resources:
                used[resource] = used.get(resource, 0) + sign * amount
        keys = self._state.keys_charged(queue, flavor)
        if keys:
            asked = dict(ask.resources)
            for resource, key in keys:
                charge(queue, key, sign * asked.get(resource, 0), self.charged)
                if self._standing is not None and not is_promised:
                    charge(queue, key, sign * asked.get(resource, 0), self._standing)

    def available(self, queue: QueueNode, key: Key) -> int:
        """How much more the queue may use: as long as those in the way of promises are there, and afterwards, too."""
        left = available(queue, key, self.charged)
        return left if self._standing is None else min(left, available(queue, key, self._standing))

    def rent_in_use(self, agenda: Agenda) -> set[str]:
        """Capacity requests of which a node changed in this cycle; asked for membership only."""
        changed = (row for row, kind in self._original.items() if self.column[row] != kind)
        return {request for row in changed if (request := agenda.nodes[row].request) is not None}

    def undo(self) -> None:
        """Put the nodes back as they were: the cycle is over, and folding its decisions is what changes them."""
        for row, kind in self._original.items():
            if self.column[row] != kind:
                self.column.put(row, kind)
        self._original.clear()

    def _put(self, row: int, kind: int) -> None:
        self._original.setdefault(row, self.column[row])
        self.column.put(row, kind)

    def hold(self, row: int, amounts: Amounts, gpus: tuple[int, ...]) -> None:
        """Keep something of a node from everybody, without any books."""
        self._put(row, self._kinds.take(self.column[row], amounts, gpus))

    def let_go(self, row: int, amounts: Amounts, gpus: tuple[int, ...]) -> None:
        """Undo :meth:`hold`."""
        self._put(row, self._kinds.give_back(self.column[row], amounts, gpus))

    # --- what others hold --------------------------------------------------------------------------------------------

    def evict(self, occupant: Occupant, *, rooms: bool = True, books: bool = True) -> None:
        """As if the occupant were gone: its room on the nodes, and what stands in the books of its queue."""
        for row, ask, gpus, flavor in occupant.seats:
            if rooms and row >= 0:
                self._put(row, self._kinds.give_back(self.column[row], ask.amounts, gpus))
            if books:
                self._use(occupant.queue, flavor, ask, -1)

    def readmit(self, occupant: Occupant, *, rooms: bool = True, books: bool = True) -> None:
        """Undo :meth:`evict`."""
        for row, ask, gpus, flavor in reversed(occupant.seats):
            if rooms and row >= 0:
                self._put(row, self._kinds.take(self.column[row], ask.amounts, gpus))
            if books:
                self._use(occupant.queue, flavor, ask, 1)

    def has_room(self, occupant: Occupant) -> bool:
        """Whether an evicted occupant could sit where it sat."""
        free: dict[int, int] = {}
        for row, ask, gpus, _ in occupant.seats:
            if row < 0:
                continue
            id_ = free.get(row, self.column[row])
            kind = self._kinds.kinds[id_]
            if not can_sit(kind, ask.amounts, gpus):
                return False
            free[row] = self._kinds.take(id_, ask.amounts, gpus)
        return True

    def is_quota_coming(self, queue: QueueNode, asked: Iterable[tuple[str, int]]) -> bool:
        """Whether the queue lacks quota for so much only as long as those in the way of promises are still there."""
        if self._standing is None:
            return False
        keys = [((ANY_FLAVOR, resource), amount) for resource, amount in asked]
        keys = [(key, amount) for key, amount in keys if key in queue.limited]
        return all(available(queue, key, self.charged) >= amount for key, amount in keys) and any(
            available(queue, key, self._standing) < amount for key, amount in keys
        )

    def has_quota(self, occupant: Occupant, *, is_standing: bool = False) -> bool:
        """Whether the queue has quota for the occupant besides what is there: with those in the way of promises gone
        and the jobs in their place, or, ``is_standing``, with them still there."""
        charged = self._standing if is_standing and self._standing is not None else self.charged
        asked: dict[Key, int] = {}
        for _, ask, _, flavor in occupant.seats:
            amounts = dict(ask.resources)
            for resource, key in self._state.keys_charged(occupant.queue, flavor):
                asked[key] = asked.get(key, 0) + amounts.get(resource, 0)
        return all(not amount or available(occupant.queue, key, charged) >= amount for key, amount in asked.items())

    def promise(self, queue: QueueNode, seats: Sequence[SeatAt], in_the_way: Sequence[Occupant]) -> None:
        """Hold room for a gang whose victims have not all left: in the books as it will be, on the nodes what the gang
        needs beyond what the victims still occupy."""
        if self._standing is None:
            self._standing = [dict(charged) for charged in self.charged]
        for occupant in in_the_way:
            for _, ask, _, flavor in occupant.seats:
                self._use(occupant.queue, flavor, ask, -1, is_promised=True)
        for _, ask, _, flavor in seats:
            self._use(queue, flavor, ask, 1, is_promised=True)
        there = [seat for occupant in in_the_way for seat in occupant.seats]
        for row in dict.fromkeys(seat[0] for seat in seats):
            if row >= 0:
                needed, occupied = [[at for at in all_ if at[0] == row] for all_ in (seats, there)]
                self._put(row, _held(self._kinds, self.column[row], needed, occupied))

    def leave(self, queue: QueueNode, job: Job, is_placed: bool) -> None:
        """The job no longer waits; if placed, it counts as running."""
        self._facts.clear()
        self.gone.add(job.id)
        if is_placed:
            self.count_in_array(job)
        self.left[job.cls.index] = self.left.get(job.cls.index, 0) + 1
        for node in queue.path:
            self.pending[node.index] -= 1
            if is_placed:
                self.running[node.index] += 1

    def count_in_array(self, job: Job) -> None:
        """The job holds a place of its array, or one is promised to it."""
        if job.array is not None:
            self.arrays[job.array] = self.arrays.get(job.array, 0) + 1

    def is_array_full(self, job: Job) -> bool:
        """Whether as many jobs of its array as may run at once hold a place."""
        most = job.cls.spec.max_running
        return most is not None and job.array is not None and self.arrays.get(job.array, 0) >= most

    def queue_facts(self, node: QueueNode, oldest_ms: int, claim: str = "") -> QueueFacts:
        """What rules see of a queue now; of a cohort, for the claim of a queue below it."""
        key = (node.index, oldest_ms, claim)
        found = self._facts.get(key)
        if found is None:
            found = self._facts[key] = self._queue_facts(node, oldest_ms, claim)
        return found

    def _queue_facts(self, node: QueueNode, oldest_ms: int, claim: str) -> QueueFacts:
        share = self.share_ppb(node, claim)
        history = self._state.history.ppb(node.name) if self._state.history is not None else 0
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
            history_ppb=history,
            weighted_history_ppb=_weighted(history, node.weight),
        )

    def share_ppb(self, node: QueueNode, claim: str = "") -> int:
        """Dominant share of the capacity that is there, in parts per billion, rounded up (DRF, NSDI'11); of a cohort,
        if a claim is given, its share of that resource, see :mod:`controlplane.scheduler.claims`."""
        used, capacity = self.used[node.index], self._state.capacity
        if claim and node.children:
            return share_ppb(used.get(claim, 0), capacity.get(claim, 0))
        return max((share_ppb(amount, capacity.get(name, 0)) for name, amount in used.items()), default=0)

    def weighted_share_with(self, node: QueueNode, gang: tuple[tuple[str, int], ...], sign: int) -> int:
        """The weighted share that the queue would have with a gang more (1) or less (-1)."""
        used, capacity = dict(self.used[node.index]), self._state.capacity
        for name, amount in gang:
            used[name] = used.get(name, 0) + sign * amount
        share = max((share_ppb(amount, capacity.get(name, 0)) for name, amount in used.items()), default=0)
        return _weighted(share, node.weight)


class _Load:
    """What seats take of one node."""

    def __init__(self) -> None:
        self.cpu = 0
        self.memory = 0
        self.gpus: dict[int, int] = {}
        """By GPU, in milli-GPU."""
        self.slices: dict[int, int] = {}
        """By GPU: the mask of its slices, where it may be cut."""
        self.other: dict[str, int] = {}

    def add(self, build: Build, ask: Ask, gpus: tuple[int, ...]) -> None:
        self.cpu += ask.amounts.cpu_milli
        self.memory += ask.amounts.memory_bytes
        for spot in gpus:
            index = gpu_of(spot)
            self.gpus[index] = self.gpus.get(index, 0) + ask.amounts.gpu_milli
            if build.mig_geometry:
                self.slices[index] = self.slices.get(index, 0) | slices_taken(build, ask.amounts, spot)
        for name, amount in ask.amounts.other:
            self.other[name] = self.other.get(name, 0) + amount


def _held(kinds: KindTable, id_: int, needed: Sequence[SeatAt], there: Sequence[SeatAt]) -> int:
    """The kind that is left of a node when what is needed, less what those who are there still have of it, is taken
    from what is free."""
    kind = kinds.kinds[id_]
    need, occupied = _Load(), _Load()
    for load, seats in ((need, needed), (occupied, there)):
        for _, ask, gpus, _ in seats:
            load.add(kind.build, ask, gpus)
    return kinds.hold(
        kind,
        max(0, need.cpu - occupied.cpu),
        max(0, need.memory - occupied.memory),
        {gpu: max(0, milli - occupied.gpus.get(gpu, 0)) for gpu, milli in need.gpus.items()},
        need.slices,
        {name: max(0, amount - occupied.other.get(name, 0)) for name, amount in need.other.items()},
    )


def home_facts(state: State, draft: Draft) -> HomeFacts:
    """All home clusters together. Counted over jobs and nodes: ask once per cycle."""
    there = free = 0
    for node in state.nodes.values():
        if not state.is_cloud(node.build.cluster):
            there += 1_000 * node.build.gpus
            free += sum(state.kinds.kinds[node.kind].gpu_free)
    pending = sum(
        job.cls.facts.gpus_milli
        for job in state.jobs.values()
        if job.lease is None and not job.waits_for and job.id not in draft.gone
    )
    pressure = ceil_div((there - free + pending) * 1_000_000, there) if there else MAX_AMOUNT if pending else 0
    return HomeFacts(gpu_milli=there, gpu_free_milli=free, gpu_pending_milli=pending, pressure_ppm=pressure)


def _weighted(share: int, weight: int) -> int:
    """Weight zero never beats a positive weight."""
    return ceil_div(share, weight) if weight > 0 else MAX_AMOUNT
