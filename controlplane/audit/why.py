"""Why did a job wait, start, or end, as of any moment? Answered by deciding a cycle again with one job watched: for a
job that waits the last one, for a job that has started the last one that refused it. What the log recorded as the
reason and what the account says are the same computation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controlplane.audit.folding import decide_again, decoded, fold, with_cores
from controlplane.audit.rule_faults import RuleFault, RuleFaults
from controlplane.audit.rulings import AskedBook, Ruling, rulings
from controlplane.audit.sentences import amount, asks, given, meaning, signal, tell, tell_offer
from controlplane.audit.spans import instant, span
from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import (
    CapacityRequested,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobRequeued,
    JobSubmitted,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    RoomPromised,
    ServiceScaled,
    ServiceShort,
    TermsGiven,
    Ticked,
)
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.quantities import MILLI
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role
from controlplane.eventlog.port import EventLog, Record
from controlplane.scheduler.state import Job, State
from controlplane.scheduler.verdicts import OfferVerdict, Watch

Progress = Callable[[int, int], None]
_STEP = 2_000
_FIRST, _LAST = 4, 8
"""So many moments of a job's history are told from its beginning and from its end; the others are counted."""
_OTHERS = 3
"""So many rules that erred about other things are told."""
NODES_WILL_NOT_DO = "its nodes do not hold the job, or the eligibility rules refuse them"
"""What a cycle answers about an offer for either cause."""
_STARTED_NEVER = ("refused", "expired", "cancelled")
_ABOUT_WHOM = (CapacityRequested.TYPE, RoomPromised.TYPE)
"""Events that only their payload says whom they are about."""


class NoSuchJob(Exception):
    """The log has no such job, or not yet at that moment; one sentence."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened to the job."""

    position: int
    at_ms: int
    what: str

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"position": self.position, "at_ms": self.at_ms, "what": self.what}


