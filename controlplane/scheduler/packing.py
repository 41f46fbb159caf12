"""Putting a whole gang on a draft, or nothing.

Members are placed one after the other, each on its best node (highest score, then smallest node name). Alike members on
independent nodes cannot get into each other's way, so for a gang of one role this finds a place whenever there is one;
with several roles the larger members go first, and a gang that only an exchange would fit is refused.
A gang stays in one cluster: clusters are tried in the order of their best node for the first member.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.needs import INFEASIBLE, Column, Need, Scores
from controlplane.scheduler.quota import Key, QueueNode, available
from controlplane.scheduler.state import State

Mask = NDArray[np.bool_]


class Packer:
    """Places gangs of one cycle on its draft."""

    def __init__(self, state: State, agenda: Agenda, draft: Draft) -> None:
        self._kinds = state.kinds
        self._agenda = agenda
        self._draft = draft
        clusters = sorted({node.build.cluster for node in agenda.nodes})
        self._clusters = clusters
        self._cluster_of_row: Column | None = None
        self._flavor_of_row: Column | None = None
        self._flavors: list[str] = []

    def place(
        self, job: int, needs: tuple[Need, ...], queue: QueueNode, mask: Mask | None
    ) -> list[DraftSeat] | None:
        """Seats for all members, already sitting on the draft; ``None`` leaves the draft as it was.

        ``mask`` marks rows that the job may use at all; ``None`` is all of them.
        """
        members = sum(need.ask.role.count for need in needs)
        if members == 1 or len(self._clusters) < 2:
            return self._place_within(job, needs, queue, mask)
        for within in self._by_cluster(needs[0], mask):
            seats = self._place_within(job, needs, queue, within)
            if seats is not None:
                return seats
        return None

    def _by_cluster(self, need: Need, mask: Mask | None) -> list[Mask]:
        scores = _masked(need.row_scores(self._draft.column), mask)
        of_row = self._rows_by_cluster()
        ranked: list[tuple[int, int, Mask]] = []
        for index in range(len(self._clusters)):
            inside = of_row == index
            best = int(scores[inside].max(initial=INFEASIBLE))
            if best > INFEASIBLE:
                ranked.append((-best, index, inside if mask is None else inside & mask))
        return [within for _, _, within in sorted(ranked, key=lambda rank: rank[:2])]

    def _rows_by_cluster(self) -> Column:
        if self._cluster_of_row is None:
            index = {name: at for at, name in enumerate(self._clusters)}
            rows = (index[node.build.cluster] for node in self._agenda.nodes)
            self._cluster_of_row = np.fromiter(rows, dtype=np.int32, count=len(self._agenda.nodes))
        return self._cluster_of_row

    def _place_within(
        self, job: int, needs: tuple[Need, ...], queue: QueueNode, mask: Mask | None
    ) -> list[DraftSeat] | None:
        flavored = [key for key in queue.limited if key[0] != "any"]
        seats: list[DraftSeat] = []
        for need in needs:
            for ordinal in range(need.ask.role.count):
                allowed = self._allowed_flavors(need, queue, flavored, mask) if flavored else mask
                seat = self._seat(job, need, ordinal, allowed)
                if seat is None:
                    self._draft.stand_up(queue, seats)
                    return None
                self._draft.sit(queue, seat)
                seats.append(seat)
        return seats

    def _seat(self, job: int, need: Need, ordinal: int, mask: Mask | None) -> DraftSeat | None:
        scores = _masked(need.row_scores(self._draft.column), mask)
        column = self._draft.column.kinds
        if not scores.size:
            return None
        if need.is_per_node:
            rows = np.flatnonzero(scores > INFEASIBLE).tolist()
            row, gpus = need.best_of_nodes(job, rows, column, self._agenda.names)
            if row < 0:
                return None
            return DraftSeat(need, ordinal, row, int(column[row]), gpus, self._agenda.nodes[row].build.flavor)
        row = int(scores.argmax())
        if scores[row] == INFEASIBLE:
            return None
        kind = int(column[row])
        return DraftSeat(need, ordinal, row, kind, need.gpus(kind), self._agenda.nodes[row].build.flavor)

    def _allowed_flavors(self, need: Need, queue: QueueNode, keys: list[Key], mask: Mask | None) -> Mask:
        """Rows whose flavor the queue can still pay for with one more such member."""
        if self._flavor_of_row is None:
            self._flavors = sorted({node.build.flavor for node in self._agenda.nodes})
            index = {name: at for at, name in enumerate(self._flavors)}
            rows = (index[node.build.flavor] for node in self._agenda.nodes)
            self._flavor_of_row = np.fromiter(rows, dtype=np.int32, count=len(self._agenda.nodes))
        asked = dict(need.ask.resources)
        short = {
            key[0]
            for key in keys
            if asked.get(key[1], 0) and available(queue, key, self._draft.charged) < asked[key[1]]
        }
        allowed = np.fromiter((name not in short for name in self._flavors), dtype=np.bool_, count=len(self._flavors))
        by_row: Mask = allowed[self._flavor_of_row]
        return by_row if mask is None else by_row & mask


def _masked(scores: Scores, mask: Mask | None) -> Scores:
    return scores if mask is None else np.where(mask, scores, INFEASIBLE)
