"""Whom a cycle evicts, for whom, and what is held meanwhile. The numbers are those of SCENARIOS section D."""

from __future__ import annotations

from controlplane.domain.events import (
    JobRequeued,
    LeaseGranted,
    LeasePhase,
    LeaseRevoked,
    PromiseReleased,
    QueueConfigured,
    RoomPromised,
)
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.reasons import Reason
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000


def preempting(*scopes: str) -> Core:
    """A core whose rules let every blocked job evict within these scopes."""
    rules = PlainRules(may_preempt=True, allow=lambda job, queue, shortage: scopes)
    return Core(rules)


def running(core: Core, job_id: int) -> None:
    """The cluster says that the job runs."""
    core.report(core.lease_of(job_id), LeasePhase.LAUNCHING, LeasePhase.RUNNING)


def revoked(core: Core) -> list[str]:
    """The leases that the last cycle revoked, in order."""
    return [event.lease for event in core.last(LeaseRevoked)]


def test_no_eviction_when_none_would_let_it_start() -> None:
    """D2: every node keeps six GPUs that may not be taken, so that two more do not help."""
    core = preempting("queue")
    core.home(**{f"n{number}": gpus(8) for number in range(4)})
    core.queue("team")
    for _ in range(4):
        for priority, count in ((10, 6), (0, 2)):
            for _ in range(count):
                core.submit(job(1, priority=priority))
            core.cycle()
    assert len(core.state.leases) == 32
    core.submit(job(8, priority=10))
    core.cycle()
    assert revoked(core) == []
    assert [event.reason for event in core.waiting().values()] == [Reason.CAPACITY]


def test_free_room_counts_and_only_what_stands_in_the_way_goes() -> None:
    """D5: two free and two held by a victim, four are needed: one victim goes, and not the one on the other node."""
    core = preempting("queue")
    core.home(a=gpus(4), b=gpus(4))
    core.queue("team")
    low = [core.submit(job(2, priority=0)) for _ in range(3)]
    core.cycle()
    for id_ in low:
        running(core, id_)
    core.cycle(MINUTE)
    urgent = core.submit(job(4, priority=5))
    core.cycle(2 * MINUTE)
    [promise] = core.last(RoomPromised)
    assert promise.job == urgent
    assert len(promise.victims) == 1
    [event] = core.last(LeaseRevoked)
    assert event.cause == "preempted"
    assert event.for_job == urgent


def test_room_is_held_until_the_last_victim_has_ended() -> None:
    """D1: the first victim ends; neither it nor a newcomer takes its room; when the second ends the gang starts."""
    core = preempting("queue")
    core.home(a=gpus(4), b=gpus(4))
    core.queue("team")
    low = [core.submit(job(4, priority=0)) for _ in range(2)]
    core.cycle()
    for id_ in low:
        running(core, id_)
    gang = core.submit(job(4, members=2, priority=5))
    core.cycle(MINUTE)
    assert sorted(revoked(core)) == sorted(f"j{id_}.1" for id_ in low)
    core.report(f"j{low[0]}.1", LeasePhase.ENDED)
    newcomer = core.submit(job(1, priority=0))
    core.cycle(MINUTE + 1_000)
    assert core.placed() == []
    assert [event.job for event in core.last(JobRequeued)] == [low[0]]
    core.report(f"j{low[1]}.1", LeasePhase.ENDED)
    core.cycle(MINUTE + 2_000)
    assert core.placed() == [gang]
    assert core.state.jobs[newcomer].lease is None
    assert core.state.jobs[low[0]].failures == 0


def test_the_cheapest_victims_are_those_that_lose_least() -> None:
    """D6: cost is unsaved GPU time; the gang with a fresh checkpoint goes, not the newer one without any."""
    core = preempting("queue")
    core.home(a=gpus(8))
    core.queue("team")
    saved = core.submit(job(4, priority=0, checkpoint_every_ms=MINUTE))
    core.cycle()
    unsaved = core.submit(job(4, priority=0))
    core.cycle(30_000)
    core.submit(job(4, priority=5))
    core.cycle(MINUTE + 1_000)
    assert revoked(core) == [f"j{saved}.1"]
    assert core.state.jobs[unsaved].lease is not None


