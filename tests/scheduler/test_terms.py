"""Terms that the rules give: as if the job had asked for them, from the cycle on that admits it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from pydantic import ValidationError

from controlplane.domain.events import (
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobRequeued,
    LeaseGranted,
    LeasePhase,
    LeaseRevoked,
    PolicyActivated,
    TermsGiven,
)
from controlplane.domain.reasons import Reason
from controlplane.domain.topology import Arrangement, Level, TopologyRequest
from controlplane.domain.workloads import GangTerms, JobSpec, Role, ServiceSpec
from controlplane.scheduler import terms
from controlplane.scheduler.facts import JobFacts, QueueFacts
from controlplane.scheduler.rules import Answer
from controlplane.scheduler.terms import Terms
from controlplane.scheduler.timers import needs_cycle, next_due_ms
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000
Give = Callable[[JobFacts, QueueFacts, int], GangTerms]


def giving(give: Give | GangTerms, *reads: str, **more: object) -> PlainRules:
    rule = give if callable(give) else lambda job, queue, now: give
    return PlainRules(may_give_terms=True, terms=rule, gang_reads=frozenset(reads), **more)  # type: ignore[arg-type]


def core_with(rules: PlainRules, **nodes: int) -> Core:
    core = Core(rules)
    core.queue("team")
    core.home(**{name: gpus(count) for name, count in nodes.items()})
    return core


def elastic(least: int, most: int, **more: object) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "e", "queue": "team", "roles": (Role(count=most, min_count=least, gpus=1),), **more}
    )


# --- what terms make of a job ----------------------------------------------------------------------------------------


def test_no_terms_leave_the_very_job() -> None:
    asked = elastic(2, 4)
    assert GangTerms().applied(asked) is asked
    assert GangTerms(max_attempts=3, grace_ms=30_000, max_running=2, min_members=2).applied(asked) is asked


@pytest.mark.parametrize(
    ("roles", "least", "expected"),
    [
        ([(1, 4)], 3, [3]),
        ([(2, 4)], 1, [2]),
        ([(2, 4)], 9, [4]),
        ([(1, 2), (1, 3)], 4, [2, 2]),
        ([(2, 2), (1, 3)], 4, [2, 2]),
        ([(3, 3)], 5, [3]),
    ],
)
def test_the_least_is_raised_role_by_role_and_never_lowered(
    roles: list[tuple[int, int]], least: int, expected: list[int]
) -> None:
    asked = JobSpec(
        name="e",
        queue="team",
        roles=tuple(Role(name=f"r{at}", min_count=low, count=high) for at, (low, high) in enumerate(roles)),
    )
    given = GangTerms(min_members=least).applied(asked)
    assert [role.least for role in given.roles] == expected
    assert [role.count for role in given.roles] == [high for _, high in roles]


RACK, BLOCK, HOST = Level.RACK, Level.BLOCK, Level.HOST


@pytest.mark.parametrize(
    ("own", "given", "expected"),
    [
        (None, {"topology_required": RACK}, {"required": RACK}),
        ({"required": RACK}, {"topology_required": BLOCK}, {"required": RACK}),
        ({"required": BLOCK}, {"topology_required": RACK}, {"required": RACK}),
        ({"required": BLOCK, "preferred": RACK}, {"topology_required": RACK}, {"required": RACK}),
        ({"preferred": RACK}, {"topology_preferred": HOST}, {"preferred": HOST}),
        ({"required": RACK}, {"topology_preferred": BLOCK}, {"required": RACK}),
        (None, {"arrangement": "balanced"}, {"arrangement": "balanced"}),
        ({"arrangement": "packed"}, {"arrangement": "balanced"}, {"arrangement": "packed"}),
    ],
)
def test_levels_of_the_rules_and_of_the_job(
    own: dict[str, object] | None, given: dict[str, object], expected: dict[str, object]
) -> None:
    asked = job(1, members=2, topology=TopologyRequest.model_validate(own) if own else None)
    found = GangTerms.model_validate(given).applied(asked)
    assert found.topology == TopologyRequest.model_validate(expected)


def test_what_a_job_asks_for_itself_is_nothing_new() -> None:
    asked = elastic(2, 4, grace_ms=5_000)
    given = GangTerms(grace_ms=5_000, max_attempts=9, min_members=2, topology_preferred=RACK)
    assert given.new_to(asked) == GangTerms(max_attempts=9, topology_preferred=RACK)
    assert GangTerms(hold_ms=1).new_to(asked) == GangTerms(hold_ms=1)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_new_alone_makes_the_same_job(seed: int) -> None:
    draw = Random(seed)
    given, asked = drawn_terms(draw), drawn_job(draw)
    assert given.new_to(asked).applied(asked) == given.applied(asked)


def test_one_member_is_always_near_itself() -> None:
    asked = job(1)
    assert GangTerms(topology_required=RACK, arrangement=Arrangement.BALANCED).applied(asked) is asked


def test_only_jobs_of_an_array_have_a_ceiling_of_it() -> None:
    given = GangTerms(max_running=2)
    assert given.applied(job(1)).max_running is None
    assert given.applied(job(1, array="a", max_running=7)).max_running == 2


def test_a_service_has_no_time_limit() -> None:
    asked = elastic(1, 3, service=ServiceSpec())
    given = GangTerms(time_limit_ms=MINUTE, min_members=2).applied(asked)
    assert (given.time_limit_ms, given.roles[0].least) == (None, 2)
    assert GangTerms(time_limit_ms=MINUTE).applied(asked) is asked


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"hold_ms": 0}, {"min_members": 0}, {"topology_required": "x"}])
def test_terms_that_no_job_could_ask_for_are_none(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GangTerms.model_validate(wrong)


# --- as if it had asked for them -------------------------------------------------------------------------------------


def drawn_terms(draw: Random) -> GangTerms:
    return GangTerms(
        min_members=draw.choice([None, 2, 3]),
        topology_required=draw.choice([None, None, Level.RACK]),
        arrangement=draw.choice([None, Arrangement.BALANCED]),
        max_attempts=draw.choice([None, 1, 2]),
        wait_limit_ms=draw.choice([None, 0, 30_000]),
        start_by_ms=draw.choice([None, None, 90_000]),
        hold_ms=draw.choice([None, 40_000]),
        time_limit_ms=draw.choice([None, 50_000]),
        grace_ms=draw.choice([None, 1_000]),
        max_running=draw.choice([None, 1]),
    )


def drawn_job(draw: Random) -> JobSpec:
    array = {"array": "sweep", "max_running": 3} if draw.random() < 0.3 else {}
    wait = {"wait_limit_ms": 100_000} if draw.random() < 0.3 else {}
    least, most = sorted((draw.randint(1, 4), draw.randint(1, 4)))
    return elastic(least, most, priority=draw.randint(0, 2), **array, **wait)


def lived(seed: int, *, by_rules: bool) -> list[Event]:
    """The same jobs under the same terms, which they ask for themselves or are given."""
    draw = Random(seed)
    given = {f"j{number}": drawn_terms(draw) for number in range(3, 15)}
    rules = giving(
        lambda job, queue, now: given[job.id],
        "job.id",
        may_preempt=True,
        allow=lambda job, queue, shortage: ("queue", "surplus"),
    )
    core = Core(rules if by_rules else replace(rules, may_give_terms=False))
    core.home()
    core.queue("team")
    assert core.state.position == 2
    for terms_given in given.values():
        spec = drawn_job(draw)
        core.submit(spec if by_rules else terms_given.applied(spec))
    for number in range(3):
        core.node(f"n{number}", gpus(2))
    decided: list[Event] = []
    for number in range(8):
        decided += core.cycle(1_000 + 30_000 * number)
        leases = list(core.state.leases)
        for lease in leases[: number % 3]:
            core.report(lease, draw.choice([LeasePhase.RUNNING, LeasePhase.FINISHED, LeasePhase.FAILED]))
    return [event for event in decided if not isinstance(event, TermsGiven | CycleDecided)]


@pytest.mark.parametrize("seed", range(12))
def test_terms_that_are_given_decide_what_terms_that_are_asked_for_decide(seed: int) -> None:
    assert lived(seed, by_rules=True) == lived(seed, by_rules=False)


def test_the_worlds_of_terms_do_all_that_terms_can_do() -> None:
    """So that the others test something."""
    seen = [event for seed in range(12) for event in lived(seed, by_rules=True)]
    causes = {event.cause for event in seen if isinstance(event, LeaseRevoked)}
    outcomes = {event.outcome for event in seen if isinstance(event, JobEnded)}
    assert {"not-running", "time-limit"} <= causes
    assert {"expired", "failed"} <= outcomes


# --- in the cycle that admits it -------------------------------------------------------------------------------------


def test_it_has_them_in_the_cycle_that_admits_it_and_the_log_says_so() -> None:
    core = core_with(giving(GangTerms(min_members=4)), a=3)
    id_ = core.submit(elastic(1, 4))
    core.cycle(1)
    assert [(event.job, event.terms.min_members) for event in core.last(TermsGiven)] == [(id_, 4)]
    assert core.placed() == []
    core.node("b", gpus(1))
    core.cycle(2)
    assert core.placed() == [id_]
    assert [len(event.members) for event in core.last(LeaseGranted)] == [4]


def test_terms_that_say_what_it_asked_for_are_not_recorded() -> None:
    core = core_with(giving(lambda job, queue, now: GangTerms(max_attempts=min(job.max_attempts, 5))), a=1)
    core.submit(job(1))
    core.submit(job(1, max_attempts=9))
    core.cycle(1)
    assert [event.terms.max_attempts for event in core.last(TermsGiven)] == [5]


def test_alike_jobs_share_one_question_and_others_are_asked_for_themselves() -> None:
    asked: list[str] = []

    def give(job: JobFacts, queue: QueueFacts, now: int) -> GangTerms:
        asked.append(job.name)
        return GangTerms(max_attempts=1)

    for reads, expected in ((("job.priority",), 2), (("job.name",), 11)):
        asked.clear()
        core = Core(giving(give, *reads), is_checked=False)
        core.queue("team")
        core.home(a=gpus(1))
        for _ in range(10):
            core.submit(job(1))
        core.submit(job(1, priority=3))
        core.cycle(1)
        assert len(asked) == expected
        assert len(core.last(TermsGiven)) == 11


def test_a_rule_that_errs_refuses_the_submission() -> None:
    core = core_with(giving(GangTerms()), a=1)
    core.rules.gang = lambda *facts: Answer(GangTerms(), "gang.yaml:3", "gang.yaml:3: it erred")  # type: ignore[method-assign]
    id_ = core.submit(job(1))
    core.cycle(1)
    refused = core.last(JobRefused)
    assert [(event.job, event.reason, event.rule) for event in refused] == [(id_, Reason.RULE_FAILED, "gang.yaml:3")]
    assert core.closed.faults == ("gang.yaml:3: it erred",)


def test_a_job_keeps_its_terms_when_the_policy_changes_and_while_it_runs() -> None:
    core = core_with(giving(GangTerms(max_attempts=1)), a=1)
    first, second = core.submit(job(1)), core.submit(job(1))
    core.cycle(1)
    core.rules = PlainRules(digest="other")
    core.tell(PolicyActivated(name="other", digest="other", files={}))
    core.report(core.lease_of(first), LeasePhase.FAILED)
    core.cycle(2)
    assert [(event.job, event.outcome) for event in core.last(JobEnded)] == [(first, "failed")]
    assert core.placed() == [second]
    assert core.state.jobs[second].cls.spec.max_attempts == 1


# --- with the time ---------------------------------------------------------------------------------------------------


def patient(job: JobFacts, queue: QueueFacts, now: int) -> GangTerms:
    """Holds out for all of its members for ten minutes."""
    return GangTerms(min_members=job.members_most) if now - job.submitted_ms < 10 * MINUTE else GangTerms()


PATIENT = ("job.members_most", "job.submitted_ms", "now")


def test_a_gang_holds_out_for_more_and_starts_with_the_least_at_last() -> None:
    core = core_with(giving(patient, *PATIENT), a=3)
    id_ = core.submit(elastic(2, 4))
    for now_ms in range(1, 10 * MINUTE, MINUTE):
        core.cycle(now_ms)
        assert core.placed() == []
        assert next_due_ms(core.state) == now_ms + MINUTE
    core.cycle(10 * MINUTE + 1)
    assert [event.terms for event in core.last(TermsGiven)] == [GangTerms()]
    assert needs_cycle(core.state)
    core.cycle(10 * MINUTE + 2)
    assert core.placed() == [id_]


def test_one_that_gets_all_of_its_members_starts_at_once_and_keeps_them() -> None:
    rules = giving(patient, *PATIENT, may_preempt=True, allow=lambda job, queue, shortage: ("surplus",))
    core = core_with(rules, a=4)
    first = core.submit(elastic(2, 4))
    core.cycle(1)
    assert core.placed() == [first]
    core.submit(job(1))
    core.cycle(20 * MINUTE)
    assert core.placed() == []
    assert core.last(TermsGiven) == []


def test_terms_that_end_its_time_end_it_in_the_next_cycle() -> None:
    def shorter(job: JobFacts, queue: QueueFacts, now: int) -> GangTerms:
        return GangTerms(wait_limit_ms=MINUTE if now >= 5 * MINUTE else 60 * MINUTE)

    core = core_with(giving(shorter, "now"), a=1)
    core.submit(job(1))
    id_ = core.submit(job(1))
    core.cycle(1)
    core.cycle(5 * MINUTE)
    assert [event.terms.wait_limit_ms for event in core.last(TermsGiven)] == [MINUTE]
    assert next_due_ms(core.state) == 5 * MINUTE + 1
    core.cycle(5 * MINUTE + 1)
    assert [(event.job, event.outcome) for event in core.last(JobEnded)] == [(id_, "expired")]


def test_who_waits_keeps_its_terms_when_the_rule_errs() -> None:
    core = core_with(giving(patient, *PATIENT), a=3)
    id_ = core.submit(elastic(2, 4))
    core.cycle(1)
    core.rules.gang = lambda *facts: Answer(GangTerms(), None, "it erred")  # type: ignore[method-assign]
    core.cycle(20 * MINUTE)
    assert core.closed.faults == ("it erred",)
    assert core.last(TermsGiven) == []
    core.cycle(21 * MINUTE)
    assert core.placed() == []
    assert core.state.jobs[id_].cls.spec.roles[0].least == 4


# --- how long a start may take to come up ----------------------------------------------------------------------------


def test_a_gang_that_does_not_come_up_gives_its_place_back_and_that_start_has_failed() -> None:
    core = core_with(PlainRules(), a=1)
    id_ = core.submit(job(1, hold_ms=MINUTE, max_attempts=2))
    core.cycle(1_000)
    lease = core.lease_of(id_)
    core.report(lease, LeasePhase.LAUNCHING)
    core.cycle(MINUTE + 999)
    assert core.last(LeaseRevoked) == []
    assert next_due_ms(core.state) == MINUTE + 1_000
    core.cycle(MINUTE + 1_000)
    assert [(event.lease, event.cause) for event in core.last(LeaseRevoked)] == [(lease, "not-running")]
    assert next_due_ms(core.state) is None
    core.report(lease, LeasePhase.ENDED)
    core.cycle(MINUTE + 2_000)
    assert [event.cause for event in core.last(JobRequeued)] == ["not-running"]
    core.cycle(MINUTE + 3_000)
    assert core.placed() == [id_]
    core.cycle(2 * MINUTE + 3_000)
    core.report(core.lease_of(id_), LeasePhase.ENDED)
    core.cycle(2 * MINUTE + 4_000)
    assert [(event.job, event.outcome) for event in core.last(JobEnded)] == [(id_, "failed")]


def test_one_that_comes_up_in_time_is_left_alone() -> None:
    core = core_with(PlainRules(), a=2)
    id_ = core.submit(job(2, hold_ms=MINUTE))
    core.cycle(1_000)
    core.report(core.lease_of(id_), LeasePhase.RUNNING, LeasePhase.RUNNING)
    core.cycle(10 * MINUTE)
    assert core.last(LeaseRevoked) == []
    assert next_due_ms(core.state) is None
    core.report(core.lease_of(id_), LeasePhase.FINISHED)
    core.cycle(11 * MINUTE)
    assert id_ not in core.state.jobs


# --- mutants ---------------------------------------------------------------------------------------------------------


def test_a_cycle_that_does_not_take_its_terms_back_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terms, "undo", lambda self: None)
    core = core_with(giving(GangTerms(max_attempts=1)), a=1)
    core.submit(job(1))
    with pytest.raises(AssertionError, match="deciding changed the state"):
        core.cycle(1)


def test_terms_that_hold_only_from_the_next_cycle_on_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(state: object, job: object, given: object) -> terms.TakenOn:
        return terms.TakenOn(job, job.cls, job.asked, (), ())  # type: ignore[arg-type, attr-defined]

    monkeypatch.setattr(terms, "take_on", late)
    with pytest.raises(AssertionError, match="members that it needs"):
        [lived(seed, by_rules=True) for seed in range(12)]
