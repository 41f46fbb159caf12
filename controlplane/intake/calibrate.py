"""Measures the figures of :mod:`controlplane.intake.figures` again, from the traces where the user has put them.

``python -m controlplane.intake.calibrate DIR`` prints them in the form in which they stand there. The generator never
reads a trace: this module is for whoever doubts its tables, or has newer traces.
"""

from __future__ import annotations

import pprint
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from controlplane.domain.quantities import MILLI, PPM
from controlplane.domain.workloads import Role
from controlplane.intake import openb, philly, swf
from controlplane.intake.figures import MEASURED, POSITIONS, Figures, Quantiles
from controlplane.intake.philly import PhillyRow
from controlplane.intake.traces import IntakeError, Outcome, TraceJob

PHILLY = "philly/philly_jobs.csv.gz"
OPENB = "openb/openb_pod_list_default.csv.gz"
HPC2N = "swf/HPC2N-2002-2.2-head.swf.gz"

SWEEP_GAP_MS = 10_000
"""Submissions of one virtual cluster, alike in size and no further apart than this, count as one sweep."""
_MS_PER_HOUR = 3_600_000
_MS_PER_DAY = 24 * _MS_PER_HOUR
_MIB = 2**20
_SHAPES = 6
"""So many of the commonest shapes are kept of each kind."""


def measure(directory: Path) -> Figures:
    """The figures as the traces below ``directory`` give them. Raises ``IntakeError`` for a trace that is not there."""
    recorded = philly.read_rows(directory / PHILLY)
    pods = openb.read_pods(directory / OPENB)
    kinds = _by_kind(pods)
    days = [row.submitted_ms // _MS_PER_DAY for row in recorded]
    sizes = Counter(row.gpus for row in recorded)
    asked = [job for job in swf.read_jobs(directory / HPC2N).jobs if job.runtime_ms and job.spec.estimate_ms]
    return Figures(
        hours=_shares(row.submitted_ms % _MS_PER_DAY // _MS_PER_HOUR for row in recorded),
        weekdays=_shares((day - 1) % 7 for day in days),
        sweeps=_sweeps(recorded),
        queue_shares=tuple(sorted(_shares(row.cluster for row in recorded), reverse=True)),
        sizes=tuple(zip(sorted(sizes), _shares(row.gpus for row in recorded), strict=True)),
        runtimes_s={size: _runtimes(recorded, size) for size in MEASURED.runtimes_s},
        fraction_runtimes_s=_quantiles(_seconds(kinds["fraction"])),
        cpu_runtimes_s=_quantiles(_seconds(kinds["cpu"])),
        fractions=_fractions(kinds["fraction"]),
        whole_shapes=_shapes(kinds["whole"]),
        fraction_shapes=_shapes(kinds["fraction"]),
        cpu_shapes=_shapes(kinds["cpu"]),
        cpu_only_ppm=len(kinds["cpu"]) * PPM // len(pods),
        fraction_ppm=len(kinds["fraction"]) * PPM // sum(1 for pod in pods if pod.spec.roles[0].gpus == 1),
        failed_ppm=sum(1 for pod in pods if pod.outcome is Outcome.FAILED) * PPM // sum(map(_has_run, pods)),
        estimate_percent=_quantiles([(job.spec.estimate_ms or 0) * 100 // (job.runtime_ms or 1) for job in asked]),
    )


def _has_run(job: TraceJob) -> bool:
    return job.outcome is not Outcome.CANCELLED


def _seconds(jobs: Iterable[TraceJob]) -> list[int]:
    return [job.runtime_ms // 1_000 for job in jobs if job.runtime_ms is not None and _has_run(job)]


def _by_kind(pods: Iterable[TraceJob]) -> dict[str, list[TraceJob]]:
    kinds: dict[str, list[TraceJob]] = {"cpu": [], "fraction": [], "whole": []}
    for pod in pods:
        role = pod.spec.roles[0]
        kinds["cpu" if not role.gpus else "fraction" if role.gpu_milli < MILLI else "whole"].append(pod)
    return kinds


def _shares(keys: Iterable[int] | Iterable[str]) -> tuple[int, ...]:
    """Parts per million of each key, in the order of the keys."""
    counts: Counter[int | str] = Counter(keys)
    total = counts.total()
    return tuple(counts[key] * PPM // total for key in sorted(counts, key=lambda key: (str(type(key)), key)))


def _sweeps(recorded: Sequence[PhillyRow]) -> tuple[tuple[int, int], ...]:
    """(size, parts per million) of the sweeps; a size stands for all up to the next."""
    lengths: list[int] = []
    latest: dict[tuple[str, int], tuple[int, int]] = {}
    for row in recorded:
        key = (row.cluster, row.gpus)
        at_ms, length = latest.get(key, (row.submitted_ms, 0))
        if row.submitted_ms - at_ms > SWEEP_GAP_MS:
            lengths.append(length)
            length = 0
        latest[key] = (row.submitted_ms, length + 1)
    lengths.extend(length for _, length in latest.values())
    starts = [size for size, _ in MEASURED.sweeps]
    counts = [
        sum(1 for each in lengths if low <= each < high) for low, high in zip(starts, [*starts[1:], 10**9], strict=True)
    ]
    return tuple((size, count * PPM // len(lengths)) for size, count in zip(starts, counts, strict=True))


def _runtimes(recorded: Iterable[PhillyRow], size: int) -> Quantiles:
    """Of the jobs of ``size`` GPUs and up to the next class."""
    larger = [other for other in MEASURED.runtimes_s if other > size]
    return _quantiles([row.runtime_ms // 1_000 for row in recorded if size <= row.gpus < min(larger, default=10**9)])


def _quantiles(values: Iterable[int]) -> Quantiles:
    ordered = sorted(values)
    return tuple(ordered[at * (len(ordered) - 1) // PPM] for at in POSITIONS)


def _fractions(jobs: Sequence[TraceJob]) -> tuple[tuple[int, int], ...]:
    counts = Counter(job.spec.roles[0].gpu_milli for job in jobs)
    return tuple((milli, counts[milli] * PPM // len(jobs)) for milli in sorted(counts))


def _shapes(jobs: Iterable[TraceJob]) -> tuple[tuple[int, int, int], ...]:
    """The commonest (milli-CPU, MiB, parts per million), amounts per GPU where there are several."""

    def shape(role: Role) -> tuple[int, int]:
        each = role.gpus or 1
        return role.cpu_milli // each, role.memory_bytes // _MIB // each

    counts = Counter(shape(job.spec.roles[0]) for job in jobs)
    commonest = sorted(counts, key=lambda key: (-counts[key], key))[:_SHAPES]
    total = sum(counts[key] for key in commonest)
    return tuple((cpu, memory, counts[cpu, memory] * PPM // total) for cpu, memory in commonest)


def main(arguments: Sequence[str]) -> int:
    """Prints the figures; the exit code is 2 with a sentence for wrong use or a trace that cannot be read."""
    if len(arguments) != 1:
        sys.stderr.write("give one argument: the folder of traces, in which openb, philly and swf lie\n")
        return 2
    try:
        figures = measure(Path(arguments[0]))
    except IntakeError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(pprint.pformat(figures, width=116, compact=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
