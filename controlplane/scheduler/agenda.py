"""What makes a cycle cost what changed and not how much is queued. Derived, never written down, safe to throw away.

The agenda belongs to one set of rules. It keeps, for every queue, its waiting jobs in groups of one
:class:`~controlplane.scheduler.state.JobClass` each, sorted by the ordering rule and then by id; the nodes as one
column of kinds, in the order of their names; and for every need what it knows about kinds. ``decide`` puts the nodes
back as they were and otherwise only adds what any cycle would find again, so that deciding twice gives the same.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from controlplane.domain.clusters import NodeState
from controlplane.domain.ids import NodeId
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import GangTerms
from controlplane.scheduler.facts import JobFacts, QueueFacts
from controlplane.scheduler.needs import Column, Need, NodeColumn, is_steady
from controlplane.scheduler.occupants import Occupant, occupant_of
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.rules import Answer, Rules
from controlplane.scheduler.state import Ask, Job, JobClass, Lease, Node, Phase, State
from controlplane.scheduler.topology import CLUSTER, Domains, required_depth
from controlplane.scheduler.verdicts import Refusal

if TYPE_CHECKING:
    from controlplane.scheduler.draft import Draft

Order = tuple[int, ...]
Kept = tuple[tuple[int, ...], tuple[tuple[int, int | None, tuple[int, ...]], ...]]
"""Jobs to which room is promised, and reservations as (job, start, rows)."""
_WAITS = (Phase.SUBMITTED, Phase.WAITING)


class Entry(NamedTuple):
    """One turn of one job in its queue. Sorts by order, then by id; the id and the turn make it unique."""

    order: Order
    id: int
    turn: int
    job: Job

    def is_live(self) -> bool:
        """Whether the job still waits, and waits on this turn."""
        return self.job.turn == self.turn and self.job.phase in _WAITS


@dataclass(slots=True, eq=False)
class Group:
    """Waiting jobs of one class in one queue: one scheduling key, one verdict."""

    cls: JobClass
    queue: QueueNode
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    """Entries before it are dead."""
    behind: Group | None = None
    """The same jobs in the order of backfill, where the rules have one of its own."""
    _refused_at: int = -1
    """``State.freed`` when the head was last refused."""
    _refused_by: int = -1
    """The position of the tick whose cycle refused it."""
    _kept: Kept = ((), ())
    """What was kept from it then for others."""
    _refusal: Refusal | None = None

    def take_in(self, entry: Entry) -> None:
        """A job began to wait."""
        if not self.entries or self.entries[-1] < entry:
            self.entries.append(entry)
        else:
            insort(self.entries, entry, lo=self.start)

    def in_backfill_order(self) -> Iterator[Entry]:
        """Entries of jobs that wait, in the order of backfill."""
        if self.behind is None:
            return self.live()
        self.behind.head()
        return self.behind.live()

    def remember(self, state: State, kept: Kept, refusal: Refusal) -> None:
        """This cycle found no room for the group beside what it keeps for others."""
        self._refused_at, self._refused_by = state.freed, state.position
        self._kept, self._refusal = kept, refusal

    def refusal_at(self, state: State, kept: Callable[[], Kept]) -> Refusal | None:
        """The verdict of an earlier cycle, if it still stands: nothing was freed, and the same is kept for others (a
        holder that goes in this very cycle frees nothing before its decisions are folded). What a cycle finds in the
        middle of its work stands only once its decisions are folded: deciding again from the same tick starts with the
        room as it was."""
        is_standing = self._refused_at == state.freed and self._refused_by != state.position
        return self._refusal if is_standing and self._kept == kept() else None

    def live(self) -> Iterator[Entry]:
        """Entries of jobs that wait, in order."""
        entries = self.entries
        return (entries[at] for at in range(self.start, len(entries)) if entries[at].is_live())

    def head(self) -> Entry | None:
        """The first that waits. Drops the dead in front of it: not to be called while :meth:`live` is being read."""
        entries = self.entries
        while self.start < len(entries) and not entries[self.start].is_live():
            self.start += 1
        if self.start > 64 and 2 * self.start > len(entries):
            del entries[: self.start]
            self.start = 0
        return entries[self.start] if self.start < len(entries) else None


class Agenda:
    """See the module. Made by :func:`agenda_for`."""

    def __init__(self, state: State, rules: Rules) -> None:
        self.rules = rules
        self.faults: dict[str, None] = {}
        """Sentences of the rules that erred behind something that was decided, for as long as the agenda lives. A cycle
        reports those that the log does not have yet."""
        self.groups: list[dict[int, Group]] = [{} for _ in state.tree.nodes]
        self._needs: dict[tuple[int, tuple[object, ...]], Need] = {}
        self._class_needs: dict[int, tuple[Need, ...]] = {}
        self._keys: list[str] = sorted(p[4:] for p in rules.eligibility_reads if p.startswith("job."))
        orders = rules.job_order_reads | (rules.backfill_order_reads if rules.may_order_backfill else frozenset())
        self._order_is_fixed = "now" not in orders and not any(path.startswith("queue.") for path in orders)
        self._order_is_shared = not _per_job(rules.job_order_reads)
        self._orders: dict[int, Order] = {}
        """By class: the place of its jobs in their queue, as long as it stays so."""
        self._admission_is_shared = not _per_job(rules.admission_reads) and not any(
            path == "now" or path.startswith("queue.") for path in rules.admission_reads
        )
        self._admissions: dict[int, Answer[str | None]] = {}
        self.terms: dict[int, Answer[GangTerms]] = {}
        """By class: what the rules give it, where all of the class share it."""
        self.as_they_ask: set[int] = set()
        """Those of them to which that is nothing new; asked for membership only."""
        self.terms_are_shared = not _per_job(rules.gang_reads) and not any(
            path == "now" or path.startswith(("queue.", "home.")) for path in rules.gang_reads
        )
        self._eligibility_is_shared = not _per_job(rules.eligibility_reads)
        self._node_reads = sorted(rules.eligibility_reads | rules.scoring_reads)
        self._eligibility_is_steady = is_steady(rules.eligibility_reads)
        self.outlooks: dict[tuple[Need, ...], Reason] = {}
        """Why a gang does not fit, for the present set of nodes."""
        self.flavors: dict[Need, dict[str, tuple[str, ...]]] = {}
        """By cluster: the flavors whose empty nodes hold a member, for the present set of nodes."""
        self.offer_sizes: dict[tuple[tuple[Need, ...], str, str], int | None] = {}
        """(needs, cluster, offer) -> nodes that hold the gang."""
        self._occupants: dict[str, Occupant] = {}
        self._columns_version = -1
        self._empty: Column | None = None
        self._domains: Domains | None = None
        self.names: list[str] = []
        self.clusters: list[str] = []
        """Those that have a node; sorted."""
        self.rows: dict[NodeId, int] = {}
        self.nodes: list[Node] = []
        self.rented_rows: list[int] = []
        self.column = NodeColumn(np.zeros(0, dtype=np.int32), 0)
        state.began_waiting = [job for job in state.jobs.values() if job.phase in _WAITS]

    def occupant(self, state: State, lease: Lease) -> Occupant:
        """A lease as the draft sees it; its expected end is whatever the last asker set."""
        found = self._occupants.get(lease.id)
        if found is None:
            if len(self._occupants) > 2 * len(state.leases) + 1_000:
                self._occupants.clear()
            found = self._occupants[lease.id] = occupant_of(state, self.rows, lease)
        return found

    def members_changed(self, lease: Lease) -> None:
        """Called by the fold when a lease has other seats than before."""
        self._occupants.pop(lease.id, None)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def refresh_nodes(self, state: State) -> None:
        """Make the columns anew when the set of nodes has changed."""
        if self._columns_version == state.columns_version:
            return
        self._columns_version = state.columns_version
        there = (node for node in state.nodes.values() if node.state is not NodeState.LOST)
        self.nodes = sorted(there, key=lambda node: (node.name, node.build.cluster))
        self.outlooks.clear()
        self.flavors.clear()
        self.names = [node.name for node in self.nodes]
        self.clusters = sorted({node.build.cluster for node in self.nodes})
        self._occupants.clear()
        self.rented_rows = [row for row, node in enumerate(self.nodes) if node.request is not None]
        self.rows = {node.id: row for row, node in enumerate(self.nodes)}
        kinds = np.fromiter((node.kind for node in self.nodes), dtype=np.int32, count=len(self.nodes))
        self._empty = None
        self._domains = None
        self.column = NodeColumn(kinds, self.column.epoch + 1)

    def empty_nodes(self, state: State) -> Column:
        """The kinds of the nodes if all were open and unused."""
        if self._empty is None:
            rows = (state.kinds.empty(replace(node.build, is_open=True)) for node in self.nodes)
            self._empty = np.fromiter(rows, dtype=np.int32, count=len(self.nodes))
        return self._empty

    def domains(self, state: State) -> Domains:
        """The tree of the nodes, for gangs that care where they are."""
        if self._domains is None:
            self._domains = Domains(state, self.nodes, self.rules)
        return self._domains

    def forget_kinds(self) -> None:
        """The table of kinds was made anew: drop everything that names one."""
        self._needs.clear()
        self._class_needs.clear()
        self.outlooks.clear()
        self.flavors.clear()
        self.offer_sizes.clear()
        self._occupants.clear()
        self._domains = None
        self._columns_version = -1

    def typical_changed(self) -> None:
        """Called by the fold when other jobs are typical: what rules say of fragmentation is to be asked again."""
        if any("fragmentation" in path or "descent" in path for path in self._node_reads):
            self.forget_kinds()

    def node_changed(self, node: Node) -> None:
        """Called by the fold when a node moved to another kind."""
        row = self.rows.get(node.id)
        if row is not None and self.nodes[row] is node and self._columns_version >= 0:
            self.column.put(row, node.kind)

    # --- jobs --------------------------------------------------------------------------------------------------------

    def refresh_jobs(self, state: State, draft: Draft) -> None:
        """Take in the jobs that began to wait."""
        if not self._order_is_fixed:
            state.began_waiting = [job for job in state.jobs.values() if job.phase in _WAITS]
            self.groups = [{} for _ in state.tree.nodes]
            self._orders.clear()
        for job in state.began_waiting:
            if job.phase not in _WAITS or job.waits_for:
                continue
            queue = state.tree.by_name.get(job.cls.spec.queue)
            if queue is None:
                continue
            group = self._group(queue, job)
            order = self._orders.get(job.cls.index)
            if order is None:
                order = self.order_of(job, draft.queue_facts(queue, 0), state.now_ms)
                if self._order_is_shared:
                    self._orders[job.cls.index] = order
            group.take_in(Entry(order, job.id, job.turn, job))
            if group.behind is not None:
                order = self._backfill_order(job, draft.queue_facts(queue, 0), state.now_ms)
                group.behind.take_in(Entry(order, job.id, job.turn, job))
        state.began_waiting = []

    @property
    def is_grouped_by_class(self) -> bool:
        """Whether all waiting jobs of a class are in one group."""
        return self._eligibility_is_shared

    def is_in(self, group: Group, job: Job) -> bool:
        """Whether a waiting job of the group's class waits in this very group."""
        return self._eligibility_is_shared or any(entry.job is job for entry in group.live())

    def group_of(self, state: State, job: Job) -> Group | None:
        """The group in which a job waits."""
        queue = state.tree.by_name.get(job.cls.spec.queue)
        if queue is None:
            return None
        return self.groups[queue.index].get(job.cls.index if self._eligibility_is_shared else -job.id)

    def _group(self, queue: QueueNode, job: Job) -> Group:
        groups = self.groups[queue.index]
        key = job.cls.index if self._eligibility_is_shared else -job.id
        group = groups.get(key)
        if group is None:
            behind = Group(job.cls, queue) if self.rules.may_order_backfill else None
            group = groups[key] = Group(job.cls, queue, behind=behind)
        return group

    def order_of(self, job: Job, queue: QueueFacts, now_ms: int) -> Order:
        """The place of a job in its queue, as the rules say it."""
        facts = job.cls.facts if self._order_is_shared else job.facts()
        answer = self.rules.job_order(facts, queue, now_ms)
        if answer.fault is not None:
            self.faults[answer.fault] = None
        return tuple(answer.value)

    def _backfill_order(self, job: Job, queue: QueueFacts, now_ms: int) -> Order:
        answer = self.rules.backfill_order(job.facts(), queue, now_ms)
        if answer.fault is not None:
            self.faults[answer.fault] = None
        return tuple(answer.value)

    def admission(self, job: Job, draft: Draft, queue: QueueNode, now_ms: int) -> Answer[str | None]:
        """What the admission rules say of a new job."""
        if not self._admission_is_shared:
            return self.rules.admission(job.facts(), draft.queue_facts(queue, 0), now_ms)
        found = self._admissions.get(job.cls.index)
        if found is None:
            found = self.rules.admission(job.cls.facts, draft.queue_facts(queue, 0), now_ms)
            self._admissions[job.cls.index] = found
        return found

    # --- needs -------------------------------------------------------------------------------------------------------

    def needs_of(self, state: State, job: Job) -> tuple[Need, ...]:
        """The needs of a job's roles, in the order in which its roles are tried: the most GPUs first, then the most
        CPU, then as written."""
        index = job.cls.index if self._eligibility_is_shared else -job.id
        found = self._class_needs.get(index)
        if found is None:
            facts = job.cls.facts if self._eligibility_is_shared else job.facts()
            asks = sorted(job.cls.asks, key=_size, reverse=True)
            found = tuple(self._need(state, ask, facts) for ask in asks)
            if self._eligibility_is_shared:
                self._class_needs[index] = found
        return found

    def is_lasting(self, needs: tuple[Need, ...]) -> bool:
        """Whether "does not fit" stays true until something is freed.

        Alike members are placed wherever there is a place, so that less room never helps them. Unlike members may get
        into each other's way, and fit once another job has taken what misled the first; and so may a node become
        eligible by filling up. Of a gang that requires a level the verdict stands, but its reason may change: whether
        only the level is in its way depends on what is free elsewhere.
        """
        return len(needs) == 1 and self._eligibility_is_steady and required_depth(needs[0]) == CLUSTER

    def _need(self, state: State, ask: Ask, facts: JobFacts) -> Need:
        read = tuple(_hashable(getattr(facts, name)) for name in self._keys)
        key = (id(ask), read)
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = Need(ask, facts, state.kinds, self.rules)
        return found


def agenda_for(state: State, rules: Rules) -> Agenda:
    """The agenda of the state under the rules, kept between cycles and made anew when the rules changed."""
    agenda = state.agenda
    if agenda is None or agenda.rules is not rules:
        agenda = state.agenda = Agenda(state, rules)
    return agenda


def _per_job(reads: frozenset[str]) -> bool:
    """Whether an answer can differ between jobs of one class."""
    return bool(reads & {"job.id", "job.name", "job.submitted_ms", "job.attempts", "job"})


def _size(ask: Ask) -> tuple[int, int, int]:
    return (ask.gpus * ask.amounts.gpu_milli, ask.amounts.cpu_milli, ask.amounts.memory_bytes)


def _hashable(value: object) -> object:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
