"""Putting a whole gang on a draft, or nothing.

Theory of operation. A gang stays in one cluster: clusters are tried in the order of their best node for the first role.
A gang that does not care where it is goes member by member, each to its best node (highest score, then smallest node
name). A gang that cares (:mod:`controlplane.domain.topology`) goes domain by domain: the rules rank clusters and choose
GPUs, nearness ranks nodes.

1. The levels from the preferred one up to the required one are tried, the narrowest first, and in each the domains with
   room for every role, the tightest first.
2. Inside the gang's domain each role takes its own domain in the same way, and its members are shared out below it,
   packed or balanced.
3. When a role finds no place, the roles before it try their next domain; when that is used up, the roles are tried in
   other orders, and at last *giving way*: each role takes first the nodes that the others have least use for.

What is guaranteed. A gang of one role without quota by flavor is placed exactly if a domain of its required level has
room for it, and at the narrowest level at and above the preferred one that has: alike members on different nodes cannot
get into each other's way. Two roles without a topology of their own are placed exactly if they fit when no node holds
more than one member. Everything else is a search of at most :data:`MAX_TRIES` tries per gang (and, for large gangs, of
so many seats taken on the way), counted and never timed: it may refuse a gang of several roles that only some exchange
would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, permutations

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.quantities import GPU
from controlplane.domain.queues import ANY_FLAVOR
from controlplane.domain.topology import TopologyRequest
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.kinds import gpu_milli_on
from controlplane.scheduler.needs import INFEASIBLE, Column, Need, Scores
from controlplane.scheduler.quota import Key, QueueNode
from controlplane.scheduler.state import State
from controlplane.scheduler.topology import CLUSTER, Domains, Nearness, Room, nearness, within

Mask = NDArray[np.bool_]

MAX_TRIES = 64
"""How often one gang of several roles, or under quota by flavor, may try to seat a role in a domain."""
SEATS_TRIED = 4_000
SEATS_TRIED_PER_MEMBER = 8
"""Seats that may be taken on the way, the final ones included: this many and so many for each member. Taking one costs
some microseconds."""
MAX_ORDERS = 6
"""Orders of the roles that are tried: all of three roles."""


@dataclass(slots=True, eq=False)
class _Gang:
    """What one call places, for whom, and how much of a search it has left."""

    job: int
    queue: QueueNode
    flavored: list[Key]
    """Keys of the queue's quota that are limited by flavor."""
    seats_left: int
    """How many seats may still be tried."""
    tries: int = MAX_TRIES

    @property
    def is_spent(self) -> bool:
        """Whether the search is over, found or not."""
        return self.tries <= 0 or self.seats_left <= 0


@dataclass(frozen=True, slots=True, eq=False)
class _RolePlan:
    """One role with the nearness that its members want."""

    need: Need
    near: Nearness

    @property
    def members(self) -> int:
        return self.need.ask.role.count


Domain = tuple[int, int]
"""(depth, index)"""
Rooms = dict[Need, Room]
_SeatIn = Callable[[_Gang, list[_RolePlan], Domain, Mask | None], list[DraftSeat] | None]
"""Seats the first of the roles in a domain; the others are those that come behind it."""


