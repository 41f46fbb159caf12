"""Small clusters with an agent beside them, and a way to let virtual time pass."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.domain.clusters import ClusterSpec, NodeShape, Offer, Site
from controlplane.domain.events import (
    CapacityObserved,
    CapacityPhase,
    CapacityReleased,
    CapacityRequested,
    Event,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    Member,
    NodeObserved,
)
from federation.agent import Agent
from federation.simulated.adapter import SimulatedAdapter
from federation.simulated.config import NodeGroup, SimulatedConfig, TrueRun

NAME = "cloud"
SHAPE = NodeShape(cpu_milli=64_000, memory_bytes=2**38, gpus=8, gpu_model="A100")
HOUR_MS = 3_600_000
PRICE = 32_772_600
LEAD_MS = 180_000
SPEC = ClusterSpec(
    name=NAME,
    site=Site.CLOUD,
    offers=(
        Offer(
            name="a100",
            flavor="a100",
            shape=SHAPE,
            price_micro_usd_per_hour=PRICE,
            lead_time_ms=LEAD_MS,
            max_nodes=16,
        ),
    ),
)
FOR_EVER = TrueRun(None)


def granted(job: int, attempt: int = 1, nodes: tuple[str, ...] = ("n0",)) -> LeaseGranted:
    members = tuple(Member(role="main", ordinal=number, node=node, gpus=(0,)) for number, node in enumerate(nodes))
    return LeaseGranted(lease=f"j{job}.{attempt}", job=job, attempt=attempt, cluster=NAME, members=members)


def revoked(job: int, attempt: int = 1) -> LeaseRevoked:
    return LeaseRevoked(lease=f"j{job}.{attempt}", cause="cancelled")


def requested(number: int = 0, nodes: int = 2, deadline_ms: int = HOUR_MS) -> CapacityRequested:
    return CapacityRequested(
        request=f"c1.{number}",
        cluster=NAME,
        offer="a100",
        nodes=nodes,
        for_job=1,
        deadline_ms=deadline_ms,
        promised_micro_usd=nodes * PRICE,
        budgets=(),
    )


def released(number: int = 0) -> CapacityReleased:
    return CapacityReleased(request=f"c1.{number}", cluster=NAME, cause="idle")


class Beside:
    """A simulated cluster, its agent, and the reports so far. Positions count up with each delivery."""

    def __init__(self, runs: Mapping[int, TrueRun] | None = None, **settings: object) -> None:
        config = SimulatedConfig.model_validate(
            {"nodes": (NodeGroup(count=4, prefix="n", shape=SHAPE, flavor="a100"),)} | settings
        )
        table = dict(runs or {})
        self.adapter = SimulatedAdapter(SPEC, config, lambda job: table.get(job, FOR_EVER))
        self.agent = Agent(self.adapter, NAME)
        self.now_ms = 0
        self.position = 0
        self.events: list[Event] = []
        self.is_silent = False
        """True: nothing is acknowledged, as when the plane is down."""

    def deliver(self, *events: Event) -> None:
        for event in events:
            self.position += 1
            self.agent.deliver(self.position, event)

    def step(self) -> list[Event]:
        events = self.agent.step(self.now_ms)
        self.events += events
        if not self.is_silent:
            self.agent.acknowledge(events)
        return events

    def run(self, until_ms: int) -> None:
        """Step whenever the agent says that a step is due, up to an instant."""
        self.step()
        while (wake_ms := self.agent.next_wake_ms(self.now_ms)) is not None and wake_ms <= until_ms:
            self.now_ms = wake_ms
            self.step()
        self.now_ms = until_ms

    def phases(self, lease: str) -> list[LeasePhase]:
        return [event.phase for event in self.events if isinstance(event, LeaseObserved) and event.lease == lease]

    def capacity(self, request: str = "c1.0") -> list[CapacityObserved]:
        return [event for event in self.events if isinstance(event, CapacityObserved) and event.request == request]

    def capacity_phases(self, request: str = "c1.0") -> list[CapacityPhase]:
        return [event.phase for event in self.capacity(request)]

    def nodes(self) -> list[NodeObserved]:
        return [event for event in self.events if isinstance(event, NodeObserved)]
