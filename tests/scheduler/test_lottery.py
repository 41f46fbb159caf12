"""Tickets of all nodes at once are those of one after the other; a rule that is the ticket is asked of few nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.events import LeaseGranted
from controlplane.scheduler.facts import CandidateFacts, NodeFacts
from controlplane.scheduler.lottery import Tickets, draw, lottery
from tests.scheduler.core import Core, gpus, job
from tests.twins.plain_rules import PlainRules

_NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=40, unique=True)


@given(names=_NAMES, job_id=st.integers(1, 2**53), gpus_=st.integers(0, 3))
def test_the_largest_ticket_is_among_those_that_are_kept(names: list[str], job_id: int, gpus_: int) -> None:
    kept = Tickets(names).best(job_id, range(len(names)))
    uppers = [lottery(job_id, name, -1) >> 31 for name in names]
    assert kept == [row for row, upper in enumerate(uppers) if upper == max(uppers)]
    tickets = {(row, gpu): lottery(job_id, names[row], gpu) for row in range(len(names)) for gpu in range(gpus_ + 1)}
    assert max(tickets, key=lambda at: tickets[at])[0] in kept


def test_tickets_of_the_same_list_are_drawn_once_and_of_another_anew() -> None:
    names, others = ["a", "b"], ["a", "c"]
    assert draw(names) is draw(names)
    assert draw(others) is not draw(names)
    assert draw(others).best(1, [1]) == [1]


def by_ticket(*, is_known: bool) -> PlainRules:
    def score(after: NodeFacts, candidate: CandidateFacts | None) -> int:
        assert candidate is not None
        return candidate.lottery

    return PlainRules(
        scoring_reads=frozenset({"candidate.lottery"}),
        scoring_field="candidate.lottery" if is_known else None,
        score=score,
    )


def played(rules: PlainRules) -> list[tuple[str, tuple[int, ...]]]:
    core = Core(rules, is_checked=False)
    core.queue("team")
    core.home(**{f"n{number:02d}": gpus(4) for number in range(25)})
    for number in range(60):
        core.submit(job(1, gpu_milli=(250, 600, 1_000)[number % 3]))
    core.cycle(1)
    return [(event.members[0].node, event.members[0].gpus) for event in core.last(LeaseGranted)]


def test_a_rule_that_is_the_ticket_places_alike_and_is_asked_little() -> None:
    known, unknown = by_ticket(is_known=True), by_ticket(is_known=False)
    places = played(known)
    assert places == played(unknown)
    assert len({node for node, _ in places}) > 15
    assert known.asked["scoring"] * 5 < unknown.asked["scoring"]


@pytest.mark.parametrize("count", [1, 4])
def test_a_single_node_needs_no_draw(count: int) -> None:
    core = Core(by_ticket(is_known=True))
    core.queue("team")
    core.home(only=gpus(4))
    placed = core.submit(job(count))
    core.cycle(1)
    assert core.placed() == [placed]
