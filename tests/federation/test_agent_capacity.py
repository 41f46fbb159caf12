"""What becomes of rented capacity: the agent's part of SCENARIOS G, with the money to the micro-dollar."""

from __future__ import annotations

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import CapacityPhase, LeasePhase
from controlplane.domain.quantities import cost_micro_usd
from federation.agent import Agent
from federation.port import CapacityWanted
from tests.federation.grounds import HOUR_MS, LEAD_MS, NAME, PRICE, Beside, granted, released, requested

PROVIDED, FAILED, RELEASED = CapacityPhase.PROVIDED, CapacityPhase.FAILED, CapacityPhase.RELEASED


def test_nodes_arrive_before_their_request_is_provided_and_leave_before_it_is_released() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested())
    beside.run(HOUR_MS // 2)
    assert [type(event).__name__ for event in beside.events] == ["NodeObserved", "NodeObserved", "CapacityObserved"]
    assert [node.request for node in beside.nodes()] == ["c1.0", "c1.0"]
    assert beside.capacity()[0].nodes == tuple(node.node for node in beside.nodes())
    assert beside.capacity()[0].observed_ms == LEAD_MS
    beside.events.clear()
    beside.deliver(released())
    beside.run(HOUR_MS)
    assert [type(event).__name__ for event in beside.events] == ["NodeObserved", "NodeObserved", "CapacityObserved"]
    assert {node.state for node in beside.nodes()} == {NodeState.LOST}


def test_the_charge_at_release_is_the_bill() -> None:
    beside = Beside(nodes=(), provider={"lead_jitter_ms": 60_000, "release_ms": 45_000})
    beside.deliver(requested(nodes=3, deadline_ms=2 * HOUR_MS))
    beside.run(HOUR_MS)
    beside.deliver(released())
    beside.run(10 * HOUR_MS)
    assert beside.capacity_phases() == [PROVIDED, RELEASED]
    charged = beside.capacity()[-1].charged_micro_usd
    assert charged == beside.adapter.world.bill_micro_usd(beside.now_ms)
    most_ms = 3 * (HOUR_MS + 45_000 - LEAD_MS)
    assert cost_micro_usd(PRICE, most_ms - 3 * 60_000) <= charged <= cost_micro_usd(PRICE, most_ms)


def test_one_node_for_a_known_time_costs_what_it_should() -> None:
    """32.7726 dollars an hour for 57 minutes and one millisecond: 31.13397 dollars and a little, rounded up."""
    beside = Beside(nodes=())
    beside.deliver(requested(nodes=1, deadline_ms=HOUR_MS + 1))
    beside.run(10 * HOUR_MS)
    assert beside.capacity()[-1].charged_micro_usd == 31_133_980
    assert 32_772_600 * (57 * 60_000 + 1) == 3_600_000 * 31_133_979 + 372_600, "the remainder is why it is rounded up"


def test_the_bill_is_rounded_up_to_the_granularity_of_the_provider() -> None:
    beside = Beside(nodes=(), provider={"billing_ms": HOUR_MS})
    beside.deliver(requested(nodes=2, deadline_ms=LEAD_MS + HOUR_MS + 1))
    beside.run(10 * HOUR_MS)
    assert beside.capacity()[-1].charged_micro_usd == 2 * 2 * PRICE


def test_the_deadline_ends_every_node_while_the_plane_is_silent() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested())
    beside.is_silent = True
    beside.run(10 * HOUR_MS)
    assert beside.adapter.world.rented(beside.now_ms) == []
    last = beside.capacity()[-1]
    assert (last.phase, last.observed_ms, last.detail) == (RELEASED, HOUR_MS, "ended by its deadline")
    assert last.charged_micro_usd == cost_micro_usd(PRICE, 2 * (HOUR_MS - LEAD_MS))


def test_the_deadline_is_kept_by_an_agent_that_was_restarted_and_has_heard_nothing() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested())
    beside.run(HOUR_MS // 2)
    beside.agent = Agent(beside.adapter, NAME, replaying=True)
    beside.run(HOUR_MS - 1)
    assert len(beside.adapter.world.rented(beside.now_ms)) == 2, "silence is not a wish"
    beside.run(10 * HOUR_MS)
    assert beside.adapter.world.rented(beside.now_ms) == []
    assert beside.adapter.world.bill_micro_usd(beside.now_ms) == cost_micro_usd(PRICE, 2 * (HOUR_MS - LEAD_MS))


def test_a_release_before_the_nodes_come_costs_nothing() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested())
    beside.run(60_000)
    beside.deliver(released())
    beside.run(10 * HOUR_MS)
    assert beside.capacity_phases() == [RELEASED]
    assert beside.nodes() == []
    assert beside.adapter.world.bill_micro_usd(beside.now_ms) == 0


def test_an_instance_that_appears_after_its_release_is_ended() -> None:
    """G2: the provider lost the release; the nodes come all the same, and go in the same instant."""
    beside = Beside(nodes=(), provider={"ignores_early_release": True, "lead_jitter_ms": 20_000})
    beside.deliver(requested(deadline_ms=5 * HOUR_MS))
    beside.run(60_000)
    beside.deliver(released())
    beside.run(10 * HOUR_MS)
    assert beside.adapter.world.rented(beside.now_ms) == []
    assert beside.capacity_phases()[-1] is RELEASED
    assert beside.capacity()[-1].observed_ms < HOUR_MS
    assert beside.capacity()[-1].charged_micro_usd == beside.adapter.world.bill_micro_usd(beside.now_ms)


