"""Lives of a small plane: one queue, four nodes, jobs that come and go by the minute."""

from __future__ import annotations

from controlplane.domain.clusters import ClusterSpec, NodeShape
from controlplane.domain.events import (
    ClusterConfigured,
    Event,
    JobSubmitted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    PolicyActivated,
    QueueConfigured,
)
from controlplane.domain.quantities import MILLI
from controlplane.domain.queues import QueueSpec
from controlplane.domain.workloads import JobSpec, Role
from controlplane.eventlog.port import EventLog
from controlplane.policy.bundle import load_bundle
from controlplane.runtime.plane import ControlPlane

BUNDLE = {
    "bundle.yaml": "name: plain\ndescription: Everything may run anywhere.\npoints:\n  scoring: [scoring.yaml]\n",
    "scoring.yaml": "name: plain\npoint: scoring\nrule:\n  match:\n    - output: '0'\n",
}


def begun(log: EventLog) -> ControlPlane:
    """A plane with rules, one queue and four nodes."""
    made = ControlPlane(log)
    bundle = load_bundle(BUNDLE)
    made.record(
        [
            (PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files), "operator"),
            (ClusterConfigured(spec=ClusterSpec(name="idc")), "operator"),
            (QueueConfigured(spec=QueueSpec(name="red")), "operator"),
        ],
        0,
    )
    shape = NodeShape(cpu_milli=64_000, memory_bytes=2**38, gpus=8, gpu_model="A100")
    nodes = [NodeObserved(cluster="idc", node=f"n{number}", shape=shape, flavor="A100") for number in range(4)]
    made.record([(node, "idc") for node in nodes], 0)
    return made


def live(made: ControlPlane, minutes: range) -> None:
    """In each minute three jobs come, and the lease that was granted first ends."""
    for minute in minutes:
        now_ms = 60_000 * minute
        role = Role(cpu_milli=1_000, memory_bytes=2**30, gpus=1, gpu_milli=MILLI if minute % 2 else 500)
        spec = JobSpec(name="job", queue="red", roles=(role,))
        inputs: list[tuple[Event, str]] = [(JobSubmitted(spec=spec, submitted_ms=now_ms), "client") for _ in range(3)]
        for lease in list(made.state.leases)[:1]:
            ended = LeaseObserved(cluster="idc", lease=lease, phase=LeasePhase.FINISHED, observed_ms=now_ms)
            inputs.append((ended, "idc"))
        made.advance(now_ms, inputs)


def lived(log: EventLog) -> ControlPlane:
    """A plane after half an hour."""
    made = begun(log)
    live(made, range(1, 31))
    return made
