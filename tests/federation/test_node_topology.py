"""Where a node is reaches the log as the cluster says it, and is not forgotten when the node dies."""

from __future__ import annotations

from controlplane.domain.clusters import NodeState
from controlplane.domain.topology import Level
from federation.simulated.config import NodeGroup
from tests.federation.grounds import HOUR_MS, SHAPE, Beside

RACK = NodeGroup(count=2, prefix="n", shape=SHAPE, flavor="a100", topology={Level.BLOCK: "b1", Level.RACK: "r7"})


def test_the_topology_of_a_group_is_reported_for_each_of_its_nodes() -> None:
    beside = Beside(nodes=(RACK,), deaths=[{"node": "n1", "at_ms": 1_000, "for_ms": 1_000}])
    beside.run(HOUR_MS)
    told = [(event.node, event.state, event.topology) for event in beside.nodes()]
    where = {Level.BLOCK: "b1", Level.RACK: "r7"}
    assert told == [
        ("n0", NodeState.READY, where),
        ("n1", NodeState.READY, where),
        ("n1", NodeState.LOST, where),
        ("n1", NodeState.READY, where),
    ]
