"""Because of which rule did the worlds part? Found by trying: the cycle is decided again with the recorded rules, but
for one decision point, at which the candidate is asked; if that alone makes it another cycle, the point is a cause.
At such a point the first question that the two bundles answer differently is named, with both answers and both lines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import cast

from controlplane.audit.changes import Gist, gists_of, odd_ones
from controlplane.audit.whatif import Parting
from controlplane.scheduler.decide import decide
from controlplane.scheduler.facts import JobFacts, OfferFacts, QueueFacts
from controlplane.scheduler.rules import Answer, Rules
from controlplane.scheduler.snapshot import restore
from controlplane.scheduler.state import State

POINTS: dict[str, tuple[str, ...]] = {
    "admission": ("admission", "admission_reads"),
    "ordering.queue": ("queue_order", "queue_order_reads"),
    "ordering.job": ("job_order", "job_order_reads"),
    "quota": ("quota",),
    "gang": ("gang", "gang_reads", "may_give_terms"),
    "eligibility": ("eligibility", "eligibility_reads"),
    "scoring": ("scoring", "scoring_reads", "scoring_field"),
    "preemption.allow": ("preemption_allow", "may_preempt"),
    "preemption.victim": ("preemption_victim", "preemption_victim_reads"),
    "reservation": ("reserve", "may_reserve"),
    "ordering.backfill": ("backfill_order", "backfill_order_reads", "may_order_backfill"),
    "overtaking": ("overtaking", "may_block"),
    "burst": ("burst", "burst_reads"),
    "service.replicas": ("service_replicas", "may_scale"),
    "service.take": ("service_take",),
}
"""Decision point -> what the scheduler asks of it, the question itself first; in the order of a cycle."""
_POINT_OF = {name: point for point, names in POINTS.items() for name in names}
_SHOWN = 120
"""So many characters of an answer are shown."""


@dataclass(frozen=True, slots=True)
class Said:
    """One bundle's answer to a question."""

    answer: str
    rule: str | None
    """``file:line``; ``None`` where the bundle has no rule and the point's default answers."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A decision point that alone makes the cycle another one."""

    point: str
    about: str
    """What was asked about; empty if no question was answered differently, as where a bundle has no such rules."""
    recorded: Said | None
    candidate: Said | None


@dataclass(frozen=True, slots=True)
class Inquiry:
    """What was found."""

    causes: tuple[Cause, ...]
    is_reproduced: bool
    """Whether the recorded rules, asked again, decide what the log says. If they do not, another core than this one
    decided, and the difference may be its own."""
    is_joint: bool = False
    """No point alone does it: these are the points that answer differently."""


Question = tuple[str, tuple[object, ...], Answer[object]]
"""(point, arguments, answer)"""


class Crossed:
    """One bundle's rules, with another's at some points: a :class:`~controlplane.scheduler.rules.Rules`. It keeps what
    was asked at those points."""

    def __init__(self, rules: Rules, other: Rules, points: Sequence[str]) -> None:
        self._rules, self._other, self._points = rules, other, points
        self.asked: list[Question] = []

    def __getattr__(self, name: str) -> object:
        point = _POINT_OF.get(name)
        if point is None or point not in self._points:
            return getattr(self._rules, name)
        found = getattr(self._other, name)
        return self._listening(point, found) if name == POINTS[point][0] else found

    def _listening(self, point: str, ask: Callable[..., Answer[object]]) -> Callable[..., Answer[object]]:
        def listen(*arguments: object) -> Answer[object]:
            answer = ask(*arguments)
            self.asked.append((point, arguments, answer))
            return answer

        return listen


def inquire(parting: Parting, recorded: Rules, candidate: Rules) -> Inquiry:
    """The causes of a parting, in the order of a cycle."""
    state = restore(parting.state)
    said = _gists(state, recorded, parting.core)
    if odd_ones(said, parting.said) != ([], []) and not parting.is_extra:
        return Inquiry((), is_reproduced=False)
    causes: list[Cause] = []
    for point in POINTS:
        crossed = Crossed(recorded, candidate, (point,))
        if odd_ones(_gists(state, cast("Rules", crossed), parting.core), said) != ([], []):
            causes.append(_first_difference(point, crossed.asked, recorded))
    if causes:
        return Inquiry(tuple(causes), is_reproduced=True)
    crossed = Crossed(recorded, candidate, tuple(POINTS))
    decide(state, cast("Rules", crossed), core=parting.core)
    found = (_first_difference(point, crossed.asked, recorded) for point in POINTS)
    return Inquiry(tuple(cause for cause in found if cause.about), is_reproduced=True, is_joint=True)


def _gists(state: State, rules: Rules, core: str) -> list[Gist]:
    return gists_of((decision.event for decision in decide(state, rules, core=core).decisions), state)


def _first_difference(point: str, asked: Sequence[Question], recorded: Rules) -> Cause:
    ask = getattr(recorded, POINTS[point][0])
    for of_point, arguments, answer in asked:
        if of_point != point:
            continue
        other = ask(*arguments)
        if other.value != answer.value:
            return Cause(point, _about(arguments), _said(other), _said(answer))
    return Cause(point, "", None, None)


def _said(answer: Answer[object]) -> Said:
    value = list(answer.value) if isinstance(answer.value, tuple) else answer.value
    text = answer.fault or ("no answer" if value is None else str(value))
    return Said(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...", answer.rule)


def _about(arguments: Sequence[object]) -> str:
    """Whom and what a question names."""
    parts: list[str] = []
    for facts in arguments:
        match facts:
            case JobFacts():
                parts.append(f"job {facts.id or f'like {facts.name}'}")
            case QueueFacts():
                parts.append(f"queue {facts.name}")
            case OfferFacts():
                parts.append(f"offer {facts.cluster}/{facts.name}")
            case int():
                pass
            case _:
                parts.append(_name(facts))
    return ", ".join(part for part in parts if part)


def _name(facts: object) -> str:
    """The name of a record of facts, if it has one, with what it is."""
    if not is_dataclass(facts):
        return ""
    known = {field.name for field in fields(facts)}
    named = next((str(getattr(facts, key)) for key in ("name", "id") if key in known), "")
    return f"{type(facts).__name__.removesuffix('Facts').lower()} {named}" if named else ""
