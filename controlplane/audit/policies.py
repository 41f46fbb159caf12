"""What a log tells of its policy: which bundle was active when and by whom, and what a shadow would have decided.

Counted from the events alone; nothing is decided again (``replay --verify`` does that, shadows included).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.audit.spans import instant, span
from controlplane.domain.codec import decode
from controlplane.domain.events import (
    CycleDecided,
    Event,
    JobSubmitted,
    LeaseGranted,
    PolicyActivated,
    PolicyShadowed,
    ShadowDecided,
    ShadowDifference,
    ShadowEnded,
    ShadowFailed,
)
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.reasons import Reason
from controlplane.eventlog.port import EventLog, Record
from controlplane.runtime.activation import SHORT, Change, changes
from controlplane.runtime.shadow import KINDS, START
from controlplane.scheduler.state import State

Progress = Callable[[int, int], None]
_STEP = 20_000
EXAMPLES = 5
"""Jobs of a difference that are named."""


# --- which bundle was active when ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Stretch:
    """A bundle was active, or was the shadow, from one position to another."""

    what: str
    """``active`` or ``shadow``."""
    name: str
    digest: str
    author: str
    position: int
    since_ms: int
    is_again: bool = False
    """Whether the same bundle was active before: a roll-back."""
    until_ms: int | None = None
    """``None`` if it still is."""
    ended: str = ""
    """How it ended, and by whom."""
    cycles: int = 0

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "what": self.what,
            "name": self.name,
            "digest": self.digest,
            "author": self.author,
            "position": self.position,
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "again": self.is_again,
            "ended": self.ended,
            "cycles": self.cycles,
        }


@dataclass(slots=True)
class History:
    """All stretches in the order in which they began; ``end_ms`` is the log's clock at its end."""

    stretches: list[Stretch] = field(default_factory=list)
    end_ms: int = 0
    active: Stretch | None = None
    shadow: Stretch | None = None

    def take(self, record: Record, change: Change | None) -> None:
        """One more record."""
        self.end_ms = max(self.end_ms, record.recorded_at_ms)
        if change is not None:
            self._change(change)
        elif record.type == CycleDecided.TYPE:
            for stretch in (self.active, self.shadow):
                if stretch is not None:
                    stretch.cycles += 1

    def _change(self, change: Change) -> None:
        match change.event:
            case PolicyActivated() as event:
                if self.active is not None:
                    _end(self.active, change, f"{event.name} was activated by {change.author}")
                self.active = self._begin("active", event, change)
                if self.shadow is not None and self.shadow.digest == event.digest:
                    self._end_shadow(change, f"it was activated by {change.author}")
            case PolicyShadowed() as event:
                self._end_shadow(change, f"{event.name} took its place, by {change.author}")
                self.shadow = self._begin("shadow", event, change)
            case ShadowEnded():
                self._end_shadow(change, f"it was ended by {change.author}")
            case ShadowFailed() as event:
                self._end_shadow(change, f"it failed: {event.cause}")
            case _:
                pass

    def _begin(self, what: str, event: PolicyActivated | PolicyShadowed, change: Change) -> Stretch:
        is_again = any(known.what == what == "active" and known.digest == event.digest for known in self.stretches)
        begun = Stretch(what, event.name, event.digest, change.author, change.position, change.at_ms, is_again)
        self.stretches.append(begun)
        return begun

    def _end_shadow(self, change: Change, how: str) -> None:
        if self.shadow is not None:
            _end(self.shadow, change, how)
            self.shadow = None


def _end(stretch: Stretch, change: Change, how: str) -> None:
    stretch.until_ms, stretch.ended = change.at_ms, how


def history(log: EventLog, progress: Progress | None = None) -> History:
    """Every bundle that was active or the shadow. Raises what the log's ``read`` raises."""
    found, total = History(), log.head().position
    for record, change in changes(log):
        found.take(record, change)
        if progress is not None and record.position % _STEP == 0:
            progress(record.position, total)
    return found


# --- what a shadow would have decided --------------------------------------------------------------------------------


@dataclass(slots=True)
class Difference:
    """Jobs about which the shadow and the active bundle decided otherwise, in one way."""

    what: str
    by_shadow: bool
    jobs: list[int] = field(default_factory=list)
    """Each once, in the order in which they were told."""
    rules: dict[str, int] = field(default_factory=dict)
    """``file:line`` of the rule behind it, in the bundle that decides so -> jobs."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Why they would have waited -> jobs, as far as that is known."""
    promised_micro_usd: int = 0

    def take(self, told: ShadowDifference) -> None:
        """Some more of the same."""
        self.jobs.extend(told.jobs)
        if told.rule is not None:
            self.rules[told.rule] = self.rules.get(told.rule, 0) + len(told.jobs)
        if told.reason is not None:
            slug = Reason(told.reason).slug
            self.reasons[slug] = self.reasons.get(slug, 0) + len(told.jobs)
        self.promised_micro_usd += told.promised_micro_usd


