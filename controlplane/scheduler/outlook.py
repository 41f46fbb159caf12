"""Why a gang does not fit: can it ever, on the nodes that there are, or is it only a matter of what is free?"""

from __future__ import annotations

import numpy as np

from controlplane.domain.reasons import Reason
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.needs import INFEASIBLE, Column, Need, could_ever_fit
from controlplane.scheduler.state import State


class Outlook:
    """Answers for the nodes as they would be if nothing ran on them. Verdicts are kept on the agenda until the set of
    nodes changes."""

    def __init__(self, state: State, agenda: Agenda) -> None:
        self._state = state
        self._agenda = agenda

    def reason(self, needs: tuple[Need, ...], gang: tuple[tuple[str, int], ...]) -> Reason:
        """``CAPACITY`` when the gang would fit the empty clusters, else the first of the reasons why it never will."""
        known = self._agenda.outlooks.get(needs)
        if known is None:
            known = self._agenda.outlooks[needs] = self._reason(needs, gang)
        return known

    def _reason(self, needs: tuple[Need, ...], gang: tuple[tuple[str, int], ...]) -> Reason:
        column = self._agenda.empty_nodes(self._state)
        for need in needs:
            scores = need.scores(column)
            if not scores.size or int(scores.max()) == INFEASIBLE:
                return self._why_never(need, column)
        if len(needs) == 1 and needs[0].ask.role.count == 1:
            return Reason.CAPACITY
        if any(amount > self._state.capacity.get(resource, 0) for resource, amount in gang):
            return Reason.EXCEEDS_CAPACITY
        is_enough = any(self._gang_fits(needs, part) for part in self._by_cluster(column))
        return Reason.CAPACITY if is_enough else Reason.EXCEEDS_CAPACITY

    def _by_cluster(self, column: Column) -> list[Column]:
        """The nodes of each cluster apart: a gang stays in one."""
        rows: dict[str, list[int]] = {}
        for row, node in enumerate(self._agenda.nodes):
            rows.setdefault(node.build.cluster, []).append(row)
        return [column[part] for _, part in sorted(rows.items())]

    def _why_never(self, need: Need, column: Column) -> Reason:
        present = [self._state.kinds.kinds[kind] for kind in np.unique(column).tolist()]
        models = need.ask.models
        of_model = [kind for kind in present if not models or kind.build.gpu_model in models]
        if models and not of_model:
            return Reason.NO_NODE_OF_MODEL
        if not any(could_ever_fit(need.ask, kind) for kind in of_model):
            return Reason.EXCEEDS_EVERY_NODE
        return Reason.NOT_ELIGIBLE

    def _gang_fits(self, needs: tuple[Need, ...], column: Column) -> bool:
        kinds = self._state.kinds
        for need in needs:
            for _ in range(need.ask.role.count):
                scores = need.scores(column)
                row = int(scores.argmax())
                if scores[row] == INFEASIBLE:
                    return False
                kind = int(column[row])
                column[row] = kinds.take(kind, need.ask.amounts, need.gpus(kind))
        return True
