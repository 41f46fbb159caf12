"""The backfill table of RLScheduler (SC'20, table V) on Lublin's 256 processors: ours beside the published values.

    python -m tests.benchmarks.bench_easy [--sequences N] [--workers N] [--json]

It runs the real core under real CEL bundles, written out below: one node of 256 CPUs, one queue, a cycle after each
arrival and after each single end, as the published simulator does. Request times are run times. Ties are theirs: of
jobs that end at one instant the one that started first ends first, and an arrival at the same instant comes before.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import JobSubmitted, LeaseGranted
from controlplane.domain.queues import QueueSpec
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake import swf
from controlplane.intake.traces import TraceJob, TraceNode
from controlplane.policy.bundle import load_bundle
from controlplane.scheduler.rules import Rules
from tests.benchmarks.core_alone import CoreAlone
from tests.benchmarks.machine import Json, keep, machine, machine_sentence
from tests.conftest import data_path

FIRST = (1981, 2756, 4299, 8850, 3316, 2714, 5228, 7762, 4022, 7085)
"""First jobs of the ten sequences, of the jobs with a positive run time, counted from 0."""
JOBS = 1_024
PROCESSORS = 256
LEAST_RUN_MS = 10_000
"""Shorter runs count as this in the bounded slowdown."""
PUBLISHED = {
    ("fcfs", "none"): 7273.77,
    ("sjf", "none"): 277.35,
    ("fcfs", "easy"): 235.82,
    ("sjf", "easy"): 73.31,
}
"""Mean bounded slowdown over the ten sequences."""
QUEUE = "lublin"
MILLI = 1_000
ORDERS = {"fcfs": "[job.submitted_ms]", "sjf": "[has(job.estimate_ms) ? job.estimate_ms : 0, job.submitted_ms]"}


def rules_of(order: str, backfill: str) -> Rules:
    """The bundle of one figure: who is chosen, that the chosen one has its start reserved, and who may pass it."""
    points = {
        "ordering.job": ORDERS[order],
        "ordering.backfill": "[job.submitted_ms]",
        "reservation": "1",
        "overtaking": "[]" if backfill == "none" else "['queue']",
    }
    files = {f"{point}.yaml": _rule(point, output) for point, output in points.items()}
    listed = "\n".join(f"  {point}: [{point}.yaml]" for point in points)
    files["bundle.yaml"] = f"name: {order}-{backfill}\ndescription: A figure of table V.\npoints:\n{listed}\n"
    return load_bundle(files).rules()


def _rule(point: str, output: str) -> str:
    name = point.replace(".", "-")
    return f'name: {name}\ndescription: Of table V.\npoint: {point}\nrule:\n  match:\n    - output: "{output}"\n'


def submission(job: TraceJob) -> JobSubmitted:
    """The job as one member that takes as many CPUs of the one node as it has processors."""
    role = Role(cpu_milli=MILLI * job.spec.members)
    spec = JobSpec(name=job.spec.name, queue=QUEUE, roles=(role,), estimate_ms=job.runtime_ms)
    return JobSubmitted(spec=spec, submitted_ms=job.arrival_ms)


class Machine:
    """One sequence on one node of 256 CPUs."""

    def __init__(self, jobs: Sequence[TraceJob], rules: Rules) -> None:
        node = TraceNode("node-0", NodeShape(cpu_milli=MILLI * PROCESSORS, memory_bytes=0), "cpu", {})
        self._core = CoreAlone(rules, [QueueSpec(name=QUEUE)], [node])
        self._coming = sorted(jobs, key=lambda job: job.arrival_ms)
        self._jobs: dict[int, TraceJob] = {}
        self._running: list[tuple[int, int, str]] = []
        """(end, how many had started before, lease)."""
        self.slowdowns: list[float] = []

    def mean_slowdown(self) -> float:
        """Let all jobs arrive and end."""
        at = 0
        while at < len(self._coming) or self._running:
            if at < len(self._coming) and (not self._running or self._coming[at].arrival_ms <= self._running[0][0]):
                job = self._coming[at]
                at += 1
                now_ms = job.arrival_ms
                self._jobs[self._core.fold(submission(job))] = job
            else:
                now_ms, _, lease = heapq.heappop(self._running)
                self._core.finish([lease], now_ms)
            self._decide(now_ms)
        assert len(self.slowdowns) == len(self._coming), "a job never started"
        return sum(self.slowdowns) / len(self.slowdowns)

    def _decide(self, now_ms: int) -> None:
        for decision in self._core.cycle(now_ms).decisions:
            if isinstance(decision.event, LeaseGranted):
                job = self._jobs[decision.event.job]
                run_ms = job.runtime_ms or 0
                heapq.heappush(self._running, (now_ms + run_ms, len(self.slowdowns), decision.event.lease))
                turnaround_ms = now_ms - job.arrival_ms + run_ms
                self.slowdowns.append(max(1.0, turnaround_ms / max(run_ms, LEAST_RUN_MS)))


@dataclass(frozen=True, slots=True)
class Task:
    """One sequence under one bundle."""

    data: str
    order: str
    backfill: str
    first: int


def measure(task: Task) -> tuple[float, float]:
    """The mean bounded slowdown, and the seconds that it took."""
    start = time.perf_counter()
    jobs = swf.read_jobs(Path(task.data) / "swf/lublin_256.swf.gz").jobs[task.first : task.first + JOBS]
    mean = Machine(jobs, rules_of(task.order, task.backfill)).mean_slowdown()
    return mean, time.perf_counter() - start


def figures(data: Path, firsts: Sequence[int], workers: int) -> list[Json]:
    """A row for each published figure."""
    tasks = [Task(str(data), *figure, first) for figure in PUBLISHED for first in firsts]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        measured = dict(zip(tasks, pool.map(measure, tasks), strict=True))
    rows: list[Json] = []
    for (order, backfill), published in PUBLISHED.items():
        found = [measured[Task(str(data), order, backfill, first)] for first in firsts]
        mean = sum(slowdown for slowdown, _ in found) / len(found)
        rows.append(
            {
                "order": order,
                "backfill": backfill,
                "published": published,
                "ours": round(mean, 2),
                "sequences": len(firsts),
                "is_same": len(firsts) == len(FIRST) and round(mean, 2) == published,
                "wall_s": round(sum(wall_s for _, wall_s in found), 1),
            }
        )
    return rows


def main(arguments: Sequence[str]) -> int:
    """Measure, print, keep; 1 if a whole table differs from the published one."""
    parser = argparse.ArgumentParser(prog="bench_easy", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sequences", type=int, default=len(FIRST), choices=range(1, len(FIRST) + 1), metavar="N")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = figures(data_path(), FIRST[: options.sequences], options.workers)
    answer: Json = {"machine": machine(), "rows": rows}
    keep("easy", answer)
    if options.json:
        print(json.dumps(answer, indent=2))
    else:
        print(machine_sentence(machine()))
        print(f"{'order':6} {'backfill':9} {'published':>10} {'ours':>10}  (mean bounded slowdown)")
        for row in rows:
            print(
                f"{row['order']:6} {row['backfill']:9} {row['published']:10.2f} {row['ours']:10.2f}  {row['wall_s']} s"
            )
    return 0 if options.sequences < len(FIRST) or all(row["is_same"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
