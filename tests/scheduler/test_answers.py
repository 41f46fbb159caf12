"""What is told first, of all that keeps a job from starting (law 6), and that this changes nothing that is done."""

from __future__ import annotations

import pytest

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import JobEnded, JobRefused, QueueConfigured
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.answers import FirstAnswers
from controlplane.scheduler.decide import decide
from controlplane.scheduler.state import Job
from controlplane.scheduler.verdicts import Refusal
from tests.scheduler.core import Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules


def limited(core: Core, **flavors: int) -> None:
    """Configure the queue ``team`` with whole GPUs by flavor, and nothing to borrow."""
    quotas = {flavor: {"gpu": Quota(nominal=1_000 * count, borrowing_limit=0)} for flavor, count in flavors.items()}
    core.tell(QueueConfigured(spec=QueueSpec(name="team", quotas=quotas)))


def answer(core: Core, id_: int) -> tuple[str, dict[str, int]]:
    """What the last cycle recorded of a job; its account must say the same."""
    watch = decide(core.state, core.rules, watched_job=id_).watch
    assert watch is not None
    assert watch.refusal is not None
    assert watch.refusal.reason == core.state.jobs[id_].recorded_reason
    return watch.refusal.reason.slug, dict(watch.refusal.short)


def two_models() -> Core:
    core = Core()
    core.home(a1=gpus(8), a2=gpus(8), t1=gpus(8, "T4"))
    return core


# --- quota by flavor -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flavors", "members", "each", "expected"),
    [
        ({"a100": 4, "t4": 0}, 3, 2, ("exceeds-quota-ceiling", {"gpu": 2_000})),
        ({"a100": 4, "t4": 4}, 3, 3, ("exceeds-quota-ceiling", {"gpu": 3_000})),
        ({"a100": 4, "t4": 2}, 3, 2, None),
        ({"a100": 4}, 3, 2, None),
    ],
    ids=["all flavors together", "members are not cut in two", "enough", "one is not limited"],
)
def test_a_ceiling_by_flavor_is_told_as_one(
    flavors: dict[str, int], members: int, each: int, expected: tuple[str, dict[str, int]] | None
) -> None:
    core = two_models()
    limited(core, **flavors)
    id_ = core.submit(job(each, members=members))
    core.cycle(1_000)
    assert core.placed() == ([] if expected else [id_])
    if expected:
        assert answer(core, id_) == expected


def test_quota_of_a_flavor_that_is_used_up_comes_before_room() -> None:
    core = two_models()
    limited(core, a100=4, t4=0)
    first, second = core.submit(job(3)), core.submit(job(2))
    core.cycle(1_000)
    assert core.placed() == [first]
    assert answer(core, second) == ("quota", {"gpu": 2_000})
    core.finish(first)
    core.cycle(2_000)
    assert core.placed() == [second]


def test_room_that_lacks_is_told_as_capacity_where_the_flavor_has_quota_left() -> None:
    core = two_models()
    limited(core, a100=17, t4=8)
    core.submit(job(8, members=3))
    id_ = core.submit(job(1))
    core.cycle(1_000)
    assert answer(core, id_) == ("capacity", {})


def test_the_roles_of_a_gang_share_what_is_left_of_a_flavor() -> None:
    core = two_models()
    limited(core, a100=5, t4=0)
    roles = (Role(name="x", count=1, gpus=3), Role(name="y", count=1, gpus=3))
    id_ = core.submit(JobSpec(name="two", queue="team", roles=roles))
    core.cycle(1_000)
    assert answer(core, id_) == ("exceeds-quota-ceiling", {"gpu": 1_000})


def test_a_gang_has_the_ceiling_of_the_cluster_where_it_is_highest() -> None:
    """It stays in one cluster, so that the flavors of two are not added up."""
    core = Core()
    core.home(a1=gpus(8))
    core.node("b1", gpus(8), cluster="other", flavor="b")
    limited(core, a100=3, b=5)
    fits, large = core.submit(job(5)), core.submit(job(7))
    core.cycle(1_000)
    assert core.placed() == [fits]
    assert answer(core, large) == ("exceeds-quota-ceiling", {"gpu": 7_000})


def test_what_a_cloud_offers_is_no_ceiling() -> None:
    core = two_models()
    core.cloud(offer("big", 1_000_000))
    limited(core, a100=4, t4=0)
    id_ = core.submit(job(8))
    core.cycle(1_000)
    assert answer(core, id_) == ("quota", {"gpu": 8_000})