def test_two_equal_queues_with_full_shares_evict_nobody() -> None:
    """D3, first part: 12 slots, 24 one-slot jobs, two equal queues."""
    core = preempting("reclaim", "fair-share", "queue")
    core.home(a=gpus(12))
    core.queue("a")
    core.queue("b")
    for number in range(24):
        core.submit(job(1, queue="ab"[number % 2]))
    for minute in range(5):
        core.cycle(minute * MINUTE)
        assert revoked(core) == []
    assert core.state.running[core.state.tree.by_name["a"].index] == 6


def test_an_owner_reclaims_its_nominal_quota_and_keeps_it() -> None:
    """D4: a owns 100 of 300, b took all; a asks 100 and reaches 100, and it stays so."""
    core = preempting("reclaim")
    core.home(**{f"n{number:02d}": gpus(10) for number in range(30)})
    core.queue("all")
    core.queue("a", {"gpu": Quota(nominal=100_000)}, parent="all")
    core.queue("b", {"gpu": Quota(nominal=200_000)}, parent="all")
    for _ in range(60):
        core.submit(job(10, queue="b"))
    core.cycle()
    assert len(core.state.leases) == 30
    owned = [core.submit(job(10, queue="a")) for _ in range(10)]
    now_ms = MINUTE
    for _ in range(6):
        core.cycle(now_ms)
        for lease in revoked(core):
            core.report(lease, LeasePhase.ENDED)
        now_ms += MINUTE
    assert all(core.state.jobs[id_].lease is not None for id_ in owned)
    assert len(core.state.leases) == 30
    assert revoked(core) == []


def test_a_queue_within_its_nominal_quota_is_never_reclaimed_from() -> None:
    """D8: b uses exactly what is its own; c borrows; a's reclaim takes from c only."""
    core = preempting("reclaim")
    core.home(n=gpus(8), m=gpus(4))
    core.queue("all")
    for name, nominal in (("a", 4_000), ("b", 4_000), ("c", 4_000)):
        core.queue(name, {"gpu": nominal}, parent="all")
    within = [core.submit(job(1, queue="b")) for _ in range(4)]
    borrowing = [core.submit(job(1, queue="c")) for _ in range(8)]
    core.cycle()
    assert len(core.state.leases) == 12
    core.submit(job(4, queue="a"))
    core.cycle(MINUTE)
    victims = {lease.partition(".")[0] for lease in revoked(core)}
    assert victims <= {f"j{id_}" for id_ in borrowing}
    assert len(victims) == 4
    assert all(core.state.jobs[id_].lease is not None for id_ in within)


def test_a_pair_never_evicts_each_other_in_turn() -> None:
    """D7: equal jobs of two queues and one slot each too few: over fifty cycles at most one eviction per pair."""
    core = preempting("reclaim", "fair-share", "queue", "cohort")
    core.home(a=gpus(3))
    core.queue("x")
    core.queue("y")
    for queue in "xyxyxy":
        core.submit(job(1, queue=queue))
    evictions: dict[str, int] = {}
    for minute in range(50):
        core.cycle(minute * MINUTE)
        for event in core.last(LeaseRevoked):
            evictions[event.lease] = evictions.get(event.lease, 0) + 1
            core.report(event.lease, LeasePhase.ENDED)
    assert sum(evictions.values()) <= 1


def test_two_entitlements_do_not_take_turns() -> None:
    """D7 across scopes: one is more urgent, the other is owed its quota; the second eviction never comes."""
    core = preempting("cohort", "reclaim", "fair-share", "queue")
    core.home(a=gpus(1))
    core.queue("all")
    core.queue("owner", {"gpu": 1_000}, parent="all")
    core.queue("urgent", {"gpu": 0}, parent="all")
    core.submit(job(1, queue="owner"))
    core.submit(job(1, queue="urgent", priority=9))
    evicted = 0
    for minute in range(50):
        core.cycle(minute * MINUTE)
        for event in core.last(LeaseRevoked):
            evicted += 1
            core.report(event.lease, LeasePhase.ENDED)
    assert evicted == 1


