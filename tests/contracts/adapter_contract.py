"""What every adapter must do, as a suite that is run against each of them.

To run it on yours, subclass ``AdapterContract`` (and ``CapacityContract`` if it rents nodes, ``ElasticContract`` if it
can change running gangs) in a test module, name the
class ``Test...``, and give it the fixture ``ground``: a fresh :class:`Ground` per test, over a cluster that holds
nothing. Nothing else is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from enum import Enum, auto

import pytest

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import Member
from federation.port import (
    Adapter,
    CapacityWanted,
    ClusterView,
    ElasticAdapter,
    Refused,
    SeenCapacity,
    SeenCapacityPhase,
    SeenLease,
    SeenNode,
    SeenPhase,
    WantedLease,
)

OVER = frozenset({SeenPhase.FINISHED, SeenPhase.FAILED, SeenPhase.LOST, SeenPhase.REFUSED, SeenPhase.ENDED})
PATIENCE = 1_000
"""How often ``Ground.wait`` is called before the suite says that something never happens."""


class Work(Enum):
    """What a lease does once it runs."""

    ENDS_WELL = auto()
    FAILS = auto()
    STAYS = auto()


class Ground(ABC):
    """A cluster to try an adapter on, and the time there."""

    adapter: Adapter
    now_ms: int
    grace_ms: int = 1_000
    offer: str | None = None
    """An offer of which two nodes can be rented."""

    @abstractmethod
    def lease(self, job: int, work: Work, members: int = 1) -> WantedLease:
        """A lease ``j<job>.1`` for such work, with up to two members, each at a place of its own. Jobs 1 to 3 fit
        together."""

    @abstractmethod
    def wait(self) -> None:
        """Let some time pass, real or virtual, and set ``now_ms``."""

    # --- what the suite asks -----------------------------------------------------------------------------------------

    def everything(self) -> ClusterView:
        """A full view."""
        view = self.adapter.observe(self.now_ms)
        assert view.is_full, "a view without a mark is full"
        return view

    def find(self, lease: str) -> SeenLease:
        """A lease as a full view shows it."""
        found = [seen for seen in self.everything().leases if seen.lease == lease]
        assert len(found) <= 1, "a lease is listed once"
        return found[0] if found else SeenLease(lease, SeenPhase.ABSENT)

    def find_capacity(self, request: str) -> SeenCapacity:
        """A capacity request as a full view shows it."""
        found = [seen for seen in self.everything().capacity if seen.request == request]
        assert len(found) <= 1, "a request is listed once"
        return found[0] if found else SeenCapacity(request, SeenCapacityPhase.ABSENT, 0)

    def nodes_of(self, request: str) -> list[SeenNode]:
        """Nodes of a request that are there."""
        nodes = self.everything().nodes
        return [node for node in nodes if node.request == request and node.state is not NodeState.LOST]

    def wait_for(self, lease: str, phases: Iterable[SeenPhase]) -> SeenLease:
        """Wait until a lease is in one of the phases."""
        wanted = frozenset(phases)
        self.wait_until(lambda: self.find(lease).phase in wanted, f"{lease} in {sorted(wanted)}")
        return self.find(lease)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something holds."""
        for _ in range(PATIENCE):
            if condition():
                return
            self.wait()
        raise AssertionError(f"never happened: {what}")


