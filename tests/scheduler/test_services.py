"""Services: how many replicas they have, where those come from, and that they give room back."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from controlplane.domain.events import (
    CapacityPhase,
    JobEnded,
    JobRequeued,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    MemberName,
    PolicyActivated,
    PromiseReleased,
    QueueConfigured,
    RoomPromised,
    ServiceObserved,
    ServiceScaled,
    ServiceShort,
)
from controlplane.domain.queues import Quota
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role, ServiceSpec
from controlplane.scheduler.facts import ServiceFacts
from controlplane.scheduler.services import EVERY_MS
from controlplane.scheduler.timers import needs_cycle, next_due_ms
from tests.scheduler.core import HOME, HOUR, Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000


def service(least: int, most: int, *, size: int = 1, queue: str = "team", **more: object) -> JobSpec:
    """A service of so many replicas."""
    role = Role(name="replica", count=most, min_count=least, gpus=size)
    spec = more.pop("service", ServiceSpec(objective_ms=500))
    return JobSpec.model_validate({"name": "api", "queue": queue, "roles": (role,), "service": spec, **more})


def training(least: int, most: int, *, size: int = 1, queue: str = "team", **more: object) -> JobSpec:
    """An elastic gang that ends."""
    role = Role(name="worker", count=most, min_count=least, gpus=size)
    return JobSpec.model_validate({"name": "training", "queue": queue, "roles": (role,), **more})


class Wanting:
    """Rules under which a test says how many replicas are wanted; asks are counted."""

    def __init__(self, *scopes: str, take: int = 0, rules: PlainRules | None = None) -> None:
        self.wanted: int | None = None
        self.seen: list[ServiceFacts] = []
        self.rules = rules or PlainRules()
        self.rules.may_scale = True
        self.rules.may_preempt = bool(scopes)
        self.rules.allow = lambda job, queue, shortage: scopes
        self.rules.replicas = self._replicas
        self.rules.take = lambda service: take

    def _replicas(self, facts: ServiceFacts, now_ms: int) -> int | None:
        self.seen.append(facts)
        return self.wanted


def served(wanting: Wanting, spec: JobSpec, *nodes: int) -> tuple[Core, int]:
    """A core with nodes of so many GPUs, and the service placed on it."""
    core = Core(wanting.rules)
    core.queue("team")
    core.home(**{f"n{at}": gpus(size) for at, size in enumerate(nodes)})
    api = core.submit(spec)
    core.cycle(0)
    assert core.placed() == [api]
    return core, api


def replicas(core: Core, api: int) -> int:
    return len(core.state.leases[core.lease_of(api)].staying())


# --- what a service is -----------------------------------------------------------------------------------------------


def test_a_service_never_ends() -> None:
    with pytest.raises(ValidationError, match="leave out estimate_ms and time_limit_ms"):
        service(1, 2, estimate_ms=1, time_limit_ms=1)


def test_a_service_has_one_role() -> None:
    with pytest.raises(ValidationError, match="a service has one role"):
        JobSpec(name="a", queue="q", roles=(Role(name="x"), Role(name="y")), service=ServiceSpec())


def test_without_rules_a_service_has_its_least_and_is_asked_nothing() -> None:
    core = Core()
    core.queue("team")
    core.home(n=gpus(8))
    api = core.submit(service(2, 6))
    core.cycle(0)
    assert replicas(core, api) == 2
    core.signal(api, 9_999)
    assert not needs_cycle(core.state)
    assert next_due_ms(core.state) is None
    core.cycle(MINUTE)
    assert replicas(core, api) == 2


# --- the signal ------------------------------------------------------------------------------------------------------


def test_the_latest_signal_counts_in_whichever_order_they_arrive() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4), 8)
    core.signal(api, 700, at_ms=2_000)
    core.signal(api, 900, at_ms=1_000)
    core.signal(api, 800, at_ms=2_000)
    assert needs_cycle(core.state)
    core.cycle(3_000)
    assert not needs_cycle(core.state)
    seen = wanting.seen[-1]
    assert (seen.p99_ms, seen.objective_ms, seen.observed_ms, seen.queue_depth) == (700, 500, 2_000, None)


def test_an_observation_may_name_another_objective() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4), 8)
    core.tell(ServiceObserved(cluster=HOME, lease=core.lease_of(api), observed_ms=1, p99_ms=7, objective_ms=90))
    core.cycle(2)
    assert wanting.seen[-1].objective_ms == 90


def test_a_stale_signal_says_nothing() -> None:
    wanting = Wanting()
    spec = ServiceSpec(objective_ms=500, stale_after_ms=MINUTE)
    core, api = served(wanting, service(1, 4, service=spec), 8)
    core.signal(api, 700, queue_depth=3, at_ms=1_000)
    core.cycle(MINUTE + 999)
    assert (wanting.seen[-1].p99_ms, wanting.seen[-1].queue_depth) == (700, 3)
    core.cycle(2 * MINUTE)
    stale = wanting.seen[-1]
    assert (stale.observed_ms, stale.p99_ms, stale.queue_depth, stale.objective_ms) == (None, None, None, 500)


def test_signals_of_others_and_of_leases_that_are_over_are_passed_over() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4), 8)
    other = core.submit(job(1))
    core.cycle(1)
    core.signal(other, 5)
    over = core.lease_of(api)
    core.report(over, LeasePhase.FAILED)
    core.tell(ServiceObserved(cluster=HOME, lease=over, observed_ms=9, p99_ms=9))
    assert core.state.fresh_signals == {}
    core.cycle(2)
    core.cycle(3)
    assert core.state.leases[core.lease_of(api)].service is not None
    core.cycle(HOUR)
    assert wanting.seen[-1].p99_ms is None


def test_rules_are_asked_when_it_was_observed_and_every_half_minute() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4), 8)
    assert next_due_ms(core.state) == EVERY_MS
    core.cycle(1_000)
    assert wanting.seen == [], "nothing was seen of it, and no time has passed"
    core.signal(api, 1, at_ms=1_500)
    core.cycle(2_000)
    before = len(wanting.seen)
    assert before > 0
    core.cycle(3_000)
    assert len(wanting.seen) == before
    core.cycle(EVERY_MS)
    assert len(wanting.seen) > before
    assert next_due_ms(core.state) == 2 * EVERY_MS


def test_other_rules_are_asked_at_once() -> None:
    core, _ = served(Wanting(), service(1, 4), 8)
    core.cycle(1_000)
    core.tell(PolicyActivated(name="other", digest="other", files={}))
    assert next_due_ms(core.state) == 1_000


# --- free room -------------------------------------------------------------------------------------------------------


def test_it_grows_into_free_room_and_says_why() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4), 8)
    core.signal(api, 900, queue_depth=12, at_ms=5)
    wanting.wanted = 3
    core.cycle(10)
    (scaled,) = core.last(ServiceScaled)
    assert (scaled.wanted, scaled.replicas, scaled.p99_ms, scaled.objective_ms) == (3, 1, 900, 500)
    assert (scaled.queue_depth, scaled.observed_ms) == (12, 5)
    (grown,) = core.last(LeaseGrown)
    assert (grown.cause, [member.ordinal for member in grown.members]) == ("wanted", [1, 2])
    assert replicas(core, api) == 3
    assert core.last(ServiceShort) == []
    core.cycle(EVERY_MS + 1)
    assert not core.last(ServiceScaled)
    assert not core.last(LeaseGrown)


def test_the_number_is_cut_to_what_the_job_allows() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(2, 4), 8)
    wanting.wanted = 99
    core.cycle(EVERY_MS)
    assert (core.last(ServiceScaled)[0].wanted, replicas(core, api)) == (4, 4)
    wanting.wanted = -1
    core.cycle(2 * EVERY_MS)
    assert (core.last(ServiceScaled)[0].wanted, replicas(core, api)) == (2, 2)


def test_replicas_go_before_jobs_that_wait_and_never_beyond_the_quota() -> None:
    wanting = Wanting()
    core = Core(wanting.rules)
    core.queue("team", {"gpu": 3_000})
    core.queue("others")
    core.home(n=gpus(4))
    api = core.submit(service(1, 4))
    core.cycle(0)
    core.submit(job(3, queue="others"))
    wanting.wanted = 4
    core.cycle(EVERY_MS)
    assert replicas(core, api) == 3
    assert core.placed() == []
    (short,) = core.last(ServiceShort)
    assert (short.missing, short.reason, short.short) == (1, Reason.QUOTA, {"gpu": 1_000})
    core.cycle(2 * EVERY_MS)
    assert core.last(ServiceShort) == [], "it is said once"


def test_a_held_queue_takes_no_replicas_and_gives_them_back() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4), 8)
    wanting.wanted = 2
    core.cycle(EVERY_MS)
    spec = core.state.queues["team"].model_copy(update={"held": True})
    core.tell(QueueConfigured(spec=spec))
    wanting.wanted = 4
    core.cycle(2 * EVERY_MS)
    assert replicas(core, api) == 2
    assert core.last(ServiceShort)[0].reason == Reason.QUEUE_HELD
    wanting.wanted = 1
    core.cycle(3 * EVERY_MS)
    assert replicas(core, api) == 1


def test_it_never_goes_where_a_start_is_reserved() -> None:
    wanting = Wanting(rules=PlainRules(may_reserve=True, depth=lambda job: 1))
    core, api = served(wanting, service(1, 4), 1)
    core.node("big", gpus(4))
    core.submit(job(2, estimate_ms=HOUR))
    core.cycle(1)
    head = core.submit(job(4))
    core.cycle(2)
    assert [at.name for at in core.state.reservations[head].nodes] == ["big"]
    wanting.wanted = 2
    core.cycle(EVERY_MS)
    assert replicas(core, api) == 1, "two GPUs are free, and the start of another is reserved there"
    assert core.last(ServiceShort)[0].reason == Reason.RESERVED
    core.cancel(head)
    core.cycle(EVERY_MS + 1)
    core.cycle(EVERY_MS + 2)
    assert replicas(core, api) == 2


def test_what_only_the_end_of_a_service_would_free_is_reserved_for_nobody() -> None:
    core = Core(PlainRules(may_reserve=True, depth=lambda job: 1))
    core.queue("team")
    core.home(n=gpus(4))
    core.submit(service(1, 1))
    core.cycle(0)
    core.submit(job(4))
    core.cycle(1)
    assert core.state.reservations == {}
    core.submit(job(3, estimate_ms=HOUR))
    core.cycle(2)
    assert len(core.placed()) == 1, "nobody waits for ever because of a start that never comes"


def test_a_service_keeps_its_room_in_the_eyes_of_backfill() -> None:
    """A job that would end before a reserved start may use its nodes; a service never does."""
    core = Core(PlainRules(may_reserve=True, depth=lambda job: 1))
    core.queue("team")
    core.home(n=gpus(4))
    core.submit(job(2, estimate_ms=HOUR))
    core.cycle(0)
    core.submit(job(4, estimate_ms=HOUR))
    core.cycle(1)
    api, short = core.submit(service(1, 1)), core.submit(job(1, estimate_ms=MINUTE))
    core.cycle(2)
    assert core.placed() == [short]
    assert core.waiting()[api].reason == Reason.RESERVED


def test_a_service_goes_on_no_rent_of_others() -> None:
    """Rent ends, and a service does not."""
    core = Core(PlainRules(cost=lambda job, home, offer, now: 1 if job.name == "job" else None))
    core.queue("team")
    core.cloud(offer("a", 1_000_000))
    big = core.submit(job(8))
    core.cycle(0)
    (request,) = core.state.requests
    core.node("c1", gpus(8), cluster="cloud", flavor="a100-cloud", request=request)
    core.capacity(request, CapacityPhase.PROVIDED, nodes=("c1",))
    core.cycle(1)
    assert core.placed() == [big]
    core.finish(big)
    core.submit(service(1, 1))
    core.cycle(2)
    assert core.placed() == []
    short = core.submit(job(1, estimate_ms=1))
    core.cycle(3)
    assert core.placed() == [short]


# --- room that others leave ------------------------------------------------------------------------------------------


def test_elastic_training_shrinks_and_nobody_is_evicted() -> None:
    wanting = Wanting("queue", take=4_000)
    core, api = served(wanting, service(1, 4, priority=5), 8)
    wide = core.submit(training(2, 7))
    core.cycle(1)
    assert replicas(core, wide) == 7
    core.submit(job(1, name="rigid"))
    wanting.wanted = 3
    core.cycle(EVERY_MS)
    (shrunk,) = core.last(LeaseShrunk)
    assert (shrunk.for_job, len(shrunk.members), shrunk.cause) == (api, 2, "preempted")
    (promised,) = core.last(RoomPromised)
    assert (promised.lease, promised.victims) == (core.lease_of(api), ())
    assert core.last(LeaseRevoked) == []
    assert replicas(core, api) == 1, "not before they are gone"
    core.cycle(EVERY_MS + 1)
    assert replicas(core, api) == 1
    core.resized(wide)
    core.cycle(EVERY_MS + 2)
    (grown,) = core.last(LeaseGrown)
    assert (grown.cause, len(grown.members)) == ("taken", 2)
    assert replicas(core, api) == 3
    assert core.state.promises == {}


def test_eviction_within_the_bound_and_not_beyond() -> None:
    wanting = Wanting("queue", take=4_000)
    core, api = served(wanting, service(1, 8, priority=5), 4, 4)
    small = core.submit(job(3))
    large = core.submit(job(4))
    core.cycle(1)
    wanting.wanted = 4
    core.cycle(EVERY_MS)
    (revoked,) = core.last(LeaseRevoked)
    assert (revoked.lease, revoked.for_job) == (core.lease_of(small), api)
    core.settle()
    core.cycle(EVERY_MS + 1)
    assert replicas(core, api) == 4
    wanting.wanted = 8
    core.cycle(2 * EVERY_MS)
    assert core.last(LeaseRevoked) == [], "four more would be seven in all"
    (short,) = core.last(ServiceShort)
    assert (short.reason, short.missing) == (Reason.TAKE_LIMIT, 4)
    assert core.state.jobs[large].lease is not None
    assert wanting.seen[-1].taken_gpus_milli == 3_000


def test_a_large_gang_is_not_evicted_for_one_replica_when_the_bound_is_small() -> None:
    wanting = Wanting("queue", take=2_000)
    core, api = served(wanting, service(1, 4, priority=5), 1, 8)
    core.submit(job(8))
    core.cycle(1)
    wanting.wanted = 2
    core.cycle(EVERY_MS)
    assert core.last(LeaseRevoked) == []
    assert core.last(ServiceShort)[0].reason == Reason.TAKE_LIMIT
    assert replicas(core, api) == 1


def test_a_bound_is_not_that_of_an_alike_service_that_starts() -> None:
    """Its first start is the rules' of preemption alone, and searched for right after the bounded search."""
    wanting = Wanting("queue", take=1_000)
    core, api = served(wanting, service(1, 2, priority=5), 1, 1, 2)
    small = core.submit(job(1))
    large = core.submit(job(2))
    core.cycle(1)
    wanting.wanted = 2
    second = core.submit(service(1, 2, priority=5))
    core.cycle(EVERY_MS)
    revoked = [(event.lease, event.for_job) for event in core.last(LeaseRevoked)]
    assert revoked == [(core.lease_of(small), api), (core.lease_of(large), second)]


