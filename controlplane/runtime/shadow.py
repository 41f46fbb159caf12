"""Cycles, decided under the active bundle and, beside it, under the shadow bundle if there is one.

PROBLEM: an author wants to know what a bundle would decide before it does. Its decisions must reach nobody, must be the
same on every machine (they are recorded, and ``replay --verify`` decides them again), and whatever goes wrong with it
must not be felt by the active bundle.

SOLUTION: both decide on the same state. A cycle is a function that leaves the state as it was; so the shadow's runs
right after the active one, with an agenda of its own, and its decisions are only compared and then dropped. What
differs is one event behind the cycle's own. The shadow does not live a life of its own: in the next cycle it starts
from what the active bundle has made of the world (what it would have come to by itself, ``policy diff`` says), and it
is asked when the active one is due, not at instants of its own.

A verdict that an agenda remembers stands as long as nothing is freed that its own decisions took; those of a shadow are
never carried out, so that its agenda remembers none. A shadow that fails, or takes more steps in one cycle than it may,
is asked no more: that is observed and recorded, as an input, since another machine may get further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from inspect import isfunction
from typing import cast

import numpy as np

from controlplane.domain.codec import encode
from controlplane.domain.events import (
    CapacityRequested,
    CycleDecided,
    Event,
    JobRefused,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseRevoked,
    LeaseShrunk,
    ReservationMade,
    RoomPromised,
    ServiceScaled,
    ShadowDecided,
    ShadowDifference,
    ShadowFailed,
    TermsGiven,
)
from controlplane.domain.ids import LeaseId, job_of_lease
from controlplane.domain.version import CORE
from controlplane.policy.bundle import Bundle
from controlplane.policy.problems import BundleRefused
from controlplane.policy.rules import BundleRules
from controlplane.runtime.rulebook import Rulebook
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.decide import Decision, decide
from controlplane.scheduler.needs import Need
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import EVICTED, Job, Shadow, State

STEPS = 20_000_000
"""What the shadow's rules may take in one cycle, a step being one node of an expression's tree as the check counts them
(some tenth of a microsecond): some two seconds. A whole simulated day of the default bundle takes fewer."""
QUESTION_STEPS = 10
"""What a question costs that needs no evaluation: some microsecond."""
NAMED = 250
"""Jobs that one record names for each kind and side: two kilobytes."""

TERMS, START, ELSEWHERE, SCALE = "terms", "start", "elsewhere", "scale"
RENT, RENT_OTHERWISE = "rent", "rent-otherwise"
KINDS: Mapping[str, str] = {
    "refuse": "refused at submission",
    TERMS: "given other terms",
    START: "started",
    ELSEWHERE: "started elsewhere",
    "make-room": "given room by moving others",
    "evict": "evicted",
    "shrink": "shrunk",
    "grow": "grown",
    SCALE: "given another number of replicas",
    "reserve": "given a reservation",
    RENT: "given rented nodes",
    RENT_OTHERWISE: "given other rented nodes",
}
"""Kinds of difference, in the order in which they are recorded, and what is said of a job."""
_OTHERWISE = {TERMS: TERMS, START: ELSEWHERE, SCALE: SCALE, RENT: RENT_OTHERWISE}
"""What both decide, and not alike."""


class TooCostly(Exception):
    """The shadow's rules took more steps in one cycle than they may."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What one tick came to."""

    decisions: tuple[Decision, ...]
    """Of the active bundle; behind them the record of the shadow, if it has anything to tell."""
    failure: ShadowFailed | None = None
    """The shadow could not be decided."""


class Cycles:
    """Decides cycles, one after the other, on one state."""

    def __init__(self, rulebook: Rulebook, steps: int = STEPS) -> None:
        """``steps`` bounds what the shadow's rules may take in one cycle."""
        self._rulebook = rulebook
        self._steps = steps
        self._beside: _Beside | None = None

    def decide(self, state: State) -> Decided:
        """Run the cycle of the state's tick. Raises :class:`~controlplane.policy.problems.BundleRefused` if the active
        bundle does not load; nothing of the shadow is raised."""
        began = state.began_waiting
        return self.beside(state, decide(state, self._rulebook.active(state)).decisions, began, CORE)

    def beside(self, state: State, active: tuple[Decision, ...], began: list[Job], core: str) -> Decided:
        """What the active bundle decided right now, and what is to be told of the shadow beside it, as that version of
        the core decides it. ``began`` are the jobs that began to wait before that cycle since the last. Raises
        nothing."""
        shadow = state.shadow
        if shadow is None or shadow.failure:
            self._beside = None
            return Decided(active)
        agenda = state.agenda
        assert agenda is not None, "whoever decides has an agenda"
        try:
            beside = self._decide_beside(state, shadow, agenda, began, core)
            told = record(state, shadow, active, beside)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not be felt by the active bundle
            self._beside = None
            return Decided(active, ShadowFailed(policy=shadow.digest, cause=_cause(error, self._steps)))
        finally:
            state.agenda, state.began_waiting = agenda, []
        if any(isinstance(decision.event, TermsGiven) for decision in (*active, *beside)):
            self._beside = None  # its agenda has jobs in the line of a class that they are not of any more
        return Decided(active if told is None else (*active, Decision(told, encode(told))))

    def _decide_beside(
        self, state: State, shadow: Shadow, agenda: Agenda, began: list[Job], core: str
    ) -> tuple[Decision, ...]:
        beside = self._beside
        if beside is None or not beside.is_of(state, shadow):
            bundle, rules = self._rulebook.shadow(shadow)
            beside = self._beside = _Beside(state, shadow, Measured(bundle, rules))
        else:
            state.began_waiting = began
        beside.follow(state, agenda)
        state.agenda = beside.agenda
        beside.rules.steps_left = self._steps
        return decide(state, cast("Rules", beside.rules), core=core).decisions


