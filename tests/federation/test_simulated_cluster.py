"""The simulated cluster is a world of its own: what happens there does not depend on who looks, how often, or in which
order they call."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import LeasePhase
from controlplane.domain.quantities import ceil_div, cost_micro_usd
from federation.agent import open_adapter
from federation.port import BadConfig, CapacityWanted, SeenPhase
from federation.simulated.adapter import SimulatedAdapter
from federation.simulated.client import Gang, SimulatedCluster
from federation.simulated.config import SimulatedConfig, TrueRun
from tests.federation.grounds import HOUR_MS, LEAD_MS, PRICE, SPEC

NODES = [{"count": 12, "prefix": "n", "shape": {"cpu_milli": 1, "memory_bytes": 1}, "flavor": "cpu"}]
History = dict[str, list[tuple[int, SeenPhase]]]


def cluster(**settings: object) -> SimulatedCluster:
    config = SimulatedConfig.model_validate({"nodes": NODES} | settings)
    return SimulatedCluster(SPEC, config, lambda job: TrueRun(job * 1_000, LeasePhase.FINISHED))


def history(world: SimulatedCluster, step_ms: int | None, until_ms: int) -> History:
    """When each gang was first seen in each phase, looking at every event or at every ``step_ms``."""
    seen: History = {}
    now_ms, mark = 0, None
    while now_ms <= until_ms:
        changes = world.look(now_ms, mark)
        mark = changes.mark
        for gang in changes.gangs:
            seen.setdefault(gang.name, []).append((now_ms, gang.phase))
        next_ms = world.next_event_ms(now_ms) if step_ms is None else now_ms + step_ms
        if next_ms is None:
            break
        now_ms = next_ms
    return seen


@given(st.permutations(list(range(1, 9))))
def test_the_order_of_launches_changes_nothing(order: list[int]) -> None:
    """Kills: jitter from a stream of random numbers, ids given by a counter of calls."""

    def lives(jobs: list[int]) -> History:
        world = cluster(seed=3, launch_delay_ms=100, launch_jitter_ms=5_000, failures={"mean_ms": 20_000})
        for job in jobs:
            world.launch(Gang(f"j{job}.1", job, ((f"n{job:02d}", ()),)), 0)
        return history(world, None, HOUR_MS)

    assert lives(order) == lives(sorted(order))


@given(st.integers(min_value=1, max_value=3_000))
def test_looking_more_often_changes_nothing(step_ms: int) -> None:
    """Kills: what is due is let happen at the time of the look instead of its own."""

    def end_of(step: int | None) -> list[tuple[str, SeenPhase, str]]:
        world = cluster(seed=5, launch_jitter_ms=4_000, failures={"mean_ms": 30_000, "repair_ms": 5_000})
        for job in range(1, 9):
            world.launch(Gang(f"j{job}.1", job, ((f"n{job:02d}", ()),)), 0)
        history(world, step, 60_000)
        return [(gang.name, gang.phase, gang.detail) for gang in world.look(60_000, None).gangs]

    assert end_of(step_ms) == end_of(None)


@given(
    st.lists(
        st.tuples(st.integers(0, HOUR_MS), st.integers(1, 4), st.integers(0, 2 * HOUR_MS)), min_size=1, max_size=4
    ),
    st.sampled_from([1, 1_000, 60_000, HOUR_MS]),
)
def test_the_bill_is_what_the_nodes_were_there_for(rentals: list[tuple[int, int, int]], billing_ms: int) -> None:
    """Kills: charging from the request instead of the ready node, rounding once per node, charging after the end."""
    world = cluster(nodes=[], provider={"billing_ms": billing_ms})
    calls: list[tuple[int, int, int]] = []
    for number, (at_ms, _, held_ms) in enumerate(rentals):
        calls += [(at_ms, number, 0), (at_ms + held_ms, number, 1)]
    expected = 0
    for at_ms, number, is_release in sorted(calls):
        if is_release:
            world.release(f"c1.{number}", at_ms)
        else:
            world.request(CapacityWanted(f"c1.{number}", "a100", rentals[number][1], 10 * HOUR_MS), at_ms)
    for _, nodes, held_ms in rentals:
        there_ms = max(0, held_ms - LEAD_MS)
        expected += cost_micro_usd(PRICE, nodes * ceil_div(there_ms, billing_ms) * billing_ms)
    assert world.bill_micro_usd(100 * HOUR_MS) == expected


def test_a_bill_can_be_asked_while_nodes_run() -> None:
    world = cluster(nodes=[])
    world.request(CapacityWanted("c1.0", "a100", 2, 10 * HOUR_MS), 0)
    assert world.bill_micro_usd(LEAD_MS) == 0
    assert world.bill_micro_usd(LEAD_MS + HOUR_MS) == 2 * PRICE
    assert world.bill_micro_usd(LEAD_MS + HOUR_MS, "c1.0") == 2 * PRICE
    assert world.bill_micro_usd(LEAD_MS + HOUR_MS, "c1.1") == 0


def test_work_that_is_done_in_the_instant_in_which_its_node_dies_is_done() -> None:
    world = cluster(deaths=[{"node": "n03", "at_ms": 3_000}])
    world.launch(Gang("j3.1", 3, (("n03", ()),)), 0)
    world.launch(Gang("j4.1", 4, (("n03", ()),)), 0)
    phases = {gang.name: gang.phase for gang in world.look(3_000, None).gangs}
    assert phases == {"j3.1": SeenPhase.FINISHED, "j4.1": SeenPhase.LOST}


def test_names_of_nodes_sort_as_their_numbers() -> None:
    world = cluster(nodes=[NODES[0] | {"prefix": None}])
    names = [node.name for node in world.look(0, None).nodes]
    assert names == sorted(names)
    assert names[0] == "cloud/0-00"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nodes": [{"count": 0, "shape": {"cpu_milli": 1, "memory_bytes": 1}, "flavor": "x"}]}, "nodes.0.count"),
        ({"nodes": [NODES[0] | {"names": ["a"]}]}, "names"),
        ({"nodes": [NODES[0], NODES[0]]}, "two nodes have the name 'n00'"),
        ({"launch_delay": 5}, "launch_delay"),
        ({"provider": {"failure_ppm": 2_000_000}}, "provider.failure_ppm"),
        ({"outages": [{"from_ms": 1, "until_ms": 2, "calls": ["dance"]}]}, "outages.0.calls.0"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(settings: dict[str, object], says: str) -> None:
    with pytest.raises(BadConfig, match=r"^cluster 'cloud': [^\n]+$") as caught:
        SimulatedAdapter(SPEC, settings)
    assert says in str(caught.value)


def test_a_death_of_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadConfig, match="'n99'"):
        SimulatedAdapter(ClusterSpec(name="home"), {"nodes": NODES, "deaths": [{"node": "n99", "at_ms": 5}]})


def test_adapters_are_found_by_name_and_a_missing_one_is_named() -> None:
    adapter = open_adapter(
        ClusterSpec(name="home"), {"nodes": NODES, "default_runtime_ms": 5, "runtimes_ms": {"j1": 7}}
    )
    assert adapter.cluster == "home"
    assert len(adapter.observe(0).nodes) == 12
    with pytest.raises(BadConfig, match="no adapter 'abacus' is installed"):
        open_adapter(ClusterSpec(name="home", adapter="abacus"), {})
