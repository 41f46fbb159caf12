"""How fast: simulate, the core alone, replay, and opening a log of a million events; and where the time goes.

    python -m tests.benchmarks.bench_speed [--runs N] [--only simulate,core,replay,open] [--profile] [--json]

How the figures are taken stands in :mod:`tests.benchmarks.machine`. All of it runs on one core. Each run starts with
rules that were compiled anew, so that none lives on answers remembered by another.

- ``simulate``: the world ``openb-best-fit``, from reading its files to its last digest, into a durable SQLite log
  (``synchronous=FULL``) on the disk that holds the checkout. Speed in jobs submitted.
- ``core``: the same arrivals through fold and decide alone, on the 1,213 nodes and on 10,000 (copies of them, filled by
  as many more arrivals). Speed in placements; time for arrivals that fit nowhere is in it. Under the bundle, and under
  the same rule written in Python, which leaves the engine out.
- ``replay``: ``replay --verify`` of the log that ``simulate`` wrote. Speed in jobs submitted.
- ``open``: a log of a million events with the snapshots that the runtime took of itself. It is made once, by the
  runtime, and kept under ``out``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from controlplane.audit.replay import ReplayReport, replay
from controlplane.domain.queues import QueueSpec
from controlplane.eventlog import open_log
from controlplane.intake import openb
from controlplane.policy.bundle import load_bundle, read_bundle_folder
from controlplane.runtime.batch import rare_collection
from controlplane.runtime.plane import ControlPlane
from controlplane.scheduler.rules import Rules
from controlplane.simulate.simulation import Outcomes, Simulation
from controlplane.simulate.world import read_world
from tests.benchmarks.core_alone import CoreAlone, arrive, copies, openb_nodes, rules_of, submissions_of
from tests.benchmarks.long_log import EVENTS, long_log
from tests.benchmarks.machine import RESULTS, ROOT, Json, keep, machine, machine_sentence, peak_bytes, profile, timed
from tests.conftest import data_path
from tests.twins.plain_rules import PlainRules

WORLD = ROOT / "controlplane" / "simulate" / "worlds" / "openb-best-fit.yaml"
BUNDLE = "examples/best-fit"
RUNS = 3
PARTS = ("simulate", "core", "replay", "open")
LARGE = 10_000

FLOORS: dict[str, tuple[str, float]] = {
    "simulate": ("per_cpu_s", 3_000),
    "core, 1,213 nodes": ("per_cpu_s", 15_000),
    "replay --verify": ("per_cpu_s", 8_000),
}
OPEN_FLOOR_S = 2.0
LARGE_SHARE = 1 / 3
"""Of the speed on 1,213 nodes, on 10,000."""


# --- what is timed ----------------------------------------------------------------------------------------------------


def simulate(folder: Path) -> Outcomes:
    """One run of the world into a new log ``folder/log.db``."""
    for left in folder.glob("log.db*"):
        left.unlink()
    world = read_world(WORLD)
    bundle = load_bundle(read_bundle_folder((WORLD.parent / (world.policies or "")).resolve()))
    with open_log(str(folder / "log.db"), create=True) as log:
        return Simulation(world, WORLD, bundle, log).run()


def verify(path: Path) -> ReplayReport:
    """One verification of a log."""
    with open_log(str(path), create=False, read_only=True) as log:
        return replay(log, verify=True)


def core_run(data: Path, nodes_wanted: int, rules: Callable[[], Rules]) -> Callable[[], int]:
    """Ready to fill so many nodes; gives the number of placements."""
    nodes = openb_nodes(data)
    nodes = copies(nodes, -(-nodes_wanted // len(nodes)))[:nodes_wanted]
    pods = openb.read_pods(data / "openb" / "openb_pod_list_default.csv.gz")
    jobs = submissions_of(openb.arrivals(pods, openb.capacity_milli(nodes), percent=130, seed=1))
    core = CoreAlone(rules(), (QueueSpec(name="openb"),), nodes)

    def run() -> int:
        with rare_collection():  # as every command that decides much does
            arrive(core, jobs)
        return core.state.counts.placements

    return run


def opening(path: Path) -> int:
    """Open a log and its state; gives the position."""
    with open_log(str(path), create=False) as log:
        return ControlPlane(log).head.position


# --- the parts --------------------------------------------------------------------------------------------------------


def simulate_and_replay(folder: Path, runs: int, parts: Iterable[str], with_profile: bool) -> Json:
    """Figures of ``simulate`` and ``replay``."""
    simulated = timed(lambda: partial(simulate, folder), runs)
    jobs = _jobs(simulated.answer.figures)
    answer: Json = {}
    if "simulate" in parts:
        answer["simulate"] = simulated.rates(jobs) | {
            "events": simulated.answer.position,
            "digest": simulated.answer.digest,
            "log_bytes": (folder / "log.db").stat().st_size,
        }
        if with_profile:
            answer["simulate, profile"] = profile(partial(simulate, folder))
    if "replay" in parts:
        path = folder / "log.db"
        verified = timed(lambda: partial(verify, path), runs)
        assert verified.answer.ok, verified.answer.divergence
        assert verified.answer.digest == simulated.answer.digest
        answer["replay --verify"] = verified.rates(jobs) | {"events": verified.answer.events}
        if with_profile:
            answer["replay --verify, profile"] = profile(partial(verify, path))
    return answer


def _jobs(figures: dict[str, object]) -> int:
    jobs = figures["jobs"]
    assert isinstance(jobs, dict)
    return int(jobs["submitted"])


def core_alone(data: Path, runs: int, with_profile: bool) -> Json:
    """Figures of the core."""
    bundle: Callable[[], Rules] = partial(rules_of, BUNDLE)
    answer: Json = {}
    for name, nodes, rules, times in (
        ("core, 1,213 nodes", 1_213, bundle, 2 * runs),
        ("core, 1,213 nodes, rule in Python", 1_213, PlainRules, 2 * runs),
        ("core, 10,000 nodes", LARGE, bundle, 1),
    ):
        timing = timed(partial(core_run, data, nodes, rules), times)
        answer[name] = timing.rates(timing.answer)
    answer["core, peak_bytes"] = peak_bytes()
    if with_profile:
        answer["core, 1,213 nodes, profile"] = profile(core_run(data, 1_213, bundle))
    return answer


def long_opening(data: Path, runs: int, with_profile: bool) -> Json:
    """Figures of opening the log of a million events. It is copied first: to open is to be able to write."""
    kept = long_log(data, RESULTS)
    with tempfile.TemporaryDirectory(prefix=".speed-", dir=RESULTS) as name:
        path = Path(shutil.copy(kept, name))
        timing = timed(lambda: partial(opening, path), runs)
        assert timing.answer >= EVENTS
        answer: Json = {
            "open": timing.rates(timing.answer)
            | {"normal_s": round(timing.normal_s, 3), "log_bytes": kept.stat().st_size}
        }
        if with_profile:
            answer["open, profile"] = profile(partial(opening, path))
    return answer


# --- the answer -------------------------------------------------------------------------------------------------------


def measure(data: Path, runs: int = RUNS, parts: Iterable[str] = PARTS, *, with_profile: bool = True) -> Json:
    """All figures of the parts asked for."""
    answer: Json = {"machine": machine()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    if "simulate" in parts or "replay" in parts:
        with tempfile.TemporaryDirectory(prefix=".speed-", dir=RESULTS) as name:
            answer |= simulate_and_replay(Path(name), runs, parts, with_profile)
    if "core" in parts:
        answer |= core_alone(data, runs, with_profile)
    if "open" in parts:
        answer |= long_opening(data, runs, with_profile)
    answer["missed"] = missed(answer)
    return answer


def missed(answer: Json) -> list[str]:
    """Floors that were not reached, one sentence each."""
    sentences = []
    for name, (key, floor) in FLOORS.items():
        rate = _figure(answer, name, key)
        if rate is not None and rate < floor:
            sentences.append(f"{name}: {rate:,.0f} per second, the floor is {floor:,.0f}")
    small = _figure(answer, "core, 1,213 nodes", "per_cpu_s")
    large = _figure(answer, "core, 10,000 nodes", "per_cpu_s")
    if small is not None and large is not None and large < small * LARGE_SHARE:
        sentences.append(f"core, 10,000 nodes: {large:,.0f} per second, less than a third of {small:,.0f}")
    seconds = _figure(answer, "open", "normal_s")
    if seconds is not None and seconds >= OPEN_FLOOR_S:
        sentences.append(f"open: {seconds:.2f} s, the floor is {OPEN_FLOOR_S:g} s")
    return sentences


def _figure(answer: Json, name: str, key: str) -> float | None:
    part = answer.get(name)
    return float(part[key]) if isinstance(part, dict) else None


def sentences(answer: Json) -> str:
    """The figures for a person."""
    lines = []
    head = f"{'':36}{'size':>10} {'runs':>4} {'wall s':>8} {'cpu s':>8}"
    head = f"{head}   {'per wall s':>10} {'per cpu s':>10} {'normal':>10}"
    for name, part in answer.items():
        if name == "machine" and isinstance(part, dict):
            lines += [machine_sentence(part), head]
        elif isinstance(part, dict):
            lines.append(
                f"{name:36}{part['size']:10,} {part['runs']:4} {part['wall_s']:8.3f} {part['cpu_s']:8.3f}   "
                f"{part['per_wall_s']:10,} {part['per_cpu_s']:10,} {part['per_normal_s']:10,}"
            )
        elif name == "missed" and isinstance(part, list):
            lines += [f"missed       {sentence}" for sentence in part] or ["every floor was reached"]
        elif isinstance(part, list):
            lines += ["", name, *(f"    {line}" for line in part), ""]
        else:
            lines.append(f"{name:36}{part:10,}")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="speeds, and where the time goes")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = measure(data_path(), given.runs, given.only.split(","), with_profile=given.profile)
    keep("speed", answer)
    sys.stdout.write((json.dumps(answer, indent=2) if given.json else sentences(answer)) + "\n")


if __name__ == "__main__":
    main()
