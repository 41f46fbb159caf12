"""What a log shows of its clusters: how long jobs really run, and how long launching, stopping and renting take.

Learned in one pass over the whole log, so that a course which the log did not take can be simulated with what it shows.
Where it shows nothing, a stated rule stands in; :class:`Runtime` says which.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from math import gcd
from typing import NamedTuple

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    CapacityObserved,
    CapacityPhase,
    CapacityReleased,
    CapacityRequested,
    Event,
    JobSubmitted,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    NodeObserved,
    Ticked,
)
from controlplane.domain.quantities import MS_PER_HOUR
from controlplane.scheduler.state import Job, State

STEP_MS = 1_000
"""Of a clock of which nothing is known: what simulations take by default."""
_BY_ITSELF = (LeasePhase.FINISHED, LeasePhase.FAILED)
_GOES_ON = (LeasePhase.LAUNCHING, LeasePhase.RUNNING, LeasePhase.RESIZED)


class Runtime(StrEnum):
    """Where the run time of a job comes from, the first that there is."""

    OBSERVED = "observed"
    """The job ended by itself in the log: its first start there counts for its first here, and so on, the last for all
    that come after."""
    ESTIMATE = "estimate"
    """Its own estimate, if it did not run longer than that in the log."""
    QUEUE = "queue"
    """The median of those jobs of its queue that ran longer than it did in the log."""
    NEVER = "never"
    """Nothing is known, or it is a service: it holds its place to the end of the log."""


class Run(NamedTuple):
    """How a start of a job ended by itself."""

    position: int
    """Where the log says so."""
    length_ms: int
    phase: LeasePhase


@dataclass(slots=True, eq=False)
class SeenLease:
    """What the log says of one lease. Instants are of the log's clock."""

    job: int
    queue: str
    cluster: str
    granted_ms: int
    started_ms: int | None = None
    revoked_ms: int | None = None


@dataclass(slots=True, eq=False)
class SeenRequest:
    """What the log says of one request for capacity."""

    cluster: str
    offer: str
    price_micro_usd_per_hour: int
    asked_ms: int
    joined: dict[str, int] = field(default_factory=dict)
    """Node -> when it was there."""
    failed_ms: int | None = None
    released_ms: int | None = None
    """When it was given back."""


