"""The one first answer: of all that keeps a job from starting, what comes first in the order of reasons (law 6).

A cycle stops at whatever it meets first, and it does not look at nodes for a job whose queue is held or whose quota is
used up. What it then *tells* may be something else: that the job can never run comes before anything that time cures,
and quota comes before room. Nothing here changes what is placed, evicted, reserved or rented; those steps act on what
they met.

Quota by flavor is looked at when it is told, since only packing knows where members go: a gang is short of it when
there is no cluster in which the flavors that its members could sit on have enough left for them. What is taken for
granted is in the gang's favour (each of several resources is counted by itself), so that a ceiling is named only if it
is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from controlplane.domain.queues import ANY_FLAVOR
from controlplane.domain.reasons import NEVER, Reason
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.kinds import Build
from controlplane.scheduler.needs import INFEASIBLE, Need
from controlplane.scheduler.outlook import Outlook
from controlplane.scheduler.quota import Key, QueueNode
from controlplane.scheduler.state import Job, State
from controlplane.scheduler.verdicts import Refusal

_WITHOUT_A_LOOK = (Reason.QUEUE_HELD, Reason.DEPENDENCY, Reason.ARRAY_FULL, Reason.QUOTA, Reason.BEHIND_HEAD)
"""Reasons at which a cycle stops before it has looked at nodes."""
_AFTER_A_LOOK = (Reason.TOPOLOGY, Reason.CAPACITY)
"""Reasons behind which quota by flavor may stand."""
_LeftOf = Callable[[Key], int]


def ceiling_refusal(queue: QueueNode, resources: Iterable[tuple[str, int]]) -> Refusal | None:
    """What a gang asks for in all, where that is more than the queue could ever use of all flavors together."""
    for resource, asked in resources:
        cell = queue.cells.get((ANY_FLAVOR, resource))
        if cell is not None and cell.potential < asked:
            return Refusal(Reason.EXCEEDS_QUOTA_CEILING, {resource: asked - cell.potential})
    return None


class FirstAnswers:
    """The answers of one cycle, as its draft stands."""

    def __init__(self, state: State, agenda: Agenda, draft: Draft, outlook: Outlook) -> None:
        self._state = state
        self._agenda = agenda
        self._draft = draft
        self._outlook = outlook

    def of(self, job: Job, queue: QueueNode, met: Refusal) -> Refusal:
        """What to tell of a job that met a refusal: that one, or another that comes before it."""
        if met.reason in _WITHOUT_A_LOOK:
            return self._never(job, queue) or met
        if met.reason in _AFTER_A_LOOK and _by_flavor(queue):
            needs = self._agenda.needs_of(self._state, job)
            return self._ceiling_of_flavors(queue, needs) or self._quota_of_flavors(queue, needs) or met
        return met

    def _never(self, job: Job, queue: QueueNode) -> Refusal | None:
        ceiling = ceiling_refusal(queue, job.cls.resources)
        if ceiling is not None:
            return ceiling
        needs = self._agenda.needs_of(self._state, job)
        if _by_flavor(queue):
            ceiling = self._ceiling_of_flavors(queue, needs)
            if ceiling is not None:
                return ceiling
        if self._outlook.reason(needs, job.cls.resources) not in NEVER:
            return None
        return self._outlook.refusal(needs, job.cls.resources, None)

    # --- quota by flavor ---------------------------------------------------------------------------------------------

    def _ceiling_of_flavors(self, queue: QueueNode, needs: tuple[Need, ...]) -> Refusal | None:
        """Clouds count with what they offer: it may be rented."""
        there = [self._flavors_there(need) for need in needs]
        offered = [self._flavors_offered(need) for need in needs]
        clusters = sorted({name for flavors in (*there, *offered) for name in flavors})
        reach = [
            [(*known.get(name, ()), *more.get(name, ())) for known, more in zip(there, offered, strict=True)]
            for name in clusters
        ]
        short = _least_short(queue, needs, reach, lambda key: queue.cells[key].potential)
        return Refusal(Reason.EXCEEDS_QUOTA_CEILING, short) if short else None

    def _quota_of_flavors(self, queue: QueueNode, needs: tuple[Need, ...]) -> Refusal | None:
        there = [self._flavors_there(need) for need in needs]
        clusters = sorted({name for flavors in there for name in flavors})
        reach = [[flavors.get(name, ()) for flavors in there] for name in clusters]
        short = _least_short(queue, needs, reach, lambda key: max(0, self._draft.available(queue, key)))
        return Refusal(Reason.QUOTA, short) if short else None

    def _flavors_there(self, need: Need) -> Mapping[str, tuple[str, ...]]:
        """By cluster: the flavors of nodes that would hold a member if they were empty; sorted."""
        known = self._agenda.flavors.get(need)
        if known is None:
            scores = need.scores(self._agenda.empty_nodes(self._state))
            builds = [self._agenda.nodes[row].build for row in np.flatnonzero(scores > INFEASIBLE).tolist()]
            known = self._agenda.flavors[need] = _by_cluster((build.cluster, build.flavor) for build in builds)
        return known

    def _flavors_offered(self, need: Need) -> Mapping[str, tuple[str, ...]]:
        """By cloud cluster: the flavors of offers whose nodes would hold a member."""
        found: list[tuple[str, str]] = []
        for name, spec in self._state.clusters.items():
            for offer in spec.offers:
                build = Build.of(name, offer.flavor, offer.shape, offer.labels, is_open=True)
                empty = np.array([self._state.kinds.empty(build)], dtype=np.int32)
                if offer.max_nodes > 0 and need.scores(empty)[0] > INFEASIBLE:
                    found.append((name, offer.flavor))
        return _by_cluster(found)


def _by_flavor(queue: QueueNode) -> bool:
    return any(flavor != ANY_FLAVOR for flavor, _ in queue.limited)


def _by_cluster(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for cluster, flavor in pairs:
        found.setdefault(cluster, set()).add(flavor)
    return {cluster: tuple(sorted(flavors)) for cluster, flavors in sorted(found.items())}


def _least_short(
    queue: QueueNode, needs: tuple[Need, ...], reach: list[list[tuple[str, ...]]], left_of: _LeftOf
) -> dict[str, int]:
    """What is missing by resource in the cluster where least is; empty if one has enough, or if none holds a member of
    each role. ``reach``: for each cluster, by role, the flavors that its members could sit on."""
    able = [flavors for flavors in reach if all(flavors)]
    return min((_short(queue, needs, flavors, left_of) for flavors in able), key=_size, default={})


def _size(short: dict[str, int]) -> tuple[int, list[tuple[str, int]]]:
    return (len(short), sorted(short.items()))


def _short(queue: QueueNode, needs: tuple[Need, ...], reach: list[tuple[str, ...]], left_of: _LeftOf) -> dict[str, int]:
    found: dict[str, int] = {}
    for resource in dict.fromkeys(resource for need in needs for resource, _ in need.ask.resources):
        most = max(0, *(_short_of_role(queue, need, reach[at], resource, left_of) for at, need in enumerate(needs)))
        most = max(most, _short_of_all(queue, needs, reach, resource, left_of))
        if most:
            found[resource] = most
    return found


def _limits(queue: QueueNode, flavors: Iterable[str], resource: str) -> list[Key] | None:
    """The keys of a resource on some flavors; ``None`` if one of the flavors is not limited."""
    keys = [(flavor, resource) for flavor in dict.fromkeys(flavors)]
    return keys if all(key in queue.cells for key in keys) else None


def _short_of_role(queue: QueueNode, need: Need, flavors: tuple[str, ...], resource: str, left_of: _LeftOf) -> int:
    """Members are not cut in two over flavors."""
    keys, asked = _limits(queue, flavors, resource), dict(need.ask.resources).get(resource, 0)
    if keys is None or asked == 0:
        return 0
    return max(0, need.ask.role.count - sum(left_of(key) // asked for key in keys)) * asked


def _short_of_all(
    queue: QueueNode, needs: tuple[Need, ...], reach: list[tuple[str, ...]], resource: str, left_of: _LeftOf
) -> int:
    """Roles that share flavors share what is left of them."""
    asked = 0
    flavors: dict[str, None] = {}
    for need, own in zip(needs, reach, strict=True):
        amount = dict(need.ask.resources).get(resource, 0)
        if amount and _limits(queue, own, resource) is not None:
            asked += need.ask.role.count * amount
            flavors.update(dict.fromkeys(own))
    keys = _limits(queue, flavors, resource) or []
    return max(0, asked - sum(left_of(key) for key in keys))
