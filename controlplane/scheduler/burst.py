"""Step 8: which waiting job is served by which offer, within which budget.

Mechanism, not to be switched off by a rule: an offer must hold the whole gang, each job is rented for once at a time,
what is promised is the price of every node from now to its deadline, and no budget is ever promised more than it has
left in its window. Rules say who may leave home, when, at which cost, and which offer is best.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from controlplane.domain.clusters import ClusterSpec, Offer
from controlplane.domain.events import CapacityRequested
from controlplane.domain.quantities import MAX_AMOUNT, MAX_MS, cost_micro_usd
from controlplane.domain.reasons import Reason
from controlplane.domain.topology import LEVELS, Level
from controlplane.scheduler.agenda import Agenda, Group
from controlplane.scheduler.draft import Draft, home_facts
from controlplane.scheduler.facts import BudgetFacts, HomeFacts, OfferFacts, QueueFacts
from controlplane.scheduler.kinds import Build
from controlplane.scheduler.needs import INFEASIBLE, Need
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import BudgetAccount, Job, State
from controlplane.scheduler.topology import CLUSTER, required_depth
from controlplane.scheduler.verdicts import OfferVerdict, Refusal, Watch

RENT_SLACK_MS = 900_000
"""Added to the estimate when the termination deadline is set: launching, a slow start, a checkpoint at the end."""
RENT_WITHOUT_ESTIMATE_MS = 86_400_000
"""How long nodes are rented for a job that does not say how long it runs."""
REASK_MS = 60_000
"""Rules that look at the time and kept a job at home are asked again after this."""
MAX_QUESTIONS = 10_000
"""Pairs of job and offer that one cycle looks at; the rest waits for the next cycle."""

_CURABLE = (
    Reason.BEHIND_HEAD,
    Reason.CAPACITY,
    Reason.HELD_WARM,
    Reason.NO_NODE_OF_MODEL,
    Reason.EXCEEDS_EVERY_NODE,
    Reason.EXCEEDS_CAPACITY,
    Reason.EXCEEDS_TOPOLOGY,
    Reason.TOPOLOGY,
    Reason.NOT_ELIGIBLE,
)
"""What more nodes would cure."""


@dataclass(frozen=True, slots=True, eq=False)
class _Choice:
    cluster: ClusterSpec
    offer: Offer
    nodes: int
    promise: int
    deadline_ms: int
    rule: str | None


class Burst:
    """The burst step of one cycle. ``requested`` collects its decisions; ``offset`` numbers them within the cycle.

    Nothing is rented for jobs to which room at home is promised, nor for those that give up in this very cycle.
    """

    def __init__(
        self,
        state: State,
        rules: Rules,
        agenda: Agenda,
        draft: Draft,
        watch: Watch | None,
        offset: int,
        promised_room: Container[int],
    ) -> None:
        self._promised_room = promised_room
        self._state = state
        self._rules = rules
        self._agenda = agenda
        self._draft = draft
        self._watch = watch
        self._offset = offset
        self._questions = 0
        self._home: HomeFacts | None = None
        self._offers = [
            (spec, offer) for _, spec in sorted(state.clusters.items()) for offer in spec.offers if offer.max_nodes > 0
        ]
        self._rented: dict[tuple[str, str], int] = {}
        self._served: set[int] = set()
        for request in state.requests.values():
            key = (request.cluster, request.offer)
            self._rented[key] = self._rented.get(key, 0) + request.nodes
            if request.is_held:
                self._served.add(request.held_for)
                waiting = state.jobs.get(request.held_for)
                if waiting is not None and waiting.lease is None and waiting.id not in draft.gone:
                    draft.count_in_array(waiting)
        self._promised: dict[str, int] = {}
        self._is_round = state.reask_ms is None or state.reask_ms <= state.now_ms
        """Rules are asked for everybody once a minute, and at once for who begins to wait."""
        self.reask_ms: int | None = None if self._is_round else state.reask_ms
        """When to ask again, though nothing else happens; see ``CycleDecided``."""
        self.requested: list[CapacityRequested] = []
        self.is_as_first = False
        """As the first core: offers that failed do not rest, and a budget that was short is asked again when its window
        turns and not before, though what was promised may come back to it."""

    def has_offers(self) -> bool:
        """Whether there is anything to choose from."""
        return bool(self._offers)

    def consider(self, group: Group, refusal: Refusal) -> Refusal:
        """Ask offers for the waiting jobs of a group; the refusal of its first job that is not :meth:`served`."""
        if refusal.reason not in _CURABLE:
            return refusal
        queue_facts = self._draft.queue_facts(group.queue, 0)
        now_ms = self._state.now_ms
        for entry in group.live():
            if entry.id in self._draft.gone or entry.id in self._promised_room or entry.job.gives_up_by(now_ms):
                continue
            if self._questions >= MAX_QUESTIONS:
                break
            after = self._consider_job(entry.job, group.queue, queue_facts, refusal)
            if after.reason is not Reason.PROVISIONING:
                return after
        return refusal

    def served(self) -> frozenset[int]:
        """Jobs for which nodes have been asked for and not been taken yet, those of this cycle included."""
        return frozenset(self._served)

    def _consider_job(self, job: Job, queue: QueueNode, facts: QueueFacts, refusal: Refusal) -> Refusal:
        if job.id in self._served:
            return Refusal(Reason.PROVISIONING)
        if self._draft.is_array_full(job):
            return refusal
        if not self._is_round and job.recorded_reason not in (0, Reason.PROVISIONING):
            return Refusal(Reason.BUDGET, refusal.short) if job.recorded_reason == Reason.BUDGET else refusal
        refused: dict[str, str] = {}
        choices: list[tuple[int, str, _Choice]] = []
        is_short = False
        for spec, offer in self._offers:
            self._questions += 1
            name = f"{spec.name}/{offer.name}"
            answer = self._ask(job, queue, facts, spec, offer)
            if isinstance(answer, tuple):
                choices.append((answer[0], name, answer[1]))
                continue
            refused[name] = answer.answer
            is_short = is_short or answer.answer.startswith("budget")
            if self._watch is not None and self._watch.job == job.id:
                self._watch.offers.append(answer)
        if not choices:
            return Refusal(Reason.BUDGET, refusal.short) if is_short else refusal
        choices.sort(key=lambda choice: choice[:2])
        for cost, name, _ in choices[1:]:
            refused[name] = f"cost {cost} is not the lowest"
        self._request(job, queue, choices[0][2], refused)
        self._draft.count_in_array(job)
        return Refusal(Reason.PROVISIONING)

    def _ask(
        self, job: Job, queue: QueueNode, facts: QueueFacts, spec: ClusterSpec, offer: Offer
    ) -> OfferVerdict | tuple[int, _Choice]:
        """The cost and choice if the rules want the offer and a budget allows it; else why not."""
        name = f"{spec.name}/{offer.name}"
        rest = None if self.is_as_first else self._state.rests.get((spec.name, offer.name))
        if rest is not None and rest.until_ms is not None and rest.until_ms > self._state.now_ms:
            self._ask_again(rest.until_ms)
            times = "once" if rest.failures == 1 else f"{rest.failures} times in a row"
            return OfferVerdict(name, f"it failed {times} and rests until {rest.until_ms} ms")
        nodes = self._nodes_needed(self._agenda.needs_of(self._state, job), spec, offer)
        left = offer.max_nodes - self._rented.get((spec.name, offer.name), 0)
        if nodes is None:
            return OfferVerdict(name, "its nodes do not hold the job, or the eligibility rules refuse them")
        apart = _kept_apart(self._agenda.needs_of(self._state, job), nodes, offer)
        if apart is not None:
            return OfferVerdict(name, f"its nodes are not promised to share one {apart}, which the job requires")
        if nodes > left:
            return OfferVerdict(name, f"needs {nodes} nodes, {left} are left")
        estimate = job.cls.spec.estimate_ms
        length = RENT_WITHOUT_ESTIMATE_MS if estimate is None else estimate + RENT_SLACK_MS
        deadline_ms = self._state.now_ms + offer.lead_time_ms + length
        promise = nodes * cost_micro_usd(offer.price_micro_usd_per_hour, deadline_ms - self._state.now_ms)
        if deadline_ms > MAX_MS or promise > MAX_AMOUNT:
            return OfferVerdict(name, "the job's estimate is too long to be given a deadline or a price")
        budget = self._tightest(queue)
        answer = self._rules.burst(
            job.facts(),
            facts,
            self._home_facts(),
            _offer_facts(spec, offer, nodes, left, promise),
            self._budget_facts(budget),
            self._state.now_ms,
        )
        if answer.fault is not None:
            self._agenda.faults[answer.fault] = None
        if answer.value is None:
            if "now" in self._rules.burst_reads:
                self._ask_again(self._state.now_ms + REASK_MS)
            return OfferVerdict(name, answer.fault or "the burst rule keeps the job at home", answer.rule)
        if budget is not None and self._left(budget) < promise:
            self._ask_again((budget.window(self._state.now_ms) + 1) * budget.spec.window_ms)
            if not self.is_as_first:
                self._ask_again(self._state.now_ms + REASK_MS)
            short = f"budget {budget.spec.name} has {self._left(budget)} micro-dollars left, {promise} are needed"
            return OfferVerdict(name, short, answer.rule)
        return answer.value, _Choice(spec, offer, nodes, promise, deadline_ms, answer.rule)

    def _nodes_needed(self, needs: tuple[Need, ...], spec: ClusterSpec, offer: Offer) -> int | None:
        """How many of the offer's nodes hold the whole gang, first fit; ``None`` if a member does not fit."""
        key = (needs, spec.name, offer.name)
        if key not in self._agenda.offer_sizes:
            self._agenda.offer_sizes[key] = self._pack(needs, spec, offer)
        return self._agenda.offer_sizes[key]

    def _pack(self, needs: tuple[Need, ...], spec: ClusterSpec, offer: Offer) -> int | None:
        kinds = self._state.kinds
        empty = kinds.empty(Build.of(spec.name, offer.flavor, offer.shape, offer.labels, is_open=True))
        column = np.zeros(0, dtype=np.int32)
        for need in needs:
            for _ in range(need.ask.role.count):
                rows = np.flatnonzero(need.scores(column) > INFEASIBLE)
                if rows.size == 0:
                    column = np.append(column, np.int32(empty))
                    rows = np.flatnonzero(need.scores(column) > INFEASIBLE)
                    if rows.size == 0:
                        return None
                row = int(rows[0])
                kind = int(column[row])
                column[row] = kinds.take(kind, need.ask.amounts, need.gpus(kind))
        return int(column.size)

    def _ask_again(self, at_ms: int) -> None:
        self.reask_ms = at_ms if self.reask_ms is None else min(self.reask_ms, at_ms)

    # --- money -------------------------------------------------------------------------------------------------------

    def _budgets(self, queue: QueueNode) -> list[BudgetAccount]:
        names = {node.name for node in queue.path}
        accounts = (account for _, account in sorted(self._state.budgets.items()))
        return [account for account in accounts if account.spec.queue is None or account.spec.queue in names]

    def _left(self, account: BudgetAccount) -> int:
        return account.left(self._state.now_ms) - self._promised.get(account.spec.name, 0)

    def _tightest(self, queue: QueueNode) -> BudgetAccount | None:
        return min(self._budgets(queue), key=lambda account: (self._left(account), account.spec.name), default=None)

    def _budget_facts(self, account: BudgetAccount | None) -> BudgetFacts | None:
        if account is None:
            return None
        spec, now = account.spec, self._state.now_ms
        return BudgetFacts(
            name=spec.name,
            limit_micro_usd=spec.limit_micro_usd,
            left_micro_usd=self._left(account),
            window_left_ms=(account.window(now) + 1) * spec.window_ms - now,
        )

    def _home_facts(self) -> HomeFacts:
        if self._home is None:
            self._home = home_facts(self._state, self._draft)
        return self._home

    def _request(self, job: Job, queue: QueueNode, choice: _Choice, refused: dict[str, str]) -> None:
        budgets = tuple(account.spec.name for account in self._budgets(queue))
        for name in budgets:
            self._promised[name] = self._promised.get(name, 0) + choice.promise
        key = (choice.cluster.name, choice.offer.name)
        self._rented[key] = self._rented.get(key, 0) + choice.nodes
        self._served.add(job.id)
        self.requested.append(
            CapacityRequested(
                request=f"c{self._state.cycle + 1}.{self._offset + len(self.requested)}",
                cluster=choice.cluster.name,
                offer=choice.offer.name,
                nodes=choice.nodes,
                for_job=job.id,
                deadline_ms=choice.deadline_ms,
                promised_micro_usd=choice.promise,
                budgets=budgets,
                rule=choice.rule,
                refused_offers=dict(sorted(refused.items())),
            )
        )
        if self._watch is not None and self._watch.job == job.id:
            self._watch.offers.append(OfferVerdict(f"{key[0]}/{key[1]}", "chosen", choice.rule))


def _kept_apart(needs: tuple[Need, ...], nodes: int, offer: Offer) -> Level | None:
    """The level that a gang requires and that several nodes of the offer are not promised to share."""
    depth = max(required_depth(need) for need in needs)
    promised = offer.together.depth if offer.together is not None else CLUSTER
    return LEVELS[depth - 1] if nodes > 1 and promised < depth else None


def _offer_facts(spec: ClusterSpec, offer: Offer, nodes: int, left: int, promise: int) -> OfferFacts:
    return OfferFacts(
        cluster=spec.name,
        name=offer.name,
        flavor=offer.flavor,
        market=offer.market.value,
        gpu_model=offer.shape.gpu_model or "",
        gpus=offer.shape.gpus,
        price_micro_usd_per_hour=offer.price_micro_usd_per_hour,
        lead_time_ms=offer.lead_time_ms,
        nodes_needed=nodes,
        nodes_left=left,
        cost_micro_usd=promise,
    )