class AdapterContract:
    """The suite."""

    # --- leases ------------------------------------------------------------------------------------------------------

    def test_a_launched_lease_is_in_the_next_view_and_comes_to_run(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        assert ground.find("j1.1").phase in (SeenPhase.LAUNCHING, SeenPhase.RUNNING)
        ground.wait_for("j1.1", [SeenPhase.RUNNING])

    def test_launching_twice_is_launching_once(self, ground: Ground) -> None:
        lease = ground.lease(1, Work.ENDS_WELL)
        ground.adapter.launch(lease, ground.now_ms)
        ground.adapter.launch(lease, ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.FINISHED])
        ground.adapter.launch(lease, ground.now_ms)
        for _ in range(3):
            ground.wait()
            assert ground.find("j1.1").phase is SeenPhase.FINISHED

    def test_a_gang_of_two_is_one_lease(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.ENDS_WELL, members=2), ground.now_ms)
        assert ground.wait_for("j1.1", OVER).phase is SeenPhase.FINISHED

    def test_work_that_ends_well_is_finished_with_exit_code_zero(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.ENDS_WELL), ground.now_ms)
        seen = ground.wait_for("j1.1", OVER)
        assert (seen.phase, seen.exit_code) == (SeenPhase.FINISHED, 0)

    def test_work_that_fails_is_failed_with_another_exit_code(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.FAILS), ground.now_ms)
        seen = ground.wait_for("j1.1", OVER)
        assert seen.phase is SeenPhase.FAILED
        assert seen.exit_code not in (None, 0)

    def test_an_ended_lease_stops_and_the_others_go_on(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        ground.adapter.launch(ground.lease(2, Work.STAYS), ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.RUNNING])
        ground.wait_for("j2.1", [SeenPhase.RUNNING])
        ground.adapter.end("j1.1", ground.grace_ms, ground.now_ms)
        ground.adapter.end("j1.1", ground.grace_ms, ground.now_ms)
        assert ground.wait_for("j1.1", OVER).phase is SeenPhase.ENDED
        assert ground.find("j2.1").phase is SeenPhase.RUNNING

    def test_a_lease_that_is_ended_before_it_runs_never_runs(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        ground.adapter.end("j1.1", ground.grace_ms, ground.now_ms)
        assert ground.wait_for("j1.1", OVER).phase is SeenPhase.ENDED

    def test_ending_what_is_over_changes_nothing(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.ENDS_WELL), ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.FINISHED])
        ground.adapter.end("j1.1", ground.grace_ms, ground.now_ms)
        ground.wait()
        assert ground.find("j1.1").phase is SeenPhase.FINISHED

    def test_ending_and_forgetting_what_is_unknown_is_no_error(self, ground: Ground) -> None:
        ground.adapter.end("j9.9", ground.grace_ms, ground.now_ms)
        ground.adapter.forget("j9.9", ground.now_ms)
        assert ground.find("j9.9").phase is SeenPhase.ABSENT

    def test_how_a_lease_ended_is_remembered_until_it_is_forgotten(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.ENDS_WELL), ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.FINISHED])
        for _ in range(10):
            ground.wait()
        assert ground.find("j1.1").phase is SeenPhase.FINISHED
        ground.adapter.forget("j1.1", ground.now_ms)
        ground.wait_until(lambda: ground.find("j1.1").phase is SeenPhase.ABSENT, "j1.1 forgotten")

    def test_a_place_that_does_not_exist_is_refused_and_nothing_starts(self, ground: Ground) -> None:
        lease = ground.lease(1, Work.STAYS)
        nowhere = Member(role="main", ordinal=1, node="there/is-no-such-node")
        with pytest.raises(Refused):
            ground.adapter.launch(lease._replace(members=(*lease.members, nowhere)), ground.now_ms)
        ground.wait()
        assert ground.find("j1.1").phase in (SeenPhase.ABSENT, SeenPhase.REFUSED)

    # --- views -------------------------------------------------------------------------------------------------------

    def test_nodes_are_shown_once_with_what_they_hold(self, ground: Ground) -> None:
        nodes = ground.everything().nodes
        names = [node.node for node in nodes]
        assert len(names) == len(set(names)) >= 2
        places = {member.node for member in ground.lease(1, Work.STAYS, members=2).members}
        assert places <= {node.node for node in nodes if node.state is NodeState.READY and node.shape.cpu_milli > 0}

    def test_a_view_since_a_mark_shows_what_changed_since(self, ground: Ground) -> None:
        before = ground.everything()
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        after = ground.adapter.observe(ground.now_ms, before.mark)
        assert "j1.1" in [seen.lease for seen in after.leases]
        again = ground.adapter.observe(ground.now_ms, before.mark)
        assert "j1.1" in [seen.lease for seen in again.leases], "a view that was not received is given again"

    def test_changes_add_up_to_the_full_view(self, ground: Ground) -> None:
        view = ground.everything()
        known = {seen.lease: seen.phase for seen in view.leases}
        ground.adapter.launch(ground.lease(1, Work.ENDS_WELL), ground.now_ms)
        ground.adapter.launch(ground.lease(2, Work.STAYS), ground.now_ms)
        for _ in range(20):
            view = ground.adapter.observe(ground.now_ms, view.mark)
            shown = {seen.lease: seen.phase for seen in view.leases}
            known = shown if view.is_full else known | shown
            ground.wait()
        view = ground.adapter.observe(ground.now_ms, view.mark)
        known |= {seen.lease: seen.phase for seen in view.leases}
        assert known == {seen.lease: seen.phase for seen in ground.everything().leases}

    def test_an_unknown_mark_gives_everything(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        view = ground.adapter.observe(ground.now_ms, 10**15)
        assert view.is_full
        assert "j1.1" in [seen.lease for seen in view.leases]

    def test_the_next_event_is_never_in_the_past(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.ENDS_WELL), ground.now_ms)
        for _ in range(5):
            next_ms = ground.adapter.next_event_ms(ground.now_ms)
            assert next_ms is None or next_ms >= ground.now_ms
            ground.wait()


