"""What would another bundle have decided? A stretch of recorded history is decided again, and what differs is
reported.

Exact up to the first changed decision, simulated from there on; see :mod:`controlplane.audit.whatif` for what that
means and :mod:`controlplane.audit.standin` for what is assumed.
"""

from __future__ import annotations

import json

from controlplane.audit.causes import Inquiry, inquire
from controlplane.audit.changes import Gist, rule_of
from controlplane.audit.diff_report import (
    Because,
    Decided,
    DiffReport,
    FirstChange,
    Policy,
    changes_of,
    curves_of,
    jobs_of,
    side_of,
)
from controlplane.audit.sentences import amount
from controlplane.audit.spans import instant
from controlplane.audit.whatif import Activation, Course, Parting, Progress, Recorded, read_log, take_course
from controlplane.domain.codec import encode
from controlplane.domain.events import (
    CapacityReleased,
    CapacityRequested,
    Event,
    JobEnded,
    JobRefused,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseRevoked,
    LeaseShrunk,
    ReservationMade,
    RoomPromised,
    ServiceScaled,
    ServiceShort,
)
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.reasons import Reason
from controlplane.domain.version import CORE, KNOWN_CORES
from controlplane.eventlog.port import EventLog
from controlplane.policy.bundle import Bundle, load_bundle
from controlplane.policy.problems import BundleRefused

_NAMED = 4
"""So many nodes or leases are named in a sentence."""


def diff(log: EventLog, candidate: Bundle, since: int = 0, progress: Progress | None = None) -> DiffReport:
    """The report on a log, from the first cycle behind position ``since`` to its end.

    Raises :class:`~controlplane.audit.whatif.NothingDecided` for a stretch without a cycle,
    :class:`~controlplane.eventlog.port.LogDamaged` for a log that does not follow from itself, and what
    :func:`~controlplane.domain.codec.decode` and the log's ``read`` raise.
    """
    recorded = read_log(log, since, progress)
    course = take_course(log, recorded, candidate.rules(), progress)
    first, second = recorded.ledger, course.ledger
    there = first.there_gpu_ms["home"] or first.there_gpu_ms["cloud"]
    compared, changes, by_rule = changes_of(first, second)
    sources = list(course.runtimes.values())
    return DiffReport(
        candidate=Policy(candidate.name, candidate.digest),
        policies=tuple(_policy(activation) for activation in recorded.policies),
        position=recorded.head.position,
        digest=recorded.head.digest,
        start=recorded.start,
        from_ms=first.from_ms,
        end_ms=first.end_ms,
        exact_cycles=course.exact_cycles,
        exact_decisions=course.exact_decisions,
        other_rules=course.other_rules,
        exact_until_ms=course.parting.at_ms if course.parting is not None else first.end_ms,
        runtimes={str(source): sources.count(source) for source in sorted(set(sources))},
        grid_ms=recorded.observed.grid_ms,
        first_change=_first_change(course.parting, recorded, candidate) if course.parting is not None else None,
        recorded=side_of(first, there),
        under_candidate=side_of(second, there),
        compared=compared,
        changes=changes,
        by_rule=by_rule,
        jobs=jobs_of(first, second),
        recorded_curves=curves_of(first),
        candidate_curves=curves_of(second),
        notes=tuple(_notes(recorded, course)),
    )


def _policy(activation: Activation) -> Policy:
    return Policy(activation.name, activation.digest, activation.position)


def _notes(recorded: Recorded, course: Course) -> list[str]:
    notes: list[str] = []
    others = sorted(core for core in recorded.cores if core not in KNOWN_CORES)
    if others:
        notes.append(
            f"the log was decided by core {', '.join(others)}, which this does not know: it is decided again by core "
            f"{CORE}, and some of what differs may be the core's doing and not the candidate's"
        )
    if len(recorded.policies) > 1:
        names = ", then ".join(f"{policy.name} from position {policy.position:,}" for policy in recorded.policies)
        notes.append(f"several policies decided in the log ({names}); the candidate stands in for all of them")
    if course.parting is not None:
        notes.append(
            "from the first change on the candidate's course is simulated: submissions, cancellations, configuration "
            "and owned nodes as recorded, run times and delays as the log shows them"
        )
    return notes


# --- the first change -------------------------------------------------------------------------------------------------


