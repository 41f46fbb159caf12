"""Warm pools: held for services, taken at once, filled anew before anybody else has the room."""

from __future__ import annotations

import pytest

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import LeasePhase, WarmPoolsHeld
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec
from controlplane.scheduler.decide import decide
from controlplane.scheduler.timers import needs_cycle
from tests.scheduler.core import GIB, HOUR, Core, gpus, job, offer
from tests.scheduler.test_services import Wanting, replicas, service
from tests.twins.plain_rules import PlainRules


def pooled(blocks: int, *sizes: int, gpus_each: int = 1, rules: PlainRules | None = None) -> Core:
    """A pool and nodes of so many GPUs."""
    core = Core(rules)
    core.queue("team")
    core.home(**{f"n{at}": gpus(size) for at, size in enumerate(sizes)})
    core.pool("warm", blocks, gpus=gpus_each)
    return core


def held(core: Core, name: str = "warm") -> list[tuple[str, tuple[int, ...]]]:
    return [(at.name, gpus) for at, gpus in core.state.pools[name].blocks]


def test_a_pool_is_filled_as_soon_as_there_is_room() -> None:
    core = pooled(2, 4)
    assert needs_cycle(core.state)
    core.cycle(0)
    assert held(core) == [("n0", (0,)), ("n0", (1,))]
    assert [held.pool for event in core.last(WarmPoolsHeld) for held in event.pools] == ["warm"]
    core.cycle(1)
    assert core.last(WarmPoolsHeld) == [], "nothing has changed"


def test_whole_nodes_are_blocks_of_as_many_gpus_and_need_to_be_empty() -> None:
    core = pooled(1, 8, 8, gpus_each=8)
    core.submit(job(1))
    core.cycle(0)
    (block,) = held(core)
    assert block[1] == tuple(range(8))
    (lease,) = core.state.leases.values()
    assert lease.seats[0].node.name != block[0]


def test_blocks_are_taken_from_nodes_that_have_least_free() -> None:
    core = Core()
    core.queue("team")
    core.home(n0=gpus(8), n1=gpus(8))
    core.submit(job(6))
    core.cycle(0)
    (lease,) = core.state.leases.values()
    core.pool("warm", 2)
    core.cycle(1)
    assert {node for node, _ in held(core)} == {lease.seats[0].node.name}


def test_others_see_it_as_held_and_are_told_so() -> None:
    core = pooled(2, 4)
    core.cycle(0)
    first, second = core.submit(job(2)), core.submit(job(1))
    core.cycle(1)
    assert core.placed() == [first]
    waiting = core.waiting()[second]
    assert waiting.reason == Reason.HELD_WARM
    core.pool("warm", 0)
    core.cycle(2)
    assert core.placed() == [second], "the pool is given up"
    assert core.state.pools == {}


def test_cpu_and_memory_are_held_with_the_gpus() -> None:
    core = pooled(2, 4)
    core.cycle(0)
    job_of_cpu = core.submit(job(0, cpu=33_000))
    core.cycle(1)
    assert core.waiting()[job_of_cpu].reason == Reason.HELD_WARM
    core.cancel(job_of_cpu)
    fits = core.submit(job(0, cpu=32_000, memory_bytes=256 * GIB))
    core.cycle(2)
    assert core.placed() == [fits]


def test_a_service_takes_it_at_once_and_it_is_filled_anew_before_others_have_the_room() -> None:
    core = pooled(2, 4)
    core.cycle(0)
    core.submit(job(2))
    core.cycle(1)
    api, waiting = core.submit(service(2, 2)), core.submit(job(1))
    core.cycle(2)
    assert core.placed() == [api]
    assert held(core) == []
    assert core.waiting()[waiting].reason == Reason.CAPACITY
    core.finish(next(id_ for id_ in core.state.jobs if id_ not in (api, waiting)))
    core.cycle(3)
    assert core.placed() == []
    assert len(held(core)) == 2
    assert core.waiting()[waiting].reason == Reason.HELD_WARM
    core.node("more", gpus(1))
    core.cycle(4)
    assert core.placed() == [waiting]


def test_replicas_take_it_and_free_room_takes_its_place() -> None:
    wanting = Wanting()
    core = pooled(1, 4, rules=wanting.rules)
    api = core.submit(service(1, 4))
    core.cycle(0)
    wanting.wanted = 3
    core.cycle(HOUR)
    assert replicas(core, api) == 3
    assert len(held(core)) == 1, "the fourth GPU"
    wanting.wanted = 4
    core.cycle(2 * HOUR)
    assert replicas(core, api) == 4
    assert held(core) == []


