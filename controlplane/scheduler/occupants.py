"""Gangs that sit, as a draft sees them: by row of the node column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controlplane.domain.ids import NodeId
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.state import Ask, Lease, Seat, State

SeatAt = tuple[int, Ask, tuple[int, ...], str]
"""(row, what it asks, its GPUs, flavor)"""


@dataclass(slots=True, eq=False)
class Occupant:
    """A gang that sits, with the instant at which it is expected to leave (``None``: nobody knows)."""

    queue: QueueNode
    seats: tuple[SeatAt, ...]
    end_ms: int | None = None


def occupant_of(
    state: State, rows: Mapping[NodeId, int], lease: Lease, members: Iterable[Seat] | None = None
) -> Occupant:
    """A lease as the draft sees it, or some of its members. Row -1 is a node that is not there any more, or has no room
    for it: what it holds there is in no figure."""
    queue = state.tree.by_name.get(lease.job.cls.spec.queue, state.tree.root)
    seats = tuple(
        (-1 if _is_crowded(state, lease, seat) else rows.get(seat.node, -1), seat.ask, seat.gpus, seat.flavor)
        for seat in (lease.seats if members is None else members)
    )
    return Occupant(queue, seats)


def _is_crowded(state: State, lease: Lease, seat: Seat) -> bool:
    node = state.nodes.get(seat.node)
    return node is not None and lease.id in node.crowded