class Observed:
    """See the module. Call :meth:`see` for each event of the log, then :meth:`close`."""

    def __init__(self) -> None:
        self.leases: dict[str, SeenLease] = {}
        self.requests: dict[str, SeenRequest] = {}
        self.grid_ms = 0
        """The step of the log's clock: all ticks are at multiples of it. Where no submission was ever kept waiting by
        it, that says nothing, and the step is no longer than :data:`STEP_MS`."""
        self._is_kept_waiting = False
        self._live: dict[str, SeenLease] = {}
        self._runs: dict[int, list[Run]] = {}
        self._ran_ms: dict[int, int] = {}
        """Job -> the longest that it ran without ending by itself."""
        self._launches: dict[str, list[int]] = {}
        self._launch_of: dict[tuple[int, str], int] = {}
        self._stops: dict[str, list[int]] = {}
        self._leads: dict[tuple[str, str], list[int]] = {}
        self._releases: dict[str, list[int]] = {}
        self._afters: dict[str, list[int]] = {}
        self._failing: dict[tuple[str, str], None] = {}
        self._of_queue: dict[str, list[int]] = {}

    def see(self, state: State, position: int, event: Event, at_ms: int) -> None:
        """Take one event that was just folded into the state, and was recorded at that instant."""
        match event:
            case LeaseObserved():
                self._lease_observed(position, event)
            case LeaseGranted():
                queue = state.jobs[event.job].cls.spec.queue
                self._live[event.lease] = SeenLease(event.job, queue, event.cluster, at_ms)
                self.leases[event.lease] = self._live[event.lease]
            case JobSubmitted():
                self._is_kept_waiting |= event.submitted_ms < at_ms
            case Ticked():
                self.grid_ms = gcd(self.grid_ms, event.now_ms)
            case LeaseRevoked() if event.lease in self._live:
                self._live[event.lease].revoked_ms = at_ms
            case CapacityRequested():
                offers = state.clusters[event.cluster].offers
                price = next(offer.price_micro_usd_per_hour for offer in offers if offer.name == event.offer)
                self.requests[event.request] = SeenRequest(event.cluster, event.offer, price, at_ms)
            case CapacityReleased() if event.request in self.requests:
                self.requests[event.request].released_ms = at_ms
            case CapacityObserved() if event.request in self.requests:
                self._capacity_observed(self.requests[event.request], event, at_ms)
            case NodeObserved(request=str(request)) if request in self.requests:
                self._rented_observed(self.requests[request], event, at_ms)
            case _:
                pass

    def _lease_observed(self, position: int, event: LeaseObserved) -> None:
        seen = self._live.get(event.lease)
        if seen is None:
            return
        if event.phase is LeasePhase.RUNNING and seen.started_ms is None:
            seen.started_ms = event.observed_ms
            delay_ms = max(0, event.observed_ms - seen.granted_ms)
            self._launches.setdefault(seen.cluster, []).append(delay_ms)
            self._launch_of[seen.job, seen.cluster] = delay_ms
        if event.phase in _GOES_ON:
            return
        del self._live[event.lease]
        ran_ms = _length(seen, event.observed_ms)
        if event.phase in _BY_ITSELF:
            self._runs.setdefault(seen.job, []).append(Run(position, ran_ms, event.phase))
            self._of_queue.setdefault(seen.queue, []).append(ran_ms)
            return
        self._ran_ms[seen.job] = max(ran_ms, self._ran_ms.get(seen.job, 0))
        if seen.revoked_ms is not None:
            self._stops.setdefault(seen.cluster, []).append(max(0, event.observed_ms - seen.revoked_ms))

    def _capacity_observed(self, seen: SeenRequest, event: CapacityObserved, at_ms: int) -> None:
        if event.phase is CapacityPhase.FAILED:
            seen.failed_ms = at_ms
            self._failing[seen.cluster, seen.offer] = None
        elif event.phase is CapacityPhase.RELEASED and seen.released_ms is not None:
            self._releases.setdefault(seen.cluster, []).append(max(0, at_ms - seen.released_ms))
            if seen.joined and seen.price_micro_usd_per_hour:
                billed_ms = event.charged_micro_usd * MS_PER_HOUR // seen.price_micro_usd_per_hour
                there_ms = sum(seen.released_ms - joined_ms for joined_ms in seen.joined.values())
                self._afters.setdefault(seen.cluster, []).append((billed_ms - there_ms) // len(seen.joined))

    def _rented_observed(self, seen: SeenRequest, event: NodeObserved, at_ms: int) -> None:
        if event.state is not NodeState.LOST and event.node not in seen.joined:
            seen.joined[event.node] = at_ms
            self._leads.setdefault((seen.cluster, seen.offer), []).append(at_ms - seen.asked_ms)

    def close(self, end_ms: int) -> None:
        """The log is over: what runs then has run so long, and nobody knows how much longer."""
        for seen in self._live.values():
            self._ran_ms[seen.job] = max(_length(seen, end_ms), self._ran_ms.get(seen.job, 0))
        self._live.clear()
        self.grid_ms = gcd(self.grid_ms, 0 if self._is_kept_waiting else STEP_MS) or 1
        for lengths in (self._of_queue, self._launches, self._stops, self._leads, self._releases, self._afters):
            for found in lengths.values():
                found.sort()

    # --- what it shows -----------------------------------------------------------------------------------------------

    def run_of(self, job: Job, ended: int) -> tuple[int | None, LeasePhase, Runtime]:
        """How long a job runs that has ended by itself so many times (``None``: to the end of the log), how it ends
        then, and how that is known."""
        runs = self._runs.get(job.id)
        if runs is not None:
            run = runs[min(ended, len(runs) - 1)]
            return run.length_ms, run.phase, Runtime.OBSERVED
        if job.cls.is_service:
            return None, LeasePhase.FINISHED, Runtime.NEVER
        ran_ms = self._ran_ms.get(job.id, 0)
        estimate_ms = job.cls.spec.estimate_ms
        if estimate_ms is not None and estimate_ms >= ran_ms:
            return estimate_ms, LeasePhase.FINISHED, Runtime.ESTIMATE
        lengths = self._of_queue.get(job.cls.spec.queue, [])
        longer = bisect_right(lengths, ran_ms)
        if longer < len(lengths):
            return lengths[(longer + len(lengths) - 1) // 2], LeasePhase.FINISHED, Runtime.QUEUE
        return None, LeasePhase.FINISHED, Runtime.NEVER

    def ended_before(self, job: int, position: int) -> int:
        """How often a job had ended by itself by then."""
        return sum(1 for run in self._runs.get(job, ()) if run.position < position)

    def launch_ms(self, job: int, cluster: str) -> int:
        """From the decision until the job runs there: as it was in the log, else the median of that cluster."""
        own = self._launch_of.get((job, cluster))
        return own if own is not None else _median(self._launches.get(cluster))

    def stop_ms(self, cluster: str) -> int:
        """From the decision that a lease ends until it has: the median of that cluster."""
        return _median(self._stops.get(cluster))

    def lead_ms(self, cluster: str, offer: str, promised_ms: int) -> int | None:
        """From asking for nodes until they are there: the median of that offer, else what it promises; ``None`` for an
        offer of which the log has seen nothing but failures."""
        found = self._leads.get((cluster, offer))
        if not found and (cluster, offer) in self._failing:
            return None
        return _median(found) if found else promised_ms

    def billed_ms(self, cluster: str) -> int:
        """For how long a node is charged beyond the instant at which it is given back, by the bills of that cluster."""
        return _median(self._afters.get(cluster))

    def release_ms(self, cluster: str) -> int:
        """From giving nodes back until they are gone: the median of that cluster."""
        return _median(self._releases.get(cluster))


def _length(seen: SeenLease, until_ms: int) -> int:
    return max(0, until_ms - (seen.granted_ms if seen.started_ms is None else seen.started_ms))


def _median(ordered: list[int] | None) -> int:
    return ordered[(len(ordered) - 1) // 2] if ordered else 0
