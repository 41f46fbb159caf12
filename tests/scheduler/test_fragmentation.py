"""Fragmentation: the measure against its definition, the score against the sigmoid, when what is typical changes."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import LeaseGranted, TypicalJobsConfigured
from controlplane.domain.mig import A100_40
from controlplane.domain.quantities import MILLI
from controlplane.domain.workloads import Role
from controlplane.scheduler.facts import AfterFacts, CandidateFacts, ClusterFacts, NodeFacts, RoleFacts
from controlplane.scheduler.fragmentation import (
    FIRST_TAKEN,
    Counted,
    Meter,
    Shape,
    TypicalJobs,
    descent_score,
    shape_of,
)
from controlplane.scheduler.kinds import Build
from controlplane.scheduler.rules import Answer
from controlplane.scheduler.snapshot import restore, take
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules


def build(count: int = 4, model: str = "T4", **more: object) -> Build:
    fields = {"cluster": "home", "flavor": "t4", "gpu_model": model, "cpu_milli": 64_000, "memory_bytes": 2**40}
    return Build(**{**fields, "gpus": count, "other": (), "labels": (), "is_open": True, **more})  # type: ignore[arg-type]


def shape(cpu: int = 0, count: int = 1, milli: int = MILLI, *models: str) -> Shape:
    return shape_of(Role(cpu_milli=cpu, gpus=count, gpu_milli=milli if count == 1 else MILLI, gpu_models=models))


def metered(*typical: tuple[Shape, int]) -> Meter:
    jobs = TypicalJobs()
    jobs.configure(typical)
    return Meter(jobs)


# --- the measure -----------------------------------------------------------------------------------------------------

_FREE = st.lists(st.integers(0, MILLI), min_size=1, max_size=8)
_MODELS = st.sampled_from([(), ("T4",), ("T4", "V100"), ("V100",)])
_SHAPES = st.builds(
    lambda cpu, count, milli, models: shape(cpu * 1_000, count, milli, *models),
    st.integers(0, 70),
    st.integers(0, 4),
    st.integers(1, MILLI),
    _MODELS,
)
_TYPICAL = st.lists(st.tuples(_SHAPES, st.integers(1, 50)), min_size=1, max_size=12)


def defined(typical: tuple[tuple[Shape, int], ...], cpu_free: int, gpu_free: list[int], model: str) -> Fraction:
    """The definition of the paper, word by word, in milli-GPU."""
    total = sum(count for _, count in typical)
    expected = Fraction(0)
    for asked, count in typical:
        enough = [left for left in gpu_free if left >= asked.gpu_milli]
        is_suited = not asked.models or model in asked.models
        if asked.gpus == 0 or not is_suited or asked.cpu_milli > cpu_free or len(enough) < asked.gpus:
            unusable = sum(gpu_free)
        else:
            unusable = sum(left for left in gpu_free if left < asked.gpu_milli)
        expected += Fraction(count, total) * unusable
    return expected


@given(typical=_TYPICAL, cpu=st.integers(0, 64), gpu_free=_FREE)
@settings(max_examples=300, deadline=None)
def test_the_figure_is_the_expected_gpu_that_a_typical_job_could_not_use(
    typical: list[tuple[Shape, int]], cpu: int, gpu_free: list[int]
) -> None:
    jobs = TypicalJobs()
    jobs.configure(typical)
    found = Meter(jobs).micro(0, build(len(gpu_free)), cpu * 1_000, gpu_free, ())
    assert found == int(defined(jobs.typical, cpu * 1_000, gpu_free, "T4") * 1_000)


def test_a_gpu_that_is_half_used_is_lost_to_whole_jobs_and_not_to_halves() -> None:
    whole, half = shape(0, 1, MILLI), shape(0, 1, 500)
    assert metered((whole, 1)).micro(0, build(2), 0, (500, MILLI), ()) == 500_000
    assert metered((half, 1)).micro(0, build(2), 0, (500, MILLI), ()) == 0
    assert metered((whole, 1), (half, 3)).micro(0, build(2), 0, (500, MILLI), ()) == 125_000


def test_cut_gpus_are_of_use_to_instances_only_and_only_where_one_fits() -> None:
    node = build(2, "A100-40", mig_gpus=1, mig_geometry="A100-40")
    large = Shape(0, 1, 571, 0, "4g.20gb", (), 0)
    meter = metered((large, 1))
    assert meter.micro(0, node, 0, (MILLI, MILLI), (0, 0)) == MILLI * 1_000
    blocking = A100_40.by_name["1g.5gb"].mask(1)
    assert meter.micro(0, node, 0, (858, MILLI), (blocking, 0)) == 1_858_000
    whole = metered((shape(), 1))
    assert whole.micro(0, node, 0, (MILLI, MILLI), (0, 0)) == MILLI * 1_000


def test_without_typical_jobs_nothing_is_fragmented() -> None:
    assert Meter(TypicalJobs()).micro(0, build(), 0, (1, 2, 3, 4), ()) == 0


# --- the score -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", range(1, 100))
def test_each_step_of_the_score_is_where_the_sigmoid_takes_it(score: int) -> None:
    """The least whole descent at which 100 x sigmoid reaches the score, by 60 digits of decimal arithmetic."""
    with localcontext() as context:
        context.prec = 60

        def exact(micro: int) -> int:
            return int(100 / (1 + (-Decimal(micro) / 1_000_000).exp()))

        least = next(at for at in range(_guess(score), _guess(score) + 5) if exact(at) >= score)
        assert exact(least - 1) == score - 1
    assert descent_score(least, 0) == score
    assert descent_score(least - 1, 0) == score - 1


def _guess(score: int) -> int:
    """A little below the step: the search goes up from here."""
    with localcontext() as context:
        context.prec = 60
        return int((Decimal(score) / Decimal(100 - score)).ln() * 1_000_000) - 2


def test_the_score_is_50_where_nothing_changes_and_ends_at_0_and_99() -> None:
    cases = [(7, 7), (10**9, 0), (0, 10**9), (0, 1)]
    assert [descent_score(before, after) for before, after in cases] == [50, 99, 0, 49]


# --- what is typical -------------------------------------------------------------------------------------------------


def test_typical_are_the_most_frequent_until_95_per_cent_are_covered() -> None:
    a, b, c, d = (shape(cpu) for cpu in (4_000, 3_000, 2_000, 1_000))
    assert taken([(a, 10), (b, 45), (c, 40), (d, 5)]) == ((b, 45), (c, 40), (a, 10))
    assert taken([(a, 1), (b, 1)]) == ((b, 1), (a, 1))  # of equal ones the smaller first


def taken(members: list[tuple[Shape, int]]) -> Counted:
    jobs = TypicalJobs()
    jobs.configure(members)
    return jobs.typical


def test_what_is_typical_is_taken_anew_when_submissions_double() -> None:
    jobs = TypicalJobs()
    one, other = shape(1_000), shape(2_000)
    anew = [number for number in range(1, 130) if jobs.see(((one if number <= 64 else other, 1),))]
    assert anew == [16, 32, 64, 128]
    assert jobs.typical == ((one, 64), (other, 64))


def test_what_an_operator_says_stands_until_he_takes_it_back() -> None:
    core = Core()
    core.queue("team")
    core.home(node=gpus(8))
    core.tell(TypicalJobsConfigured(roles=(Role(gpus=2, count=3),)))
    for _ in range(40):
        core.submit(job(1))
    assert core.state.typical.typical == ((shape(0, 2), 3),)
    core.tell(TypicalJobsConfigured(roles=()))
    assert core.state.typical.typical == ((shape(0, 1), 40),)


@given(st.lists(st.integers(0, 3), max_size=70))
@settings(max_examples=30, deadline=None)
def test_a_snapshot_keeps_what_was_counted_and_what_is_typical(counts: list[int]) -> None:
    core = Core(is_checked=False)
    core.queue("team")
    for count in counts:
        core.submit(job(count))
    twin = restore(take(core.state)).typical
    mine = core.state.typical
    assert (twin.counts, twin.seen, twin.typical) == (mine.counts, mine.seen, mine.typical)
    assert sum(mine.counts.values()) == len(counts)
    assert Counter(shape_.gpus for shape_ in mine.counts) == dict.fromkeys(set(counts), 1)


# --- rules that read it ----------------------------------------------------------------------------------------------


class Descending(PlainRules):
    """The descent; and what it was asked."""

    def scoring(
        self,
        role: RoleFacts,
        cluster: ClusterFacts,
        before: NodeFacts,
        after: NodeFacts,
        candidate: CandidateFacts | None,
    ) -> Answer[int]:
        assert isinstance(after, AfterFacts)
        self.asked[before.flavor] = before.fragmentation_milli
        return Answer(after.descent_score)


def descending() -> Descending:
    return Descending(scoring_reads=frozenset({"after.descent_score", "before.fragmentation_milli"}))


def shapes_of_nodes() -> dict[str, NodeShape]:
    return {"a": gpus(2, "A"), "b": gpus(2, "B")}


def test_a_half_joins_the_half_that_whole_jobs_cannot_use() -> None:
    core = Core(descending())
    core.queue("team")
    core.home(**shapes_of_nodes())
    core.tell(TypicalJobsConfigured(roles=(Role(gpus=1, count=9), Role(gpus=1, gpu_milli=500, count=1))))
    first = core.submit(job(1, gpu_milli=500, gpu_models=("B",)))
    core.cycle(1)
    second = core.submit(job(1, gpu_milli=500))
    core.cycle(2)
    assert core.placed() == [second]
    assert [event.members[0].node for event in core.told if isinstance(event, LeaseGranted)] == ["b", "b"]
    assert core.state.jobs[first].lease is not None
    assert core.rules.asked == {"a": 0, "b": 450}


def test_verdicts_are_found_again_when_other_jobs_are_typical() -> None:
    """Core decides each cycle once more from a snapshot, which remembers no verdict: both must agree."""
    core = Core(descending())
    core.queue("team")
    core.home(**{f"n{at}": gpus(4) for at in range(3)})
    for number in range(FIRST_TAKEN + 1):
        core.submit(job(1, gpu_milli=300 + 50 * (number % 8), wait_limit_ms=0))
        core.cycle(number + 1)
    first = core.state.typical.version
    core.tell(TypicalJobsConfigured(roles=(Role(gpus=1, gpu_milli=650, count=1),)))
    assert core.state.typical.version == first + 1
    core.submit(job(1, gpu_milli=350))
    core.cycle(100)
    assert len(core.placed()) == 1
