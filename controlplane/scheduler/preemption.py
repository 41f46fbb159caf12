"""Step 6: whom to evict so that one blocked gang can start, or nobody.

Mechanism, not to be switched off by a rule: victims are whole gangs; they are evicted only together with the placement
that they enable, which was found on a draft without them (provable benefit); every victim is needed, since each was put
back and found to be in the way; a queue is never reclaimed from below its nominal quota; free room counts first.
Rules say who may evict whom, and what an eviction costs. Before anybody is evicted, elastic gangs shrink: their members
above the minimum, the last that came first, are candidates of their own in front of all others, with the cost of their
gang.

The search: candidates in the order of (cost, newest, id), no more of them looked at than are needed; the shortest
prefix whose removal lets the gang start, by doubling and bisection; of the prefix those that sit where the gang would,
or whose quota it needs; each of these is put back if the gang still starts with it, the costliest first (as Kueue's
``fillBackWorkloads`` does). Two jobs cannot evict each other in turn: by priority only downwards, by quota only from
who is above nominal to who stays within, by share only while the victim's queue still has at least the share of the
preemptor's afterwards; and across these, nobody takes the room of whom it was evicted for.

Who reclaims must end within its nominal quota; less urgent gangs of its own queue may go for that, too. If nothing
comes of it, the search is made once more without reclaim, on borrowed quota (as Kueue's ``classical`` preemptor does).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from controlplane.domain.ids import JobId, job_label
from controlplane.domain.quantities import GPU
from controlplane.domain.queues import ANY_FLAVOR
from controlplane.domain.reasons import Reason
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.facts import JobFacts, ShortageFacts, VictimFacts
from controlplane.scheduler.needs import Need
from controlplane.scheduler.occupants import Occupant, occupant_of
from controlplane.scheduler.packing import Mask, Packer
from controlplane.scheduler.quota import QueueNode, available, borrowed
from controlplane.scheduler.rules import Answer, Rules
from controlplane.scheduler.state import Job, Lease, Seat, State
from controlplane.scheduler.verdicts import Refusal

HOUR_MS = 3_600_000
_PER_JOB = frozenset({"preemptor.id", "preemptor.name", "preemptor.submitted_ms", "preemptor.attempts"})
"""What alike jobs do not share; asked for membership only, as the following."""
_WITHIN_A_CYCLE = frozenset({"victim.is_borrowing", "victim.queue_weighted_share_ppb"})
"""What this very cycle changes."""
MAX_MOVES = 16
"""Victims for which the gang is tried elsewhere, so that they may stay."""
RECLAIM = "reclaim"
BORROWERS = "borrowers"
MAX_LIMITED = 8
"""So many plans are looked at that take more than may be taken."""
SURPLUS = "surplus"
"""The scope that takes only members above the minimum, whoever is more urgent: of its own queue, and of queues that use
more than their nominal quota or have none."""


@dataclass(slots=True, eq=False)
class Candidate:
    """A lease that may be evicted for the job at hand, or one member that an elastic one can do without."""

    cost: int
    lease: Lease
    occupant: Occupant
    scope: str
    rule: str | None
    member: Seat | None = None
    """The member, of a lease that goes on without it."""
    number: int = 0
    """Among the members of its lease."""

    @property
    def rank(self) -> tuple[int, int, int, int, int]:
        """The total order: members first, then the cheapest, then the newest, then by id."""
        whole = int(self.member is None)
        return (whole, self.cost, -self.lease.granted_ms, -self.lease.job.id, self.number)

    @property
    def resources(self) -> tuple[tuple[str, int], ...]:
        """(resource, amount) that its queue uses less without it."""
        if not self.lease.job.cls.is_elastic:
            return self.lease.job.cls.resources
        total: dict[str, int] = {}
        for _, ask, _, _ in self.occupant.seats:
            for name, amount in ask.resources:
                total[name] = total.get(name, 0) + amount
        return tuple(sorted(total.items()))

    @property
    def name(self) -> tuple[str, int | None]:
        """Its lease, and which of its members, of a lease that goes on."""
        return (self.lease.id, self.number if self.member is not None else None)

    @property
    def gpus_milli(self) -> int:
        """Milli-GPU that leaves with it."""
        return dict(self.resources).get(GPU, 0)

    @property
    def cause(self) -> str:
        """What the revocation says."""
        return "preempted" if self.scope in ("queue", "cohort", BORROWERS) else "reclaimed"


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Room that is sought: for a whole gang, or for more replicas of a service."""

    job: Job
    queue: QueueNode
    resources: tuple[tuple[str, int], ...]
    """(resource, amount) of all of it; sorted."""
    place: Callable[[], list[DraftSeat] | None]
    """Puts it on the draft; ``None`` leaves that as it was."""
    over_quota: Callable[[], Refusal | None]
    reason: Reason
    """Why it finds no room."""
    since_ms: int
    """When it began to wait."""
    limit_milli: int | None = None
    """For replicas: the most GPU that may have to leave for them. Then no service does."""


