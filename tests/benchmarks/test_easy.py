"""The table of bench_easy on a few of its sequences, held against a reference simulation of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.intake import swf
from tests.benchmarks.bench_easy import FIRST, JOBS, PUBLISHED, Machine, rules_of
from tests.intake import test_published as reference

ORDERS = {"fcfs": reference.fcfs, "sjf": reference.sjf}
SEQUENCE = {("fcfs", "none"): 3, ("sjf", "none"): 0, ("fcfs", "easy"): 0, ("sjf", "easy"): 4}
"""Which of the ten sequences is run for each figure in every test run; the bench runs all."""


@pytest.mark.slow
@pytest.mark.parametrize(("order", "backfill"), PUBLISHED)
def test_one_sequence_of_each_figure_to_the_last_digit(order: str, backfill: str, data_dir: Path) -> None:
    """The reference reproduces the published mean over all ten, so each sequence must be the same as there."""
    first = FIRST[SEQUENCE[order, backfill]]
    jobs = swf.read_jobs(data_dir / "swf/lublin_256.swf.gz").jobs[first : first + JOBS]
    expected = reference.Machine(jobs, ORDERS[order], easy=backfill == "easy").mean_slowdown()
    assert Machine(jobs, rules_of(order, backfill)).mean_slowdown() == expected
