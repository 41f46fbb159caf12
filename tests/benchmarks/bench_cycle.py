"""Cycles over long queues: what one costs cold and warm, how cost grows, how much memory, and how fair it comes out.

    python -m tests.benchmarks.bench_cycle [--only cold,curve,memory,fair,reclaim] [--large] [--json]

- ``cold``: one cycle over 1,000 nodes, 10 queues and 320,000 queued jobs, by a core that has seen none of them (what
  Armada's authors report for one round of that size on a laptop is 1.3 seconds); then a cycle when a hundred jobs ended
  and a hundred arrived since.
- ``curve``: the warm cycle again over queue length and over nodes. Cost must follow what changed.
- ``memory``: 10,000 nodes and a million queued jobs, in a process of its own. Only with ``--large``: it takes minutes.
- ``fair``: 50 queues in a tree of three levels on a saturated cluster: by how much each queue's use, averaged over time
  once warmed up, departs from its entitled share.

- ``reclaim``: 1,000 nodes full of 8,000 borrowing jobs of one GPU; the owner of the quota comes with one job of a GPU,
  then with gangs of 8, 64 and 500 nodes (KAI reports 76 seconds for a reclaim on 1,000 nodes). The cycle that evicts.

Jobs ask for what those of a research cluster ask for; which job asks what is drawn from a fixed seed. A job that ends
is submitted again, so that no queue runs dry. Only the core runs: state, fold and decide, under ``policies/default``.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import JobSubmitted, LeaseGranted, LeaseRevoked
from controlplane.domain.quantities import GPU, MILLI
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake.draw import Draw
from controlplane.intake.traces import TraceNode
from controlplane.runtime.batch import rare_collection
from tests.benchmarks.core_alone import CoreAlone, rules_of
from tests.benchmarks.machine import (
    CALIBRATED_PER_S,
    Json,
    calibration_per_s,
    keep,
    machine,
    machine_sentence,
    peak_bytes,
)

PARTS = ("cold", "curve", "memory", "fair", "reclaim")
BUNDLE = "default"
GPUS = 8
SIZES = (1, 1, 1, 2, 2, 4, 8)
"""GPUs of a job, each as likely: the shape of a research cluster, small jobs most."""
USERS = 8
"""Per queue: jobs of different users are not alike, so a queue holds some fifty kinds of job."""
STEP_MS = 10_000

COLD_FLOOR_S = 1.3
WARM_FLOOR_S = 0.020
RECLAIM_FLOOR_S = 0.5
MEMORY_FLOOR_BYTES = 4 * 10**9
FAIR_FLOOR_PPM = 10_000
"""One per cent of the cluster, and one job's size besides."""


# --- worlds -----------------------------------------------------------------------------------------------------------


def nodes_of(number: int) -> list[TraceNode]:
    """Nodes of eight GPUs."""
    shape = NodeShape(cpu_milli=128_000, memory_bytes=2**40, gpus=GPUS, gpu_model="A100")
    return [TraceNode(f"n{index:05}", shape, "A100", {}) for index in range(number)]


def flat_queues(number: int) -> list[QueueSpec]:
    """Queues side by side."""
    return [QueueSpec(name=f"q{index}") for index in range(number)]


def jobs_for(queues: Sequence[str], seed: int = 1) -> Iterator[JobSpec]:
    """Jobs without end, for one queue after the other."""
    draw = Draw(seed)
    known: dict[tuple[str, int, int], JobSpec] = {}
    number = 0
    while True:
        queue, gpus, user = queues[number % len(queues)], SIZES[draw.below(len(SIZES))], draw.below(USERS)
        number += 1
        spec = known.get((queue, gpus, user))
        if spec is None:
            role = Role(cpu_milli=8_000 * gpus, memory_bytes=gpus * 2**36, gpus=gpus)
            spec = JobSpec(name="job", queue=queue, user=f"u{user}", roles=(role,))
            known[queue, gpus, user] = spec
        yield spec


