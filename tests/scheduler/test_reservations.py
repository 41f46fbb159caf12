"""Starts that are reserved, and what may run in front of them. The numbers are those of SCENARIOS section C."""

from __future__ import annotations

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import LeaseGranted, ReservationMade, ReservationReleased
from controlplane.domain.quantities import MAX_MS
from controlplane.domain.reasons import Reason
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000


def reserving(depth: int = 1) -> Core:
    """A core whose rules reserve for the first so many blocked jobs, in the order of submission."""
    return Core(PlainRules(may_reserve=True, depth=lambda job: depth))


def test_a_large_job_starts_once_what_runs_has_drained() -> None:
    """C1: sixteen GPUs behind an endless stream of one-GPU jobs that say how long they run."""
    core = reserving()
    core.home(a=gpus(8), b=gpus(8))
    core.queue("team")
    small = [core.submit(job(1, estimate_ms=10 * MINUTE)) for _ in range(16)]
    core.cycle(0)
    large = core.submit(job(8, members=2, estimate_ms=MINUTE))
    core.cycle(MINUTE)
    [made] = core.last(ReservationMade)
    assert (made.job, made.start_ms, made.nodes) == (large, 10 * MINUTE, ("a", "b"))
    for minute in range(2, 10):
        core.submit(job(1, estimate_ms=10 * MINUTE))
        if minute % 2 == 0:
            core.finish(small.pop())
        core.cycle(minute * MINUTE)
        assert core.placed() == [], "a newcomer that ends after the reserved start took its room"
    for id_ in small:
        core.finish(id_)
    core.cycle(10 * MINUTE)
    assert core.placed()[0] == large


def test_what_ends_before_the_reserved_start_runs_in_front_of_it() -> None:
    """C2: strictly before; a job that would end at the very instant waits."""
    core = reserving()
    core.home(a=gpus(8))
    core.queue("team")
    core.submit(job(4, estimate_ms=10 * MINUTE))
    core.cycle(0)
    core.submit(job(8, estimate_ms=MINUTE))
    just_too_long = core.submit(job(2, estimate_ms=9 * MINUTE))
    short = core.submit(job(2, estimate_ms=9 * MINUTE - 1))
    core.cycle(MINUTE)
    assert core.placed() == [short]
    assert core.waiting()[just_too_long].reason == Reason.RESERVED


def test_a_job_without_an_estimate_never_runs_on_reserved_nodes() -> None:
    core = reserving()
    core.home(a=gpus(8), b=gpus(1))
    core.queue("team")
    core.submit(job(4, estimate_ms=10 * MINUTE))
    core.cycle(0)
    core.submit(job(8, estimate_ms=MINUTE))
    unknown = core.submit(job(1))
    other = core.submit(job(1))
    core.cycle(MINUTE)
    [granted] = core.last(LeaseGranted)
    assert granted.job == unknown
    assert granted.members[0].node == "b"
    assert core.waiting()[other].reason == Reason.RESERVED


def test_nodes_without_a_known_end_are_kept_until_they_have_drained() -> None:
    core = reserving()
    core.home(a=gpus(4), b=gpus(4))
    core.queue("team")
    first = [core.submit(job(1)) for _ in range(8)]
    core.cycle(0)
    core.submit(job(4))
    core.cycle(MINUTE)
    [made] = core.last(ReservationMade)
    assert made.start_ms is None
    [kept] = made.nodes
    on_kept = [id_ for id_ in first if core.state.leases[core.lease_of(id_)].seats[0].node.name == kept]
    for minute, id_ in enumerate(on_kept, start=2):
        core.submit(job(1, estimate_ms=MINUTE))
        core.finish(id_)
        core.cycle(minute * MINUTE)
        if minute < len(on_kept) + 1:
            assert core.placed() == []
    assert core.placed() == [made.job]