def test_a_spared_victim_keeps_its_room() -> None:
    """The search takes the small gang out, finds that it is not in the way, and puts it back: a newcomer of the same
    cycle gets the GPU that is really free."""
    core = preempting("queue")
    core.home(a=gpus(8))
    core.queue("team")
    large = core.submit(job(6))
    core.cycle()
    small = core.submit(job(1))
    core.cycle(1)
    core.submit(job(6, priority=9))
    newcomer = core.submit(job(1, priority=-1))
    core.cycle(MINUTE)
    assert revoked(core) == [f"j{large}.1"]
    held = core.state.leases[core.lease_of(small)].seats[0].gpus
    assert core.placed() == [newcomer]
    assert core.state.leases[core.lease_of(newcomer)].seats[0].gpus != held


def test_weight_zero_never_wins() -> None:
    """D9: a queue without weight takes nothing back from one that has some."""
    core = preempting("fair-share")
    core.home(a=gpus(4))
    core.tell(*_weighted("none", 0), *_weighted("some", 1))
    for _ in range(4):
        core.submit(job(1, queue="some"))
    core.cycle()
    core.submit(job(1, queue="none"))
    for minute in range(5):
        core.cycle(minute * MINUTE)
        assert revoked(core) == []


def test_a_cancelled_preemptor_lets_go_of_the_room() -> None:
    """The victim is gone for good, but the room is anybody's again in the next cycle."""
    core = preempting("queue")
    core.home(a=gpus(4))
    core.queue("team")
    low = core.submit(job(4, priority=0))
    core.cycle()
    urgent = core.submit(job(4, priority=5))
    core.cycle(MINUTE)
    assert revoked(core) == [f"j{low}.1"]
    core.cancel(urgent)
    core.report(f"j{low}.1", LeasePhase.ENDED)
    core.cycle(MINUTE + 1_000)
    core.cycle(MINUTE + 2_000)
    assert [event.job for event in core.last(LeaseGranted)] == [low]


def test_borrowing_is_reclaimed_for_quota_even_when_room_is_free() -> None:
    """The cohort's quota is used up, the machines are not: the borrower yields its quota."""
    core = preempting("reclaim")
    core.home(a=gpus(8))
    core.queue("all")
    core.queue("a", {"gpu": 2_000}, parent="all")
    core.queue("b", {"gpu": 2_000}, parent="all")
    borrowed = [core.submit(job(1, queue="b")) for _ in range(4)]
    core.cycle()
    assert len(core.state.leases) == 4
    owner = core.submit(job(1, queue="a"))
    core.cycle(MINUTE)
    [lease] = revoked(core)
    assert lease in {f"j{id_}.1" for id_ in borrowed}
    core.report(lease, LeasePhase.ENDED)
    core.cycle(MINUTE + 1_000)
    assert core.placed() == [owner]


def _weighted(name: str, weight: int) -> list[QueueConfigured]:
    return [QueueConfigured(spec=QueueSpec(name=name, weight=weight))]


def in_a_cohort(*scopes: str, nominal: int = 4_000) -> Core:
    """Two queues of a cohort on eight GPUs, with so much of their own each."""
    core = preempting(*scopes)
    core.home(a=gpus(8))
    core.queue("all")
    core.queue("mine", {"gpu": Quota(nominal=nominal)}, parent="all")
    core.queue("theirs", {"gpu": Quota(nominal=nominal)}, parent="all")
    return core


def test_who_reclaims_gives_up_less_urgent_work_of_its_own_to_stay_within_nominal() -> None:
    """Neither alone would do: its own two GPUs are too few, and with a borrower's room alone it would borrow itself."""
    core = in_a_cohort("queue", "reclaim")
    own = core.submit(job(2, queue="mine"))
    borrower = core.submit(job(6, queue="theirs", priority=9))
    core.cycle(0)
    core.submit(job(4, queue="mine", priority=5))
    core.cycle(MINUTE)
    assert sorted(revoked(core)) == [f"j{own}.1", f"j{borrower}.1"]


def test_what_cannot_end_within_nominal_is_never_reclaimed_for() -> None:
    core = in_a_cohort("queue", "reclaim")
    core.submit(job(2, queue="mine", priority=9))
    core.submit(job(6, queue="theirs"))
    core.cycle(0)
    core.submit(job(4, queue="mine", priority=5))
    core.cycle(MINUTE)
    assert revoked(core) == []


