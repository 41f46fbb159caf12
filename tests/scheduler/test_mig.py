"""MIG: the tables against each other, bit arithmetic against a model that knows no bits, and scenario E4 as a story."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.audit.sentences import tell
from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import LeaseGranted, LeasePhase, RoomPromised
from controlplane.domain.ids import NodeId
from controlplane.domain.mig import (
    A30,
    A100_40,
    A100_80,
    B200,
    GEOMETRIES,
    H100_80,
    H200,
    MILLI_OF_PROFILE,
    Geometry,
    Profile,
    geometry_of,
    gpus_of,
    slices_of,
    spot,
    spots,
)
from controlplane.domain.quantities import MILLI
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler import mig
from controlplane.scheduler.decide import decide
from controlplane.scheduler.kinds import Build, KindTable, can_sit
from tests.scheduler.core import GIB, HOME, Core, gpus, job
from tests.twins.plain_rules import PlainRules


def mig_node(count: int = 1, model: str = "A100-40", *, repartition: bool = False, cut: bool | int = True) -> NodeShape:
    return gpus(count, model).model_copy(update={"mig": cut, "mig_repartition": repartition})


def mig_job(*profiles: str, count: int = 1, **more: object) -> JobSpec:
    """A gang with one role for each profile."""
    roles = tuple(Role(name=f"r{at}", gpus=count, mig_profile=profile) for at, profile in enumerate(profiles))
    return JobSpec.model_validate({"name": "job", "queue": "team", "roles": roles, **more})


def cluster(**nodes: NodeShape) -> Core:
    core = Core()
    core.queue("team")
    core.home(**nodes)
    return core


def places(core: Core, job: int) -> list[tuple[int, int]]:
    """(GPU, start) of a job's members in the log."""
    granted = [event for event in core.told if isinstance(event, LeaseGranted) and event.job == job]
    return [pair for member in granted[-1].members for pair in zip(member.gpus, member.slices, strict=True)]


# --- tables ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.name)
def test_a_profile_stays_inside_the_gpu_and_no_two_of_its_placements_overlap(geometry: Geometry) -> None:
    for profile in geometry.profiles:
        assert profile.starts
        assert all(start + profile.memory <= geometry.memory_slices for start in profile.starts)
        for one, other in itertools.combinations(profile.starts, 2):
            assert abs(one - other) >= profile.memory


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda geometry: geometry.name)
def test_the_number_of_instances_is_that_of_the_user_guide(geometry: Geometry) -> None:
    numbers = [1 if profile.has_media else len(profile.starts) for profile in geometry.profiles]
    assert numbers == ([4, 1, 2, 1, 1] if geometry is A30 else [7, 1, 4, 3, 2, 1, 1])


def fillings(geometry: Geometry) -> list[list[tuple[Profile, int]]]:
    """Every way to put instances on an empty GPU, found slice by slice without bits."""
    ways = [(profile, start) for profile in geometry.profiles for start in profile.starts]

    def grow(chosen: list[tuple[Profile, int]], at: int) -> list[list[tuple[Profile, int]]]:
        found = [chosen]
        for index in range(at, len(ways)):
            if is_free(chosen, *ways[index]):
                found += grow([*chosen, ways[index]], index + 1)
        return found

    return grow([], 0)


def is_free(there: list[tuple[Profile, int]], profile: Profile, start: int) -> bool:
    """Whether an instance has its slices for itself, by sets of numbers."""
    taken = {slice_ for other, begin in there for slice_ in range(begin, begin + other.memory)}
    has_media = any(other.has_media for other, _ in there)
    return taken.isdisjoint(range(start, start + profile.memory)) and not (profile.has_media and has_media)


@pytest.mark.parametrize("geometry", [A30, A100_40], ids=lambda geometry: geometry.name)
def test_no_filling_takes_more_compute_than_there_is_nor_counts_more_than_the_gpu(geometry: Geometry) -> None:
    filled = fillings(geometry)
    assert len(filled) > 50
    assert max(sum(profile.compute for profile, _ in there) for there in filled) == geometry.compute_slices
    assert max(sum(geometry.milli(profile) for profile, _ in there) for there in filled) <= MILLI