@dataclass(slots=True, eq=False)
class Plan:
    """An eviction and the placement that it enables."""

    victims: list[Candidate]
    """Whole gangs."""
    seats: list[DraftSeat]
    rule: str | None
    shrunk: list[Candidate]
    """Members of gangs that go on, those of one gang beside each other."""


class Preemption:
    """Searches on behalf of the blocked jobs of one cycle. Leaves the draft as it was."""

    def __init__(
        self,
        state: State,
        rules: Rules,
        agenda: Agenda,
        draft: Draft,
        packer: Packer,
        over_quota: Callable[[Job, QueueNode], Refusal | None],
    ) -> None:
        self._state = state
        self._rules = rules
        self._agenda = agenda
        self.draft = draft
        self.packer = packer
        self.over_quota = over_quota
        self._by_queue: dict[str, list[Lease]] | None = None
        """Leases by queue, the least urgent first."""
        reads = rules.preemption_victim_reads
        self._is_shared = not reads & _PER_JOB
        self._is_steady = not reads & _WITHIN_A_CYCLE
        self._reads_id = "victim.id" in reads
        self._known: dict[tuple[int, tuple[str, ...], bool, int | None], list[Candidate]] = {}
        """(class of jobs, or job, scopes, within nominal, limit) -> candidates in their order."""
        self._taken: set[str] = set()
        """Leases that are on their way out already; asked for membership only."""
        self.may_wait = True
        """Whether who lacks only quota that is being given back waits for it. Core 1 promised room to it, which was
        granted before the quota was back."""
        self._leaving: set[tuple[str, str, int]] = set()
        """(lease, role, ordinal) of members that this cycle told to leave; asked for membership only."""

    def shrink(self, lease: Lease, member: Seat) -> None:
        """The member is told to leave: it is nobody's victim any more."""
        self._leaving.add((lease.id, member.role, member.ordinal))
        self._known.clear()

    def staying(self, lease: Lease) -> list[Seat]:
        """The members of a lease that nobody has told to leave, in the order in which they came."""
        return [seat for seat in lease.staying() if (lease.id, seat.role, seat.ordinal) not in self._leaving]

    def occupant(self, lease: Lease) -> Occupant:
        """A lease as a victim: what it holds and is not on its way out already."""
        if not lease.job.cls.is_elastic:
            return self._agenda.occupant(self._state, lease)
        return occupant_of(self._state, self._agenda.rows, lease, self.staying(lease))

    def spare(self, lease: str) -> None:
        """The lease is being revoked: it is nobody's victim any more."""
        self._taken.add(lease)

    def find(
        self, job: Job, queue: QueueNode, needs: tuple[Need, ...], mask: Mask | None, refusal: Refusal
    ) -> Plan | None:
        """The cheapest eviction that lets the job start; ``None`` if the rules allow none or none would help."""
        demand = Demand(
            job,
            queue,
            job.cls.resources,
            place=lambda: self.packer.place(job.id, needs, queue, mask),
            over_quota=lambda: self.over_quota(job, queue),
            reason=refusal.reason,
            since_ms=job.submitted_ms,
        )
        return self.find_room(demand)

    def find_room(self, demand: Demand) -> Plan | None:
        """The same for anything that room is sought for."""
        queue, asked = demand.queue, dict(demand.resources)
        is_short = demand.reason is Reason.QUOTA and self.may_wait
        if is_short and self.draft.is_quota_coming(queue, demand.resources):
            return None  # who was told to leave for others has not left yet, and that more leave would change nothing
        is_within = self._is_under_nominal(queue, asked)
        shortage = ShortageFacts(demand.reason.slug, self._state.now_ms - demand.since_ms, is_within)
        answer = self._rules.preemption_allow(demand.job.facts(), self.draft.queue_facts(queue, 0), shortage)
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        scopes = [scope for scope in answer.value if scope != SURPLUS or self._state.elastic]
        if not scopes:
            return None
        if RECLAIM in scopes and self._is_under_nominal(queue, dict.fromkeys(asked, 1)):
            plan = self._search(demand, scopes, answer.rule, stays_within=True)
            if plan is not None or all(scope == RECLAIM for scope in scopes):
                return plan
        return self._search(demand, scopes, answer.rule, stays_within=False)

    def _search(self, demand: Demand, scopes: list[str], rule: str | None, *, stays_within: bool) -> Plan | None:
        """A plan in which no more has to leave than may; failing that, one without its largest victim, and so on."""
        too_large: list[tuple[str, int | None]] = []
        for _ in range(MAX_LIMITED):
            candidates = self._candidates(demand, scopes, stays_within, too_large)
            plan = _Search(self, demand, candidates, stays_within=stays_within).run(rule)
            if plan is None or demand.limit_milli is None:
                return plan
            leaving = [*plan.victims, *plan.shrunk]
            if sum(candidate.gpus_milli for candidate in leaving) <= demand.limit_milli:
                return plan
            too_large.append(max(leaving, key=lambda candidate: (candidate.gpus_milli, candidate.rank)).name)
        return None

    def _is_under_nominal(self, queue: QueueNode, more: Mapping[str, int]) -> bool:
        """Whether the queue has quota, and so much more of each resource that is asked for is still its own: of all
        flavors together, and of some one flavor where flavors have quota of their own. Asked with what the job needs,
        that is whether the queue would stay within its nominal quota, as it is now."""
        charged = self.draft.charged[queue.index]
        keys = [key for key in queue.limited if more.get(key[1], 0)]
        under = {key: charged.get(key, 0) + more[key[1]] <= queue.cells[key].subtree for key in keys}
        by_flavor: dict[str, bool] = {}
        for (flavor, resource), is_under in under.items():
            if flavor != ANY_FLAVOR:
                by_flavor[resource] = by_flavor.get(resource, False) or is_under
        together = all(is_under for (flavor, _), is_under in under.items() if flavor == ANY_FLAVOR)
        return bool(keys) and together and all(by_flavor.values())

    # --- candidates --------------------------------------------------------------------------------------------------

    def _candidates(
        self, demand: Demand, scopes: list[str], is_within: bool, left_out: Sequence[tuple[str, int | None]]
    ) -> Iterator[Candidate]:
        """Whom the job may evict, in order, those left out whom this cycle evicts already. Jobs that are alike in all
        that the rules read share the list, as long as nothing that the rules read changes within the cycle."""
        job = demand.job
        key = (job.cls.index if self._is_shared else -job.id, tuple(scopes), is_within, demand.limit_milli)
        known = self._known.get(key) if self._is_steady else None
        if known is None:
            known = self._known[key] = self._ranked(demand, scopes, is_within)
        return (
            one
            for one in known
            if one.lease.id not in self._taken and one.lease.job.id not in job.evicted_for and one.name not in left_out
        )

    def _ranked(self, demand: Demand, scopes: list[str], is_within: bool) -> list[Candidate]:
        job, queue, limit_milli = demand.job, demand.queue, demand.limit_milli
        facts = job.facts()
        found: list[Candidate] = []
        costs: dict[tuple[object, ...], Answer[int | None]] = {}
        for lease in self._within_reach(job, queue, scopes, is_within):
            if lease.revoked is not None or lease.id in self._taken:
                continue
            if limit_milli is not None and lease.service is not None:
                continue
            scope = self._scope(job, queue, lease, scopes, is_within)
            if scope is None:
                continue
            answer = self._cost(facts, lease, scope, costs)
            if answer.value is None:
                continue
            if lease.job.cls.is_elastic:
                found.extend(self._parts(lease, answer.value, scope, answer.rule))
            else:
                occupant = self._agenda.occupant(self._state, lease)
                found.append(Candidate(answer.value, lease, occupant, scope, answer.rule))
        if limit_milli is not None:
            found = [candidate for candidate in found if candidate.gpus_milli <= limit_milli]
        return sorted(found, key=lambda candidate: candidate.rank)

    def _cost(
        self, facts: JobFacts, lease: Lease, scope: str, costs: dict[tuple[object, ...], Answer[int | None]]
    ) -> Answer[int | None]:
        """What the rules say of a victim. Alike gangs that were placed together and never moved are alike to them."""
        job = lease.job
        is_apart = self._reads_id or job.cls.is_elastic or job.evicted
        key = (lease.id,) if is_apart else (job.cls.index, lease.granted_ms, scope)
        answer = costs.get(key)
        if answer is None:
            answer = costs[key] = self._rules.preemption_victim(facts, self._victim_facts(lease, scope))
            if answer.fault is not None:
                self._agenda.faults[answer.fault] = None
        return answer

    def _parts(self, lease: Lease, cost: int, scope: str, rule: str | None) -> Iterator[Candidate]:
        """An elastic lease: each member that it can do without, the last that came first; then the rest of it."""
        rows = self._agenda.rows
        staying = self.staying(lease)
        spare = {ask.role.name: -ask.role.count for ask in lease.job.cls.asks}
        for seat in staying:
            spare[seat.role] += 1
        rest: list[Seat] = []
        for number, seat in enumerate(reversed(staying)):
            if spare[seat.role] > 0:
                spare[seat.role] -= 1
                yield Candidate(cost, lease, occupant_of(self._state, rows, lease, [seat]), scope, rule, seat, number)
            else:
                rest.append(seat)
        if scope != SURPLUS:
            rest.reverse()
            yield Candidate(cost, lease, occupant_of(self._state, rows, lease, rest), scope, rule)

    def _within_reach(self, job: Job, queue: QueueNode, scopes: list[str], is_within: bool) -> Iterable[Lease]:
        """All leases, where other queues may be looked at; else those of its own queue, if any is less urgent."""
        if "cohort" in scopes or BORROWERS in scopes or "fair-share" in scopes or (RECLAIM in scopes and is_within):
            return self._state.leases.values()
        if SURPLUS in scopes and self._state.elastic:
            return self._state.leases.values()
        if not ("queue" in scopes or RECLAIM in scopes):
            return ()
        if self._by_queue is None:
            self._by_queue = {}
            for lease in self._state.leases.values():
                self._by_queue.setdefault(lease.job.cls.spec.queue, []).append(lease)
            for leases in self._by_queue.values():
                leases.sort(key=lambda lease: lease.job.cls.spec.priority)
        own = self._by_queue.get(queue.name, [])
        end = bisect_left(own, job.cls.spec.priority, key=lambda lease: lease.job.cls.spec.priority)
        return own[:end]

    def _scope(self, job: Job, queue: QueueNode, lease: Lease, scopes: list[str], is_within: bool) -> str | None:
        """The first scope that holds; whether a queue gives anything back is looked at again as victims add up."""
        theirs = self.queue_of(lease)
        is_lower = lease.job.cls.spec.priority < job.cls.spec.priority
        if theirs is queue:
            if is_lower and "queue" in scopes:
                return "queue"
            return SURPLUS if SURPLUS in scopes and lease.job.cls.is_elastic else None
        if is_lower and "cohort" in scopes and _top(theirs) is _top(queue):
            return "cohort"
        if is_within and RECLAIM in scopes:
            return RECLAIM
        if is_lower and BORROWERS in scopes and _top(theirs) is _top(queue):
            return BORROWERS
        if "fair-share" in scopes:
            return "fair-share"
        return SURPLUS if SURPLUS in scopes and lease.job.cls.is_elastic else None

    def queue_of(self, lease: Lease) -> QueueNode:
        """The queue of whom the lease serves."""
        return self._state.tree.by_name.get(lease.job.cls.spec.queue, self._state.tree.root)

    def _victim_facts(self, lease: Lease, scope: str) -> VictimFacts:
        job, spec, now_ms = lease.job, lease.job.cls.spec, self._state.now_ms
        queue = self.queue_of(lease)
        running_ms = now_ms - lease.granted_ms
        every_ms = spec.checkpoint_every_ms
        facts = self.draft.queue_facts(queue, 0)
        members, gpus_milli = self._size(lease)
        return VictimFacts(
            id=job_label(JobId(job.id)),
            queue=spec.queue,
            user=spec.user,
            priority=spec.priority,
            labels=job.cls.facts.labels,
            members=members,
            gpus_milli=gpus_milli,
            running_ms=running_ms,
            unsaved_ms=running_ms if every_ms is None else running_ms % every_ms,
            evictions=job.evicted,
            evictions_last_hour=sum(at_ms > now_ms - HOUR_MS for at_ms in job.evictions),
            is_borrowing=any(borrowed(queue, key, self.draft.charged) > 0 for key in queue.limited),
            queue_weighted_share_ppb=facts.weighted_share_ppb,
            scope=scope,
            is_service=job.cls.is_service,
        )

    def _size(self, lease: Lease) -> tuple[int, int]:
        """(members, milli-GPU) that would be lost."""
        if not lease.job.cls.is_elastic:
            return lease.job.cls.facts.members, lease.job.cls.facts.gpus_milli
        staying = self.staying(lease)
        return len(staying), sum(dict(seat.ask.resources).get(GPU, 0) for seat in staying)


