"""What a figure was measured on, and how: clocks, medians, profiles, and where the JSON goes.

A shared machine is slower at one moment than at the next, and other work stretches wall time without end. So a figure
is taken from the processor time of this process, and a loop of plain Python is timed right before and after each run:
its rate says how fast one core was just then. A speed is given by wall time, by processor time, and by the latter as
it would have been on a core that runs the loop at ``CALIBRATED_PER_S`` ("normal", to compare readings of different
hours); floors of one core's speed are held against the processor time.
"""

from __future__ import annotations

import cProfile
import gc
import json
import os
import platform
import pstats
import resource
import sqlite3
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
Json = dict[str, object]

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS = ROOT / "out" / "bench"

CALIBRATION_ROUNDS = 600_000
CALIBRATED_PER_S = 20_000_000
"""Rounds of the loop in a second on the two-core virtual machine of the first figures, when nothing else ran on it
(20.7 million; 14 to 17 million when its other core was busy)."""


def machine() -> Json:
    """The machine's figures, as far as it tells them."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "system": f"{platform.system()} {platform.machine()}",
        "sqlite": sqlite3.sqlite_version,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "calibration_per_s": round(calibration_per_s()),
        "calibrated_to_per_s": CALIBRATED_PER_S,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.processor() or "unknown")


def calibration_per_s() -> float:
    """Rounds per second of processor time of a loop of small integers: the speed of one core at this moment."""
    start = time.process_time()
    total = 0
    for number in range(CALIBRATION_ROUNDS):
        total += number * number % 7
    return CALIBRATION_ROUNDS / (time.process_time() - start)


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run."""

    wall_s: float
    cpu_s: float
    calibration_per_s: float
    """Of the loop around this run."""


@dataclass(slots=True)
class Timing(Generic[T]):
    """Several runs of one thing. ``answer`` is what the last one gave."""

    answer: T
    runs: list[Run] = field(default_factory=list)

    @property
    def cpu_s(self) -> float:
        """Median of processor time."""
        return statistics.median(run.cpu_s for run in self.runs)

    @property
    def wall_s(self) -> float:
        """Median of wall time."""
        return statistics.median(run.wall_s for run in self.runs)

    @property
    def normal_s(self) -> float:
        """Median of processor time as it would have been at the calibrated speed."""
        return statistics.median(run.cpu_s * run.calibration_per_s / CALIBRATED_PER_S for run in self.runs)

    def rates(self, size: int) -> Json:
        """Things per second."""
        return {
            "size": size,
            "runs": len(self.runs),
            "wall_s": round(self.wall_s, 4),
            "cpu_s": round(self.cpu_s, 4),
            "per_wall_s": round(size / self.wall_s),
            "per_cpu_s": round(size / self.cpu_s),
            "per_normal_s": round(size / self.normal_s),
        }


def timed(prepare: Callable[[], Callable[[], T]], runs: int) -> Timing[T]:
    """Time what ``prepare`` gives back, several times; the preparing is not timed. Garbage of earlier runs is collected
    before, so that no run pays for another; collecting during a run is the run's own affair."""
    timing: Timing[T] | None = None
    for _ in range(runs):
        run = prepare()
        gc.collect()
        before = calibration_per_s()
        wall, cpu = time.perf_counter(), time.process_time()
        answer = run()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        if timing is None:
            timing = Timing(answer)
        timing.answer = answer
        timing.runs.append(Run(wall, cpu, (before + calibration_per_s()) / 2))
    assert timing is not None, "nothing was run"
    return timing


def profile(run: Callable[[], object], most: int = 15) -> list[str]:
    """Where the time goes: functions by their own time, as lines of ``share own cumulative calls where``. The profiler
    slows small functions most, so the shares point and do not measure."""
    profiler = cProfile.Profile()
    profiler.runcall(run)
    stats = pstats.Stats(profiler)
    total: float = stats.total_tt  # type: ignore[attr-defined]
    rows: list[tuple[float, float, int, str]] = []
    for (file, line, name), (_, calls, own, cumulative, _) in stats.stats.items():  # type: ignore[attr-defined]
        rows.append((own, cumulative, calls, _where(file, line, name)))
    rows.sort(key=lambda row: (-row[0], row[3]))
    lines = [f"{'share':>6} {'own s':>8} {'with s':>8} {'calls':>9}  function"]
    for own, cumulative, calls, where in rows[:most]:
        lines.append(f"{100 * own / total:5.1f}% {own:8.3f} {cumulative:8.3f} {calls:9,d}  {where}")
    return lines


def _where(file: str, line: int, name: str) -> str:
    if file == "~":
        return name.strip("<>")
    path = Path(file)
    inside = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    parts = inside.parts
    short = "/".join(parts[parts.index("site-packages") + 1 :] if "site-packages" in parts else parts[-3:])
    return f"{short}:{line} {name}"


def keep(name: str, answer: Json) -> Path:
    """Keep an answer as ``out/bench/<name>.json``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(answer, indent=2) + "\n", encoding="utf-8")
    return path


def machine_sentence(figures: Json) -> str:
    """The machine's figures in one line."""
    return (
        f"{figures['cpu']}, {figures['cores']} cores, {figures['implementation']} {figures['python']}, "
        f"{figures['system']}, SQLite {figures['sqlite']}, load {figures['load_average']}, "
        f"calibration {figures['calibration_per_s']:,} of {figures['calibrated_to_per_s']:,} rounds/s"
    )