@dataclass(frozen=True, slots=True)
class Named:
    """A job as people know it."""

    job: int
    name: str
    queue: str

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"job": job_label(JobId(self.job)), "name": self.name, "queue": self.queue}


@dataclass(slots=True)
class ShadowReport:
    """What one shadow would have decided otherwise over its stretch."""

    stretch: Stretch
    differed: int = 0
    """Cycles that told of a difference."""
    differences: dict[tuple[str, bool], Difference] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    untold: int = 0
    """The most that one cycle had beyond what its record names; the next one names who still differs."""
    told_ms: dict[int, int] = field(default_factory=dict)
    """Job that only the shadow would have started -> when."""
    sooner_ms: dict[int, int] = field(default_factory=dict)
    """The same -> how much later the active bundle started it."""
    named: dict[int, Named] = field(default_factory=dict)

    def take(self, event: ShadowDecided, at_ms: int) -> None:
        """One record of the shadow."""
        self.differed += bool(event.differences)
        self.untold = max(self.untold, event.untold)
        self.faults.extend(fault for fault in event.faults if fault not in self.faults)
        for told in event.differences:
            key = (told.what, told.by_shadow)
            self.differences.setdefault(key, Difference(*key)).take(told)
            if key == (START, True):
                self.told_ms.update(dict.fromkeys(told.jobs, at_ms))

    def started(self, job: int, at_ms: int) -> None:
        """The active bundle started a job."""
        if job in self.told_ms:
            self.sooner_ms.setdefault(job, at_ms - self.told_ms[job])

    def in_order(self) -> list[Difference]:
        """Kind by kind, first what the shadow would have done."""
        order = {what: at for at, what in enumerate(KINDS)}
        return sorted(self.differences.values(), key=lambda one: (order.get(one.what, len(order)), not one.by_shadow))

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        waits = sorted(self.sooner_ms.values())
        return {
            **self.stretch.as_dict(),
            "differed_cycles": self.differed,
            "differences": [self._difference_dict(difference) for difference in self.in_order()],
            "sooner": {
                "jobs": len(waits),
                "median_ms": waits[len(waits) // 2] if waits else 0,
                "max_ms": waits[-1] if waits else 0,
                "never_started": len(self.told_ms) - len(waits),
            },
            "untold": self.untold,
            "faults": self.faults,
        }

    def _difference_dict(self, difference: Difference) -> dict[str, object]:
        queues: dict[str, int] = {}
        for job in difference.jobs:
            queue = self.named[job].queue if job in self.named else ""
            queues[queue] = queues.get(queue, 0) + 1
        return {
            "what": difference.what,
            "by": "shadow" if difference.by_shadow else "active",
            "jobs": len(difference.jobs),
            "rules": dict(sorted(difference.rules.items())),
            "reasons": dict(sorted(difference.reasons.items())),
            "queues": dict(sorted(queues.items())),
            "promised_micro_usd": difference.promised_micro_usd,
            "examples": [self.named[job].as_dict() for job in difference.jobs[:EXAMPLES] if job in self.named],
        }

    def sentences(self) -> list[str]:
        """The report for a person."""
        return [self._head(), *map(self._sentence, self.in_order()), *self._sooner(), *self._rest()]

    def _head(self) -> str:
        of = self.stretch
        begun = f"Shadow {of.name} ({of.digest[:SHORT]}), set by {of.author} at {instant(of.since_ms)}"
        ended = f", until {instant(of.until_ms)}: {of.ended}" if of.until_ms is not None else ", still asked"
        cycles = f"{of.cycles:,} cycle{'' if of.cycles == 1 else 's'}"
        differed = (
            f"in {self.differed:,} of {cycles} it decided something otherwise"
            if self.differed
            else (f"in {cycles} it decided nothing otherwise")
        )
        return f"{begun}{ended}; {differed}."

    def _sentence(self, difference: Difference) -> str:
        listed = [self._job(job) for job in difference.jobs[:EXAMPLES]]
        more = len(difference.jobs) - len(listed)
        examples = ", ".join(listed) + (f" and {more:,} more" if more else "")
        money = f", for at most ${difference.promised_micro_usd / 1e6:,.2f}" if difference.promised_micro_usd else ""
        by = _listed(" by ", difference.rules)
        waits = _listed(" (they would have waited for: ", difference.reasons, ")")
        said = say(difference.what, difference.by_shadow, len(difference.jobs), by)
        return f"{said}{money}{waits}: {examples}."

    def _job(self, job: int) -> str:
        label, known = job_label(JobId(job)), self.named.get(job)
        return f"{label} ({known.name}, {known.queue})" if known is not None else label

    def _sooner(self) -> Iterator[str]:
        waits = sorted(self.sooner_ms.values())
        if waits:
            yield (
                f"Of those that it would have started, {len(waits):,} started later under the active bundle: "
                f"{span(waits[len(waits) // 2])} later in the middle, {span(waits[-1])} at most."
            )
        if never := len(self.told_ms) - len(waits):
            yield f"{never:,} of those that it would have started had not started when the log ended."

    def _rest(self) -> Iterator[str]:
        if self.untold:
            yield f"In one cycle {self.untold:,} more jobs differed than a record names; who still did was named later."
        yield from (f"A rule of the shadow erred: {fault}" for fault in self.faults)


def shadow_dict(state: State) -> dict[str, object] | None:
    """What a state says of its shadow so far, JSON-ready; ``None`` without one."""
    shadow = state.shadow
    if shadow is None:
        return None
    return {
        "name": shadow.name,
        "digest": shadow.digest,
        "since_position": shadow.position,
        "cycles": state.cycle - shadow.since_cycle,
        "differed_cycles": shadow.differed,
        "differences": [
            {"what": what, "by": "shadow" if by_shadow else "active", "jobs": shadow.counts[what, by_shadow]}
            for what in KINDS
            for by_shadow in (True, False)
            if (what, by_shadow) in shadow.counts
        ],
        "promised_micro_usd": shadow.promised_micro_usd,
        "faults": list(shadow.faults),
        "failure": shadow.failure or None,
    }


def shadow_sentence(state: State) -> str:
    """The same in a sentence; empty without a shadow."""
    shadow = state.shadow
    if shadow is None:
        return ""
    counts = [
        say(what, by_shadow, shadow.counts[what, by_shadow])
        for what in KINDS
        for by_shadow in (True, False)
        if (what, by_shadow) in shadow.counts
    ]
    cycles = state.cycle - shadow.since_cycle
    differed = f"decided otherwise in {shadow.differed:,} of {cycles:,} cycles since position {shadow.position:,}"
    listed = f": {'; '.join(counts)}" if counts else ""
    erred = f"; {len(shadow.faults):,} errors of its rules" if shadow.faults else ""
    failed = f"; it is asked no more, since {shadow.failure}" if shadow.failure else ""
    return f"{shadow.name} ({shadow.digest[:SHORT]}) {differed}{listed}{erred}{failed}"


def say(what: str, by_shadow: bool, count: int, by: str = "") -> str:
    """A difference in words, such as ``3 jobs would have been started``; ``by`` which rules."""
    jobs, were = f"{count:,} job{'' if count == 1 else 's'}", "was" if count == 1 else "were"
    done = KINDS.get(what, what) + by
    return f"{jobs} would have been {done}" if by_shadow else f"{jobs} {were} {done}, and would not have been"


def _listed(lead: str, counts: Mapping[str, int], end: str = "") -> str:
    """What was counted, the commonest first; empty for nothing."""
    if not counts:
        return ""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return lead + ", ".join(f"{name} ({count:,})" if len(ordered) > 1 else name for name, count in ordered) + end


_READ = {event.TYPE: event for event in (ShadowDecided, LeaseGranted)}


def shadow_reports(log: EventLog, progress: Progress | None = None) -> list[ShadowReport]:
    """A report for every stretch of a shadow, in order. Raises what the log's ``read`` raises."""
    found, reports, total = History(), list[ShadowReport](), log.head().position
    for record, change in changes(log):
        found.take(record, change)
        if found.shadow is not None and (not reports or reports[-1].stretch is not found.shadow):
            reports.append(ShadowReport(found.shadow))
        if reports and record.type in _READ:
            _take(reports, decode(record.type, record.payload), record.recorded_at_ms)
        if progress is not None and record.position % _STEP == 0:
            progress(record.position, 2 * total)
    _name(log, reports, progress, total)
    return reports


def _take(reports: list[ShadowReport], event: Event, at_ms: int) -> None:
    if isinstance(event, ShadowDecided):
        reports[-1].take(event, at_ms)
    elif isinstance(event, LeaseGranted):
        for report in reports:
            report.started(event.job, at_ms)


def _name(log: EventLog, reports: list[ShadowReport], progress: Progress | None, total: int) -> None:
    """Names and queues of the jobs that are told of."""
    wanted: dict[int, list[ShadowReport]] = {}
    for report in reports:
        for job in {job for difference in report.differences.values() for job in difference.jobs}:
            wanted.setdefault(job, []).append(report)
    if not wanted:
        return
    for record in log.read(min(wanted) - 1, max(wanted)):
        event = decode(record.type, record.payload) if record.position in wanted else None
        if isinstance(event, JobSubmitted):
            named = Named(record.position, event.spec.name, event.spec.queue)
            for report in wanted[record.position]:
                report.named[record.position] = named
        if progress is not None and record.position % _STEP == 0:
            progress(total + record.position, 2 * total)
