"""Gangs that care where they are in ``make bench``, and the floor that they must not fall through."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_topology import GANGS, MEMBERS, ground, measure, sentences
from tests.benchmarks.machine import keep


def test_the_ground_places_the_same_gang_again_and_again() -> None:
    here = ground(160, {"preferred": "rack"})
    for cold in (True, False, True):
        seats = here.place(cold=cold)()
        assert seats is not None
        assert len({seat.row for seat in seats}) == MEMBERS // 8


@pytest.mark.bench
@pytest.mark.parametrize("nodes", [1_250, 10_000])
def test_a_gang_of_512_is_placed_in_milliseconds(nodes: int) -> None:
    answer = measure(nodes)
    print(f"\n{sentences(answer)}")
    keep(f"topology-{nodes}", answer)
    if nodes == 1_250:
        for name in GANGS:
            figures = answer[name]
            assert isinstance(figures, dict)
            assert figures["cold_ms"] < 20
