"""What ``policy diff`` answers: the model of its report, and how its figures come of two ledgers.

The object of ``--json`` is :meth:`DiffReport.as_dict`; docs/policy-diff.md says what each key means. Words, pages and
thresholds are made of the same object and compute nothing of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise, zip_longest

import numpy as np
from numpy.typing import NDArray

from controlplane.audit.changes import KINDS
from controlplane.audit.ledger import SITES, JobLine, Ledger, Taken
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.quantities import MILLI, MS_PER_HOUR

HOWS: dict[str, str] = {
    "otherwise": "at the same instant, but something else",
    "earlier": "earlier than in the log",
    "later": "later than in the log",
    "only-recorded": "only in the log",
    "only-candidate": "only under the candidate",
}
"""How a decision can differ -> what that means."""
ENDS = ("finished", "failed", "cancelled", "expired", "refused")
NAMED_JOBS = 10
"""So many of the jobs that gain most, and of those that lose most, are named."""
BUCKETS = 120
"""Points of a curve over the stretch: about as many as a plot on a page can show apart."""
ALL = "(all)"
"""Stands for all queues together. No queue can be called so."""


@dataclass(frozen=True, slots=True)
class Waits:
    """How long jobs of one queue waited from their submission to their first start: those that started in the stretch,
    and those that still wait at the end of the log, so far. Who gave up or was refused is counted only."""

    jobs: int
    started: int
    waiting: int
    gave_up: int
    """Expired, cancelled or refused without a start."""
    mean_ms: int
    p50_ms: int
    p95_ms: int
    max_ms: int


@dataclass(frozen=True, slots=True)
class Share:
    """What the jobs of one queue held."""

    gpu_hours: float
    part: float
    """Of the GPU time of all nodes at home (of all nodes, where there are none); work in the cloud counts, too."""


@dataclass(frozen=True, slots=True)
class Side:
    """The figures of one course."""

    decisions: int
    cycles: int
    jobs: Mapping[str, int]
    """By how they ended, or ``running`` and ``waiting``; and all of them, as ``seen``."""
    placements: int
    preemptions: int
    shrinkages: int
    """Members of elastic gangs, and replicas of services, that had to leave for others."""
    waits: Mapping[str, Waits]
    """By queue, and of all as :data:`ALL`."""
    shares: Mapping[str, Share]
    """By queue."""
    utilisation: Mapping[str, float]
    """By site."""
    burst_gpu_hours: float
    rented_gpu_hours: float
    micro_usd: int
    requests: int
    faults: tuple[str, ...]
    """Rules that erred, one sentence each."""

    def as_dict(self) -> dict[str, object]:
        """JSON-ready; its keys are those of the other commands where they have the same meaning."""
        plain = asdict(self)
        hours, rented = plain.pop("burst_gpu_hours"), plain.pop("rented_gpu_hours")
        money, requests = plain.pop("micro_usd"), plain.pop("requests")
        burst = {"gpu_hours": hours, "rented_gpu_hours": rented, "micro_usd": money, "requests": requests}
        return {**plain, "faults": list(self.faults), "burst": burst}


@dataclass(frozen=True, slots=True)
class Policy:
    """A bundle: its name and digest, and from which position of the log on it decided."""

    name: str
    digest: str
    position: int | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision of the first cycle that differs."""

    type: str
    kind: str
    job: str | None
    rule: str | None
    """``file:line``."""
    sentence: str
    event: dict[str, object]
    """The event as the log has it, or would."""
    position: int | None = None
    """In the log."""


@dataclass(frozen=True, slots=True)
class Because:
    """A decision point at which the bundles differ, with the first question that they answer differently."""

    point: str
    about: str
    recorded_answer: str | None
    recorded_rule: str | None
    candidate_answer: str | None
    candidate_rule: str | None


@dataclass(frozen=True, slots=True)
class FirstChange:
    """The first cycle that the candidate decides otherwise. Up to there everything is exact."""

    position: int
    """Of the first decision of the log that the candidate does not make; of the cycle's tick, where it makes all."""
    tick: int
    cycle: int
    at_ms: int
    is_extra: bool
    """Whether the log has no cycle at that instant, and the candidate has one due."""
    recorded: Decided | None
    """``None``: the log has nothing in its place."""
    candidate: Decided | None
    others: int
    """Decisions of the same cycle that differ besides."""
    policy: Policy | None
    """The bundle that decided in the log."""
    because: tuple[Because, ...]
    is_joint: bool
    """Only all of these points together make the difference."""
    note: str
    """What else there is to say of the cause; empty for nothing."""


