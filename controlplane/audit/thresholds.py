"""Thresholds of a diff, for CI: ``share_loss>5%``, ``wait_increase[research]>10min``, ``changed_decisions>0``.

A threshold names a figure, perhaps a queue, a comparison and a limit. The limit is an amount in the figure's own
unit, or with ``%`` a part of what the log has. Without a queue, a figure that is known by queue is that of the queue
for which it is largest. Everything is compared exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from controlplane.audit.diff_report import ALL, DiffReport, JobChange, Side, Verdict
from controlplane.audit.spans import span

_FORM = re.compile(r"([a-z0-9_]+)\s*(?:\[([^\]]*)\])?\s*(>=|>)\s*(\$?)\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%]*)")
PART = "%"
_HOLDS = {True: "holds", False: "does not hold"}
_UNITS: dict[str, dict[str, int]] = {
    "time": {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000},
    "money": {"$": 1_000_000, "usd": 1_000_000},
    "count": {"": 1},
    "changes": {"": 1},
    "hours": {"h": 1, "": 1},
    "part": {},
}
"""Kind of figure -> unit -> how much of the figure's own (milliseconds, micro-dollars, one) it is."""


class BadThreshold(Exception):
    """A threshold that cannot be understood; one sentence."""


class Amounts(NamedTuple):
    """A figure in both courses, and by how much it is worse under the candidate (negative: better)."""

    about: str
    """A queue or a job; empty for everything."""
    recorded: Fraction
    candidate: Fraction
    worse: Fraction


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that can be limited."""

    name: str
    kind: str
    """``time``, ``money``, ``count``, ``changes``, ``hours`` or ``part``."""
    meaning: str
    amounts: Callable[[DiffReport], Iterator[Amounts]]
    is_by_queue: bool = False


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold as it was written, and as it is understood."""

    text: str
    figure: Figure
    queue: str | None
    is_strict: bool
    limit: Fraction
    is_relative: bool

    def verdict(self, report: DiffReport) -> Verdict:
        """Whether it holds, in a sentence. Raises :class:`BadThreshold` for a queue that the log does not have."""
        found = [amounts for amounts in self.figure.amounts(report) if self.queue in (None, amounts.about)]
        if self.queue is not None and not found:
            known = ", ".join(queue for queue in report.recorded.waits if queue != ALL) or "none"
            raise BadThreshold(
                f"--fail-if {self.text!r}: no job of the log is of queue {self.queue!r} (it has {known})"
            )
        worst = max(found, key=self._measure, default=None)
        if worst is None:
            return Verdict(self.text, holds=False, sentence=f"{self.text} does not hold: there is nothing to compare")
        holds = self._exceeds(worst)
        return Verdict(self.text, holds=holds, sentence=f"{self.text} {_HOLDS[holds]}: {self._say(worst)}")

    def _measure(self, amounts: Amounts) -> tuple[bool, Fraction]:
        """Orders amounts by how bad they are; what has grown from nothing is worse than any part."""
        if not self.is_relative:
            return False, amounts.worse
        if amounts.recorded == 0:
            return amounts.worse > 0, amounts.worse
        return False, amounts.worse / amounts.recorded

    def _exceeds(self, amounts: Amounts) -> bool:
        is_beyond, measure = self._measure(amounts)
        return is_beyond or (measure > self.limit if self.is_strict else measure >= self.limit)

    def _say(self, amounts: Amounts) -> str:
        about = f"{amounts.about}: " if amounts.about else ""
        kind, base = self.figure.kind, amounts.recorded
        if kind == "changes":
            return f"{int(amounts.worse):,} of {int(base):,} decisions differ"
        worse = float(100 * amounts.worse / base) if base and self.is_relative else 0.0
        part = f" ({abs(worse):.1f}% {'worse' if worse > 0 else 'better'})" if worse else ""
        return f"{about}{_words(kind, base)} in the log, {_words(kind, amounts.candidate)} under the candidate{part}"