class ElasticContract:
    """What an adapter does that can change the members of a running gang. The cluster has room for both members of a
    lease."""

    def test_a_gang_grows_and_shrinks_and_shows_who_is_there(self, ground: Ground) -> None:
        one, two = ground.lease(1, Work.STAYS), ground.lease(1, Work.STAYS, members=2)
        ground.adapter.launch(one, ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.RUNNING])
        self.resize(ground, two._replace(revision=1))
        self.wait_for_members(ground, 1, [0, 1])
        self.resize(ground, one._replace(revision=2))
        self.wait_for_members(ground, 2, [0])
        assert ground.find("j1.1").phase is SeenPhase.RUNNING

    def test_who_is_being_stopped_is_shown_until_it_is_gone(self, ground: Ground) -> None:
        one, two = ground.lease(1, Work.STAYS), ground.lease(1, Work.STAYS, members=2)
        ground.adapter.launch(two._replace(revision=1), ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.RUNNING])
        mark = ground.everything().mark
        self.resize(ground, one._replace(revision=2))
        self.wait_for_members(ground, 2, [0])
        changes = ground.adapter.observe(ground.now_ms, mark)
        assert "j1.1" in [seen.lease for seen in changes.leases], "that it is gone is a change"

    def test_resizing_twice_is_resizing_once_and_an_older_revision_changes_nothing(self, ground: Ground) -> None:
        one, two = ground.lease(1, Work.STAYS), ground.lease(1, Work.STAYS, members=2)
        ground.adapter.launch(one, ground.now_ms)
        self.resize(ground, two._replace(revision=2))
        self.resize(ground, two._replace(revision=2))
        self.resize(ground, one._replace(revision=1))
        for _ in range(5):
            ground.wait()
        self.wait_for_members(ground, 2, [0, 1])

    def test_what_is_over_ending_or_unknown_is_left_alone(self, ground: Ground) -> None:
        two = ground.lease(1, Work.STAYS, members=2)._replace(revision=1)
        self.resize(ground, two)
        assert ground.find("j1.1").phase is SeenPhase.ABSENT
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        ground.adapter.end("j1.1", ground.grace_ms, ground.now_ms)
        self.resize(ground, two)
        assert ground.wait_for("j1.1", OVER).phase is SeenPhase.ENDED
        self.resize(ground, two)
        assert ground.find("j1.1").phase is SeenPhase.ENDED

    def test_a_refused_change_changes_nothing(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.STAYS)._replace(revision=1), ground.now_ms)
        ground.wait_for("j1.1", [SeenPhase.RUNNING])
        nowhere = Member(role="main", ordinal=1, node="no-such-node")
        lease = ground.lease(1, Work.STAYS)
        with pytest.raises(Refused):
            self.resize(ground, lease._replace(members=(*lease.members, nowhere), revision=2))
        self.wait_for_members(ground, 1, [0])

    def test_a_changed_gang_ends_whole(self, ground: Ground) -> None:
        ground.adapter.launch(ground.lease(1, Work.STAYS), ground.now_ms)
        self.resize(ground, ground.lease(1, Work.STAYS, members=2)._replace(revision=1))
        ground.adapter.end("j1.1", ground.grace_ms, ground.now_ms)
        assert ground.wait_for("j1.1", OVER).phase is SeenPhase.ENDED

    def resize(self, ground: Ground, lease: WantedLease) -> None:
        assert isinstance(ground.adapter, ElasticAdapter)
        ground.adapter.resize(lease, ground.grace_ms, ground.now_ms)

    def wait_for_members(self, ground: Ground, revision: int, ordinals: list[int]) -> None:
        def is_so() -> bool:
            seen = ground.find("j1.1")
            return seen.revision == revision and sorted(m.ordinal for m in seen.members) == ordinals

        ground.wait_until(is_so, f"revision {revision} with members {ordinals}")


