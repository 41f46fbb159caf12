"""Why a gang does not fit: can it ever, on the nodes that there are, or is it only a matter of what is free? And is it
what there is in all that is short, or what there is in one domain of a level that it requires?

That a required level can never be had is said only when it is sure: a gang is taken to fit a domain that, empty, has
room for each of its roles and what all of them together ask for.
"""

from __future__ import annotations

import numpy as np

from controlplane.domain.events import TopologyShort
from controlplane.domain.reasons import Reason
from controlplane.domain.topology import LEVELS
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.needs import INFEASIBLE, Column, Need, could_ever_fit
from controlplane.scheduler.state import State
from controlplane.scheduler.topology import CLUSTER, Mask, gang_depth, required_depth
from controlplane.scheduler.verdicts import Refusal

MAX_COMPARED = 8
"""Domains, the fullest of each role first, in which the members of several roles are counted together."""


class Outlook:
    """Answers for the nodes as they would be if nothing ran on them. Verdicts are kept on the agenda until the set of
    nodes changes."""

    def __init__(self, state: State, agenda: Agenda) -> None:
        self._state = state
        self._agenda = agenda

    def refusal(self, needs: tuple[Need, ...], gang: tuple[tuple[str, int], ...], mask: Mask | None) -> Refusal:
        """The reason, and for one of topology the best that a domain has. ``mask`` as it was when the gang did not fit.

        ``TOPOLOGY`` if the gang would fit what is free now without the levels that it requires.
        """
        reason = self.reason(needs, gang)
        if all(required_depth(need) == CLUSTER for need in needs):
            return Refusal(reason)
        if reason is Reason.EXCEEDS_TOPOLOGY:
            return Refusal(reason, topology=self.nearest(needs, self._agenda.empty_nodes(self._state), None))
        column = self._agenda.column.kinds
        if reason is Reason.CAPACITY and self._fits_apart(needs, column, mask):
            return Refusal(Reason.TOPOLOGY, topology=self.nearest(needs, column, mask))
        return Refusal(reason)

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
        if not any(self._gang_fits(needs, column[part]) for part in self._by_cluster(None)):
            return Reason.EXCEEDS_CAPACITY
        return Reason.CAPACITY if self._is_ever_near(needs, column) else Reason.EXCEEDS_TOPOLOGY

    def _by_cluster(self, mask: Mask | None) -> list[list[int]]:
        """The rows of each cluster apart: a gang stays in one."""
        rows: dict[str, list[int]] = {}
        for row, node in enumerate(self._agenda.nodes):
            if mask is None or mask[row]:
                rows.setdefault(node.build.cluster, []).append(row)
        return [part for _, part in sorted(rows.items())]

    # --- topology ----------------------------------------------------------------------------------------------------

    def nearest(self, needs: tuple[Need, ...], column: Column, mask: Mask | None = None) -> TopologyShort | None:
        """The fullest account of what is in the way: of the gang's level if no domain has room for each of its roles,
        else of the first role's level that has none for it; at last of the gang's level once more, since the roles get
        into each other's way. ``None`` if no level is required."""
        depth = gang_depth(needs)
        whole = self._best(None, depth, needs, column, mask) if depth else None
        if whole is not None and whole.room < whole.members:
            return whole
        for need in needs:
            if required_depth(need) > depth:
                part = self._best(need.ask.role.name, required_depth(need), (need,), column, mask)
                if part.room < part.members:
                    return part
                whole = whole or part
        return whole

    def _best(
        self, role: str | None, depth: int, needs: tuple[Need, ...], column: Column, mask: Mask | None
    ) -> TopologyShort:
        domains = self._agenda.domains(self._state)
        tree = domains.tree
        counts = [np.minimum(domains.room(need, column, mask).at(depth), need.ask.role.count) for need in needs]
        total = np.sum(counts, axis=0)
        room, best = 0, -1
        for domain in np.argsort(-total, kind="stable")[:MAX_COMPARED].tolist():
            low, high = tree.span(depth, domain)
            rows = tree.rows[low:high]
            rows = rows if mask is None else rows[mask[rows]]
            seated = self._seated(needs, column[rows]) if len(needs) > 1 else int(total[domain])
            if seated > room:
                room, best = seated, domain
        return TopologyShort(
            role=role,
            level=LEVELS[depth - 1],
            domain=tree.name(depth, best) if room else "",
            room=room,
            members=sum(need.ask.role.count for need in needs),
        )

    def _is_ever_near(self, needs: tuple[Need, ...], column: Column) -> bool:
        domains, depth = self._agenda.domains(self._state), gang_depth(needs)
        rooms = [domains.room(need, column) for need in needs]
        if depth:
            able = domains.has_each(depth, needs, column)
            for need, room in zip(needs, rooms, strict=True):
                able &= room.at(depth) >= need.ask.role.count
            if not able.any():
                return False
        depths = [required_depth(need) for need in needs]
        return all(
            (room.at(own) >= need.ask.role.count).any() for need, room, own in zip(needs, rooms, depths, strict=True)
        )

    def _fits_apart(self, needs: tuple[Need, ...], column: Column, mask: Mask | None) -> bool:
        """Whether one cluster would hold the gang wherever its members went."""
        domains = self._agenda.domains(self._state)
        spare = [domains.room(need, column, mask).at(CLUSTER) - need.ask.role.count for need in needs]
        if not (np.min(spare, axis=0) >= 0).any():
            return False
        if len(needs) == 1:
            return True
        return any(self._gang_fits(needs, column[part]) for part in self._by_cluster(mask))

    # --- never -------------------------------------------------------------------------------------------------------

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
        return self._seated(needs, column) == sum(need.ask.role.count for need in needs)

    def _seated(self, needs: tuple[Need, ...], column: Column) -> int:
        """How many members find a place on nodes of these kinds, each on its best, role after role. Writes the
        column."""
        kinds, seated = self._state.kinds, 0
        for need in needs:
            for _ in range(need.ask.role.count):
                scores = need.scores(column)
                row = int(scores.argmax()) if scores.size else -1
                if row < 0 or scores[row] == INFEASIBLE:
                    break
                kind = int(column[row])
                column[row] = kinds.take(kind, need.ask.amounts, need.gpus(kind))
                seated += 1
        return seated