def test_as_many_as_can_be_had_are_taken() -> None:
    """Five are wanted, four lack, and the rules let two go."""
    wanting = Wanting("queue", take=2_000)
    core, api = served(wanting, service(1, 8, priority=5), 8)
    core.submit(training(1, 7))
    core.cycle(1)
    wanting.wanted = 5
    core.cycle(EVERY_MS)
    assert len(core.last(RoomPromised)[0].members) == 2
    core.settle()
    core.cycle(EVERY_MS + 1)
    assert replicas(core, api) == 3


def test_no_service_has_to_leave_for_another() -> None:
    wanting = Wanting("queue", take=8_000)
    core, _ = served(wanting, service(1, 4, priority=5), 4)
    relaxed = core.submit(service(1, 3))
    wanting.wanted = 3
    core.cycle(EVERY_MS)
    core.cycle(EVERY_MS + 1)
    core.cycle(2 * EVERY_MS)
    assert core.state.jobs[relaxed].lease is not None
    assert [event for event in core.told if isinstance(event, LeaseShrunk | LeaseRevoked)] == []


def test_nothing_is_taken_that_does_not_help() -> None:
    wanting = Wanting("queue", take=8_000)
    core, api = served(wanting, service(1, 4, size=4, priority=5), 4, 2, 2)
    core.submit(job(2, members=2))
    core.cycle(1)
    wanting.wanted = 2
    core.cycle(EVERY_MS)
    assert not core.last(LeaseRevoked)
    assert not core.last(RoomPromised)
    assert core.last(ServiceShort)[0].reason == Reason.CAPACITY
    assert replicas(core, api) == 1


