"""One cycle at a time: what it decides, and that a plane which was started anew decides the same.

``Core.cycle`` decides each cycle twice, and once more from a restored snapshot, so that these stories need not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    CapacityPhase,
    CapacityRequested,
    JobEnded,
    JobRefused,
    LeasePhase,
    LeaseRevoked,
    PolicyActivated,
)
from controlplane.domain.quantities import MAX_AMOUNT, MAX_MS
from controlplane.domain.reasons import Reason
from controlplane.scheduler.facts import (
    CandidateFacts,
    ClusterFacts,
    JobFacts,
    NodeFacts,
    QueueFacts,
    RoleFacts,
)
from controlplane.scheduler.rules import WORST_SCORE, Answer
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.timers import needs_cycle, next_due_ms
from tests.scheduler.core import HOUR, Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules

ALWAYS_BURST = PlainRules(cost=lambda job, home, offer, now: offer.cost_micro_usd)


def two_nodes(gpu_quota: int | None = None) -> Core:
    core = Core()
    core.queue("team", {"gpu": gpu_quota} if gpu_quota is not None else {})
    core.home(n1=gpus(4), n2=gpus(4))
    return core


# --- the same after a restart ----------------------------------------------------------------------------------------


def test_a_restart_alone_makes_no_cycle_due() -> None:
    core = two_nodes()
    core.submit(job(9))
    core.cycle(1)
    assert not needs_cycle(core.state)
    assert not needs_cycle(restore(take(core.state)))


def test_a_refusal_for_room_becomes_one_for_quota_when_quota_is_what_lacks() -> None:
    core = two_nodes(gpu_quota=10_000)
    core.submit(job(3, name="x"))
    core.submit(job(3, name="y"))
    gang = core.submit(job(2, members=2))
    core.cycle(1)
    assert core.waiting()[gang].reason == Reason.CAPACITY
    core.submit(job(1))
    core.submit(job(1))
    core.cycle(2)
    core.submit(job(1))
    core.cycle(3)
    assert core.waiting()[gang].reason == Reason.QUOTA
    assert core.waiting()[gang].short == {"gpu": 2_000}


# --- once, and counted once ------------------------------------------------------------------------------------------


def test_a_gang_that_is_cancelled_and_loses_two_nodes_in_one_cycle_is_revoked_once() -> None:
    core = two_nodes()
    gang = core.submit(job(4, members=2))
    core.cycle(1)
    core.node("n1", gpus(4), NodeState.LOST)
    core.node("n2", gpus(4), NodeState.LOST)
    core.cancel(gang)
    core.cycle(2)
    assert core.last(LeaseRevoked) == [LeaseRevoked(lease=f"j{gang}.1", cause="cancelled", grace_ms=30_000)]


@pytest.mark.parametrize(("attempts", "waiting"), [(1, {}), (2, {"requeued": 1})])
def test_a_job_that_used_up_its_attempts_is_not_counted_as_waiting(attempts: int, waiting: dict[str, int]) -> None:
    core = two_nodes()
    lone = core.submit(job(4, max_attempts=attempts))
    core.cycle(1)
    core.report(core.lease_of(lone), LeasePhase.FAILED)
    core.cycle(2)
    assert core.closed.waiting == waiting
    assert (lone in core.state.jobs) == bool(waiting)


def test_completion_and_cancellation_in_one_cycle_end_the_job_once() -> None:
    core = two_nodes()
    lone = core.submit(job(4))
    core.cycle(1)
    core.cancel(lone)
    core.finish(lone)
    core.cycle(2)
    assert core.last(JobEnded) == []
    assert (core.state.counts.finished, core.state.counts.cancelled) == (1, 0)


# --- what a role may ask ---------------------------------------------------------------------------------------------


def test_asking_for_nothing_of_a_named_resource_leaves_no_trace() -> None:
    core = two_nodes()
    lone = core.submit(job(1, other={"licence": 0}))
    core.cycle(1)
    core.finish(lone)
    assert core.state.leases == {}


def test_a_job_larger_than_its_ceiling_in_one_resource_never_waits_for_quota_in_another() -> None:
    core = Core()
    core.queue("team", {"cpu": 1_000, "gpu": 1_000})
    core.home(n1=gpus(4))
    core.submit(job(cpu=1_000))
    core.cycle(1)
    large = core.submit(job(2, cpu=500))
    core.cycle(2)
    assert core.waiting()[large].reason == Reason.EXCEEDS_QUOTA_CEILING
    assert core.waiting()[large].short == {"gpu": 1_000}


def test_a_job_may_wait_for_as_long_as_there_is_time() -> None:
    core = two_nodes()
    core.submit(job(9, wait_limit_ms=MAX_MS - HOUR), at_ms=HOUR)
    core.cycle(HOUR)
    assert next_due_ms(core.state) == MAX_MS


# --- the tree changes under jobs -------------------------------------------------------------------------------------


def test_jobs_that_wait_in_a_queue_that_becomes_a_cohort_are_refused() -> None:
    core = two_nodes(gpu_quota=4_000)
    first = core.submit(job(4))
    second = core.submit(job(4))
    core.cycle(1)
    core.queue("below", parent="team")
    core.cycle(2)
    assert [(refused.job, refused.reason) for refused in core.last(JobRefused)] == [(second, Reason.UNKNOWN_QUEUE)]
    core.report(core.lease_of(first), LeasePhase.LOST)
    core.cycle(3)
    core.cycle(4)
    assert core.state.jobs == {}
    heir = core.submit(job(1, queue="below"))
    core.cycle(5)
    assert core.placed() == [heir]


# --- rent ------------------------------------------------------------------------------------------------------------


def rented(core: Core) -> list[str]:
    return [request.request for request in core.last(CapacityRequested)]


def test_of_alike_jobs_each_says_its_own_reason() -> None:
    """SCENARIOS G1: two are paid for, the third waits for budget."""
    core = Core(ALWAYS_BURST)
    core.queue("team")
    core.budget("hourly", 10_000_000)
    core.cloud(offer("o", 4_000_000))
    jobs = [core.submit(job(8, estimate_ms=HOUR - 900_000 - 60_000)) for _ in range(3)]
    core.cycle(0)
    assert len(rented(core)) == 2
    assert core.closed.waiting == {"budget": 1, "provisioning": 2}
    assert core.waiting()[jobs[0]].reason == Reason.PROVISIONING
    assert core.waiting()[jobs[2]].reason == Reason.BUDGET
    core.cycle(HOUR)
    assert [request.for_job for request in core.last(CapacityRequested)] == [jobs[2]]


def test_rent_is_not_held_for_a_job_that_found_room_at_home() -> None:
    core = Core(ALWAYS_BURST)
    core.queue("team")
    core.home(n1=gpus(8))
    core.cloud(offer("o", 4_000_000))
    first = core.submit(job(8))
    core.cycle(0)
    second = core.submit(job(8))
    core.cycle(1)
    (request,) = rented(core)
    core.finish(first)
    core.cycle(2)
    assert core.placed() == [second]
    core.node("c1", gpus(8), cluster="cloud", request=request)
    core.capacity(request, CapacityPhase.PROVIDED)
    third = core.submit(job(8))
    core.cycle(3)
    assert core.placed() == [third]
    assert rented(core) == []


def test_rent_that_nobody_holds_is_open_when_its_provider_says_that_it_is_there() -> None:
    core = Core(PlainRules(cost=lambda job, home, offer, now: 1 if job.name == "rich" else None))
    core.queue("team")
    core.cloud(offer("o", 4_000_000))
    rich = core.submit(job(8, name="rich"))
    core.cycle(0)
    (request,) = rented(core)
    poor = core.submit(job(8, name="poor", priority=-1))
    core.node("c1", gpus(8), cluster="cloud", request=request)
    core.cancel(rich)
    core.cycle(1)
    core.cycle(2)
    assert core.placed() == []
    core.capacity(request, CapacityPhase.PROVIDED)
    core.cycle(3)
    assert core.placed() == [poor] or core.state.requests[request].phase == "releasing"


def test_a_budget_whose_window_changes_keeps_count_of_what_it_promised() -> None:
    core = Core(ALWAYS_BURST)
    core.queue("team")
    core.budget("b", 10_000_000, HOUR)
    core.cloud(offer("o", 4_000_000))
    core.submit(job(4, estimate_ms=60_000))
    core.cycle(5 * HOUR)
    (request,) = rented(core)
    promised = core.last(CapacityRequested)[0].promised_micro_usd
    core.budget("b", 10_000_000, HOUR // 2)
    assert core.state.budgets["b"].left(5 * HOUR) == 10_000_000 - promised
    core.capacity(request, CapacityPhase.RELEASED, charged=7)
    assert core.state.budgets["b"].promised == {}
    core.budget("b", 10_000_000, 2 * HOUR)
    assert core.state.budgets["b"].left(5 * HOUR) == 10_000_000 - 7


@pytest.mark.parametrize(("estimate_ms", "price"), [(MAX_MS, 1), (HOUR, MAX_AMOUNT)])
def test_a_rent_beyond_all_bounds_is_not_asked_for(estimate_ms: int, price: int) -> None:
    core = Core(ALWAYS_BURST)
    core.queue("team")
    core.cloud(offer("o", price))
    lone = core.submit(job(8, estimate_ms=estimate_ms))
    core.cycle(HOUR)
    assert rented(core) == []
    assert core.waiting()[lone].reason == Reason.EXCEEDS_EVERY_NODE


# --- rules that err --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Erring(PlainRules):
    """Rules of which one point errs."""

    point: str = ""

    def eligibility(self, job: JobFacts, role: RoleFacts, cluster: ClusterFacts, node: NodeFacts) -> Answer[bool]:
        if self.point == "eligibility" and node.gpus == 4:
            return Answer(False, "eligibility.yaml:1", "eligibility erred")
        return Answer(True)

    def job_order(self, job: JobFacts, queue: QueueFacts, now_ms: int) -> Answer[Sequence[int]]:
        return Answer((0,), None, "ordering.job erred" if self.point == "ordering.job" else None)

    def scoring(
        self,
        role: RoleFacts,
        cluster: ClusterFacts,
        before: NodeFacts,
        after: NodeFacts,
        candidate: CandidateFacts | None,
    ) -> Answer[int]:
        if self.point == "scoring":
            return Answer(WORST_SCORE, None, "scoring erred")
        return Answer(0)


@pytest.mark.parametrize(
    ("point", "reported"),
    [
        ("eligibility", [(), (), ("eligibility erred",)]),
        ("ordering.job", [("ordering.job erred",), (), ()]),
        ("scoring", [(), (), ("scoring erred",)]),
    ],
)
def test_a_rule_that_errs_is_reported_once_with_what_was_decided_by_it(
    point: str, reported: list[tuple[str, ...]]
) -> None:
    core = Core(Erring(point=point))
    core.queue("team")
    core.home(n1=gpus(4), n2=gpus(4))
    core.submit(job(5))
    seen: list[tuple[str, ...]] = []
    for now_ms in (1, 2, 3):
        if now_ms == 3:
            core.submit(job(3))
        core.cycle(now_ms)
        seen.append(core.closed.faults)
    assert seen == reported


def test_a_policy_that_is_activated_anew_reports_its_faults_anew() -> None:
    core = Core(Erring(point="ordering.job"))
    core.queue("team")
    core.submit(job(1))
    core.cycle(1)
    core.tell(PolicyActivated(name="p", digest="0" * 64, files={}))
    core.cycle(2)
    assert core.closed.faults == ("ordering.job erred",)


def test_a_job_for_which_rent_and_room_at_home_appear_together_is_placed_once() -> None:
    core = Core(ALWAYS_BURST)
    core.queue("team")
    core.home()
    core.cloud(offer("o", 4_000_000))
    jobs = [core.submit(job(8)) for _ in range(2)]
    core.cycle(0)
    first, _ = rented(core)
    core.node("c1", gpus(8), cluster="cloud", request=first)
    core.capacity(first, CapacityPhase.PROVIDED)
    core.node("n1", gpus(8))
    core.cycle(1)
    assert core.placed() == jobs


def test_a_job_that_asks_for_no_gpu_starts_in_a_queue_whose_gpu_quota_was_lowered_below_its_use() -> None:
    """SCENARIOS E3: a quota that lists only GPUs does not limit CPU."""
    core = two_nodes(gpu_quota=4_000)
    core.submit(job(4))
    core.cycle(1)
    core.queue("team", {"gpu": 1_000})
    lone = core.submit(job(cpu=1_000))
    core.cycle(2)
    assert core.placed() == [lone]


def test_for_a_job_that_gives_up_in_this_cycle_nobody_is_evicted_and_nothing_is_rented() -> None:
    """SCENARIOS D6: evictions happen only together with the placement that they enable."""
    rules = PlainRules(
        may_preempt=True,
        may_reserve=True,
        allow=lambda job, queue, shortage: ("queue",),
        depth=lambda job: 1,
        cost=lambda job, home, offer, now: 1,
    )
    core = Core(rules)
    core.queue("team")
    core.home(n1=gpus(4))
    core.cloud(offer("o", 4_000_000))
    core.submit(job(4))
    core.cycle(1)
    urgent = core.submit(job(4, priority=5, wait_limit_ms=0))
    core.cycle(1)
    assert core.last(LeaseRevoked) == []
    assert rented(core) == []
    assert [(ended.job, ended.reason) for ended in core.last(JobEnded)] == [(urgent, Reason.CAPACITY)]
    assert core.closed.waiting == {}


def test_nothing_is_rented_for_a_job_to_which_room_is_promised() -> None:
    rules = PlainRules(
        may_preempt=True, allow=lambda job, queue, shortage: ("queue",), cost=lambda job, home, offer, now: 1
    )
    core = Core(rules)
    core.queue("team")
    core.home(n1=gpus(4))
    core.cloud(offer("o", 4_000_000))
    low = core.submit(job(4))
    core.cycle(1)
    high = core.submit(job(4, priority=5))
    core.cycle(2)
    assert [revoked.lease for revoked in core.last(LeaseRevoked)] == [f"j{low}.1"]
    assert rented(core) == []
    core.cycle(60_002)
    assert rented(core) == []
    assert core.closed.waiting == {"room-promised": 1}
    core.report(f"j{low}.1", LeasePhase.ENDED)
    core.cycle(60_003)
    assert core.placed() == [high]