def test_borrowers_give_way_to_more_urgent_borrowers_until_they_are_at_their_nominal_quota() -> None:
    """Of two that are less urgent in the other queue one may go: without it the queue is within its nominal quota."""
    for asked, expected in ((2, 1), (4, 0)):
        core = in_a_cohort("borrowers")
        core.submit(job(2, queue="mine", priority=9))
        older = core.submit(job(3, queue="theirs"))
        newer = core.submit(job(3, queue="theirs", priority=1))
        core.cycle(0)
        core.submit(job(asked, queue="mine", priority=5))
        core.cycle(MINUTE)
        assert len(revoked(core)) == expected
        assert core.state.jobs[older].lease is not None or core.state.jobs[newer].lease is not None


def test_who_lacks_only_quota_that_is_being_given_back_evicts_nobody_for_it_and_waits() -> None:
    """The victim of another has not left: its quota is not free yet; that anybody else goes would change nothing."""
    core = preempting("queue")
    core.home(a=gpus(16))
    core.queue("team", {"gpu": 10_000})
    large, small = core.submit(job(8)), core.submit(job(2))
    core.cycle()
    first = core.submit(job(4, priority=5))
    core.cycle(MINUTE)
    assert revoked(core) == [f"j{large}.1"]
    second = core.submit(job(2, priority=5))
    core.cycle(2 * MINUTE)
    assert (revoked(core), core.last(RoomPromised)) == ([], [])
    assert core.closed.waiting == {"quota": 1, "room-promised": 1}
    core.cycle(3 * MINUTE)
    assert core.placed() == []
    core.report(f"j{large}.1", LeasePhase.ENDED)
    core.cycle(4 * MINUTE)
    assert core.placed() == [first, second]
    assert core.state.jobs[small].lease is not None


def two_promises() -> tuple[Core, list[int], list[int]]:
    """Eight GPUs are given up for four of one model, and four for four of another: (core, victims, preemptors)."""
    core = preempting("queue")
    core.home(a=gpus(8), t=gpus(4, "T4"))
    core.queue("team", {"gpu": 16_000})
    low = [core.submit(job(8, gpu_models=("A100",))), core.submit(job(4, gpu_models=("T4",)))]
    core.cycle()
    urgent = [core.submit(job(4, priority=5, gpu_models=(model,))) for model in ("A100", "T4")]
    core.cycle(MINUTE)
    assert revoked(core) == [f"j{id_}.1" for id_ in low]
    return core, low, urgent


def test_promised_room_is_granted_only_once_others_have_given_their_quota_back() -> None:
    core, low, urgent = two_promises()
    core.queue("team", {"gpu": 10_000})
    core.report(f"j{low[1]}.1", LeasePhase.ENDED)
    core.cycle(2 * MINUTE)
    assert core.placed() == []
    assert core.closed.waiting["room-promised"] == 2
    core.report(f"j{low[0]}.1", LeasePhase.ENDED)
    core.cycle(3 * MINUTE)
    assert core.placed() == urgent


def test_a_promise_that_quota_was_taken_from_is_let_go_of() -> None:
    core, low, urgent = two_promises()
    core.queue("team", {"gpu": 4_000})
    core.report(f"j{low[1]}.1", LeasePhase.ENDED)
    core.cycle(2 * MINUTE)
    assert core.placed() == []
    assert [(event.job, event.cause) for event in core.last(PromiseReleased)] == [(urgent[1], "quota-gone")]
    core.report(f"j{low[0]}.1", LeasePhase.ENDED)
    core.cycle(3 * MINUTE)
    assert core.placed() == [urgent[0]]


def test_a_cohort_that_still_runs_jobs_of_its_own_has_no_share_beside_its_children() -> None:
    """What was a queue became a cohort: its leases and the queue below it have no level at which to compare."""
    core = preempting("fair-share")
    core.home(a=gpus(2))
    core.queue("team")
    core.submit(job(2, queue="team"))
    core.cycle()
    core.queue("below", parent="team")
    core.submit(job(1, queue="below"))
    core.cycle(MINUTE)
    assert revoked(core) == []
