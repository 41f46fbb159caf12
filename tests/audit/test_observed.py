"""What a log shows of its clusters, learned event by event."""

from __future__ import annotations

from controlplane.audit.observed import Observed, Runtime
from controlplane.domain.events import CapacityPhase, CapacityRequested, LeasePhase
from controlplane.scheduler.fold import apply
from controlplane.scheduler.state import State
from tests.scheduler.core import CLOUD, HOME, Core, gpus, job, offer

MINUTE = 60_000


def observed(core: Core, *instants: tuple[int, int]) -> Observed:
    """What the events of a core show. ``instants``: from an event on, in the order of the events, it is so late."""
    state, found = State(), Observed()
    late = dict(instants)
    at_ms = 0
    for position, event in enumerate(core.told, start=1):
        at_ms = late.get(position, at_ms)
        apply(state, position, event)
        found.see(state, position, event, at_ms)
    found.close(at_ms)
    return found


def one_node() -> Core:
    core = Core()
    core.home(a=gpus(8))
    core.queue("team")
    return core


def test_each_start_runs_as_long_as_the_same_start_did_in_the_log() -> None:
    core = one_node()
    id_ = core.submit(job(1))
    known = core.state.jobs[id_]
    ends = []
    for length_ms, phase in ((5_000, LeasePhase.FAILED), (9_000, LeasePhase.FAILED), (70_000, LeasePhase.FINISHED)):
        core.cycle(core.state.now_ms + MINUTE)
        lease, now_ms = core.lease_of(id_), core.state.now_ms
        core.report(lease, LeasePhase.RUNNING, at_ms=now_ms + 1_000)
        core.report(lease, phase, at_ms=now_ms + 1_000 + length_ms)
        ends.append(core.state.position)
        if phase is LeasePhase.FAILED:
            core.cycle(now_ms + 30_000)
    found = observed(core)
    runs = [found.run_of(known, ended) for ended in range(5)]
    assert runs == [
        (5_000, LeasePhase.FAILED, Runtime.OBSERVED),
        (9_000, LeasePhase.FAILED, Runtime.OBSERVED),
        *([(70_000, LeasePhase.FINISHED, Runtime.OBSERVED)] * 3),
    ]
    assert [found.ended_before(id_, end) for end in ends] == [0, 1, 2]
    assert [found.ended_before(id_, end + 1) for end in ends] == [1, 2, 3]


def test_what_was_stopped_ran_at_least_so_long() -> None:
    """Its estimate counts unless it ran longer; then the median of those of its queue that did."""
    core = one_node()
    stopped = core.submit(job(1, estimate_ms=2 * MINUTE))
    others = [core.submit(job(1)) for _ in range(4)]
    core.cycle(0)
    for minutes, other in zip((1, 5, 6, 9), others, strict=True):
        core.report(core.lease_of(other), LeasePhase.RUNNING, at_ms=0)
        core.report(core.lease_of(other), LeasePhase.FINISHED, at_ms=minutes * MINUTE)
    known = core.state.jobs[stopped]
    lease = core.lease_of(stopped)
    core.report(lease, LeasePhase.RUNNING, at_ms=0)
    core.cancel(stopped)
    core.cycle(MINUTE)
    assert observed(core).run_of(known, 0) == (2 * MINUTE, LeasePhase.FINISHED, Runtime.ESTIMATE)
    core.report(lease, LeasePhase.ENDED, at_ms=4 * MINUTE)
    assert observed(core).run_of(known, 0) == (6 * MINUTE, LeasePhase.FINISHED, Runtime.QUEUE)


def test_what_still_runs_has_run_to_the_end_of_the_log() -> None:
    core = one_node()
    short, long = core.submit(job(1)), core.submit(job(1))
    core.cycle(0)
    core.report(core.lease_of(short), LeasePhase.RUNNING, at_ms=0)
    core.report(core.lease_of(long), LeasePhase.RUNNING, at_ms=0)
    known = core.state.jobs[long]
    core.report(core.lease_of(short), LeasePhase.FINISHED, at_ms=MINUTE)
    end = core.state.position
    assert observed(core, (end, MINUTE - 1)).run_of(known, 0) == (MINUTE, LeasePhase.FINISHED, Runtime.QUEUE)
    assert observed(core, (end, MINUTE)).run_of(known, 0) == (None, LeasePhase.FINISHED, Runtime.NEVER)


def test_launching_takes_as_long_as_the_job_took_or_as_jobs_take_there() -> None:
    core = one_node()
    jobs = [core.submit(job(1)) for _ in range(3)]
    core.cycle(0)
    for seconds, id_ in zip((4, 8, 30), jobs, strict=True):
        core.report(core.lease_of(id_), LeasePhase.RUNNING, at_ms=seconds * 1_000)
    found = observed(core)
    assert [found.launch_ms(id_, HOME) for id_ in jobs] == [4_000, 8_000, 30_000]
    assert found.launch_ms(999, HOME) == 8_000
    assert found.launch_ms(jobs[0], CLOUD) == 0


def test_an_offer_that_was_never_seen_to_come_is_not_expected_to() -> None:
    core = Core()
    core.cloud(offer("good", 10_000_000), offer("bad", 10_000_000))
    core.queue("team")
    asked = {"cluster": CLOUD, "nodes": 1, "deadline_ms": 10**7, "promised_micro_usd": 0, "budgets": ()}
    for request, name in (("c1.0", "good"), ("c1.1", "bad"), ("c1.2", "good")):
        plain = {"request": request, "offer": name, "for_job": core.submit(job(8)), **asked}
        core.tell(CapacityRequested.model_validate(plain))
    core.capacity("c1.1", CapacityPhase.FAILED)
    core.capacity("c1.2", CapacityPhase.FAILED)
    core.node("x", gpus(8), cluster=CLOUD, request="c1.0")
    found = observed(core, (core.state.position, 95_000))
    assert found.lead_ms(CLOUD, "good", 60_000) == 95_000
    assert found.lead_ms(CLOUD, "bad", 60_000) is None
    assert found.lead_ms(CLOUD, "unknown", 60_000) == 60_000


def test_the_clock_stands_where_ticks_are_if_anybody_ever_waited_for_it() -> None:
    prompt, late = one_node(), one_node()
    for core, submitted_ms in ((prompt, 15_000), (late, 14_200)):
        core.submit(job(1), at_ms=submitted_ms)
        at = core.state.position
        core.cycle(15_000)
        core.cycle(45_000)
        found = observed(core, (at, 15_000))
        assert found.grid_ms == (1_000 if core is prompt else 15_000)
