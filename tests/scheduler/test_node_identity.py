"""Two clusters with nodes of the same names: common in the field, and none of the other's business."""

from __future__ import annotations

from controlplane.domain.clusters import ClusterSpec, NodeState
from controlplane.domain.codec import encode
from controlplane.domain.events import (
    CapacityObserved,
    CapacityPhase,
    CapacityRequested,
    ClusterConfigured,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    ReservationMade,
    RoomPromised,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.topology import Level, TopologyRequest
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.decide import decide
from controlplane.scheduler.snapshot import restore, take
from tests.scheduler.core import CLOUD, HOME, Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules

OTHER = "other"
MINUTE = 60_000


def two_clusters(*names: str, rules: PlainRules | None = None) -> Core:
    """Two clusters with nodes of two GPUs each, under the same names."""
    core = Core(rules)
    core.home(**{name: gpus(2) for name in names})
    core.tell(ClusterConfigured(spec=ClusterSpec(name=OTHER)))
    for name in names:
        core.node(name, gpus(2), cluster=OTHER)
    core.queue("team")
    return core


def test_each_cluster_keeps_its_own_node() -> None:
    core = two_clusters("n1")
    assert list(core.state.nodes) == [NodeId(HOME, "n1"), NodeId(OTHER, "n1")]
    assert core.state.capacity["gpu"] == 4_000
    core.submit(job(2))
    core.submit(job(2))
    core.cycle(1)
    granted = core.last(LeaseGranted)
    assert [(event.cluster, event.members[0].node) for event in granted] == [(HOME, "n1"), (OTHER, "n1")]


def test_a_lost_node_strands_only_what_runs_in_its_own_cluster() -> None:
    core = two_clusters("n1")
    first, second = core.submit(job(2)), core.submit(job(2))
    core.cycle(1)
    core.node("n1", gpus(2), NodeState.LOST, cluster=OTHER)
    core.cycle(2)
    assert [event.lease for event in core.last(LeaseRevoked)] == [core.lease_of(second)]
    assert core.state.leases[core.lease_of(first)].revoked is None
    assert core.state.capacity["gpu"] == 2_000


def test_a_gang_never_spans_two_nodes_of_one_name() -> None:
    core = two_clusters("n1")
    core.submit(job(2, members=2))
    core.cycle(1)
    assert core.placed() == []


def test_a_reservation_names_its_cluster_where_the_names_alone_do_not() -> None:
    rules = PlainRules(may_reserve=True, depth=lambda job: 1)
    core = two_clusters("n1", rules=rules)
    for _ in range(2):
        core.submit(job(2, estimate_ms=10 * MINUTE))
    core.cycle(1)
    waits = core.submit(job(2, estimate_ms=MINUTE))
    core.cycle(2)
    [made] = core.last(ReservationMade)
    assert (made.cluster, made.nodes) == (HOME, ("n1",))
    assert core.state.reservations[waits].nodes == (NodeId(HOME, "n1"),)
    assert restore(take(core.state)).reservations[waits].nodes == (NodeId(HOME, "n1"),)


def test_where_names_are_unique_the_log_has_no_cluster() -> None:
    rules = PlainRules(may_reserve=True, depth=lambda job: 1)
    core = Core(rules)
    core.home(n1=gpus(2))
    core.queue("team")
    core.submit(job(2, estimate_ms=10 * MINUTE))
    core.cycle(1)
    waits = core.submit(job(2, estimate_ms=MINUTE))
    core.cycle(2)
    [made] = core.last(ReservationMade)
    assert b"cluster" not in encode(made)
    assert core.state.reservations[waits].nodes == (NodeId(HOME, "n1"),)


def test_a_cluster_speaks_for_its_own_leases_only() -> None:
    core = two_clusters("n1")
    id_ = core.submit(job(2))
    core.cycle(1)
    lease = core.lease_of(id_)
    assert core.state.leases[lease].cluster == HOME
    core.tell(LeaseObserved(cluster=OTHER, lease=lease, phase=LeasePhase.FINISHED, observed_ms=1))
    assert core.state.leases[lease].job.id == id_
    core.tell(LeaseObserved(cluster=HOME, lease=lease, phase=LeasePhase.FINISHED, observed_ms=1))
    assert lease not in core.state.leases


def test_a_cluster_speaks_for_its_own_capacity_only() -> None:
    core = Core(PlainRules(cost=lambda job, home, offer, now_ms: offer.cost_micro_usd))
    core.home(n1=gpus(1))
    core.cloud(offer("a", 1_000_000))
    core.queue("team")
    core.budget("money", 10**12)
    core.submit(job(8))
    core.cycle(MINUTE)
    [request] = core.state.requests.values()
    told = CapacityObserved(cluster=OTHER, request=request.id, phase=CapacityPhase.FAILED, observed_ms=1)
    core.tell(told)
    assert request.id in core.state.requests


def test_a_node_that_shrinks_crowds_out_only_who_is_on_it() -> None:
    core = two_clusters("n1")
    first, second = core.submit(job(2)), core.submit(job(2))
    core.cycle(1)
    core.node("n1", gpus(1), cluster=OTHER)
    core.cycle(2)
    assert [event.lease for event in core.last(LeaseRevoked)] == [core.lease_of(second)]
    assert core.state.nodes[NodeId(HOME, "n1")].leases == {
        core.lease_of(first): core.state.leases[core.lease_of(first)]
    }


def test_a_lost_node_is_gone_with_the_last_lease_on_it_and_its_name_is_plain_again() -> None:
    core = two_clusters("n1")
    core.submit(job(2))
    second = core.submit(job(2))
    core.cycle(1)
    assert core.state.label(NodeId(OTHER, "n1")) == "other/n1"
    core.node("n1", gpus(2), NodeState.LOST, cluster=OTHER)
    core.report(core.lease_of(second), LeasePhase.LOST)
    assert list(core.state.nodes) == [NodeId(HOME, "n1")]
    assert core.state.label(NodeId(HOME, "n1")) == "n1"


def test_room_is_promised_and_granted_in_the_cluster_of_the_victims() -> None:
    """The node of that name at home is cordoned, so that what stands in the way is in the other cluster only."""
    rules = PlainRules(may_preempt=True, allow=lambda job, queue, shortage: ("queue",))
    core = two_clusters("n1", rules=rules)
    low = [core.submit(job(2)) for _ in range(2)]
    core.cycle(1)
    core.node("n1", gpus(2), NodeState.CORDONED)
    urgent = core.submit(job(2, priority=5))
    core.cycle(MINUTE)
    [promised] = core.last(RoomPromised)
    assert (promised.job, promised.cluster, promised.victims) == (urgent, OTHER, (core.lease_of(low[1]),))
    core.report(core.lease_of(low[0]), LeasePhase.FINISHED)
    core.cycle(2 * MINUTE)
    assert core.placed() == [], "what is free at home is cordoned, and what is promised is not free"
    core.report(core.lease_of(low[1]), LeasePhase.ENDED)
    core.cycle(3 * MINUTE)
    assert [(event.job, event.cluster) for event in core.last(LeaseGranted)] == [(urgent, OTHER)]


def test_a_gang_grows_in_its_own_cluster() -> None:
    core = two_clusters("n1")
    core.submit(job(2))
    role = Role(count=2, min_count=1, gpus=2)
    wide = core.submit(JobSpec(name="wide", queue="team", roles=(role,)))
    core.cycle(1)
    assert core.state.leases[core.lease_of(wide)].cluster == OTHER
    core.node("n2", gpus(2))
    core.cycle(2)
    assert core.last(LeaseGrown) == [], "n2 is at home"
    core.node("n2", gpus(2), cluster=OTHER)
    core.cycle(3)
    assert [event.members[0].node for event in core.last(LeaseGrown)] == ["n2"]
    seats = core.state.leases[core.lease_of(wide)].seats
    assert [seat.node for seat in seats] == [NodeId(OTHER, "n1"), NodeId(OTHER, "n2")]


def test_hosts_of_one_name_are_two_domains() -> None:
    core = two_clusters("n1")
    core.submit(job(2))
    core.cycle(1)
    near = core.submit(job(1, members=2, topology=TopologyRequest(required=Level.HOST)))
    core.cycle(2)
    assert {seat.node for seat in core.state.leases[core.lease_of(near)].seats} == {NodeId(OTHER, "n1")}


def test_rent_is_for_its_job_though_a_node_at_home_has_its_name() -> None:
    core = Core(PlainRules(cost=lambda job, home, offer, now: 1))
    core.home(n1=gpus(2))
    core.cloud(offer("box", 1_000_000, count=2))
    core.queue("team")
    stays, away = core.submit(job(2)), core.submit(job(2, estimate_ms=MINUTE))
    core.cycle(1)
    [asked] = core.last(CapacityRequested)
    core.node("n1", gpus(2), cluster=CLOUD, flavor="a100-cloud", request=asked.request)
    core.capacity(asked.request, CapacityPhase.PROVIDED, nodes=("n1",))
    core.cycle(2)
    assert [(event.job, event.cluster) for event in core.last(LeaseGranted)] == [(away, CLOUD)]
    leases = core.state.leases
    assert (leases[core.lease_of(stays)].requests, leases[core.lease_of(away)].requests) == ((), (asked.request,))
    assert core.state.owned["a100", "gpu"] == 2_000
    core.finish(stays)
    assert core.state.requests[asked.request].leases == 1, "the rent is still in use"


def test_people_are_told_the_cluster_where_the_name_does_not_say_it() -> None:
    rules = PlainRules(may_reserve=True, depth=lambda job: 1)
    core = two_clusters("n1", rules=rules)
    for _ in range(2):
        core.submit(job(1, estimate_ms=10 * MINUTE))
        core.submit(job(2, estimate_ms=5 * MINUTE))
        core.cycle(1)
    waits = core.submit(job(2, estimate_ms=MINUTE))
    core.cycle(2)
    watch = decide(core.state, core.rules, watched_job=waits).watch
    assert watch is not None
    [role], [hold] = watch.roles, watch.reservations
    assert role.nearest in ("home/n1", "other/n1")
    assert hold.nodes in (("home/n1",), ("other/n1",))
