"""What each queue with work claims next, so that a cohort is not held back by what is not contested.

A queue is a user of DRF (NSDI'11): its share is its dominant share. A cohort whose share were the dominant share of all
that is used below it would block: a team that uses much memory keeps its sister, which needs CPUs only, from getting
any, because their cohort looks rich ("Hierarchical Scheduling for Diverse Datacenter Workloads", SoCC'13, section 4,
which rescales to the poorest child and leaves out the blocked ones). Rescaling is right for work that can be divided at
will; with whole gangs the poorest child is often one that has nothing yet, and a cohort of many small queues would
always go first.

Here the resource that dominates a queue, its next job included, is the queue's *claim*. A cohort is compared with its
siblings by its share of the resource that is claimed below it, once for each claim, and who goes first is sought only
among the queues that claim it. A queue that has no work or was refused in this cycle claims nothing, so that it blocks
nobody. Where one resource dominates everywhere, and for a cohort of one queue, this is plain DRF.
"""

from __future__ import annotations

from collections.abc import Callable

from controlplane.domain.quantities import PPB
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import Job, State

ANY = ""
"""The claim where it makes no difference: of a queue right below the root, or for rules that do not read shares."""
Told = Callable[[QueueNode, str], None]
_SHARES = frozenset({"queue.share_ppb", "queue.weighted_share_ppb", "queue"})


class Claims:
    """Of one cycle. A queue with a claim is one that still has jobs to try."""

    def __init__(self, state: State, rules: Rules, draft: Draft, came: Told, went: Told) -> None:
        """``came`` and ``went`` are told when a claim is made below a queue for the first time, and not any more."""
        self._came, self._went = came, went
        self._state = state
        self._draft = draft
        self._is_read = bool(_SHARES & rules.queue_order_reads)
        self._below: list[dict[str, int]] = [{} for _ in state.tree.nodes]
        self._own: dict[int, str] = {}
        self.queues: dict[int, QueueNode] = {}
        """By index: the queues with a claim."""

    def below(self, node: QueueNode) -> dict[str, int]:
        """Claim -> how many queues claim it: of the queue itself, or of all below it. Not to be changed."""
        return self._below[node.index]

    def put(self, queue: QueueNode, job: Job) -> None:
        """The job is the next that the queue would start."""
        is_shared = self._is_read and len(queue.path) > 2
        claim = self.dominant(queue, job) if is_shared else ANY
        if self._own.get(queue.index) != claim:
            self.withdraw(queue)
            self._own[queue.index], self.queues[queue.index] = claim, queue
            for node in queue.path:
                below = self._below[node.index]
                below[claim] = below.get(claim, 0) + 1
                if below[claim] == 1:
                    self._came(node, claim)

    def withdraw(self, queue: QueueNode) -> None:
        """The queue has nothing more to try."""
        claim = self._own.pop(queue.index, None)
        if claim is None:
            return
        del self.queues[queue.index]
        for node in queue.path:
            below = self._below[node.index]
            below[claim] -= 1
            if below[claim] == 0:
                del below[claim]
                self._went(node, claim)

    def dominant(self, queue: QueueNode, job: Job) -> str:
        """The resource of which the queue would have the largest share with the job; the first by name if two tie."""
        used, capacity = self._draft.used[queue.index], self._state.capacity
        asked = dict(job.cls.resources)
        best, share = ANY, -1
        for name in sorted({**used, **asked}):
            amount, total = used.get(name, 0) + asked.get(name, 0), capacity.get(name, 0)
            # To the billionth, like every share, so that what rules compare and what is claimed agree.
            its = amount * PPB // total if total > 0 else 0
            if amount > 0 and its > share:
                best, share = name, its
        return best
