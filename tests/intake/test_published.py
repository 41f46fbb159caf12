"""The inputs of both published tables, checked without our scheduler: plain reference simulations of a page each.

If these hold and a benchmark of ours does not, the fault is in the scheduler, not in what intake hands to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from controlplane.intake import openb, swf
from controlplane.intake.traces import TraceJob, TraceNode, gpus_milli

# --- backfill: RLScheduler, SC'20, table V ---------------------------------------------------------------------------

FIRST = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)
JOBS = 1_024
PROCESSORS = 256

Order = Callable[[TraceJob], tuple[int, ...]]


def fcfs(job: TraceJob) -> tuple[int, ...]:
    return (job.arrival_ms,)


def sjf(job: TraceJob) -> tuple[int, ...]:
    return (job.spec.estimate_ms or 0, job.arrival_ms)


class Machine:
    """One sequence on 256 processors; times in ms."""

    def __init__(self, jobs: list[TraceJob], order: Order, *, easy: bool) -> None:
        self.coming = sorted(jobs, key=lambda job: job.arrival_ms)
        self.order = order
        self.easy = easy
        self.now_ms = self.coming[0].arrival_ms
        self.free = PROCESSORS
        self.running: list[tuple[int, int, int]] = []
        """(end, how many had started before, processors): of equal ends the one that started first comes first."""
        self.waiting: list[TraceJob] = []
        self.slowdowns: list[float] = []

    def mean_slowdown(self) -> float:
        while self.coming or self.waiting:
            if not self.waiting:
                self.step()
                continue
            head = min(self.waiting, key=self.order)
            self.waiting.remove(head)
            reservation_ms = self.earliest(head.spec.members)
            while self.free < head.spec.members:
                if self.easy:
                    self.backfill(reservation_ms)
                self.step()
            self.start(head)
        return sum(self.slowdowns) / len(self.slowdowns)

    def start(self, job: TraceJob) -> None:
        runtime_ms = job.runtime_ms or 0
        self.free -= job.spec.members
        self.running.append((self.now_ms + runtime_ms, len(self.slowdowns), job.spec.members))
        wait_ms = self.now_ms - job.arrival_ms
        self.slowdowns.append(max(1.0, (wait_ms + runtime_ms) / max(runtime_ms, 10_000)))

    def earliest(self, members: int) -> int:
        """When so many processors are free; estimates are run times here."""
        free, at_ms = self.free, self.now_ms
        for end_ms, _, released in sorted(self.running):
            if free >= members:
                break
            free, at_ms = free + released, end_ms
        return at_ms

    def backfill(self, reservation_ms: int) -> None:
        for job in sorted(self.waiting, key=fcfs):
            fits = job.spec.members <= self.free
            if fits and self.now_ms + (job.spec.estimate_ms or 0) < reservation_ms:
                self.waiting.remove(job)
                self.start(job)

    def step(self) -> None:
        """To the next arrival or end; an arrival comes before an end at the same instant."""
        end = min(self.running, default=None)
        if self.coming and (end is None or self.coming[0].arrival_ms <= end[0]):
            job = self.coming.pop(0)
            self.now_ms = max(self.now_ms, job.arrival_ms)
            self.waiting.append(job)
        elif end is not None:
            self.running.remove(end)
            self.now_ms = end[0]
            self.free += end[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "easy", "published"),
    [(fcfs, False, 7273.77), (sjf, False, 277.35), (fcfs, True, 235.82), (sjf, True, 73.31)],
)
def test_backfill_on_lublin(data_dir: Path, order: Order, easy: bool, published: float) -> None:
    jobs = swf.read_jobs(data_dir / "swf/lublin_256.swf.gz").jobs
    means = [Machine(jobs[first : first + JOBS], order, easy=easy).mean_slowdown() for first in FIRST]
    assert round(sum(means) / len(means), 2) == published


# --- fragmentation: "Beware of Fragmentation", ATC'23 ----------------------------------------------------------------


class Cluster:
    """Best fit over NumPy columns, nodes in the order of their names."""

    def __init__(self, nodes: list[TraceNode]) -> None:
        nodes = sorted(nodes, key=lambda node: node.name)
        self.cpu = np.array([node.shape.cpu_milli for node in nodes])
        self.memory = np.array([node.shape.memory_bytes for node in nodes])
        self.there = np.array([[gpu < node.shape.gpus for gpu in range(8)] for node in nodes])
        self.free = np.where(self.there, 1_000, 0)
        self.allocated = 0

    def place(self, job: TraceJob) -> None:
        role = job.spec.roles[0]
        fits = (self.cpu >= role.cpu_milli) & (self.memory >= role.memory_bytes)
        if role.gpus:
            fits &= ((self.free >= role.gpu_milli) & self.there).sum(axis=1) >= role.gpus
        if not fits.any():
            return
        left = (self.cpu - role.cpu_milli) * 100 + (self.free.sum(axis=1) - gpus_milli(job.spec)) * 1_600
        node = int(np.where(fits, (25_600_000 - left) // 256_000, -1).argmax())
        self.cpu[node] -= role.cpu_milli
        self.memory[node] -= role.memory_bytes
        enough = np.where(self.there[node] & (self.free[node] >= role.gpu_milli), self.free[node], 10**6)
        self.free[node, np.argsort(enough, kind="stable")[: role.gpus]] -= role.gpu_milli
        self.allocated += gpus_milli(job.spec)


@pytest.mark.slow
def test_best_fit_on_openb(data_dir: Path) -> None:
    nodes = openb.read_nodes(data_dir / "openb/openb_node_list_gpu_node.csv.gz")
    pods = openb.read_pods(data_dir / "openb/openb_pod_list_default.csv.gz")
    capacity = openb.capacity_milli(nodes)
    figures: list[tuple[float, float]] = []
    for seed in range(3):
        cluster, arrived, at_full = Cluster(nodes), 0, 0
        for job in openb.arrivals(pods, capacity, percent=130, seed=seed):
            cluster.place(job)
            arrived += gpus_milli(job.spec)
            if arrived >= capacity and not at_full:
                at_full = cluster.allocated
        figures.append((at_full * 100 / capacity, cluster.allocated * 100 / capacity))
    at_100, at_130 = (sum(column) / len(figures) for column in zip(*figures, strict=True))
    assert abs(at_100 - 92.86) < 0.8
    assert abs(at_130 - 93.08) < 0.8