class _Search:
    """The search for one job."""

    def __init__(
        self, preemption: Preemption, demand: Demand, candidates: Iterator[Candidate], *, stays_within: bool
    ) -> None:
        self._candidates = candidates
        """Those that were not looked at yet, in order."""
        self._accepted: list[Candidate] = []
        """Those that would be evicted one after the other, each seen with those before it already gone."""
        self._of = preemption
        self._draft = preemption.draft
        self._demand = demand
        self._queue = demand.queue
        self._stays_within = stays_within
        """Whether the queue, with the job and without the victims, must be within its nominal quota."""
        self._out = 0
        """How many of the accepted candidates are out of the draft now."""

    # --- who gives anything back -------------------------------------------------------------------------------------

    def _accept_next(self) -> bool:
        """Find the next one that may be evicted when all that were accepted are gone; whether there is one."""
        for candidate in self._candidates:
            match candidate.scope:
                case "reclaim" | "borrowers":
                    is_given = self._is_above_nominal(candidate)
                case "surplus":
                    is_given = self._may_take_surplus(candidate)
                case "fair-share":
                    is_given = self._has_larger_share(candidate)
                case _:
                    is_given = True
            if is_given:
                self._accepted.append(candidate)
                return True
        return False

    def _is_above_nominal(self, candidate: Candidate) -> bool:
        """Whether the victim's queue, and what it belongs to up to what it shares with the preemptor's, uses more than
        its nominal quota of something that the preemptor asks for."""
        asked = dict(self._demand.resources)
        charged = self._draft.charged
        for node in self._of.queue_of(candidate.lease).path:
            if node in self._queue.path:
                break
            keys = [key for key in node.limited if key[1] in asked]
            if not any(charged[node.index].get(key, 0) > node.cells[key].subtree for key in keys):
                return False
        return True

    def _may_take_surplus(self, candidate: Candidate) -> bool:
        theirs, asked = self._of.queue_of(candidate.lease), dict(self._demand.resources)
        is_limited = any(key[1] in asked for key in theirs.limited)
        return theirs is self._queue or not is_limited or self._is_above_nominal(candidate)

    def _has_larger_share(self, candidate: Candidate) -> bool:
        """Whether, after the exchange, the victim's side still has at least the weighted share of the preemptor's, at
        the level right below what both have in common."""
        theirs = self._of.queue_of(candidate.lease)
        common = next(node for node in theirs.path if node in self._queue.path)
        if common in (theirs, self._queue):  # what has become a cohort still runs jobs of its own
            return False
        side = next(node for node in theirs.path if node.parent is common)
        mine = next(node for node in self._queue.path if node.parent is common)
        after = self._draft.weighted_share_with(mine, self._demand.resources, 1)
        left = self._draft.weighted_share_with(side, candidate.resources, -1)
        if mine.weight == 0:
            return False
        return after <= left

    # --- the shortest prefix -----------------------------------------------------------------------------------------

    def run(self, rule: str | None) -> Plan | None:
        """Double, bisect, then leave out whoever is not in the way."""
        try:
            low, high = 1, self._go_to(1)
            while low <= high and not self._starts():
                low, high = high + 1, self._go_to(2 * high)
            if low > high:
                return None
            while low < high:
                middle = self._go_to((low + high) // 2)
                if self._starts():
                    high = middle
                else:
                    low = middle + 1
            self._go_to(low)
            plan = self._prune(rule)
            is_any = plan is not None and (plan.victims or plan.shrunk or not self._of.may_wait)
            return plan if is_any else None
        finally:
            self._go_to(0)

    def _starts(self) -> bool:
        """Whether the gang has a place, with those gone who are out now."""
        seats = self._place()
        if seats is None:
            return False
        self._draft.stand_up(self._queue, seats)
        return True

    def _place(self) -> list[DraftSeat] | None:
        if self._demand.over_quota() is not None:
            return None
        seats = self._demand.place()
        if seats is not None and self._exceeds_nominal():
            self._draft.stand_up(self._queue, seats)
            return None
        return seats

    def _prune(self, rule: str | None) -> Plan | None:
        seats = self._place()
        if seats is None:
            return None
        out = self._accepted[: self._out]
        kept: list[Candidate] = []
        for candidate in reversed(out):
            if not self._draft.has_room(candidate.occupant):
                kept.append(candidate)
                continue
            self._draft.readmit(candidate.occupant)
            if self._exceeds_quota() or self._exceeds_nominal():
                self._draft.evict(candidate.occupant)
                kept.append(candidate)
        seats = self._spare_by_moving(kept, seats)
        self._draft.stand_up(self._queue, seats)
        spared = {id(candidate) for candidate in out} - {id(candidate) for candidate in kept}
        for candidate in out:
            if id(candidate) in spared:
                self._draft.evict(candidate.occupant)
        kept.reverse()
        return self._planned(kept, seats, rule)

    def _spare_by_moving(self, kept: list[Candidate], seats: list[DraftSeat]) -> list[DraftSeat]:
        """Take out of ``kept`` whoever the gang could do without if it sat elsewhere, the costliest first."""
        for candidate in kept[:MAX_MOVES] if len(kept) > 1 else []:
            self._draft.stand_up(self._queue, seats)
            self._draft.readmit(candidate.occupant)
            moved = self._place()
            if moved is None:
                self._draft.evict(candidate.occupant)
                moved = self._place() or self._seated_as_before(seats)
            else:
                kept.remove(candidate)
            seats = moved
        return seats

    def _seated_as_before(self, seats: list[DraftSeat]) -> list[DraftSeat]:
        """Onto the very seats that were found with more of the others gone: of several roles, or under quota by flavor,
        the packer may not find them again."""
        at = tuple((seat.row, seat.need.ask_on(seat.kind_before), seat.gpus, seat.flavor) for seat in seats)
        self._draft.readmit(Occupant(self._queue, at))
        return seats

    def _planned(self, kept: list[Candidate], seats: list[DraftSeat], rule: str | None) -> Plan:
        """Whoever is evicted leaves with all of its members, those that could have been spared included."""
        whole = [candidate for candidate in kept if candidate.member is None]
        victims = [replace(candidate, occupant=self._of.occupant(candidate.lease)) for candidate in whole]
        evicted = [candidate.lease for candidate in victims]
        shrunk = [candidate for candidate in kept if candidate.member is not None and candidate.lease not in evicted]
        shrunk.sort(key=lambda candidate: (candidate.lease.number, candidate.number))
        return Plan(victims, seats, rule, shrunk)

    def _exceeds_quota(self) -> bool:
        return any(available(self._queue, key, self._draft.charged) < 0 for key in self._queue.limited)

    def _exceeds_nominal(self) -> bool:
        if not self._stays_within:
            return False
        asked, charged = dict(self._demand.resources), self._draft.charged[self._queue.index]
        keys = [key for key in self._queue.limited if key[1] in asked]
        return any(charged.get(key, 0) > self._queue.cells[key].subtree for key in keys)

    # --- in and out --------------------------------------------------------------------------------------------------

    def _go_to(self, count: int) -> int:
        """Let so many of them be out of the draft, or all if there are fewer; how many are."""
        while self._out < count and (self._out < len(self._accepted) or self._accept_next()):
            self._draft.evict(self._accepted[self._out].occupant)
            self._out += 1
        while self._out > count:
            self._out -= 1
            self._draft.readmit(self._accepted[self._out].occupant)
        return self._out


def _top(queue: QueueNode) -> QueueNode:
    """The queue right below the root that it belongs to."""
    return queue.path[-2] if len(queue.path) > 1 else queue
