"""Cycles in which somebody takes room from others: what one costs with 1,000 nodes and 8,000 victims possible.

    python -m tests.benchmarks.bench_preemption [--only one,gang,...] [--profile] [--json]

Every GPU is in use, half of them by a queue that borrows them. Then, in one cycle each:

- ``one``: the owner asks for one GPU and takes it back.
- ``gang``: the owner asks for 800 GPUs, a gang of 100 whole nodes, and takes all of them back.
- ``many``: the owner submits 256 jobs of one GPU, as many as one cycle looks for victims for.
- ``urgent``: a more urgent gang of 10 whole nodes moves less urgent work of its own queue.
- ``vain``: a gang of two whole nodes for which no eviction helps, since on each node somebody may not be moved.
- ``surplus``: a gang of 80 GPUs takes what elastic gangs have beyond their least: 1,000 of four to eight members.

(KAI's authors report 76 seconds for a reclaim over 1,000 nodes.) Only the core runs: state, fold and decide, under
``policies/default``. The cycle is decided several times from the same state, since deciding changes nothing; whatever
is remembered between cycles is dropped before each time (``cold``), or kept (``warm``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import Event, JobSubmitted, LeaseRevoked, LeaseShrunk, RoomPromised, Ticked
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.workloads import JobSpec
from controlplane.intake.traces import TraceNode
from controlplane.runtime.batch import rare_collection
from controlplane.scheduler.decide import Cycle, decide
from tests.benchmarks.core_alone import CoreAlone, rules_of
from tests.benchmarks.machine import Json, Timing, keep, machine, machine_sentence, profile, timed

NODES = 1_000
GPUS = 8
RUNS = 3
MINUTE = 60_000
FLOOR_S = 0.5
"""Of scheduling in depth: a reclaim over 1,000 nodes with 8,000 victims possible."""


# --- worlds -----------------------------------------------------------------------------------------------------------


def job(queue: str, gpus: int, members: int = 1, **more: object) -> JobSpec:
    """A job with CPU and memory beside each GPU; ``least`` members, if it is elastic."""
    role = {"count": members, "min_count": more.pop("least", None), "gpus": gpus, "cpu_milli": 8_000 * gpus}
    return JobSpec.model_validate({"name": "job", "queue": queue, "roles": [role], **more})


def _small(nodes: int) -> Iterator[JobSpec]:
    return repeat(job("borrower", 1), nodes * GPUS)


def _one_protected_on_each(nodes: int) -> Iterator[JobSpec]:
    """Seven of the eight of each node may be moved: what is alike is placed node after node, the fullest first."""
    for _ in range(nodes):
        yield job("borrower", 1, labels={"tidegate/protected": "true"}, priority=1)
        yield from repeat(job("borrower", 1, priority=1), GPUS - 1)


def _elastic(nodes: int) -> Iterator[JobSpec]:
    return repeat(job("borrower", 1, GPUS, least=GPUS // 2), nodes)


Fill = Callable[[int], Iterator[JobSpec]]
PARTS: dict[str, tuple[Fill, list[JobSpec]]] = {
    "one": (_small, [job("owner", 1)]),
    "gang": (_small, [job("owner", GPUS, 100)]),
    "many": (_small, [job("owner", 1)] * 256),
    "urgent": (_small, [job("borrower", GPUS, 10, priority=10)]),
    "vain": (_one_protected_on_each, [job("owner", GPUS, 2)]),
    "surplus": (_elastic, [job("borrower", 1, 80)]),
}


class Full:
    """A cluster of which every GPU is in use, and who wants some of them. The cycle in which they take them is due."""

    def __init__(self, nodes: int, part: str) -> None:
        fill, wanted = PARTS[part]
        half = {"any": {"gpu": Quota(nominal=nodes * GPUS * 500)}}
        queues = [
            QueueSpec(name="company"),
            *(QueueSpec(name=n, parent="company", quotas=half) for n in ("owner", "borrower")),
        ]
        shape = NodeShape(cpu_milli=128_000, memory_bytes=2**40, gpus=GPUS, gpu_model="A100")
        there = [TraceNode(f"n{number:05}", shape, "a100", {}) for number in range(nodes)]
        self.core = CoreAlone(rules_of("default"), queues, there)
        for spec in fill(nodes):
            self.core.fold(JobSubmitted(spec=spec, submitted_ms=0))
        self.core.cycle(0)
        state = self.core.state
        assert state.used[0]["gpu"] == nodes * GPUS * 1_000, "not every GPU is in use"
        for spec in wanted:
            self.core.fold(JobSubmitted(spec=spec, submitted_ms=0))
        self.core.fold(Ticked(now_ms=10 * MINUTE))

    def cycle(self, *, cold: bool) -> Callable[[], Cycle]:
        """Ready to decide the cycle."""
        if cold:
            self.core.state.agenda = None
        return lambda: decide(self.core.state, self.core.rules)


def taken(cycle: Cycle) -> Json:
    """What a cycle decided, in figures."""
    events: list[Event] = [decision.event for decision in cycle.decisions]
    return {
        "promises": sum(isinstance(event, RoomPromised) for event in events),
        "evicted": sum(isinstance(event, LeaseRevoked) for event in events),
        "members_shrunk": sum(len(event.members) for event in events if isinstance(event, LeaseShrunk)),
    }


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(parts: Sequence[str] = tuple(PARTS), nodes: int = NODES, *, is_profiled: bool = False) -> Json:
    """Seconds of each part, cold and warm, and what was decided in it."""
    answer: Json = {"machine": machine(), "nodes": nodes}
    for part in parts:
        with rare_collection():
            world = Full(nodes, part)
            leases = len(world.core.state.leases)
            cold = timed(lambda: world.cycle(cold=True), RUNS)  # noqa: B023 - run at once
            warm = timed(lambda: world.cycle(cold=False), RUNS)  # noqa: B023 - run at once
        figures = {"leases": leases, **taken(cold.answer), **_seconds("cold", cold), **_seconds("warm", warm)}
        if is_profiled:
            figures["profile"] = profile(world.cycle(cold=False))
        answer[part] = figures
    answer["missed"] = missed(answer)
    return answer


def _seconds(name: str, timing: Timing[Cycle]) -> Json:
    return {f"{name}_cpu_s": round(timing.cpu_s, 4), f"{name}_normal_s": round(timing.normal_s, 4)}


def missed(answer: Json) -> list[str]:
    """Floors that were not reached, one sentence each."""
    sentences = []
    for part in PARTS:
        figures = answer.get(part)
        if isinstance(figures, dict) and figures["cold_cpu_s"] >= FLOOR_S:
            sentences.append(f"{part}: {figures['cold_cpu_s']:.2f} s, the floor is {FLOOR_S:g} s")
    return sentences


def sentences(answer: Json) -> str:
    """The figures for a person."""
    lines = [machine_sentence(answer["machine"])] if isinstance(answer["machine"], dict) else []
    lines.append(
        f"{'':9}{'leases':>7} {'promises':>8} {'evicted':>7} {'shrunk':>6} {'cold s':>7} {'normal':>7} {'warm s':>7} "
        f"{'normal':>7}"
    )
    for part in PARTS:
        figures = answer.get(part)
        if isinstance(figures, dict):
            lines.append(
                f"{part:9}{figures['leases']:7,} {figures['promises']:8} {figures['evicted']:7} "
                f"{figures['members_shrunk']:6} {figures['cold_cpu_s']:7.3f} {figures['cold_normal_s']:7.3f} "
                f"{figures['warm_cpu_s']:7.3f} {figures['warm_normal_s']:7.3f}"
            )
            lines += [f"         {line}" for line in figures.get("profile", ())]
    short = answer["missed"]
    if isinstance(short, list):
        lines += [f"missed   {sentence}" for sentence in short] or ["every floor was reached"]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="cycles in which somebody takes room from others")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = measure(given.only.split(","), is_profiled=given.profile)
    keep("preemption", answer)
    sys.stdout.write((json.dumps(answer, indent=2) if given.json else sentences(answer)) + "\n")


if __name__ == "__main__":
    main()