# --- never comes before what time cures ------------------------------------------------------------------------------


def waiting_behind(core: Core, reason: str, spec: JobSpec) -> int:
    """A job that a cycle meets with a reason at which it does not look at nodes."""
    match reason:
        case "queue-held":
            core.tell(QueueConfigured(spec=QueueSpec(name="team", held=True)))
            return core.submit(spec)
        case "quota":
            limited(core, any=8)
            core.submit(job(8))
            return core.submit(spec)
        case "array-full":
            limited(core)
            core.submit(job(1, array="sweep", max_running=1))
            return core.submit(spec.model_copy(update={"array": "sweep", "max_running": 1}))
        case "dependency":
            limited(core)
            first = core.submit(job(1))
            return core.submit(spec.model_copy(update={"after_any": (first,)}))
        case _:
            limited(core)
            core.submit(job(8, members=2))
            core.submit(job(8, members=3, priority=5))
            return core.submit(spec)


STRICT = PlainRules(may_block=True, may_pass=lambda job, queue: ())
MET = ("queue-held", "quota", "array-full", "dependency", "behind-head")


@pytest.mark.parametrize("reason", MET)
def test_a_job_that_could_run_is_told_what_time_cures(reason: str) -> None:
    core = Core(STRICT)
    core.home(a1=gpus(8), a2=gpus(8), a3=gpus(8))
    core.node("c", gpus(8), NodeState.CORDONED)
    id_ = waiting_behind(core, reason, job(1))
    core.cycle(1_000)
    assert answer(core, id_)[0] == reason


@pytest.mark.parametrize("reason", MET)
@pytest.mark.parametrize(
    ("wrong", "first"),
    [
        (job(1, gpu_models=("H100",)), "no-node-of-model"),
        (job(16), "exceeds-every-node"),
        (job(8, members=9), "exceeds-capacity"),
    ],
    ids=["model", "node", "capacity"],
)
def test_that_it_can_never_run_is_told_first(reason: str, wrong: JobSpec, first: str) -> None:
    core = Core(STRICT)
    core.home(a1=gpus(8), a2=gpus(8), a3=gpus(8))
    id_ = waiting_behind(core, reason, wrong)
    core.cycle(1_000)
    is_beyond_quota = reason == "quota" and first != "no-node-of-model"
    assert answer(core, id_)[0] == ("exceeds-quota-ceiling" if is_beyond_quota else first)


def test_a_dependent_that_can_never_run_is_told_so_until_it_may_start_and_after() -> None:
    core = two_models()
    core.queue("team")
    first = core.submit(job(1))
    id_ = core.submit(job(16, after_any=(first,)))
    core.cycle(1_000)
    assert answer(core, id_)[0] == "exceeds-every-node"
    assert core.closed.waiting == {"exceeds-every-node": 1}
    core.finish(first)
    core.cycle(2_000)
    assert answer(core, id_)[0] == "exceeds-every-node"


def test_who_gives_up_is_told_the_same() -> None:
    core = two_models()
    limited(core, any=8)
    core.submit(job(8))
    id_ = core.submit(job(1, gpu_models=("H100",), wait_limit_ms=0))
    core.cycle(1_000)
    ended = core.last(JobEnded)
    assert [(event.job, event.reason) for event in ended] == [(id_, int(Reason.NO_NODE_OF_MODEL))]
    assert core.last(JobRefused) == []


# --- and changes nothing that is done --------------------------------------------------------------------------------


def test_what_is_told_changes_nothing_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules about overtaking see what was met: a full quota blocks, although this job can never run."""
    done = []
    for is_told in (True, False):
        core = Core(STRICT)
        core.home(a1=gpus(8), a2=gpus(8))
        core.cloud(offer("big", 1_000_000))
        core.rules.cost = lambda job, home, offer, now: 1
        limited(core, any=8)
        core.queue("other")
        if not is_told:
            monkeypatch.setattr(FirstAnswers, "of", met_alone)
        core.submit(job(8))
        core.submit(job(1, gpu_models=("H100",), priority=5))
        core.submit(job(1, queue="other"))
        for now_ms in (1_000, 70_000):
            core.cycle(now_ms)
            done.append([event for event in core.decided[:-1] if not event.TYPE.startswith("jobs_waiting")])
    assert done[:2] == done[2:]


def met_alone(self: FirstAnswers, job: Job, queue: object, met: Refusal) -> Refusal:
    return met
