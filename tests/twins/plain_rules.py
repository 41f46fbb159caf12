"""Rules written in Python: the twin of a policy bundle, for tests of the core alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
from controlplane.scheduler.rules import Answer


def best_fit(after: NodeFacts) -> int:
    """The best fit of PUBLISHED.md 1 in exact integers: int(100 (1 - .5 cpu/128000 - .5 gpu/8000)), truncating."""
    numerator = 100 * (2 * 128_000 * 8_000 - after.cpu_free_milli * 8_000 - after.gpu_free_milli * 128_000)
    denominator = 2 * 128_000 * 8_000
    return numerator // denominator if numerator >= 0 else -(-numerator // denominator)


@dataclass(eq=False)
class PlainRules:
    """Every point answered by a Python callable or by the default that the port names."""

    digest: str = "plain"
    engine: str = "python"
    admission_reads: frozenset[str] = frozenset()
    job_order_reads: frozenset[str] = frozenset({"job.priority"})
    queue_order_reads: frozenset[str] = frozenset({"queue.weighted_share_ppb"})
    eligibility_reads: frozenset[str] = frozenset()
    may_give_terms: bool = False
    gang_reads: frozenset[str] = frozenset()
    terms: Callable[[JobFacts, QueueFacts, int], GangTerms] = lambda job, queue, now: GangTerms()
    may_preempt: bool = False
    may_reserve: bool = False
    borrow: Callable[[JobFacts, QueueFacts, CohortFacts], bool] = lambda job, queue, cohort: True
    allow: Callable[[JobFacts, QueueFacts, ShortageFacts], Sequence[str]] = lambda job, queue, shortage: ()
    preemption_victim_reads: frozenset[str] = frozenset({"victim.unsaved_ms", "victim.gpus_milli"})
    victim: Callable[[JobFacts, VictimFacts], int | None] = lambda job, victim: victim.unsaved_ms * victim.gpus_milli
    depth: Callable[[JobFacts], int] = lambda job: 0
    may_block: bool = False
    may_pass: Callable[[JobFacts, QueueFacts], Sequence[str]] = lambda job, queue: ("queue", "others")
    may_order_backfill: bool = False
    backfill_order_reads: frozenset[str] = frozenset({"job.submitted_ms"})
    order_backfill: Callable[[JobFacts], Sequence[int]] = lambda job: (job.submitted_ms,)
    may_scale: bool = False
    replicas: Callable[[ServiceFacts, int], int | None] = lambda service, now: None
    take: Callable[[ServiceFacts], int] = lambda service: 0
    burst_reads: frozenset[str] = frozenset({"now"})
    scoring_reads: frozenset[str] = frozenset({"after.cpu_free_milli", "after.gpu_free_milli"})
    scoring_field: str | None = None
    admit: Callable[[JobFacts], str | None] = lambda job: None
    order_job: Callable[[JobFacts, QueueFacts, int], Sequence[int]] = lambda job, queue, now: (-job.priority,)
    order_queue: Callable[[QueueFacts], Sequence[int]] = lambda queue: (queue.weighted_share_ppb,)
    is_eligible: Callable[[JobFacts, RoleFacts, ClusterFacts, NodeFacts], bool] = lambda job, role, cluster, node: True
    score: Callable[[NodeFacts, CandidateFacts | None], int] = lambda after, candidate: best_fit(after)
    cost: Callable[[JobFacts, HomeFacts, OfferFacts, int], int | None] = lambda job, home, offer, now: None
    asked: dict[str, int] = field(default_factory=dict)

    def admission(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[str | None]:
        return Answer(self.admit(job))

    def queue_order(self, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        return Answer(self.order_queue(queue))

    def job_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        return Answer(self.order_job(job, queue, now_ms))

    def backfill_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        return Answer(self.order_backfill(job))

    def gang(self, job: JobFacts, queue: QueueFacts, home: HomeFacts | None, now_ms: int) -> Answer[GangTerms]:
        return Answer(self.terms(job, queue, now_ms))

    def eligibility(self, job: JobFacts, role: RoleFacts, cluster: ClusterFacts, node: NodeFacts) -> Answer[bool]:
        return Answer(self.is_eligible(job, role, cluster, node))

    def scoring(
        self,
        role: RoleFacts,
        cluster: ClusterFacts,
        before: NodeFacts,
        after: NodeFacts,
        candidate: CandidateFacts | None,
    ) -> Answer[int]:
        self.asked["scoring"] = self.asked.get("scoring", 0) + 1
        return Answer(self.score(after, candidate))

    def quota(self, job: JobFacts, queue: QueueFacts, cohort: CohortFacts) -> Answer[bool]:
        return Answer(self.borrow(job, queue, cohort))

    def preemption_allow(self, job: JobFacts, queue: QueueFacts, shortage: ShortageFacts) -> Answer[Sequence[str]]:
        return Answer(self.allow(job, queue, shortage))

    def preemption_victim(self, preemptor: JobFacts, victim: VictimFacts) -> Answer[int | None]:
        return Answer(self.victim(preemptor, victim))

    def reserve(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        return Answer(self.depth(job))

    def overtaking(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[str]]:
        return Answer(self.may_pass(job, queue))

    def service_replicas(
        self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int
    ) -> Answer[int | None]:
        return Answer(self.replicas(service, now_ms))

    def service_take(self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        return Answer(self.take(service))

    def burst(
        self,
        job: JobFacts,
        queue: QueueFacts,
        home: HomeFacts,
        offer: OfferFacts,
        budget: BudgetFacts | None,
        now_ms: int,
    ) -> Answer[int | None]:
        return Answer(self.cost(job, home, offer, now_ms))
