"""Figures of a stretch of log: waits, utilisation, bursts, money. Fed one event at a time, in the order of the log.

It reads events and the state that they fold into; it decides nothing and its figures never go back into a decision, so
floating point is allowed in what it prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from controlplane.audit.rule_faults import RuleFaults
from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    CapacityObserved,
    CapacityPhase,
    CapacityRequested,
    CycleDecided,
    Event,
    JobSubmitted,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeaseRevoked,
    NodeObserved,
    ServiceObserved,
    ServiceScaled,
    Ticked,
)
from controlplane.domain.ids import JobId, NodeId, job_label
from controlplane.domain.quantities import GPU, MILLI, MS_PER_HOUR
from controlplane.scheduler.state import Phase, State

SITES = ("home", "cloud")


@dataclass(slots=True)
class Waits:
    """How long jobs of one queue waited from submission to their first lease, in milliseconds."""

    started: list[int] = field(default_factory=list)
    waiting: int = 0

    def as_dict(self) -> dict[str, int]:
        """Counts and quantiles; all zero when nothing has started."""
        waits = sorted(self.started)
        return {
            "started": len(waits),
            "waiting": self.waiting,
            "mean_ms": sum(waits) // len(waits) if waits else 0,
            "p50_ms": _quantile(waits, 50),
            "p90_ms": _quantile(waits, 90),
            "p99_ms": _quantile(waits, 99),
            "max_ms": waits[-1] if waits else 0,
        }


@dataclass(slots=True)
class Served:
    """How a service did, over the observations of it that have an objective."""

    name: str
    signals: int = 0
    within: int = 0
    """Those whose 99th percentile was within the objective."""
    p99_max_ms: int = 0
    changes: int = 0
    """How often it was to have another number of replicas."""
    wanted_max: int = 0

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {
            "name": self.name,
            "signals": self.signals,
            "within_objective": self.within,
            "p99_max_ms": self.p99_max_ms,
            "changes": self.changes,
            "wanted_max": self.wanted_max,
        }


class Figures:
    """Accumulates. Call :meth:`see` after each event was folded."""

    def __init__(self) -> None:
        self.events = 0
        self.decisions = 0
        self.preemptions = 0
        self.waits: dict[str, Waits] = {}
        self._at_ms = 0
        self._first_ms: int | None = None
        self._used_gpu_ms: dict[str, int] = {"home": 0, "cloud": 0}
        self._there_gpu_ms: dict[str, int] = {"home": 0, "cloud": 0}
        self._there: dict[str, int] = {"home": 0, "cloud": 0}
        self._nodes: dict[NodeId, int] = {}
        """Node -> its milli-GPU, 0 for a lost one."""
        self._used: dict[str, int] = {"home": 0, "cloud": 0}
        self._held: dict[str, tuple[str, int]] = {}
        self.rule_faults = RuleFaults()
        self.charged_micro_usd = 0
        self.requests = 0
        self._services: dict[int, Served] = {}
        self._longest: tuple[int, int] | None = None
        """(wait in milliseconds, job) of the job that waited longest for its first lease; the first of equals."""

    def see(self, state: State, event: Event) -> None:
        """Take one event that was just folded into the state."""
        self.events += 1
        match event:
            case Ticked():
                self._pass_time(state.now_ms)
            case JobSubmitted():
                if self._first_ms is None:
                    self._first_ms = event.submitted_ms
            case LeaseGranted():
                self._granted(state, event)
            case LeaseObserved():
                # What held until then held until then, whenever the next cycle is.
                self._pass_time(event.observed_ms)
                self._changed(state, event.lease)
            case LeaseGrown():
                self._changed(state, event.lease)
            case NodeObserved():
                self._node(state, event)
            case CycleDecided():
                self.decisions += event.decisions
                self.rule_faults.see(state.position, event)
            case CapacityRequested():
                self.requests += 1
            case CapacityObserved(phase=CapacityPhase.RELEASED | CapacityPhase.FAILED):
                self._pass_time(event.observed_ms)
                self.charged_micro_usd += event.charged_micro_usd
            case LeaseRevoked(cause="preempted" | "reclaimed"):
                self.preemptions += 1
            case _:
                self._served(state, event)

    def _served(self, state: State, event: Event) -> None:
        if not isinstance(event, ServiceObserved | ServiceScaled):
            return
        lease = state.services.get(event.lease)
        spec = lease.job.cls.spec.service if lease is not None else None
        if lease is None or spec is None:
            return
        served = self._services.setdefault(lease.job.id, Served(lease.job.name))
        if isinstance(event, ServiceScaled):
            served.changes += 1
            served.wanted_max = max(served.wanted_max, event.wanted)
            return
        objective_ms = spec.objective_ms if event.objective_ms is None else event.objective_ms
        if event.p99_ms is not None and objective_ms is not None:
            served.signals += 1
            served.within += event.p99_ms <= objective_ms
            served.p99_max_ms = max(served.p99_max_ms, event.p99_ms)

    def _pass_time(self, now_ms: int) -> None:
        passed = now_ms - self._at_ms if self._first_ms is not None else 0
        self._at_ms = max(now_ms, self._at_ms)
        if passed > 0:
            for site in SITES:
                self._there_gpu_ms[site] += self._there[site] * passed
                self._used_gpu_ms[site] += self._used[site] * passed

    def _granted(self, state: State, event: LeaseGranted) -> None:
        lease = state.leases[event.lease]
        job = lease.job
        if event.attempt == 1:
            self.waits.setdefault(job.cls.spec.queue, Waits()).started.append(state.now_ms - job.submitted_ms)
            self._longest = _longer(self._longest, state.now_ms - job.submitted_ms, job.id)
        site = "cloud" if state.is_cloud(event.cluster) else "home"
        gpus = dict(job.cls.resources).get(GPU, 0)
        self._held[event.lease] = (site, gpus)
        self._used[site] += gpus

    def _changed(self, state: State, name: str) -> None:
        """It may be over, or have other members: who is told to leave uses its GPUs until it is gone."""
        lease, held = state.leases.get(name), self._held.get(name)
        if lease is None:
            self._ended(name)
        elif held is not None and lease.job.cls.is_elastic:
            gpus = sum(dict(seat.ask.resources).get(GPU, 0) for seat in lease.seats)
            self._used[held[0]] += gpus - held[1]
            self._held[name] = (held[0], gpus)

    def _ended(self, lease: str) -> None:
        held = self._held.pop(lease, None)
        if held is not None:
            self._used[held[0]] -= held[1]

    def _node(self, state: State, event: NodeObserved) -> None:
        site = "cloud" if state.is_cloud(event.cluster) else "home"
        gpus = event.shape.gpus * MILLI if event.state is not NodeState.LOST else 0
        at = NodeId(event.cluster, event.node)
        self._there[site] += gpus - self._nodes.get(at, 0)
        self._nodes[at] = gpus

    def summary(self, state: State) -> dict[str, object]:
        """All figures at the present end, JSON-ready. GPU hours are rounded down to thousandths."""
        for waits in self.waits.values():
            waits.waiting = 0
        running = waiting = 0
        longest = self._longest
        for job in state.jobs.values():
            if job.phase in (Phase.PLACED, Phase.RUNNING):
                running += 1
            else:
                waiting += 1
                self.waits.setdefault(job.cls.spec.queue, Waits()).waiting += 1
                longest = _longer(longest, state.now_ms - job.submitted_ms, job.id)
        counts = state.counts
        return {
            "jobs": {
                "submitted": counts.submitted,
                "running": running,
                "waiting": waiting,
                "finished": counts.finished,
                "failed": counts.failed,
                "cancelled": counts.cancelled,
                "expired": counts.expired,
                "refused": counts.refused,
            },
            "events": self.events,
            "decisions": self.decisions,
            "placements": counts.placements,
            "preemptions": self.preemptions,
            "utilisation": {site: _ratio(self._used_gpu_ms[site], self._there_gpu_ms[site]) for site in self._used},
            "waits": {queue: self.waits[queue].as_dict() for queue in sorted(self.waits)},
            "longest_wait": {"job": job_label(JobId(longest[1])), "wait_ms": longest[0]} if longest else None,
            "burst": {
                "gpu_hours": round(self._used_gpu_ms["cloud"] / (MILLI * MS_PER_HOUR), 3),
                "rented_gpu_hours": round(self._there_gpu_ms["cloud"] / (MILLI * MS_PER_HOUR), 3),
                "micro_usd": self.charged_micro_usd,
                "requests": self.requests,
                "placements": counts.burst_placements,
            },
            "rule_faults": [fault.as_dict() for fault in self.rule_faults],
            "services": {job_label(JobId(id_)): self._services[id_].as_dict() for id_ in sorted(self._services)},
            "over_promised": [promise.model_dump() for promise in state.over_promised],
            "allocated_gpu_milli": state.used[0].get(GPU, 0),
            "capacity_gpu_milli": state.capacity.get(GPU, 0),
        }


def _longer(longest: tuple[int, int] | None, wait_ms: int, job: int) -> tuple[int, int]:
    return (wait_ms, job) if longest is None or wait_ms > longest[0] else longest


def _quantile(ordered: list[int], percent: int) -> int:
    """The smallest value that at least so many per cent do not exceed; 0 of nothing."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def _ratio(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0