@dataclass(slots=True)
class Account:
    """The answer. ``position`` and ``at_ms`` are those of the tick whose cycle was decided again (0 if none was worth
    it), ``end_ms`` is the moment as of which it is given, ``started_ms`` its first start."""

    job: int
    spec: JobSpec
    phase: str
    position: int
    at_ms: int
    end_ms: int
    submitted_ms: int
    started_ms: int | None = None
    history: list[Moment] = field(default_factory=list)
    watch: Watch | None = None
    rulings: list[Ruling] = field(default_factory=list)
    """The answers of rules that stood in its way in that cycle, with what the rules looked at."""
    first_offers: list[tuple[int, OfferVerdict]] = field(default_factory=list)
    """What the first cycle that saw it answered about offers, and when: later ones ask only when something may have
    changed."""
    first_rulings: list[Ruling] = field(default_factory=list)
    """Behind those."""
    erred: list[RuleFault] = field(default_factory=list)
    """Rules that erred about this very job in the cycle that is told about."""
    others_erred: list[RuleFault] = field(default_factory=list)
    """Other rules of the policy of that cycle that have erred by the end."""

    @property
    def reason(self) -> Reason | None:
        """The first answer to why it did not start in that cycle."""
        refusal = self.watch.refusal if self.watch is not None else None
        return refusal.reason if refusal is not None else None

    @property
    def waited_ms(self) -> int:
        """From its submission to its first start, or to now if it has not started."""
        return max(0, (self.end_ms if self.started_ms is None else self.started_ms) - self.submitted_ms)

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        own: dict[str, object] = {
            "ok": True,
            "job": job_label(JobId(self.job)),
            "name": self.spec.name,
            "queue": self.spec.queue,
            "phase": self.phase,
            "position": self.position,
            "at_ms": self.at_ms,
            "submitted_ms": self.submitted_ms,
            "started_ms": self.started_ms,
            "waited_ms": self.waited_ms,
            "asks": asks(self.spec),
            "first_offers": [
                {"at_ms": at_ms, "offer": offer.offer, "answer": offer.answer, "rule": offer.rule}
                for at_ms, offer in self.first_offers
            ],
            "rulings": [ruling.as_dict() for ruling in self.rulings],
            "first_rulings": [ruling.as_dict() for ruling in self.first_rulings],
            "history": [moment.as_dict() for moment in self.history],
            "rule_faults": [
                {**fault.as_dict(), "concerns_job": fault in self.erred} for fault in (*self.erred, *self.others_erred)
            ],
            "answer": self.sentences(),
        }
        return {**own, **_watch_dict(self.watch)}

    def sentences(self) -> list[str]:
        """The answer for a person, the most important first."""
        ruled = _told([ruling for ruling in self.rulings if not ruling.is_of_burst])
        answer = [*self._reasons(), *ruled, *self._rented(), *self._errors()]
        return [f"{self._head()}.", asks(self.spec), *answer, *self._happened()]

    def _head(self) -> str:
        head = f"{job_label(JobId(self.job))} ({self.spec.name}, queue {self.spec.queue}) is {self.phase}"
        waited = span(self.waited_ms)
        if self.started_ms is not None:
            return f"{head}; it waited {waited} from its submission at {instant(self.submitted_ms)} to its first start"
        if self.phase in _STARTED_NEVER:
            return f"{head}; it waited {waited} and never started"
        return f"{head}; at {instant(self.end_ms)} it had waited {waited}"

    def _reasons(self) -> list[str]:
        where = f"{instant(self.at_ms)} (position {self.position})"
        is_waiting = self.started_ms is None or self.phase == "waiting"
        if self.watch is None:
            return [] if is_waiting else ["The first cycle that saw it placed it."]
        errors = [f"A rule erred about it: {fault.sentence('in this cycle')}." for fault in self.erred]
        told = tell(self.watch, errors)
        if self.watch.is_granted or self.watch.detail:
            return told
        if self.watch.refusal is None and self.phase in _STARTED_NEVER:
            # No cycle placed or refused it for now: what happened to it says all, but for the rules that erred.
            return errors
        if is_waiting:
            again = "It waits again, since its last start has ended. " if self.started_ms is not None else ""
            return [f"{again}What the cycle of {where} says:", *told]
        return [f"Why it waited: the last cycle that refused it for this, at {where}, says:", *told]

    def _rented(self) -> list[str]:
        if self.watch is None or self.watch.is_granted or self.watch.offers or not self.first_offers:
            return _told([ruling for ruling in self.rulings if ruling.is_of_burst])
        when = instant(self.first_offers[0][0])
        return [
            f"Of cloud capacity the first cycle that saw it, at {when}, said:",
            *(tell_offer(offer) for _, offer in self.first_offers),
            *_told([ruling for ruling in self.first_rulings if ruling.is_of_burst]),
        ]

    def _errors(self) -> list[str]:
        lines = [f"Besides, a rule errs: {fault.sentence('in this cycle')}." for fault in self.others_erred[:_OTHERS]]
        more = len(self.others_erred) - len(lines)
        return [*lines, *([f"... and {more} more that err (--json has them)"] if more else [])]

    def _happened(self) -> list[str]:
        """A line for each moment; of a long history the beginning and the end."""
        lines = [f"{instant(moment.at_ms)}: {moment.what}" for moment in self.history]
        left_out = len(lines) - _FIRST - _LAST
        if left_out > 1:
            lines[_FIRST:-_LAST] = [f"... {left_out} more moments (--json has them) ..."]
        return lines


def _told(rulings: list[Ruling]) -> list[str]:
    """The first in full; of others, that there are some."""
    if not rulings:
        return []
    others = ", ".join(ruling.about for ruling in rulings[1:])
    more = [f"(--json has what they said of {others})"] if others else []
    return [*rulings[0].sentences(), *more]


def why(log: EventLog, job: int, at: int | None = None, progress: Progress | None = None) -> Account:
    """The account of a job as of a position of the log (its end by default).

    The cycle told about is the last by then for a job that waits, the one that ended it for a job that never started,
    else the last one that refused it before its first start; of a job for which capacity was on its way by then, the
    last one before that was asked for. Raises :class:`NoSuchJob`.
    """
    end = log.head().position if at is None else min(at, log.head().position)
    found = _Trail(job)
    for record in log.read(0, end):
        found.take(record)
    if found.submitted is None:
        raise NoSuchJob(f"{job_label(JobId(job))} is not in the log up to position {end}; `jobs` lists those that are")
    account = Account(
        job=job,
        spec=found.submitted.spec,
        phase=found.phase,
        position=0,
        at_ms=0,
        end_ms=found.end_ms,
        submitted_ms=found.submitted.submitted_ms,
        started_ms=found.started_ms,
        history=found.history,
    )
    ticks = [tick for tick in found.ticks if tick > job]
    for seen in _watched(log, job, [found.first_tick, *ticks] if ticks else [], progress):
        if seen.tick == found.first_tick:
            account.first_offers = [(seen.at_ms, offer) for offer in seen.watch.offers]
            account.first_rulings = seen.rulings
        if seen.tick in ticks and (account.watch is None or seen.watch.served_by is None):
            account.position, account.at_ms, account.watch = seen.tick, seen.at_ms, seen.watch
            account.rulings = seen.rulings
            _tell_errors(account, seen.watch, seen.closed, found)
    return account