def _first_change(parting: Parting, recorded: Recorded, candidate: Bundle) -> FirstChange:
    mine, theirs = _pair(parting)
    before = [policy for policy in recorded.policies if policy.position <= parting.position]
    policy = before[-1] if before else None
    inquiry, note = _inquiry(parting, policy, candidate)
    because = tuple(
        Because(
            cause.point,
            cause.about,
            cause.recorded.answer if cause.recorded else None,
            cause.recorded.rule if cause.recorded else None,
            cause.candidate.answer if cause.candidate else None,
            cause.candidate.rule if cause.candidate else None,
        )
        for cause in inquiry.causes
    )
    return FirstChange(
        position=mine.position if mine is not None and mine.position is not None else parting.position,
        tick=parting.position,
        cycle=parting.cycle,
        at_ms=parting.at_ms,
        is_extra=parting.is_extra,
        recorded=mine,
        candidate=theirs,
        others=len(parting.recorded) + len(parting.candidate) - sum(one is not None for one in (mine, theirs)),
        policy=_policy(policy) if policy is not None else None,
        because=because,
        is_joint=inquiry.is_joint,
        note=note,
    )


def _pair(parting: Parting) -> tuple[Decided | None, Decided | None]:
    """The first decision of the cycle that differs, on either side, and what the other side has for the same job."""
    if parting.recorded:
        position, event, gist = parting.recorded[0]
        other = next(((event, found) for event, found in parting.candidate if found.job == gist.job), None)
        return _decided(event, gist, position), _decided(*other) if other is not None else None
    return None, _decided(*parting.candidate[0])


def _decided(event: Event, gist: Gist, position: int | None = None) -> Decided:
    label = job_label(JobId(gist.job)) if gist.job else None
    plain = json.loads(encode(event))
    return Decided(event.TYPE, gist.kind, label, rule_of(event), _sentence(event, label or ""), plain, position)


def _sentence(event: Event, job: str) -> str:
    match event:
        case LeaseGranted() | LeaseGrown():
            nodes = list(dict.fromkeys(member.node for member in event.members))
            more = f" and {len(nodes) - _NAMED} more nodes" if len(nodes) > _NAMED else ""
            gpus = f" (GPU {', '.join(map(str, event.members[0].gpus))})" if event.members[0].gpus else ""
            verb = "is placed on" if isinstance(event, LeaseGranted) else "grows onto"
            return f"{job} {verb} {', '.join(nodes[:_NAMED])}{more}{gpus if len(event.members) == 1 else ''}"
        case LeaseRevoked():
            return f"{job} has to leave: {event.cause}{_for(event.for_job)}"
        case LeaseShrunk():
            return f"{job} gives up {len(event.members)} of its members: {event.cause}{_for(event.for_job)}"
        case RoomPromised():
            return f"room is promised to {job}, for which {', '.join(event.victims[:_NAMED]) or 'others'} leave"
        case ReservationMade():
            start = "once it has drained" if event.start_ms is None else f"at {instant(event.start_ms)}"
            return f"a start is reserved for {job} on {', '.join(event.nodes[:_NAMED])}, {start}"
        case JobRefused():
            return f"{job} is refused: {Reason(event.reason).slug}: {event.detail}"
        case JobEnded():
            return f"{job} is over: {event.outcome}"
        case JobsWaiting():
            alike = f" and {event.count - 1:,} like it" if event.count > 1 else ""
            return f"{job}{alike} wait{'' if alike else 's'}: {Reason(event.reason).slug}"
        case CapacityRequested():
            cost = amount("micro-usd", event.promised_micro_usd)
            return f"{event.nodes} of {event.cluster}/{event.offer} are asked for {job}, promising {cost}"
        case CapacityReleased():
            return f"{event.request} of {event.cluster} is given back: {event.cause}"
        case _:
            return _other_sentence(event, job)


def _other_sentence(event: Event, job: str) -> str:
    match event:
        case ServiceScaled():
            return f"{job} has {event.replicas:,} replicas and is to have {event.wanted:,}"
        case ServiceShort():
            return f"{job} lacks replicas ({event.missing:,}): {Reason(event.reason).slug}"
        case _:
            cause: str = getattr(event, "cause", "")
            return f"{job or 'the plane'}: {event.TYPE.partition('/')[0]}{f' ({cause})' if cause else ''}"


def _for(job: int | None) -> str:
    return f", for {job_label(JobId(job))}" if job is not None else ""


def _inquiry(parting: Parting, policy: Activation | None, candidate: Bundle) -> tuple[Inquiry, str]:
    if policy is None:
        return Inquiry((), is_reproduced=False), "the log does not say which policy decided"
    try:
        rules = load_bundle(policy.files).rules()
    except BundleRefused as error:
        return Inquiry(
            (), is_reproduced=False
        ), f"the log's own policy does not load here, so no cause is named: {error}"
    found = inquire(parting, rules, candidate.rules())
    if not found.is_reproduced:
        return found, "the log's own policy, asked again, does not decide this either: another core decided it"
    if not found.causes:
        return found, "the bundles answer alike; they differ in when a cycle is due, since their rules look at the time"
    return found, ""
