"""What a stretch of history came to: who waited how long, who held how many GPUs, what was rented, and every decision.

Fed one event at a time, right after it was folded, in the order of the log; two courses of one history have a ledger
each, so that their figures are taken in the same way. It decides nothing and its figures never go back into a decision.
GPU time is exact, in thousandths of a GPU times milliseconds.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.audit.changes import gist_of, rule_of
from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    Author,
    CapacityObserved,
    CapacityPhase,
    CapacityRequested,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobSubmitted,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    NodeObserved,
    ShadowDecided,
)
from controlplane.domain.ids import LeaseId, NodeId, job_of_lease
from controlplane.domain.quantities import GPU, MILLI, cost_micro_usd
from controlplane.domain.reasons import Reason
from controlplane.scheduler.state import EVICTED, Job, State

SITES = ("home", "cloud")


class Taken(NamedTuple):
    """One decision: when, what it says, and why."""

    at_ms: int
    says: str
    rule: str | None
    """``file:line``."""
    waited_for: str = ""
    """For a placement: the reason for which jobs like it last waited, as a slug; empty if they did not."""
    held_by: str | None = None
    """The rule behind that reason, where it has one."""


@dataclass(slots=True, eq=False)
class JobLine:
    """What became of one job. Instants are of the log's clock."""

    id: int
    name: str
    queue: str
    submitted_ms: int
    started_ms: int | None = None
    """Its first start."""
    over_ms: int | None = None
    outcome: str = ""
    """finished, failed, cancelled, expired or refused, once it is over."""
    is_old: bool = False
    """It had started before the stretch began: its wait is not of this stretch."""
    kept_by: tuple[str, str | None] = ("", None)
    """Of a job that never started: the reason for which it or jobs like it last waited, or were turned away, as a slug,
    and the rule behind it."""

    @property
    def has_given_up(self) -> bool:
        """Whether it is over without ever having started."""
        return self.over_ms is not None and self.started_ms is None

    def waited_ms(self, end_ms: int) -> int:
        """From its submission to its first start; of one that never started, to the end of the log."""
        return (end_ms if self.started_ms is None else self.started_ms) - self.submitted_ms


@dataclass(slots=True)
class _Held:
    """GPUs that a lease holds."""

    queue: str
    site: str
    gpus_milli: int
    since_ms: int


@dataclass(slots=True)
class _Rent:
    """The nodes of one request that are there, each since when; at so many micro-dollars an hour."""

    price: int
    since_ms: dict[NodeId, int] = field(default_factory=dict)