def test_victims_are_looked_for_when_the_number_changed_and_in_every_round() -> None:
    wanting = Wanting("queue", take=8_000)
    core, api = served(wanting, service(1, 8, priority=5), 8)
    core.submit(job(7, priority=9))
    core.cycle(1)
    wanting.wanted = 2
    core.cycle(EVERY_MS)
    assert core.last(ServiceShort)[0].reason == Reason.CAPACITY
    core.cancel(next(id_ for id_ in core.state.jobs if id_ != api))
    core.cycle(EVERY_MS + 1)
    core.settle()
    core.submit(job(7))
    core.cycle(EVERY_MS + 2)
    assert replicas(core, api) == 2


def test_a_promise_is_let_go_of_when_its_replicas_are_no_longer_wanted() -> None:
    wanting = Wanting("queue", take=4_000)
    core, api = served(wanting, service(1, 4, priority=5), 4)
    small = core.submit(job(3))
    core.cycle(1)
    wanting.wanted = 3
    core.cycle(EVERY_MS)
    assert core.last(RoomPromised)
    wanting.wanted = 1
    core.signal(api, 1, at_ms=EVERY_MS + 1)
    core.cycle(EVERY_MS + 2)
    assert core.last(PromiseReleased)[0].cause == "unwanted"
    assert core.state.promises == {}
    core.settle()
    core.cycle(EVERY_MS + 3)
    core.cycle(EVERY_MS + 4)
    assert core.state.jobs[small].lease is not None, "the room is theirs again"


