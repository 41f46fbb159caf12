"""Who may pass a blocked job, in which order, and who stays chosen meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.domain.events import JobsWaiting, LeasePhase, LeaseRevoked
from controlplane.domain.reasons import Reason
from controlplane.scheduler.facts import JobFacts, QueueFacts
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000


def shortest_first(job: JobFacts, queue: QueueFacts, now_ms: int) -> Sequence[int]:
    return (job.estimate_ms or 0, job.submitted_ms)


def strict(*may_pass: str) -> PlainRules:
    """Queue team first; these may pass a blocked job."""
    rules = PlainRules(may_block=True, may_pass=lambda job, queue: may_pass)
    rules.order_queue = lambda queue: (int(queue.name != "team"),)
    return rules


def test_nobody_passes_a_head_that_waits_for_room() -> None:
    core = Core(strict())
    core.home(a=gpus(8))
    core.queue("team")
    core.queue("other")
    first = core.submit(job(6))
    core.cycle(0)
    head = core.submit(job(4))
    behind = core.submit(job(1, name="behind"))
    elsewhere = core.submit(job(1, queue="other"))
    core.cycle(MINUTE)
    assert core.placed() == []
    assert core.waiting()[head].reason == Reason.CAPACITY
    assert core.waiting()[behind].reason == core.waiting()[elsewhere].reason == Reason.BEHIND_HEAD
    assert core.closed.waiting == {"behind-head": 2, "capacity": 1}, "every job that waits is counted once"
    core.finish(first)
    core.cycle(2 * MINUTE)
    assert core.placed() == [head, behind, elsewhere]


def test_other_queues_may_pass_where_the_rules_say_so() -> None:
    core = Core(strict("others"))
    core.home(a=gpus(8))
    core.queue("team")
    core.queue("other")
    core.submit(job(6))
    core.cycle(0)
    core.submit(job(4))
    behind = core.submit(job(1, name="behind"))
    elsewhere = core.submit(job(1, queue="other"))
    core.cycle(MINUTE)
    assert core.placed() == [elsewhere]
    assert core.waiting()[behind].reason == Reason.BEHIND_HEAD


def test_a_head_that_waits_for_quota_blocks_its_queue_too() -> None:
    core = Core(strict("others"))
    core.home(a=gpus(8))
    core.queue("team", {"gpu": 3_000})
    core.queue("other")
    core.submit(job(2))
    core.cycle(0)
    head = core.submit(job(2, name="head"))
    behind = core.submit(job(1, name="behind"))
    core.cycle(MINUTE)
    assert core.placed() == []
    assert core.waiting()[head].reason == Reason.QUOTA
    assert core.waiting()[behind].reason == Reason.BEHIND_HEAD


def test_who_can_never_run_blocks_nobody() -> None:
    """C4, under strict rules too."""
    core = Core(strict())
    core.home(a=gpus(8))
    core.queue("team")
    never = core.submit(job(9))
    fits = core.submit(job(1))
    core.cycle(0)
    assert core.placed() == [fits]
    assert core.waiting()[never].reason == Reason.EXCEEDS_EVERY_NODE


def test_a_chosen_job_stays_chosen_though_a_better_one_comes() -> None:
    """Shortest first: a shorter job that comes later would go first, but the start of the chosen one is reserved."""
    core = Core(
        PlainRules(
            may_reserve=True,
            depth=lambda job: 1,
            may_block=True,
            may_pass=lambda job, queue: (),
            order_job=shortest_first,
            job_order_reads=frozenset({"job.estimate_ms", "job.submitted_ms"}),
        )
    )
    core.home(a=gpus(8))
    core.queue("team")
    running = core.submit(job(6, estimate_ms=10 * MINUTE))
    core.cycle(0)
    chosen = core.submit(job(4, estimate_ms=5 * MINUTE))
    core.cycle(MINUTE)
    shorter = core.submit(job(4, name="shorter", estimate_ms=MINUTE))
    core.cycle(2 * MINUTE)
    assert core.waiting()[shorter].reason == Reason.BEHIND_HEAD
    core.finish(running)
    core.cycle(3 * MINUTE)
    assert core.placed() == [chosen, shorter]


def test_backfill_has_an_order_of_its_own() -> None:
    """The shortest is chosen; behind it, of two that fit one at a time, the older runs in front, not the shorter."""
    for has_own, goes_first in ((True, "older"), (False, "shorter")):
        core = Core(
            PlainRules(
                may_reserve=True,
                depth=lambda job: 1,
                may_order_backfill=has_own,
                order_job=shortest_first,
                job_order_reads=frozenset({"job.estimate_ms", "job.submitted_ms"}),
            )
        )
        core.home(a=gpus(8))
        core.queue("team")
        core.submit(job(6, estimate_ms=60 * MINUTE))
        core.cycle(0)
        core.submit(job(4, name="chosen", estimate_ms=MINUTE))
        older = core.submit(job(2, name="older", estimate_ms=20 * MINUTE))
        shorter = core.submit(job(2, name="shorter", estimate_ms=10 * MINUTE), at_ms=1)
        core.cycle(MINUTE)
        assert core.placed() == [{"older": older, "shorter": shorter}[goes_first]]


def test_who_becomes_head_looks_for_victims_at_once() -> None:
    """It was kept back and not searched for: it does not wait for the next round of searches."""
    rules = strict()
    rules.may_preempt = True
    rules.allow = lambda job, queue, shortage: ("queue",)
    rules.order_job = lambda job, queue, now: (job.submitted_ms,)
    rules.job_order_reads = frozenset({"job.submitted_ms"})
    core = Core(rules)
    core.home(a=gpus(8))
    core.queue("team")
    low = core.submit(job(6, priority=0))
    core.cycle(0)
    core.report(core.lease_of(low), LeasePhase.LAUNCHING, LeasePhase.RUNNING)
    head = core.submit(job(4, name="head", priority=0), at_ms=1)
    urgent = core.submit(job(4, name="urgent", priority=9), at_ms=2)
    core.cycle(MINUTE)
    assert core.waiting()[urgent].reason == Reason.BEHIND_HEAD
    core.cancel(head)
    core.cycle(MINUTE + 1)
    assert [event.for_job for event in core.last(LeaseRevoked)] == [urgent]


def test_who_is_kept_back_is_told_in_the_order_of_the_jobs_however_they_came_back() -> None:
    """A plane that was started anew lines groups up in the order of their jobs, one that kept running in the order in
    which they began to wait. (The core's own checks decide every cycle from a snapshot, too.)"""
    core = Core(strict())
    core.home(a=gpus(8))
    core.queue("team")
    jobs = [core.submit(job(1, cpu=number, max_attempts=9)) for number in range(3)]
    core.submit(job(5))
    core.cycle(0)
    head = core.submit(job(6, priority=9))
    core.cycle(1)
    for id_ in reversed(jobs):
        core.report(core.lease_of(id_), LeasePhase.FAILED)
    core.cycle(2)
    core.cycle(3)
    behind = [event.head for event in core.last(JobsWaiting) if event.reason == Reason.BEHIND_HEAD]
    assert behind == jobs
    assert head not in behind
