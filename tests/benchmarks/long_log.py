"""A log of a million events, or of fewer, made by the runtime itself: a full cluster on which jobs come and go.

It is made once (a minute or two for a million) and kept; one that another core version made, or a build whose
snapshots this one cannot read, is made anew.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import (
    ClusterConfigured,
    Event,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    PolicyActivated,
    QueueConfigured,
)
from controlplane.domain.queues import QueueSpec
from controlplane.domain.version import CORE
from controlplane.eventlog import open_log
from controlplane.intake import openb
from controlplane.policy.bundle import load_bundle, read_bundle_folder
from controlplane.runtime.plane import ControlPlane, Recorded, restored
from tests.benchmarks.core_alone import CLUSTER, openb_nodes, submissions_of
from tests.benchmarks.machine import ROOT

EVENTS = 1_000_000
BATCH = 500
"""Jobs that come, and leases that end, between two cycles."""
KEPT_RUNNING = 7_000
"""Leases before the first one ends: the cluster is nearly full then."""


def long_log(data: Path, folder: Path, events: int = EVENTS) -> Path:
    """The log's path, made if it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events-{events}-{CORE}.db"
    if not _is_usable(path):
        for left in folder.glob(f"{path.name}*"):
            left.unlink()
        draft = folder / f".{path.name}.{os.getpid()}.db"
        try:
            _write(data, draft, events)
            draft.rename(path)
        finally:
            for left in folder.glob(f"{draft.name}*"):
                left.unlink()
    return path


def _is_usable(path: Path) -> bool:
    if not path.exists():
        return False
    with open_log(str(path), create=False, read_only=True) as log:
        return restored(log)[1].position > 0


def _write(data: Path, path: Path, events: int) -> None:
    nodes = openb_nodes(data)
    pods = openb.read_pods(data / "openb" / "openb_pod_list_default.csv.gz")
    arrivals = openb.arrivals(pods, openb.capacity_milli(nodes), percent=100, seed=1, wait_limit_ms=None)
    submissions = submissions_of(arrivals)
    with open_log(str(path), create=True) as log:
        plane = ControlPlane(log)
        bundle = load_bundle(read_bundle_folder(ROOT / "policies" / "examples" / "best-fit"))
        plane.record([(PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files), "operator")], 0)
        plane.record([(ClusterConfigured(spec=ClusterSpec(name=CLUSTER)), "operator")], 0)
        plane.record([(QueueConfigured(spec=QueueSpec(name="openb")), "operator")], 0)
        plane.record(
            [
                (NodeObserved(cluster=CLUSTER, node=node.name, shape=node.shape, flavor=node.flavor), CLUSTER)
                for node in nodes
            ],
            0,
        )
        running: deque[str] = deque()
        recorded: Recorded = []
        now_ms = at = 0
        while plane.head.position < events:
            now_ms += 60_000
            granted = [event.lease for _, event in recorded if isinstance(event, LeaseGranted)]
            running.extend(granted)
            inputs: list[tuple[Event, str]] = [(_seen(lease, LeasePhase.RUNNING, now_ms), CLUSTER) for lease in granted]
            while len(running) > KEPT_RUNNING:
                inputs.append((_seen(running.popleft(), LeasePhase.FINISHED, now_ms), CLUSTER))
            some = [submissions[(at + number) % len(submissions)] for number in range(BATCH)]
            inputs += [(event.model_copy(update={"submitted_ms": now_ms}), "client") for event in some]
            at += BATCH
            recorded = plane.advance(now_ms, inputs)


def _seen(lease: str, phase: LeasePhase, now_ms: int) -> LeaseObserved:
    return LeaseObserved(cluster=CLUSTER, lease=lease, phase=phase, observed_ms=now_ms)
