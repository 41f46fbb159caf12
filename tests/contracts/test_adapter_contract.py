"""Every adapter keeps the contract, and the contract notices adapters that do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from typing_extensions import override

from controlplane.domain.clusters import ClusterSpec, NodeShape, Offer, Site
from controlplane.domain.events import LeasePhase, Member
from federation.port import CapacityWanted, ClusterView, SeenPhase, WantedLease
from federation.simulated.adapter import SimulatedAdapter
from federation.simulated.config import NodeGroup, Provider, SimulatedConfig, TrueRun
from tests.contracts.adapter_contract import AdapterContract, CapacityContract, ElasticContract, Ground, Work

SHAPE = NodeShape(cpu_milli=64_000, memory_bytes=2**38, gpus=8, gpu_model="A100")
SPEC = ClusterSpec(
    name="sim",
    site=Site.CLOUD,
    offers=(
        Offer(
            name="a100", flavor="a100", shape=SHAPE, price_micro_usd_per_hour=32_772_600, lead_time_ms=900, max_nodes=4
        ),
    ),
)


class SimulatedGround(Ground):
    """A simulated cluster of two nodes; every wait is a tenth of a second of virtual time."""

    def __init__(self, kind: type[SimulatedAdapter], launch_delay_ms: int, end_delay_ms: int) -> None:
        config = SimulatedConfig(
            nodes=(NodeGroup(count=2, prefix="n", shape=SHAPE, flavor="a100"),),
            launch_delay_ms=launch_delay_ms,
            launch_jitter_ms=launch_delay_ms,
            end_delay_ms=end_delay_ms,
            provider=Provider(lead_jitter_ms=300, release_ms=end_delay_ms),
        )
        self.offer = "a100"
        self.work: dict[int, Work] = {}
        self.adapter = kind(SPEC, config, self._true_run)
        self.now_ms = 0

    def _true_run(self, job: int) -> TrueRun:
        work = self.work[job]
        outcome = LeasePhase.FAILED if work is Work.FAILS else LeasePhase.FINISHED
        return TrueRun(None if work is Work.STAYS else 250, outcome)

    @override
    def lease(self, job: int, work: Work, members: int = 1) -> WantedLease:
        self.work[job] = work
        places = tuple(Member(role="main", ordinal=number, node=f"n{number}", gpus=(job,)) for number in range(members))
        return WantedLease(f"j{job}.1", job, 1, "sim", places)

    @override
    def wait(self) -> None:
        self.now_ms += 100


class TestSimulatedWithoutDelays(AdapterContract, CapacityContract, ElasticContract):
    @pytest.fixture
    def ground(self) -> Ground:
        return SimulatedGround(SimulatedAdapter, 0, 0)


class TestSimulatedWithDelays(AdapterContract, CapacityContract, ElasticContract):
    @pytest.fixture
    def ground(self) -> Ground:
        return SimulatedGround(SimulatedAdapter, 150, 350)


# --- adapters that break one promise each ----------------------------------------------------------------------------


class ForgetsOnRelaunch(SimulatedAdapter):
    """A repeated launch starts the work again."""

    @override
    def launch(self, lease: WantedLease, now_ms: int) -> None:
        self.world.forget(lease.lease, now_ms)
        super().launch(lease, now_ms)


class HidesTheOver(SimulatedAdapter):
    """What is over is no longer in the view."""

    @override
    def observe(self, now_ms: int, after: int | None = None) -> ClusterView:
        view = super().observe(now_ms, after)
        return view._replace(leases=tuple(seen for seen in view.leases if seen.phase is not SeenPhase.FINISHED))


class LosesDeadlines(SimulatedAdapter):
    """The deadline is not kept beside the nodes."""

    @override
    def request_capacity(self, wanted: CapacityWanted, now_ms: int) -> None:
        super().request_capacity(wanted._replace(deadline_ms=2**52), now_ms)


class EndsNothing(SimulatedAdapter):
    """Ending is accepted and not done."""

    @override
    def end(self, lease: str, grace_ms: int, now_ms: int) -> None:
        self.world.next_event_ms(now_ms)


class ShowsChangesOnce(SimulatedAdapter):
    """A view that got lost is not given again."""

    @override
    def observe(self, now_ms: int, after: int | None = None) -> ClusterView:
        view = super().observe(now_ms, after)
        super().observe(now_ms, view.mark)
        return view if after is None or not view.is_full else view._replace(leases=(), is_full=False)


class TakesAnyRevision(SimulatedAdapter):
    """An older change is carried out after a newer one."""

    @override
    def resize(self, lease: WantedLease, grace_ms: int, now_ms: int) -> None:
        seen = next((seen for seen in self.observe(now_ms).leases if seen.lease == lease.lease), None)
        revision = max(lease.revision, seen.revision + 1) if seen is not None else lease.revision
        super().resize(lease._replace(revision=revision), grace_ms, now_ms)


SUITE = AdapterContract()
CAPACITY_SUITE = CapacityContract()
ELASTIC_SUITE = ElasticContract()


@pytest.mark.parametrize(
    ("broken", "test"),
    [
        (ForgetsOnRelaunch, SUITE.test_launching_twice_is_launching_once),
        (HidesTheOver, SUITE.test_how_a_lease_ended_is_remembered_until_it_is_forgotten),
        (LosesDeadlines, CAPACITY_SUITE.test_rented_nodes_arrive_carry_their_request_and_go),
        (EndsNothing, SUITE.test_an_ended_lease_stops_and_the_others_go_on),
        (ShowsChangesOnce, SUITE.test_a_view_since_a_mark_shows_what_changed_since),
        (TakesAnyRevision, ELASTIC_SUITE.test_resizing_twice_is_resizing_once_and_an_older_revision_changes_nothing),
    ],
)
def test_the_suite_notices_a_broken_promise(broken: type[SimulatedAdapter], test: Callable[[Ground], None]) -> None:
    with pytest.raises(AssertionError):
        test(SimulatedGround(broken, 150, 350))