def test_a_profile_counts_the_same_on_every_model_that_has_it() -> None:
    for geometry in GEOMETRIES:
        for profile in geometry.profiles:
            assert MILLI_OF_PROFILE[profile.name] == geometry.milli(profile)


@pytest.mark.parametrize(
    ("model", "memory", "geometry"),
    [
        ("A100-40", 0, A100_40),
        ("A100-SXM4-40GB", 40_536 * 2**20, A100_40),
        ("NVIDIA A100-SXM4-80GB", 0, A100_80),
        ("A100", 80 * 10**9, A100_80),
        ("A100", 0, None),
        ("H100", 0, H100_80),
        ("H100-94GB", 0, None),
        ("h200", 141 * 10**9, H200),
        ("B200", 180 * 10**9, B200),
        ("A30", 0, A30),
        ("V100", 32 * GIB, None),
        ("", 0, None),
    ],
)
def test_a_model_is_recognised_as_operators_write_it(model: str, memory: int, geometry: Geometry | None) -> None:
    assert geometry_of(model, memory) is geometry


@given(st.lists(st.tuples(st.integers(0, 1_023), st.integers(0, 7)), min_size=1, max_size=8))
def test_spots_carry_gpu_and_start(pairs: list[tuple[int, int]]) -> None:
    on, starts = tuple(gpu for gpu, _ in pairs), tuple(start for _, start in pairs)
    assert (gpus_of(spots(on, starts)), slices_of(spots(on, starts))) == (on, starts)
    assert (gpus_of(spots(on, ())), slices_of(spots(on, ()))) == (on, ())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpus": 1, "mig_profile": "9g.1gb"}, "use one of"),
        ({"gpus": 0, "mig_profile": "1g.5gb"}, "number of instances"),
        ({"gpus": 1, "mig_profile": "1g.5gb", "gpu_milli": 500}, "no gpu_milli"),
        ({"gpus": 2, "gpu_memory_bytes": GIB}, "gpus: 1"),
        ({"gpus": 1, "gpu_memory_bytes": GIB, "mig_profile": "1g.5gb"}, "no mig_profile"),
    ],
)
def test_a_role_that_shares_in_two_ways_is_refused_in_words(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Role.model_validate(fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"mig": 3}, "no more can be"), ({"mig": True, "gpu_model": "V100"}, "no MIG placements are known")],
)
def test_a_node_that_cannot_be_cut_is_refused_in_words(fields: dict[str, object], words: str) -> None:
    shape = gpus(2, "A100-40").model_dump()
    with pytest.raises(ValueError, match=words):
        NodeShape.model_validate({**shape, **fields})


# --- bit arithmetic against the model --------------------------------------------------------------------------------

_PICKS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=12)


@given(geometry=st.sampled_from(GEOMETRIES), picks=_PICKS)
@settings(max_examples=300, deadline=None)
def test_bits_say_what_the_model_says(geometry: Geometry, picks: list[tuple[int, int, bool]]) -> None:
    """Instances come and go; after each step the start, what remains possible and the room are those of the model."""
    there: list[tuple[Profile, int]] = []
    occupied = 0
    for index, victim, is_leaving in picks:
        if is_leaving and there:
            profile, start = there.pop(victim % len(there))
            occupied ^= mig.mask_of(geometry.name, profile.name, start)
            continue
        profile = geometry.profiles[index % len(geometry.profiles)]
        start = mig.best_start(geometry.name, profile.name, occupied)
        assert start == model_start(geometry, there, profile)
        if start < 0:
            continue
        there.append((profile, start))
        occupied |= mig.mask_of(geometry.name, profile.name, start)
        assert mig.capability(geometry.name, occupied) == model_capability(geometry, there)


def model_capability(geometry: Geometry, there: list[tuple[Profile, int]]) -> int:
    return sum(is_free(there, profile, start) for profile in geometry.profiles for start in profile.starts)


