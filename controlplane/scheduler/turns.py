"""Steps 3 and 4: whose turn it is. The jobs of each queue in order, and the order among queues.

Theory of operation. A queue lines up the first job of each of its groups (see :mod:`controlplane.scheduler.agenda`)
in a heap. Among queues the next is sought from the root down: at each level the child that the rules rank first, for
the claims (:mod:`controlplane.scheduler.claims`) of the queues below it that still have jobs to try. Ranks are kept in
a heap for each cohort and claim, and are asked again only of the queues on the way from a placement to the root: a turn
costs the depth of the tree and not its width.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.scheduler.agenda import Agenda, Entry, Group, Order
from controlplane.scheduler.claims import Claims
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import Job, State


class Turn(NamedTuple):
    """A job that is tried. Sorts by its entry, which is like no other, so that nothing behind it is compared."""

    entry: Entry
    group: Group
    behind: Iterator[Entry]
    """The entries of its group behind it."""


@dataclass(slots=True, eq=False)
class _Line:
    """The queues below one cohort that one claim is made below, ranked."""

    ways: dict[int, QueueNode] = field(default_factory=dict)
    """By index: the children with the claim."""
    heap: list[tuple[Order, str, int, QueueNode]] = field(default_factory=list)
    """(rank, name, stamp, child); stale where the child has another stamp by now."""
    stamps: dict[int, int] = field(default_factory=dict)
    unranked: dict[int, QueueNode] = field(default_factory=dict)
    """Children whose rank is to be asked, when it matters."""

    def ask_again(self, child: QueueNode) -> None:
        """What is known of the child's rank does not hold any more."""
        self.stamps[child.index] = self.stamps.get(child.index, 0) + 1
        self.unranked[child.index] = child

    def first(self) -> tuple[Order, str, int, QueueNode] | None:
        """The entry of the child that goes first; all are ranked."""
        while self.heap:
            top = self.heap[0]
            if top[3].index in self.ways and self.stamps[top[3].index] == top[2]:
                return top
            heapq.heappop(self.heap)
        return None