def test_a_reservation_ends_with_its_job() -> None:
    """C6: cancelled; in the next cycle the room is anybody's."""
    core = reserving()
    core.home(a=gpus(8))
    core.queue("team")
    core.submit(job(4, estimate_ms=10 * MINUTE))
    core.cycle(0)
    large = core.submit(job(8, estimate_ms=MINUTE))
    small = core.submit(job(2))
    core.cycle(MINUTE)
    assert core.placed() == []
    assert list(core.state.reservations) == [large]
    core.cancel(large)
    core.cycle(MINUTE + 1)
    assert core.placed() == [small]
    assert not core.state.reservations


def test_a_reservation_on_a_cordoned_node_is_given_up() -> None:
    """C6: the node is cordoned; nothing of the reservation is left when it can never start."""
    core = reserving()
    core.home(a=gpus(8))
    core.queue("team")
    core.submit(job(4, estimate_ms=10 * MINUTE))
    core.cycle(0)
    large = core.submit(job(8, estimate_ms=MINUTE))
    core.cycle(MINUTE)
    assert list(core.state.reservations) == [large]
    core.node("a", gpus(8), NodeState.CORDONED)
    core.cycle(MINUTE + 1)
    assert [event.job for event in core.last(ReservationReleased)] == [large]


def test_a_head_that_waits_for_one_model_stops_no_other() -> None:
    """C3: blocked on A100; a CPU job and an H100 job behind it start."""
    core = reserving()
    core.home(a=gpus(8), h=gpus(8, "H100"), c=gpus(0, "none"))
    core.queue("team")
    core.submit(job(8, gpu_models=("A100",), estimate_ms=10 * MINUTE))
    core.cycle(0)
    head = core.submit(job(8, gpu_models=("A100",)))
    cpu = core.submit(job(0, cpu=1_000))
    other = core.submit(job(8, gpu_models=("H100",)))
    core.cycle(MINUTE)
    assert sorted(core.placed()) == [cpu, other]
    assert core.state.jobs[head].lease is None


def test_conservative_backfill_delays_none_of_those_that_hold_a_start() -> None:
    """With one reservation the second blocked job is overtaken; with two it is not."""
    for depth, may_overtake in ((1, True), (2, False)):
        core = reserving(depth)
        core.home(a=gpus(4), b=gpus(4))
        core.queue("team")
        core.submit(job(3, estimate_ms=10 * MINUTE))
        core.submit(job(3, estimate_ms=20 * MINUTE))
        core.cycle(0)
        first = core.submit(job(4, estimate_ms=MINUTE))
        second = core.submit(job(4, name="second", estimate_ms=30 * MINUTE))
        late = core.submit(job(1, estimate_ms=60 * MINUTE))
        core.cycle(MINUTE)
        assert core.state.jobs[first].lease is None
        assert core.state.jobs[second].lease is None
        assert (core.placed() == [late]) is may_overtake


def test_an_estimate_that_ends_beyond_all_instants_is_reserved_behind() -> None:
    """Kills: adding an estimate to an instant and calling the sum an instant."""
    core = reserving()
    core.home(a=gpus(8))
    core.queue("team")
    core.submit(job(8, estimate_ms=MAX_MS))
    core.cycle(MINUTE)
    blocked = core.submit(job(8, estimate_ms=MINUTE))
    core.cycle(2 * MINUTE)
    assert core.state.reservations[blocked].start_ms == MAX_MS


def test_room_that_was_kept_from_a_job_and_is_taken_by_another_is_not_what_it_waits_for_any_more() -> None:
    """What a cycle remembers of a refusal is what one that was started anew would find (the core's checks compare)."""
    core = reserving()
    core.home(a=gpus(8))
    core.queue("team")
    core.submit(job(6, estimate_ms=10 * MINUTE))
    core.cycle(0)
    core.submit(job(8, estimate_ms=MINUTE))
    waits = core.submit(job(2))
    core.cycle(MINUTE)
    assert core.waiting()[waits].reason == Reason.RESERVED
    brief = core.submit(job(2, estimate_ms=MINUTE))
    core.cycle(MINUTE + 1)
    assert core.placed() == [brief]
    core.cycle(MINUTE + 2)
    assert core.waiting()[waits].reason == Reason.CAPACITY
