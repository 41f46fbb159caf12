"""Amounts, bounds, ids and reasons: is this value what it says?"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controlplane.domain.clusters import Budget, ClusterSpec, NodeShape, Offer, Site
from controlplane.domain.ids import JobId, job_label, job_of_lease, lease_id, parse_job_label
from controlplane.domain.quantities import (
    MAX_AMOUNT,
    MAX_GPUS_PER_NODE,
    MAX_MEMBERS,
    MS_PER_HOUR,
    PPB,
    ceil_div,
    cost_micro_usd,
    share_ppb,
)
from controlplane.domain.reasons import NEVER, Reason
from controlplane.domain.workloads import JobSpec, Role

AMOUNTS = st.integers(0, MAX_AMOUNT)


# --- rounding --------------------------------------------------------------------------------------------------------


@given(AMOUNTS, st.integers(1, MAX_AMOUNT))
def test_division_rounds_up_and_by_less_than_one(numerator: int, denominator: int) -> None:
    """Kills: rounding down, rounding to nearest, floats."""
    exact = Fraction(numerator, denominator)
    assert exact <= ceil_div(numerator, denominator) < exact + 1


@given(AMOUNTS, AMOUNTS)
def test_using_anything_is_never_a_share_of_zero(used: int, total: int) -> None:
    """SCENARIOS A6. Kills: a share that rounds down."""
    share = share_ppb(used, total)
    assert (share == 0) == (used == 0)
    assert share <= MAX_AMOUNT
    if total:
        assert share == MAX_AMOUNT or Fraction(used, total) * PPB <= share < Fraction(used, total) * PPB + 1


@given(AMOUNTS, AMOUNTS, st.integers(0, 10**9), st.integers(0, 10**9))
def test_a_promise_is_never_smaller_than_the_sum_of_its_bills(price: int, other: int, first: int, second: int) -> None:
    """Kills: rounding a price down."""
    whole = cost_micro_usd(price, first + second)
    assert whole * MS_PER_HOUR >= price * (first + second)
    assert whole <= cost_micro_usd(price, first) + cost_micro_usd(price, second) <= whole + 1
    assert cost_micro_usd(min(price, other), first) <= cost_micro_usd(max(price, other), first)


@pytest.mark.parametrize(
    ("used", "total", "share"),
    [(0, 0, 0), (0, 9, 0), (1, 0, MAX_AMOUNT), (2, 3, 666_666_667), (9, 9, PPB), (1, 1_000, 1_000_000)],
)
def test_shares_of_known_value(used: int, total: int, share: int) -> None:
    assert share_ppb(used, total) == share


# --- bounds ----------------------------------------------------------------------------------------------------------


def spec(**role: object) -> JobSpec:
    return JobSpec(name="a", queue="q", roles=(Role.model_validate(role),))


@pytest.mark.parametrize(
    ("role", "field"),
    [
        ({"count": 0}, "count"),
        ({"count": -1}, "count"),
        ({"count": 1_000_000}, "count"),
        ({"count": 1.0}, "count"),
        ({"count": True}, "count"),
        ({"gpus": -1}, "gpus"),
        ({"gpus": MAX_GPUS_PER_NODE + 1}, "gpus"),
        ({"gpus": 10**12}, "gpus"),
        ({"gpus": 1, "gpu_milli": 0}, "gpu_milli"),
        ({"gpus": 1, "gpu_milli": 1_001}, "gpu_milli"),
        ({"cpu_milli": MAX_AMOUNT + 1}, "cpu_milli"),
        ({"memory_bytes": "1"}, "memory_bytes"),
        ({"name": "with space"}, "name"),
        ({"name": ""}, "name"),
        ({"gpuz": 1}, "gpuz"),
    ],
)
def test_a_role_out_of_bounds_is_refused_by_field(role: dict[str, object], field: str) -> None:
    """SCENARIOS B8."""
    with pytest.raises(ValidationError) as refused:
        spec(**role)
    assert refused.value.errors()[0]["loc"][-1] == field


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        (({"gpus": 2, "gpu_milli": 500},), "a fraction of a GPU .* needs gpus: 1"),
        (({"name": "a"}, {"name": "a"}), "two roles of one job have the same name"),
        (
            ({"name": "a", "count": MAX_MEMBERS}, {"name": "b"}),
            "a gang has at most 100,000 members, this one has 100,001",
        ),
        (({"count": MAX_MEMBERS, "memory_bytes": MAX_AMOUNT},), "of memory in all, more than 9,007,199,254,740,991"),
        (({"count": 2, "other": {"licence": MAX_AMOUNT}},), "of licence in all"),
    ],
)
def test_a_gang_out_of_bounds_is_refused_in_a_sentence(roles: tuple[dict[str, object], ...], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        JobSpec(name="a", queue="q", roles=tuple(Role.model_validate(role) for role in roles))


def offer(name: str) -> Offer:
    shape = NodeShape(cpu_milli=1, memory_bytes=1)
    return Offer(name=name, flavor="f", shape=shape, price_micro_usd_per_hour=1, lead_time_ms=0, max_nodes=1)


def test_only_clouds_offer_and_each_offer_once() -> None:
    with pytest.raises(ValidationError, match="only a cloud cluster has offers"):
        ClusterSpec(name="c", offers=(offer("o"),))
    with pytest.raises(ValidationError, match="two offers of one cluster have the same name"):
        ClusterSpec(name="c", site=Site.CLOUD, offers=(offer("o"), offer("o")))


def test_gpus_have_a_model_and_windows_a_length() -> None:
    with pytest.raises(ValidationError, match="names their model"):
        NodeShape(cpu_milli=1, memory_bytes=1, gpus=1)
    with pytest.raises(ValidationError):
        Budget(name="b", limit_micro_usd=1, window_ms=0)


def test_what_is_written_down_cannot_be_changed() -> None:
    written = spec()
    with pytest.raises(ValidationError, match="frozen"):
        written.priority = 5  # type: ignore[misc]


# --- ids -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, MAX_AMOUNT), st.integers(1, 1_000))
def test_ids_come_back(number: int, attempt: int) -> None:
    """Kills: a lease that names another job."""
    assert parse_job_label(job_label(JobId(number))) == number
    assert job_of_lease(lease_id(JobId(number), attempt)) == number


@pytest.mark.parametrize("text", ["", "j", "j0", "j01", "12", "J12", "j1.1", "j-1", "j1\n", " j1", "j१"])
def test_what_is_no_job_is_no_job(text: str) -> None:
    assert parse_job_label(text) is None


# --- reasons ---------------------------------------------------------------------------------------------------------


def test_reasons_stand_in_the_order_of_who_must_act() -> None:
    assert [reason.slug for reason in sorted(Reason)] == [reason.slug for reason in Reason]
    assert len({int(reason) for reason in Reason}) == len(Reason)
    assert max(reason for reason in Reason if reason in NEVER) < Reason.QUEUE_HELD
    assert min(Reason.QUOTA, Reason.CAPACITY) == Reason.QUOTA


NUMBERS = {
    "RULE_FAILED": 5,
    "REFUSED_BY_POLICY": 10,
    "UNKNOWN_QUEUE": 15,
    "EXCEEDS_QUOTA_CEILING": 20,
    "NO_NODE_OF_MODEL": 25,
    "EXCEEDS_EVERY_NODE": 30,
    "EXCEEDS_CAPACITY": 35,
    "NOT_ELIGIBLE": 40,
    "QUEUE_HELD": 45,
    "QUOTA": 50,
    "BUDGET": 55,
    "CAPACITY": 60,
    "PROVISIONING": 65,
}


def test_numbers_that_were_written_to_logs_keep_their_meaning() -> None:
    assert {name: int(Reason[name]) for name in NUMBERS} == NUMBERS
