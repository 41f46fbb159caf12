"""Elastic gangs get more members when all who wait have had their turn.

Theory of operation. An elastic gang waits and is placed as its smallest self (``Ask.role.count`` is the least), by
the same way as any other. What it may have beyond that is given to it at the end of a cycle, one member at a time,
from room that nobody who waits could take: each time the queue goes next that the rules say, down the tree as for
jobs, and in it the gang that the rules put first, until that has its most or finds no more room. A new member is
subject to what a placement is subject to: quota of its queue, borrowing included; eligibility and scores;
reservations and promises; the levels that its gang or role requires, in the domain in which the others are. It stays
in the cluster of its gang and on no rented node that the gang does not use already, so that growing never keeps rent.

Where the rules let nobody take anything back, nothing is given while anybody waits for room: it could not be had again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

from controlplane.domain.events import LeaseGranted, LeaseGrown
from controlplane.domain.ids import NodeId
from controlplane.domain.reasons import Reason
from controlplane.scheduler.agenda import Agenda, Order
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.needs import Need
from controlplane.scheduler.packing import Mask, Packer
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.reservations import Reservations
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import WANTED, Job, Lease, State
from controlplane.scheduler.topology import CLUSTER, nearness
from controlplane.scheduler.warm import Warm

WAITS_FOR_ROOM = frozenset({Reason.QUOTA, Reason.HELD_WARM, Reason.TOPOLOGY, Reason.RESERVED, Reason.CAPACITY})
"""What growing could take from somebody who waits; asked for membership only."""

Resources = tuple[tuple[str, int], ...]
MayUse = Callable[[Job, QueueNode, Resources], bool]
"""Whether the quota of the queue has room for so much more of the job."""


@dataclass(slots=True, eq=False)
class Growing:
    """An elastic gang that has less than its most."""

    lease: str
    job: Job
    queue: QueueNode
    granted_ms: int
    revision: int
    seats: list[tuple[str, int, int]]
    """(role, ordinal, row) of everyone who holds room, those who leave included."""
    requests: frozenset[str]
    """Rented capacity that it uses; asked for membership only."""
    left: int
    """How many members more it may have."""
    added: list[DraftSeat] = field(default_factory=list)
    order: Order = ()

    @property
    def rank(self) -> tuple[Order, int]:
        """Its place among the gangs of its queue."""
        return (self.order, self.job.id)


class Growth:
    """The growing of one cycle, on its draft."""

    def __init__(
        self,
        state: State,
        rules: Rules,
        agenda: Agenda,
        draft: Draft,
        packer: Packer,
        reservations: Reservations,
        warm: Warm | None = None,
    ) -> None:
        """``warm``: the pools from which those who grow may take."""
        self._warm = warm
        self._state = state
        self._rules = rules
        self._agenda = agenda
        self._draft = draft
        self._packer = packer
        self._reservations = reservations
        self._orders: dict[int, Order] = {}
        self._lines: dict[int, list[Growing]] = {}
        """By queue index: who has not been served, the first last."""
        self._active = [0 for _ in state.tree.nodes]
        self._masks: dict[tuple[str, str], Mask] = {}

    def run(self, growing: Iterable[Growing], may_use: MayUse) -> list[LeaseGrown]:
        """Seat members until nobody who may grow finds room. Gives what was decided, in the order of the leases."""
        found = list(growing)
        for one in found:
            one.order = self._agenda.order_of(one.job, self._draft.queue_facts(one.queue, 0), self._state.now_ms)
            self._lines.setdefault(one.queue.index, []).append(one)
        for line in self._lines.values():
            line.sort(key=lambda one: one.rank, reverse=True)
            for node in line[0].queue.path:
                self._active[node.index] += 1
        while (queue := self._next_queue()) is not None:
            self._serve(queue, may_use)
        return [self._event(one) for one in found if one.added]

    def _next_queue(self) -> QueueNode | None:
        node = self._state.tree.root
        if not self._active[node.index]:
            return None
        while node.children:
            active = [child for child in node.children if self._active[child.index]]
            node = active[0] if len(active) == 1 else min(active, key=lambda child: (self._order(child), child.name))
        return node

    def _order(self, queue: QueueNode) -> Order:
        order = self._orders.get(queue.index)
        if order is None:
            answer = self._rules.queue_order(self._draft.queue_facts(queue, 0), self._state.now_ms)
            if answer.fault is not None:
                self._agenda.faults[answer.fault] = None
            order = self._orders[queue.index] = tuple(answer.value)
        return order

    def _serve(self, queue: QueueNode, may_use: MayUse) -> None:
        """One member for the first gang of the queue, or the end of its turn."""
        line = self._lines[queue.index]
        if self._grow(line[-1], may_use):
            for node in queue.path:
                self._orders.pop(node.index, None)
            return
        line.pop()
        if not line:
            for node in queue.path:
                self._active[node.index] -= 1

    def _grow(self, one: Growing, may_use: MayUse) -> bool:
        if one.left <= 0:
            return False
        needs = {need.ask.role.name: need for need in self._agenda.needs_of(self._state, one.job)}
        for role, most in one.job.cls.most.items():
            taken = {ordinal for name, ordinal, _ in one.seats if name == role}
            if len(taken) >= most or not may_use(one.job, one.queue, needs[role].ask.resources):
                continue
            ordinal = next(number for number in range(most) if number not in taken)
            seat = self._seat(one, needs[role], ordinal)
            if seat is not None:
                one.seats.append((role, ordinal, seat.row))
                one.added.append(seat)
                one.left -= 1
                return True
        return False

    def _seat(self, one: Growing, need: Need, ordinal: int) -> DraftSeat | None:
        opened = self._warm.open_to(one.job, one.queue) if self._warm is not None else ()
        seat = self._packer.place_member(one.job.id, need, one.queue, ordinal, self._mask(one, need))
        if self._warm is not None:
            self._warm.close(opened)
        return seat

    def _mask(self, one: Growing, need: Need) -> Mask:
        """Rows on which the gang may have another member of a role. The same for all of one cycle."""
        key = (one.lease, need.ask.role.name)
        mask = self._masks.get(key)
        if mask is None:
            mask = self._masks[key] = self.allowed(one, need)
        return mask

    def allowed(self, one: Growing, need: Need) -> Mask:
        """The same, as of now. A service is there for ever, so that it goes nowhere where a start is reserved."""
        mask = self.near(one, need)
        if one.job.cls.is_service:
            mask[self._reservations.rows_kept()] = False
            return mask
        estimate_ms = one.job.cls.spec.estimate_ms
        end_ms = None if estimate_ms is None else max(one.granted_ms + estimate_ms, self._state.now_ms + 1)
        kept = self._reservations.mask_until(end_ms, mask)
        assert kept is not None, "a mask narrows to a mask"
        return kept

    def near(self, one: Growing, need: Need) -> Mask:
        """Rows in the domains that it requires, of its cluster, on no rent but its own; whoever they are kept for."""
        tree = self._agenda.domains(self._state).tree
        mask = np.ones(len(self._agenda.nodes), dtype=np.bool_)
        of_gang, of_role = nearness(need.ask.gang).required, nearness(need.ask.role.topology).required
        for role, _, row in one.seats:
            if row >= 0:
                depth = max(CLUSTER, of_gang, of_role if role == need.ask.role.name else CLUSTER)
                beside = np.zeros(len(mask), dtype=np.bool_)
                beside[tree.rows_beside(depth, row)] = True
                mask &= beside
        for row in self._agenda.rented_rows:
            if self._agenda.nodes[row].request not in one.requests:
                mask[row] = False
        return mask

    def _event(self, one: Growing) -> LeaseGrown:
        for seat in one.added:
            fault = seat.need.fault(seat.kind_before)
            if fault is not None:
                self._agenda.faults[fault] = None
        first = one.added[0]
        return LeaseGrown(
            lease=one.lease,
            revision=one.revision + 1,
            members=tuple(seat.member(self._agenda.names) for seat in one.added),
            rule=first.need.rule(first.kind_before),
            cause=WANTED if one.job.cls.is_service else "",
        )


def growing_lease(state: State, agenda: Agenda, lease: Lease, left: int | None = None) -> Growing | None:
    """The lease as a gang that may have so many more members (by default as many as its job allows); ``None`` if it may
    not grow."""
    queue = state.tree.by_name.get(lease.job.cls.spec.queue)
    is_allowed = left is not None or lease.may_grow
    if not is_allowed or lease.job.is_cancelled or queue is None or queue.is_held or queue.children:
        return None
    seats = [(seat.role, seat.ordinal, agenda.rows.get(seat.node, -1)) for seat in lease.seats]
    if any(row < 0 for _, _, row in seats):
        return None
    left = sum(lease.job.cls.most.values()) - len(seats) if left is None else left
    return Growing(lease.id, lease.job, queue, lease.granted_ms, lease.revision, seats, frozenset(lease.requests), left)


def growing_newcomer(state: State, agenda: Agenda, job: Job, event: LeaseGranted) -> Growing | None:
    """The same for a gang that this very cycle placed."""
    queue = state.tree.by_name[job.cls.spec.queue]
    left = sum(job.cls.most.values()) - len(event.members)
    if left <= 0:
        return None
    seats = [(member.role, member.ordinal, agenda.rows[NodeId(event.cluster, member.node)]) for member in event.members]
    requests = (agenda.nodes[row].request for _, _, row in seats)
    rented = frozenset(request for request in requests if request is not None)
    return Growing(event.lease, job, queue, state.now_ms, 0, seats, rented, left)
