"""Elastic gangs: they start with what they need, grow behind everybody's back, and shrink before anyone is evicted."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    Event,
    JobRequeued,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    MemberName,
    RoomPromised,
)
from controlplane.domain.queues import Quota
from controlplane.domain.topology import Level, TopologyRequest
from controlplane.domain.workloads import JobSpec, Role
from tests.scheduler.core import HOME, Core, gpus, job
from tests.twins.plain_rules import PlainRules


def elastic(least: int, most: int, *, size: int = 1, queue: str = "team", **more: object) -> JobSpec:
    """A gang of one role of so many members."""
    role = Role(name="main", count=most, min_count=least, gpus=size)
    return JobSpec.model_validate({"name": "elastic", "queue": queue, "roles": (role,), **more})


def preempting(*scopes: str) -> Core:
    return Core(PlainRules(may_preempt=True, allow=lambda job, queue, shortage: scopes))


def members(core: Core, of: int) -> list[int]:
    """Ordinals that hold room."""
    return sorted(seat.ordinal for seat in core.state.leases[core.lease_of(of)].seats)


def staying(core: Core, of: int) -> int:
    return len(core.state.leases[core.lease_of(of)].staying())


def resized(core: Core, of: int) -> None:
    """The cluster carried out what was decided."""
    lease = core.state.leases[core.lease_of(of)]
    there = tuple(MemberName(role=seat.role, ordinal=seat.ordinal) for seat in lease.staying())
    told(core, lease.id, lease.revision, there)


def told(core: Core, lease: str, revision: int, there: tuple[MemberName, ...]) -> None:
    core.tell(
        LeaseObserved(
            cluster=HOME,
            lease=lease,
            phase=LeasePhase.RESIZED,
            observed_ms=core.state.now_ms,
            revision=revision,
            members=there,
        )
    )


def calm(core: Core, cycles: int = 3) -> list[Event]:
    """What further cycles decide, the agents having carried out everything before each."""
    decided: list[Event] = []
    for _ in range(cycles):
        for lease in list(core.state.leases.values()):
            if lease.revoked is not None:
                core.report(lease.id, LeasePhase.ENDED)
            elif any(seat.leaving for seat in lease.seats):
                resized(core, lease.job.id)
        decided += core.cycle(core.state.now_ms + 60_000)
    return decided


def test_more_at_least_than_at_most_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_count 4 is more than count 3"):
        Role(count=3, min_count=4)


def test_b6_a_gang_of_four_to_eight_starts_with_four_and_grows_when_room_appears() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(4))
    wide = core.submit(elastic(4, 8))
    core.cycle()
    assert core.placed() == [wide]
    assert members(core, wide) == [0, 1, 2, 3]
    assert core.last(LeaseGrown) == []
    core.node("n2", gpus(3))
    core.cycle()
    (grown,) = core.last(LeaseGrown)
    assert (grown.revision, [(m.ordinal, m.node) for m in grown.members]) == (1, [(4, "n2"), (5, "n2"), (6, "n2")])
    core.node("n3", gpus(4))
    core.cycle()
    assert members(core, wide) == list(range(8)), "never beyond the most"
    assert core.state.used[1]["gpu"] == 8_000
    core.finish(wide)
    assert core.state.used[1].get("gpu", 0) == 0


def test_it_starts_with_as_many_as_fit() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(6))
    wide = core.submit(elastic(4, 8))
    core.cycle()
    assert members(core, wide) == list(range(6))


def test_with_less_room_than_its_minimum_it_waits() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(3))
    wide = core.submit(elastic(4, 8))
    core.cycle()
    assert core.placed() == []
    assert wide in core.waiting()


def test_nobody_waits_because_somebody_grew() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(8))
    wide = core.submit(elastic(2, 8))
    narrow = [core.submit(job(gpu=1)) for _ in range(3)]
    core.cycle()
    assert core.placed() == [wide, *narrow]
    assert members(core, wide) == list(range(5))


def test_where_nothing_can_be_taken_back_nothing_is_given_while_somebody_waits() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(8))
    wide = core.submit(elastic(2, 8))
    big = core.submit(job(gpu=8))
    core.cycle()
    assert members(core, wide) == [0, 1]
    core.cancel(big)
    core.cycle()
    assert members(core, wide) == list(range(8))


def test_b6_it_shrinks_before_anyone_is_evicted_and_never_below_its_minimum() -> None:
    core = preempting("queue")
    core.queue("team")
    core.home(n1=gpus(8), n2=gpus(2))
    rigid = core.submit(job(gpu=1, members=2, priority=0))
    wide = core.submit(elastic(4, 8, priority=0))
    core.cycle()
    assert staying(core, wide) == 8
    urgent = core.submit(job(gpu=1, members=4, priority=9))
    core.cycle()
    assert core.last(LeaseRevoked) == [], f"{rigid} stays"
    (shrunk,) = core.last(LeaseShrunk)
    assert (shrunk.cause, shrunk.for_job, [m.ordinal for m in shrunk.members]) == ("preempted", urgent, [7, 6, 5, 4])
    (promised,) = core.last(RoomPromised)
    assert [(awaited.lease, awaited.revision) for awaited in promised.shrinks] == [(shrunk.lease, shrunk.revision)]
    core.cycle()
    assert core.placed() == [], "only an observation frees room"
    resized(core, wide)
    core.cycle()
    assert core.placed() == [urgent]
    more = core.submit(job(gpu=1, members=4, priority=9))
    core.cycle(core.state.now_ms + 60_000)
    assert core.last(LeaseShrunk) == [], "it has no more than it needs"
    assert {event.cause for event in core.last(LeaseRevoked)} == {"preempted"}, f"{more} evicts"


def test_a_gang_that_must_go_goes_with_all_its_members() -> None:
    core = preempting("queue")
    core.queue("team")
    core.home(n1=gpus(8))
    wide = core.submit(elastic(2, 8))
    core.cycle()
    urgent = core.submit(job(gpu=8, priority=9))
    core.cycle()
    assert core.last(LeaseShrunk) == []
    (revoked,) = core.last(LeaseRevoked)
    core.report(revoked.lease, LeasePhase.ENDED)
    core.cycle()
    assert core.placed() == [urgent]
    assert core.state.jobs[wide].failures == 0


def test_surplus_is_taken_back_by_equals_and_a_gang_at_its_minimum_is_not() -> None:
    core = preempting("surplus")
    core.queue("team")
    core.home(n1=gpus(8))
    wide = core.submit(elastic(4, 8))
    core.cycle()
    first = core.submit(job(gpu=1, members=3))
    core.cycle()
    assert [len(event.members) for event in core.last(LeaseShrunk)] == [3]
    resized(core, wide)
    core.cycle()
    assert core.placed() == [first]
    core.submit(job(gpu=1, members=2))
    core.cycle(60_000)
    assert not core.last(LeaseShrunk)
    assert not core.last(LeaseRevoked)


def test_a_report_of_an_older_revision_frees_nobody_who_came_later() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(2))
    wide = core.submit(elastic(2, 4))
    core.cycle()
    core.node("n2", gpus(2))
    core.cycle()
    two = (MemberName(role="main", ordinal=0), MemberName(role="main", ordinal=1))
    told(core, core.lease_of(wide), 0, two)
    assert members(core, wide) == [0, 1, 2, 3]


def test_a_cluster_that_does_not_let_it_grow_is_not_asked_again() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(4))
    wide = core.submit(elastic(2, 4))
    core.cycle()
    told(core, core.lease_of(wide), 1, (MemberName(role="main", ordinal=0), MemberName(role="main", ordinal=1)))
    assert members(core, wide) == [0, 1]
    core.cycle()
    assert core.last(LeaseGrown) == []
    other = core.submit(job(gpu=2))
    core.cycle()
    assert core.placed() == [other]


def test_no_report_takes_a_gang_below_its_minimum() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(4))
    wide = core.submit(elastic(2, 4))
    core.cycle()
    told(core, core.lease_of(wide), 9, ())
    assert members(core, wide) == [0, 1]


def test_a_cluster_that_can_only_stop_all_of_it_uses_up_no_attempt() -> None:
    core = preempting("queue")
    core.queue("team")
    core.home(n1=gpus(4))
    wide = core.submit(elastic(2, 4, max_attempts=1))
    core.cycle()
    urgent = core.submit(job(gpu=2, priority=9))
    core.cycle()
    core.report(core.lease_of(wide), LeasePhase.ENDED)
    core.cycle()
    assert set(core.placed()) >= {urgent}
    assert [event.cause for event in core.last(JobRequeued) if event.job == wide] == ["preempted"]
    assert core.state.jobs[wide].failures == 0


def test_growth_stays_in_the_domain_that_the_gang_requires() -> None:
    core = Core()
    core.queue("team")
    core.home(a1=gpus(2), a2=gpus(2))
    near = TopologyRequest(required=Level.HOST)
    wide = core.submit(elastic(1, 4, topology=near))
    core.cycle()
    assert len(members(core, wide)) == 2


def test_growth_is_shared_as_the_queues_are() -> None:
    core = Core()
    core.queue("a", {"gpu": Quota(nominal=8_000)})
    core.queue("b", {"gpu": Quota(nominal=8_000)})
    core.home(n1=gpus(8))
    a = core.submit(elastic(1, 8, queue="a"))
    b = core.submit(elastic(1, 8, queue="b"))
    core.cycle()
    assert (staying(core, a), staying(core, b)) == (4, 4)


def test_quota_bounds_growth() -> None:
    core = Core()
    core.queue("team", {"gpu": Quota(nominal=3_000)})
    core.home(n1=gpus(8))
    wide = core.submit(elastic(2, 8))
    core.cycle()
    assert staying(core, wide) == 3


@pytest.mark.parametrize("scopes", [("reclaim",), ("fair-share",), ("reclaim", "fair-share", "surplus", "queue")])
@pytest.mark.parametrize(("size", "least", "most", "jobs"), [(2, 2, 2, 2), (2, 2, 5, 1), (1, 2, 5, 3), (1, 2, 11, 1)])
def test_d3_eleven_slots_and_two_queues_entitled_to_five_come_to_rest_within_two_cycles(
    scopes: tuple[str, ...], size: int, least: int, most: int, jobs: int
) -> None:
    core = preempting(*scopes)
    for queue in ("a", "b"):
        core.queue(queue, {"gpu": Quota(nominal=5_000)})
    core.home(n1=gpus(11))
    for _ in range(jobs):
        core.submit(elastic(least, most, size=size, queue="a"))
        core.submit(elastic(least, most, size=size, queue="b"))
    core.cycle()
    calm(core, 1)
    quiet = [event for event in calm(core) if isinstance(event, LeaseGrown | LeaseShrunk | LeaseRevoked)]
    assert quiet == []


def test_b5_a_node_under_an_elastic_gang_dies_and_the_gang_is_released_whole() -> None:
    core = Core()
    core.queue("team")
    core.home(n1=gpus(4), n2=gpus(4))
    wide = core.submit(elastic(4, 8))
    core.cycle()
    assert staying(core, wide) == 8
    core.node("n2", gpus(4), NodeState.LOST)
    core.node("n2", gpus(4))
    core.cycle()
    assert [event.cause for event in core.last(LeaseRevoked)] == ["node-lost"]
    core.report(core.lease_of(wide), LeasePhase.ENDED)
    core.cycle()
    core.cycle()
    assert core.state.jobs[wide].attempts == 2
    assert staying(core, wide) == 8


def test_b4_a_failed_gang_starts_again_whole_and_eviction_uses_up_no_attempt() -> None:
    core = preempting("queue")
    core.queue("team")
    core.home(n1=gpus(4))
    gang = core.submit(job(gpu=1, members=4, max_attempts=2))
    core.cycle()
    urgent = core.submit(job(gpu=4, priority=9))
    core.cycle()
    core.report(core.lease_of(gang), LeasePhase.ENDED)
    core.cycle()
    core.finish(urgent)
    core.cycle()
    assert core.placed() == [gang]
    core.report(core.lease_of(gang), LeasePhase.RUNNING, LeasePhase.FAILED)
    core.cycle()
    core.cycle()
    assert core.placed() == [gang], "one failure of two: the eviction did not count"
    assert len(members(core, gang)) == 4
    core.report(core.lease_of(gang), LeasePhase.FAILED)
    core.cycle()
    assert gang not in core.state.jobs


def test_quota_that_an_eviction_gives_back_is_not_used_before_it_is_over() -> None:
    core = preempting("queue")
    core.queue("team", {"gpu": Quota(nominal=4_000)})
    core.home(n1=gpus(4), n2=gpus(4))
    low = core.submit(job(gpu=4))
    core.cycle()
    urgent = core.submit(job(gpu=1, priority=9))
    other = core.submit(job(gpu=3, priority=5))
    core.cycle()
    assert [event.job for event in core.last(RoomPromised)] == [urgent]
    assert core.placed() == []
    core.report(core.lease_of(low), LeasePhase.ENDED)
    core.cycle()
    assert core.placed() == [urgent, other]


def test_a_gang_whose_queue_became_a_cohort_does_not_grow() -> None:
    """The queue takes no jobs any more, and there is no turn in which it could grow."""
    core = Core()
    core.queue("team")
    core.home(a=gpus(1))
    core.submit(elastic(1, 4))
    core.cycle(1)
    core.queue("one", parent="team")
    core.queue("two", parent="team")
    core.node("b", gpus(4))
    core.cycle(2)
    assert core.last(LeaseGrown) == []


def test_quota_that_was_lowered_below_its_use_stops_no_gang_that_shrinks() -> None:
    """What holds after a decision is looked at after it: giving up members takes nothing."""
    core = preempting("surplus")
    core.queue("team", {"gpu": 4_000})
    core.queue("other")
    core.home(a=gpus(4))
    core.submit(elastic(1, 4))
    core.cycle(1)
    core.queue("team", {"gpu": 1_000})
    core.submit(elastic(1, 1, queue="other"))
    core.cycle(2)
    assert len(core.last(LeaseShrunk)) == 1


def test_quota_that_was_lowered_below_its_use_stops_no_member_that_asks_for_none_of_it() -> None:
    core = Core()
    core.queue("team", {"gpu": 4_000})
    core.home(a=gpus(4, cpu=1_000))
    roles = (Role(name="worker", count=2, gpus=2), Role(name="server", count=2, min_count=1, cpu_milli=1_000))
    core.submit(JobSpec(name="e", queue="team", roles=roles))
    core.cycle(1)
    core.queue("team", {"gpu": 1_000})
    core.node("b", gpus(0, cpu=1_000))
    core.cycle(2)
    assert [[member.role for member in event.members] for event in core.last(LeaseGrown)] == [["server"]]


def test_a_gang_that_is_evicted_whole_is_taken_out_of_the_draft_once() -> None:
    """Its members that could be spared were candidates of their own. What others find in the same cycle is what is
    there, and not less by those members."""
    core = preempting("queue")
    core.queue("team", {"gpu": 8_000})
    core.home(a=gpus(4), b=gpus(4, "T4"))
    core.submit(elastic(2, 4))
    core.cycle(1)
    urgent, next_ = core.submit(job(4, priority=9, gpu_models=("A100",))), core.submit(job(4, gpu_models=("T4",)))
    core.cycle(2)
    assert [event.job for event in core.last(RoomPromised)] == [urgent]
    assert core.placed() == [next_]
