"""The quota algebra against a model that tries, and the worked numbers of SCENARIOS A."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.queues import QueueSpec, Quota
from controlplane.scheduler import quota as algebra
from controlplane.scheduler.quota import (
    QueueTree,
    available,
    available_nominal,
    borrowed,
    charge,
    over_promised,
)
from tests.scheduler.naive_quota import TOP, NaiveQuota

KEY = ("any", "gpu")
MOST = 64
"""More than any tree drawn here could ever lend."""
Specs = dict[str, QueueSpec]

_LIMITS = st.none() | st.integers(0, 6)
_QUOTAS = st.builds(Quota, nominal=st.integers(0, 8), borrowing_limit=_LIMITS, lending_limit=_LIMITS)


@st.composite
def trees(draw: st.DrawFn) -> Specs:
    """Up to seven queues, each below the top or below one drawn before it, most of them with a quota."""
    specs: Specs = {}
    for number in range(draw(st.integers(1, 7))):
        name = f"q{number}"
        parent = draw(st.none() | st.sampled_from(sorted(specs))) if specs else None
        quota = draw(st.none() | _QUOTAS | _QUOTAS)
        specs[name] = QueueSpec(name=name, parent=parent, quotas={"any": {"gpu": quota}} if quota is not None else {})
    return specs


@st.composite
def usages(draw: st.DrawFn) -> tuple[Specs, list[tuple[str, int]]]:
    """A tree, and amounts charged to its queues one after the other."""
    specs = draw(trees())
    return specs, draw(st.lists(st.tuples(st.sampled_from(sorted(specs)), st.integers(0, 5)), max_size=12))


def used_by(charges: list[tuple[str, int]]) -> dict[str, int]:
    used: dict[str, int] = {}
    for name, amount in charges:
        used[name] = used.get(name, 0) + amount
    return used


def check_room(specs: Specs, charges: list[tuple[str, int]]) -> None:
    """What may still be used is what trying finds, wherever the usage so far is allowed."""
    tree = QueueTree(specs)
    charged = tree.empty_charges()
    naive = NaiveQuota(specs, KEY, {})
    for name, amount in charges:
        node = tree.by_name[name]
        if KEY not in node.limited:
            continue
        assert available(node, KEY, charged) == naive.room(name, MOST)
        take = min(amount, available(node, KEY, charged))
        charge(node, KEY, take, charged)
        naive = NaiveQuota(specs, KEY, {**naive.used, name: naive.used.get(name, 0) + take})
        assert naive.is_allowed()


@given(usages())
def test_what_may_still_be_used_is_what_trying_finds(drawn: tuple[Specs, list[tuple[str, int]]]) -> None:
    """Kills the mutants of :data:`MUTANTS`."""
    check_room(*drawn)


@given(usages())
def test_charges_overflow_as_the_naive_tree_says_and_come_back_in_any_order(
    drawn: tuple[Specs, list[tuple[str, int]]],
) -> None:
    """Kills: a charge that forgets to take back what overflowed."""
    specs, charges = drawn
    tree = QueueTree(specs)
    charged = tree.empty_charges()
    limited = [(name, amount) for name, amount in charges if KEY in tree.by_name[name].limited]
    for name, amount in limited:
        charge(tree.by_name[name], KEY, amount, charged)
    naive = NaiveQuota(specs, KEY, used_by(limited))
    assert {name: charged[node.index].get(KEY, 0) for name, node in tree.by_name.items()} == {
        name: naive.charge(name) for name in specs
    }
    for name, amount in sorted(limited):
        charge(tree.by_name[name], KEY, -amount, charged)
    assert charged == tree.empty_charges()


@given(trees())
def test_the_ceiling_of_a_queue_is_what_it_may_use_when_nobody_else_does(specs: Specs) -> None:
    """Kills: a ceiling that counts what a sibling does not lend."""
    tree = QueueTree(specs)
    naive = NaiveQuota(specs, KEY, {})
    for name, node in tree.by_name.items():
        if KEY in node.limited:
            assert node.cells[KEY].potential == naive.room(name, MOST)


@given(usages())
def test_nobody_uses_more_than_everybody_brings_in(drawn: tuple[Specs, list[tuple[str, int]]]) -> None:
    """Kills: guaranteed quota that is lent all the same."""
    specs, charges = drawn
    tree = QueueTree(specs)
    charged = tree.empty_charges()
    used = dict.fromkeys(specs, 0)
    for name, amount in charges:
        node = tree.by_name[name]
        if KEY in node.limited:
            take = max(0, min(amount, available(node, KEY, charged)))
            charge(node, KEY, take, charged)
            used[name] += take
    nominal = sum(quota.nominal for spec in specs.values() if (quota := spec.quotas.get("any", {}).get("gpu")))
    assert sum(used.values()) <= nominal
    assert charged[tree.root.index].get(KEY, 0) <= NaiveQuota(specs, KEY, used).pool(TOP)


# --- mutants ---------------------------------------------------------------------------------------------------------


def lends_everything(node: algebra.QueueNode, key: algebra.Key, charged: algebra.Charged) -> int:
    """``available`` without what a queue keeps for itself."""
    cell = node.cells[key]
    if node.parent is None:
        return cell.subtree - charged[node.index].get(key, 0)
    return lends_everything(node.parent, key, charged)


def borrows_without_limit(node: algebra.QueueNode, key: algebra.Key, charged: algebra.Charged) -> int:
    """``available`` without the borrowing limit."""
    cell = node.cells[key]
    used = charged[node.index].get(key, 0)
    if node.parent is None:
        return cell.subtree - used
    return max(0, cell.guaranteed - used) + borrows_without_limit(node.parent, key, charged)


def forgets_the_overflow(node: algebra.QueueNode, key: algebra.Key, charged: algebra.Charged) -> int:
    """``available`` that counts the borrowing limit anew at each question."""
    cell = node.cells[key]
    used = charged[node.index].get(key, 0)
    if node.parent is None:
        return cell.subtree - used
    above = forgets_the_overflow(node.parent, key, charged)
    if cell.borrowing_limit is not None:
        above = min(above, cell.subtree - cell.guaranteed + cell.borrowing_limit)
    return max(0, cell.guaranteed - used) + above


MUTANTS = (lends_everything, borrows_without_limit, forgets_the_overflow)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_wrong_algebra_would_be_seen(
    mutant: Callable[[algebra.QueueNode, algebra.Key, algebra.Charged], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "available", mutant)

    @settings(max_examples=2_000, derandomize=True, database=None)
    @given(usages())
    def search(drawn: tuple[Specs, list[tuple[str, int]]]) -> None:
        check_room(*drawn)

    with pytest.raises(AssertionError):
        search()


# --- worked numbers --------------------------------------------------------------------------------------------------


def queue(name: str, nominal: int, parent: str | None = None, **limits: int) -> QueueSpec:
    quota = Quota.model_validate({"nominal": nominal, **limits})
    return QueueSpec(name=name, parent=parent, quotas={"any": {"gpu": quota}})


def test_a6_below_nominal_nothing_is_borrowed_and_above_it_is_what_is_above() -> None:
    tree = QueueTree({"own": queue("own", 5), "lender": queue("lender", 5)})
    charged = tree.empty_charges()
    own = tree.by_name["own"]
    charge(own, KEY, 5, charged)
    assert (borrowed(own, KEY, charged), available(own, KEY, charged)) == (0, 5)
    charge(own, KEY, 2, charged)
    assert (borrowed(own, KEY, charged), available(own, KEY, charged)) == (2, 3)
    assert available_nominal(own, KEY, charged) == -2


def test_a8_promises_larger_than_capacity_are_named_with_both_amounts() -> None:
    tree = QueueTree({name: queue(name, 5) for name in ("a", "b", "c")})
    assert over_promised(tree, {KEY: 10}) == [(KEY, 15, 10)]
    assert over_promised(tree, {KEY: 15}) == []


def test_quota_lowered_below_what_is_used_leaves_less_than_nothing() -> None:
    tree = QueueTree({"a": queue("a", 2)})
    charged = tree.empty_charges()
    charge(tree.by_name["a"], KEY, 5, charged)
    assert available(tree.by_name["a"], KEY, charged) == -3


def test_a_key_that_nobody_above_lists_is_not_limited() -> None:
    tree = QueueTree({"a": queue("a", 2), "b": QueueSpec(name="b"), "c": QueueSpec(name="c", parent="a")})
    assert [tree.by_name[name].limited for name in "abc"] == [(KEY,), (), (KEY,)]


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ([QueueSpec(name="a", parent="b")], "queue 'a' is below 'b', which is not a queue; configure 'b' first"),
        (
            [QueueSpec(name="a", parent="b"), QueueSpec(name="b", parent="a")],
            "queue 'a' is below itself by way of 'a'; break the cycle",
        ),
        ([QueueSpec(name="a", parent="a")], "queue 'a' is below itself by way of 'a'; break the cycle"),
    ],
)
def test_a_tree_that_is_none_is_refused_in_a_sentence(specs: list[QueueSpec], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^" + sentence + r"$"):
        QueueTree({spec.name: spec for spec in specs})
