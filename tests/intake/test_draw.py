"""The drawn numbers are fixed for ever: a change here would change every generated workload and its golden digests."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.intake.draw import Draw, Weights, interpolate


def test_words_are_those_of_splitmix64() -> None:
    """The reference values of the published algorithm for seed 1234567."""
    draw = Draw(1234567)
    assert [draw.word() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_branches_depend_on_the_seed_and_the_label_only() -> None:
    draw = Draw(7)
    before = draw.branch("sizes").word()
    draw.word()
    assert draw.branch("sizes").word() == before
    assert draw.branch("hours").word() != before
    assert Draw(8).branch("sizes").word() != before


@given(st.integers(), st.integers(1, 2**64))
def test_bounded_draws_stay_below_the_bound(seed: int, bound: int) -> None:
    assert 0 <= Draw(seed).below(bound) < bound


@pytest.mark.parametrize("bound", [0, -1, 2**64 + 1])
def test_a_bound_outside_the_words_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="a bound is between"):
        Draw(0).below(bound)


def test_bounded_draws_are_uniform() -> None:
    draw = Draw(3)
    counts = Counter(draw.below(6) for _ in range(60_000))
    # Standard deviation of each count is 91.
    assert all(abs(counts[face] - 10_000) < 400 for face in range(6))


def test_rejection_keeps_a_bound_near_two_to_the_64_fair() -> None:
    """Without rejection, three quarters of 2^64 would be hit twice as often in a third of its values."""
    bound = 3 * 2**62
    draw = Draw(5)
    low = sum(1 for _ in range(30_000) if draw.below(bound) % 3 == 0)
    assert abs(low - 10_000) < 400


@given(st.integers(), st.lists(st.integers(), max_size=30))
def test_shuffling_keeps_the_items(seed: int, items: list[int]) -> None:
    assert sorted(Draw(seed).shuffled(items)) == sorted(items)


def test_every_order_is_equally_likely() -> None:
    counts = Counter("".join(Draw(seed).branch("order").shuffled("abc")) for seed in range(12_000))
    assert len(counts) == 6
    assert all(abs(count - 2_000) < 200 for count in counts.values())


def test_weights_are_proportions_and_zero_is_never_drawn() -> None:
    draw, weights = Draw(1), Weights([1, 0, 3])
    counts = Counter(weights.draw(draw) for _ in range(40_000))
    assert counts[1] == 0
    assert abs(counts[0] - 10_000) < 400


@pytest.mark.parametrize("wrong", [[], [0, 0], [2, -1]])
def test_weights_that_cannot_be_drawn_are_refused(wrong: list[int]) -> None:
    with pytest.raises(ValueError, match="weights"):
        Weights(wrong)


def test_interpolation_is_linear_between_and_constant_beyond() -> None:
    positions, values = (10, 20, 40), (100, 201, 0)
    assert [interpolate(positions, values, at) for at in (0, 10, 15, 20, 30, 39, 40, 99)] == [
        *(100, 100, 150, 201, 100, 10, 0, 0)
    ]
