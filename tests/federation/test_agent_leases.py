"""What becomes of leases: the stories of SCENARIOS F, told by an agent beside a simulated cluster."""

from __future__ import annotations

import pytest
from typing_extensions import override

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import LeaseObserved, LeasePhase, NodeObserved
from federation.agent import Agent
from federation.agent.leases import LAUNCH_TRIES
from federation.port import TryAgain, WantedLease
from federation.simulated.adapter import SimulatedAdapter
from federation.simulated.config import TrueRun
from tests.federation.grounds import HOUR_MS, NAME, SHAPE, SPEC, Beside, granted, revoked

LAUNCHING, RUNNING = LeasePhase.LAUNCHING, LeasePhase.RUNNING
FINISHED, FAILED, LOST = LeasePhase.FINISHED, LeasePhase.FAILED, LeasePhase.LOST
REFUSED, ENDED = LeasePhase.REFUSED, LeasePhase.ENDED


def test_a_lease_launches_runs_and_finishes_each_reported_once() -> None:
    beside = Beside({1: TrueRun(60_000)}, launch_delay_ms=5_000)
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    reports = [(event.phase, event.observed_ms) for event in beside.events if isinstance(event, LeaseObserved)]
    assert reports == [(LAUNCHING, 0), (RUNNING, 5_000), (FINISHED, 65_000)]


def test_a_failure_carries_its_exit_code() -> None:
    beside = Beside({1: TrueRun(60_000, FAILED)})
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    last = beside.events[-1]
    assert isinstance(last, LeaseObserved)
    assert (last.phase, last.exit_code) == (FAILED, 1)


def test_a_revoked_lease_is_ended() -> None:
    beside = Beside(end_delay_ms=7_000)
    beside.deliver(granted(1))
    beside.run(1_000)
    beside.deliver(revoked(1))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, ENDED]
    assert beside.adapter.world.running(beside.now_ms) == []


def test_a_revocation_that_overtakes_its_grant_wins() -> None:
    beside = Beside()
    beside.deliver(revoked(1))
    beside.run(1_000)
    beside.deliver(granted(1), granted(1))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == [ENDED]
    assert beside.adapter.world.running(beside.now_ms) == []


def test_a_revocation_for_a_lease_that_was_never_here_is_not_reported() -> None:
    beside = Beside()
    beside.deliver(revoked(5))
    beside.run(HOUR_MS)
    assert beside.phases("j5.1") == []


def test_a_grant_that_is_repeated_long_after_the_end_starts_nothing() -> None:
    beside = Beside({1: TrueRun(1_000)})
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    beside.step()
    assert beside.adapter.world.look(HOUR_MS, None).gangs == [], "what is in the log need not be remembered"
    beside.deliver(granted(1))
    beside.run(2 * HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, FINISHED]
    beside.agent.settle(beside.position)
    beside.agent.deliver(1, granted(1))
    beside.run(3 * HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, FINISHED]


@pytest.mark.parametrize("end_delay_ms", [0, 5_000])
def test_completion_and_revocation_at_one_instant_give_one_end(end_delay_ms: int) -> None:
    """F5."""
    beside = Beside({1: TrueRun(60_000)}, end_delay_ms=end_delay_ms)
    beside.deliver(granted(1))
    beside.run(59_999)
    beside.now_ms = 60_000
    beside.deliver(revoked(1))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, FINISHED]


def test_no_job_dies_and_none_runs_twice_while_the_plane_is_silent() -> None:
    """F1, with a restart of the agent in the silence."""
    beside = Beside({1: TrueRun(2 * HOUR_MS), 2: TrueRun(10_000)})
    beside.deliver(granted(1), granted(2, nodes=("n1",)))
    beside.is_silent = True
    beside.run(HOUR_MS)
    beside.agent = Agent(beside.adapter, NAME, replaying=True)
    beside.run(HOUR_MS + 30_000)
    assert beside.adapter.world.running(beside.now_ms) == ["j1.1"]
    beside.is_silent = False
    beside.events.clear()
    beside.deliver(granted(1), granted(2, nodes=("n1",)))
    beside.agent.caught_up()
    beside.run(3 * HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, FINISHED]
    assert beside.phases("j2.1") == [FINISHED]


def test_after_a_restart_the_log_says_what_need_not_be_done_again() -> None:
    beside = Beside({1: TrueRun(1_000)})
    beside.deliver(granted(1), granted(2, nodes=("n1",)))
    beside.run(HOUR_MS)
    recorded = list(beside.events)
    beside.agent = Agent(beside.adapter, NAME, replaying=True)
    beside.events.clear()
    beside.deliver(granted(1), granted(2, nodes=("n1",)), *recorded)
    beside.agent.caught_up()
    beside.run(2 * HOUR_MS)
    assert beside.phases("j1.1") == []
    assert beside.phases("j2.1") == []
    assert beside.adapter.world.running(beside.now_ms) == ["j2.1"]