def test_of_two_requests_the_one_that_is_released_goes_and_the_other_stays() -> None:
    """G3: the first is given up, the second comes, the first appears late."""
    beside = Beside(nodes=(), provider={"ignores_early_release": True})
    beside.deliver(requested(0, deadline_ms=5 * HOUR_MS))
    beside.run(LEAD_MS // 2)
    beside.deliver(requested(1, deadline_ms=5 * HOUR_MS), released(0))
    beside.run(HOUR_MS)
    assert beside.adapter.world.rented(beside.now_ms) == ["cloud/c1.1.0", "cloud/c1.1.1"]
    assert beside.capacity_phases("c1.1") == [PROVIDED]
    assert beside.capacity_phases("c1.0")[-1] is RELEASED


def test_a_provider_that_is_later_than_the_deadline_is_charged_for_nothing() -> None:
    beside = Beside(nodes=(), provider={"lead_times_ms": {"a100": 2 * HOUR_MS}})
    beside.deliver(requested())
    beside.run(10 * HOUR_MS)
    assert beside.capacity_phases() == [RELEASED]
    assert beside.capacity()[0].observed_ms == HOUR_MS
    assert beside.adapter.world.bill_micro_usd(beside.now_ms) == 0


def test_a_release_that_overtakes_its_request_wins() -> None:
    beside = Beside(nodes=())
    beside.deliver(released())
    beside.run(60_000)
    beside.deliver(requested(), requested())
    beside.run(10 * HOUR_MS)
    assert beside.capacity_phases() == [RELEASED]
    assert beside.adapter.world.look(beside.now_ms, None).orders == []


def test_a_request_that_comes_after_its_deadline_is_not_made() -> None:
    beside = Beside(nodes=())
    beside.now_ms = 2 * HOUR_MS
    beside.deliver(requested())
    beside.run(3 * HOUR_MS)
    assert beside.capacity_phases() == [RELEASED]
    assert beside.adapter.world.look(beside.now_ms, None).orders == []


def test_a_provider_without_capacity_fails_and_charges_nothing() -> None:
    beside = Beside(nodes=(), provider={"failing_offers": ("a100",)})
    beside.deliver(requested())
    beside.run(10 * HOUR_MS)
    assert beside.capacity_phases() == [FAILED]
    assert beside.capacity()[0].observed_ms == LEAD_MS
    assert beside.adapter.world.bill_micro_usd(beside.now_ms) == 0


def test_more_nodes_than_the_offer_has_are_refused() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested(0, nodes=10), requested(1, nodes=7))
    beside.run(HOUR_MS // 2)
    assert beside.capacity_phases("c1.0") == [PROVIDED]
    assert beside.capacity_phases("c1.1") == [FAILED]
    assert "6 nodes left, 7 were asked" in beside.capacity("c1.1")[0].detail


def test_an_expired_credential_at_termination_is_reported_and_the_charge_goes_on() -> None:
    """G7."""
    outage = {"from_ms": HOUR_MS, "until_ms": 2 * HOUR_MS, "kind": "ask-someone", "calls": ("release",)}
    beside = Beside(nodes=(), outages=(outage,))
    beside.deliver(requested())
    beside.run(10 * HOUR_MS)
    assert beside.capacity_phases() == [PROVIDED, PROVIDED, RELEASED]
    assert "a person must act" in beside.capacity()[1].detail
    last = beside.capacity()[-1]
    assert last.observed_ms == 2 * HOUR_MS
    assert last.charged_micro_usd == cost_micro_usd(PRICE, 2 * (2 * HOUR_MS - LEAD_MS))


def test_spot_nodes_that_are_all_taken_away_end_their_request() -> None:
    beside = Beside(nodes=(), failures={"mean_ms": HOUR_MS, "only_rented": True})
    beside.deliver(requested(deadline_ms=100 * HOUR_MS))
    beside.run(LEAD_MS)
    beside.deliver(granted(1, nodes=("cloud/c1.0.0",)))
    beside.run(100 * HOUR_MS)
    assert beside.phases("j1.1") == [LeasePhase.RUNNING, LeasePhase.LOST]
    assert beside.capacity_phases() == [PROVIDED, RELEASED]
    assert beside.capacity()[-1].observed_ms < 3 * HOUR_MS


def test_capacity_that_the_plane_does_not_know_is_reported_and_released() -> None:
    beside = Beside(nodes=())
    beside.adapter.request_capacity(CapacityWanted("c9.0", "a100", 1, 100 * HOUR_MS), 0)
    beside.run(10 * HOUR_MS)
    assert beside.adapter.world.rented(beside.now_ms) == []
    assert "unknown to the plane" in beside.capacity("c9.0")[0].detail
    assert beside.capacity_phases("c9.0")[-1] is RELEASED


def test_after_a_restart_a_settled_request_stays_settled_with_its_charge() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested())
    beside.run(2 * HOUR_MS)
    recorded = list(beside.events)
    beside.agent = Agent(beside.adapter, NAME, replaying=True)
    beside.events.clear()
    beside.step()
    beside.deliver(requested(), released(), *recorded)
    beside.agent.caught_up()
    beside.run(10 * HOUR_MS)
    assert beside.capacity() == []


def test_after_a_restart_a_request_that_was_provided_and_is_gone_is_not_made_again() -> None:
    beside = Beside(nodes=())
    beside.deliver(requested(deadline_ms=10 * HOUR_MS))
    beside.run(HOUR_MS)
    recorded = list(beside.events)
    other = Beside(nodes=())
    other.agent = Agent(other.adapter, NAME, replaying=True)
    other.now_ms = 2 * HOUR_MS
    other.deliver(*recorded, requested(deadline_ms=10 * HOUR_MS))
    other.agent.caught_up()
    other.run(20 * HOUR_MS)
    assert other.capacity_phases() == [RELEASED]
    assert [node.state for node in other.nodes()] == [NodeState.LOST, NodeState.LOST]
    assert other.adapter.world.look(other.now_ms, None).orders == []