class Saturated:
    """A cluster whose queues never run dry. Time goes on by steps."""

    def __init__(self, nodes: int, queues: Sequence[QueueSpec], leaves: Sequence[str], queued: int) -> None:
        self.core = CoreAlone(rules_of(BUNDLE), queues, nodes_of(nodes))
        self.running: deque[str] = deque()
        self.now_ms = 0
        self._submit(islice(jobs_for(leaves), queued))

    def cycle(self) -> tuple[float, int]:
        """One cycle, decided and folded. Gives its seconds of processor time, as measured, and its decisions."""
        self.now_ms += STEP_MS
        start = time.process_time()
        decisions = self.core.cycle(self.now_ms).decisions
        spent = time.process_time() - start
        self.running += [d.event.lease for d in decisions if isinstance(d.event, LeaseGranted)]
        return spent, len(decisions)

    def change(self, number: int) -> None:
        """So many jobs end, the oldest first, and jobs like them arrive."""
        ended = [self.running.popleft() for _ in range(min(number, len(self.running)))]
        specs = [self.core.state.leases[lease].job.cls.spec for lease in ended]
        self.core.finish(ended, self.now_ms)
        self._submit(specs)

    def _submit(self, specs: Iterable[JobSpec]) -> None:
        for spec in specs:
            self.core.fold(JobSubmitted(spec=spec, submitted_ms=self.now_ms))


# --- the parts --------------------------------------------------------------------------------------------------------


def cold_and_warm(nodes: int, queues: int, queued: int, changed: int = 100, cycles: int = 15) -> Json:
    """The first cycle, and the median of later ones between each of which so many jobs ended and arrived."""
    specs = flat_queues(queues)
    started = time.process_time()
    with rare_collection():
        world = Saturated(nodes, specs, [spec.name for spec in specs], queued)
        folded_s = time.process_time() - started
        gc.collect()
        before = calibration_per_s()
        cold_s, decisions = world.cycle()
        warm = []
        for _ in range(cycles):
            world.change(changed)
            warm.append(world.cycle()[0])
        speed = (before + calibration_per_s()) / 2 / CALIBRATED_PER_S
    return {
        "nodes": nodes,
        "queues": queues,
        "queued": queued,
        "fold_s": round(folded_s, 3),
        "cold_s": round(cold_s, 3),
        "cold_normal_s": round(cold_s * speed, 3),
        "cold_decisions": decisions,
        "warm_ms": round(1_000 * statistics.median(warm), 2),
        "warm_normal_ms": round(1_000 * statistics.median(warm) * speed, 2),
        "warm_worst_ms": round(1_000 * max(warm), 2),
        "peak_bytes": peak_bytes(),
    }


def curve() -> list[Json]:
    """The same over queue length, then over nodes."""
    lengths = [cold_and_warm(1_000, 10, queued) for queued in (10_000, 40_000, 160_000)]
    widths = [cold_and_warm(nodes, 10, 40_000) for nodes in (250, 4_000)]
    return [*lengths, *widths]


def in_process_of_its_own(nodes: int, queues: int, queued: int) -> Json:
    """:func:`cold_and_warm` where nothing else has taken memory."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(cold_and_warm, (nodes, queues, queued, 100, 3))


# --- fairness ---------------------------------------------------------------------------------------------------------


def tree(groups: int = 5, below: int = 10) -> tuple[list[QueueSpec], dict[str, Fraction]]:
    """Cohorts of weights 1 to 5 with ten queues of weights 1 to 3 each, all below one more; and each leaf's share."""
    specs = [QueueSpec(name="company")]
    entitled: dict[str, Fraction] = {}
    total = sum(range(1, groups + 1))
    for group in range(1, groups + 1):
        specs.append(QueueSpec(name=f"g{group}", parent="company", weight=group))
        weights = [1 + number % 3 for number in range(below)]
        for number, weight in enumerate(weights):
            name = f"g{group}-{number}"
            specs.append(QueueSpec(name=name, parent=f"g{group}", weight=weight))
            entitled[name] = Fraction(group, total) * Fraction(weight, sum(weights))
    return specs, entitled


