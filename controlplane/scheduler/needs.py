"""Where one member could sit: fit, choice of GPUs and score, remembered per kind of node.

A :class:`Need` is what one role asks for, together with whatever of the job the eligibility rules read. For each kind
of node it knows one number: the score of the best way to put a member there, or ``INFEASIBLE``. Answers are found the
first time that a kind is met and kept for as long as the rules stay the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controlplane.domain.events import Tally
from controlplane.domain.quantities import MILLI, PPM
from controlplane.scheduler import sharing
from controlplane.scheduler.facts import CandidateFacts, JobFacts
from controlplane.scheduler.fragmentation import MICRO, descent_score
from controlplane.scheduler.kinds import Build, Kind, KindTable, facts_after
from controlplane.scheduler.lottery import draw, lottery
from controlplane.scheduler.rules import Answer, Rules
from controlplane.scheduler.state import Ask

UNKNOWN = -(2**63)
INFEASIBLE = UNKNOWN + 1

Column = NDArray[np.int32]
Scores = NDArray[np.int64]


class NodeColumn:
    """The kind of every node, in the order of their names."""

    def __init__(self, kinds: Column, epoch: int) -> None:
        self.kinds = kinds
        """To be written by :meth:`put` only."""
        self.epoch = epoch
        """Names the set of rows: what a reader kept of another epoch says nothing."""
        self._cells = kinds.data
        """The same memory: single cells are read and written faster through it."""

    def __getitem__(self, row: int) -> int:
        kind: int = self._cells[row]
        return kind

    def put(self, row: int, kind: int) -> None:
        """Set the kind of a row."""
        self._cells[row] = kind


class Need:
    """One role's demand on a node.

    A rule that errs on a kind makes it ineligible, or the worst. That is found once and kept, so that it is not
    reported when it is found (a plane that was started anew finds it again) but with the decision that it is behind: by
    :func:`tally` and :meth:`fault`.
    """

    def __init__(self, ask: Ask, job: JobFacts, kinds: KindTable, rules: Rules) -> None:
        self.ask = ask
        self.job = job
        self._kinds = kinds
        self._rules = rules
        self._scores: Scores = np.full(64, UNKNOWN, dtype=np.int64)
        self._gpus: dict[int, tuple[int, ...]] = {}
        self._best: dict[int, Answer[int]] = {}
        self._rows: Scores = np.zeros(0, dtype=np.int64)
        self._kinds_seen: Column = np.zeros(0, dtype=np.int32)
        """The kinds for which ``_rows`` was made."""
        self._epoch = -1
        amounts = ask.amounts
        is_whole = amounts.gpu_milli == MILLI
        self._room = (
            amounts.cpu_milli,
            amounts.memory_bytes,
            ask.gpus if is_whole else 0,
            amounts.gpu_milli if ask.gpus and not is_whole else 0,
        )
        """What a kind must have at least: CPU, memory, whole GPUs, milli-GPU on one GPU."""
        self._suits_build: dict[int, bool] = {}
        self._is_steady = is_steady(rules.eligibility_reads)
        reads = rules.scoring_reads
        self.is_per_node = any(path.startswith("candidate.") for path in reads)
        self._is_lottery = rules.scoring_field == "candidate.lottery"
        self._models = {model: rank for rank, model in reversed(list(enumerate(ask.role.gpu_models)))}
        self._is_suited = "after.model_rank" in reads or "after.throughput_ppm" in reads
        self._is_measured = any("fragmentation" in path or "descent" in path for path in reads)

    def scores(self, column: Column) -> Scores:
        """The score of every row of a column of kinds."""
        if len(self._kinds) > len(self._scores):
            self._grow()
        scores: Scores = self._scores[column]
        if scores.size and scores.min() == UNKNOWN:
            self._learn(column[scores == UNKNOWN].tolist())
            scores = self._scores[column]
        return scores

    def row_scores(self, nodes: NodeColumn) -> Scores:
        """The score of every row of the nodes, kept up to date by what changed since the last call. Not to be
        written."""
        kinds = nodes.kinds
        if self._epoch != nodes.epoch:
            self._epoch = nodes.epoch
            self._rows, self._kinds_seen = self.scores(kinds), kinds.copy()
            return self._rows
        changed = (kinds != self._kinds_seen).nonzero()[0]
        if changed.size:
            if len(self._kinds) > len(self._scores):
                self._grow()
            now = kinds[changed]
            self._learn(now.tolist())
            self._rows[changed] = self._scores[now]
            self._kinds_seen[changed] = now
        return self._rows

    def _learn(self, ids: list[int]) -> None:
        """Evaluate those of the kinds that were never met: the innermost loop of the scheduler. Most have no room."""
        known, kinds = self._scores.data, self._kinds.kinds
        cpu, memory, gpus, milli = self._room
        for id_ in ids:
            if known[id_] != UNKNOWN:
                continue
            kind = kinds[id_]
            if kind.gpus_free < gpus or kind.gpu_largest < milli or kind.cpu_free < cpu or kind.memory_free < memory:
                known[id_] = INFEASIBLE
            else:
                known[id_] = self._evaluate(kind)

    def gpus(self, kind: int) -> tuple[int, ...]:
        """The GPUs that a member takes on a feasible kind, as spots (see :mod:`controlplane.domain.mig`)."""
        return self._gpus[kind]

    def ask_on(self, kind: int) -> Ask:
        """What the ask is on a kind of node: see :meth:`Ask.on`."""
        return self.ask.on(self._kinds.kinds[kind].build) if self.ask.amounts.gpu_memory_bytes else self.ask

    def rule(self, kind: int) -> str | None:
        """The scoring rule that gave the kind its score."""
        best = self._best.get(kind)
        return best.rule if best is not None else None

    def fault(self, kind: int) -> str | None:
        """The fault of the scoring rule, if it erred on the place that a member took on a feasible kind."""
        best = self._best.get(kind)
        return best.fault if best is not None else None

    def _grow(self) -> None:
        grown = np.full(max(2 * len(self._scores), len(self._kinds)), UNKNOWN, dtype=np.int64)
        grown[: len(self._scores)] = self._scores
        self._scores = grown

    def _evaluate(self, kind: Kind) -> int:
        """The score of a kind that has CPU, memory and GPUs enough, if nothing else is in the way."""
        suits = self._suits_build.get(kind.build_id)
        if suits is None:
            suits = self._suits_build[kind.build_id] = self._suits(kind)
        if not suits or (self.ask.amounts.other and not _other_fits(self.ask.amounts.other, kind.other_free)):
            return INFEASIBLE
        if not self._is_steady and not self.is_eligible(kind):
            return INFEASIBLE
        best = INFEASIBLE
        for gpus in gpu_choices(self.ask, kind):
            if self.is_per_node:
                self._gpus[kind.id] = gpus
                return 0
            answer = self._score(kind, gpus)
            if answer.value > best:
                best = answer.value
                self._gpus[kind.id], self._best[kind.id] = gpus, answer
        return best

    def _suits(self, kind: Kind) -> bool:
        """What depends on nothing that is used of a node: the same for all kinds of one build."""
        ask, build = self.ask, kind.build
        if not build.is_open or (
            not _suits(ask, build) if ask.gpus else ask.models and build.gpu_model not in ask.models
        ):
            return False
        return not self._is_steady or self.is_eligible(kind)

    def is_eligible(self, kind: Kind) -> bool:
        """What the eligibility rules say; false if they err."""
        return self.eligibility(kind).value

    def eligibility(self, kind: Kind) -> Answer[bool]:
        """What the eligibility rules say, and which."""
        facts = kind.facts
        if "node.fragmentation_milli" in self._rules.eligibility_reads:
            facts = replace(facts, fragmentation_milli=self._kinds.fragmentation_micro(kind) // MICRO)
        return self._rules.eligibility(self.job, self.ask.facts, kind.cluster, facts)

    def _score(self, kind: Kind, gpus: tuple[int, ...], candidate: CandidateFacts | None = None) -> Answer[int]:
        before, after = kind.facts, facts_after(kind, self.ask.amounts, gpus)
        if self._is_suited:
            after.model_rank = self._models.get(kind.build.gpu_model, 0)
            after.throughput_ppm = self.ask.role.throughput_ppm.get(kind.build.gpu_model, PPM)
        if self._is_measured:
            before_micro = self._kinds.fragmentation_micro(kind)
            after_micro = self._kinds.fragmentation_micro(kind, self.ask.amounts, gpus)
            before = replace(before, fragmentation_milli=before_micro // MICRO)
            after.fragmentation_milli = after_micro // MICRO
            after.descent_score = descent_score(before_micro, after_micro)
        return self._rules.scoring(self.ask.facts, kind.cluster, before, after, candidate)

    def best_of_nodes(
        self, job: int, rows: list[int], nodes: NodeColumn, names: list[str]
    ) -> tuple[int, tuple[int, ...]]:
        """For rules that look at single candidates: the best (row, GPUs) among feasible rows, the first on a tie."""
        best, best_row = INFEASIBLE, -1
        best_gpus: tuple[int, ...] = ()
        if self._is_lottery and len(rows) > 1:
            rows = draw(names).best(job, rows)
        for row in rows:
            kind = self._kinds.kinds[nodes[row]]
            for gpus in gpu_candidates(self.ask, kind):
                gpu = gpus[0] if self.ask.amounts.gpu_milli < MILLI and gpus else -1
                ticket = lottery(job, names[row], gpu)
                answer = self._score(kind, gpus, CandidateFacts(names[row], gpu, ticket))
                if answer.value > best:
                    best, best_row, best_gpus = answer.value, row, gpus
                    self._best[kind.id] = answer
        return best_row, best_gpus


def is_steady(eligibility_reads: frozenset[str]) -> bool:
    """Whether what the eligibility rules say of a node does not change with what is used of it."""
    return not any(word in path for path in eligibility_reads for word in ("free", "fragmentation", "mig_placements"))


def _suits(ask: Ask, build: Build) -> bool:
    """Whether the GPUs of the build are of a model and a size that the ask accepts."""
    return (not ask.models or build.gpu_model in ask.models) and build.gpu_memory_bytes >= ask.gpu_memory_min_bytes


def _other_fits(asked: tuple[tuple[str, int], ...], free: tuple[tuple[str, int], ...]) -> bool:
    there = dict(free)
    return all(there.get(name, 0) >= amount for name, amount in asked)


def gpu_choices(ask: Ask, kind: Kind) -> list[tuple[int, ...]]:
    """Ways to choose GPUs that differ in the state that they leave: least sufficient remainder first."""
    if ask.gpus == 0:
        return [()]
    if kind.slices or not ask.is_plain:
        return sharing.choices(kind.build, kind.gpu_free, kind.slices, ask.amounts, ask.gpus)
    need = ask.amounts.gpu_milli
    if need == MILLI:
        free_gpus = [index for index, free in enumerate(kind.gpu_free) if free == MILLI]
        return [tuple(free_gpus[: ask.gpus])] if len(free_gpus) >= ask.gpus else []
    first: dict[int, int] = {}
    for index, free in enumerate(kind.gpu_free):
        if free >= need:
            first.setdefault(free, index)
    return [(first[free],) for free in sorted(first)]


def gpu_candidates(ask: Ask, kind: Kind) -> list[tuple[int, ...]]:
    """Every GPU that would do, for a fraction; the one choice otherwise."""
    if ask.gpus and (kind.slices or not ask.is_plain):
        return sharing.candidates(kind.build, kind.gpu_free, kind.slices, ask.amounts, ask.gpus)
    if ask.gpus != 1 or ask.amounts.gpu_milli == MILLI:
        return gpu_choices(ask, kind)
    return [(index,) for index, free in enumerate(kind.gpu_free) if free >= ask.amounts.gpu_milli]


def tally(need: Need, kinds: KindTable, column: Column, faults: dict[str, None]) -> Tally:
    """How many nodes were refused for what; each node counts once, at the first cause that holds in the order of
    :class:`~controlplane.domain.events.Tally`'s own fields. ``faults`` takes the eligibility rules that erred."""
    counts: dict[str, int] = {}
    present, numbers = np.unique(column, return_counts=True)
    for id_, number in zip(present.tolist(), numbers.tolist(), strict=True):
        cause = _first_cause(need, kinds.kinds[id_], faults)
        counts[cause] = counts.get(cause, 0) + number
    return Tally(nodes=int(column.size), **counts)