def _tell_errors(account: Account, watch: Watch, closed: CycleDecided, found: _Trail) -> None:
    """Which rules erred, and whether about the watched job: what refuses it, or an offer to it, is the fault itself."""
    of_policy = {fault.what: fault for fault in found.faults if fault.policy == closed.policy}
    for what in closed.faults:
        of_policy.setdefault(what, RuleFault(what, closed.policy))
    answers = (found.refused_because, *(offer.answer for offer in watch.offers))
    own = dict.fromkeys([*watch.faults, *(answer for answer in answers if answer in of_policy)])
    account.erred = [of_policy.get(what, RuleFault(what, closed.policy)) for what in own]
    account.others_erred = [fault for what, fault in of_policy.items() if what not in own]


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the cycle of one tick says of the job."""

    tick: int
    at_ms: int
    watch: Watch
    closed: CycleDecided
    """The cycle's own record."""
    rulings: list[Ruling]


def _watched(log: EventLog, job: int, ticks: list[int], progress: Progress | None) -> Iterator[_Seen]:
    """What the cycles of some ticks say of the job, in order."""
    state, book = State(), AskedBook()
    last = max(ticks, default=0)
    for record, core in with_cores(log.read()):
        if record.position > last:
            return
        fold(state, record, decoded(record))
        if progress is not None and record.position % _STEP == 0:
            progress(record.position, ticks[-1])
        if record.position in ticks and _is_undecided(state.jobs.get(job)):
            yield _seen(state, book, record.position, job, core)


def _seen(state: State, book: AskedBook, tick: int, job: int, core: str) -> _Seen:
    since = book.asked(state)
    cycle = decide_again(state, book, tick, watched_job=job, core=core)
    watch, closed, watched = cycle.watch, cycle.decisions[-1].event, state.jobs[job]
    assert watch is not None, "a job that is watched has an account"
    assert isinstance(closed, CycleDecided), "a cycle ends with its own record"
    watch.offers = [plainer(offer, state, watched.cls.spec) for offer in watch.offers]
    refusals = (decision.event for decision in cycle.decisions if isinstance(decision.event, JobRefused))
    refused = next((event for event in refusals if event.job == job), None)
    return _Seen(tick, state.now_ms, watch, closed, rulings(watch, watched, refused, book.active(state), since))


def plainer(verdict: OfferVerdict, state: State, spec: JobSpec) -> OfferVerdict:
    """Of an offer whose nodes will not do, whether they are too small or the rules refuse them, where that is plain."""
    if verdict.answer != NODES_WILL_NOT_DO:
        return verdict
    cluster, _, name = verdict.offer.partition("/")
    shape = next(offer.shape for offer in state.clusters[cluster].offers if offer.name == name)
    answers = {_unfit(role, shape) for role in spec.roles}
    if None in answers:  # a matter of MIG or of parts of a GPU
        return verdict
    what = next((answer for answer in sorted(filter(None, answers))), "the eligibility rules refuse its nodes")
    return OfferVerdict(verdict.offer, what, verdict.rule)


def _unfit(role: Role, shape: NodeShape) -> str | None:
    """What an empty node lacks for one member, empty for nothing; ``None`` if that needs a closer look."""
    if role.mig_profile or shape.mig_gpus or role.gpu_memory_bytes or role.gpu_memory_min_bytes or role.other:
        return None
    if role.gpus and role.gpu_models and shape.gpu_model not in role.gpu_models:
        return "its nodes have GPUs of another model"
    pairs = (("gpu", role.gpus, shape.gpus), ("cpu", role.cpu_milli, shape.cpu_milli))
    for resource, asked, there in (*pairs, ("memory", role.memory_bytes, shape.memory_bytes)):
        if asked > there:
            unit = MILLI if resource == "gpu" else 1
            has, needs = amount(resource, there * unit), amount(resource, asked * unit)
            return f"its nodes are too small: {has}, and a member needs {needs}"
    return ""


def jobs_named(log: EventLog, name: str) -> list[int]:
    """The jobs that were submitted under a name, in order."""
    quoted = json.dumps(name, ensure_ascii=False).encode()
    found: list[int] = []
    for record in log.read():
        if record.type == JobSubmitted.TYPE and quoted in record.payload:
            event = decoded(record)
            if isinstance(event, JobSubmitted) and event.spec.name == name:
                found.append(record.position)
    return found