def test_a_node_that_vanished_while_the_agent_was_down_is_reported_lost_after_a_restart() -> None:
    beside = Beside(deaths=({"node": "n0", "at_ms": HOUR_MS},))
    beside.deliver(granted(1))
    beside.run(1_000)
    recorded = list(beside.events)
    beside.agent = Agent(beside.adapter, NAME, replaying=True)
    beside.events.clear()
    beside.now_ms = 2 * HOUR_MS
    beside.deliver(granted(1), *recorded)
    beside.agent.caught_up()
    beside.run(3 * HOUR_MS)
    assert beside.phases("j1.1") == [LOST]
    assert [(event.node, event.state) for event in beside.nodes()] == [("n0", NodeState.LOST)]


def test_a_lost_report_is_sent_again_with_the_latest_of_each_subject() -> None:
    beside = Beside({1: TrueRun(1_000)})
    beside.is_silent = True
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    again = beside.agent.resend()
    assert [event.phase for event in again if isinstance(event, LeaseObserved)] == [FINISHED]
    assert len([event for event in again if isinstance(event, NodeObserved)]) == 4
    assert beside.agent.resend() == again
    beside.agent.acknowledge(again)
    assert beside.agent.resend() == []


def test_an_orphan_is_reported_then_ended() -> None:
    beside = Beside()
    beside.adapter.launch(WantedLease("j9.1", 9, 1, NAME, granted(9).members), 0)
    beside.run(HOUR_MS)
    assert beside.phases("j9.1") == [RUNNING, ENDED]
    first = next(event for event in beside.events if isinstance(event, LeaseObserved))
    assert "unknown to the plane" in first.detail
    assert beside.adapter.world.running(beside.now_ms) == []


def test_a_launch_that_is_refused_for_ever_is_reported_once_and_the_next_is_launched() -> None:
    """F2, the agent's part."""
    beside = Beside()
    beside.deliver(granted(1, nodes=("no-such-node",)), granted(2))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == [REFUSED]
    assert beside.phases("j2.1") == [RUNNING]


def test_a_cluster_that_does_not_answer_is_tried_again_with_growing_delay_and_then_given_up() -> None:
    beside = Beside(outages=({"from_ms": 0, "until_ms": 10 * HOUR_MS, "calls": ("launch",)},))
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    report = beside.events[-1]
    assert isinstance(report, LeaseObserved)
    assert (report.phase, report.observed_ms) == (REFUSED, (1 + 2 + 4 + 8 + 16 + 32 + 5 * 60) * 1_000)
    assert str(LAUNCH_TRIES) in report.detail


def test_a_short_outage_delays_and_loses_nothing() -> None:
    beside = Beside({1: TrueRun(10_000)}, outages=({"from_ms": 0, "until_ms": 20_000},))
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, FINISHED]
    assert beside.agent.trouble is None


def test_an_expired_credential_is_reported_and_the_end_tried_until_it_works() -> None:
    beside = Beside(outages=({"from_ms": 1_000, "until_ms": HOUR_MS, "kind": "ask-someone", "calls": ("end",)},))
    beside.deliver(granted(1))
    beside.run(1_000)
    beside.deliver(revoked(1))
    beside.run(2 * HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, RUNNING, ENDED]
    complaint = [event for event in beside.events if isinstance(event, LeaseObserved)][1]
    assert "a person must act" in complaint.detail
    assert "credential" in complaint.detail


class TimesOutAfterSuccess(SimulatedAdapter):
    """The launch works, and the answer is lost."""

    @override
    def launch(self, lease: WantedLease, now_ms: int) -> None:
        super().launch(lease, now_ms)
        raise TryAgain("the answer was lost")


def test_a_launch_that_worked_although_it_timed_out_is_adopted_and_not_repeated() -> None:
    beside = Beside()
    adapter = TimesOutAfterSuccess(
        SPEC, {"nodes": [{"names": ("n0",), "shape": SHAPE, "flavor": "a100"}]}, lambda _job: TrueRun(5_000)
    )
    beside.adapter, beside.agent = adapter, Agent(adapter, NAME)
    beside.deliver(granted(1))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == [RUNNING, FINISHED]


def test_the_death_of_one_node_loses_the_whole_gang_before_the_node_is_reported_lost() -> None:
    beside = Beside(deaths=({"node": "n1", "at_ms": 5_000, "for_ms": 5_000},))
    beside.deliver(granted(1, nodes=("n0", "n1")), granted(2, nodes=("n2",)))
    beside.run(7_000)
    lost = beside.events[-2:]
    assert isinstance(lost[0], LeaseObserved)
    assert (lost[0].lease, lost[0].phase) == ("j1.1", LOST)
    assert isinstance(lost[1], NodeObserved)
    assert (lost[1].node, lost[1].state) == ("n1", NodeState.LOST)
    beside.run(HOUR_MS)
    assert [event.state for event in beside.nodes() if event.node == "n1"] == ["ready", "lost", "ready"]
    assert beside.adapter.world.running(HOUR_MS) == ["j2.1"]


def test_deliveries_for_other_clusters_are_ignored() -> None:
    beside = Beside()
    beside.deliver(granted(1).model_copy(update={"cluster": "elsewhere"}))
    beside.run(HOUR_MS)
    assert beside.phases("j1.1") == []
    assert beside.agent.next_wake_ms(HOUR_MS) is None
