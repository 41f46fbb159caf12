"""Leases whose members change: an agent beside a simulated cluster, whatever order it is told in."""

from __future__ import annotations

from itertools import permutations

import pytest
from typing_extensions import override

from controlplane.domain.events import Event, LeaseGrown, LeaseObserved, LeasePhase, LeaseShrunk, Member, MemberName
from federation.agent import Agent
from federation.port import Refused, TryAgain, WantedLease
from federation.simulated.adapter import SimulatedAdapter
from tests.federation.grounds import HOUR_MS, NAME, Beside, granted, revoked

LEASE = "j1.1"


def grown(revision: int, *ordinals: int) -> LeaseGrown:
    members = tuple(Member(role="main", ordinal=ordinal, node=f"n{ordinal}", gpus=(0,)) for ordinal in ordinals)
    return LeaseGrown(lease=LEASE, revision=revision, members=members)


def shrunk(revision: int, *ordinals: int) -> LeaseShrunk:
    members = tuple(MemberName(role="main", ordinal=ordinal) for ordinal in ordinals)
    return LeaseShrunk(lease=LEASE, revision=revision, members=members, cause="preempted", grace_ms=5_000)


def resizes(beside: Beside) -> list[tuple[int, list[int]]]:
    """(revision, ordinals) of the reports."""
    return [
        (event.revision, sorted(member.ordinal for member in event.members))
        for event in beside.events
        if isinstance(event, LeaseObserved) and event.phase is LeasePhase.RESIZED
    ]


def there(beside: Beside) -> list[int]:
    view = beside.adapter.observe(beside.now_ms)
    return sorted(member.ordinal for seen in view.leases for member in seen.members)


def test_it_is_launched_as_large_as_it_has_become_meanwhile() -> None:
    beside = Beside()
    beside.deliver(granted(1), grown(1, 1, 2))
    beside.run(1_000)
    assert there(beside) == [0, 1, 2]
    assert resizes(beside) == [(1, [0, 1, 2])]


def test_it_grows_while_it_runs() -> None:
    beside = Beside()
    beside.deliver(granted(1))
    beside.run(1_000)
    beside.deliver(grown(1, 1))
    beside.run(2_000)
    assert there(beside) == [0, 1]
    assert resizes(beside) == [(1, [0, 1])]
    assert beside.phases(LEASE).count(LeasePhase.RUNNING) == 1


def test_who_leaves_is_reported_gone_when_it_is_gone_and_not_before() -> None:
    beside = Beside(end_delay_ms=3_000)
    beside.deliver(granted(1, nodes=("n0", "n1")))
    beside.run(1_000)
    beside.deliver(shrunk(1, 1))
    beside.run(3_999)
    assert all(1 in ordinals for _, ordinals in resizes(beside))
    beside.run(4_000)
    assert resizes(beside)[-1] == (1, [0])
    assert there(beside) == [0]


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_changes_take_effect_in_their_order_whichever_arrives_first(order: tuple[int, ...]) -> None:
    told: list[Event] = [granted(1), grown(1, 1, 2), shrunk(2, 2), grown(3, 3)]
    beside = Beside()
    for at in order:
        beside.deliver(told[at], told[at])
        beside.step()
    beside.run(HOUR_MS)
    assert there(beside) == [0, 1, 3]
    assert resizes(beside)[-1] == (3, [0, 1, 3])


def test_a_revocation_wins_over_changes() -> None:
    beside = Beside()
    beside.deliver(granted(1))
    beside.run(1_000)
    beside.deliver(grown(1, 1), revoked(1), shrunk(2, 1))
    beside.run(HOUR_MS)
    assert beside.phases(LEASE)[-1] is LeasePhase.ENDED


def test_after_a_restart_what_was_not_carried_out_is() -> None:
    beside = Beside()
    told: list[Event] = [granted(1), grown(1, 1)]
    beside.deliver(*told)
    beside.run(1_000)
    told += beside.events
    beside.agent = Agent(beside.adapter, NAME, replaying=True)
    beside.position = 0
    beside.deliver(*told, shrunk(2, 1), grown(3, 2))
    beside.step()
    beside.agent.caught_up()
    beside.run(HOUR_MS)
    assert there(beside) == [0, 2]
    assert resizes(beside)[-1] == (3, [0, 2])
    assert LeasePhase.LOST not in beside.phases(LEASE)


class Flaky(SimulatedAdapter):
    """Its first change of members may have worked or not."""

    failures = 2

    @override
    def resize(self, lease: WantedLease, grace_ms: int, now_ms: int) -> None:
        if self.failures:
            self.failures -= 1
            raise TryAgain("the controller restarts")
        super().resize(lease, grace_ms, now_ms)


class Firm(SimulatedAdapter):
    """It never lets a gang grow once it is launched; it can shrink, if asked."""

    may_shrink = True

    @override
    def resize(self, lease: WantedLease, grace_ms: int, now_ms: int) -> None:
        shown = next(seen for seen in self.observe(now_ms).leases if seen.lease == lease.lease)
        before = {member.ordinal for member in shown.members} if shown.revision else {0}
        if not self.may_shrink or {member.ordinal for member in lease.members} - before:
            raise Refused("this cluster does not do that")
        super().resize(lease, grace_ms, now_ms)


def beside_of(kind: type[SimulatedAdapter]) -> Beside:
    beside = Beside()
    beside.adapter.__class__ = kind
    return beside


def test_a_change_is_tried_again() -> None:
    beside = beside_of(Flaky)
    beside.deliver(granted(1))
    beside.run(1_000)
    beside.deliver(grown(1, 1))
    beside.run(HOUR_MS)
    assert there(beside) == [0, 1]


def test_growth_that_is_refused_is_reported_as_those_who_are_there() -> None:
    beside = beside_of(Firm)
    beside.deliver(granted(1))
    beside.run(1_000)
    beside.deliver(grown(1, 1))
    beside.run(HOUR_MS)
    assert resizes(beside)[-1] == (1, [0])
    assert beside.phases(LEASE)[-1] is not LeasePhase.ENDED


def test_a_gang_that_cannot_be_shrunk_is_stopped_whole() -> None:
    beside = beside_of(Firm)
    assert isinstance(beside.adapter, Firm)
    beside.adapter.may_shrink = False
    beside.deliver(granted(1), grown(1, 1))
    beside.run(1_000)
    beside.deliver(shrunk(2, 1))
    beside.run(HOUR_MS)
    assert beside.phases(LEASE)[-1] is LeasePhase.ENDED
