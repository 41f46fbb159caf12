"""Parts of a GPU by its memory, memory floors, and GPUs of different models (the first half of scenario E4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import LeaseGranted
from controlplane.domain.ids import NodeId
from controlplane.domain.quantities import MILLI, memory_milli, mig_milli
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.facts import AfterFacts, NodeFacts
from controlplane.scheduler.rules import Answer
from tests.scheduler.core import GIB, HOME, Core, gpus
from tests.twins.plain_rules import PlainRules


def sized(memory_gib: int, model: str = "A100", count: int = 1) -> NodeShape:
    return gpus(count, model).model_copy(update={"gpu_memory_bytes": memory_gib * GIB})


def by_memory(gib: int, members: int = 1, **more: object) -> JobSpec:
    role = Role(gpus=1, gpu_memory_bytes=gib * GIB, count=members)
    return JobSpec.model_validate({"name": "part", "queue": "team", "roles": (role,), **more})


def cluster(rules: PlainRules | None = None, quota: int | None = None, **nodes: NodeShape) -> Core:
    core = Core(rules)
    core.queue("team", None if quota is None else {"gpu": quota})
    core.home(**nodes)
    return core


def nodes_of(core: Core) -> list[str]:
    return [event.members[0].node for event in core.last(LeaseGranted)]


# --- by memory -------------------------------------------------------------------------------------------------------


def test_four_of_forty_gibibytes_count_a_tenth() -> None:
    core = cluster(node=sized(40))
    jobs = [core.submit(by_memory(4)) for _ in range(11)]
    core.cycle(1)
    assert core.placed() == jobs[:10]
    assert core.state.used[0]["gpu"] == MILLI
    core.finish(jobs[3])
    core.cycle(2)
    assert core.placed() == jobs[10:]


def test_twice_sixty_per_cent_do_not_fit_one_gpu() -> None:
    core = cluster(node=sized(40, count=2))
    jobs = [core.submit(by_memory(24)) for _ in range(3)]
    core.cycle(1)
    assert [event.members[0].gpus for event in core.last(LeaseGranted)] == [(0,), (1,)]
    assert core.waiting()[jobs[2]].reason == Reason.CAPACITY


def test_the_same_bytes_are_a_smaller_part_of_a_larger_gpu() -> None:
    core = cluster(small=sized(40), large=sized(80, "H100"))
    jobs = [core.submit(by_memory(30)) for _ in range(4)]
    core.cycle(1)
    assert core.placed() == jobs[:3]
    assert sorted(nodes_of(core)) == ["large", "large", "small"]
    assert core.state.used[0]["gpu"] == 750 + 375 + 375


def test_a_gang_shares_one_gpu_and_a_third_of_a_byte_more_does_not() -> None:
    core = cluster(node=sized(40))
    fits, waits = core.submit(by_memory(20, members=2)), core.submit(by_memory(1))
    core.cycle(1)
    assert core.placed() == [fits]
    assert core.waiting()[waits].reason == Reason.CAPACITY


def test_a_node_that_does_not_say_its_memory_takes_no_part_of_it() -> None:
    core = cluster(node=gpus(1))
    job = core.submit(by_memory(1))
    core.cycle(1)
    assert core.waiting()[job].reason == Reason.EXCEEDS_EVERY_NODE


def test_a_queue_pays_for_what_a_part_counts_where_it_is() -> None:
    """Half a GPU is left: enough on the large GPU, not on the small one."""
    core = cluster(quota=500, small=sized(40), zlarge=sized(80, "H100"))
    one, other = core.submit(by_memory(24)), core.submit(by_memory(24))
    core.cycle(1)
    assert core.placed() == [one]
    assert nodes_of(core) == ["zlarge"]
    assert core.state.used[0]["gpu"] == 300
    assert other in core.waiting()


def test_a_part_counts_what_it_did_when_the_node_reports_another_size() -> None:
    core = cluster(node=sized(40))
    job = core.submit(by_memory(4))
    core.cycle(1)
    core.node("node", sized(80))
    core.cycle(2)
    assert core.state.used[0]["gpu"] == 100
    core.finish(job)
    assert core.state.used[0]["gpu"] == 0


@given(parts=st.lists(st.integers(1, 2**37), min_size=1, max_size=50), size=st.integers(2**30, 2**38))
def test_parts_that_fit_by_count_fit_by_bytes(parts: list[int], size: int) -> None:
    if sum(memory_milli(part, size) for part in parts) <= MILLI:
        assert sum(parts) <= size


@given(slices=st.lists(st.integers(1, 7), min_size=1, max_size=7))
def test_instances_never_count_more_than_the_gpu(slices: list[int]) -> None:
    if sum(slices) <= 7:
        assert sum(mig_milli(part, 7) for part in slices) <= MILLI


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_memory_floor_refuses_smaller_gpus_and_those_that_do_not_say() -> None:
    core = cluster(mute=gpus(8), small=sized(40), large=sized(80, "H100"))
    role = Role(gpus=1, gpu_memory_min_bytes=64 * GIB)
    jobs = [core.submit(JobSpec(name="job", queue="team", roles=(role,))) for _ in range(2)]
    core.cycle(1)
    assert nodes_of(core) == ["large"]
    refused = core.waiting()[jobs[1]]
    assert refused.tally is not None
    assert (refused.tally.too_small, refused.tally.no_gpu) == (2, 1)


class Suiting(PlainRules):
    """The first choice of model, then the fastest."""

    def scoring(self, role, cluster, before: NodeFacts, after: NodeFacts, candidate) -> Answer[int]:  # type: ignore[no-untyped-def]  # noqa: ANN001
        assert isinstance(after, AfterFacts)
        return Answer(-after.model_rank * 10**9 + after.throughput_ppm)


def suiting() -> Suiting:
    return Suiting(scoring_reads=frozenset({"after.model_rank", "after.throughput_ppm"}))


def test_the_order_of_models_is_a_preference() -> None:
    core = cluster(suiting(), a=sized(40), h=sized(80, "H100"), v=sized(16, "V100"))
    role = Role(gpus=1, gpu_models=("V100", "H100"))
    jobs = [core.submit(JobSpec(name="job", queue="team", roles=(role,))) for _ in range(3)]
    core.cycle(1)
    assert core.placed() == jobs[:2]
    assert nodes_of(core) == ["v", "h"]


def test_the_fastest_model_goes_first_and_those_not_named_count_one() -> None:
    core = cluster(suiting(), a=sized(40), h=sized(80, "H100"), v=sized(16, "V100"))
    role = Role(gpus=1, throughput_ppm={"H100": 2_500_000, "V100": 400_000})
    for _ in range(3):
        core.submit(JobSpec(name="job", queue="team", roles=(role,)))
    core.cycle(1)
    assert nodes_of(core) == ["h", "a", "v"]


def test_jobs_that_differ_in_speed_alone_are_of_two_classes() -> None:
    core = cluster(suiting(), a=sized(40), h=sized(80, "H100"))
    for model in ("A100", "H100"):
        role = Role(gpus=1, throughput_ppm={model: 3_000_000})
        core.submit(JobSpec(name="job", queue="team", roles=(role,)))
    core.cycle(1)
    assert nodes_of(core) == ["a", "h"]


def test_ordering_rules_see_the_best_speed_of_a_job() -> None:
    rules = PlainRules(
        job_order_reads=frozenset({"job.throughput_best_ppm"}),
        order_job=lambda job, queue, now: (-job.throughput_best_ppm,),
    )
    core = cluster(rules, a=sized(40))
    core.submit(JobSpec(name="job", queue="team", roles=(Role(gpus=1),)))
    fast = core.submit(JobSpec(name="job", queue="team", roles=(Role(gpus=1, throughput_ppm={"H100": 2_000_000}),)))
    core.cycle(1)
    assert core.placed() == [fast]


@pytest.mark.parametrize("fields", [{"gpu_milli": 500}, {"gpu_memory_bytes": 20 * GIB}])
def test_half_a_gpu_is_half_a_gpu_however_it_is_asked(fields: dict[str, int]) -> None:
    core = cluster(node=sized(40))
    role = Role.model_validate({"gpus": 1, **fields})
    jobs = [core.submit(JobSpec(name="job", queue="team", roles=(role,))) for _ in range(3)]
    core.cycle(1)
    assert core.placed() == jobs[:2]
    assert core.state.kinds.kinds[core.state.nodes[NodeId(HOME, "node")].kind].gpu_free == (0,)


def test_a_part_by_memory_leaves_of_the_quota_what_it_does_not_take() -> None:
    """A quota over all flavors, and a gang of a part in milli-GPU and a part whose size the node says: 874 here."""
    shape = NodeShape(cpu_milli=64_000, memory_bytes=64 * GIB, gpus=1, gpu_model="T4", gpu_memory_bytes=16 * GIB)
    spec = JobSpec(
        name="g",
        queue="team",
        roles=(
            Role(name="a", gpus=1, gpu_milli=400),
            Role(name="b", gpus=1, gpu_memory_bytes=15_000_000_000),
        ),
    )
    for nominal, fits in ((1_273, False), (1_274, True)):
        core = Core()
        core.home(n1=shape, n2=shape)
        core.queue("team", {"gpu": nominal})
        id_ = core.submit(spec)
        core.cycle(1)
        assert core.placed() == ([id_] if fits else [])