def fairness(nodes: int = 250, warm_up: int = 150, cycles: int = 400, changed: int = 60) -> Json:
    """Each queue's use averaged over time beside its entitled share of the cluster, in parts per million of it."""
    specs, entitled = tree()
    world = Saturated(nodes, specs, list(entitled), 60 * len(entitled))
    state = world.core.state
    used = dict.fromkeys(entitled, 0)
    for number in range(warm_up + cycles):
        world.cycle()
        if number >= warm_up:
            for name in used:
                used[name] += state.used[state.tree.by_name[name].index].get(GPU, 0)
        world.change(changed)
    capacity = nodes * GPUS * MILLI * cycles
    in_use = Fraction(sum(used.values()), capacity)
    # What nobody uses (the last GPUs of a node that no job at hand fits) is nobody's share.
    apart = {name: abs(Fraction(used[name], capacity) - share * in_use) for name, share in entitled.items()}
    worst = max(apart, key=lambda name: (apart[name], name))
    largest_job = Fraction(max(SIZES), nodes * GPUS)
    return {
        "queues": len(entitled),
        "cycles": cycles,
        "utilisation_ppm": int(in_use * 1_000_000),
        "worst_queue": worst,
        "worst_ppm": int(apart[worst] * 1_000_000),
        "mean_ppm": int(sum(apart.values()) / len(apart) * 1_000_000),
        "largest_job_ppm": int(largest_job * 1_000_000),
    }


# --- the answer -------------------------------------------------------------------------------------------------------


# --- reclaim ----------------------------------------------------------------------------------------------------------


def reclaim(nodes: int = 1_000, gangs: Sequence[tuple[int, int]] = ((1, 1), (8, 8), (64, 8), (500, 8))) -> list[Json]:
    """The cycle in which the owner of half of the cluster takes some back from who borrowed all of it, for a gang of so
    many members with so many GPUs."""
    return [_reclaimed(nodes, members, gpus) for members, gpus in gangs]


