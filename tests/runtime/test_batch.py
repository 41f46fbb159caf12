"""The collector is told to look rarely inside a batch, and is as before outside."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from controlplane.runtime.batch import YOUNG, rare_collection


@pytest.fixture(autouse=True)
def _as_python_has_it() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_inside_it_is_rare_and_what_was_there_is_left_out() -> None:
    with rare_collection():
        assert gc.get_threshold() == (YOUNG, 10, 10)
        assert gc.get_freeze_count() > 1_000
    assert gc.get_threshold() == (700, 10, 10)
    assert gc.get_freeze_count() == 0


def test_of_nested_ones_only_the_outermost_puts_it_back() -> None:
    with rare_collection():
        with rare_collection():
            pass
        assert gc.get_threshold() == (YOUNG, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_it_is_as_before_after_an_error() -> None:
    def fails() -> None:
        with rare_collection():
            raise ValueError("out")

    with pytest.raises(ValueError, match="out"):
        fails()
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((700, 10, 10), 0)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.set_threshold(0)
    with rare_collection():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold()[0] == 0


def test_cycles_are_still_found_inside() -> None:
    class Ring:
        gone = 0

        def __init__(self) -> None:
            self.ring = self

        def __del__(self) -> None:
            Ring.gone += 1

    with rare_collection():
        for _ in range(2 * YOUNG):
            Ring()
    assert Ring.gone > 0
