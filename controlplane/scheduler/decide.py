"""One cycle of the scheduler: ``decide(state, rules) -> decisions``.

The mapping is from (state at a tick, rules) to a list of decided events, and to nothing else: the state is left as it
was, and folding the decisions is what changes it. The cycle is a numbered procedure:

1. What the clock and the agents ended: cancelled, returned and stranded work, rent past its deadline.
2. Admission of new submissions, and the terms on which they wait.
3. Promises are kept, warm pools filled, and services get the replicas that they are to have; then shares in the queue
   tree, and the order of jobs in their queues.
4. Repeatedly the next queue and its next job, by the ordering rules, ending in the id: first the jobs for which rented
   nodes have arrived, then everybody.
5. For that job: quota, then packing of the whole gang on a draft, wherever the scoring rules rank first.
6. If it does not fit: whom to evict for it, in one decision with the placement which that enables; the room is held.
7. Else a reservation for it, and backfill behind it.
8. Burst: offers for what still waits; elastic gangs grow into what nobody who waits could take; rent that stands idle
   is given back.
9. Jobs that give up waiting; what waits, and why; terms that change with the time; the cycle's own record with the
   digest over its decisions.

Where this departs from the picture: a job whose group was refused is not asked again until something was freed, so a
rule about ``now`` in ``scoring`` or ``eligibility`` is not re-asked by the passing of time alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from controlplane.domain.codec import encode
from controlplane.domain.events import (
    CapacityReleased,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobRequeued,
    JobsWaiting,
    LeaseGranted,
    LeaseRevoked,
    LeaseShrunk,
    Member,
    MemberName,
    PromiseReleased,
    QuotaOverPromised,
    ReservationMade,
    ReservationReleased,
    RoomPromised,
    ShrinkAwaited,
    Tally,
)
from controlplane.domain.ids import JobId, job_label, lease_id
from controlplane.domain.mig import gpus_of, slices_of
from controlplane.domain.quantities import MAX_MS
from controlplane.domain.reasons import Reason
from controlplane.domain.version import CORE, FIRST_CORE
from controlplane.scheduler.agenda import Agenda, Entry, Group, Kept, agenda_for
from controlplane.scheduler.answers import FirstAnswers, ceiling_refusal
from controlplane.scheduler.burst import REASK_MS, Burst
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.elastic import WAITS_FOR_ROOM, Growth, growing_lease, growing_newcomer
from controlplane.scheduler.explain import fill_in
from controlplane.scheduler.facts import CohortFacts
from controlplane.scheduler.needs import Need, tally
from controlplane.scheduler.occupants import Occupant, occupant_of
from controlplane.scheduler.outlook import Outlook
from controlplane.scheduler.packing import Mask, Packer
from controlplane.scheduler.preemption import Candidate, Plan, Preemption
from controlplane.scheduler.promises import over_promises
from controlplane.scheduler.quota import QueueNode, available_nominal
from controlplane.scheduler.reservations import Reservations
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.services import Acts, Services
from controlplane.scheduler.state import Job, Lease, Phase, Promise, RequestPhase, State
from controlplane.scheduler.terms import Terms
from controlplane.scheduler.turns import Turns
from controlplane.scheduler.verdicts import Hold, Refusal, Watch
from controlplane.scheduler.warm import Warm

SEARCH_EVERY_MS = 30_000
"""Who was told that nobody can be evicted for it, and who holds a reservation, is looked at again after this; who is
new, at once."""
MAX_SEARCHES = 256
"""Blocked jobs for which one cycle looks for victims."""
_BLOCKED = (Reason.QUOTA, Reason.HELD_WARM, Reason.TOPOLOGY, Reason.RESERVED, Reason.CAPACITY)
"""What a job waits for that can be freed; rules may keep others from passing it meanwhile."""
_EVICTING_HELPS = (Reason.CAPACITY, Reason.TOPOLOGY, Reason.QUOTA, Reason.HELD_WARM)
_RESERVING_HELPS = (Reason.CAPACITY, Reason.TOPOLOGY, Reason.RESERVED, Reason.HELD_WARM)
TIME_LIMIT = "time-limit"
"""Cause of a revocation: the job held its place for as long as it may."""
NOT_RUNNING = "not-running"
"""Cause of a revocation: its cluster has not said that it runs for as long as it may hold its place without."""
_WITHOUT_TALLY = (Reason.QUEUE_HELD, Reason.DEPENDENCY, Reason.ARRAY_FULL, Reason.QUOTA, Reason.BEHIND_HEAD)
"""Reasons for which no nodes were looked at."""


@dataclass(slots=True, eq=False)
class Decision:
    """A decided event and its canonical bytes."""

    event: Event
    payload: bytes


@dataclass(frozen=True, slots=True)
class Cycle:
    """What one cycle decided, in order; the last is its :class:`CycleDecided`."""

    decisions: tuple[Decision, ...]
    watch: Watch | None = None


def decide(state: State, rules: Rules, watched_job: int | None = None, core: str = CORE) -> Cycle:
    """Run one cycle. ``watched_job`` asks for an account of everything that was tried for one job; ``core`` is the
    version whose behaviour is asked for, one of :data:`~controlplane.domain.version.KNOWN_CORES`. The state is as it
    was afterwards, also if a bug, or rules that raise, end the cycle early."""
    cycle = _Cycle(state, rules, Watch(watched_job) if watched_job is not None else None, core)
    try:
        _run(cycle)
        return Cycle(cycle.close(), cycle.watch)
    finally:
        cycle.undo()


def _run(cycle: _Cycle) -> None:
    cycle.end_what_ended()
    cycle.report_promises()
    cycle.admit()
    cycle.keep_promises()
    cycle.scale_services()
    cycle.refresh()
    cycle.place()
    cycle.record_reservations()
    cycle.burst()
    cycle.grow()
    cycle.release_rent()
    cycle.give_up()
    cycle.record_waiting()
    cycle.give_terms_again()
    cycle.account()


class _Cycle:
    def __init__(self, state: State, rules: Rules, watch: Watch | None, core: str) -> None:
        self._state = state
        self._tree = state.tree
        self._core = core
        self._is_first_core = core == FIRST_CORE
        self._rules = rules
        self.watch = watch
        self._agenda: Agenda = agenda_for(state, rules)
        self._agenda.refresh_nodes(state)
        self._draft = Draft(state, self._agenda)
        self._packer = Packer(state, self._agenda, self._draft)
        self._outlook = Outlook(state, self._agenda)
        self._answers = FirstAnswers(state, self._agenda, self._draft, self._outlook)
        self._decisions: list[Decision] = []
        self._digest = hashlib.sha256()
        self._refused: list[tuple[Group, Refusal]] = []
        self._terms = Terms(state, rules, self._agenda, self._draft)
        self._reask_ms: int | None = None
        self._by_needs: dict[tuple[Need, ...], Refusal] = {}
        self._reservations = Reservations(state, self._agenda, self._draft, self._packer)
        self._preemption = Preemption(state, rules, self._agenda, self._draft, self._packer, self._quota_refusal)
        self._preemption.may_wait = not self._is_first_core
        self._is_search_round = state.searched_ms is None or state.now_ms - state.searched_ms >= SEARCH_EVERY_MS
        self._rented: list[tuple[int, int]] | None = None
        self._is_backfilling = False
        self._searches = 0
        self._is_searched = False
        self._promised: set[int] = set()
        """Jobs to which room is promised; asked for membership and counted only."""
        self._turns = Turns(state, rules, self._agenda, self._draft, self._promised)
        self._revoked: set[str] = set()
        """Leases that this cycle revokes; asked for membership only."""
        self._revisions: dict[str, int] = {}
        """Leases that this cycle shrinks -> their revision by that."""
        self._newcomers: list[tuple[Job, LeaseGranted]] = []
        """Elastic gangs that this cycle placed."""
        self._requeued = 0
        self._waiting: dict[str, int] = {}
        """By the reason's slug, with "requeued" besides: how many jobs wait, as the cycle's record says it."""
        self._renting: frozenset[int] = frozenset()
        """Jobs for which nodes are on their way; asked for membership only."""
        self._warm = Warm(state, self._agenda, self._draft, self._reservations, self._emit)
        acts = Acts(self._emit, self._promise_room, self._quota_refusal, self._promised, self._revoked, self._revisions)
        self._services = Services(
            state,
            rules,
            self._agenda,
            self._draft,
            self._packer,
            self._reservations,
            self._preemption,
            self._warm,
            acts,
            is_search_round=self._is_search_round,
        )

    def _emit(self, event: Event) -> None:
        payload = encode(event)
        self._digest.update(event.TYPE.encode() + b"\x00" + payload + b"\n")
        self._decisions.append(Decision(event, payload))

    # --- 1 -----------------------------------------------------------------------------------------------------------

    def end_what_ended(self) -> None:
        """Cancelled, returned and stranded work, and rent past its deadline."""
        state = self._state
        for job in state.returned:
            self._settle_returned(job)
        for job in state.cancels:
            self._cancel(job)
        for lease in state.stranded:
            if lease.id in state.leases:
                self._revoke(lease, "node-lost")
        self._end_overdue()

    def _revoke(self, lease: Lease, cause: str, for_job: int | None = None, rule: str | None = None) -> None:
        """Once for each lease, for the first cause: a gang may be cancelled and lose two nodes in one cycle."""
        if lease.revoked is None and lease.id not in self._revoked:
            self._revoked.add(lease.id)
            self._preemption.spare(lease.id)
            grace_ms = lease.job.cls.spec.grace_ms
            self._emit(LeaseRevoked(lease=lease.id, cause=cause, for_job=for_job, grace_ms=grace_ms, rule=rule))

    def _settle_returned(self, job: Job) -> None:
        if job.id not in self._state.jobs or job.phase is not Phase.RETURNED:
            return
        if job.is_cancelled:
            self._emit(JobEnded(job=job.id, outcome="cancelled"))
        elif job.failures >= job.cls.spec.max_attempts or job.cause == TIME_LIMIT:
            self._emit(JobEnded(job=job.id, outcome="failed"))
        elif job.is_too_late(self._state.now_ms):
            self._emit(JobEnded(job=job.id, outcome="expired"))
        elif (homeless := self._homeless(job)) is not None:
            self._emit(JobRefused(job=job.id, reason=int(Reason.UNKNOWN_QUEUE), detail=homeless))
        else:
            self._emit(JobRequeued(job=job.id, cause=job.cause))
            self._requeued += 1

    def _cancel(self, job: Job) -> None:
        if job.id not in self._state.jobs or job.phase is Phase.RETURNED:
            return
        if job.lease is not None:
            self._revoke(self._state.leases[job.lease], "cancelled")
            return
        self._emit(JobEnded(job=job.id, outcome="cancelled"))
        self._draft.leave(self._queue(job), job, False)

    def _end_overdue(self) -> None:
        state = self._state
        overdue = [r.id for r in state.requests.values() if r.deadline_ms <= state.now_ms]
        for name in overdue:
            for lease in state.leases.values():
                if name in lease.requests:
                    self._revoke(lease, "deadline")
        for limits, cause in ((state.time_limits, TIME_LIMIT), (state.holds, NOT_RUNNING)):
            for at_ms, name in limits:
                if at_ms > state.now_ms:
                    break
                self._revoke(state.leases[name], cause)

    def report_promises(self) -> None:
        """Quota that is promised beyond what there is: when it becomes so, and whenever the amounts change."""
        found = over_promises(self._state)
        if found != self._state.over_promised:
            self._emit(QuotaOverPromised(promises=found))

    # --- 2 -----------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Turn away what must not enter; everything else waits, on the terms that the rules give it."""
        as_they_ask = self._terms.as_they_ask
        for job in self._state.arrivals:
            if job.id in self._draft.gone or job.phase is not Phase.SUBMITTED:
                continue
            refusal = self._admission(job)
            if refusal is None and (job.asked is not None or job.cls.index not in as_they_ask):
                refusal = self._give_terms(job)
            if refusal is not None:
                reason, detail, rule = refusal
                self._emit(JobRefused(job=job.id, reason=int(reason), detail=detail, rule=rule))
                self._draft.leave(self._queue(job), job, False)

    def _admission(self, job: Job) -> tuple[Reason, str, str | None] | None:
        homeless = self._homeless(job)
        if homeless is not None:
            return Reason.UNKNOWN_QUEUE, homeless, None
        if job.orphaned_by:
            return Reason.DEPENDENCY_FAILED, _orphaned(job), None
        answer = self._agenda.admission(job, self._draft, self._queue(job), self._state.now_ms)
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
            return Reason.RULE_FAILED, answer.fault, answer.rule
        if answer.value is not None:
            return Reason.REFUSED_BY_POLICY, answer.value, answer.rule
        return None

    def _give_terms(self, job: Job) -> tuple[Reason, str, str | None] | None:
        given = self._terms.at_admission(job, self._queue(job))
        if given.fault is not None:
            self._agenda.faults[given.fault] = None
            return Reason.RULE_FAILED, given.fault, given.rule
        if given.event is not None:
            self._emit(given.event)
        return None

    def _homeless(self, job: Job) -> str | None:
        """Why the job's queue takes no jobs, if it is none or has become a cohort."""
        name = job.cls.spec.queue
        queue = self._tree.by_name.get(name)
        if queue is None:
            return f"there is no queue {name!r}"
        return f"{name!r} is a cohort; jobs go to a queue below it" if queue.children else None

    def _queue(self, job: Job) -> QueueNode:
        return self._tree.by_name.get(job.cls.spec.queue, self._tree.root)

    # --- 3 -----------------------------------------------------------------------------------------------------------

    def keep_promises(self) -> None:
        """Grant what was promised and is free now, hold what is not, and let go of what cannot be kept. Quota that is
        still used by those in the way of another promise is not free either."""
        kept: list[tuple[Promise, Job, Occupant, bool]] = []
        for promise in self._state.promises.values():
            job = self._state.jobs[promise.job]
            if job.id in self._draft.gone:
                continue
            if promise.lease is not None and not self._services.is_awaited(promise):
                self._emit(PromiseReleased(job=job.id, cause="lease-gone"))
                continue
            rows = [self._agenda.rows.get(seat.node, -1) for seat in promise.seats]
            is_there = all(row >= 0 and self._agenda.nodes[row].is_open for row in rows)
            victims = [self._state.leases[name] for name in promise.victims if name in self._state.leases]
            seats = [(row, seat.ask, seat.gpus, seat.flavor) for row, seat in zip(rows, promise.seats, strict=True)]
            promised = Occupant(self._queue(job), tuple(seats))
            occupants = [self._preemption.occupant(lease) for lease in victims] + self._still_leaving(promise)
            if occupants and is_there:
                self._hold(job, promise, promised, occupants)
            else:
                kept.append((promise, job, promised, is_there))
        for promise, job, promised, is_there in kept:
            if not is_there or not self._draft.has_room(promised):
                self._emit(PromiseReleased(job=job.id, cause="room-gone"))
            elif self._is_first_core:
                self._grant_promised(job, promised.queue, promise, promised)
            elif not self._draft.has_quota(promised):
                self._emit(PromiseReleased(job=job.id, cause="quota-gone"))
            elif not self._draft.has_quota(promised, is_standing=True):
                self._hold(job, promise, promised, [])
            elif promise.lease is not None:
                self._services.join(promise, promised)
            else:
                self._grant_promised(job, promised.queue, promise, promised)

    def _hold(self, job: Job, promise: Promise, promised: Occupant, occupants: list[Occupant]) -> None:
        """Room that is promised stays kept."""
        self._draft.promise(promised.queue, promised.seats, occupants)
        if promise.lease is None:
            self._draft.count_in_array(job)
        self._promised.add(job.id)

    def _still_leaving(self, promise: Promise) -> list[Occupant]:
        """Members that leave for a promise and are still there, lease by lease."""
        found: list[Occupant] = []
        for name, revision in promise.shrinks:
            lease = self._state.leases.get(name)
            leaving = [seat for seat in lease.seats if seat.leaving == revision] if lease is not None else []
            if lease is not None and leaving:
                found.append(occupant_of(self._state, self._agenda.rows, lease, leaving))
        return found

    def _grant_promised(self, job: Job, queue: QueueNode, promise: Promise, occupant: Occupant) -> None:
        self._draft.readmit(occupant)
        self._draft.leave(queue, job, True)
        attempt = job.attempts + 1
        granted = LeaseGranted(
            lease=lease_id(JobId(job.id), attempt),
            job=job.id,
            attempt=attempt,
            cluster=promise.cluster,
            members=tuple(
                Member(
                    role=seat.role,
                    ordinal=seat.ordinal,
                    node=seat.node.name,
                    gpus=gpus_of(seat.gpus),
                    slices=slices_of(seat.gpus),
                )
                for seat in promise.seats
            ),
            rule=promise.rule,
        )
        self._grant(job, granted)

    def _grant(self, job: Job, granted: LeaseGranted) -> None:
        if job.cls.is_elastic:
            self._newcomers.append((job, granted))
        self._emit(granted)

    def scale_services(self) -> None:
        """Fill warm pools; give services the replicas that they are to have, before anybody else is placed."""
        self._warm.hold()
        self._services.scale()
        self._warm.report()
        self._is_searched = self._is_searched or self._services.is_searched

    def refresh(self) -> None:
        """Order the jobs that began to wait, and line up every queue that has work."""
        self._agenda.refresh_jobs(self._state, self._draft)
        self._turns.line_up()

    # --- 4 -----------------------------------------------------------------------------------------------------------

    def place(self) -> None:
        """Place all that can be placed, in the order of the rules; first those for whom nodes were rented."""
        for request in self._state.requests.values():
            if request.is_held and request.phase is RequestPhase.PROVIDED:
                self._place_on_rent(request.held_for, request.id)
        if self._rules.may_block or self._rules.may_order_backfill:
            self._try_the_chosen()
        while (queue := self._turns.next_queue()) is not None:
            turn = self._turns.take(queue)
            if turn is None:
                continue
            refusal = self._try(turn.entry.job, queue, turn.group)
            if refusal is None:
                self._turns.placed(queue, turn)
            else:
                self._turn_down(turn.entry.job, queue, turn.group, refusal)
                self._turns.refused(queue)

    def _place_on_rent(self, id_: int, request: str) -> None:
        job = self._state.jobs.get(id_)
        if job is None or job.lease is not None or job.id in self._draft.gone or job.phase is Phase.RETURNED:
            return
        queue = self._queue(job)
        rows = [node.request == request for node in self._agenda.nodes]
        mask = np.fromiter(rows, dtype=np.bool_, count=len(rows))
        if not queue.is_held and not self._draft.is_array_full(job) and self._quota_refusal(job, queue) is None:
            self._grant_if_it_fits(job, queue, self._agenda.needs_of(self._state, job), mask)

    def _try_the_chosen(self) -> None:
        """Who holds a reservation was chosen, and is tried before anybody who has come since."""
        for id_ in self._state.reservations:
            job = self._state.jobs.get(id_)
            group = self._agenda.group_of(self._state, job) if job is not None else None
            if job is None or group is None or id_ in self._draft.gone or id_ in self._promised:
                continue
            if not self._turns.is_lined_up(group):
                continue
            refusal = self._try(job, group.queue, group)
            if refusal is None:
                self._turns.used(group.queue)
            else:
                self._turns.withdraw(group)
                self._turn_down(job, group.queue, group, refusal)
                self._turns.refused(group.queue)

    def _turn_down(self, job: Job, queue: QueueNode, group: Group, refusal: Refusal) -> None:
        """What stands for the whole group; and who may still be placed, and in which order, behind it."""
        self._refused.append((group, refusal))
        if self._rules.may_block and refusal.reason in _BLOCKED:
            self._block(job, queue)
        if self._rules.may_order_backfill and self._reservations.made and not self._is_backfilling:
            self._is_backfilling = True
            self._turns.reorder_for_backfill()

    def _block(self, job: Job, queue: QueueNode) -> None:
        """Keep back whom the rules do not let pass a blocked job that is about to wait on."""
        if job.recorded_reason == Reason.PROVISIONING or job.gives_up_by(self._state.now_ms):
            return
        answer = self._rules.overtaking(job.facts(), self._draft.queue_facts(queue, 0), self._state.now_ms)
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        kept_back = self._turns.keep_back(
            lambda other: ("queue" if other is queue else "others") in answer.value, in_order=not self._is_first_core
        )
        self._refused.extend((group, Refusal(Reason.BEHIND_HEAD, rule=answer.rule)) for group in kept_back)

    # --- 5 -----------------------------------------------------------------------------------------------------------

    def _try(self, job: Job, queue: QueueNode, group: Group) -> Refusal | None:
        """Place one job, or say why not. That it does not fit stands for its whole group until something is freed; what
        is remembered must be what would be found, since a plane that was started anew remembers nothing."""
        if queue.is_held:
            return Refusal(Reason.QUEUE_HELD)
        if self._draft.is_array_full(job):
            return Refusal(Reason.ARRAY_FULL)
        needs = self._agenda.needs_of(self._state, job)
        refusal = self._quota_refusal(job, queue)
        if refusal is None:
            refusal = self._room_refusal(job, queue, group, needs)
        if refusal is None or self._is_made_room(job, queue, needs, refusal):
            return None
        self._reserve(job, queue, needs, refusal)
        return refusal

    def _room_refusal(self, job: Job, queue: QueueNode, group: Group, needs: tuple[Need, ...]) -> Refusal | None:
        remembered = group.refusal_at(self._state, self._kept)
        if remembered is not None and (self._is_first_core or self._still_says_why(job, queue, needs, remembered)):
            return remembered
        refusal = self._does_not_fit(job, queue, needs)
        if refusal is not None and self._agenda.is_lasting(needs) and not self._warm.is_fleeting(refusal.reason):
            group.remember(self._state, self._kept(), refusal)
        return refusal

    def _still_says_why(self, job: Job, queue: QueueNode, needs: tuple[Need, ...], refusal: Refusal) -> bool:
        """Room that was free, but kept from the job, may have been taken meanwhile by those for whom it is kept or who
        do not delay them. (Core 1 did not look, so that a plane that was started anew said otherwise.)"""
        return refusal.reason is not Reason.RESERVED or self._would_fit(job, queue, needs, self._mask(job))

    def _kept(self) -> Kept:
        """What is kept for others so far."""
        return (tuple(sorted(self._promised)), self._reservations.kept())

    def _does_not_fit(self, job: Job, queue: QueueNode, needs: tuple[Need, ...]) -> Refusal | None:
        usable = self._mask(job)
        mask = self._reservations.mask(job, usable)
        is_shared = mask is None and not self._packer.flavored(queue, needs) and not job.cls.is_service
        if is_shared and needs in self._by_needs:
            return self._by_needs[needs]
        if self._grant_if_it_fits(job, queue, needs, mask):
            return None
        if mask is not usable and self._would_fit(job, queue, needs, usable):
            return Refusal(Reason.RESERVED)
        is_held_warm = self._is_held_warm(job, queue, needs, mask)
        refusal = Refusal(Reason.HELD_WARM) if is_held_warm else self._outlook.refusal(needs, job.cls.resources, mask)
        if is_shared:
            self._by_needs[needs] = refusal
        return refusal

    def _is_held_warm(self, job: Job, queue: QueueNode, needs: tuple[Need, ...], mask: Mask | None) -> bool:
        """Whether there would be room if no warm pool held any."""
        opened = self._warm.open_all()
        fits = bool(opened) and self._would_fit(job, queue, needs, mask)
        self._warm.close(opened)
        return fits

    def _would_fit(self, job: Job, queue: QueueNode, needs: tuple[Need, ...], mask: Mask | None) -> bool:
        seats = self._packer.place(job.id, needs, queue, mask)
        if seats is not None:
            self._draft.stand_up(queue, seats)
        return seats is not None

    # --- 6 -----------------------------------------------------------------------------------------------------------

    def _is_made_room(self, job: Job, queue: QueueNode, needs: tuple[Need, ...], refusal: Refusal) -> bool:
        """Whether others are evicted for the job, and its place is promised to it."""
        if not self._rules.may_preempt or refusal.reason not in _EVICTING_HELPS:
            return False
        if job.recorded_reason == Reason.PROVISIONING or job.gives_up_by(self._state.now_ms):
            return False
        self._ask_again(self._state.now_ms + REASK_MS)
        if (
            not (self._is_search_round or job.recorded_reason in (0, Reason.BEHIND_HEAD))
            or self._searches >= MAX_SEARCHES
        ):
            return False
        self._searches += 1
        self._is_searched = True
        mask = self._reservations.mask(job, self._mask(job))
        opened = self._warm.open_to(job, queue)
        plan = self._preemption.find(job, queue, needs, mask, refusal)
        if plan is not None:
            self._promise_room(job, queue, plan)
            self._draft.count_in_array(job)
        self._warm.close(opened)
        self._warm.report()
        return plan is not None

    def _promise_room(self, job: Job, queue: QueueNode, plan: Plan, lease: str | None = None) -> None:
        """Evict and shrink by a plan, and promise its room to the job; or to more replicas of a lease that it has."""
        occupants = [candidate.occupant for candidate in (*plan.victims, *plan.shrunk)]
        for candidate in plan.victims:
            self._revoke(candidate.lease, candidate.cause, job.id, candidate.rule)
        shrinks = self._shrink(plan.shrunk, job)
        self._emit(
            RoomPromised(
                job=job.id,
                cluster=self._agenda.nodes[plan.seats[0].row].build.cluster,
                members=self._members(job, plan.seats),
                victims=tuple(candidate.lease.id for candidate in plan.victims),
                rule=plan.rule,
                shrinks=shrinks,
                lease=lease,
            )
        )
        at = [(seat.row, seat.need.ask_on(seat.kind_before), seat.gpus, seat.flavor) for seat in plan.seats]
        self._draft.promise(queue, at, occupants)
        self._promised.add(job.id)

    def _shrink(self, shrunk: list[Candidate], job: Job) -> tuple[ShrinkAwaited, ...]:
        """Members of elastic gangs leave for a job; one decision for each gang."""
        by_lease: dict[str, list[Candidate]] = {}
        for candidate in shrunk:
            by_lease.setdefault(candidate.lease.id, []).append(candidate)
        awaited: list[ShrinkAwaited] = []
        for name, members in by_lease.items():
            lease, first = members[0].lease, members[0]
            revision = self._revisions[name] = self._revisions.get(name, lease.revision) + 1
            leaving = [candidate.member for candidate in members if candidate.member is not None]
            for seat in leaving:
                self._preemption.shrink(lease, seat)
            self._emit(
                LeaseShrunk(
                    lease=name,
                    revision=revision,
                    members=tuple(MemberName(role=seat.role, ordinal=seat.ordinal) for seat in leaving),
                    cause=first.cause,
                    for_job=job.id,
                    grace_ms=lease.job.cls.spec.grace_ms,
                    rule=first.rule,
                )
            )
            awaited.append(ShrinkAwaited(lease=name, revision=revision))
        return tuple(awaited)

    def _ask_again(self, at_ms: int) -> None:
        self._reask_ms = at_ms if self._reask_ms is None else min(self._reask_ms, at_ms)

    # --- 7 -----------------------------------------------------------------------------------------------------------

    def _reserve(self, job: Job, queue: QueueNode, needs: tuple[Need, ...], refusal: Refusal) -> None:
        if not self._rules.may_reserve or refusal.reason not in _RESERVING_HELPS:
            return
        if job.recorded_reason == Reason.PROVISIONING or job.gives_up_by(self._state.now_ms):
            return
        answer = self._rules.reserve(job.facts(), self._draft.queue_facts(queue, 0), self._state.now_ms)
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        if len(self._reservations.made) < answer.value:
            self._is_searched = True
            if not self._is_search_round and self._reservations.keep(job.id):
                return
            mask = self._reservations.mask(job, self._mask(job))
            self._reservations.reserve(job, needs, queue, mask, answer.rule)

    def record_reservations(self) -> None:
        """Say what is reserved now and was not before, and the other way round."""
        made = {reserved.job: reserved for reserved in self._reservations.made}
        for earlier in self._state.reservations.values():
            if earlier.job not in made and earlier.job not in self._draft.gone:
                self._emit(ReservationReleased(job=earlier.job, cause="not-reserved-now"))
        for job, reserved in made.items():
            at = tuple(self._agenda.nodes[row].id for row in reserved.rows)
            known = self._state.reservations.get(job)
            if known is None or (known.start_ms, known.nodes) != (reserved.start_ms, at):
                is_plain = not any(self._state.is_named_twice(node.name) for node in at)
                self._emit(
                    ReservationMade(
                        job=job,
                        start_ms=reserved.start_ms,
                        nodes=tuple(node.name for node in at),
                        rule=reserved.rule,
                        cluster="" if is_plain else at[0].cluster,
                    )
                )

    # --- quota and room ----------------------------------------------------------------------------------------------

    def _quota_refusal(
        self, job: Job, queue: QueueNode, more: tuple[tuple[str, int], ...] | None = None
    ) -> Refusal | None:
        """Why the quota has no room for the job, or for so much more of it."""
        if not queue.limited:
            return None
        asked = dict(job.cls.resources if more is None else more)
        ceiling = ceiling_refusal(queue, asked.items())
        if ceiling is not None:
            return ceiling
        keys = [key for key in queue.limited if key[0] == "any" and key[1] in asked]
        for key in keys:
            left = self._draft.available(queue, key)
            if left < asked[key[1]]:
                return Refusal(Reason.QUOTA, {key[1]: asked[key[1]] - left})
        for key in keys:
            own = available_nominal(queue, key, self._draft.charged)
            if own < asked[key[1]]:
                return self._borrowing_refusal(job, queue, {key[1]: asked[key[1]] - own})
        return None

    def _borrowing_refusal(self, job: Job, queue: QueueNode, short: dict[str, int]) -> Refusal | None:
        """The job needs more than its queue's own quota: the rules say whether it may borrow."""
        top = queue.path[-2]
        cohort = self._draft.queue_facts(top, 0)
        facts = CohortFacts(top.name, cohort.gpu_nominal_milli, cohort.gpu_used_milli)
        answer = self._rules.quota(job.facts(), self._draft.queue_facts(queue, 0), facts)
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        return None if answer.value else Refusal(Reason.QUOTA, short, answer.rule)

    def _rented_rows(self) -> list[tuple[int, int]]:
        """(row, until when everybody may use it), for every rented node; -1 for those that not everybody may."""
        if self._rented is None:
            self._rented = []
            for row in self._agenda.rented_rows:
                request = self._state.requests.get(self._agenda.nodes[row].request or "")
                is_open = request is not None and not request.is_held and request.phase is RequestPhase.PROVIDED
                self._rented.append((row, request.deadline_ms if request is not None and is_open else -1))
        return self._rented

    def _mask(self, job: Job) -> Mask | None:
        """Rows that the job may use: not those rented for another job, nor those that end before it would."""
        if not self._state.requests:
            return None
        until = MAX_MS if job.cls.is_service else self._state.now_ms + (job.cls.spec.estimate_ms or 0)
        closed = [row for row, open_until_ms in self._rented_rows() if open_until_ms < until]
        if not closed:
            return None
        mask = np.ones(len(self._agenda.nodes), dtype=np.bool_)
        mask[closed] = False
        return mask

    def _grant_if_it_fits(self, job: Job, queue: QueueNode, needs: tuple[Need, ...], mask: Mask | None) -> bool:
        opened = self._warm.open_to(job, queue)
        seats = self._packer.place(job.id, needs, queue, mask)
        if opened:
            self._warm.close(opened)
            self._warm.report()
        if seats is None:
            return False
        self._draft.leave(queue, job, True)
        if self._rules.may_reserve and not job.cls.is_service:
            self._reservations.granted(queue, seats, job.cls.spec.estimate_ms)
        self._grant(job, self._lease(job, seats))
        return True

    def _lease(self, job: Job, seats: list[DraftSeat]) -> LeaseGranted:
        attempt = job.attempts + 1
        first = seats[0]
        for seat in seats:
            if (fault := seat.need.fault(seat.kind_before)) is not None:
                self._agenda.faults[fault] = None
        return LeaseGranted(
            lease=lease_id(JobId(job.id), attempt),
            job=job.id,
            attempt=attempt,
            cluster=self._agenda.nodes[first.row].build.cluster,
            members=self._members(job, seats),
            rule=first.need.rule(first.kind_before),
        )

    def _members(self, job: Job, seats: list[DraftSeat]) -> tuple[Member, ...]:
        """In the order of the roles as written, then by ordinal."""
        names = self._agenda.names
        if len(seats) == 1:
            return (seats[0].member(names),)
        if len(job.cls.asks) > 1:
            order = {ask.role.name: at for at, ask in enumerate(job.cls.asks)}
            seats = sorted(seats, key=lambda seat: (order[seat.need.ask.role.name], seat.ordinal))
        return tuple(seat.member(names) for seat in seats)

    # --- 8 -----------------------------------------------------------------------------------------------------------

    def burst(self) -> None:
        """Ask offers for what still waits."""
        burst = Burst(
            self._state, self._rules, self._agenda, self._draft, self.watch, len(self._decisions), self._promised
        )
        burst.is_as_first = self._is_first_core
        if not burst.has_offers():
            return
        self._refused = [(group, burst.consider(group, refusal)) for group, refusal in self._refused]
        self._renting = burst.served()
        if burst.reask_ms is not None:
            self._ask_again(burst.reask_ms)
        for event in burst.requested:
            self._emit(event)

    def grow(self) -> None:
        """Elastic gangs get more members, now that all who wait have had their turn."""
        state, agenda = self._state, self._agenda
        if not state.elastic and not self._newcomers:
            return
        if not self._rules.may_preempt and any(refusal.reason in WAITS_FOR_ROOM for _, refusal in self._refused):
            return
        there = [
            growing_lease(state, agenda, lease)
            for lease in state.elastic.values()
            if lease.id not in self._revoked and lease.id not in self._revisions and lease.service is None
        ]
        newcomers = ((job, granted) for job, granted in self._newcomers if not job.cls.is_service)
        there.extend(growing_newcomer(state, agenda, job, granted) for job, granted in newcomers)
        growth = Growth(state, self._rules, agenda, self._draft, self._packer, self._reservations)
        growing = [one for one in there if one is not None]
        for event in growth.run(growing, lambda job, queue, more: self._quota_refusal(job, queue, more) is None):
            self._emit(event)

    def release_rent(self) -> None:
        """Give back what stands idle and what is past its deadline."""
        state = self._state
        busy = self._draft.rent_in_use(self._agenda)
        for request in state.requests.values():
            if request.phase is RequestPhase.RELEASING:
                continue
            idle_ms = state.clusters[request.cluster].idle_release_ms
            is_idle = request.phase is RequestPhase.PROVIDED and request.leases == 0 and request.id not in busy
            if request.deadline_ms <= state.now_ms:
                self._emit(CapacityReleased(request=request.id, cluster=request.cluster, cause="deadline"))
            elif is_idle and request.idle_since_ms + idle_ms <= state.now_ms:
                self._emit(CapacityReleased(request=request.id, cluster=request.cluster, cause="idle"))
            elif request.phase is RequestPhase.ASKED and request.held_for not in state.jobs:
                self._emit(CapacityReleased(request=request.id, cluster=request.cluster, cause="job-gone"))

    # --- 9 -----------------------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """End the jobs whose time to wait is over. Each had its last try in this very cycle."""
        state = self._state
        reasons: dict[Group, Refusal] | None = None
        for expiry, id_ in state.expiries:
            if expiry > state.now_ms:
                break
            job = state.jobs.get(id_)
            if job is None or job.phase not in (Phase.SUBMITTED, Phase.WAITING) or id_ in self._draft.gone:
                continue
            if not job.gives_up_by(state.now_ms):
                continue
            if reasons is None:
                reasons = dict(self._refused)
            group = self._agenda.group_of(state, job)
            refusal = reasons.get(group) if group is not None else None
            refusal = Refusal(Reason.PROVISIONING) if id_ in self._renting else refusal
            refusal = Refusal(Reason.DEPENDENCY) if job.waits_for else refusal
            reason = self._told(job, refusal).reason if refusal is not None else None
            self._emit(JobEnded(job=id_, outcome="expired", reason=int(reason) if reason is not None else None))
            self._draft.leave(self._queue(job), job, False)

    def record_waiting(self) -> None:
        """Say for each group that still waits why, where that has changed."""
        apart = self._set_apart()
        for group, refusal in self._refused:
            others = {job.id for part in apart.get(group.cls.index, ()) for job in part}
            renting = [job for job in apart.get(group.cls.index, ([], []))[1] if self._agenda.is_in(group, job)]
            if renting:
                self._record_part(group.queue, renting[0], len(renting), Refusal(Reason.PROVISIONING))
            left = (e for e in group.live() if e.id not in self._draft.gone and e.id not in others)
            head = next(left, None)
            if head is not None:
                told = self._told(head.job, refusal)
                self._record_part(group.queue, head.job, 1 + self._count_behind(group, left, len(others)), told)
        self._record_dependents()
        promised = sum(len(part[0]) for part in apart.values())
        if promised:
            self._waiting[Reason.ROOM_PROMISED.slug] = promised
        if self._requeued:
            self._waiting["requeued"] = self._requeued

    def _told(self, job: Job, met: Refusal) -> Refusal:
        return met if self._is_first_core else self._answers.of(job, self._queue(job), met)

    def _record_dependents(self) -> None:
        """Jobs that are in nobody's line, since they wait for others to end; alike ones together."""
        by_class: dict[int, list[Job]] = {}
        for id_ in sorted({id_ for waiting in self._state.dependents.values() for id_ in waiting}):
            job = self._state.jobs.get(id_)
            if job is not None and id_ not in self._draft.gone:
                by_class.setdefault(job.cls.index, []).append(job)
        for jobs in by_class.values():
            head = jobs[0]
            self._record_part(self._queue(head), head, len(jobs), self._told(head, Refusal(Reason.DEPENDENCY)))

    def _count_behind(self, group: Group, left: Iterator[Entry], apart: int) -> int:
        """How many jobs wait behind the first of a group; not by counting them, where all of their class are here."""
        if not self._agenda.is_grouped_by_class:
            return sum(1 for _ in left)
        return group.cls.waiting - self._draft.left.get(group.cls.index, 0) - apart - 1

    def _set_apart(self) -> dict[int, tuple[list[Job], list[Job]]]:
        """By class: the waiting jobs to which room is promised, and those for which nodes are on their way; by id."""
        apart: dict[int, tuple[list[Job], list[Job]]] = {}
        for id_ in sorted(self._promised | self._renting):
            job = self._state.jobs.get(id_)
            if job is None or id_ in self._draft.gone or job.phase not in (Phase.SUBMITTED, Phase.WAITING):
                continue
            promised, renting = apart.setdefault(job.cls.index, ([], []))
            (promised if id_ in self._promised else renting).append(job)
        return apart

    def _record_part(self, queue: QueueNode, head: Job, count: int, refusal: Refusal) -> None:
        slug = refusal.reason.slug
        self._waiting[slug] = self._waiting.get(slug, 0) + count
        if head.recorded_reason != refusal.reason:
            self._emit(self._jobs_waiting(queue, head, count, refusal))

    def _jobs_waiting(self, queue: QueueNode, head: Job, count: int, refusal: Refusal) -> JobsWaiting:
        refused: Tally | None = None
        if refusal.reason >= Reason.NO_NODE_OF_MODEL and refusal.reason not in _WITHOUT_TALLY:
            need = self._agenda.needs_of(self._state, head)[0]
            refused = tally(need, self._state.kinds, self._draft.column.kinds, self._agenda.faults)
        return JobsWaiting(
            queue=queue.name,
            head=head.id,
            count=count,
            reason=int(refusal.reason),
            short=dict(refusal.short),
            tally=refused,
            rule=refusal.rule,
            topology=refusal.topology,
        )

    def give_terms_again(self) -> None:
        """Terms that follow the time, for those who still wait."""
        for given in self._terms.again(self._promised | self._renting):
            if given.fault is not None:
                self._agenda.faults[given.fault] = None
            if given.event is not None:
                self._emit(given.event)
        if (reask_ms := self._terms.reask_ms) is not None:
            self._ask_again(reask_ms)

    def account(self) -> None:
        """Fill in what is said of a watched job."""
        if self.watch is None:
            return
        job = self._state.jobs.get(self.watch.job)
        if job is None:
            return
        group = self._agenda.group_of(self._state, job)
        self.watch.after = list(job.waits_for)
        met = (
            Refusal(Reason.DEPENDENCY)
            if job.waits_for
            else next((refusal for of, refusal in self._refused if of is group), None)
        )
        self.watch.refusal = self._told(job, met) if met is not None else None
        granted = (d.event for d in self._decisions if isinstance(d.event, LeaseGranted))
        self.watch.is_granted = any(event.job == job.id for event in granted)
        nodes, label = self._agenda.nodes, self._state.label
        self.watch.reservations = [
            Hold(reserved.job, reserved.start_ms, tuple(label(nodes[row].id) for row in reserved.rows))
            for reserved in self._reservations.made
        ]
        if self.watch.refusal is not None and self.watch.refusal.reason is Reason.HELD_WARM:
            self.watch.warm = self._warm.told()
        promises = (d.event for d in self._decisions if isinstance(d.event, RoomPromised))
        made = {event.job: event.victims for event in promises}
        known = self._state.promises.get(job.id)
        self.watch.waits_for = made.get(job.id, known.victims if known is not None else ())
        if job.id in self._promised:
            self.watch.refusal = Refusal(Reason.ROOM_PROMISED)
        if job.id in self._renting:
            self.watch.refusal = Refusal(Reason.PROVISIONING)
        for decision in self._decisions:
            if isinstance(decision.event, JobRefused) and decision.event.job == job.id:
                self.watch.refusal = Refusal(Reason(decision.event.reason), rule=decision.event.rule)
                self.watch.detail = decision.event.detail
        fill_in(self.watch, self._state, self._agenda, self._draft, job, self._turns.order_for(self._queue(job), job))

    def close(self) -> tuple[Decision, ...]:
        """The cycle's own record, last."""
        faults = tuple(sorted(fault for fault in self._agenda.faults if fault not in self._state.faults))
        record = CycleDecided(
            cycle=self._state.cycle + 1,
            now_ms=self._state.now_ms,
            core=self._core,
            policy=self._rules.digest,
            engine=self._rules.engine,
            decisions=len(self._decisions),
            digest=self._digest.hexdigest(),
            waiting=dict(sorted(self._waiting.items())),
            reask_ms=self._reask_ms,
            services_ms=self._services.next_ms(is_new=any(job.cls.is_service for job, _ in self._newcomers)),
            searched_ms=self._state.now_ms if self._is_search_round and self._is_searched else None,
            faults=faults,
        )
        return (*self._decisions, Decision(record, encode(record)))

    def undo(self) -> None:
        """Put nodes and jobs back as they were."""
        self._draft.undo()
        self._terms.undo()


def _orphaned(job: Job) -> str:
    """Why a job that depends on others never starts."""
    other = job_label(JobId(job.orphaned_by))
    if job.orphaned_by >= job.id:
        return f"it depends on {other}, and no such job was submitted before it"
    return f"it starts only after {other} has finished, and {other} ended otherwise"