@dataclass(frozen=True, slots=True)
class Change:
    """So many decisions of a kind differ in one way."""

    kind: str
    how: str
    count: int


@dataclass(frozen=True, slots=True)
class ByRule:
    """So many decisions of a kind differ in one way, because of the same lines. Of a placement that comes later than in
    the log, rule and reason are those for which the job waited on under the candidate; of one that comes earlier, those
    for which it waited in the log."""

    kind: str
    how: str
    recorded_rule: str | None
    candidate_rule: str | None
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job whose wait is another one. A job that never starts waits to the end of the log."""

    job: str
    name: str
    queue: str
    recorded_wait_ms: int
    candidate_wait_ms: int
    recorded_started: bool
    candidate_started: bool

    @property
    def later_ms(self) -> int:
        """How much longer it waits; negative if it starts sooner."""
        return self.candidate_wait_ms - self.recorded_wait_ms


@dataclass(frozen=True, slots=True)
class Jobs:
    """Whose wait changes."""

    sooner: int
    later: int
    only_recorded: int
    """Jobs that start in the log and never under the candidate."""
    only_candidate: int
    gain: tuple[JobChange, ...]
    """Those that gain most, first the one that gains most."""
    lose: tuple[JobChange, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """Means over equal parts of the stretch."""

    from_ms: int
    step_ms: float
    gpus: Mapping[str, Sequence[float]]
    """By site: GPUs that are held."""
    waiting: Sequence[float]
    """Jobs that wait."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one threshold."""

    threshold: str
    holds: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class DiffReport:
    """See the module."""

    candidate: Policy
    policies: tuple[Policy, ...]
    """Those that decided in the log, in order."""
    position: int
    digest: str
    """Of the log's head."""
    start: int
    """The last position before the stretch."""
    from_ms: int
    end_ms: int
    exact_cycles: int
    exact_decisions: int
    other_rules: int
    """Decisions of the exact part that are the same although another line made them, or other words tell of them."""
    exact_until_ms: int
    """The instant of the first change; the end of the log if there is none."""
    runtimes: Mapping[str, int]
    """Where the run times of the jobs that were simulated come from: how many of each."""
    grid_ms: int
    first_change: FirstChange | None
    recorded: Side
    under_candidate: Side
    compared: int
    """Decisions of the log and of the candidate, those of the same kind about the same job laid side by side."""
    changes: tuple[Change, ...]
    by_rule: tuple[ByRule, ...]
    jobs: Jobs
    recorded_curves: Curves
    candidate_curves: Curves
    notes: tuple[str, ...]
    """What a reader must know about this answer."""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def changed(self) -> int:
        """Decisions that differ, in all."""
        return sum(change.count for change in self.changes)

    @property
    def ok(self) -> bool:
        """Whether no threshold holds."""
        return not any(verdict.holds for verdict in self.verdicts)

    def as_dict(self) -> dict[str, object]:
        """The object of ``--json``."""
        return {
            "ok": self.ok,
            "position": self.position,
            "digest": self.digest,
            "since": self.start,
            "from_ms": self.from_ms,
            "end_ms": self.end_ms,
            "candidate": asdict(self.candidate),
            "policies": [asdict(policy) for policy in self.policies],
            "exact": {
                "cycles": self.exact_cycles,
                "decisions": self.exact_decisions,
                "same_by_other_rules": self.other_rules,
                "until_ms": self.exact_until_ms,
                "whole": self.first_change is None,
            },
            "simulated": {"runtimes": dict(self.runtimes), "grid_ms": self.grid_ms},
            "first_change": asdict(self.first_change) if self.first_change is not None else None,
            "compared": self.compared,
            "changed": self.changed,
            "changes": [asdict(change) for change in self.changes],
            "by_rule": [asdict(row) for row in self.by_rule],
            "courses": {"recorded": self.recorded.as_dict(), "candidate": self.under_candidate.as_dict()},
            "jobs": {
                **asdict(self.jobs),
                "gain": [_job_dict(change) for change in self.jobs.gain],
                "lose": [_job_dict(change) for change in self.jobs.lose],
            },
            "curves": {"recorded": asdict(self.recorded_curves), "candidate": asdict(self.candidate_curves)},
            "notes": list(self.notes),
            "fail_if": [asdict(verdict) for verdict in self.verdicts],
        }


def _job_dict(change: JobChange) -> dict[str, object]:
    return {**asdict(change), "later_ms": change.later_ms}


