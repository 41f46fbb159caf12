"""``why`` answers for every reason with its cause, the amounts and the smallest change that would have helped."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.audit.sentences import given, smallest_change, tell
from controlplane.audit.why import NoSuchJob, plainer, why
from controlplane.domain.reasons import Reason
from controlplane.domain.topology import Arrangement, Level
from controlplane.domain.workloads import GangTerms, JobSpec
from controlplane.eventlog.memory import MemoryLog
from controlplane.runtime.entries import entry_of
from controlplane.scheduler.decide import decide
from controlplane.scheduler.verdicts import Refusal, Watch
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import read_story
from tests.scenarios.policies import shipped
from tests.scheduler.core import HOUR, Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules

STORIES = Path(__file__).parents[1] / "scenarios"


@pytest.mark.parametrize("reason", list(Reason), ids=lambda reason: reason.slug)
def test_every_reason_is_told(reason: Reason) -> None:
    watch = Watch(1, refusal=Refusal(reason, {"gpu": 2_000}))
    assert tell(watch)[0].startswith(f"Reason {reason.slug}: ")


def watched(core: Core, job_id: int) -> Watch:
    """The account of a job in the cycle that is due now."""
    watch = decide(core.state, core.rules, watched_job=job_id).watch
    assert watch is not None
    return watch


def one_node(rules: PlainRules | None = None) -> Core:
    core = Core(rules)
    core.home(a=gpus(8))
    core.queue("team")
    return core


def test_capacity_names_what_is_short_and_where() -> None:
    core = one_node()
    core.submit(job(6))
    core.cycle(1)
    blocked = core.submit(job(4))
    core.cycle(2)
    watch = watched(core, blocked)
    assert watch.refusal is not None
    assert watch.refusal.reason is Reason.CAPACITY
    [role] = watch.roles
    assert (role.would_fit, role.nearest, dict(role.lacks)) == (0, "a", {"gpu": 2_000})
    assert smallest_change(watch) == "2 GPUs more free on a"


def test_quota_names_the_amount() -> None:
    core = Core()
    core.home(a=gpus(8))
    core.queue("team", {"gpu": 4_000})
    core.submit(job(3))
    core.cycle(1)
    blocked = core.submit(job(2))
    core.cycle(2)
    watch = watched(core, blocked)
    assert watch.refusal is not None
    assert watch.refusal.reason is Reason.QUOTA
    assert dict(watch.refusal.short) == {"gpu": 1_000}
    assert smallest_change(watch).startswith("1 GPU more quota")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (job(1, gpu_models=("B200",)), Reason.NO_NODE_OF_MODEL),
        (job(16), Reason.EXCEEDS_EVERY_NODE),
        (job(8, members=2), Reason.EXCEEDS_CAPACITY),
    ],
    ids=["model", "node", "capacity"],
)
def test_what_can_never_run_says_so(spec: JobSpec, reason: Reason) -> None:
    core = one_node()
    blocked = core.submit(spec)
    core.cycle(1)
    watch = watched(core, blocked)
    assert watch.refusal is not None
    assert watch.refusal.reason is reason
    assert smallest_change(watch)


def test_a_larger_gang_than_the_ceiling_names_the_ceiling() -> None:
    """B2."""
    core = Core()
    core.home(a=gpus(8), b=gpus(8))
    core.queue("team", {"gpu": 4_000})
    blocked = core.submit(job(4, members=2))
    core.cycle(1)
    watch = watched(core, blocked)
    assert watch.refusal is not None
    assert watch.refusal.reason is Reason.EXCEEDS_QUOTA_CEILING
    [quota] = watch.quotas
    assert (quota.asked, quota.ceiling) == (8_000, 4_000)
    assert "higher by 4 GPUs" in smallest_change(watch)


def test_eligibility_and_holds_are_told() -> None:
    core = one_node(PlainRules(is_eligible=lambda job, role, cluster, node: False))
    blocked = core.submit(job(1))
    core.cycle(1)
    assert watched(core, blocked).refusal == Refusal(Reason.NOT_ELIGIBLE)


def test_a_reserved_start_is_named_with_its_owner() -> None:
    core = one_node(PlainRules(may_reserve=True, depth=lambda job: 1))
    core.submit(job(4, estimate_ms=HOUR))
    core.cycle(0)
    first = core.submit(job(8, estimate_ms=HOUR))
    second = core.submit(job(2, name="second", estimate_ms=2 * HOUR))
    core.cycle(1)
    watch = watched(core, second)
    assert watch.refusal is not None
    assert watch.refusal.reason is Reason.RESERVED
    assert f"A start of j{first} is reserved on a, at 01:00:00." in tell(watch)


def test_offers_are_told_one_by_one() -> None:
    core = one_node()
    core.cloud(offer("dear", 9_000_000), offer("cheap", 1_000_000))
    blocked = core.submit(job(8, members=2))
    core.cycle(1)
    answers = {verdict.offer: verdict.answer for verdict in watched(core, blocked).offers}
    assert set(answers) <= {"cloud/dear", "cloud/cheap"}


def test_a_job_that_is_not_there_is_a_sentence() -> None:
    core = one_node()
    core.submit(job(6))
    core.cycle(1)
    log = MemoryLog()
    log.append([entry_of(event, "test", 0) for event in core.told], log.head())
    with pytest.raises(NoSuchJob, match="j9999 is not in the log"):
        why(log, 9_999)


@pytest.mark.parametrize(
    ("gpus_of_an_offer", "answer"),
    [(1, "its nodes are too small: 1 GPU, and a member needs 2 GPUs"), (2, "the eligibility rules refuse its nodes")],
)
def test_of_an_offer_that_will_not_do_the_cause_is_told(gpus_of_an_offer: int, answer: str) -> None:
    core = one_node(PlainRules(is_eligible=lambda job, role, cluster, node: cluster.name == "home"))
    core.cloud(offer("small", 1_000_000, count=gpus_of_an_offer))
    core.submit(job(8))
    core.cycle(1)
    blocked = core.submit(job(2))
    core.cycle(2)
    [told] = [plainer(verdict, core.state, job(2)) for verdict in watched(core, blocked).offers]
    assert told.answer == answer


def test_terms_that_the_rules_gave_are_told_with_the_rule() -> None:
    story = STORIES / "q-the-rules-set-a-ceiling-on-starts.yaml"
    stage = Stage(read_story(story.name, story.read_text(encoding="utf-8")), shipped)
    stage.play(lambda moment: None)
    told = why(stage.log, stage.jobs["stubborn"]).sentences()
    assert any("the rules give it 2 starts in all, by gang.yaml:" in line for line in told)


def test_every_term_is_told() -> None:
    terms = GangTerms(
        min_members=2,
        topology_required=Level.NVLINK,
        topology_preferred=Level.HOST,
        arrangement=Arrangement.BALANCED,
        max_attempts=3,
        wait_limit_ms=60_000,
        start_by_ms=HOUR,
        hold_ms=120_000,
        time_limit_ms=HOUR,
        grace_ms=1_000,
        max_running=4,
    )
    assert None not in terms.model_dump().values()
    assert given(terms) == (
        "at least 2 members, one NVLink domain for all of it, one host if there is room, its members balanced, "
        "3 starts in all, 1 min 00 s to wait, until 01:00:00 to start, 2 min 00 s to come up once it is placed, "
        "1 h 00 min to run, 1.0 s to stop, 4 jobs of its array at once"
    )
    assert given(GangTerms()) == "the terms that it asked for"


def test_room_that_is_held_warm_is_named_with_its_pool() -> None:
    core = one_node()
    core.pool("spare", 3, gpus=2, queue="team")
    core.cycle(0)
    blocked = core.submit(job(4))
    core.cycle(1)
    watch = watched(core, blocked)
    assert watch.refusal is not None
    assert watch.refusal.reason is Reason.HELD_WARM
    assert "Warm pool spare holds 6 GPUs on a for services of queue team." in tell(watch)
    assert smallest_change(watch) == "a smaller warm pool, or room that no pool holds"