def test_a_promise_to_a_lease_that_ended_is_let_go_of() -> None:
    wanting = Wanting("queue", take=4_000)
    core, api = served(wanting, service(1, 4, priority=5), 4)
    core.submit(job(3))
    core.cycle(1)
    wanting.wanted = 3
    core.cycle(EVERY_MS)
    core.report(core.lease_of(api), LeasePhase.LOST)
    core.cycle(EVERY_MS + 1)
    assert core.last(PromiseReleased)[0].cause == "lease-gone"


def test_quota_that_was_lowered_meanwhile_lets_go_of_the_promise() -> None:
    wanting = Wanting("queue", take=4_000)
    core = Core(wanting.rules)
    core.queue("team", {"gpu": 4_000})
    core.home(n=gpus(4))
    api = core.submit(service(1, 4, priority=5))
    core.submit(job(3))
    core.cycle(0)
    wanting.wanted = 3
    core.cycle(EVERY_MS)
    assert core.last(RoomPromised)
    core.queue("team", {"gpu": Quota(nominal=1_000)})
    core.settle()
    core.cycle(EVERY_MS + 1)
    assert core.last(PromiseReleased)[0].cause == "quota-gone"
    assert replicas(core, api) == 1


# --- giving back -----------------------------------------------------------------------------------------------------


