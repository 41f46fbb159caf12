"""How long ``policy diff`` takes over a log of 100,000 jobs, exact to the end and simulated from the first cycle on.

    python -m tests.benchmarks.bench_diff [--json]

The log is that of :mod:`tests.benchmarks.long_log`, shorter: pods of openb on its 1,213 nodes, of which 7,000 run at
any time, under best-fit. Against best-fit every cycle is decided again and agrees; against another scoring nearly all
of it is simulated. ``replay --verify`` of the same log stands beside them: a diff reads the log once more than it, and
keeps what every job and every decision came to.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from controlplane.audit.diff import diff
from controlplane.audit.diff_report import DiffReport
from controlplane.audit.replay import replay
from controlplane.eventlog import open_log
from controlplane.policy.bundle import load_bundle, read_bundle_folder
from tests.benchmarks.long_log import long_log
from tests.benchmarks.machine import ROOT, Json, keep, machine, machine_sentence, peak_bytes, timed
from tests.conftest import data_path

EVENTS = 400_000
"""Four for each job: submitted, placed, running, finished."""
LIMIT_S = 60.0
"""Of one diff, at the calibrated speed of a core."""
LIMITED = ("best-fit", "random")
CANDIDATES = (*LIMITED, "fragmentation-descent")
"""The last measures fragmentation for every node that it looks at, which costs the core more than all the rest."""


def diffed(path: Path, candidate: str) -> DiffReport:
    """One diff of the log."""
    bundle = load_bundle(read_bundle_folder(ROOT / "policies" / "examples" / candidate))
    with open_log(str(path), create=False, read_only=True) as log:
        return diff(log, bundle)


def verified(path: Path) -> None:
    """One verification of the log."""
    with open_log(str(path), create=False, read_only=True) as log:
        assert replay(log, verify=True).ok


def measure(data: Path) -> Json:
    """All figures, JSON-ready."""
    path = long_log(data, ROOT / "out" / "bench", EVENTS)
    verifying = timed(lambda: partial(verified, path), 1)
    answer: Json = {"machine": machine(), "replay --verify": {"cpu_s": round(verifying.cpu_s, 1)}}
    for candidate in CANDIDATES:
        timing = timed(partial(_run, path, candidate), 1)
        report = timing.answer
        answer[candidate] = {
            **timing.rates(report.recorded.jobs["seen"]),
            "normal_s": round(timing.normal_s, 1),
            "times_verify": round(timing.normal_s / verifying.normal_s, 2),
            "exact_cycles": report.exact_cycles,
            "changed": report.changed,
        }
    answer["peak_bytes"] = peak_bytes()
    return answer


def _run(path: Path, candidate: str) -> Callable[[], DiffReport]:
    return partial(diffed, path, candidate)


def sentences(answer: Json) -> str:
    """The figures for a person."""
    lines = [machine_sentence(answer["machine"])]  # type: ignore[arg-type]
    for candidate in CANDIDATES:
        of = answer[candidate]
        assert isinstance(of, dict)
        lines.append(
            f"against {candidate}: {of['size']:,} jobs in {of['cpu_s']:.1f} s of processor time ({of['wall_s']:.1f} s, "
            f"{of['normal_s']:.1f} s at the calibrated speed), {of['times_verify']} times replay --verify; "
            f"{of['exact_cycles']:,} cycles exact, {of['changed']:,} decisions changed"
        )
    return "\n".join(lines)


def missed(answer: Json) -> list[str]:
    """The candidates for which it took too long."""
    times = ((candidate, answer[candidate]) for candidate in LIMITED)
    return [candidate for candidate, of in times if isinstance(of, dict) and of["normal_s"] > LIMIT_S]


def main() -> int:
    """Measure, print, and keep the answer."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    answer = measure(data_path())
    keep("diff", answer)
    print(json.dumps(answer, indent=2) if asked.json else sentences(answer))
    return 1 if missed(answer) else 0


if __name__ == "__main__":
    sys.exit(main())