class Turns:
    """Of one cycle."""

    def __init__(self, state: State, rules: Rules, agenda: Agenda, draft: Draft, promised: Container[int]) -> None:
        self._state = state
        self._tree = state.tree
        self._rules = rules
        self._agenda = agenda
        self._draft = draft
        self._promised = promised
        """Jobs to which room is promised: they are not tried."""
        self._claims = Claims(state, rules, draft, self._claim_came, self._claim_went)
        self._lines: list[dict[str, _Line]] = [{} for _ in state.tree.nodes]
        """By index of a cohort: claim -> its line."""
        self._orders: list[dict[str, Order]] = [{} for _ in state.tree.nodes]
        """By queue index: claim -> order, as the rules said it."""
        self._heads_ms: dict[int, int] | None = None
        """By queue index, all below included: when the oldest of the heads of groups came. Who is placed in this cycle
        waits until its decisions are folded, so that the heads are the same throughout."""
        self._heaps: dict[int, list[Turn]] = {}
        """By queue index, of queues that had jobs to try: the first of each group that was not refused yet."""

    # --- jobs in their queues ----------------------------------------------------------------------------------------

    def line_up(self) -> None:
        """Line up every queue that has work."""
        for node in self._tree.nodes:
            groups = self._agenda.groups[node.index]
            if not groups:
                continue
            heap: list[Turn] = []
            for key in [key for key, group in groups.items() if group.head() is None]:
                del groups[key]
            for group in groups.values():
                self._line_up(heap, group, group.live())
            if heap:
                self._heaps[node.index] = heap
                self._claims.put(node, heap[0].entry.job)

    def _line_up(self, heap: list[Turn], group: Group, behind: Iterator[Entry]) -> None:
        for entry in behind:
            if entry.id not in self._draft.gone and entry.id not in self._promised:
                heapq.heappush(heap, Turn(entry, group, behind))
                return

    def take(self, queue: QueueNode) -> Turn | None:
        """The next job of the queue, taken out of its line; ``None`` if it was placed after it had been lined up."""
        heap = self._heaps[queue.index]
        turn = heapq.heappop(heap)
        if turn.entry.id in self._draft.gone or turn.entry.id in self._promised:
            self._line_up(heap, turn.group, turn.behind)
            self._end_if_empty(queue, heap)
            return None
        return turn

    def placed(self, queue: QueueNode, turn: Turn) -> None:
        """The job has its place, or a promise of one: the next of its group follows, and shares have changed."""
        heap = self._heaps[queue.index]
        self._line_up(heap, turn.group, turn.behind)
        self.used(queue)
        self._end_if_empty(queue, heap)

    def refused(self, queue: QueueNode) -> None:
        """The job that was taken was refused, and all of its group with it."""
        self._end_if_empty(queue, self._heaps[queue.index])

    def used(self, queue: QueueNode) -> None:
        """The queue uses more than before: where it and the cohorts above it stand is to be asked again."""
        for node in queue.path:
            self._orders[node.index].clear()
            if node.parent is not None:
                for line in self._lines[node.parent.index].values():
                    if node.index in line.ways:
                        line.ask_again(node)

    def withdraw(self, group: Group) -> None:
        """Take a group out of the line of its queue."""
        heap = self._heaps[group.queue.index]
        heap[:] = [turn for turn in heap if turn.group is not group]
        heapq.heapify(heap)

    def is_lined_up(self, group: Group) -> bool:
        """Whether the group is in the line of its queue."""
        return any(turn.group is group for turn in self._heaps.get(group.queue.index, ()))

    def keep_back(self, spared: Callable[[QueueNode], bool], *, in_order: bool = True) -> list[Group]:
        """Take all groups out of their lines, except those of queues that are spared. They are given in the order of
        their first jobs; core 1 gave them as they lay, which depends on how long the plane has been running."""
        kept_back: list[Group] = []
        for index, heap in self._heaps.items():
            queue = self._tree.nodes[index]
            if heap and not spared(queue):
                kept_back.extend(turn.group for turn in (sorted(heap) if in_order else heap))
                heap.clear()
                self._end_if_empty(queue, heap)
        return kept_back

    def reorder_for_backfill(self) -> None:
        """From now on the jobs of each queue are tried in the order of backfill."""
        for index, heap in self._heaps.items():
            groups = [turn.group for turn in heap]
            heap.clear()
            for group in groups:
                self._line_up(heap, group, group.in_backfill_order())
            self._end_if_empty(self._tree.nodes[index], heap)

    def _end_if_empty(self, queue: QueueNode, heap: list[Turn]) -> None:
        if heap:
            self._claims.put(queue, heap[0].entry.job)
        else:
            self._claims.withdraw(queue)

    # --- queues ------------------------------------------------------------------------------------------------------

    def next_queue(self) -> QueueNode | None:
        """The queue whose turn it is; ``None`` if none has jobs left to try."""
        if len(self._claims.queues) < 2:
            return next(iter(self._claims.queues.values()), None)
        node = self._tree.root
        remaining = list(self._claims.below(node))
        while node.children:
            lines = [
                (claim, line) for claim, line in self._lines[node.index].items() if line.ways and claim in remaining
            ]
            if len(lines) == 1 and len(lines[0][1].ways) == 1:
                node = next(iter(lines[0][1].ways.values()))
                continue
            node, remaining = self._first(lines)
        return node

    def _first(self, lines: list[tuple[str, _Line]]) -> tuple[QueueNode, list[str]]:
        """The child that goes first, and the claims for which it does."""
        best: tuple[Order, str] | None = None
        child: QueueNode | None = None
        claims: list[str] = []
        for claim, line in lines:
            for index, unranked in line.unranked.items():
                if index in line.ways:
                    heapq.heappush(
                        line.heap, (self.order(unranked, claim), unranked.name, line.stamps[index], unranked)
                    )
            line.unranked.clear()
        for claim, line in lines:
            top = line.first()
            if top is None:
                continue
            rank = top[:2]
            if best is None or rank < best:
                best, child, claims = rank, top[3], [claim]
            elif rank == best:
                claims.append(claim)
        assert child is not None, "a line with ways has a first"
        return child, claims

    def order(self, queue: QueueNode, claim: str) -> Order:
        """Where a queue stands among its siblings for a claim, as the rules say it."""
        known = self._orders[queue.index]
        order = known.get(claim)
        if order is None:
            facts = self._draft.queue_facts(queue, self._oldest(queue), claim)
            answer = self._rules.queue_order(facts, self._state.now_ms)
            if answer.fault is not None:
                self._agenda.faults[answer.fault] = None
            order = known[claim] = tuple(answer.value)
        return order

    def order_for(self, queue: QueueNode, job: Job) -> Callable[[QueueNode], Order]:
        """How queues are ordered for the claim of a job's queue."""
        claim = self._claims.dominant(queue, job)
        return lambda other: self.order(other, claim)

    def _oldest(self, queue: QueueNode) -> int:
        if "queue.oldest_ms" not in self._rules.queue_order_reads:
            return 0
        if self._heads_ms is None:
            self._heads_ms = {}
            for node in self._tree.nodes:
                heads = (group.head() for group in self._agenda.groups[node.index].values())
                waiting_ms = [head.job.submitted_ms for head in heads if head is not None]
                for up in node.path if waiting_ms else ():
                    self._heads_ms[up.index] = min(self._heads_ms.get(up.index, waiting_ms[0]), *waiting_ms)
        return self._heads_ms.get(queue.index, 0)

    def _claim_came(self, node: QueueNode, claim: str) -> None:
        if node.parent is not None:
            line = self._lines[node.parent.index].setdefault(claim, _Line())
            line.ways[node.index] = node
            line.ask_again(node)

    def _claim_went(self, node: QueueNode, claim: str) -> None:
        if node.parent is not None:
            del self._lines[node.parent.index][claim].ways[node.index]
