"""The worked numbers of SCENARIOS A: who has how much once nobody can have more. Amounts are exact."""

from __future__ import annotations

import pytest

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import QueueConfigured, QuotaOverPromised
from controlplane.domain.quantities import MAX_AMOUNT
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.scheduler.agenda import agenda_for
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.timers import needs_cycle
from tests.scheduler.core import GIB, Core, gpus, job, offer

Tree = dict[str, tuple[str | None, int]]
"""Queue -> (its parent, its weight)."""


def shared(shape: NodeShape, tree: Tree) -> Core:
    """One node, and a tree of queues without quota."""
    core = Core()
    core.home(n=shape)
    for name, (parent, weight) in tree.items():
        core.tell(QueueConfigured(spec=QueueSpec(name=name, parent=parent, weight=weight)))
    return core


def ask(core: Core, queue: str, times: int, *, cpus: int = 0, gpu: int = 0, gib: int = 0, more: int = 0) -> list[int]:
    """The same small job again and again; ``more`` are bytes of memory beside the GiB."""
    spec = job(gpu, queue=queue, cpu=1_000 * cpus, memory_bytes=gib * GIB + more)
    return [core.submit(spec) for _ in range(times)]


def used(core: Core, resource: str, unit: int = 1_000) -> dict[str, int]:
    """Queue -> how much of a resource its jobs hold, of queues that hold any."""
    state = core.state
    found = {name: state.used[node.index].get(resource, 0) for name, node in state.tree.by_name.items()}
    return {name: amount // unit for name, amount in found.items() if amount}


def test_a1_two_kinds_of_task_are_granted_in_the_order_of_dominant_shares() -> None:
    core = shared(NodeShape(cpu_milli=9_000, memory_bytes=18 * GIB), {"a": (None, 1), "b": (None, 1)})
    first = ask(core, "b", 4, cpus=3, gib=1)
    second = ask(core, "a", 6, cpus=1, gib=4)
    core.cycle(1)
    # The worked example begins with B; of two queues that have nothing the first by name goes first here.
    assert core.placed() == [second[0], first[0], second[1], first[1], second[2]]
    assert used(core, "cpu") == {"a": 3, "b": 6}
    assert used(core, "memory", GIB) == {"a": 12, "b": 2}


EQUAL: Tree = {"n1": (None, 1), "n2": (None, 1), "n3": (None, 1), "n3.1": ("n3", 1), "n3.2": ("n3", 1), "n4": (None, 1)}


def thirty() -> Core:
    return shared(NodeShape(cpu_milli=30_000, memory_bytes=30 * GIB), EQUAL)


def test_a2_a_cohort_of_unlike_teams_gets_half_of_each() -> None:
    core = shared(gpus(10, cpu=10_000), {"sci": (None, 1), "eng": (None, 1), "dev": ("eng", 1), "prod": ("eng", 1)})
    ask(core, "sci", 12, cpus=1, gpu=1)
    ask(core, "dev", 12, cpus=1)
    ask(core, "prod", 12, gpu=1)
    core.cycle(1)
    assert used(core, "cpu") == {"sci": 5, "eng": 5, "dev": 5}
    assert used(core, "gpu") == {"sci": 5, "eng": 5, "prod": 5}


def test_a3_nobody_is_blocked_by_what_a_sister_uses() -> None:
    core = thirty()
    for name in ("n1", "n2", "n3.1"):
        ask(core, name, 40, cpus=1)
    for name in ("n3.2", "n4"):
        ask(core, name, 40, gib=1)
    core.cycle(1)
    assert used(core, "cpu") == {"n1": 10, "n2": 10, "n3": 10, "n3.1": 10}
    assert used(core, "memory", GIB) == {"n3": 15, "n3.2": 15, "n4": 15}


def test_a3_who_comes_when_a_sister_has_much_already_gets_as_much_as_the_others() -> None:
    """Kills: the dominant share of all that a cohort uses (n3.1 gets nothing, since n3.2 holds all memory)."""
    core = thirty()
    ask(core, "n3.2", 40, gib=1)
    core.cycle(1)
    for name in ("n1", "n2", "n3.1"):
        ask(core, name, 40, cpus=1)
    core.cycle(2)
    assert used(core, "cpu") == {"n1": 10, "n2": 10, "n3": 10, "n3.1": 10}
    assert used(core, "memory", GIB) == {"n3": 30, "n3.2": 30}


def test_a3_stays_so_while_tasks_end_and_others_follow() -> None:
    """Kills: a cohort that is judged by what is not contested (n3.1 loses one CPU after the other), also if every task
    asks for a little of the other resource."""
    core = thirty()
    for name in ("n1", "n2", "n3.1"):
        ask(core, name, 60, cpus=1, more=1_000_000)
    for name in ("n3.2", "n4"):
        ask(core, name, 60, gib=1)
    core.cycle(1)
    for round_ in range(2, 8):
        for id_ in sorted(core.state.jobs)[:60:4]:
            if core.state.jobs[id_].lease is not None:
                core.finish(id_)
        core.cycle(round_)
        assert used(core, "cpu") == {"n1": 10, "n2": 10, "n3": 10, "n3.1": 10}


def test_a3_for_what_is_contested_the_whole_cohort_counts() -> None:
    """Kills: a cohort judged by its poorest queue alone, which would give n3 memory for its third team as well."""
    core = shared(NodeShape(cpu_milli=30_000, memory_bytes=30 * GIB), {**EQUAL, "n3.3": ("n3", 1)})
    ask(core, "n3.1", 40, cpus=1)
    ask(core, "n1", 40, cpus=1)
    for name in ("n3.2", "n3.3", "n4"):
        ask(core, name, 40, gib=1)
    core.cycle(1)
    assert used(core, "cpu") == {"n1": 15, "n3": 15, "n3.1": 15}
    memory = used(core, "memory", GIB)
    assert memory == {"n3": 15, "n3.2": 8, "n3.3": 7, "n4": 15}


@pytest.mark.parametrize(
    ("weights", "demands", "expected"),
    [
        ((1, 1), (1, 1_000), {"a": 1, "b": 99}),
        ((1, 3), (1_000, 1), {"a": 99, "b": 1}),
        ((1, 1, 1), (1, 40, 1_000), {"a": 1, "b": 40, "c": 59}),
        ((1, 1), (0, 0), {}),
    ],
)
def test_a4_shares_end_at_what_is_asked(
    weights: tuple[int, ...], demands: tuple[int, ...], expected: dict[str, int]
) -> None:
    names = "abc"[: len(weights)]
    tree: Tree = {name: (None, weight) for name, weight in zip(names, weights, strict=True)}
    core = shared(NodeShape(cpu_milli=100_000, memory_bytes=GIB), tree)
    for name, demand in zip(names, demands, strict=True):
        ask(core, name, min(demand, 120), cpus=1)
    core.cycle(1)
    assert used(core, "cpu") == expected


def test_a5_weights_count_at_each_level() -> None:
    tree: Tree = {"c1": (None, 1), "c2": (None, 1), "2a": ("c2", 1)}
    tree |= {"1a": ("c1", 1), "1b": ("c1", 1), "1c": ("c1", 3)}
    core = shared(gpus(300), tree)
    for name in ("1a", "1b", "1c", "2a"):
        ask(core, name, 160, gpu=1)
    core.cycle(1)
    assert used(core, "gpu") == {"1a": 30, "1b": 30, "1c": 90, "2a": 150, "c1": 150, "c2": 150}


def test_a8_promises_may_exceed_capacity_and_placements_never() -> None:
    core = Core()
    core.home(n=NodeShape(cpu_milli=10_000, memory_bytes=GIB))
    for name in "abc":
        core.queue(name, {"cpu": Quota(nominal=5_000)})
    ids = [core.submit(job(queue=name, cpu=5_000)) for name in "abc"]
    core.cycle(1)
    assert core.placed() == ids[:2]
    assert used(core, "cpu") == {"a": 5, "b": 5}


def promised(core: Core) -> list[tuple[tuple[str, str, int, int], ...]]:
    reports = core.last(QuotaOverPromised)
    return [tuple((p.flavor, p.resource, p.promised, p.there) for p in report.promises) for report in reports]


def test_a8_promises_larger_than_capacity_are_reported_once_and_again_when_they_change() -> None:
    core = Core()
    for name in "abc":
        core.queue(name, {"cpu": 5_000})
    core.cycle(0)
    assert promised(core) == [], "no node has reported yet"
    core.home(n=NodeShape(cpu_milli=10_000, memory_bytes=GIB))
    assert needs_cycle(core.state), "it is reported though no job waits"
    core.cycle(1)
    assert promised(core) == [(("any", "cpu", 15_000, 10_000),)]
    assert not needs_cycle(core.state)
    core.cycle(2)
    assert promised(core) == []
    core.node("m", NodeShape(cpu_milli=2_000, memory_bytes=GIB))
    core.cycle(3)
    assert promised(core) == [(("any", "cpu", 15_000, 12_000),)]
    core.node("m", NodeShape(cpu_milli=5_000, memory_bytes=GIB))
    core.cycle(4)
    assert promised(core) == [()]
    assert not needs_cycle(core.state)


def test_a8_a_flavor_is_looked_at_by_itself_and_what_can_be_rented_is_there() -> None:
    core = Core()
    core.home(n=gpus(4), m=gpus(8, "T4"))
    core.queue("team", {"gpu": 6_000}, flavor="a100")
    core.cycle(1)
    assert promised(core) == [(("a100", "gpu", 6_000, 4_000),)]
    core.cloud(offer("big", 1_000_000, count=8, most=2))
    core.queue("other", {"gpu": 17_000}, flavor="a100-cloud")
    core.cycle(2)
    assert promised(core) == [(("a100", "gpu", 6_000, 4_000), ("a100-cloud", "gpu", 17_000, 16_000))]
    core.node("r", gpus(8), cluster="cloud", flavor="a100-cloud", request="r1")
    core.cycle(3)
    assert promised(core) == [], "what is rented is there already as an offer"


@pytest.mark.parametrize(("weight", "weighted"), [(1, 1_000_000), (2, 500_000), (3, 333_334), (0, MAX_AMOUNT)])
def test_a6_one_of_a_thousand_is_never_nothing_and_weight_zero_comes_last(weight: int, weighted: int) -> None:
    core = shared(NodeShape(cpu_milli=1_000_000, memory_bytes=GIB), {"a": (None, weight)})
    ask(core, "a", 1, cpus=1)
    core.cycle(1)
    facts = Draft(core.state, agenda_for(core.state, core.rules)).queue_facts(core.state.tree.by_name["a"], 0)
    assert (facts.share_ppb, facts.weighted_share_ppb) == (1_000_000, weighted)


@pytest.mark.parametrize(
    ("total", "weights", "ceiling", "expected"),
    [
        (15, (1, 1), None, {"a": 6, "b": 6}),
        (12, (1, 1), None, {"a": 6, "b": 6}),
        (12, (1, 1), 5, {"a": 5, "b": 6}),
    ],
)
def test_a7_everybody_gets_what_is_asked_up_to_the_ceiling(
    total: int, weights: tuple[int, int], ceiling: int | None, expected: dict[str, int]
) -> None:
    core = shared(gpus(total), {"a": (None, weights[0]), "b": (None, weights[1])})
    most = {"any": {"gpu": Quota(nominal=2_000, borrowing_limit=1_000 * (ceiling - 2))}} if ceiling else {}
    core.tell(QueueConfigured(spec=QueueSpec(name="a", weight=weights[0], quotas=most)))
    if ceiling:
        rest = {"any": {"gpu": Quota(nominal=1_000 * (total - 2))}}
        core.tell(QueueConfigured(spec=QueueSpec(name="b", weight=weights[1], quotas=rest)))
    ask(core, "a", 6, gpu=1)
    ask(core, "b", 6, gpu=1)
    core.cycle(1)
    assert used(core, "gpu") == expected