# --- the figures of one course ----------------------------------------------------------------------------------------


def side_of(ledger: Ledger, there_gpu_ms: int) -> Side:
    """The figures of a ledger. ``there_gpu_ms``: the GPU time of which shares are a part, in milli-GPU times ms."""
    held = ledger.held_gpu_ms
    queues = sorted({line.queue for line in ledger.lines.values()} | set(held))
    in_use = {site: sum(of_queue[site] for of_queue in held.values()) for site in SITES}
    return Side(
        decisions=ledger.decisions,
        cycles=ledger.cycles,
        jobs=_jobs_by_end(ledger),
        placements=ledger.placements,
        preemptions=ledger.preemptions,
        shrinkages=ledger.shrinkages,
        waits=_waits(ledger, queues),
        shares={queue: _share(sum(held.get(queue, {}).values()), there_gpu_ms) for queue in queues},
        utilisation={site: _ratio(in_use[site], ledger.there_gpu_ms[site]) for site in SITES},
        burst_gpu_hours=_hours(in_use["cloud"]),
        rented_gpu_hours=_hours(ledger.there_gpu_ms["cloud"]),
        micro_usd=ledger.charged_micro_usd,
        requests=ledger.requests,
        faults=tuple(sorted(ledger.faults)),
    )


def _share(held_gpu_ms: int, there_gpu_ms: int) -> Share:
    return Share(_hours(held_gpu_ms), _ratio(held_gpu_ms, there_gpu_ms))


def _hours(gpu_ms: int) -> float:
    return round(gpu_ms / (MILLI * MS_PER_HOUR), 3)


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 6) if whole else 0.0


def _jobs_by_end(ledger: Ledger) -> dict[str, int]:
    ends = {"seen": len(ledger.lines), **dict.fromkeys((*ENDS, "running", "waiting"), 0)}
    for line in ledger.lines.values():
        ends[line.outcome or ("running" if line.started_ms is not None or line.is_old else "waiting")] += 1
    return ends


def _waits(ledger: Ledger, queues: Sequence[str]) -> dict[str, Waits]:
    by_queue: dict[str, list[JobLine]] = {queue: [] for queue in queues}
    for line in ledger.lines.values():
        if not line.is_old:
            by_queue[line.queue].append(line)
    waits = {queue: _waits_of(lines, ledger.end_ms) for queue, lines in by_queue.items()}
    return {**waits, ALL: _waits_of([line for lines in by_queue.values() for line in lines], ledger.end_ms)}


def _waits_of(lines: Sequence[JobLine], end_ms: int) -> Waits:
    waited = sorted(line.waited_ms(end_ms) for line in lines if not line.has_given_up)
    started = sum(1 for line in lines if line.started_ms is not None)
    return Waits(
        jobs=len(lines),
        started=started,
        waiting=len(waited) - started,
        gave_up=len(lines) - len(waited),
        mean_ms=sum(waited) // len(waited) if waited else 0,
        p50_ms=_quantile(waited, 50),
        p95_ms=_quantile(waited, 95),
        max_ms=waited[-1] if waited else 0,
    )


def _quantile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that at least so many per cent do not exceed; 0 of nothing."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def curves_of(ledger: Ledger) -> Curves:
    """How much was held, and how many waited, over the stretch."""
    waiting = array("q")
    for line in ledger.lines.values():
        if not line.is_old:
            until_ms = line.started_ms if line.started_ms is not None else line.over_ms
            waiting.extend((line.submitted_ms, ledger.end_ms if until_ms is None else until_ms, MILLI))
    step_ms = max(1, ledger.end_ms - ledger.from_ms) / BUCKETS
    edges = ledger.from_ms + step_ms * np.arange(BUCKETS + 1, dtype=np.float64)
    gpus = {site: _means(ledger.spans[site], edges, step_ms) for site in SITES}
    return Curves(ledger.from_ms, step_ms, gpus, _means(waiting, edges, step_ms))


def _means(spans: array[int], edges: NDArray[np.floating], step_ms: float) -> list[float]:
    """The mean of what spans of (from, until, thousandths) add up to, between each two edges."""
    if not spans:
        return [0.0] * (len(edges) - 1)
    begin, end, amount = np.array(spans, dtype=np.float64).reshape(-1, 3).T
    length = end - begin
    passed = [float((amount * np.clip(edge - begin, 0.0, length)).sum()) for edge in edges]
    return [round((after - before) / (step_ms * MILLI), 3) for before, after in pairwise(passed)]


# --- two courses side by side -----------------------------------------------------------------------------------------