def parse(text: str) -> Threshold:
    """A threshold from its text. Raises :class:`BadThreshold`."""
    text = text.strip()
    found = _FORM.fullmatch(text)
    if found is None:
        raise BadThreshold(
            f"--fail-if {text!r} is no threshold; write a figure, > or >=, and a limit, such as 'share_loss>5%' "
            f"(figures: {', '.join(FIGURES)})"
        )
    name, queue, sign, dollars, number, unit = found.groups()
    queue = queue.strip() if queue is not None else None
    figure = FIGURES.get(name)
    if figure is None:
        raise BadThreshold(f"--fail-if {text!r}: there is no figure {name!r}; there are {', '.join(FIGURES)}")
    if queue is not None and not figure.is_by_queue:
        raise BadThreshold(f"--fail-if {text!r}: {name} is not known by queue; leave [{queue}] out")
    unit = f"{dollars}{unit}"
    if unit == PART:
        return Threshold(text, figure, queue, sign == ">", Fraction(number) / 100, is_relative=True)
    units = _UNITS[figure.kind]
    if unit not in units:
        known = ", ".join([*(repr(known) if known else "none" for known in units), repr(PART)])
        raise BadThreshold(f"--fail-if {text!r}: {name} is not given in {unit or 'plain numbers'!r}; units: {known}")
    return Threshold(text, figure, queue, sign == ">", Fraction(number) * units[unit], is_relative=False)


def _words(kind: str, amount: Fraction) -> str:
    match kind:
        case "time":
            return span(int(amount))
        case "money":
            return f"${float(amount) / 1e6:,.2f}"
        case "part":
            return f"{float(100 * amount):.1f}%"
        case "hours":
            return f"{float(amount):,.1f} h"
        case _:
            return f"{int(amount):,}"


# --- the figures ------------------------------------------------------------------------------------------------------


def _more(recorded: float, candidate: float, about: str = "") -> Amounts:
    """Worse is more. Floats are figures that were rounded for the report: they are taken as they are shown."""
    mine, theirs = Fraction(str(recorded)), Fraction(str(candidate))
    return Amounts(about, mine, theirs, theirs - mine)


def _less(recorded: float, candidate: float, about: str = "") -> Amounts:
    """Worse is less."""
    mine, theirs = Fraction(str(recorded)), Fraction(str(candidate))
    return Amounts(about, mine, theirs, mine - theirs)


def _sides(compare: Callable[[float, float], Amounts], of: Callable[[Side], float]) -> Callable[..., Iterator[Amounts]]:
    def amounts(report: DiffReport) -> Iterator[Amounts]:
        yield compare(of(report.recorded), of(report.under_candidate))

    return amounts


def _changed(report: DiffReport) -> Iterator[Amounts]:
    yield Amounts("", Fraction(report.compared), Fraction(report.compared), Fraction(report.changed))


def _shares(report: DiffReport) -> Iterator[Amounts]:
    for queue, share in report.recorded.shares.items():
        other = report.under_candidate.shares.get(queue)
        yield _less(share.part, other.part if other is not None else 0, queue)


def _waits(key: str) -> Callable[[DiffReport], Iterator[Amounts]]:
    def amounts(report: DiffReport) -> Iterator[Amounts]:
        for queue, waits in report.recorded.waits.items():
            if queue != ALL:
                yield _more(getattr(waits, key), getattr(report.under_candidate.waits[queue], key), queue)

    return amounts


def _job_waits(report: DiffReport) -> Iterator[Amounts]:
    worst: JobChange | None = next(iter(report.jobs.lose), None)
    if worst is not None:
        yield _more(worst.recorded_wait_ms, worst.candidate_wait_ms, worst.job)


def _not_started(side: Side) -> int:
    waits = side.waits[ALL]
    return waits.waiting + waits.gave_up


_ALL_FIGURES = (
    Figure("changed_decisions", "changes", "decisions that differ; % of those that were compared", _changed),
    Figure("share_loss", "part", "what a queue loses of its share of the GPU time", _shares, is_by_queue=True),
    Figure("wait_increase", "time", "how much longer a queue waits, in the mean", _waits("mean_ms"), is_by_queue=True),
    Figure("wait_p95_increase", "time", "the same for the 95th percentile", _waits("p95_ms"), is_by_queue=True),
    Figure("job_wait_increase", "time", "how much longer the job waits that loses most", _job_waits),
    Figure("not_started_increase", "count", "more jobs that never start", _sides(_more, _not_started)),
    Figure("placements_decrease", "count", "fewer placements", _sides(_less, lambda side: side.placements)),
    Figure("preemptions_increase", "count", "more preemptions", _sides(_more, lambda side: side.preemptions)),
    Figure("utilisation_loss", "part", "less use of the GPUs at home", _sides(_less, lambda s: s.utilisation["home"])),
    Figure("burst_increase", "hours", "more GPU hours used in the cloud", _sides(_more, lambda s: s.burst_gpu_hours)),
    Figure("money_increase", "money", "more money for the cloud", _sides(_more, lambda side: side.micro_usd)),
    Figure("faults", "count", "rules that err, beyond those of the log", _sides(_more, lambda side: len(side.faults))),
)
FIGURES: dict[str, Figure] = {figure.name: figure for figure in _ALL_FIGURES}
