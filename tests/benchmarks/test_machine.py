"""How figures are taken: what is timed and what is not, and what a profile says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.benchmarks.machine import CALIBRATED_PER_S, Run, Timing, machine, machine_sentence, profile, timed


def test_medians_are_over_runs_and_the_normal_one_takes_each_run_at_its_own_speed() -> None:
    half, full = CALIBRATED_PER_S / 2, float(CALIBRATED_PER_S)
    timing = Timing("answer", [Run(4.0, 2.0, half), Run(9.0, 1.0, full), Run(3.0, 3.0, half)])
    assert (timing.wall_s, timing.cpu_s, timing.normal_s) == (4.0, 2.0, 1.0)
    rates = timing.rates(100)
    assert (rates["per_wall_s"], rates["per_cpu_s"], rates["per_normal_s"]) == (25, 50, 100)


def test_every_run_is_prepared_anew_and_the_last_answer_is_kept() -> None:
    prepared: list[int] = []
    ran: list[int] = []

    def prepare() -> Callable[[], int]:
        prepared.append(len(prepared))

        def run() -> int:
            ran.append(prepared[-1])
            return prepared[-1]

        return run

    timing = timed(prepare, 3)
    assert (prepared, ran, timing.answer, len(timing.runs)) == ([0, 1, 2], [0, 1, 2], 2, 3)
    assert all(run.cpu_s >= 0 and run.calibration_per_s > 0 for run in timing.runs)


def test_a_profile_names_what_takes_the_time_first() -> None:
    def light() -> int:
        return 0

    def heavy() -> int:
        return sum([number * number for number in range(300_000)]) + light()

    lines = profile(heavy, most=3)[1:]
    assert len(lines) == 3
    assert "light" not in lines[0]
    shares = [float(line.partition("%")[0]) for line in lines]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) > 50


def test_the_machine_says_what_it_is() -> None:
    figures = machine()
    assert figures["cores"] >= 1  # type: ignore[operator]
    assert str(figures["python"]) in machine_sentence(figures)
    with pytest.raises(KeyError):
        machine_sentence({})