def model_start(geometry: Geometry, there: list[tuple[Profile, int]], profile: Profile) -> int:
    best, best_start = -1, -1
    for start in profile.starts:
        if is_free(there, profile, start):
            remains = model_capability(geometry, [*there, (profile, start)])
            if remains > best:
                best, best_start = remains, start
    return best_start


def test_the_first_small_instance_leaves_the_half_for_the_large_one() -> None:
    assert mig.best_start("A100-40", "1g.5gb", 0) == 6
    assert mig.best_start("A100-40", "3g.20gb", 0) == 4
    assert mig.best_start("A100-40", "1g.10gb", 0b1111_0000 & ~0b1100_0000) == 6
    assert mig.best_start("A100-40", "1g.99gb", 0) == -1


# --- E4, as a story --------------------------------------------------------------------------------------------------


def test_two_small_a_medium_and_a_large_instance_fit_one_gpu() -> None:
    core = cluster(node=mig_node())
    job = core.submit(mig_job("1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"))
    core.cycle(1)
    assert core.placed() == [job]
    assert sorted(places(core, job)) == [(0, 0), (0, 2), (0, 3), (0, 4)]
    assert core.state.used[0]["gpu"] == 142 + 142 + 285 + 428


def test_three_and_four_fit_in_either_order_and_four_and_four_do_not() -> None:
    for order in (("3g.20gb", "4g.20gb"), ("4g.20gb", "3g.20gb")):
        core = cluster(node=mig_node())
        jobs = [core.submit(mig_job(profile)) for profile in order]
        core.cycle(1)
        assert core.placed() == jobs
    core = cluster(node=mig_node())
    first, second = core.submit(mig_job("4g.20gb")), core.submit(mig_job("4g.20gb"))
    core.cycle(1)
    assert core.placed() == [first]
    refused = core.waiting()[second]
    assert refused.reason == Reason.CAPACITY
    assert refused.tally is not None
    assert (refused.tally.no_gpu, refused.tally.mig_misplaced) == (1, 0)


def misplaced() -> tuple[Core, int]:
    """Seven small instances came, and one of those that the large one would have to lie on stayed."""
    core = cluster(node=mig_node())
    small = [core.submit(mig_job("1g.5gb")) for _ in range(7)]
    core.cycle(1)
    by_start = {places(core, id_)[0][1]: id_ for id_ in small}
    for start, id_ in by_start.items():
        if start != 1:
            core.finish(id_)
    large = core.submit(mig_job("4g.20gb"))
    core.cycle(2)
    return core, large


def test_a_slice_left_in_the_wrong_place_blocks_the_large_instance() -> None:
    core, large = misplaced()
    refused = core.waiting()[large]
    assert refused.reason == Reason.CAPACITY
    assert refused.tally is not None
    assert (refused.tally.no_gpu, refused.tally.mig_misplaced) == (0, 1)


def test_the_account_of_a_job_that_is_blocked_so_says_it() -> None:
    core, large = misplaced()
    watch = decide(core.state, core.rules, large).watch
    assert watch is not None
    assert watch.roles[0].tally.mig_misplaced == 1
    told = tell(watch)
    assert "Role r0: 0 of 1 member would fit; of 1 nodes 1 with enough free MIG slices in the wrong places." in told
    assert told[-1] == (
        "Smallest change that would have let it run: MIG instances that lie elsewhere on node: "
        "enough of its slices are free."
    )


def test_the_large_instance_goes_as_soon_as_the_small_one_left() -> None:
    core, large = misplaced()
    stays = next(lease.job.id for lease in core.state.leases.values())
    core.finish(stays)
    core.cycle(3)
    assert core.placed() == [large]


# --- mixed nodes -----------------------------------------------------------------------------------------------------


