"""The speeds in ``make bench``, and the floors that they must not fall through."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bench_speed import measure, missed, sentences
from tests.benchmarks.machine import keep


def test_a_floor_that_is_not_reached_is_named() -> None:
    answer: dict[str, object] = {
        "simulate": {"per_cpu_s": 2_999},
        "core, 1,213 nodes": {"per_cpu_s": 15_000},
        "core, 10,000 nodes": {"per_cpu_s": 4_999},
        "open": {"normal_s": 2.0},
    }
    assert [sentence.partition(":")[0] for sentence in missed(answer)] == ["simulate", "core, 10,000 nodes", "open"]
    assert missed({"core, 1,213 nodes": {"per_cpu_s": 15_000}, "core, 10,000 nodes": {"per_cpu_s": 5_000}}) == []


@pytest.mark.bench
def test_the_speeds(data_dir: Path) -> None:
    answer = measure(data_dir)
    keep("speed", answer)
    print(f"\n{sentences(answer)}")
    assert missed(answer) == []