def test_a_pool_of_a_queue_is_for_its_services_only() -> None:
    core = Core()
    core.queue("top")
    core.queue("serving", parent="top")
    core.queue("other")
    core.home(n=gpus(2))
    core.pool("warm", 2, queue="top")
    core.cycle(0)
    stranger, own = core.submit(service(1, 1, queue="other")), core.submit(service(1, 1, queue="serving"))
    core.cycle(1)
    assert core.placed() == [own]
    assert core.waiting()[stranger].reason == Reason.HELD_WARM


def test_a_node_that_is_cordoned_or_lost_holds_nothing() -> None:
    core = pooled(2, 4)
    core.cycle(0)
    core.node("n0", gpus(4), NodeState.CORDONED)
    assert held(core) == []
    core.node("n0", gpus(4))
    core.cycle(1)
    assert len(held(core)) == 2
    core.node("n0", gpus(1))
    assert len(held(core)) == 1, "a smaller node holds what it has"
    core.node("n0", gpus(1), NodeState.LOST)
    assert held(core) == []
    core.cycle(2)


def test_what_is_held_stays_held_when_the_pool_becomes_smaller_or_another() -> None:
    core = pooled(3, 4)
    core.cycle(0)
    before = held(core)
    core.pool("warm", 2)
    assert held(core) == before[:2]
    core.pool("warm", 2, gpus=2)
    assert held(core) == []
    core.cycle(1)
    assert held(core) == [("n0", (0, 1)), ("n0", (2, 3))]


def test_rented_nodes_are_not_held() -> None:
    core = Core()
    core.queue("team")
    core.cloud(offer("a", 1_000_000))
    core.home()
    core.node("n", gpus(4), request="c1.0")
    core.pool("warm", 1)
    core.cycle(0)
    assert held(core) == []


def test_it_is_not_filled_where_a_start_is_reserved() -> None:
    core = Core(PlainRules(may_reserve=True, depth=lambda job: 1))
    core.queue("team")
    core.home(n=gpus(4))
    running = core.submit(job(2, estimate_ms=HOUR))
    core.cycle(0)
    head = core.submit(job(4))
    core.cycle(1)
    core.pool("warm", 2)
    core.cycle(2)
    assert held(core) == []
    core.finish(running)
    core.cycle(3)
    assert core.placed() == [head]


def test_who_is_blocked_by_a_pool_may_evict_and_may_have_a_start_reserved() -> None:
    core = pooled(2, 4, rules=PlainRules(may_preempt=True, allow=lambda job, queue, shortage: ("queue",)))
    core.cycle(0)
    small = core.submit(job(2))
    core.cycle(1)
    urgent = core.submit(job(2, priority=9))
    core.cycle(2)
    assert core.state.leases[core.lease_of(small)].revoked == "preempted"
    assert urgent in core.state.promises
    assert len(held(core)) == 2


def test_a_pool_does_not_hold_room_that_is_promised() -> None:
    core = Core(PlainRules(may_preempt=True, allow=lambda job, queue, shortage: ("queue",)))
    core.queue("team")
    core.home(n=gpus(4))
    small = core.submit(job(2))
    core.cycle(0)
    urgent = core.submit(job(4, priority=9))
    core.cycle(1)
    assert urgent in core.state.promises
    core.pool("warm", 2)
    core.cycle(2)
    assert held(core) == [], "two GPUs are free, and promised"
    core.report(core.lease_of(small), LeasePhase.ENDED)
    core.cycle(3)
    assert core.placed() == [urgent]


@pytest.mark.parametrize("spec", [job(1), service(1, 1, queue="other")], ids=["job", "service of another queue"])
def test_the_account_of_a_job_names_the_pools(spec: JobSpec) -> None:
    core = Core()
    core.queue("team")
    core.queue("other")
    core.home(n=gpus(2))
    core.pool("warm", 2, queue="team")
    core.cycle(0)
    blocked = core.submit(spec)
    core.cycle(1)
    watch = decide(core.state, core.rules, watched_job=blocked).watch
    assert watch is not None
    assert watch.refusal is not None
    assert watch.refusal.reason is Reason.HELD_WARM
    assert [(hold.pool, hold.gpus, hold.nodes) for hold in watch.warm] == [("warm", 2, ("n",))]