def test_whole_parts_and_instances_each_go_to_their_own_gpus() -> None:
    """GPUs 0 and 1 are in MIG mode, 2 and 3 are not."""
    core = cluster(node=mig_node(4, cut=2))
    whole = core.submit(JobSpec(name="whole", queue="team", roles=(Role(gpus=1),)))
    part = core.submit(JobSpec(name="part", queue="team", roles=(Role(gpus=1, gpu_milli=400),)))
    instances = core.submit(mig_job("3g.20gb", count=4))
    refused = core.submit(JobSpec(name="two", queue="team", roles=(Role(gpus=1),)))
    core.cycle(1)
    assert core.placed() == [whole, part, instances]
    members = {event.job: event.members[0] for event in core.last(LeaseGranted)}
    assert (members[whole].gpus, members[part].gpus) == ((2,), (3,))
    assert sorted(places(core, instances)) == [(0, 0), (0, 4), (1, 0), (1, 4)]
    assert core.waiting()[refused].reason == Reason.CAPACITY


def test_more_than_the_uncut_gpus_can_never_run() -> None:
    core = cluster(node=mig_node(4, cut=2))
    job = core.submit(JobSpec(name="whole", queue="team", roles=(Role(gpus=3),)))
    core.cycle(1)
    assert core.waiting()[job].reason == Reason.EXCEEDS_EVERY_NODE


def test_an_idle_gpu_changes_its_mode_only_where_the_node_lets_it() -> None:
    spec = JobSpec(name="whole", queue="team", roles=(Role(gpus=1),))
    core = cluster(node=mig_node(1))
    job = core.submit(spec)
    core.cycle(1)
    assert core.waiting()[job].reason == Reason.EXCEEDS_EVERY_NODE
    core = cluster(node=mig_node(1, repartition=True))
    job = core.submit(spec)
    core.cycle(1)
    assert core.placed() == [job]
    waits = core.submit(mig_job("1g.5gb"))
    core.cycle(2)
    assert core.waiting()[waits].reason == Reason.CAPACITY
    core.finish(job)
    core.cycle(3)
    assert core.placed() == [waits]
    assert core.state.kinds.kinds[core.state.nodes[NodeId(HOME, "node")].kind].gpu_free == (MILLI - 142,)


def test_instances_prefer_gpus_in_mig_mode_and_whole_members_the_others() -> None:
    core = cluster(node=mig_node(2, repartition=True, cut=1))
    one, other = core.submit(mig_job("1g.5gb")), core.submit(JobSpec(name="w", queue="team", roles=(Role(gpus=1),)))
    core.cycle(1)
    assert [places(core, one), core.last(LeaseGranted)[1].members[0].gpus] == [[(0, 6)], (1,)]
    assert core.placed() == [one, other]


def test_an_instance_of_a_profile_that_the_gpu_does_not_have_never_fits() -> None:
    core = cluster(node=mig_node(1, "A100-80"))
    job = core.submit(mig_job("1g.5gb"))
    core.cycle(1)
    assert core.waiting()[job].reason == Reason.EXCEEDS_EVERY_NODE


def test_one_instance_with_media_extensions_on_each_gpu() -> None:
    core = cluster(node=mig_node(1))
    one, other = core.submit(mig_job("1g.5gb+me")), core.submit(mig_job("1g.5gb+me"))
    core.cycle(1)
    assert core.placed() == [one]
    assert core.waiting()[other].reason == Reason.CAPACITY


def test_a_queue_is_charged_for_slices_by_compute() -> None:
    core = Core()
    core.queue("team", {"gpu": 300})
    core.home(node=mig_node())
    jobs = [core.submit(mig_job("1g.5gb")) for _ in range(3)]
    core.cycle(1)
    assert core.placed() == jobs[:2]
    assert core.waiting()[jobs[2]].reason == Reason.QUOTA


_SIZES = st.sampled_from([profile.name for profile in A100_40.profiles])
_STEPS = st.lists(st.one_of(st.tuples(_SIZES, st.integers(1, 3)), st.integers(0, 30)), min_size=1, max_size=25)


