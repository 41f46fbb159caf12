"""Jobs that wait for others, arrays with a ceiling, time limits and instants after which starting makes no sense."""

from __future__ import annotations

from random import Random

import pytest
from pydantic import ValidationError

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import CapacityRequested, JobEnded, JobRefused, LeasePhase, LeaseRevoked
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.timers import needs_cycle, next_due_ms
from tests.scheduler.core import Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules


def one_node(count: int = 8) -> Core:
    core = Core()
    core.queue("team")
    core.home(n=gpus(count))
    return core


def reasons(core: Core) -> dict[int, int]:
    """Head -> reason, of what the last cycle said."""
    return {head: event.reason for head, event in core.waiting().items()}


def ended(core: Core) -> list[tuple[int, str, int | None]]:
    return [(event.job, event.outcome, event.reason) for event in core.last(JobEnded)]


# --- dependencies ----------------------------------------------------------------------------------------------------


def test_a_job_starts_only_after_those_it_names_have_finished() -> None:
    core = one_node()
    first, second = core.submit(job(1)), core.submit(job(1))
    third = core.submit(job(1, after_ok=(first, second)))
    core.cycle(1)
    assert core.placed() == [first, second]
    assert reasons(core) == {third: Reason.DEPENDENCY}
    assert core.closed.waiting == {"dependency": 1}
    core.finish(first)
    core.finish(second)
    assert needs_cycle(core.state)
    assert needs_cycle(restore(take(core.state)))
    core.cycle(2)
    assert core.placed() == [third]


def test_a_job_whose_dependency_failed_is_refused_and_so_is_who_waits_for_it() -> None:
    core = one_node()
    first = core.submit(job(1, max_attempts=1))
    second = core.submit(job(1, after_ok=(first,)))
    third = core.submit(job(1, after_ok=(second,)))
    any_way = core.submit(job(1, after_any=(first,)))
    core.cycle(1)
    core.report(core.lease_of(first), LeasePhase.RUNNING, LeasePhase.FAILED)
    core.cycle(2)
    assert ended(core) == [(first, "failed", None)]
    assert needs_cycle(core.state)
    core.cycle(3)
    assert core.placed() == [any_way]
    said = f"it starts only after j{first} has finished, and j{first} ended otherwise"
    assert [(e.job, e.reason, e.detail) for e in core.last(JobRefused)] == [(second, Reason.DEPENDENCY_FAILED, said)]
    core.cycle(4)
    assert [e.job for e in core.last(JobRefused)] == [third]
    assert set(core.state.jobs) == {any_way}


def test_who_comes_when_the_other_is_over_starts_or_is_refused_at_once() -> None:
    core = one_node()
    good, bad = core.submit(job(1)), core.submit(job(1))
    core.cycle(1)
    core.finish(good)
    core.cancel(bad)
    core.cycle(2)
    core.report(core.lease_of(bad), LeasePhase.ENDED)
    core.cycle(3)
    after_good = core.submit(job(1, after_ok=(good,)))
    after_bad = core.submit(job(1, after_ok=(bad,)))
    whichever = core.submit(job(1, after_any=(bad,)))
    core.cycle(4)
    assert core.placed() == [after_good, whichever]
    assert [event.job for event in core.last(JobRefused)] == [after_bad]


def test_a_job_cannot_wait_for_one_that_was_not_submitted_before_it() -> None:
    core = one_node()
    lonely = core.submit(job(1, after_any=(900,)))
    core.cycle(1)
    said = "it depends on j900, and no such job was submitted before it"
    assert [(event.job, event.detail) for event in core.last(JobRefused)] == [(lonely, said)]
    assert core.state.dependents == {}


def test_a_job_that_waits_for_another_may_be_cancelled_or_give_up_and_says_why() -> None:
    core = one_node()
    first = core.submit(job(1))
    patient = core.submit(job(1, after_ok=(first,)))
    hasty = core.submit(job(1, after_ok=(first,), wait_limit_ms=5))
    core.cycle(0)
    core.cancel(patient)
    core.cycle(5)
    assert ended(core) == [(patient, "cancelled", None), (hasty, "expired", Reason.DEPENDENCY)]
    core.finish(first)
    core.cycle(6)
    assert core.state.jobs == {}
    assert core.closed.waiting == {}


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_of_an_array_only_so_many_run_at_once() -> None:
    core = one_node()
    tasks = [core.submit(job(1, array="sweep", max_running=2)) for _ in range(5)]
    other = core.submit(job(1))
    core.cycle(1)
    assert core.placed() == [*tasks[:2], other]
    assert reasons(core) == {tasks[2]: Reason.ARRAY_FULL}
    assert core.closed.waiting == {"array-full": 3}
    core.finish(tasks[0])
    core.cycle(2)
    assert core.placed() == [tasks[2]]


def test_arrays_of_two_queues_are_two_arrays() -> None:
    core = one_node()
    core.queue("other")
    mine = [core.submit(job(1, array="sweep", max_running=1)) for _ in range(2)]
    theirs = core.submit(job(1, queue="other", array="sweep", max_running=1))
    core.cycle(1)
    assert sorted(core.placed()) == [mine[0], theirs]


