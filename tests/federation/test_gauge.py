"""What a simulated service's monitoring shows, and that its signals reach the plane."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controlplane.domain.events import LeaseGrown, LeasePhase, LeaseShrunk, Member, MemberName, ServiceObserved
from controlplane.domain.loads import LoadPoint, ServiceLoad
from federation.agent import Agent
from federation.simulated.adapter import SimulatedAdapter
from federation.simulated.config import NodeGroup, SimulatedConfig
from federation.simulated.gauge import NEAREST_TO_FULL, Gauge
from tests.federation.grounds import NAME, SHAPE, SPEC, Beside, granted, revoked

MINUTE = 60_000


def load(*rates: tuple[int, int], period_ms: int | None = None, **more: int) -> ServiceLoad:
    """A curve through (instant, requests per second); a replica answers ten per second, in a tenth of one."""
    curve = tuple(LoadPoint(at_ms=at, rate_milli=1_000 * rate) for at, rate in rates)
    given_ = {"every_ms": MINUTE, "latency_ms": 100, "replica_rate_milli": 10_000, **more}
    return ServiceLoad.model_validate({"curve": curve, "period_ms": period_ms, **given_})


# --- the curve -------------------------------------------------------------------------------------------------------


def test_the_curve_is_straight_between_its_points_and_flat_outside() -> None:
    curve = load((10, 0), (20, 10), (30, 5))
    assert [curve.rate_at(at) for at in (0, 10, 15, 20, 25, 30, 99)] == [0, 0, 5_000, 10_000, 7_500, 5_000, 5_000]


def test_a_curve_with_a_period_goes_from_its_last_point_to_its_first() -> None:
    curve = load((0, 0), (50, 10), period_ms=100)
    assert [curve.rate_at(at) for at in (25, 75, 100, 125, 175)] == [5_000, 5_000, 0, 5_000, 5_000]


@given(st.integers(0, 10**6))
def test_a_period_later_it_is_the_same(at_ms: int) -> None:
    """Kills: a curve that forgets the part between the last point and the first."""
    curve = load((7, 3), (50, 10), (61, 1), period_ms=100)
    assert curve.rate_at(at_ms) == curve.rate_at(at_ms + 100)


def test_points_stand_in_order_and_within_the_period() -> None:
    with pytest.raises(ValidationError, match="stands behind that at 20 ms; sort them"):
        load((20, 1), (10, 1))
    with pytest.raises(ValidationError, match="is not within the period of 10 ms"):
        load((0, 1), (10, 1), period_ms=10)


# --- the gauge -------------------------------------------------------------------------------------------------------


def read(rate: int, replicas: int, minutes: int = 1) -> Gauge:
    gauge = Gauge(load((0, rate)), 0)
    for minute in range(1, minutes + 1):
        gauge.read(minute * MINUTE, replicas)
    return gauge


def test_latency_goes_up_with_what_each_replica_has_to_do() -> None:
    """M/M/1: a replica that is half busy takes twice as long."""
    assert [read(rate, 2).p99_ms for rate in (0, 10, 15, 19)] == [100, 200, 400, 2_000]
    assert [read(15, replicas).p99_ms for replicas in (2, 3, 5)] == [400, 200, 143]


def test_what_nobody_can_answer_waits_and_is_worked_off() -> None:
    gauge = Gauge(load((0, 30), (2 * MINUTE, 30), (2 * MINUTE + 1, 0)), 0)
    gauge.read(MINUTE, 2)
    assert gauge.queue_depth == 10 * 60
    assert gauge.p99_ms == NEAREST_TO_FULL * 100 + 30_000, "ten seconds' worth for each, thirty for all of it"
    gauge.read(2 * MINUTE, 2)
    assert gauge.queue_depth == 2 * 10 * 60
    gauge.read(3 * MINUTE, 4)
    assert gauge.queue_depth == 0
    assert gauge.p99_ms == 100


@given(st.integers(0, 100), st.integers(1, 20))
def test_one_replica_more_never_makes_it_slower(rate: int, replicas: int) -> None:
    """Kills: a gauge that forgets how many there are."""
    few, more = read(rate, replicas, 3), read(rate, replicas + 1, 3)
    assert more.p99_ms <= few.p99_ms
    assert more.queue_depth <= few.queue_depth


# --- on its way ------------------------------------------------------------------------------------------------------


class Served(Beside):
    """A cluster beside which job 1 is a service of which fifteen requests per second are asked."""

    def __init__(self) -> None:
        super().__init__()
        config = SimulatedConfig(nodes=(NodeGroup(count=4, prefix="n", shape=SHAPE, flavor="a100"),))
        loads = {1: load((0, 15))}
        self.adapter = SimulatedAdapter(SPEC, config, lambda job: (None, LeasePhase.FINISHED), loads.get)
        self.agent = Agent(self.adapter, NAME)

    def signals(self) -> list[tuple[int, int | None]]:
        return [(e.observed_ms, e.p99_ms) for e in self.events if isinstance(e, ServiceObserved)]


def test_signals_are_reported_with_the_instant_of_the_measurement() -> None:
    beside = Served()
    beside.deliver(granted(1, nodes=("n0", "n1")), granted(2))
    beside.run(3 * MINUTE)
    assert beside.signals() == [(MINUTE, 400), (2 * MINUTE, 400), (3 * MINUTE, 400)]
    assert all(event.lease == "j1.1" for event in beside.events if isinstance(event, ServiceObserved))


def test_replicas_that_come_and_go_show_in_the_signal() -> None:
    beside = Served()
    beside.deliver(granted(1, nodes=("n0", "n1")))
    beside.run(MINUTE)
    third = Member(role="main", ordinal=2, node="n2", gpus=(0,))
    beside.deliver(LeaseGrown(lease="j1.1", revision=1, members=(third,), cause="wanted"))
    beside.run(2 * MINUTE)
    gone = (MemberName(role="main", ordinal=2),)
    beside.deliver(LeaseShrunk(lease="j1.1", revision=2, members=gone, cause="unwanted"))
    beside.run(3 * MINUTE)
    assert beside.signals() == [(MINUTE, 400), (2 * MINUTE, 200), (3 * MINUTE, 400)]


def test_a_service_that_is_over_is_measured_no_more() -> None:
    beside = Served()
    beside.deliver(granted(1))
    beside.run(MINUTE)
    beside.deliver(revoked(1))
    beside.run(10 * MINUTE)
    assert len(beside.signals()) == 1
    assert beside.agent.next_wake_ms(beside.now_ms) is None


def test_the_latest_signal_is_sent_again_until_it_is_in_the_log() -> None:
    beside = Served()
    beside.is_silent = True
    beside.deliver(granted(1))
    beside.run(3 * MINUTE)
    kept = [event for event in beside.agent.resend() if isinstance(event, ServiceObserved)]
    assert [event.observed_ms for event in kept] == [3 * MINUTE]
    beside.agent.acknowledge(kept)
    assert not [event for event in beside.agent.resend() if isinstance(event, ServiceObserved)]


def test_an_agent_that_was_restarted_reports_what_was_measured_last() -> None:
    beside = Served()
    beside.deliver(granted(1))
    beside.run(2 * MINUTE)
    anew = Agent(beside.adapter, NAME, replaying=True)
    seen = [event for event in anew.step(2 * MINUTE) if isinstance(event, ServiceObserved)]
    assert [event.observed_ms for event in seen] == [2 * MINUTE]