def _cause(error: Exception, steps: int) -> str:
    match error:
        case TooCostly():
            return f"its rules take more than {steps:,} steps in one cycle"
        case BundleRefused():
            first = error.problems[0]
            return f"it does not load: {first.file}:{first.line}:{first.column}: {first.message}"[:1_000]
        case MemoryError():
            return "it takes more memory than there is"
        case _:
            return f"deciding under it failed: {type(error).__name__}: {str(error)!a}"[:1_000]


# --- the agenda of a shadow ------------------------------------------------------------------------------------------


class ShadowAgenda(Agenda):
    """Remembers no verdict: see the module."""

    def is_lasting(self, needs: tuple[Need, ...]) -> bool:
        """Never: the next cycle does not start from what this one decides."""
        return False


class _Beside:
    """What is kept of one shadow from cycle to cycle."""

    def __init__(self, state: State, shadow: Shadow, rules: Measured) -> None:
        self.rules = rules
        self.agenda = ShadowAgenda(state, cast("Rules", rules))
        self._shadow = shadow
        self._tree, self._kinds, self._typical = state.tree, state.kinds, state.typical.version

    def is_of(self, state: State, shadow: Shadow) -> bool:
        """Whether it was made for this shadow and this tree of queues."""
        return self._shadow is shadow and self._tree is state.tree

    def follow(self, state: State, active: Agenda) -> None:
        """Take over what the fold told the active agenda alone since the last cycle."""
        agenda = self.agenda
        if self._kinds is not state.kinds:
            self._kinds = state.kinds
            agenda.forget_kinds()
        if self._typical != state.typical.version:
            self._typical = state.typical.version
            agenda.typical_changed()
        for lease in state.elastic.values():
            agenda.members_changed(lease)
        agenda.refresh_nodes(state)
        for row in np.flatnonzero(agenda.column.kinds != active.column.kinds).tolist():
            agenda.node_changed(active.nodes[row])


# --- rules whose steps are counted -----------------------------------------------------------------------------------

_POINT_OF = {
    "admission": "admission",
    "queue_order": "ordering.queue",
    "job_order": "ordering.job",
    "backfill_order": "ordering.backfill",
    "eligibility": "eligibility",
    "scoring": "scoring",
    "quota": "quota",
    "preemption_allow": "preemption.allow",
    "preemption_victim": "preemption.victim",
    "reserve": "reservation",
    "overtaking": "overtaking",
    "burst": "burst",
    "gang": "gang",
    "service_replicas": "service.replicas",
    "service_take": "service.take",
}
"""Question of the port -> decision point."""


class Measured:
    """The rules of a bundle, as :class:`~controlplane.scheduler.rules.Rules`, that end with :class:`TooCostly` when
    ``steps_left`` are used up. An evaluation counts as its expression's bound at most is, whatever it really takes."""

    def __init__(self, bundle: Bundle, rules: BundleRules) -> None:
        self.steps_left = STEPS
        for name, member in vars(Rules).items():
            if name.startswith("_"):
                continue
            given = getattr(rules, name)
            setattr(self, name, self._counted(bundle, rules, name, given) if isfunction(member) else given)

    def _counted(
        self, bundle: Bundle, rules: BundleRules, name: str, ask: Callable[..., object]
    ) -> Callable[..., object]:
        point = _POINT_OF[name]
        counter = rules.counters.points[point]
        expressions = (one for policy in bundle.policies.get(point, ()) for one in policy.expressions)
        steps = max((expression.bound.cost for expression in expressions), default=0) + 1

        def asked(*facts: object) -> object:
            before = counter.evaluated
            answer = ask(*facts)
            self.steps_left -= QUESTION_STEPS + (counter.evaluated - before) * steps
            if self.steps_left < 0:
                raise TooCostly
            return answer

        return asked


# --- what differs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Deed:
    """What a decision means for one job."""

    rule: str | None
    how: tuple[object, ...] = ()
    """Where it starts, what is rented for it, the terms or the number of replicas that it is given."""
    micro_usd: int = 0


_Deeds = dict[tuple[str, int], _Deed]
"""(kind, job) -> the first such decision."""
_Group = tuple[str, bool, str, int]
"""Kind, whether the shadow does it, rule (empty for none), reason (0 for none)."""