def _reclaimed(nodes: int, members: int, gpus: int) -> Json:
    half = {"any": {GPU: Quota(nominal=nodes * GPUS * MILLI // 2)}}
    queues = [
        QueueSpec(name="company"),
        QueueSpec(name="owner", parent="company", quotas=half),
        QueueSpec(name="borrower", parent="company", quotas=half),
    ]
    core = CoreAlone(rules_of(BUNDLE), queues, nodes_of(nodes))
    one = JobSpec(name="small", queue="borrower", roles=(Role(cpu_milli=1_000, gpus=1),))
    for _ in range(nodes * GPUS):
        core.fold(JobSubmitted(spec=one, submitted_ms=0))
    core.cycle(STEP_MS)
    running = len(core.state.leases)
    gang = Role(count=members, cpu_milli=1_000 * gpus, gpus=gpus)
    core.fold(JobSubmitted(spec=JobSpec(name="gang", queue="owner", roles=(gang,)), submitted_ms=STEP_MS))
    gc.collect()
    start = time.process_time()
    decisions = core.cycle(2 * STEP_MS).decisions
    spent = time.process_time() - start
    evicted = sum(isinstance(decision.event, LeaseRevoked) for decision in decisions)
    return {"running": running, "members": members, "gpus": gpus, "evicted": evicted, "reclaim_s": round(spent, 4)}


def measure(parts: Sequence[str] = PARTS, *, large: bool = False) -> Json:
    """All figures of the parts asked for."""
    answer: Json = {"machine": machine()}
    if "cold" in parts:
        answer["cold"] = in_process_of_its_own(1_000, 10, 320_000)
    if "curve" in parts:
        answer["curve"] = curve()
    if "memory" in parts and large:
        answer["memory"] = in_process_of_its_own(10_000, 10, 1_000_000)
    if "fair" in parts:
        answer["fair"] = fairness()
    if "reclaim" in parts:
        answer["reclaim"] = reclaim()
    answer["missed"] = missed(answer)
    return answer


def missed(answer: Json) -> list[str]:
    """Floors of issue 3 that were not reached, one sentence each."""
    sentences = []
    cold, memory, fair = answer.get("cold"), answer.get("memory"), answer.get("fair")
    if isinstance(cold, dict):
        if cold["cold_s"] >= COLD_FLOOR_S:
            sentences.append(f"cold cycle: {cold['cold_s']:.2f} s, the floor is {COLD_FLOOR_S:g} s")
        if cold["warm_ms"] >= 1_000 * WARM_FLOOR_S:
            sentences.append(f"warm cycle: {cold['warm_ms']:.1f} ms, the floor is {1_000 * WARM_FLOOR_S:g} ms")
    if isinstance(memory, dict) and memory["peak_bytes"] >= MEMORY_FLOOR_BYTES:
        sentences.append(f"memory: {memory['peak_bytes'] / 1e9:.2f} GB, the floor is {MEMORY_FLOOR_BYTES / 1e9:g} GB")
    if isinstance(fair, dict) and fair["worst_ppm"] >= FAIR_FLOOR_PPM + fair["largest_job_ppm"]:
        sentences.append(f"fairness: {fair['worst_queue']} is {fair['worst_ppm']:,} ppm from its share")
    reclaimed = answer.get("reclaim")
    for row in reclaimed if isinstance(reclaimed, list) else []:
        if row["evicted"] != row["members"] * row["gpus"]:
            sentences.append(f"reclaim: {row['evicted']} were evicted for {row['members']} x {row['gpus']} GPUs")
        elif row["reclaim_s"] >= RECLAIM_FLOOR_S:
            took = f"{row['reclaim_s']:.2f} s for {row['members']} x {row['gpus']} GPUs"
            sentences.append(f"reclaim: {took}, the floor is {RECLAIM_FLOOR_S:g} s")
    return sentences


def sentences(answer: Json) -> str:
    """The figures for a person."""
    lines = [machine_sentence(answer["machine"])] if isinstance(answer["machine"], dict) else []
    lines.append(
        f"{'':8}{'nodes':>7} {'queues':>6} {'queued':>10} {'fold s':>7} {'cold s':>7} {'normal':>7} {'warm ms':>8} "
        f"{'normal':>7} {'worst':>7} {'peak MB':>8}"
    )
    for name in ("cold", "curve", "memory"):
        found = answer.get(name)
        lines += [_row(name, row) for row in (found if isinstance(found, list) else [found]) if isinstance(row, dict)]
    fair = answer.get("fair")
    if isinstance(fair, dict):
        lines.append(
            f"fair     {fair['queues']} queues: mean {fair['mean_ppm']:,} ppm from the entitled share, worst "
            f"{fair['worst_ppm']:,} ({fair['worst_queue']}); one job is up to {fair['largest_job_ppm']:,} ppm; "
            f"{fair['utilisation_ppm'] / 10_000:.1f}% in use"
        )
    reclaimed = answer.get("reclaim")
    lines += [
        f"reclaim  {row['members']:3} x {row['gpus']} GPUs, {row['running']:,} possible victims: "
        f"{row['evicted']:,} evicted, {1_000 * row['reclaim_s']:.0f} ms"
        for row in (reclaimed if isinstance(reclaimed, list) else [])
    ]
    short = answer["missed"]
    if isinstance(short, list):
        lines += [f"missed   {sentence}" for sentence in short] or ["every floor was reached"]
    return "\n".join(lines)


def _row(name: str, row: Json) -> str:
    peak = row["peak_bytes"]
    assert isinstance(peak, int)
    return (
        f"{name:8}{row['nodes']:7,} {row['queues']:6} {row['queued']:10,} {row['fold_s']:7.2f} {row['cold_s']:7.3f} "
        f"{row['cold_normal_s']:7.3f} {row['warm_ms']:8.2f} {row['warm_normal_ms']:7.2f} {row['warm_worst_ms']:7.2f} "
        f"{peak / 1e6:8,.0f}"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="cycles over long queues, and fairness")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma")
    parser.add_argument("--large", action="store_true", help="a million queued jobs, too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = measure(given.only.split(","), large=given.large)
    keep("cycle", answer)
    sys.stdout.write((json.dumps(answer, indent=2) if given.json else sentences(answer)) + "\n")


if __name__ == "__main__":
    main()