def test_nothing_is_rented_for_jobs_that_their_array_keeps_back() -> None:
    core = Core(PlainRules(cost=lambda job, home, offer, now: 1))
    core.queue("team")
    core.home(n=gpus(0))
    core.budget("all", 10**12)
    core.cloud(offer("big", 1_000_000))
    tasks = [core.submit(job(8, array="sweep", max_running=2, estimate_ms=1_000)) for _ in range(5)]
    core.cycle(1)
    assert [event.for_job for event in core.last(CapacityRequested)] == tasks[:2]
    core.cycle(70_000)
    assert core.last(CapacityRequested) == []


# --- time ------------------------------------------------------------------------------------------------------------


def test_a_job_that_runs_beyond_its_limit_is_stopped_and_has_failed() -> None:
    core = one_node()
    long = core.submit(job(1, time_limit_ms=1_000))
    core.cycle(10)
    lease = core.lease_of(long)
    core.report(lease, LeasePhase.RUNNING)
    assert next_due_ms(core.state) == 1_010
    assert next_due_ms(restore(take(core.state))) == 1_010
    core.cycle(1_009)
    assert core.last(LeaseRevoked) == []
    core.cycle(1_010)
    assert [(event.lease, event.cause) for event in core.last(LeaseRevoked)] == [(lease, "time-limit")]
    assert next_due_ms(core.state) is None
    core.report(lease, LeasePhase.ENDED)
    core.cycle(1_020)
    assert ended(core) == [(long, "failed", None)]


def test_each_start_has_its_own_time() -> None:
    core = one_node()
    again = core.submit(job(1, time_limit_ms=1_000))
    core.cycle(0)
    core.report(core.lease_of(again), LeasePhase.RUNNING, LeasePhase.FAILED)
    core.cycle(500)
    core.cycle(600)
    assert core.placed() == [again]
    assert next_due_ms(core.state) == 1_600


def test_from_its_last_instant_on_a_job_is_not_started_and_not_started_again() -> None:
    core = one_node(1)
    running = core.submit(job(1, start_by_ms=100))
    late = core.submit(job(1, start_by_ms=100))
    core.cycle(0)
    assert core.placed() == [running]
    assert next_due_ms(core.state) == 100
    core.report(core.lease_of(running), LeasePhase.RUNNING, LeasePhase.FAILED)
    core.cycle(100)
    assert sorted(core.placed()) == [late], "it has its last try in the very cycle"
    assert ended(core) == [(running, "expired", None)]
    much_too_late = core.submit(job(1, start_by_ms=100))
    core.cycle(101)
    assert ended(core) == [(much_too_late, "expired", Reason.CAPACITY)]


# --- what is refused before it is recorded ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_running": 2}, "max_running limits the jobs of an array: name it in array, the same for all of them"),
        ({"after_ok": (3,), "after_any": (3,)}, "job 3 is in after_ok and in after_any; keep it in one of them"),
        ({"after_ok": (0,)}, "greater than or equal to 1"),
        ({"time_limit_ms": 0}, "greater than or equal to 1"),
        ({"roles": [{"count": 0}]}, "greater than or equal to 1"),
        ({"roles": [{"count": -4}]}, "greater than or equal to 1"),
        ({"roles": [{"count": 10**6}]}, "less than or equal to 100000"),
        ({"roles": [{"name": "a", "count": 60_000}, {"name": "b", "count": 60_000}]}, "at most 100,000 members"),
    ],
)
def test_b8_and_the_like_are_refused_in_a_sentence(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        JobSpec.model_validate({"name": "j", "queue": "team", "roles": [{}], **fields})


def test_a_node_of_cpus_takes_part() -> None:
    core = Core()
    core.queue("team")
    core.home(n=NodeShape(cpu_milli=1_000, memory_bytes=0))
    tasks = [core.submit(job(cpu=500, array="a", max_running=1)) for _ in range(2)]
    core.cycle(1)
    assert core.placed() == tasks[:1]


@pytest.mark.parametrize("seed", range(12))
def test_drawn_lives_end_as_their_dependencies_say(seed: int) -> None:
    """Each cycle is decided again from a snapshot. Kills: a dependent that is forgotten or starts too early."""
    draw, core = Random(seed), one_node(3)
    ids: list[int] = []
    finished: set[int] = set()
    over: set[int] = set()
    for now_ms in range(0, 600, 10):
        named = draw.sample(ids, min(len(ids), draw.choice((0, 0, 1, 2))))
        cut = draw.randrange(len(named) + 1)
        more: dict[str, object] = {"after_ok": tuple(named[:cut]), "after_any": tuple(named[cut:]), "max_attempts": 1}
        more |= draw.choice(({}, {"array": "s", "max_running": 1}, {"time_limit_ms": 40}, {"start_by_ms": now_ms + 50}))
        ids.append(core.submit(job(1).model_copy(update=more), now_ms))
        core.cycle(now_ms)
        for id_ in core.placed():
            spec = core.state.jobs[id_].cls.spec
            assert set(spec.after_ok) <= finished
            assert set(spec.after_any) <= over
        running = [lease.job for lease in core.state.leases.values() if lease.job.array is not None]
        assert len(running) <= 1
        over |= {id_ for id_ in ids if id_ not in core.state.jobs}
        for lease in list(core.state.leases.values()):
            phase = LeasePhase.ENDED if lease.revoked else draw.choice((None, LeasePhase.FINISHED, LeasePhase.FAILED))
            if phase is not None:
                core.report(lease.id, phase)
                finished |= {lease.job.id} if phase is LeasePhase.FINISHED else set()
                over |= {lease.job.id} if phase is LeasePhase.FINISHED else set()
