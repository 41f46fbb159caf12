"""The core by itself: state, fold and decide, fed events; no log, no agents, no encoding of inputs.

The bundle is compiled and asked as in production. What is placed stays, unless :meth:`CoreAlone.finish` ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import (
    ClusterConfigured,
    Event,
    JobSubmitted,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    QueueConfigured,
    Ticked,
)
from controlplane.domain.queues import QueueSpec
from controlplane.intake import openb
from controlplane.intake.traces import TraceJob, TraceNode
from controlplane.policy.bundle import load_bundle, read_bundle_folder
from controlplane.scheduler.decide import Cycle, decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import State
from tests.benchmarks.machine import ROOT

BATCH = 50
"""Arrivals per cycle, as in the world files of openb."""
CLUSTER = "home"
NODES = "openb_node_list_gpu_node.csv.gz"


def rules_of(bundle: str) -> Rules:
    """The rules of a folder below ``policies``, compiled anew: nothing is remembered from an earlier run."""
    return load_bundle(read_bundle_folder(ROOT / "policies" / bundle)).rules()


class CoreAlone:
    """One state and its rules."""

    def __init__(self, rules: Rules, queues: Sequence[QueueSpec], nodes: Iterable[TraceNode]) -> None:
        self.state = State()
        self.rules = rules
        self.fold(ClusterConfigured(spec=ClusterSpec(name=CLUSTER)))
        for queue in queues:
            self.fold(QueueConfigured(spec=queue))
        for node in nodes:
            self.fold(
                NodeObserved(
                    cluster=CLUSTER, node=node.name, shape=node.shape, flavor=node.flavor, labels=dict(node.labels)
                )
            )

    def fold(self, event: Event) -> int:
        """Fold one event at the next position, which it gives."""
        apply(self.state, self.state.position + 1, event)
        return self.state.position

    def cycle(self, now_ms: int) -> Cycle:
        """Tick, decide, fold what was decided."""
        self.fold(Ticked(now_ms=now_ms))
        cycle = decide(self.state, self.rules)
        for decision in cycle.decisions:
            self.fold(decision.event)
        return cycle

    def finish(self, leases: Iterable[str], now_ms: int) -> None:
        """The cluster reports these leases finished."""
        for lease in leases:
            self.fold(LeaseObserved(cluster=CLUSTER, lease=lease, phase=LeasePhase.FINISHED, observed_ms=now_ms))


def arrive(core: CoreAlone, submissions: Sequence[JobSubmitted], batch: int = BATCH) -> list[str | None]:
    """Let jobs arrive in batches, a cycle after each. Gives for each what it was granted: a lease, or ``None``."""
    leases: dict[int, str] = {}
    ids: list[int] = []
    for start in range(0, len(submissions), batch):
        some = submissions[start : start + batch]
        ids += [core.fold(event) for event in some]
        for decision in core.cycle(some[-1].submitted_ms).decisions:
            if isinstance(decision.event, LeaseGranted):
                leases[decision.event.job] = decision.event.lease
    return [leases.get(id_) for id_ in ids]


def copies(nodes: Sequence[TraceNode], times: int) -> list[TraceNode]:
    """The same nodes several times, the copies under names of their own."""
    made = list(nodes)
    for number in range(1, times):
        made += [TraceNode(f"{node.name}-{number}", node.shape, node.flavor, node.labels) for node in nodes]
    return made


def submissions_of(jobs: Iterable[TraceJob]) -> list[JobSubmitted]:
    """Jobs of a trace as events."""
    return [JobSubmitted(spec=job.spec, submitted_ms=job.arrival_ms) for job in jobs]


def openb_nodes(data: Path) -> list[TraceNode]:
    """The 1,213 GPU nodes of openb."""
    return openb.read_nodes(data / "openb" / NODES)