def position_at(log: EventLog, at_ms: int) -> int:
    """The position of the last record that was made at or before an instant of the log's clock; 0 if none was.

    What comes in between two cycles is recorded with the later one, in front of its tick: it belongs to that instant.
    """
    last = 0
    for record in log.read():
        if record.recorded_at_ms > at_ms:
            break
        last = record.position
    return last


def _is_undecided(job: Job | None) -> bool:
    return job is not None and job.lease is None


class _Trail:
    """What the log says of one job, by a scan that decodes only what concerns it."""

    def __init__(self, job: int) -> None:
        self._job = job
        self._label = job_label(JobId(job))
        self._last_tick = 0
        self._tick_before = 0
        self.first_tick = 0
        """Of the first cycle that saw it."""
        self._before_request = 0
        self._before_start = 0
        self._ended_by = 0
        self.end_ms = 0
        self.started_ms: int | None = None
        self.submitted: JobSubmitted | None = None
        self.history: list[Moment] = []
        self.phase = "waiting"
        self.faults = RuleFaults()
        self.refused_because = ""

    @property
    def ticks(self) -> list[int]:
        """The ticks of the cycles that may be worth telling about, in order; 0 for none."""
        if self.started_ms is not None and self.phase != "waiting":
            return sorted({self._before_request, self._before_start})
        return [self._ended_by or self._last_tick]

    def take(self, record: Record) -> None:
        """One more record."""
        if record.type == Ticked.TYPE:
            self._tick_before, self._last_tick = self._last_tick, record.position
            if self.submitted is not None:
                self.first_tick = self.first_tick or record.position
            if not self._ended_by:
                self.end_ms = record.recorded_at_ms
        elif record.type == CycleDecided.TYPE:
            if b'"faults":' in record.payload:
                self.faults.see(record.position, decoded(record))
        elif record.position == self._job and record.type == JobSubmitted.TYPE:
            event = decoded(record)
            assert isinstance(event, JobSubmitted)
            self.submitted = event
            self.end_ms = max(self.end_ms, event.submitted_ms)
            self.history.append(Moment(record.position, event.submitted_ms, f"submitted by {record.actor}"))
        elif record.correlation == self._label or record.type in _ABOUT_WHOM:
            self._note(record, decoded(record))

    def _note(self, record: Record, event: Event) -> None:
        for phase, what in _moments(event, self._job):
            self.phase = phase or self.phase
            self.history.append(Moment(record.position, record.recorded_at_ms, what))
            match event:
                case LeaseGranted() if self.started_ms is None:
                    self.started_ms, self._before_start = record.recorded_at_ms, self._tick_before
                case CapacityRequested() if self.started_ms is None:
                    self._before_request = self._tick_before
                case JobEnded(outcome="cancelled"):
                    self._ended_by = self._tick_before
                case JobRefused():
                    self._ended_by, self.refused_because = self._last_tick, event.detail
                case JobEnded():
                    self._ended_by = self._last_tick
                case _:
                    pass


def _moments(event: Event, job: int) -> Iterator[tuple[str, str]]:
    """(phase that it is in now, or empty; what happened)."""
    match event:
        case LeaseGranted():
            nodes = ", ".join(dict.fromkeys(member.node for member in event.members))
            yield "placed", f"placed on {nodes} of {event.cluster} (attempt {event.attempt}{_by(event.rule)})"
        case TermsGiven():
            yield "", f"the rules give it {given(event.terms)}{_by(event.rule)}"
        case LeaseObserved(phase=LeasePhase.RESIZED):
            yield "", f"{event.cluster} reported that it has {_members(event)}"
        case LeaseRevoked():
            whom = f" for {job_label(JobId(event.for_job))}{_by(event.rule)}" if event.for_job is not None else ""
            yield "ending", f"its lease was revoked: {event.cause}{whom}"
        case LeaseObserved():
            phases = {"launching": "placed", "failed": "returned", "lost": "returned", "refused": "returned"}
            phase = phases.get(event.phase.value, event.phase.value)
            detail = f" ({event.detail})" if event.detail else ""
            yield phase, f"{event.cluster} reported it {event.phase.value}{detail}"
        case JobRefused():
            yield "refused", f"refused: {Reason(event.reason).slug}: {event.detail}{_by(event.rule)}"
        case JobRequeued():
            yield "waiting", f"waits again: {event.cause}"
        case JobEnded():
            because = f" ({Reason(event.reason).slug})" if event.reason is not None else ""
            yield event.outcome, f"ended: {event.outcome}{because}"
        case CapacityRequested(for_job=for_job) if for_job == job:
            cost = amount("micro-usd", event.promised_micro_usd)
            yield "", f"{event.nodes} of {event.cluster}/{event.offer} asked for, promising {cost}{_by(event.rule)}"
        case _:
            if (what := _resized(event, job)) is not None:
                yield "", what


