"""Rules that remember what they were asked, so that whoever decides a cycle again can explain an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from controlplane.domain.workloads import GangTerms
from controlplane.policy.bundle import Bundle
from controlplane.policy.explain import Explanation, explain_facts
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question:
    """One question and its answer; ``arguments`` are facts in the order of the point's variables."""

    point: str
    arguments: tuple[object, ...]
    answer: Answer[object]


class AskedRules:
    """The rules of a bundle; ``questions`` are all that they were asked since they were made, in order."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.questions: list[Question] = []
        self._rules = bundle.rules()

    def explain(self, question: Question) -> Explanation:
        """What the answer to a question rests on."""
        return explain_facts(self.bundle, question.point, question.arguments)

    def reads(self, point: str) -> frozenset[str]:
        """Paths that the rules of a point depend on."""
        policies = self.bundle.policies.get(point, ())
        return frozenset(read.path for policy in policies for read in policy.facts)

    def _noted(self, point: str, arguments: tuple[object, ...], answer: Answer[T]) -> Answer[T]:
        self.questions.append(Question(point, arguments, answer))
        return answer

    # --- the port ----------------------------------------------------------------------------------------------------

    @property
    def digest(self) -> str:
        return self._rules.digest

    @property
    def engine(self) -> str:
        return self._rules.engine

    @property
    def admission_reads(self) -> frozenset[str]:
        return self._rules.admission_reads

    @property
    def job_order_reads(self) -> frozenset[str]:
        return self._rules.job_order_reads

    @property
    def queue_order_reads(self) -> frozenset[str]:
        return self._rules.queue_order_reads

    @property
    def eligibility_reads(self) -> frozenset[str]:
        return self._rules.eligibility_reads

    @property
    def scoring_reads(self) -> frozenset[str]:
        return self._rules.scoring_reads

    @property
    def scoring_field(self) -> str | None:
        return self._rules.scoring_field

    @property
    def burst_reads(self) -> frozenset[str]:
        return self._rules.burst_reads

    @property
    def backfill_order_reads(self) -> frozenset[str]:
        return self._rules.backfill_order_reads

    @property
    def may_order_backfill(self) -> bool:
        return self._rules.may_order_backfill

    @property
    def may_preempt(self) -> bool:
        return self._rules.may_preempt

    @property
    def may_reserve(self) -> bool:
        return self._rules.may_reserve

    @property
    def may_block(self) -> bool:
        return self._rules.may_block

    def admission(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[str | None]:
        return self._noted("admission", (job, queue, now_ms), self._rules.admission(job, queue, now_ms))

    def queue_order(self, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        return self._noted("ordering.queue", (queue, now_ms), self._rules.queue_order(queue, now_ms))

    def job_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        return self._noted("ordering.job", (job, queue, now_ms), self._rules.job_order(job, queue, now_ms))

    def backfill_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        answer = self._rules.backfill_order(job, queue, now_ms)
        return self._noted("ordering.backfill", (job, queue, now_ms), answer)

    @property
    def preemption_victim_reads(self) -> frozenset[str]:
        return self._rules.preemption_victim_reads

    @property
    def may_give_terms(self) -> bool:
        return self._rules.may_give_terms

    @property
    def gang_reads(self) -> frozenset[str]:
        return self._rules.gang_reads

    def gang(self, job: JobFacts, queue: QueueFacts, home: HomeFacts | None, now_ms: int) -> Answer[GangTerms]:
        return self._noted("gang", (job, queue, home, now_ms), self._rules.gang(job, queue, home, now_ms))

    def eligibility(self, job: JobFacts, role: RoleFacts, cluster: ClusterFacts, node: NodeFacts) -> Answer[bool]:
        answer = self._rules.eligibility(job, role, cluster, node)
        return self._noted("eligibility", (job, role, cluster, node), answer)

    def scoring(
        self,
        role: RoleFacts,
        cluster: ClusterFacts,
        before: NodeFacts,
        after: NodeFacts,
        candidate: CandidateFacts | None,
    ) -> Answer[int]:
        answer = self._rules.scoring(role, cluster, before, after, candidate)
        return self._noted("scoring", (role, cluster, before, after, candidate), answer)

    def quota(self, job: JobFacts, queue: QueueFacts, cohort: CohortFacts) -> Answer[bool]:
        return self._noted("quota", (job, queue, cohort), self._rules.quota(job, queue, cohort))

    def preemption_allow(self, job: JobFacts, queue: QueueFacts, shortage: ShortageFacts) -> Answer[Sequence[str]]:
        answer = self._rules.preemption_allow(job, queue, shortage)
        return self._noted("preemption.allow", (job, queue, shortage), answer)

    def preemption_victim(self, preemptor: JobFacts, victim: VictimFacts) -> Answer[int | None]:
        answer = self._rules.preemption_victim(preemptor, victim)
        return self._noted("preemption.victim", (preemptor, victim), answer)

    def reserve(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        return self._noted("reservation", (job, queue, now_ms), self._rules.reserve(job, queue, now_ms))

    def overtaking(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[str]]:
        return self._noted("overtaking", (job, queue, now_ms), self._rules.overtaking(job, queue, now_ms))

    @property
    def may_scale(self) -> bool:
        return self._rules.may_scale

    def service_replicas(
        self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int
    ) -> Answer[int | None]:
        answer = self._rules.service_replicas(job, service, queue, now_ms)
        return self._noted("service.replicas", (job, service, queue, now_ms), answer)

    def service_take(self, job: JobFacts, service: ServiceFacts, queue: QueueFacts, now_ms: int) -> Answer[int]:
        answer = self._rules.service_take(job, service, queue, now_ms)
        return self._noted("service.take", (job, service, queue, now_ms), answer)

    def burst(
        self,
        job: JobFacts,
        queue: QueueFacts,
        home: HomeFacts,
        offer: OfferFacts,
        budget: BudgetFacts | None,
        now_ms: int,
    ) -> Answer[int | None]:
        answer = self._rules.burst(job, queue, home, offer, budget, now_ms)
        return self._noted("burst", (job, queue, home, offer, budget, now_ms), answer)
