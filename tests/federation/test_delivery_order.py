"""F6: a message delivered twice, late or out of order; the cluster and the last reports end the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.events import Event, LeaseObserved
from federation.agent.capacity import CapacityBook
from federation.agent.leases import LeaseBook
from tests.federation.grounds import HOUR_MS, Beside, granted, released, requested, revoked

DECISIONS: tuple[Event, ...] = (
    granted(1),
    granted(2, nodes=("n1", "n2")),
    revoked(2),
    granted(3, nodes=("n3",)),
    granted(4, nodes=("n2",)),
    revoked(4),
    requested(0, deadline_ms=90 * HOUR_MS),
    requested(1, deadline_ms=90 * HOUR_MS),
    released(1),
)
End = tuple[list[str], list[str], dict[str, str]]


def end_of(deliveries: list[tuple[int, bool]]) -> End:
    """What runs, what is rented, and the last report of each lease, after delivering by index, with time between
    where the flag says so."""
    beside = Beside(end_delay_ms=1_000, launch_delay_ms=1_000)
    for index, lets_time_pass in deliveries:
        beside.agent.deliver(index + 1, DECISIONS[index])
        if lets_time_pass:
            beside.run(beside.now_ms + HOUR_MS // 4)
    beside.run(50 * HOUR_MS)
    last = {event.lease: event.phase.value for event in beside.events if isinstance(event, LeaseObserved)}
    world = beside.adapter.world
    return sorted(world.running(beside.now_ms)), sorted(world.rented(beside.now_ms)), dict(sorted(last.items()))


@st.composite
def disordered(draw: st.DrawFn) -> list[tuple[int, bool]]:
    repeats = draw(st.lists(st.integers(0, len(DECISIONS) - 1), max_size=8))
    order = draw(st.permutations([*range(len(DECISIONS)), *repeats]))
    return [(index, draw(st.booleans())) for index in order]


@given(disordered())
def test_disorder_and_repetition_change_nothing(deliveries: list[tuple[int, bool]]) -> None:
    """Kills: a grant after its revocation launches, a repeated request rents again, a repeated grant runs again."""
    running, rented, last = end_of(deliveries)
    assert running == ["j1.1", "j3.1"]
    assert rented == ["cloud/c1.0.0", "cloud/c1.0.1"]
    assert last == {"j1.1": "running", "j2.1": "ended", "j3.1": "running", "j4.1": "ended"}


def test_a_revocation_that_is_lost_when_it_comes_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    revoke = LeaseBook.revoke

    def revoke_known(book: LeaseBook, position: int, lease: str, grace_ms: int | None = None) -> None:
        if lease in book._records:
            revoke(book, position, lease, grace_ms)

    monkeypatch.setattr(LeaseBook, "revoke", revoke_known)
    with pytest.raises(AssertionError):
        test_disorder_and_repetition_change_nothing()


def test_a_release_that_is_lost_when_it_comes_first_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    release = CapacityBook.release

    def release_known(book: CapacityBook, request: str, cause: str) -> None:
        if request in book._records:
            release(book, request, cause)

    monkeypatch.setattr(CapacityBook, "release", release_known)
    with pytest.raises(AssertionError):
        test_disorder_and_repetition_change_nothing()
