"""Our tables against the traces from which they were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.intake import calibrate, philly
from controlplane.intake.figures import MEASURED, POSITIONS, Figures, Quantiles
from controlplane.intake.traces import IntakeError


@pytest.fixture
def measured(data_dir: Path) -> Figures:
    return calibrate.measure(data_dir)


def test_the_tables_are_what_the_traces_say(measured: Figures) -> None:
    for field in Figures.__slots__:
        assert _close(getattr(MEASURED, field), getattr(measured, field)), field


def _close(ours: object, theirs: object) -> bool:
    """Equal to one per cent, number by number, and of the same form."""
    if isinstance(ours, int) and isinstance(theirs, int):
        return abs(ours - theirs) * 100 <= abs(theirs)
    if isinstance(ours, tuple) and isinstance(theirs, tuple):
        return len(ours) == len(theirs) and all(map(_close, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_close(ours[key], theirs[key]) for key in ours)
    return False


def test_the_comparison_can_fail() -> None:
    assert not _close((1, 100), (1, 102))
    assert not _close((1,), (1, 1))
    assert not _close({1: (5,)}, {2: (5,)})


def test_a_table_between_its_points_keeps_the_mean_of_the_trace(data_dir: Path) -> None:
    """Straight lines between quantiles must not invent load: the tail carries most of the GPU hours."""
    recorded = philly.read_rows(data_dir / calibrate.PHILLY)
    for size, table in MEASURED.runtimes_s.items():
        larger = min((other for other in MEASURED.runtimes_s if other > size), default=10**9)
        runs = [row.runtime_ms // 1_000 for row in recorded if size <= row.gpus < larger]
        assert abs(_mean(table) - sum(runs) // len(runs)) * 100 < 15 * _mean(table), size


def _mean(table: Quantiles) -> int:
    steps = zip(POSITIONS, POSITIONS[1:], table, table[1:], strict=False)
    return sum((right - left) * (low + high) for left, right, low, high in steps) // 2_000_000


def test_shares_add_up() -> None:
    for shares in (MEASURED.hours, MEASURED.weekdays, MEASURED.queue_shares):
        assert 999_900 < sum(shares) <= 1_000_000
    for table in (MEASURED.sizes, MEASURED.sweeps, MEASURED.fractions):
        assert 999_900 < sum(share for _, share in table) <= 1_000_000


def test_quantiles_rise_and_have_a_value_for_each_position() -> None:
    tables = (MEASURED.fraction_runtimes_s, MEASURED.cpu_runtimes_s, MEASURED.estimate_percent)
    for table in (*MEASURED.runtimes_s.values(), *tables):
        assert len(table) == len(POSITIONS)
        assert list(table) == sorted(table)


def test_without_the_traces_the_sentence_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(IntakeError, match=r"philly_jobs\.csv\.gz: cannot be read"):
        calibrate.measure(tmp_path)


def test_the_command_says_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate.main([]) == 2
    assert capsys.readouterr().err.startswith("give one argument: the folder of traces")
    assert calibrate.main([str(tmp_path)]) == 2
    assert "philly_jobs.csv.gz: cannot be read" in capsys.readouterr().err
