"""Two clusters with nodes of the same names: common in the field, and none of the other's business."""

from __future__ import annotations

from controlplane.domain.clusters import ClusterSpec, NodeState
from controlplane.domain.codec import encode
from controlplane.domain.events import (
    CapacityObserved,
    CapacityPhase,
    ClusterConfigured,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    ReservationMade,
)
from controlplane.domain.ids import NodeId
from controlplane.scheduler.snapshot import restore, take
from tests.scheduler.core import HOME, Core, gpus, job, offer
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
