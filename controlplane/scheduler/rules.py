"""The port through which judgement enters the core.

``Rules`` is what a policy bundle is to the scheduler. Every method is a pure function of its arguments: the same facts
give the same answer, on any machine, for ever. The scheduler owns the order of evaluation and every tie-break.

A rule that errs fails closed: the answer carries the closed value (not admitted, not eligible, lowest score, stays at
home) and the fault, and the cycle goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from controlplane.domain.workloads import GangTerms
from controlplane.scheduler.facts import (
    BudgetFacts,
    CandidateFacts,
    ClusterFacts,
    CohortFacts,
    HomeFacts,
    JobFacts,
    NodeFacts,
    OfferFacts,
    QueueFacts,
    RoleFacts,
    ServiceFacts,
    ShortageFacts,
    VictimFacts,
)

T_co = TypeVar("T_co", covariant=True)

WORST_SCORE = -(2**62)
"""The score of a candidate whose scoring rule erred; scores are clamped to be above it."""


@dataclass(slots=True)  # not frozen, which triples the cost of making one
class Answer(Generic[T_co]):
    """What a rule said, where it stands (``file:line`` of the match that fired), and the fault if it erred."""

    value: T_co
    rule: str | None = None
    fault: str | None = None


class Rules(Protocol):
    """The decision points that the core asks. A point without a rule in the bundle has the default named here."""

    @property
    def digest(self) -> str:
        """SHA-256 of the bundle's canonical source."""

    @property
    def engine(self) -> str:
        """Name and version of the engine that evaluates, such as ``cel-expr-python 0.1.3``."""

    @property
    def admission_reads(self) -> frozenset[str]:
        """Paths that ``admission`` depends on. If it reads only what alike jobs share, they share one answer."""

    @property
    def job_order_reads(self) -> frozenset[str]:
        """Paths that ``ordering.job`` depends on, such as ``job.priority``. If none starts with ``queue.`` and ``now``
        is absent, the order of a job is fixed at submission."""

    @property
    def queue_order_reads(self) -> frozenset[str]:
        """Paths that ``ordering.queue`` depends on."""

    @property
    def eligibility_reads(self) -> frozenset[str]:
        """Paths that ``eligibility`` depends on. Jobs that agree in those of ``job.`` share every verdict."""

    @property
    def scoring_reads(self) -> frozenset[str]:
        """Paths that ``scoring`` depends on. If none starts with ``candidate.``, a kind has one score."""

    @property
    def scoring_field(self) -> str | None:
        """The one field that is the whole score, such as ``candidate.lottery``; ``None`` if it is anything else. The
        scheduler then need not ask about nodes that cannot have the largest."""

    @property
    def burst_reads(self) -> frozenset[str]:
        """Paths that ``burst`` depends on. If ``now`` is among them, it is asked again as time passes."""

    def admission(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[str | None]:
        """Why the submission is refused; ``None`` admits. Default: admits."""

    def queue_order(self, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        """Lower goes first, compared like lists. Default: ``[weighted_share_ppb]``."""

    def job_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        """Lower goes first among the jobs of one queue. Default: ``[-priority]``."""

    @property
    def may_order_backfill(self) -> bool:
        """Whether the bundle orders backfill by rules of its own. Default: no, backfill goes in the order of the jobs.

        Where it does, or where it has rules about overtaking, the order of jobs only chooses: who holds a reservation
        was chosen, and is tried first in every cycle until it starts, whoever has come since."""

    @property
    def backfill_order_reads(self) -> frozenset[str]:
        """Paths that ``ordering.backfill`` depends on."""

    def backfill_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        """Lower goes first in one queue, once a start is reserved for somebody. Default: ``job_order``."""

    @property
    def may_give_terms(self) -> bool:
        """Whether the bundle has a rule that could give gangs other terms than they asked for. Default: no."""

    @property
    def gang_reads(self) -> frozenset[str]:
        """Paths that ``gang`` depends on. If ``now`` is among them, it is asked again, as time passes, for every job
        that waits; ``home`` is given exactly if one of its fields is."""

    def gang(self, job: JobFacts, queue: QueueFacts, home: HomeFacts | None, now_ms: int) -> Answer[GangTerms]:
        """The terms on which the gang waits, starts and goes on, where they are not those of ``job``, which is as it
        was submitted. Default: those that it asked for."""

    def eligibility(self, job: JobFacts, role: RoleFacts, cluster: ClusterFacts, node: NodeFacts) -> Answer[bool]:
        """Whether members of the role may be on such nodes. Default: true."""

    def scoring(
        self,
        role: RoleFacts,
        cluster: ClusterFacts,
        before: NodeFacts,
        after: NodeFacts,
        candidate: CandidateFacts | None,
    ) -> Answer[int]:
        """Higher is better. ``candidate`` is given exactly when ``scoring_reads`` has one of its fields. Default: 0."""

    @property
    def may_preempt(self) -> bool:
        """Whether the bundle has a rule that could let a job evict others. Default: no, and nothing is searched."""

    @property
    def may_reserve(self) -> bool:
        """Whether the bundle has a rule that could reserve room for a blocked job. Default: no."""

    def quota(self, job: JobFacts, queue: QueueFacts, cohort: CohortFacts) -> Answer[bool]:
        """Whether the job may be placed on quota that its queue borrows. Default: true."""

    def preemption_allow(self, job: JobFacts, queue: QueueFacts, shortage: ShortageFacts) -> Answer[Sequence[str]]:
        """Whom the job may evict: any of ``queue`` (lower priority in its own queue), ``cohort`` (lower priority below
        the same top queue), ``reclaim`` (queues above their nominal quota, if its own ends within),
        ``borrowers`` (lower priority in queues below the same top queue that are above their nominal quota, also if its
        own is), ``fair-share`` (queues that would still have the larger weighted share afterwards), ``surplus`` (only
        members above the minimum of elastic gangs, whatever their priority: of its own queue, and of queues above their
        nominal quota or without one). Default: nobody."""

    @property
    def preemption_victim_reads(self) -> frozenset[str]:
        """Paths that ``preemption.victim`` depends on. If none is of what this very job or cycle is like, jobs share
        what was found about their victims."""

    def preemption_victim(self, preemptor: JobFacts, victim: VictimFacts) -> Answer[int | None]:
        """What an eviction costs, lower first; ``None`` protects. Default: GPU-milliseconds of unsaved work."""

    def reserve(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        """How many blocked jobs, this one included, may hold a reservation when this one asks for one: 0 makes none
        for it, 1 is EASY backfill, a large number is conservative backfill. Default: 0."""

    @property
    def may_block(self) -> bool:
        """Whether the bundle has a rule that could keep others from passing a blocked job. Default: no."""

    def overtaking(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[str]]:
        """Who may still be placed in this cycle when this job finds no room or no quota: ``queue`` (the jobs behind it
        in its own queue), ``others`` (other queues). Nobody, ``[]``, is strict first in, first out. Default: both."""

    @property
    def may_scale(self) -> bool:
        """Whether the bundle has a rule that says how many replicas services are to have. Default: no."""

    def service_replicas(
        self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int
    ) -> Answer[int | None]:
        """How many replicas the service is to have, cut to what its job allows; ``None`` leaves it at what it was last
        to have. Default: ``None``; it was placed with the least that its job allows."""

    def service_take(self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        """Milli-GPU that the service may hold of room which others had to leave for it, what it holds so already
        included; nor do more than so many have to leave at once. Whom it may evict is asked as for any job. Default: 0,
        nothing."""

    def burst(
        self,
        job: JobFacts,
        queue: QueueFacts,
        home: HomeFacts,
        offer: OfferFacts,
        budget: BudgetFacts | None,
        now_ms: int,
    ) -> Answer[int | None]:
        """Cost of serving the job by the offer, lower is better; ``None`` stays home. Default: stays home."""
