"""Whose turn it is, found in heaps, is what a walk over all queues finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.events import QueueConfigured
from controlplane.domain.queues import QueueSpec
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.turns import Turns, _Line
from tests.scheduler.core import GIB, Core, gpus

NAMES = ("a", "a1", "a2", "b", "b1", "b2", "b3", "c", "c1")
PARENTS = {"a1": "a", "a2": "a", "b1": "b", "b2": "b", "b3": "b2", "c1": "c"}
LEAVES = ("a1", "a2", "b1", "b3", "c1")
ASKS = st.sampled_from(
    (
        Role(name="w", cpu_milli=4_000, memory_bytes=GIB),
        Role(name="w", cpu_milli=1_000, memory_bytes=16 * GIB),
        Role(name="w", cpu_milli=500, memory_bytes=GIB, gpus=1),
        Role(name="w", cpu_milli=500, memory_bytes=GIB, gpus=8),
    )
)
JOBS = st.lists(st.tuples(st.sampled_from(LEAVES), ASKS, st.integers(0, 2)), max_size=24)
WEIGHTS = st.fixed_dictionaries({name: st.integers(0, 3) for name in NAMES})


def walked(turns: Turns) -> QueueNode | None:
    """The definition, one level after the other, over all children."""
    node, claims = turns._tree.root, turns._claims
    if not claims.below(node):
        return None
    remaining = tuple(claims.below(node))
    while node.children:
        ways = [(child, claim) for child in node.children for claim in claims.below(child) if claim in remaining]
        if len(ways) > 1 and len(claims.queues) > 1:
            ranks = [(turns.order(child, claim), child.name) for child, claim in ways]
            ways = [way for way, rank in zip(ways, ranks, strict=True) if rank == min(ranks)]
        node, remaining = ways[0][0], tuple(claim for _, claim in ways)
    return node


def play(weights: dict[str, int], rounds: list[list[tuple[str, Role, int]]]) -> int:
    """Cycles in each of which more jobs come; gives the number of turns that were compared."""
    core = Core(is_checked=False)
    core.home(**{f"n{number}": gpus(2, cpu=8_000, memory=32 * GIB) for number in range(3)})
    for name in NAMES:
        core.tell(QueueConfigured(spec=QueueSpec(name=name, parent=PARENTS.get(name), weight=weights[name])))
    compared = 0
    found = Turns.next_queue

    def both(turns: Turns) -> QueueNode | None:
        nonlocal compared
        compared += 1
        expected = walked(turns)
        assert found(turns) is expected
        return expected

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Turns, "next_queue", both)
        for jobs in rounds:
            for queue, role, priority in jobs:
                core.submit(JobSpec(name="j", queue=queue, priority=priority, roles=(role,)))
            core.cycle()
    return compared


@given(weights=WEIGHTS, rounds=st.lists(JOBS, min_size=1, max_size=3))
def test_heaps_find_what_a_walk_finds(weights: dict[str, int], rounds: list[list[tuple[str, Role, int]]]) -> None:
    assert play(weights, rounds) > 0


def test_a_rank_that_is_not_asked_again_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(queue, Role(name="w", cpu_milli=500, gpus=1), 0) for queue in LEAVES for _ in range(3)]
    weights = dict.fromkeys(NAMES, 1)
    play(weights, [jobs])
    asked = _Line.ask_again

    def once(line: _Line, child: QueueNode) -> None:
        if child.index not in line.stamps:
            asked(line, child)

    monkeypatch.setattr(_Line, "ask_again", once)
    with pytest.raises(AssertionError):
        play(weights, [jobs])
