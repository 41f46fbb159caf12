"""The time of a diff in ``make bench``, and the limit that it must not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bench_diff import LIMITED, measure, missed, sentences
from tests.benchmarks.machine import keep


def test_a_limit_that_is_passed_is_named() -> None:
    answer: dict[str, object] = {candidate: {"normal_s": 60.0} for candidate in LIMITED}
    assert missed(answer) == []
    answer["random"] = {"normal_s": 60.1}
    assert missed(answer) == ["random"]


@pytest.mark.bench
def test_a_hundred_thousand_jobs_are_decided_again_in_a_minute(data_dir: Path) -> None:
    answer = measure(data_dir)
    keep("diff", answer)
    print(f"\n{sentences(answer)}")
    assert missed(answer) == []