class CapacityContract:
    """The suite for adapters that rent nodes; one that does not refuses every request, and leaves this out."""

    def test_rented_nodes_arrive_carry_their_request_and_go(self, ground: Ground) -> None:
        wanted = self._wanted(ground)
        ground.adapter.request_capacity(wanted, ground.now_ms)
        seen = ground.find_capacity("c1.0")
        assert seen.phase in (SeenCapacityPhase.ASKED, SeenCapacityPhase.PROVIDED)
        assert seen.deadline_ms == wanted.deadline_ms, "the deadline is kept beside the nodes"
        ground.wait_until(lambda: len(ground.nodes_of("c1.0")) == 2, "two nodes of c1.0")
        assert ground.find_capacity("c1.0").phase is SeenCapacityPhase.PROVIDED
        ground.adapter.release_capacity("c1.0", ground.now_ms)
        ground.adapter.release_capacity("c1.0", ground.now_ms)
        self._wait_for_release(ground)
        assert ground.nodes_of("c1.0") == []

    def test_asking_twice_is_asking_once(self, ground: Ground) -> None:
        wanted = self._wanted(ground)
        ground.adapter.request_capacity(wanted, ground.now_ms)
        ground.adapter.request_capacity(wanted, ground.now_ms)
        ground.wait_until(lambda: len(ground.nodes_of("c1.0")) >= 2, "two nodes of c1.0")
        ground.adapter.request_capacity(wanted, ground.now_ms)
        for _ in range(20):
            ground.wait()
            assert len(ground.nodes_of("c1.0")) == 2
        ground.adapter.release_capacity("c1.0", ground.now_ms)
        self._wait_for_release(ground)
        ground.adapter.request_capacity(wanted, ground.now_ms)
        for _ in range(20):
            ground.wait()
            assert ground.nodes_of("c1.0") == [], "what was given back is not rented again under the same request"

    def test_the_charge_is_final_once_released(self, ground: Ground) -> None:
        ground.adapter.request_capacity(self._wanted(ground), ground.now_ms)
        ground.wait_until(lambda: len(ground.nodes_of("c1.0")) == 2, "two nodes of c1.0")
        ground.adapter.release_capacity("c1.0", ground.now_ms)
        self._wait_for_release(ground)
        charged = ground.find_capacity("c1.0").charged_micro_usd
        for _ in range(5):
            ground.wait()
        assert ground.find_capacity("c1.0").charged_micro_usd == charged

    def test_an_unknown_offer_is_refused_and_an_unknown_release_is_no_error(self, ground: Ground) -> None:
        wanted = self._wanted(ground)
        with pytest.raises(Refused):
            ground.adapter.request_capacity(wanted._replace(offer="no-such-offer"), ground.now_ms)
        ground.adapter.release_capacity("c9.9", ground.now_ms)
        assert ground.find_capacity("c9.9").phase is SeenCapacityPhase.ABSENT

    def _wanted(self, ground: Ground) -> CapacityWanted:
        assert ground.offer is not None, "a ground for this suite names an offer"
        return CapacityWanted("c1.0", ground.offer, 2, ground.now_ms + 10**9)

    def _wait_for_release(self, ground: Ground) -> None:
        released = (SeenCapacityPhase.RELEASED, SeenCapacityPhase.ABSENT)
        ground.wait_until(lambda: ground.find_capacity("c1.0").phase in released, "c1.0 released")