def test_what_was_taken_is_given_back_first_and_training_grows_again() -> None:
    wanting = Wanting("queue", take=4_000)
    core, api = served(wanting, service(1, 6, priority=5), 8)
    wanting.wanted = 2
    core.cycle(EVERY_MS)
    wide = core.submit(training(2, 6))
    core.cycle(EVERY_MS + 1)
    wanting.wanted = 4
    core.cycle(2 * EVERY_MS)
    core.settle()
    core.cycle(2 * EVERY_MS + 1)
    assert (replicas(core, api), replicas(core, wide)) == (4, 4)
    wanting.wanted = 2
    core.cycle(3 * EVERY_MS)
    (shrunk,) = core.last(LeaseShrunk)
    assert (shrunk.cause, shrunk.for_job, shrunk.grace_ms) == ("unwanted", None, 30_000)
    assert sorted(member.ordinal for member in shrunk.members) == [2, 3]
    core.settle()
    core.cycle(3 * EVERY_MS + 1)
    assert (replicas(core, api), replicas(core, wide)) == (2, 6)
    wanting.seen.clear()
    core.cycle(4 * EVERY_MS)
    assert wanting.seen[-1].taken_gpus_milli == 0


def test_a_flapping_signal_changes_it_once_in_a_cooldown() -> None:
    """G10 for services: the rule sees when the number was last changed."""
    cooldown = 10 * MINUTE

    def settled(facts: ServiceFacts, now_ms: int) -> int | None:
        if facts.p99_ms is None or now_ms - facts.changed_ms < cooldown:
            return None
        return facts.replicas + (1 if facts.p99_ms > 500 else -1)

    core, api = served(Wanting(rules=(rules := PlainRules())), service(1, 8), 8)
    rules.replicas = settled
    for minute in range(1, 61):
        core.signal(api, 900 if minute % 2 else 100, at_ms=minute * MINUTE)
        core.cycle(minute * MINUTE)
        core.settle()
    changes = [event for event in core.told if isinstance(event, ServiceScaled)]
    assert 1 <= len(changes) <= 6
    grown = [event for event in core.told if isinstance(event, LeaseGrown | LeaseShrunk)]
    assert len(grown) <= len(changes)