@given(_STEPS)
@settings(max_examples=40, deadline=None)
def test_instances_that_come_and_go_never_share_a_slice(steps: list[tuple[str, int] | int]) -> None:
    """The core recomputes every node after every event, decides twice, and once more from a snapshot."""
    core = cluster(one=mig_node(2), two=mig_node(2, cut=1, repartition=True))
    for now, step in enumerate(steps, start=1):
        if isinstance(step, tuple):
            profile, count = step
            core.submit(mig_job(profile, count=count, wait_limit_ms=0))
        elif core.state.leases:
            lease = list(core.state.leases)[step % len(core.state.leases)]
            core.report(lease, LeasePhase.RUNNING, LeasePhase.FINISHED)
        core.cycle(now)
    taken = [
        (seat.node, gpu, slice_)
        for lease in core.state.leases.values()
        for seat in lease.seats
        for gpu, start in zip(gpus_of(seat.gpus), slices_of(seat.gpus), strict=True)
        for slice_ in range(start, start + A100_40.by_name[seat.ask.amounts.mig_profile].memory)
    ]
    assert len(taken) == len(set(taken))


def test_room_for_an_instance_is_promised_and_its_slices_are_held_until_the_victim_has_left() -> None:
    core = Core(PlainRules(may_preempt=True, allow=lambda job, queue, shortage: ("queue",)))
    core.queue("team")
    core.home(node=mig_node())
    low = [core.submit(mig_job("2g.10gb", priority=0)) for _ in range(2)]
    core.cycle(1)
    urgent = core.submit(mig_job("4g.20gb", priority=5))
    core.cycle(2)
    [promise] = core.last(RoomPromised)
    assert set(promise.victims) <= {f"j{id_}.1" for id_ in low}
    small = [core.submit(mig_job("1g.5gb", priority=0)) for _ in range(8)]
    core.cycle(3)
    assert core.placed() == small[: len(core.placed())]
    assert [start for id_ in core.placed() for _, start in places(core, id_)] == [6]
    for victim in promise.victims:
        core.report(victim, LeasePhase.ENDED)
    core.cycle(4)
    assert core.placed() == [urgent]
    assert places(core, urgent) == [(0, 0)]


def parts_on_each_gpu() -> tuple[Core, list[int]]:
    """Two GPUs that may be cut while they are idle, each with two parts of half a GPU, and a gang that wants both."""
    core = Core(PlainRules(may_preempt=True, allow=lambda job, queue, shortage: ("queue",)))
    core.queue("team")
    core.home(node=mig_node(2, cut=False, repartition=True))
    low = [core.submit(job(1, gpu_milli=500)) for _ in range(4)]
    core.cycle(1)
    return core, low


def test_a_gpu_is_cut_only_once_all_who_share_it_in_parts_have_left() -> None:
    """Half of each GPU would be enough by the count, but who is put back onto a GPU must not find it cut."""
    core, low = parts_on_each_gpu()
    urgent = core.submit(mig_job("1g.5gb+me", count=2, priority=5))
    core.cycle(2)
    [promise] = core.last(RoomPromised)
    assert sorted(promise.victims) == sorted(f"j{id_}.1" for id_ in low)
    for victim in promise.victims[:-1]:
        core.report(victim, LeasePhase.ENDED)
    core.cycle(3)
    assert core.placed() == []
    core.report(promise.victims[-1], LeasePhase.ENDED)
    core.cycle(4)
    assert core.placed() == [urgent]


@pytest.mark.parametrize(
    ("there", "comes", "can"),
    [
        ("part", "part", True),
        ("part", "instance", False),
        ("part", "whole", False),
        ("instance", "instance", True),
        ("instance", "part", False),
        ("instance", "whole", False),
        ("nobody", "part", True),
        ("nobody", "instance", True),
        ("nobody", "whole", True),
    ],
)
def test_what_may_sit_beside_what_on_one_gpu(there: str, comes: str, can: bool) -> None:
    table = KindTable()
    build = Build.of("home", "a100", mig_node(repartition=True, cut=False), {}, is_open=True)
    amounts = {
        "part": (table.amounts(0, 0, 400, ()), (0,)),
        "whole": (table.amounts(0, 0, 1_000, ()), (0,)),
        "instance": (table.amounts(0, 0, 142, (), 0, "1g.5gb"), (spot(0, 2),)),
    }
    kind = table.empty(build)
    if there != "nobody":
        taken, at = amounts[there]
        kind = table.take(kind, taken, at if there == "part" else (spot(0, 4),))
    assert can_sit(table.kinds[kind], *amounts[comes]) is can
