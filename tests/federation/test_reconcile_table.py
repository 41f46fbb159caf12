"""The tables are total, every action is reached, and the rules that must never break can be read off them."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from federation.port import SeenCapacityPhase, SeenPhase
from federation.reconcile import (
    CAPACITY_TABLE,
    LEASE_TABLE,
    Act,
    Action,
    CapacityAct,
    Wanted,
    reconcile,
    reconcile_capacity,
)

THERE = (SeenPhase.LAUNCHING, SeenPhase.RUNNING)
NOT_FOR_US = (Wanted.UNWANTED, Wanted.OVER, Wanted.SETTLED, Wanted.ORPHAN)
REPORTS = {Act.REPORT, Act.REPORT_LOST, Act.REPORT_ENDED}


def test_every_combination_has_a_cell() -> None:
    assert set(LEASE_TABLE) == set(product(Wanted, SeenPhase))
    assert set(CAPACITY_TABLE) == set(product(Wanted, SeenCapacityPhase))


def test_every_action_is_reached_through_reconcile() -> None:
    leases = {action.act for row, column in LEASE_TABLE for action in reconcile({"j1.1": row}, {"j1.1": column})}
    capacity = {
        action.act for row, column in CAPACITY_TABLE for action in reconcile_capacity({"c1.0": row}, {"c1.0": column})
    }
    assert leases == set(Act)
    assert capacity == set(CapacityAct)


def test_only_what_is_wanted_and_absent_is_launched() -> None:
    launches = {cell for cell, acts in LEASE_TABLE.items() if Act.LAUNCH in acts}
    requests = {cell for cell, acts in CAPACITY_TABLE.items() if CapacityAct.REQUEST in acts}
    assert launches == {(Wanted.WANTED, SeenPhase.ABSENT)}
    assert requests == {(Wanted.WANTED, SeenCapacityPhase.ABSENT)}


def test_what_is_there_and_not_wanted_is_ended_and_what_is_wanted_never_is() -> None:
    for row, column in product(Wanted, THERE):
        assert (Act.END in LEASE_TABLE[row, column]) == (row in NOT_FOR_US)
    for row, paid in product(Wanted, (SeenCapacityPhase.ASKED, SeenCapacityPhase.PROVIDED)):
        assert (CapacityAct.RELEASE in CAPACITY_TABLE[row, paid]) == (row in NOT_FOR_US)


def test_a_lease_is_reported_over_once_and_forgotten_only_when_that_is_in_the_log() -> None:
    for (row, column), acts in LEASE_TABLE.items():
        if row in (Wanted.OVER, Wanted.SETTLED):
            assert not REPORTS & set(acts), (row, column)
        if Act.FORGET in acts:
            assert row in (Wanted.SETTLED, Wanted.ORPHAN), (row, column)


def test_an_orphan_is_reported_before_it_is_ended() -> None:
    assert reconcile({}, {"j7.1": SeenPhase.RUNNING}) == [Action(Act.REPORT, "j7.1"), Action(Act.END, "j7.1")]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(Wanted)),
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(SeenPhase)),
)
def test_the_answer_for_one_lease_depends_on_that_lease_only(
    wanted: dict[str, Wanted], observed: dict[str, SeenPhase]
) -> None:
    """Kills: a table asked with the phase of another lease, orphans skipped when something is wanted."""
    together = reconcile(wanted, observed)
    for lease in sorted(wanted.keys() | observed.keys()):
        alone = reconcile(
            {lease: wanted[lease]} if lease in wanted else {}, {lease: observed[lease]} if lease in observed else {}
        )
        assert [action for action in together if action.lease == lease] == alone