def record(
    state: State, shadow: Shadow, active: Sequence[Decision], beside: Sequence[Decision]
) -> ShadowDecided | None:
    """What a cycle's decisions under the shadow bundle do otherwise than those under the active one, as far as it was
    not told before; ``None`` if that is nothing. The state is that before any of them."""
    closed = beside[-1].event
    assert isinstance(closed, CycleDecided), "a cycle ends with its own record"
    groups, untold = _grouped(state, shadow, _deeds(active), _deeds(beside), _reasons(state, beside))
    faults = tuple(fault for fault in closed.faults if fault not in shadow.faults)
    if not groups and not faults:
        return None
    differences = tuple(
        ShadowDifference(
            what=what,
            by_shadow=by_shadow,
            jobs=tuple(sorted(jobs)),
            rule=rule or None,
            reason=reason or None,
            promised_micro_usd=sum(jobs.values()),
        )
        for (what, by_shadow, rule, reason), jobs in groups
    )
    return ShadowDecided(
        cycle=closed.cycle, policy=shadow.digest, differences=differences, untold=untold, faults=faults
    )


def _grouped(
    state: State, shadow: Shadow, active: _Deeds, beside: _Deeds, reasons: Mapping[int, int]
) -> tuple[list[tuple[_Group, dict[int, int]]], int]:
    """Groups in order, each with its jobs and what is promised for them; and how many jobs are left out."""
    groups: dict[_Group, dict[int, int]] = {}
    named: dict[tuple[str, bool], int] = {}
    untold = 0
    for what, by_shadow, job, deed in _differing(active, beside):
        if job in shadow.told.get((what, by_shadow), ()):
            continue
        count = named[what, by_shadow] = named.get((what, by_shadow), 0) + 1
        if count > NAMED:
            untold += 1
            continue
        is_kept_waiting = what == START and not by_shadow and job in state.jobs
        reason = reasons.get(state.jobs[job].cls.index, 0) if is_kept_waiting else 0
        micro_usd = deed.micro_usd if what == RENT and by_shadow else 0
        groups.setdefault((what, by_shadow, deed.rule or "", reason), {})[job] = micro_usd
    order = {what: at for at, what in enumerate(KINDS)}
    return sorted(groups.items(), key=lambda group: (order[group[0][0]], not group[0][1], *group[0][2:])), untold


def _differing(active: _Deeds, beside: _Deeds) -> Iterator[tuple[str, bool, int, _Deed]]:
    """Kind, whether the shadow does it, job and deed; by the job's number within a kind and side."""
    for what, job in sorted(active.keys() | beside.keys()):
        ours, theirs = active.get((what, job)), beside.get((what, job))
        if ours is None and theirs is not None:
            yield what, True, job, theirs
        elif theirs is None and ours is not None:
            yield what, False, job, ours
        elif ours is not None and theirs is not None and ours.how != theirs.how:
            yield _OTHERWISE[what], True, job, theirs


def _deeds(decisions: Iterable[Decision]) -> _Deeds:
    deeds: _Deeds = {}
    for decision in decisions:
        found = _deed(decision.event)
        if found is not None:
            deeds.setdefault(found[:2], found[2])
    return deeds


def _deed(event: Event) -> tuple[str, int, _Deed] | None:
    """What judgement decided about a job. What follows from it, or from the clock alone, is left out: growing lists of
    who waits, promises and reservations that lapse, rent that is given back, jobs that end."""
    match event:
        case JobRefused():
            return "refuse", event.job, _Deed(event.rule)
        case TermsGiven():
            return TERMS, event.job, _Deed(event.rule, (event.terms,))
        case LeaseGranted():
            return START, event.job, _Deed(event.rule, (event.cluster, *(member.node for member in event.members)))
        case RoomPromised():
            return "make-room", event.job, _Deed(event.rule)
        case LeaseRevoked() if event.cause in EVICTED:
            return "evict", job_of_lease(LeaseId(event.lease)), _Deed(event.rule)
        case LeaseShrunk():
            return "shrink", job_of_lease(LeaseId(event.lease)), _Deed(event.rule)
        case LeaseGrown():
            return "grow", job_of_lease(LeaseId(event.lease)), _Deed(event.rule)
        case ServiceScaled():
            return SCALE, event.job, _Deed(event.rule, (event.wanted,))
        case ReservationMade():
            return "reserve", event.job, _Deed(event.rule)
        case CapacityRequested():
            rented = (event.cluster, event.offer, event.nodes)
            return RENT, event.for_job, _Deed(event.rule, rented, event.promised_micro_usd)
        case _:
            return None


def _reasons(state: State, decisions: Iterable[Decision]) -> dict[int, int]:
    """Class of jobs -> why they wait, as far as these decisions say so."""
    heads = (decision.event for decision in decisions if isinstance(decision.event, JobsWaiting))
    return {state.jobs[event.head].cls.index: event.reason for event in heads if event.head in state.jobs}
