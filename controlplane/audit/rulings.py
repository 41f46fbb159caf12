"""Which answers of the rules keep a watched job waiting, and what those rules looked at when they gave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from controlplane.domain.events import JobRefused
from controlplane.domain.ids import JobId, job_label
from controlplane.domain.reasons import Reason
from controlplane.policy.asked import AskedRules, Question
from controlplane.policy.bundle import load_bundle
from controlplane.policy.explain import Explanation
from controlplane.scheduler.facts import JobFacts, OfferFacts, QueueFacts
from controlplane.scheduler.state import Job, State
from controlplane.scheduler.verdicts import Watch


class AskedBook:
    """The rules of the policy that a state says is active, which remember what they are asked."""

    def __init__(self) -> None:
        self._by_digest: dict[str, AskedRules] = {}

    def active(self, state: State) -> AskedRules:
        """Raises ``BundleRefused``, as :class:`~controlplane.runtime.rulebook.Rulebook` does."""
        found = self._by_digest.get(state.policy_digest)
        if found is None:
            found = self._by_digest[state.policy_digest] = AskedRules(load_bundle(state.policy_files))
        return found

    def asked(self, state: State) -> int:
        """How many questions its rules have been asked so far."""
        found = self._by_digest.get(state.policy_digest)
        return len(found.questions) if found is not None else 0


@dataclass(frozen=True, slots=True)
class Ruling:
    """One answer that stands in the way of a job."""

    about: str
    """The job that the rules were asked about, or the offer: ``j12``, ``cloud/a100``."""
    explanation: Explanation

    @property
    def is_of_burst(self) -> bool:
        """Whether it keeps the job from an offer, and not from a place that is there."""
        return self.explanation.point == "burst"

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"about": self.about, **self.explanation.as_dict()}

    def sentences(self) -> list[str]:
        """What was asked and answered, then what the rule looked at, a line each."""
        told = self.explanation
        said = told.answer if told.fault is None else f"failed ({told.fault}), so {told.closed}"
        rule = f", by {told.rule}" if told.rule is not None else ""
        answered = f"The {told.point} rules said of {self.about}: {said}{rule}. They looked at:"
        return [answered, *(f"  {line.strip()}" for line in told.details())]


def rulings(watch: Watch, job: Job, refused: JobRefused | None, rules: AskedRules, since: int) -> list[Ruling]:
    """The answers that bind a job in the cycle that was just decided with it watched, the binding one first; then those
    of the burst rules that keep it at home. ``since`` is how many questions had been asked before the cycle."""
    asking = _Asking(job, rules)
    found = [question for question in [asking.refused(refused), asking.binding(watch)] if question is not None]
    told = [Ruling(_about(question), rules.explain(question)) for question in found]
    return [*told, *(Ruling(_offer(question), rules.explain(question)) for question in asking.kept_home(since))]


def _about(question: Question) -> str:
    facts = question.arguments[0]
    return facts.id if isinstance(facts, JobFacts) else question.point


def _offer(question: Question) -> str:
    offer = question.arguments[3]
    assert isinstance(offer, OfferFacts), "the fourth fact of burst is the offer"
    return f"{offer.cluster}/{offer.name}"


class _Asking:
    """Finds questions that were asked about a job, or about one that is alike in all that the rules read of it: answers
    are shared among those."""

    def __init__(self, job: Job, rules: AskedRules) -> None:
        self._facts = job.facts()
        self._rules = rules

    def refused(self, refused: JobRefused | None) -> Question | None:
        """Of a job that admission turned away."""
        if refused is None or refused.reason not in (Reason.REFUSED_BY_POLICY, Reason.RULE_FAILED):
            return None
        erred = (question for question in self._of("gang") if question.answer.fault is not None)
        return self._last("admission", lambda answer: answer is not None) or next(erred, None)

    def binding(self, watch: Watch) -> Question | None:
        """Behind the first reason why it does not start."""
        refusal = watch.refusal
        match refusal.reason if refusal is not None and not watch.is_granted else None:
            case Reason.QUOTA if refusal is not None and refusal.rule is not None:
                return self._last("quota", lambda answer: answer is False)
            case Reason.NOT_ELIGIBLE:
                return self._last("eligibility", lambda answer: answer is False)
            case Reason.BEHIND_HEAD:
                return next(self._blocking(), None)
            case Reason.RESERVED:
                holders = {job_label(JobId(hold.job)) for hold in watch.reservations if hold.job != watch.job}
                asked = self._of("reservation")
                return next((question for question in asked if _about(question) in holders), None)
            case _:
                return None

    def kept_home(self, since: int) -> Iterator[Question]:
        """By the burst rules, in this cycle: they are asked about each job for itself."""
        for question in self._rules.questions[since:]:
            if question.point == "burst" and question.answer.value is None and _about(question) == self._facts.id:
                yield question

    def _blocking(self) -> Iterator[Question]:
        """Asked about who goes before it, and answered so that it may not pass."""
        for question in self._of("overtaking"):
            queue, passing = question.arguments[1], question.answer.value
            assert isinstance(queue, QueueFacts), "the second fact of overtaking is the queue"
            scope = "queue" if queue.name == self._facts.queue else "others"
            if isinstance(passing, list | tuple) and scope not in passing:
                yield question

    def _of(self, point: str) -> list[Question]:
        """What was asked at a point, the latest first."""
        return [question for question in reversed(self._rules.questions) if question.point == point]

    def _last(self, point: str, is_such: Callable[[object], bool]) -> Question | None:
        asked = [question for question in self._of(point) if is_such(question.answer.value)]
        own = (question for question in asked if _about(question) == self._facts.id)
        names = [path[4:] for path in self._rules.reads(point) if path.startswith("job.")]
        alike = (question for question in asked if self._is_alike(question, names))
        return next(own, None) or next(alike, None)

    def _is_alike(self, question: Question, names: list[str]) -> bool:
        facts = question.arguments[0]
        return isinstance(facts, JobFacts) and all(getattr(facts, name) == getattr(self._facts, name) for name in names)