# --- ends and refusals -----------------------------------------------------------------------------------------------


def test_lost_nodes_do_not_use_up_its_attempts() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 4, max_attempts=1), 8)
    for at in range(1, 5):
        core.report(core.lease_of(api), LeasePhase.LOST)
        core.cycle(at * 1_000)
        assert core.last(JobRequeued)
        core.cycle(at * 1_000 + 1)
        assert core.last(LeaseGranted)
    core.report(core.lease_of(api), LeasePhase.FAILED)
    core.cycle(9_000)
    assert core.last(JobEnded)[0].outcome == "failed"


def test_a_cluster_that_does_not_let_it_grow_is_asked_again_when_the_number_changes() -> None:
    wanting = Wanting()
    core, api = served(wanting, service(1, 8), 8)
    wanting.wanted = 3
    core.cycle(EVERY_MS)
    lease = core.state.leases[core.lease_of(api)]
    only = (MemberName(role="replica", ordinal=0),)
    core.tell(
        LeaseObserved(
            cluster=HOME,
            lease=lease.id,
            phase=LeasePhase.RESIZED,
            observed_ms=EVERY_MS,
            revision=lease.revision,
            members=only,
        )
    )
    assert replicas(core, api) == 1
    core.cycle(2 * EVERY_MS)
    assert core.last(LeaseGrown) == []
    wanting.wanted = 4
    core.cycle(3 * EVERY_MS)
    assert len(core.last(LeaseGrown)[0].members) == 3


def test_others_who_reclaim_shrink_it_before_it_is_evicted() -> None:
    wanting = Wanting("reclaim")
    core = Core(wanting.rules)
    core.queue("top")
    core.queue("team", {"gpu": 2_000}, parent="top")
    core.queue("owner", {"gpu": 6_000}, parent="top")
    core.home(n=gpus(8))
    api = core.submit(service(1, 8))
    core.cycle(0)
    wanting.wanted = 8
    core.cycle(EVERY_MS)
    assert replicas(core, api) == 8
    owner = core.submit(job(4, queue="owner"))
    core.cycle(2 * EVERY_MS)
    (shrunk,) = core.last(LeaseShrunk)
    assert (shrunk.cause, shrunk.for_job, len(shrunk.members)) == ("reclaimed", owner, 4)
    assert core.last(LeaseRevoked) == []