def _first_cause(need: Need, kind: Kind, faults: dict[str, None]) -> str:
    ask, build, amounts = need.ask, kind.build, need.ask.amounts
    if ask.models and build.gpu_model not in ask.models:
        return "wrong_model"
    if not could_ever_fit(ask, kind):
        return "too_small"
    eligible = need.eligibility(kind)
    if not eligible.value:
        if eligible.fault is not None:
            faults[eligible.fault] = None
        return "not_eligible"
    if not build.is_open:
        return "cordoned"
    if kind.cpu_free < amounts.cpu_milli:
        return "no_cpu"
    if kind.memory_free < amounts.memory_bytes:
        return "no_memory"
    if ask.gpus and not gpu_choices(ask, kind):
        is_misplaced = amounts.mig_profile and sharing.is_misplaced(build, kind.gpu_free, kind.slices, amounts)
        return "mig_misplaced" if is_misplaced else "no_gpu"
    return "fitting" if _other_fits(amounts.other, kind.other_free) else "no_other"


def could_ever_fit(ask: Ask, kind: Kind) -> bool:
    """Whether an empty node of the build would hold one member, model and eligibility aside."""
    build, amounts = kind.build, ask.amounts
    return (
        build.cpu_milli >= amounts.cpu_milli
        and build.memory_bytes >= amounts.memory_bytes
        and build.gpus >= (0 if amounts.mig_profile else ask.gpus)
        and _other_fits(amounts.other, build.other)
        and build.gpu_memory_bytes >= ask.gpu_memory_min_bytes
        and (ask.gpus == 0 or (ask.is_plain and not build.mig_geometry) or sharing.fits_empty(build, amounts, ask.gpus))
    )