class Ledger:
    """See the module. The stretch begins at ``from_ms``, with what the state holds by then; the log ends at
    ``end_ms``. Call :meth:`close` at the end."""

    def __init__(self, state: State, from_ms: int, end_ms: int) -> None:
        self.from_ms, self.end_ms = from_ms, end_ms
        self.lines: dict[int, JobLine] = {}
        self.taken: dict[str, dict[int, list[Taken]]] = {}
        """By kind of decision and by job, in order."""
        self.decisions = self.cycles = self.placements = self.preemptions = self.shrinkages = self.requests = 0
        self.faults: dict[str, None] = {}
        """Rules that erred, one sentence each."""
        self.charged_micro_usd = 0
        self.held_gpu_ms: dict[str, dict[str, int]] = {}
        """By queue and site: milli-GPU times milliseconds."""
        self.there_gpu_ms = dict.fromkeys(SITES, 0)
        self.spans: dict[str, array[int]] = {site: array("q") for site in SITES}
        """By site: from, until and milli-GPU of everything that was held, one after the other."""
        self._held: dict[str, _Held] = {}
        self._there = dict.fromkeys(SITES, 0)
        self._there_since_ms = from_ms
        self._nodes: dict[NodeId, int] = {}
        self._rents: dict[str, _Rent] = {}
        self._reasons: dict[int, tuple[str, str | None]] = {}
        """By class of jobs: why they last waited, and by which rule."""
        self._take_over(state)

    def _take_over(self, state: State) -> None:
        for job in state.jobs.values():
            self._open(job).is_old = job.attempts > 0
        for node in state.nodes.values():
            if node.state is not NodeState.LOST:
                self._count_node(state, node.id, node.build.gpus, node.request, self.from_ms)
        for lease in state.leases:
            self._hold(state, lease, self.from_ms)

    def _open(self, job: Job) -> JobLine:
        line = self.lines[job.id] = JobLine(job.id, job.name, job.cls.spec.queue, job.submitted_ms)
        return line

    # --- one event ---------------------------------------------------------------------------------------------------

    def see(self, state: State, event: Event, at_ms: int) -> None:
        """Take one event that was just folded into the state, and was recorded at that instant."""
        if event.AUTHOR is Author.DECIDED:
            self._decided(state, event, at_ms)
            return
        match event:
            case LeaseObserved():
                self._observed(state, event)
            case JobSubmitted():
                self._open(next(reversed(state.jobs.values())))
            case NodeObserved():
                gpus = event.shape.gpus if event.state is not NodeState.LOST else 0
                self._count_node(state, NodeId(event.cluster, event.node), gpus, event.request, at_ms)
            case CapacityObserved(phase=CapacityPhase.RELEASED | CapacityPhase.FAILED):
                self.charged_micro_usd += event.charged_micro_usd
                self._rents.pop(event.request, None)
            case _:
                pass

    def _decided(self, state: State, event: Event, at_ms: int) -> None:
        match event:
            case CycleDecided():
                self.cycles += 1
                self.faults.update(dict.fromkeys(event.faults))
                return
            case ShadowDecided():  # another bundle's
                return
            case LeaseGranted():
                self._granted(state, event, at_ms)
                return
            case LeaseGrown():
                self._let_go(event.lease, at_ms)
                self._hold(state, event.lease, at_ms)
            case LeaseRevoked():
                self.preemptions += event.cause in EVICTED
            case LeaseShrunk() if event.cause in EVICTED:
                self.shrinkages += len(event.members)
            case JobRefused():
                self._over(event.job, "refused", at_ms)
                self.lines[event.job].kept_by = (Reason(event.reason).slug, event.rule)
            case JobEnded():
                self._over(event.job, event.outcome, at_ms)
                if event.reason is not None:
                    self.lines[event.job].kept_by = (Reason(event.reason).slug, None)
            case CapacityRequested():
                self.requests += 1
            case JobsWaiting(head=head) if head in state.jobs:
                self._reasons[state.jobs[head].cls.index] = (Reason(event.reason).slug, event.rule)
            case _:
                pass
        self._note(state, event, at_ms)

    def _note(self, state: State, event: Event, at_ms: int, waited_for: str = "", held_by: str | None = None) -> None:
        gist = gist_of(event, state)
        assert gist is not None
        self.decisions += 1
        of_kind = self.taken.setdefault(gist.kind, {})
        of_kind.setdefault(gist.job, []).append(Taken(at_ms, gist.says, rule_of(event), waited_for, held_by))

    def _granted(self, state: State, event: LeaseGranted, at_ms: int) -> None:
        self.placements += 1
        self._hold(state, event.lease, at_ms)
        line, job = self.lines[event.job], state.jobs[event.job]
        if line.started_ms is None:
            line.started_ms = at_ms
        self._note(state, event, at_ms, *self._reasons.get(job.cls.index, ("", None)))

    def _over(self, job: int, outcome: str, at_ms: int) -> None:
        line = self.lines[job]
        line.over_ms, line.outcome = at_ms, outcome

    def _observed(self, state: State, event: LeaseObserved) -> None:
        held = self._held.get(event.lease)
        if held is None:
            return
        if event.phase is LeasePhase.RESIZED:
            self._let_go(event.lease, event.observed_ms)
            self._hold(state, event.lease, event.observed_ms)
        elif event.lease not in state.leases:
            self._let_go(event.lease, event.observed_ms)
            if event.phase is LeasePhase.FINISHED:
                self._over(job_of_lease(LeaseId(event.lease)), "finished", event.observed_ms)

    # --- what is held and what is there ------------------------------------------------------------------------------

    def _hold(self, state: State, name: str, at_ms: int) -> None:
        lease = state.leases[name]
        gpus = sum(dict(seat.ask.resources).get(GPU, 0) for seat in lease.seats)
        site = SITES[state.is_cloud(lease.cluster)]
        self._held[name] = _Held(lease.job.cls.spec.queue, site, gpus, max(at_ms, self.from_ms))

    def _let_go(self, name: str, at_ms: int) -> None:
        held = self._held.pop(name)
        length_ms = at_ms - held.since_ms
        if length_ms <= 0 or held.gpus_milli == 0:
            return
        of_queue = self.held_gpu_ms.setdefault(held.queue, dict.fromkeys(SITES, 0))
        of_queue[held.site] += held.gpus_milli * length_ms
        self.spans[held.site].extend((held.since_ms, at_ms, held.gpus_milli))

    def _count_node(self, state: State, at: NodeId, gpus: int, request: str | None, at_ms: int) -> None:
        self._settle_there(at_ms)
        site = SITES[state.is_cloud(at.cluster)]
        self._there[site] += gpus * MILLI - self._nodes.get(at, 0)
        self._nodes[at] = gpus * MILLI
        if request is None or request not in state.requests:
            return
        asked = state.requests[request]
        rent = self._rents.get(request)
        if rent is None:
            offers = state.clusters[asked.cluster].offers
            price = next((offer.price_micro_usd_per_hour for offer in offers if offer.name == asked.offer), 0)
            rent = self._rents[request] = _Rent(price)
        if gpus:
            rent.since_ms.setdefault(at, at_ms)

    def _settle_there(self, at_ms: int) -> None:
        passed_ms = at_ms - self._there_since_ms
        if passed_ms > 0:
            for site in SITES:
                self.there_gpu_ms[site] += self._there[site] * passed_ms
            self._there_since_ms = at_ms

    def close(self, state: State) -> None:
        """The log is over: what is held and rented counts up to there; rent that has not ended, at its price so far."""
        for job in state.jobs.values():
            if job.attempts == 0:
                self.lines[job.id].kept_by = self._reasons.get(job.cls.index, ("", None))
        self._settle_there(self.end_ms)
        for name in list(self._held):
            self._let_go(name, self.end_ms)
        for rent in self._rents.values():
            length_ms = sum(self.end_ms - since_ms for since_ms in rent.since_ms.values())
            self.charged_micro_usd += cost_micro_usd(rent.price, length_ms)
