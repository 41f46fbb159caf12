"""The terms on which a gang waits, starts and goes on, where the rules give it others than it asked for.

Theory of operation. Rules are asked when a job is admitted; if they look at the time, again about once a minute for as
long as it waits. What they give is recorded (``terms_given/1``) and makes the job one of another class, as if it had
been submitted so: every step that follows sees the terms and knows nothing of where they came from. A job keeps the
terms that it was given when another policy comes into force, and while it holds a lease.

A job that is admitted has its terms at once, and may be placed on them in the same cycle. So :meth:`Terms.at_admission`
does to the state what folding the decision will do, and :meth:`Terms.undo` takes it back before the cycle closes. Terms
that change while a job waits hold from the next cycle on.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from dataclasses import dataclass

from controlplane.domain.events import TermsGiven
from controlplane.domain.workloads import GangTerms
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft, home_facts
from controlplane.scheduler.facts import HomeFacts
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.rules import Answer, Rules
from controlplane.scheduler.state import Job, JobClass, Phase, State

REASK_MS = 60_000
"""Rules that look at the time are asked again for those who wait after this."""


@dataclass(frozen=True, slots=True)
class TakenOn:
    """A job that was made one of another class, and what that took."""

    job: Job
    cls: JobClass
    """Before, as ``asked``."""
    asked: JobClass | None
    gone: tuple[tuple[int, int], ...]
    """Expiries that were taken out, and those that were put in."""
    come: tuple[tuple[int, int], ...]


def take_on(state: State, job: Job, terms: GangTerms) -> TakenOn:
    """Make a job that waits one of the class that it has under the terms; when it gives up follows."""
    before, asked = job.cls, job.as_asked
    given = state.class_of(terms.applied(asked.spec), job.submitted_ms)
    gone = tuple(expiry for expiry in expiries(job) if _take_out(state, expiry))
    _become(job, given, None if given is asked else asked)
    # What a cycle finds late in its work would be dropped at its end as settled: it is settled in the next.
    least_ms = state.now_ms + 1 if job.phase is Phase.WAITING else 0
    come = tuple((max(instant, least_ms), id_) for instant, id_ in expiries(job))
    for expiry in come:
        insort(state.expiries, expiry)
    return TakenOn(job, before, None if before is asked else asked, gone, come)


def take_back(state: State, taken: TakenOn) -> None:
    """Undo :func:`take_on`."""
    for expiry in taken.come:
        _take_out(state, expiry)
    for expiry in taken.gone:
        insort(state.expiries, expiry)
    _become(taken.job, taken.cls, taken.asked)


def _become(job: Job, cls: JobClass, asked: JobClass | None) -> None:
    job.cls.waiting -= 1
    job.cls, job.asked = cls, asked
    job.cls.waiting += 1


def _take_out(state: State, expiry: tuple[int, int]) -> bool:
    at = bisect_left(state.expiries, expiry)
    is_there = state.expiries[at : at + 1] == [expiry]
    if is_there:
        del state.expiries[at]
    return is_there


def expiries(job: Job) -> Iterator[tuple[int, int]]:
    """(instant, job id) at which it gives up waiting."""
    spec = job.cls.spec
    if spec.wait_limit_ms is not None:
        yield (job.submitted_ms + spec.wait_limit_ms, job.id)
    if spec.start_by_ms is not None:
        yield (spec.start_by_ms, job.id)


@dataclass(frozen=True, slots=True)
class Given:
    """What the rules say of one job: the event, if that is anything new, and the sentence if they erred."""

    event: TermsGiven | None
    rule: str | None = None
    fault: str | None = None


_AS_BEFORE = Given(None)


class Terms:
    """The terms that one cycle gives."""

    def __init__(self, state: State, rules: Rules, agenda: Agenda, draft: Draft) -> None:
        self._state = state
        self._rules = rules
        self._agenda = agenda
        self._draft = draft
        self._home: HomeFacts | None = None
        self._taken_on: list[TakenOn] = []
        self.as_they_ask = agenda.as_they_ask
        """Classes whose jobs keep the terms that they ask for; asked for membership only."""
        reads = rules.gang_reads
        self._reads_home = any(path.startswith("home.") for path in reads)
        self._may_change = rules.may_give_terms and "now" in reads
        """Whether what a job is given may be something else later."""

    def at_admission(self, job: Job, queue: QueueNode) -> Given:
        """What a job that is admitted is given; it has it at once."""
        if not self._rules.may_give_terms:
            self.as_they_ask.add(job.cls.index)
            return _AS_BEFORE
        is_shared = self._agenda.terms_are_shared and job.asked is None
        answer = self._agenda.terms.get(job.cls.index) if is_shared else None
        if answer is None:
            answer = self._ask(job, queue)
            if is_shared:
                self._agenda.terms[job.cls.index] = answer
        if answer.fault is not None:
            return Given(None, answer.rule, answer.fault)
        if not self._is_new(job, answer.value):
            if is_shared:
                self.as_they_ask.add(job.cls.index)
            return _AS_BEFORE
        self._taken_on.append(take_on(self._state, job, answer.value))
        return Given(TermsGiven(job=job.id, terms=answer.value, rule=answer.rule), answer.rule)

    def again(self, leave_out: Container[int]) -> Iterator[Given]:
        """What those who wait are given now, where the rules look at the time and it is time to ask."""
        if not self._may_change or not self._is_round:
            return
        self._home = None
        for job in list(self._state.jobs.values()):
            if job.phase is not Phase.WAITING or job.id in self._draft.gone or job.id in leave_out:
                continue
            answer = self._ask(job, self._state.tree.by_name.get(job.cls.spec.queue, self._state.tree.root))
            if answer.fault is not None:
                yield Given(None, answer.rule, answer.fault)
            elif self._is_new(job, answer.value):
                yield Given(TermsGiven(job=job.id, terms=answer.value, rule=answer.rule), answer.rule)

    @property
    def reask_ms(self) -> int | None:
        """When to ask again, though nothing else happens."""
        if not self._may_change or not self._state.pending[0]:
            return None
        return self._state.now_ms + REASK_MS if self._is_round else self._state.reask_ms

    @property
    def _is_round(self) -> bool:
        return self._state.reask_ms is None or self._state.reask_ms <= self._state.now_ms

    def undo(self) -> None:
        """Put every job back as it was."""
        while self._taken_on:
            take_back(self._state, self._taken_on.pop())

    def _is_new(self, job: Job, terms: GangTerms) -> bool:
        return self._state.class_of(terms.applied(job.as_asked.spec), job.submitted_ms) is not job.cls

    def _ask(self, job: Job, queue: QueueNode) -> Answer[GangTerms]:
        if self._reads_home and self._home is None:
            self._home = home_facts(self._state, self._draft)
        asked = job.as_asked
        queue_facts = self._draft.queue_facts(queue, 0)
        answer = self._rules.gang(job.facts(asked.facts), queue_facts, self._home, self._state.now_ms)
        return Answer(answer.value.new_to(asked.spec), answer.rule, answer.fault)
