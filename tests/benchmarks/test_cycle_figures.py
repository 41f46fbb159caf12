"""Cycles over long queues in ``make bench``. Floors are those of scheduling in depth; what misses one is printed."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_cycle import Saturated, fairness, flat_queues, measure, missed, sentences, tree
from tests.benchmarks.machine import keep


def test_a_floor_that_is_not_reached_is_named() -> None:
    slow: dict[str, object] = {
        "cold": {"cold_s": 1.3, "warm_ms": 20.0},
        "memory": {"peak_bytes": 4 * 10**9},
        "fair": {"worst_queue": "g1-0", "worst_ppm": 14_000, "largest_job_ppm": 4_000},
    }
    assert len(missed(slow)) == 4
    quick: dict[str, object] = {
        "cold": {"cold_s": 1.29, "warm_ms": 19.9},
        "memory": {"peak_bytes": 4 * 10**9 - 1},
        "fair": {"worst_queue": "g1-0", "worst_ppm": 13_999, "largest_job_ppm": 4_000},
    }
    assert missed(quick) == []


def test_entitled_shares_are_all_of_the_cluster_and_follow_the_weights_level_by_level() -> None:
    specs, entitled = tree(groups=2, below=3)
    assert [spec.name for spec in specs if spec.parent == "company"] == ["g1", "g2"]
    assert sum(entitled.values()) == 1
    assert entitled["g2-2"] == 2 * entitled["g1-2"] == 3 * entitled["g2-0"]


def test_a_saturated_cluster_stays_full_and_no_queue_runs_dry() -> None:
    queues = flat_queues(3)
    world = Saturated(4, queues, [queue.name for queue in queues], 120)
    for _ in range(10):
        world.cycle()
        state = world.core.state
        assert state.used[0]["gpu"] == state.capacity["gpu"]
        assert all(count > 0 for count in state.pending)
        world.change(5)


@pytest.mark.slow
def test_use_follows_weights_on_a_small_tree() -> None:
    figures = fairness(nodes=60, warm_up=60, cycles=100, changed=20)
    assert figures["queues"] == 50
    assert missed({"fair": figures}) == [], figures


@pytest.mark.bench
def test_cycles_over_long_queues() -> None:
    answer = measure()
    keep("cycle", answer)
    print(f"\n{sentences(answer)}")
    fair = missed({"fair": answer["fair"]})
    assert fair == []
