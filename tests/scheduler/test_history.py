"""Decayed usage, exact: the formula of SCENARIOS A9 to the last digit that is kept, and what a rule sees of it."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.events import HistoryConfigured
from controlplane.domain.queues import HistorySpec
from controlplane.scheduler.history import KEPT, ONE, History, remaining
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.timers import next_due_ms
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

HALF = 500_000_000
WHOLE = 1_000_000_000
_TIMES = st.integers(1, 10**11)


def exact(elapsed_ms: int, half_life_ms: int) -> Decimal:
    """0.5^(elapsed / half-life), to eighty digits."""
    with localcontext() as context:
        context.prec = 80
        return (Decimal(elapsed_ms) / half_life_ms * Decimal("0.5").ln()).exp()


@given(st.integers(0, 10**12), _TIMES)
def test_what_remains_is_the_power_of_a_half_rounded_down(elapsed_ms: int, half_life_ms: int) -> None:
    """Kills: a table that begins at the wrong digit, a fraction that is read from the wrong end."""
    wanted = exact(elapsed_ms, half_life_ms) * ONE
    assert wanted - 130 <= remaining(elapsed_ms, half_life_ms) <= wanted


def test_whole_half_lives_are_exact() -> None:
    assert [remaining(k * 7, 7) for k in range(4)] == [ONE, ONE // 2, ONE // 4, ONE // 8]
    assert remaining(62 * 7, 7) == 1
    assert remaining(10**15, 1) == 0


@given(st.lists(st.integers(0, WHOLE), min_size=1, max_size=20), st.integers(1, 50), st.integers(1, 50))
def test_a9_interval_by_interval(shares: list[int], sample_ms: int, half_life_ms: int) -> None:
    """usage <- (1 - a) usage + a new, with a = 1 - 0.5^(s/h). Kills: a and 1 - a the other way round."""
    history = History(HistorySpec(half_life_ms=half_life_ms, sample_ms=sample_ms), 0)
    kept = exact(sample_ms, half_life_ms)
    wanted = Decimal(0)
    for at, share in enumerate(shares, start=1):
        history.fold(at * sample_ms, {"q": share})
        wanted = kept * wanted + (1 - kept) * share
        assert abs(Decimal(history.usage.get("q", 0)) / KEPT - wanted) < Decimal("0.0001")


@given(st.integers(0, WHOLE), st.integers(0, WHOLE), st.integers(1, 100))
def test_many_equal_intervals_are_one_step(before: int, share: int, intervals: int) -> None:
    spec = HistorySpec(half_life_ms=1_000, sample_ms=70)
    one, many = History(spec, 0, {"q": before * KEPT}), History(spec, 0, {"q": before * KEPT})
    one.fold(70 * intervals + 69, {"q": share})
    for at in range(1, intervals + 1):
        many.fold(70 * at, {"q": share})
    assert one.folded_ms == many.folded_ms == 70 * intervals
    assert abs(one.usage.get("q", 0) - many.usage.get("q", 0)) <= intervals + 1


def by_history(core_rules: PlainRules | None = None) -> Core:
    rules = core_rules or PlainRules(
        order_queue=lambda queue: (queue.weighted_history_ppb,),
        queue_order_reads=frozenset({"queue.weighted_history_ppb"}),
    )
    core = Core(rules)
    core.queue("a")
    core.queue("b")
    core.home(n=gpus(4))
    core.tell(HistoryConfigured(spec=HistorySpec(half_life_ms=1_000, sample_ms=1_000)))
    return core


def test_half_of_the_cluster_for_one_half_life_is_a_quarter_and_then_decays() -> None:
    core = by_history()
    running = core.submit(job(2, queue="a"))
    core.cycle(0)
    assert next_due_ms(core.state) == 1_000, "while something runs it is sampled"
    assert next_due_ms(restore(take(core.state))) == 1_000
    core.cycle(1_000)
    history = core.state.history
    assert history is not None
    assert history.ppb("a") == HALF // 2
    assert history.ppb("b") == 0
    core.cycle(2_000)
    assert history.ppb("a") == 3 * HALF // 4
    core.finish(running)
    assert next_due_ms(core.state) is None
    core.cycle(4_999)
    assert history.ppb("a") == 3 * HALF // 16, "two whole intervals, and what is begun waits"
    core.cycle(5_000)
    assert history.ppb("a") == 3 * HALF // 32


@pytest.mark.parametrize("is_remembered", [True, False])
def test_who_used_much_goes_second_where_it_is_remembered(is_remembered: bool) -> None:
    core = by_history()
    if not is_remembered:
        core.tell(HistoryConfigured())
    first = core.submit(job(4, queue="a"))
    core.cycle(0)
    core.cycle(3_000)
    core.finish(first)
    theirs, others = core.submit(job(4, queue="a")), core.submit(job(4, queue="b"))
    core.cycle(3_500)
    assert core.placed() == [others if is_remembered else theirs]


def test_another_half_life_keeps_what_is_remembered() -> None:
    core = by_history()
    core.submit(job(4, queue="a"))
    core.cycle(0)
    core.cycle(1_000)
    core.tell(HistoryConfigured(spec=HistorySpec(half_life_ms=500, sample_ms=500)))
    history = core.state.history
    assert history is not None
    assert history.ppb("a") == HALF
    core.cycle(1_500)
    assert history.ppb("a") == 3 * HALF // 2
