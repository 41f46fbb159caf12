"""Why did a job wait, start, or end at a moment of the past? Answered by deciding that very cycle again, with one job
watched. What the log recorded as the reason and what the account says are the same computation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from controlplane.audit.sentences import amount, duration, tell
from controlplane.domain.codec import decode
from controlplane.domain.events import (
    CapacityRequested,
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
    Ticked,
)
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.reasons import Reason
from controlplane.eventlog.port import EventLog, Record
from controlplane.runtime.rulebook import Rulebook
from controlplane.scheduler.decide import decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.state import Job, State
from controlplane.scheduler.verdicts import Watch

Progress = Callable[[int, int], None]
_STEP = 2_000
_CYCLE_OF = (LeaseGranted.TYPE, JobRefused.TYPE, JobEnded.TYPE)
"""Decisions about a job that name the cycle which is worth telling about."""


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
    """The answer. ``position`` is that of the tick whose cycle was decided again, 0 if none was worth it."""

    job: int
    name: str
    queue: str
    phase: str
    position: int
    at_ms: int
    submitted_ms: int
    history: list[Moment] = field(default_factory=list)
    watch: Watch | None = None

    @property
    def reason(self) -> Reason | None:
        """The first answer to why it did not start in that cycle."""
        refusal = self.watch.refusal if self.watch is not None else None
        return refusal.reason if refusal is not None else None

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        own: dict[str, object] = {
            "ok": True,
            "job": job_label(JobId(self.job)),
            "name": self.name,
            "queue": self.queue,
            "phase": self.phase,
            "position": self.position,
            "at_ms": self.at_ms,
            "waited_ms": max(0, self.at_ms - self.submitted_ms),
            "history": [moment.as_dict() for moment in self.history],
            "answer": self.sentences(),
        }
        return {**own, **_watch_dict(self.watch)}

    def sentences(self) -> list[str]:
        """The answer for a person, the most important first."""
        head = f"{job_label(JobId(self.job))} ({self.name}, queue {self.queue}) is {self.phase}"
        if self.watch is None:
            return [head + ".", *(f"{duration(moment.at_ms)}: {moment.what}" for moment in self.history)]
        waited = duration(max(0, self.at_ms - self.submitted_ms))
        head += f"; at {duration(self.at_ms)} (position {self.position}) it had waited {waited}."
        return [head, *tell(self.watch)]


def why(log: EventLog, job: int, at: int | None = None, progress: Progress | None = None) -> Account:
    """The account of a job at a position of the log (its end by default).

    The cycle told about is the one that placed, refused or ended the job, if that is the last thing that happened to
    it by then, else the last cycle by then. Raises :class:`NoSuchJob`.
    """
    end = log.head().position if at is None else min(at, log.head().position)
    found = _Trail(job)
    for record in log.read(0, end):
        found.take(record)
    if found.submitted is None:
        raise NoSuchJob(f"{job_label(JobId(job))} is not in the log up to position {end}; `jobs` lists those that are")
    tick = found.tick
    state = State()
    for record in log.read(0, max(tick, job)):
        apply(state, record.position, decode(record.type, record.payload))
        if progress is not None and record.position % _STEP == 0:
            progress(record.position, tick)
    account = Account(
        job=job,
        name=found.submitted.spec.name,
        queue=found.submitted.spec.queue,
        phase=found.phase,
        position=tick,
        at_ms=state.now_ms,
        submitted_ms=found.submitted.submitted_ms,
        history=found.history,
    )
    if tick > job and _is_undecided(state.jobs.get(job)):
        account.watch = decide(state, Rulebook().active(state), watched_job=job).watch
    return account


def position_at(log: EventLog, at_ms: int) -> int:
    """The position of the last record that was made at or before an instant of the log's clock; 0 if none was."""
    last = 0
    for record in log.read():
        if record.type == Ticked.TYPE and record.recorded_at_ms > at_ms:
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
        self._cycle = 0
        self.submitted: JobSubmitted | None = None
        self.history: list[Moment] = []
        self.phase = "waiting"

    @property
    def tick(self) -> int:
        """The tick of the cycle to tell about."""
        return self._cycle or self._last_tick

    def take(self, record: Record) -> None:
        """One more record."""
        if record.type == Ticked.TYPE:
            self._last_tick = record.position
        elif record.position == self._job and record.type == JobSubmitted.TYPE:
            event = decode(record.type, record.payload)
            assert isinstance(event, JobSubmitted)
            self.submitted = event
            self.history.append(Moment(record.position, event.submitted_ms, f"submitted by {record.actor}"))
        elif record.correlation == self._label or record.type == CapacityRequested.TYPE:
            self._note(record, decode(record.type, record.payload))

    def _note(self, record: Record, event: Event) -> None:
        for phase, what in _moments(event, self._job):
            self.phase = phase or self.phase
            self.history.append(Moment(record.position, record.recorded_at_ms, what))
            if record.type in _CYCLE_OF and record.causation is not None:
                self._cycle = record.causation
            elif isinstance(event, JobRequeued):
                self._cycle = 0


def _moments(event: Event, job: int) -> Iterator[tuple[str, str]]:
    """(phase that it is in now, or empty; what happened)."""
    match event:
        case LeaseGranted():
            nodes = ", ".join(dict.fromkeys(member.node for member in event.members))
            yield "placed", f"placed on {nodes} (attempt {event.attempt}{_by(event.rule)})"
        case LeaseGrown():
            nodes = ", ".join(dict.fromkeys(member.node for member in event.members))
            yield "", f"grew by {_members(event)} on {nodes}{_by(event.rule)}"
        case LeaseShrunk():
            whom = f" for {job_label(JobId(event.for_job))}" if event.for_job is not None else ""
            yield "", f"{_members(event)} of it were told to leave{whom}: {event.cause}{_by(event.rule)}"
        case LeaseObserved(phase=LeasePhase.RESIZED):
            yield "", f"{event.cluster} reported that it has {_members(event)}"
        case LeaseRevoked():
            yield "ending", f"its lease was revoked: {event.cause}"
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
            pass


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
        "waits_for": list(watch.waits_for),
        "served_by": watch.served_by,
    }


def _members(event: LeaseGrown | LeaseShrunk | LeaseObserved) -> str:
    count = len(event.members)
    return f"{count} member" if count == 1 else f"{count} members"