def changes_of(recorded: Ledger, candidate: Ledger) -> tuple[int, tuple[Change, ...], tuple[ByRule, ...]]:
    """How many decisions were compared, and those that differ: by kind, and by the rules behind them."""
    compared = 0
    counts: dict[tuple[str, str], int] = {}
    rows: dict[tuple[str, str, str | None, str | None, str], int] = {}
    for kind in KINDS:
        for job, mine, theirs in _pairs(recorded.taken.get(kind, {}), candidate.taken.get(kind, {})):
            compared += 1
            how = _how(mine, theirs)
            if how is None:
                continue
            counts[kind, how] = counts.get((kind, how), 0) + 1
            because = _because(kind, how, mine, theirs, recorded.lines.get(job), candidate.lines.get(job))
            rows[kind, how, *because] = rows.get((kind, how, *because), 0) + 1
    changes = tuple(Change(kind, how, counts[kind, how]) for kind in KINDS for how in HOWS if (kind, how) in counts)
    by_rule = [ByRule(*key, count) for key, count in rows.items()]
    by_rule.sort(key=lambda row: (-row.count, row.kind, row.how, row.recorded_rule or "", row.candidate_rule or ""))
    return compared, changes, tuple(by_rule)


def _pairs(
    recorded: Mapping[int, Sequence[Taken]], candidate: Mapping[int, Sequence[Taken]]
) -> Iterator[tuple[int, Taken | None, Taken | None]]:
    """By job: its first decision here and its first there, its second, and so on."""
    for job in sorted(recorded.keys() | candidate.keys()):
        for mine, theirs in zip_longest(recorded.get(job, ()), candidate.get(job, ())):
            yield job, mine, theirs


def _how(recorded: Taken | None, candidate: Taken | None) -> str | None:
    """How two decisions differ; ``None`` if they do not."""
    if recorded is None or candidate is None:
        return "only-candidate" if recorded is None else "only-recorded"
    if recorded.at_ms != candidate.at_ms:
        return "earlier" if candidate.at_ms < recorded.at_ms else "later"
    return None if recorded.says == candidate.says else "otherwise"


def _because(
    kind: str,
    how: str,
    recorded: Taken | None,
    candidate: Taken | None,
    recorded_line: JobLine | None,
    candidate_line: JobLine | None,
) -> tuple[str | None, str | None, str]:
    """(the recorded rule, the candidate's rule, the reason for which a job waited)."""
    if kind != "placed" or how == "otherwise":
        return recorded.rule if recorded else None, candidate.rule if candidate else None, ""
    if how in ("later", "only-recorded"):
        reason, rule = _kept(candidate, candidate_line)
        return None, rule, reason
    reason, rule = _kept(recorded, recorded_line)
    return rule, None, reason


def _kept(taken: Taken | None, line: JobLine | None) -> tuple[str, str | None]:
    """Why a job waited until it was placed, or was not placed at all."""
    if taken is not None:
        return taken.waited_for, taken.held_by
    return line.kept_by if line is not None else ("", None)


def jobs_of(recorded: Ledger, candidate: Ledger) -> Jobs:
    """Whose wait is another one. Who was refused on either side has none."""
    gain: list[JobChange] = []
    lose: list[JobChange] = []
    only_recorded = only_candidate = 0
    for line in recorded.lines.values():
        other = candidate.lines[line.id]
        if line.is_old:
            continue
        only_recorded += line.started_ms is not None and other.started_ms is None
        only_candidate += line.started_ms is None and other.started_ms is not None
        if line.started_ms == other.started_ms or "refused" in (line.outcome, other.outcome):
            continue
        change = _job_change(line, other, recorded.end_ms)
        (lose if change.later_ms > 0 else gain).append(change)
    gain.sort(key=lambda change: change.later_ms)  # of equals the earlier job first: sorting is stable
    lose.sort(key=lambda change: -change.later_ms)
    first = tuple(gain[:NAMED_JOBS]), tuple(lose[:NAMED_JOBS])
    return Jobs(len(gain), len(lose), only_recorded, only_candidate, *first)


def _job_change(line: JobLine, other: JobLine, end_ms: int) -> JobChange:
    return JobChange(
        job=job_label(JobId(line.id)),
        name=line.name,
        queue=line.queue,
        recorded_wait_ms=line.waited_ms(end_ms),
        candidate_wait_ms=other.waited_ms(end_ms),
        recorded_started=line.started_ms is not None,
        candidate_started=other.started_ms is not None,
    )
