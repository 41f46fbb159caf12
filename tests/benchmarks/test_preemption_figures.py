"""Cycles that take room from others in ``make bench``, and what they decide on a small cluster."""

from __future__ import annotations

import pytest

from tests.benchmarks.bench_preemption import FLOOR_S, PARTS, Full, measure, missed, sentences, taken
from tests.benchmarks.machine import keep

EXPECTED = {
    "one": (1, 1, 0),
    "gang": (1, 800, 0),
    "many": (256, 256, 0),
    "urgent": (1, 80, 0),
    "vain": (0, 0, 0),
    "surplus": (1, 0, 80),
}
"""(promises, gangs evicted, members of elastic gangs that leave)"""


def test_a_floor_that_is_not_reached_is_named() -> None:
    slow: dict[str, object] = {part: {"cold_cpu_s": FLOOR_S} for part in PARTS}
    assert [sentence.partition(":")[0] for sentence in missed(slow)] == list(PARTS)
    assert missed({part: {"cold_cpu_s": FLOOR_S - 0.001} for part in PARTS}) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_each_part_takes_what_it_says_and_deciding_again_takes_the_same(part: str) -> None:
    world = Full(200, part)
    first = world.cycle(cold=True)()
    assert tuple(taken(first).values()) == EXPECTED[part]
    for cold in (False, True):
        again = world.cycle(cold=cold)()
        assert [decision.payload for decision in again.decisions] == [decision.payload for decision in first.decisions]


@pytest.mark.bench
def test_room_is_taken_from_thousands_within_the_floor() -> None:
    answer = measure()
    keep("preemption", answer)
    print(f"\n{sentences(answer)}")
    for part, expected in EXPECTED.items():
        figures = answer[part]
        assert isinstance(figures, dict)
        assert (figures["promises"], figures["evicted"], figures["members_shrunk"]) == expected
    assert missed(answer) == []