def _resized(event: Event, job: int) -> str | None:
    """What was decided about how many members it has."""
    match event:
        case LeaseGrown():
            nodes = ", ".join(dict.fromkeys(member.node for member in event.members))
            where = {"wanted": ", in free room,", "taken": ", in room that others left,"}.get(event.cause, "")
            return f"grew by {_members(event)}{where} on {nodes}{_by(event.rule)}"
        case LeaseShrunk(cause="unwanted"):
            return f"gives back {_members(event)}{_by(event.rule)}"
        case LeaseShrunk():
            whom = f" for {job_label(JobId(event.for_job))}" if event.for_job is not None else ""
            return f"{_members(event)} of it were told to leave{whom}: {event.cause}{_by(event.rule)}"
        case ServiceScaled():
            seen = signal(event.p99_ms, event.objective_ms, event.queue_depth)
            saw = f", which saw {seen}" if seen else ""
            return f"is to have {_replicas(event.wanted)}, and has {event.replicas}{_by(event.rule)}{saw}"
        case ServiceShort():
            reason = Reason(event.reason)
            short = ", ".join(amount(resource, event.short[resource]) for resource in sorted(event.short))
            missing = f" (short of {short})" if short else ""
            what = f"{reason.slug}: {meaning(reason)}{missing}"
            return f"lacks {_replicas(event.missing)}: {what}{_by(event.rule)}"
        case RoomPromised(job=for_job, lease=str()) if for_job == job:
            leases = dict.fromkeys([*event.victims, *(awaited.lease for awaited in event.shrinks)])
            who = ", ".join(lease.partition(".")[0] for lease in leases)
            once = f"once {who} {'has' if len(leases) == 1 else 'have'} made way"
            return f"room for {_replicas(len(event.members))} is promised to it, {once}{_by(event.rule)}"
        case _:
            return None


def _replicas(count: int) -> str:
    return f"{count:,} replica{'' if count == 1 else 's'}"


def _by(rule: str | None) -> str:
    return f", by {rule}" if rule else ""


def _watch_dict(watch: Watch | None) -> dict[str, object]:
    if watch is None:
        return {"reason": None}
    refusal = watch.refusal
    return {
        "reason": refusal.reason.slug if refusal is not None else None,
        "short": dict(refusal.short) if refusal is not None else {},
        "rule": refusal.rule if refusal is not None else None,
        "granted": watch.is_granted,
        "order": list(watch.order),
        "ahead": watch.ahead,
        "first_ahead": [job_label(JobId(id_)) for id_ in watch.first_ahead],
        "queues": [
            [{"queue": s.queue, "order": list(s.order), "share_ppb": s.share_ppb, "pending": s.pending} for s in level]
            for level in watch.queues
        ],
        "quotas": [
            {
                "flavor": q.flavor,
                "resource": q.resource,
                "asked": q.asked,
                "available": q.available,
                "ceiling": q.ceiling,
            }
            for q in watch.quotas
        ],
        "roles": [
            {
                "role": role.role,
                "members": role.members,
                "would_fit": role.would_fit,
                "tally": role.tally.model_dump(exclude_defaults=True),
                "nearest": role.nearest,
                "lacks": dict(role.lacks),
            }
            for role in watch.roles
        ],
        "offers": [{"offer": o.offer, "answer": o.answer, "rule": o.rule} for o in watch.offers],
        "reservations": [
            {"job": job_label(JobId(h.job)), "start_ms": h.start_ms, "nodes": list(h.nodes)} for h in watch.reservations
        ],
        "warm": [
            {"pool": held.pool, "gpus": held.gpus, "nodes": list(held.nodes), "queue": held.queue}
            for held in watch.warm
        ],
        "waits_for": list(watch.waits_for),
        "served_by": watch.served_by,
    }


def _members(event: LeaseGrown | LeaseShrunk | LeaseObserved) -> str:
    count = len(event.members)
    return f"{count} member" if count == 1 else f"{count} members"
