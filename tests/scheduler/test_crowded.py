"""A node is reported smaller than what runs on it. Who has no room there any more is released, and until it has left
nobody else is put onto what it still holds."""

from __future__ import annotations

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    MemberName,
    PromiseReleased,
    RoomPromised,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.workloads import JobSpec, Role
from tests.scheduler.core import HOME, Core, gpus, job
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000
AT = NodeId(HOME, "n")


def one_node(count: int = 4, rules: PlainRules | None = None) -> Core:
    core = Core(rules)
    core.queue("team")
    core.home(n=gpus(count))
    return core


def test_what_a_crowded_out_gang_still_holds_is_given_to_nobody() -> None:
    core = one_node()
    large = core.submit(job(4, max_attempts=1))
    core.cycle(1)
    lease = core.lease_of(large)
    core.node("n", gpus(3))
    small = core.submit(job(2))
    core.cycle(2)
    assert [(event.lease, event.cause) for event in core.last(LeaseRevoked)] == [(lease, "node-lost")]
    assert core.placed() == []
    assert core.waiting()[small].tally is not None
    core.cycle(MINUTE)
    assert core.placed() == []
    core.report(lease, LeasePhase.ENDED)
    core.cycle(MINUTE + 1)
    assert core.placed() == [small]


def test_who_still_has_room_stays_and_the_node_opens_again_with_what_they_leave() -> None:
    core = one_node()
    first, second = core.submit(job(2)), core.submit(job(2, max_attempts=1))
    core.cycle(1)
    core.node("n", gpus(3))
    core.cycle(2)
    assert [event.lease for event in core.last(LeaseRevoked)] == [core.lease_of(second)]
    newcomer = core.submit(job(1))
    core.report(core.lease_of(second), LeasePhase.ENDED)
    core.cycle(3)
    assert core.placed() == [newcomer]
    assert core.state.jobs[first].lease is not None


def test_a_node_that_is_lost_while_a_crowded_out_gang_is_on_it_is_remembered_until_that_has_left() -> None:
    """Else it would come back with more free than it has, as soon as the gang's end is reported."""
    core = one_node()
    large = core.submit(job(4, max_attempts=1))
    core.cycle(1)
    lease = core.lease_of(large)
    core.node("n", gpus(3))
    core.node("n", gpus(3), NodeState.LOST)
    core.cycle(2)
    core.node("n", gpus(4))
    core.cycle(3)
    assert core.state.nodes[AT].crowded == [lease]
    core.report(lease, LeasePhase.LOST)
    next_ = core.submit(job(4))
    core.cycle(4)
    assert core.placed() == [next_]
    assert list(core.state.nodes) == [AT]


def test_a_lost_node_is_forgotten_with_the_last_that_was_crowded_out_of_it() -> None:
    core = one_node()
    large = core.submit(job(4))
    core.cycle(1)
    core.node("n", gpus(3))
    core.node("n", gpus(3), NodeState.LOST)
    assert list(core.state.nodes) == [AT]
    core.report(core.lease_of(large), LeasePhase.LOST)
    assert core.state.nodes == {}


def test_a_member_that_is_crowded_out_and_leaves_opens_the_node_again() -> None:
    core = Core()
    core.queue("team")
    core.home(a=gpus(1), b=gpus(1))
    core.submit(JobSpec(name="e", queue="team", roles=(Role(count=2, min_count=1, gpus=1),)))
    core.cycle(1)
    lease = next(iter(core.state.leases.values()))
    gone = lease.seats[1]
    core.node(gone.node.name, gpus(0))
    assert core.state.nodes[gone.node].crowded == [lease.id]
    there = (MemberName(role="main", ordinal=lease.seats[0].ordinal),)
    core.tell(
        LeaseObserved(cluster=HOME, lease=lease.id, phase=LeasePhase.RESIZED, observed_ms=1, revision=1, members=there)
    )
    assert core.state.nodes[gone.node].crowded == []


def test_a_start_can_be_reserved_behind_a_crowded_out_gang() -> None:
    """Looking ahead, everybody is taken to leave: who has no room on a node leaves nothing there."""
    core = one_node(rules=PlainRules(may_reserve=True, depth=lambda job: 1))
    core.submit(job(4, estimate_ms=MINUTE))
    core.cycle(1)
    core.node("n", gpus(3))
    core.submit(job(3))
    core.cycle(2)
    assert core.closed.waiting["capacity"] == 1


def test_room_that_is_promised_on_a_node_that_is_crowded_is_let_go_of() -> None:
    core = one_node(rules=PlainRules(may_preempt=True, allow=lambda job, queue, shortage: ("queue",)))
    core.submit(job(2))
    core.submit(job(2))
    core.cycle(1)
    core.submit(job(2, priority=5))
    core.cycle(2)
    [promise] = core.last(RoomPromised)
    core.node("n", gpus(3))
    core.report(promise.victims[0], LeasePhase.ENDED)
    core.cycle(3)
    assert len(core.last(PromiseReleased)) == 1
    assert core.placed() == []