class Packer:
    """Places gangs of one cycle on its draft."""

    def __init__(self, state: State, agenda: Agenda, draft: Draft) -> None:
        self._state = state
        self._kinds = state.kinds
        self._agenda = agenda
        self._draft = draft
        self._clusters = agenda.clusters
        self._cluster_of_row: Column | None = None
        self._flavor_of_row: Column | None = None
        self._flavors: list[str] = []

    def place(self, job: int, needs: tuple[Need, ...], queue: QueueNode, mask: Mask | None) -> list[DraftSeat] | None:
        """Seats for all members, already sitting on the draft; ``None`` leaves the draft as it was.

        ``mask`` marks rows that the job may use at all; ``None`` is all of them.
        """
        flavored = self.flavored(queue, needs)
        members = needs[0].ask.role.count if len(needs) == 1 else sum(need.ask.role.count for need in needs)
        if members == 1:
            return self._place_one(job, needs[0], queue, flavored, mask)
        gang = _Gang(job, queue, flavored, SEATS_TRIED + SEATS_TRIED_PER_MEMBER * members)
        place = self._place_near if cares(needs) else self._place_anywhere
        if len(self._clusters) < 2:
            return place(gang, needs, mask)
        for inside in self._by_cluster(needs[0], mask):
            seats = place(gang, needs, inside)
            if seats is not None:
                return seats
        return None

    def place_member(self, job: int, need: Need, queue: QueueNode, ordinal: int, mask: Mask) -> DraftSeat | None:
        """One more member of a gang that sits already, on its best node; it is sitting on the draft then."""
        seats = self._place_one(job, need, queue, self.flavored(queue, (need,)), mask, ordinal)
        return seats[0] if seats is not None else None

    def flavored(self, queue: QueueNode, needs: tuple[Need, ...]) -> list[Key]:
        """The keys of the queue's quota that depend on where members go."""
        if not queue.limited:
            return []
        is_by_memory = any(need.ask.amounts.gpu_memory_bytes for need in needs)
        return [key for key in queue.limited if key[0] != ANY_FLAVOR or (is_by_memory and key[1] == GPU)]

    def _place_one(
        self, job: int, need: Need, queue: QueueNode, flavored: list[Key], mask: Mask | None, ordinal: int = 0
    ) -> list[DraftSeat] | None:
        allowed = self._allowed_flavors(queue, flavored, need, mask) if flavored else mask
        seat = self._seat(job, need, ordinal, allowed)
        if seat is None:
            return None
        self._draft.sit(queue, seat)
        return [seat]

    def _by_cluster(self, need: Need, mask: Mask | None) -> list[Mask]:
        scores = _masked(need.row_scores(self._draft.column), mask)
        of_row = self._rows_by_cluster()
        ranked: list[tuple[int, int, Mask]] = []
        for index in range(len(self._clusters)):
            inside = of_row == index
            best = int(scores[inside].max(initial=INFEASIBLE))
            if best > INFEASIBLE:
                ranked.append((-best, index, inside if mask is None else inside & mask))
        return [rows for _, _, rows in sorted(ranked, key=lambda rank: rank[:2])]

    def _rows_by_cluster(self) -> Column:
        if self._cluster_of_row is None:
            index = {name: at for at, name in enumerate(self._clusters)}
            rows = (index[node.build.cluster] for node in self._agenda.nodes)
            self._cluster_of_row = np.fromiter(rows, dtype=np.int32, count=len(self._agenda.nodes))
        return self._cluster_of_row

    # --- gangs that do not care where they are -----------------------------------------------------------------------

    def _place_anywhere(self, gang: _Gang, needs: tuple[Need, ...], mask: Mask | None) -> list[DraftSeat] | None:
        seats = self._in_order(gang, needs, mask)
        if seats is not None or len(needs) == 1:
            return seats
        rooms = self._rooms(needs, mask)
        if not self._could_hold(needs, rooms, mask):
            return None
        for order in islice(_orders(needs, rooms), 1, MAX_ORDERS):
            seats = self._in_order(gang, order, mask)
            if seats is not None or gang.is_spent:
                return seats
        plans = [_RolePlan(need, Nearness()) for need in needs]
        return self._search(gang, plans, Nearness(), mask, self._giving_way)

    def _in_order(self, gang: _Gang, needs: tuple[Need, ...], mask: Mask | None) -> list[DraftSeat] | None:
        seats: list[DraftSeat] = []
        for need in needs:
            more = self._seat_role(gang, need, mask)
            if more is None:
                self._draft.stand_up(gang.queue, seats)
                return None
            seats = seats + more if seats else more
        return seats

    def _seat_role(self, gang: _Gang, need: Need, mask: Mask | None) -> list[DraftSeat] | None:
        """Each member to its best node."""
        seats: list[DraftSeat] = []
        for ordinal in range(need.ask.role.count):
            allowed = self._allowed_flavors(gang.queue, gang.flavored, need, mask) if gang.flavored else mask
            seat = self._seat(gang.job, need, ordinal, allowed)
            if seat is None:
                self._give_up(gang, seats)
                return None
            self._draft.sit(gang.queue, seat)
            seats.append(seat)
        gang.seats_left -= len(seats)
        return seats

    def _seat(self, job: int, need: Need, ordinal: int, mask: Mask | None) -> DraftSeat | None:
        column = self._draft.column
        scores = need.row_scores(column)
        if mask is not None:
            scores = _masked(scores, mask)
        if not scores.size:
            return None
        if need.is_per_node:
            rows = np.flatnonzero(scores > INFEASIBLE).tolist()
            row, gpus = need.best_of_nodes(job, rows, column, self._agenda.names)
            if row < 0:
                return None
            return DraftSeat(need, ordinal, row, column[row], gpus, self._agenda.nodes[row].build.flavor)
        row = int(scores.argmax())
        if scores[row] == INFEASIBLE:
            return None
        kind = column[row]
        return DraftSeat(need, ordinal, row, kind, need.gpus(kind), self._agenda.nodes[row].build.flavor)

    def _allowed_flavors(self, queue: QueueNode, flavored: list[Key], need: Need, mask: Mask | None) -> Mask:
        """Rows whose flavor the queue can still pay for with one more such member."""
        if self._flavor_of_row is None:
            self._flavors = sorted({node.build.flavor for node in self._agenda.nodes})
            index = {name: at for at, name in enumerate(self._flavors)}
            rows = (index[node.build.flavor] for node in self._agenda.nodes)
            self._flavor_of_row = np.fromiter(rows, dtype=np.int32, count=len(self._agenda.nodes))
        asked = dict(need.ask.resources)
        short = {
            key[0] for key in flavored if asked.get(key[1], 0) and self._draft.available(queue, key) < asked[key[1]]
        }
        if ANY_FLAVOR in short:  # of a gang with parts by memory, whose size is known when it is placed
            return np.zeros(len(self._flavor_of_row), dtype=np.bool_)
        allowed = np.fromiter((name not in short for name in self._flavors), dtype=np.bool_, count=len(self._flavors))
        by_row: Mask = allowed[self._flavor_of_row]
        if need.ask.amounts.gpu_memory_bytes:
            by_row &= self._affordable(queue, flavored, need)
        return by_row if mask is None else by_row & mask

    def _affordable(self, queue: QueueNode, flavored: list[Key], need: Need) -> Mask:
        """Rows where a part by memory counts no more milli-GPU than the queue has left."""
        left = [(key[0], self._draft.available(queue, key)) for key in flavored if key[1] == GPU]
        kinds, of_row = np.unique(self._draft.column.kinds, return_inverse=True)
        builds = [self._kinds.kinds[kind].build for kind in kinds.tolist()]
        is_paid = [
            all(
                gpu_milli_on(build, need.ask.amounts) <= amount
                for flavor, amount in left
                if flavor in ("any", build.flavor)
            )
            for build in builds
        ]
        by_row: Mask = np.array(is_paid, dtype=np.bool_)[of_row]
        return by_row

    # --- gangs that care ---------------------------------------------------------------------------------------------

    def _place_near(self, gang: _Gang, needs: tuple[Need, ...], mask: Mask | None) -> list[DraftSeat] | None:
        """In one cluster, which the mask is taken to leave."""
        near = nearness(needs[0].ask.gang)
        if len(needs) == 1:
            own = nearness(needs[0].ask.role.topology, needs[0].ask.gang)
            plan = _RolePlan(needs[0], Nearness(arrangement=own.arrangement))
            return self._search(gang, [plan], within(own, near), mask, self._shared_out)
        rooms = self._rooms(needs, mask)
        if not self._could_hold(needs, rooms, mask):
            return None
        orders = list(islice(_orders(needs, rooms), MAX_ORDERS))
        for seat_in in (self._shared_out, self._giving_way):
            for order in orders:
                plans = [_RolePlan(need, nearness(need.ask.role.topology, _arranged(near))) for need in order]
                seats = self._search(gang, plans, near, mask, seat_in)
                if seats is not None or gang.is_spent:
                    return seats
        return None

    def _search(
        self,
        gang: _Gang,
        plans: list[_RolePlan],
        near: Nearness,
        mask: Mask | None,
        seat_in: _SeatIn,
    ) -> list[DraftSeat] | None:
        """The gang in the first of its domains in which every role finds a place."""
        rooms = self._rooms(tuple(plan.need for plan in plans), mask)
        for domain in self._tightest(plans, rooms, near, (CLUSTER, -1)):
            if gang.is_spent:
                return None
            seats = self._roles_in(gang, plans, domain, mask, seat_in)
            if seats is not None:
                return seats
        return None

    def _roles_in(
        self,
        gang: _Gang,
        plans: list[_RolePlan],
        domain: Domain,
        mask: Mask | None,
        seat_in: _SeatIn,
    ) -> list[DraftSeat] | None:
        """All roles in one domain, depth first: a role that finds no place sends the one before it on."""
        rooms = self._rooms((plans[0].need,), mask)
        for inner in self._tightest(plans[:1], rooms, plans[0].near, domain):
            if gang.is_spent:
                return None
            gang.tries -= 1
            seats = seat_in(gang, plans, inner, mask)
            if seats is None:
                continue
            if len(plans) == 1:
                return seats
            rest = self._roles_in(gang, plans[1:], domain, mask, seat_in)
            if rest is not None:
                return seats + rest
            self._draft.stand_up(gang.queue, seats)
        return None

    def _tightest(self, plans: list[_RolePlan], rooms: Rooms, near: Nearness, inside: Domain) -> Iterator[Domain]:
        """Domains with room for every role, level by level from the preferred one up, those that would be left with
        least first; of several roles, counting what would be left for each. Index -1 is no limit."""
        depth, outer = inside
        tree = self._domains.tree
        for level in range(max(near.preferred, depth), max(near.required, depth) - 1, -1):
            low, high = (0, len(tree.starts[level]) - 1) if outer < 0 else tree.inside(level, depth, outer)
            left = np.zeros(high - low, dtype=np.int64)
            is_able = np.ones(high - low, dtype=np.bool_)
            for plan in plans:
                over = rooms[plan.need].at(level)[low:high] - plan.members
                is_able &= over >= 0
                left += over
            able = np.flatnonzero(is_able)
            for at in able[np.argsort(left[able], kind="stable")].tolist():
                yield level, low + at

    @property
    def _domains(self) -> Domains:
        return self._agenda.domains(self._state)

    def _rooms(self, needs: tuple[Need, ...], mask: Mask | None) -> Rooms:
        column, domains = self._draft.column.kinds, self._domains
        return {need: domains.room(need, column, mask) for need in needs}

    def _could_hold(self, needs: tuple[Need, ...], rooms: Rooms, mask: Mask | None) -> bool:
        """Whether each role alone has room, and all of them together the amounts that they ask for."""
        if any(int(rooms[need].slots.sum()) < need.ask.role.count for need in needs):
            return False
        return self._domains.has_in_all(needs, self._draft.column.kinds, mask)

    # --- one role in one domain --------------------------------------------------------------------------------------

    def _shared_out(
        self, gang: _Gang, plans: list[_RolePlan], domain: Domain, mask: Mask | None
    ) -> list[DraftSeat] | None:
        """Packed or balanced over the domain; if quota by flavor refuses that, each to its best node of it."""
        need, near = plans[0].need, plans[0].near
        room = self._domains.room(need, self._draft.column.kinds, mask)
        shares = room.share_out(*domain, plans[0].members, near.arrangement)
        seats = self._seat_on(gang, need, shares, mask)
        if seats is None and gang.flavored:
            return self._seat_role(gang, need, self._only(domain, mask))
        return seats

    def _giving_way(
        self, gang: _Gang, plans: list[_RolePlan], domain: Domain, mask: Mask | None
    ) -> list[DraftSeat] | None:
        """On the nodes of the domain that the roles behind have least use for; then those with most room, by name."""
        need, column = plans[0].need, self._draft.column.kinds
        tree = self._domains.tree
        low, high = tree.span(*domain)
        rows = tree.rows[low:high]
        slots = self._domains.room(need, column, mask).slots[rows]
        rivals = np.zeros(len(rows), dtype=np.int64)
        for plan in plans[1:]:
            rivals += self._domains.room(plan.need, column, mask).slots[rows]
        shares: list[tuple[int, int]] = []
        left = plans[0].members
        for at in np.lexsort((rows, -slots, rivals)).tolist():
            part = min(left, int(slots[at]))
            if part:
                shares.append((int(rows[at]), part))
                left -= part
        return self._seat_on(gang, need, shares, mask) if left == 0 else None

    def _seat_on(
        self, gang: _Gang, need: Need, shares: list[tuple[int, int]], mask: Mask | None
    ) -> list[DraftSeat] | None:
        """So many members on each row, numbered along the way, so that neighbours have neighbouring numbers."""
        seats: list[DraftSeat] = []
        for row, members in shares:
            for _ in range(members):
                seat = self._seat_at(gang, need, len(seats), row, mask)
                if seat is None:
                    self._give_up(gang, seats)
                    return None
                self._draft.sit(gang.queue, seat)
                seats.append(seat)
        gang.seats_left -= len(seats)
        return seats

    def _give_up(self, gang: _Gang, seats: list[DraftSeat]) -> None:
        gang.seats_left -= len(seats)
        self._draft.stand_up(gang.queue, seats)

    def _seat_at(self, gang: _Gang, need: Need, ordinal: int, row: int, mask: Mask | None) -> DraftSeat | None:
        scores = need.row_scores(self._draft.column)
        if scores[row] == INFEASIBLE:
            return None
        if gang.flavored and not self._allowed_flavors(gang.queue, gang.flavored, need, mask)[row]:
            return None
        column = self._draft.column
        kind = column[row]
        gpus = need.gpus(kind)
        if need.is_per_node:
            _, gpus = need.best_of_nodes(gang.job, [row], column, self._agenda.names)
        return DraftSeat(need, ordinal, row, kind, gpus, self._agenda.nodes[row].build.flavor)

    def _only(self, domain: Domain, mask: Mask | None) -> Mask:
        tree = self._domains.tree
        low, high = tree.span(*domain)
        inside = np.zeros(len(tree.rows), dtype=np.bool_)
        inside[tree.rows[low:high]] = True
        return inside if mask is None else inside & mask


def cares(needs: tuple[Need, ...]) -> bool:
    """Whether it matters to a gang where its members are."""
    return any(need.ask.gang is not None or need.ask.role.topology is not None for need in needs)


def _arranged(near: Nearness) -> TopologyRequest:
    """What a role takes over from its gang: the arrangement. Its levels hold for all of the gang already."""
    return TopologyRequest(arrangement=near.arrangement)


def _orders(needs: tuple[Need, ...], rooms: Rooms) -> Iterator[tuple[Need, ...]]:
    """As given; then the role with the least room for its size first; then every other order."""
    spare = [int(rooms[need].slots.sum()) // need.ask.role.count for need in needs]
    scarce = tuple(needs[at] for at in sorted(range(len(needs)), key=lambda at: (spare[at], at)))
    yield needs
    if scarce != needs:
        yield scarce
    for order in permutations(needs):
        if order not in (needs, scarce):
            yield order


def _masked(scores: Scores, mask: Mask | None) -> Scores:
    return scores if mask is None else np.where(mask, scores, INFEASIBLE)
