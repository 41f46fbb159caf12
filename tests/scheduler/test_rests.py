"""Offers that fail rest, longer after each failure in a row; the first core did not know that."""

from __future__ import annotations

import pytest

from controlplane.domain.events import CapacityPhase, CapacityRequested
from controlplane.domain.version import CORE, FIRST_CORE
from controlplane.scheduler.decide import decide
from controlplane.scheduler.snapshot import restore, take
from tests.scheduler.core import CLOUD, Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules

MINUTE = 60_000


def asked(core: Core) -> list[str]:
    """The offers that the last cycle asked for."""
    return [event.offer for event in core.last(CapacityRequested)]


def failing(*offers: str) -> Core:
    """A cloud with these offers, the first the cheapest, a job that nothing at home can hold, and an hour gone by."""
    core = Core(PlainRules(cost=lambda job, home, offer, now_ms: offer.cost_micro_usd))
    core.home(small=gpus(1))
    core.cloud(*(offer(name, 1_000_000 * (1 + at)) for at, name in enumerate(offers)))
    core.queue("team")
    core.budget("money", 10**12)
    core.submit(job(8))
    core.cycle(MINUTE)
    return core


def fail(core: Core) -> None:
    """What was asked for last does not come."""
    [request] = core.state.requests.values()
    core.capacity(request.id, CapacityPhase.FAILED)


def test_the_next_offer_is_tried_while_the_first_rests() -> None:
    core = failing("cheap", "dear")
    assert asked(core) == ["cheap"]
    fail(core)
    core.cycle(2 * MINUTE)
    assert asked(core) == ["dear"]


def test_each_failure_in_a_row_doubles_the_rest_up_to_an_hour() -> None:
    core = failing("only")
    rests: list[int] = []
    for _ in range(9):
        fail(core)
        now_ms = core.state.now_ms + 1
        core.cycle(now_ms)
        assert asked(core) == []
        due_ms = core.state.reask_ms
        assert due_ms is not None
        rests.append(due_ms - now_ms)
        core.cycle(due_ms - 1)
        assert asked(core) == []
        core.cycle(due_ms)
        assert asked(core) == ["only"]
    assert rests == [MINUTE * length for length in (1, 2, 4, 8, 16, 32, 60, 60, 60)]


def test_nodes_that_come_end_the_count() -> None:
    core = failing("only")
    fail(core)
    core.cycle(core.state.now_ms + 1)
    core.cycle(3 * MINUTE)
    [request] = core.state.requests.values()
    core.capacity(request.id, CapacityPhase.PROVIDED)
    assert core.state.rests == {}


def test_a_rest_outlives_a_restart_and_an_agents_clock_does_not_matter() -> None:
    core = failing("only")
    fail(core)
    assert core.state.rests[(CLOUD, "only")].until_ms is None
    core.cycle(5 * MINUTE)
    assert core.state.rests[(CLOUD, "only")].until_ms == 6 * MINUTE
    assert restore(take(core.state)).rests[(CLOUD, "only")].until_ms == 6 * MINUTE


@pytest.mark.parametrize(("core_version", "count"), [(CORE, 0), (FIRST_CORE, 1)])
def test_the_first_core_asks_again_at_once(core_version: str, count: int) -> None:
    core = failing("only")
    fail(core)
    core.state.now_ms = 2 * MINUTE
    for rest in core.state.rests.values():
        rest.begin(core.state.now_ms)
    core.state.freed_at_tick = core.state.freed
    decided = decide(core.state, core.rules, core=core_version).decisions
    assert sum(isinstance(decision.event, CapacityRequested) for decision in decided) == count
