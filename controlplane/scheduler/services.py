"""Services beside training: how many replicas each is to have, and where they come from.

Theory of operation. A service is an elastic gang of one role that never ends. It is placed as its smallest self, like
any job; from then on the rules say how many replicas it is to have (``service.replicas``), each time that it was
observed and every :data:`EVERY_MS`. Mechanism cuts the number to what the job allows, records each change of it with
what the rules saw, and sees to the rest, before anybody else is placed in the cycle:

1. Too many: replicas are told to leave with the grace of the job, those first for which others had to leave, then the
   newest. Room that is promised for replicas that are no longer wanted is let go of.
2. Too few: replicas go into free room and into the warm pools that are open to the service, one at a time, in the order
   of queues and jobs that the rules give; under the quota of the queue, never where a start is reserved.
3. Still too few: as many of them as can be are promised room that others leave. ``service.take`` bounds what a service
   may hold of taken room, and what has to leave at once; whom it may evict, and at what cost, is asked as for any job,
   so that elastic gangs shrink before anybody is evicted. No service has to leave for another. Everything that leaves
   and the replicas that take its room are one decision, which is found on the draft.

Why a service lacks replicas is recorded when it changes, as with jobs that wait. Victims are searched for when the
number has changed and in every round of searches, never in between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controlplane.domain.events import (
    Event,
    LeaseGrown,
    LeaseShrunk,
    Member,
    MemberName,
    PromiseReleased,
    ServiceScaled,
    ServiceShort,
)
from controlplane.domain.mig import gpus_of, slices_of
from controlplane.domain.quantities import GPU, MAX_AMOUNT
from controlplane.domain.reasons import Reason
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.elastic import Growing, Growth, Resources, growing_lease
from controlplane.scheduler.facts import ServiceFacts
from controlplane.scheduler.occupants import Occupant
from controlplane.scheduler.packing import Mask, Packer
from controlplane.scheduler.preemption import Demand, Plan, Preemption
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.reservations import Reservations
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import TAKEN, UNWANTED, Job, Lease, Promise, Seat, Service, State
from controlplane.scheduler.verdicts import Refusal
from controlplane.scheduler.warm import Warm

EVERY_MS = 30_000
"""How often the rules are asked about a service of which nothing new is seen: time passes, and signals grow stale."""
MAX_TRIES = 16
"""Numbers of replicas for which one service looks for victims in one cycle: as many as it lacks, then fewer."""
MAX_SEARCHES = 256
"""Searches for victims on behalf of services in one cycle."""


@dataclass(frozen=True, slots=True)
class Acts:
    """What a cycle does on behalf of services, and what it has done so far."""

    emit: Callable[[Event], None]
    promise: Callable[[Job, QueueNode, Plan, str], None]
    """Evict and shrink by a plan, and promise its room to a job, for a lease of it."""
    over_quota: Callable[[Job, QueueNode, Resources], Refusal | None]
    promised: set[int]
    """Jobs to which room is promised; asked for membership only."""
    revoked: set[str]
    """Leases that this cycle revokes; asked for membership only."""
    revisions: dict[str, int]
    """Leases whose members this cycle changes -> their revision by that."""


@dataclass(slots=True, eq=False)
class _Scaling:
    """One service in one cycle."""

    lease: Lease
    service: Service
    queue: QueueNode
    wanted: int
    rule: str | None
    """The rule that said how many it is to have, if it was asked."""
    promised: int
    """Replicas for which room is promised."""
    recorded: int
    """Why it lacks replicas, as the log will have it; 0 for none."""
    is_changed: bool = False
    """Whether it is to have another number than before."""
    missing: int = 0

    @property
    def job(self) -> Job:
        return self.lease.job


class Services:
    """The services of one cycle, on its draft."""

    def __init__(
        self,
        state: State,
        rules: Rules,
        agenda: Agenda,
        draft: Draft,
        packer: Packer,
        reservations: Reservations,
        preemption: Preemption,
        warm: Warm,
        acts: Acts,
        *,
        is_search_round: bool,
    ) -> None:
        self._state = state
        self._rules = rules
        self._agenda = agenda
        self._draft = draft
        self._packer = packer
        self._preemption = preemption
        self._warm = warm
        self._acts = acts
        self._growth = Growth(state, rules, agenda, draft, packer, reservations, warm)
        self._is_search_round = is_search_round
        self._is_round = state.services_ms is None or state.services_ms <= state.now_ms
        self._searches = 0
        self.is_searched = False
        """Whether anybody was looked at who could have to leave."""

    def scale(self) -> None:
        """See the module."""
        if not self._state.services or not self._rules.may_scale:
            return
        scaling = [one for lease in self._state.services.values() if (one := self._judged(lease)) is not None]
        for one in scaling:
            self._give_back(one)
        short = [one for one in scaling if one.missing > 0]
        if short:
            self._grow(short)

    def next_ms(self, *, is_new: bool) -> int | None:
        """When the rules are to be asked again. ``is_new``: this cycle has placed a service."""
        scaled = is_new or any(lease.job.cls.is_elastic for lease in self._state.services.values())
        if not scaled or not self._rules.may_scale:
            return None
        known, now_ms = self._state.services_ms, self._state.now_ms
        return known if known is not None and known > now_ms else now_ms + EVERY_MS

    # --- how many ----------------------------------------------------------------------------------------------------

    def _judged(self, lease: Lease) -> _Scaling | None:
        """What the service is to have; ``None`` if nothing may change in this cycle."""
        job, service = lease.job, lease.service
        assert service is not None, f"{lease.id} serves no service"
        queue = self._state.tree.by_name.get(job.cls.spec.queue)
        is_ending = lease.revoked is not None or lease.id in self._acts.revoked or job.is_cancelled
        if queue is None or is_ending or not job.cls.is_elastic or lease.id in self._acts.revisions:
            return None
        promise = self._state.promises.get(job.id)
        is_promised = promise is not None and promise.lease == lease.id and job.id in self._acts.promised
        promised = len(promise.seats) if promise is not None and is_promised else 0
        one = _Scaling(lease, service, queue, service.wanted, None, promised, service.recorded_reason)
        if self._is_round or lease.id in self._state.fresh_signals:
            self._ask(one)
        return one

    def _ask(self, one: _Scaling) -> None:
        facts = self._facts(one)
        answer = self._rules.service_replicas(
            one.job.facts(), facts, self._draft.queue_facts(one.queue, 0), self._state.now_ms
        )
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        one.rule = answer.rule
        if answer.value is None:
            return
        one.wanted = min(max(answer.value, facts.replicas_least), facts.replicas_most)
        if one.wanted == one.service.wanted:
            return
        one.is_changed, one.recorded = True, 0
        self._acts.emit(
            ServiceScaled(
                job=one.job.id,
                lease=one.lease.id,
                wanted=one.wanted,
                replicas=facts.replicas,
                rule=answer.rule,
                observed_ms=facts.observed_ms,
                p99_ms=facts.p99_ms,
                objective_ms=facts.objective_ms,
                queue_depth=facts.queue_depth,
            )
        )

    def _facts(self, one: _Scaling) -> ServiceFacts:
        cls, signal = one.job.cls, one.service.signal
        spec = cls.spec.service
        assert spec is not None, f"j{one.job.id} is no service"
        if signal is not None and signal.observed_ms + spec.stale_after_ms <= self._state.now_ms:
            signal = None
        objective_ms = signal.objective_ms if signal is not None else None
        return ServiceFacts(
            latency_class=spec.latency_class.value,
            replicas=len(self._preemption.staying(one.lease)),
            replicas_least=sum(ask.role.count for ask in cls.asks),
            replicas_most=sum(cls.most.values()),
            wanted=one.service.wanted,
            changed_ms=one.service.changed_ms,
            replica_gpus_milli=_gpus_milli(cls.asks[0].resources),
            taken_gpus_milli=self._taken_milli(one),
            observed_ms=signal.observed_ms if signal is not None else None,
            p99_ms=signal.p99_ms if signal is not None else None,
            objective_ms=spec.objective_ms if objective_ms is None else objective_ms,
            queue_depth=signal.queue_depth if signal is not None else None,
        )

    def _taken_milli(self, one: _Scaling) -> int:
        """GPU of its replicas for which others had to leave, or have to."""
        held = (seat.ask.resources for seat in self._preemption.staying(one.lease) if seat.is_taken)
        return sum(map(_gpus_milli, held)) + one.promised * _gpus_milli(one.job.cls.asks[0].resources)

    # --- fewer -------------------------------------------------------------------------------------------------------

    def _give_back(self, one: _Scaling) -> None:
        """Let go of what it is not to have; find out what it lacks."""
        staying = self._preemption.staying(one.lease)
        surplus = len(staying) - one.wanted
        if one.promised and surplus + one.promised > 0:
            self._acts.emit(PromiseReleased(job=one.job.id, cause=UNWANTED))
        if surplus > 0:
            last = sorted(staying, key=lambda seat: (not seat.is_taken, -seat.since, -seat.ordinal))
            self._shrink(one, last[:surplus])
        elif not one.promised:
            one.missing = -surplus

    def _shrink(self, one: _Scaling, leaving: list[Seat]) -> None:
        lease = one.lease
        revision = self._acts.revisions[lease.id] = lease.revision + 1
        for seat in leaving:
            self._preemption.shrink(lease, seat)
        self._acts.emit(
            LeaseShrunk(
                lease=lease.id,
                revision=revision,
                members=tuple(MemberName(role=seat.role, ordinal=seat.ordinal) for seat in leaving),
                cause=UNWANTED,
                grace_ms=one.job.cls.spec.grace_ms,
                rule=one.rule,
            )
        )

    # --- more, where room is free ------------------------------------------------------------------------------------

    def _grow(self, short: list[_Scaling]) -> None:
        growing: dict[str, tuple[_Scaling, Growing]] = {}
        for one in short:
            if one.queue.is_held:
                self._record(one, one.missing, Refusal(Reason.QUEUE_HELD))
                continue
            found = growing_lease(self._state, self._agenda, one.lease, one.missing)
            if found is not None and (one.is_changed or not one.lease.is_rigid):
                growing[one.lease.id] = (one, found)
        grown = self._growth.run(
            [found for _, found in growing.values()],
            lambda job, queue, more: self._acts.over_quota(job, queue, more) is None,
        )
        for event in grown:
            self._changed(event)
            growing[event.lease][0].recorded = 0
        for one, found in sorted(growing.values(), key=lambda pair: pair[1].rank):
            if found.left > 0:
                self._take(one, found)

    def _changed(self, event: LeaseGrown) -> None:
        """It has more replicas from now on, and is nobody's victim in this cycle."""
        self._acts.revisions[event.lease] = event.revision
        self._preemption.spare(event.lease)
        self._acts.emit(event)

    # --- more, where others leave ------------------------------------------------------------------------------------

    def _take(self, one: _Scaling, found: Growing) -> None:
        """Promise room that others leave, for as many as can be; else say why not."""
        if not (one.is_changed or self._is_search_round) or self._searches >= MAX_SEARCHES:
            return
        self.is_searched = True
        over = self._acts.over_quota(one.job, one.queue, one.job.cls.asks[0].resources)
        if self._rules.may_preempt and self._is_taken(one, found, over):
            return
        self._record(one, found.left, self._why(one, found, over))

    def _is_taken(self, one: _Scaling, found: Growing, over: Refusal | None) -> bool:
        answer = self._rules.service_take(
            one.job.facts(), self._facts(one), self._draft.queue_facts(one.queue, 0), self._state.now_ms
        )
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        left_milli = answer.value - self._taken_milli(one)
        each_milli = _gpus_milli(one.job.cls.asks[0].resources)
        most = min(found.left, left_milli // each_milli) if each_milli else found.left
        opened = self._warm.open_to(one.job, one.queue)
        plan: Plan | None = None
        for count in range(most, max(0, most - MAX_TRIES), -1):
            plan = self._plan(one, found, over, count, left_milli)
            if plan is not None:
                self._acts.promise(one.job, one.queue, plan, one.lease.id)
                break
        self._warm.close(opened)
        if plan is None and over is None and self._plan(one, found, over, 1, MAX_AMOUNT) is not None:
            self._record(one, found.left, Refusal(Reason.TAKE_LIMIT, rule=answer.rule))
            return True
        return plan is not None

    def _plan(self, one: _Scaling, found: Growing, over: Refusal | None, count: int, limit_milli: int) -> Plan | None:
        """How so many replicas could have room if others left."""
        self._searches += 1
        job, queue, (need,) = one.job, one.queue, self._agenda.needs_of(self._state, one.job)
        resources = tuple((name, count * amount) for name, amount in need.ask.resources)
        taken = {ordinal for _, ordinal, _ in found.seats}
        free = [ordinal for ordinal in range(sum(job.cls.most.values())) if ordinal not in taken]
        if len(free) < count:
            return None
        mask = self._growth.allowed(found, need)

        def place() -> list[DraftSeat] | None:
            seats: list[DraftSeat] = []
            for ordinal in free[:count]:
                seat = self._packer.place_member(job.id, need, queue, ordinal, mask)
                if seat is None:
                    self._draft.stand_up(queue, seats)
                    return None
                seats.append(seat)
            return seats

        return self._preemption.find_room(
            Demand(
                job,
                queue,
                resources,
                place=place,
                over_quota=lambda: self._acts.over_quota(job, queue, resources),
                reason=over.reason if over is not None else Reason.CAPACITY,
                since_ms=self._state.now_ms if one.is_changed else one.service.changed_ms,
                limit_milli=limit_milli,
            )
        )

    # --- why not -----------------------------------------------------------------------------------------------------

    def _why(self, one: _Scaling, found: Growing, over: Refusal | None) -> Refusal:
        if over is not None:
            return over
        (need,) = self._agenda.needs_of(self._state, one.job)
        mask = self._growth.allowed(found, need)
        if self._fits(one, self._growth.near(found, need)):
            return Refusal(Reason.RESERVED)
        opened = self._warm.open_all()
        fits = self._fits(one, mask)
        self._warm.close(opened)
        return Refusal(Reason.HELD_WARM if fits else Reason.CAPACITY)

    def _fits(self, one: _Scaling, mask: Mask) -> bool:
        (need,) = self._agenda.needs_of(self._state, one.job)
        seat = self._packer.place_member(one.job.id, need, one.queue, 0, mask)
        if seat is not None:
            self._draft.stand_up(one.queue, [seat])
        return seat is not None

    def _record(self, one: _Scaling, missing: int, refusal: Refusal) -> None:
        if refusal.reason == one.recorded:
            return
        self._acts.emit(
            ServiceShort(
                job=one.job.id,
                lease=one.lease.id,
                missing=missing,
                reason=int(refusal.reason),
                short=dict(refusal.short),
                rule=refusal.rule,
            )
        )

    # --- promises ----------------------------------------------------------------------------------------------------

    def is_awaited(self, promise: Promise) -> bool:
        """Whether room that is promised to a lease is still for somebody."""
        lease = self._state.leases.get(promise.lease or "")
        return (
            lease is not None
            and lease.revoked is None
            and lease.id not in self._acts.revoked
            and lease.job.cls.spec.queue in self._state.tree.by_name
        )

    def join(self, promise: Promise, promised: Occupant) -> None:
        """The room is there: the replicas for which it was promised take it."""
        lease = self._state.leases[promise.lease or ""]
        self._draft.readmit(promised)
        members = tuple(
            Member(
                role=seat.role,
                ordinal=seat.ordinal,
                node=seat.node.name,
                gpus=gpus_of(seat.gpus),
                slices=slices_of(seat.gpus),
            )
            for seat in promise.seats
        )
        revision = lease.revision + 1
        self._changed(LeaseGrown(lease=lease.id, revision=revision, members=members, rule=promise.rule, cause=TAKEN))


def _gpus_milli(resources: Resources) -> int:
    return dict(resources).get(GPU, 0)
