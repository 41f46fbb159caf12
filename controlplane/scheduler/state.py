"""Everything that the log says is so at one position. Built by :mod:`fold`, read by :mod:`decide`.

Nothing here decides and nothing here does IO. The parts that matter to a decision are the plain records below; caches
that only make deciding faster live in ``State.agenda`` and can be thrown away at any time.

Jobs that are alike in everything that a rule may read, except who they are and when they came, share one
:class:`JobClass`: its facts are built once and its verdicts are shared by all of them.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING

from controlplane.domain.clusters import Budget, ClusterSpec, NodeState, Site, WarmPool
from controlplane.domain.events import OverPromise
from controlplane.domain.ids import JobId, NodeId, job_label
from controlplane.domain.quantities import CPU, GPU, MEMORY, MILLI, PPM, share_ppb
from controlplane.domain.queues import ANY_FLAVOR, QueueSpec
from controlplane.domain.topology import TopologyRequest
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.facts import JobFacts, RoleFacts
from controlplane.scheduler.fragmentation import Shape, TypicalJobs, shape_of
from controlplane.scheduler.history import History
from controlplane.scheduler.kinds import Amounts, Build, KindTable, gpu_milli_on
from controlplane.scheduler.quota import Charged, Key, QueueNode, QueueTree, charge

if TYPE_CHECKING:
    from controlplane.scheduler.agenda import Agenda


EVICTIONS_KEPT = 16
EVICTED = ("preempted", "reclaimed")
"""Causes of a revocation that do not use up the attempts of a job."""
WANTED, TAKEN, UNWANTED = "wanted", "taken", "unwanted"
"""Why a service has more replicas: in free room, or in room that others left for it; and why it has fewer."""


class Phase(StrEnum):
    """Where a job is on its way."""

    SUBMITTED = "submitted"
    """Recorded, not yet seen by a cycle."""
    WAITING = "waiting"
    PLACED = "placed"
    """It has a lease; no cluster has said yet that it runs."""
    RUNNING = "running"
    RETURNED = "returned"
    """Its lease ended without success; the next cycle says what becomes of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """What one role asks of a node, per member. Interned: identity is equality."""

    role: Role
    facts: RoleFacts
    amounts: Amounts
    gpus: int
    models: frozenset[str]
    resources: tuple[tuple[str, int], ...]
    """(resource, amount) of one member, zero amounts left out; sorted."""
    gang: TopologyRequest | None = None
    """How close together the gang of the role wants to be. Part of the ask, so that gangs that differ in it share no
    verdict."""
    gpu_memory_min_bytes: int = 0
    is_plain: bool = True
    """Whether it asks for whole GPUs, a part in milli-GPU or none: its amounts are the same on every node."""
    charged: dict[int, Ask] = field(default_factory=dict)
    """For a part by memory: what it is on a node, by the milli-GPU that it counts there."""

    def on(self, build: Build) -> Ask:
        """What it is on a node of the build: a part by memory is one in milli-GPU there, anything else is as it is."""
        return self.counting(gpu_milli_on(build, self.amounts)) if self.amounts.gpu_memory_bytes else self

    def counting(self, milli: int) -> Ask:
        """A part by memory as one in milli-GPU, as it was when it was placed; anything else is as it is."""
        if not self.amounts.gpu_memory_bytes:
            return self
        found = self.charged.get(milli)
        if found is None:
            amounts = replace(self.amounts, gpu_milli=milli, gpu_memory_bytes=0)
            resources = tuple(sorted({**dict(self.resources), GPU: milli}.items()))
            found = self.charged[milli] = replace(self, amounts=amounts, resources=resources, is_plain=True)
        return found


@dataclass(slots=True, eq=False)
class JobClass:
    """Jobs that are alike."""

    index: int
    """In the order of first appearance; names the class inside this process and orders nothing."""
    spec: JobSpec
    """Of the first such job; its name means nothing for the others."""
    asks: tuple[Ask, ...]
    resources: tuple[tuple[str, int], ...]
    """(resource, amount) of the whole gang; sorted."""
    facts: JobFacts
    """Of the first such job."""
    waiting: int = 0
    """How many of them wait."""
    shapes: tuple[tuple[Shape, int], ...] = ()
    """The shapes of its members and how many there are of each, for the measure of fragmentation."""
    most: dict[str, int] = field(default_factory=dict)
    """By role: the most members. In ``asks``, ``resources`` and ``facts`` a role has as many as it has at least: an
    elastic gang waits, and is placed, as its smallest self."""
    is_elastic: bool = False
    is_service: bool = False


@dataclass(slots=True, eq=False)
class Job:
    """A job that is neither finished nor given up."""

    id: int
    name: str
    cls: JobClass
    submitted_ms: int
    phase: Phase = Phase.SUBMITTED
    attempts: int = 0
    turn: int = 0
    """How often it has begun to wait: tells a new place in the queue from an old one."""
    lease: str | None = None
    cause: str = ""
    """Why its last lease ended, while ``RETURNED``."""
    failures: int = 0
    """Starts that ended without success, evictions aside."""
    evictions: list[int] = field(default_factory=list)
    """When it was evicted, in milliseconds; the last :data:`EVICTIONS_KEPT`."""
    evicted: int = 0
    """How often it was evicted."""
    evicted_for: list[int] = field(default_factory=list)
    """The jobs that took its room; the last :data:`EVICTIONS_KEPT`. It never takes theirs."""
    is_cancelled: bool = False
    recorded_reason: int = 0
    """The reason last recorded while it was the first of its group; 0 for none."""
    waits_for: tuple[int, ...] = ()
    """Jobs that must be over before it may start, and are not (or ended as they must not, see ``orphaned_by``)."""
    orphaned_by: int = 0
    """A job that had to finish before it and never will; 0 for none. The next cycle refuses it."""
    asked: JobClass | None = None
    """The class of what was submitted, where the rules gave it other terms: ``cls`` is that of the job with these."""

    def gives_up_by(self, now_ms: int) -> bool:
        """Whether its time to wait for a start is over at that instant: then it has its last try."""
        if self.is_too_late(now_ms):
            return True
        limit_ms = self.cls.spec.wait_limit_ms
        return limit_ms is not None and self.attempts == 0 and self.submitted_ms + limit_ms <= now_ms

    def is_too_late(self, now_ms: int) -> bool:
        """Whether starting it makes no sense any more."""
        start_by_ms = self.cls.spec.start_by_ms
        return start_by_ms is not None and start_by_ms <= now_ms

    @property
    def array(self) -> tuple[str, str] | None:
        """(queue, array) to which it belongs."""
        spec = self.cls.spec
        return (spec.queue, spec.array) if spec.array is not None else None

    @property
    def as_asked(self) -> JobClass:
        """The class of the job as it was submitted."""
        return self.asked or self.cls

    def facts(self, like: JobFacts | None = None) -> JobFacts:
        """What rules see of this very job; ``like`` are the facts of another class of it than its present one."""
        like = like or self.cls.facts
        return JobFacts(
            id=job_label(JobId(self.id)),
            name=self.name,
            queue=like.queue,
            user=like.user,
            priority=like.priority,
            labels=like.labels,
            members=like.members,
            gpus_milli=like.gpus_milli,
            cpu_milli=like.cpu_milli,
            memory_bytes=like.memory_bytes,
            gpu_models=like.gpu_models,
            submitted_ms=self.submitted_ms,
            attempts=self.attempts,
            estimate_ms=like.estimate_ms,
            wait_limit_ms=like.wait_limit_ms,
            throughput_best_ppm=like.throughput_best_ppm,
            topology_required=like.topology_required,
            topology_preferred=like.topology_preferred,
            members_most=like.members_most,
            max_attempts=like.max_attempts,
            grace_ms=like.grace_ms,
            hold_ms=like.hold_ms,
            start_by_ms=like.start_by_ms,
            time_limit_ms=like.time_limit_ms,
            array=like.array,
            max_running=like.max_running,
            is_service=like.is_service,
            latency_class=like.latency_class,
        )


@dataclass(slots=True, eq=False)
class Seat:
    """One member of a gang where it sits."""

    node: NodeId
    role: str
    ordinal: int
    ask: Ask
    gpus: tuple[int, ...]
    flavor: str
    since: int = 0
    """The revision of the lease with which it came."""
    leaving: int = 0
    """The revision with which it was told to leave; 0 stays. It holds its room until the cluster says that it is
    gone."""
    is_taken: bool = False
    """Whether others had to leave so that this replica of a service has room."""


@dataclass(slots=True, eq=False)
class Signal:
    """How a service does, as it was last observed."""

    observed_ms: int
    p99_ms: int | None = None
    objective_ms: int | None = None
    queue_depth: int | None = None


@dataclass(slots=True, eq=False)
class Service:
    """What is known of a service while it holds its place."""

    wanted: int
    """Replicas that it is to have."""
    changed_ms: int
    """When that was last changed; at first when it was placed."""
    signal: Signal | None = None
    """Stale or not."""
    recorded_reason: int = 0
    """Why it lacks replicas, as last recorded; 0 for none."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right of one gang to be at a placement."""

    id: str
    job: Job
    attempt: int
    cluster: str
    seats: tuple[Seat, ...]
    requests: tuple[str, ...]
    """Capacity requests whose nodes it uses; sorted."""
    granted_ms: int
    is_running: bool = False
    revoked: str | None = None
    """Why the plane no longer wants it."""
    revision: int = 0
    """How often its members have changed."""
    number: int = 0
    """The position of its grant: leases are in this order."""
    is_rigid: bool = False
    """Its cluster did not let it grow: it is not tried again."""
    service: Service | None = None
    """For a service."""

    @property
    def may_grow(self) -> bool:
        """Whether it has less than its most, and nothing is known that keeps it there. A service: less than it is to
        have."""
        if self.revoked is not None or self.is_rigid:
            return False
        if self.service is not None:
            return len(self.staying()) < self.service.wanted
        return len(self.seats) < sum(self.job.cls.most.values())

    def staying(self) -> list[Seat]:
        """The members that were not told to leave, in the order in which they came."""
        return [seat for seat in self.seats if not seat.leaving]


@dataclass(slots=True, eq=False)
class Node:
    """One node of one cluster. ``kind`` is its state in the :class:`KindTable`."""

    name: str
    build: Build
    kind: int
    state: NodeState
    request: str | None
    leases: dict[str, Lease] = field(default_factory=dict)
    crowded: list[str] = field(default_factory=list)
    """Leases for which it has no room any more, since it was reported smaller than what runs on it; they are on their
    way out, and none of ``leases``. What they still hold of it is in no figure, so that it is closed until they have
    left."""
    topology: tuple[str, ...] = ()
    """Its domains, see :func:`controlplane.scheduler.topology.declared`."""

    id: NodeId = field(init=False)

    def __post_init__(self) -> None:
        self.id = NodeId(self.build.cluster, self.name)  # made once: it is asked for with each placement

    @property
    def is_open(self) -> bool:
        """Whether it takes anything new."""
        return self.build.is_open and not self.crowded

    @property
    def build_now(self) -> Build:
        """Its build, as one that is closed if it is: what its kind is of."""
        return replace(self.build, is_open=False) if self.crowded else self.build


@dataclass(slots=True, eq=False)
class Promise:
    """Room for a job that waits until the leases in the way have ended. Seats as they will be."""

    job: int
    cluster: str
    seats: tuple[Seat, ...]
    victims: tuple[str, ...]
    rule: str | None
    shrinks: tuple[tuple[str, int], ...] = ()
    """(lease, revision): members that leave for it."""
    lease: str | None = None
    """For more replicas of a service: the lease that they will belong to."""


@dataclass(slots=True, eq=False)
class Reservation:
    """A start that is promised to a blocked job: nobody may be on these nodes at that instant who could delay it."""

    job: int
    start_ms: int | None
    """``None``: nobody knows, because what runs there does not say how long."""
    nodes: tuple[NodeId, ...]
    rule: str | None = None


Block = tuple[NodeId, tuple[int, ...]]
"""(node, GPUs by index) that a warm pool holds."""


@dataclass(slots=True, eq=False)
class Pool:
    """A warm pool and what it holds now. A block is in at most one pool, and nothing sits on it."""

    spec: WarmPool
    blocks: tuple[Block, ...] = ()


class RequestPhase(StrEnum):
    """Where a capacity request is on its way."""

    ASKED = "asked"
    PROVIDED = "provided"
    RELEASING = "releasing"


@dataclass(slots=True, eq=False)
class Request:
    """Rented capacity, from the moment it is asked for until nothing of it is left."""

    id: str
    cluster: str
    offer: str
    nodes: int
    held_for: int
    """The job that it was asked for; only that job may use it until it has."""
    asked_ms: int
    deadline_ms: int
    promised_micro_usd: int
    budgets: tuple[str, ...]
    phase: RequestPhase = RequestPhase.ASKED
    idle_since_ms: int = 0
    leases: int = 0
    is_held: bool = True


FIRST_REST_MS = 60_000
LONGEST_REST_MS = 3_600_000


@dataclass(slots=True, eq=False)
class Rest:
    """An offer that failed is left alone for a while, twice as long after each failure in a row."""

    failures: int = 0
    until_ms: int | None = None
    """``None`` until the next tick: agents' clocks are not the log's."""

    def begin(self, now_ms: int) -> None:
        """A tick has come since it failed last."""
        if self.until_ms is None:
            self.until_ms = now_ms + min(LONGEST_REST_MS, FIRST_REST_MS << min(self.failures - 1, 10))


@dataclass(slots=True, eq=False)
class BudgetAccount:
    """A budget and what was taken from it, by window index."""

    spec: Budget
    settled: dict[int, int] = field(default_factory=dict)
    """Micro-dollars of ended requests, by the window in which they were asked for."""
    promised: dict[int, int] = field(default_factory=dict)
    """Micro-dollars of requests that have not ended."""

    def window(self, now_ms: int) -> int:
        """The index of the window that holds the instant."""
        return now_ms // self.spec.window_ms

    def left(self, now_ms: int) -> int:
        """What may still be promised in this window."""
        window = self.window(now_ms)
        return self.spec.limit_micro_usd - self.settled.get(window, 0) - self.promised.get(window, 0)


class Books:
    """What is kept by queue, and the tree whose indices it goes by; nothing yet."""

    def __init__(self, tree: QueueTree) -> None:
        self.tree = tree
        self.charged = tree.empty_charges()
        self.used: list[dict[str, int]] = [{} for _ in tree.nodes]
        self.pending = [0 for _ in tree.nodes]
        self.running = [0 for _ in tree.nodes]
        self.keys: dict[tuple[int, str], tuple[tuple[str, Key], ...]] = {}
        """By (queue index, flavor): see :meth:`State.keys_charged`."""

    def queue_of(self, job: Job) -> QueueNode:
        """The queue of a job, or the root where it is not configured (such a job is refused by the next cycle)."""
        return self.tree.by_name.get(job.cls.spec.queue, self.tree.root)


@dataclass(slots=True, eq=False)
class Shadow:
    """A bundle that is asked beside the active one, and what it decided otherwise so far. Nothing of it decides."""

    name: str
    digest: str
    files: dict[str, str]
    position: int
    """Of the event that set it."""
    since_cycle: int
    """Cycles before it was set."""
    differed: int = 0
    """Cycles in which it decided something otherwise that was not told before."""
    counts: dict[tuple[str, bool], int] = field(default_factory=dict)
    """(kind of difference, whether the shadow decides so) -> jobs."""
    told: dict[tuple[str, bool], dict[int, None]] = field(default_factory=dict)
    """The same -> the jobs themselves, for as long as they live: who is named is not named again."""
    promised_micro_usd: int = 0
    """What capacity would cost at most that only the shadow would rent."""
    faults: dict[str, None] = field(default_factory=dict)
    failure: str = ""
    """Why it is not asked any more, if it could not be decided under it."""


@dataclass(slots=True)
class Counts:
    """Totals over the whole log."""

    submitted: int = 0
    refused: int = 0
    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    placements: int = 0
    burst_placements: int = 0
    requests: int = 0
    charged_micro_usd: int = 0


class State:
    """See the module. ``position`` is that of the last event applied."""

    def __init__(self) -> None:
        self.position = 0
        self.now_ms = 0
        self.cycle = 0
        self.reask_ms: int | None = None
        """When offers are to be asked, or victims looked for, again, though nothing else happens."""
        self.policy_digest = ""
        self.policy_name = ""
        self.policy_files: dict[str, str] = {}
        self.faults: dict[str, None] = {}
        """Sentences of rules of the active policy that erred, as the cycles reported them: each once."""
        self.shadow: Shadow | None = None
        self.queues: dict[str, QueueSpec] = {}
        self.clusters: dict[str, ClusterSpec] = {}
        self.budgets: dict[str, BudgetAccount] = {}
        self.typical = TypicalJobs()
        self.kinds = KindTable(self.typical)
        self._lay_out()
        self.history: History | None = None
        """What queues have used, where it is remembered."""
        self.over_promised: tuple[OverPromise, ...] = ()
        """As it was last reported."""
        self.jobs: dict[int, Job] = {}
        self.leases: dict[str, Lease] = {}
        self.elastic: dict[str, Lease] = {}
        """Those of them whose number of members may change, in the same order."""
        self._serve()
        self.requests: dict[str, Request] = {}
        self.rests: dict[tuple[str, str], Rest] = {}
        """(cluster, offer) -> how long it rests, since its last requests failed."""
        self.promises: dict[int, Promise] = {}
        """By job, in the order in which they were made."""
        self.reservations: dict[int, Reservation] = {}
        """By job, in the order in which they were made."""
        self.searched_ms: int | None = None
        """When victims were last looked for on behalf of everybody."""
        self.children: dict[str, int] = {}
        """By queue: how many stand right below it, of those below which some ever stood."""
        self._books: Books | None = None
        self.arrivals: list[Job] = []
        """Submitted since the last cycle, in order."""
        self.cancels: list[Job] = []
        """Cancelled since the last cycle, in order."""
        self.returned: list[Job] = []
        """Whose lease ended without success since the last cycle, in order."""
        self.stranded: list[Lease] = []
        """Leases that must end: a member is on a lost node, or on one that has no room for it any more; in order."""
        self._tie()
        self.is_requeued = False
        """Whether the last cycle put jobs back into their queues."""
        self.began_waiting: list[Job] = []
        """For the agenda: jobs that began to wait since it last looked."""
        self.freed = 0
        """Counts whatever could let a refused job fit: a verdict of an older count is asked again."""
        self.freed_at_tick = 0
        """``freed`` when the last cycle began."""
        self.columns_version = 0
        """Counts changes of the set of nodes."""
        self.counts = Counts()
        self.classes: dict[tuple[object, ...], JobClass] = {}
        self.classes_made = 0
        self.asks: dict[tuple[object, ...], Ask] = {}
        self.agenda: Agenda | None = None

    def _lay_out(self) -> None:
        """The nodes: none yet."""
        self.nodes: dict[NodeId, Node] = {}
        self.homes: dict[str, list[str]] = {}
        """Name of a node -> the clusters that have a node of that name; sorted."""
        self.capacity: dict[str, int] = {}
        """By resource, over all nodes that are not lost."""
        self.owned: dict[Key, int] = {}
        """(flavor, resource) -> amount, over those of them that are not rented."""

    def _serve(self) -> None:
        """Services, and what is held for them: nothing yet."""
        self.services: dict[str, Lease] = {}
        """Leases of services, in the order of their grants."""
        self.fresh_signals: dict[str, None] = {}
        """Those of them that were observed since the last cycle."""
        self.services_ms: int | None = None
        """When the rules are to be asked about services again, though nothing else happens."""
        self.pools: dict[str, Pool] = {}
        """Warm pools, in the order in which they were configured."""

    def _tie(self) -> None:
        """What ties jobs to instants and to each other: nothing yet."""
        self.expiries: list[tuple[int, int]] = []
        """(instant, job id), sorted: when jobs that never started give up."""
        self.time_limits: list[tuple[int, str]] = []
        """(instant, lease), sorted: when leases have held their place for as long as they may."""
        self.holds: list[tuple[int, str]] = []
        """(instant, lease), sorted: when leases that nobody has seen running must have been."""
        self.arrays: dict[tuple[str, str], int] = {}
        """(queue, array) -> its jobs that hold a lease."""
        self.dependents: dict[int, list[int]] = {}
        """Job -> jobs that wait for it, in the order of their numbers."""
        self.unfinished: dict[int, None] = {}
        """Jobs that ended otherwise than finished, for those that come and depend on them."""

    # --- nodes -------------------------------------------------------------------------------------------------------

    def add_node(self, node: Node) -> None:
        """A node that was not there."""
        self.nodes[node.id] = node
        insort(self.homes.setdefault(node.name, []), node.build.cluster)

    def drop_node(self, node: Node) -> None:
        """It is gone, and nothing runs on it any more."""
        del self.nodes[node.id]
        self.homes[node.name].remove(node.build.cluster)
        if not self.homes[node.name]:
            del self.homes[node.name]

    def node_of(self, cluster: str, name: str) -> Node:
        """The node of that name. Raises ``KeyError`` if the cluster has none."""
        return self.nodes[(cluster, name)]  # type: ignore[index]  # a plain pair is equal to its id, and made faster

    def is_named_twice(self, name: str) -> bool:
        """Whether several clusters have a node of that name."""
        return len(self.homes.get(name, ())) > 1

    def label(self, node: NodeId) -> str:
        """What people call it: its name, with its cluster where the name alone does not say which."""
        return str(node) if self.is_named_twice(node.name) else node.name

    # --- what a job asks for -----------------------------------------------------------------------------------------

    def class_of(self, spec: JobSpec, submitted_ms: int) -> JobClass:
        """The class of a job, made if it is the first of its kind."""
        roles = spec.roles
        first = _role_key(roles[0]) if len(roles) == 1 else tuple([_role_key(role) for role in roles])
        key = (_job_key(spec.__dict__), first, tuple(sorted(spec.labels.items())) if spec.labels else ())
        found = self.classes.get(key)
        if found is None:
            firm = tuple(_firm(role) for role in spec.roles)
            asks = tuple(self.ask_of(role, spec.topology) for role in firm)
            self.classes_made += 1
            shapes = tuple((shape_of(role), role.count) for role in spec.roles)
            facts = _facts(spec, firm, submitted_ms)
            found = JobClass(self.classes_made, spec, asks, _gang(asks), facts, shapes=shapes)
            found.most = {role.name: role.count for role in spec.roles}
            found.is_elastic = any(role.least < role.count for role in spec.roles)
            found.is_service = spec.service is not None
            self.classes[key] = found
        return found

    def ask_of(self, role: Role, gang: TopologyRequest | None = None) -> Ask:
        """The interned ask of a role in a gang."""
        key = (_role_key(role), gang)
        found = self.asks.get(key)
        if found is None:
            found = self.asks[key] = _new_ask(role, gang, self.kinds)
        return found

    # --- queues, and what they use -----------------------------------------------------------------------------------

    def set_queue(self, spec: QueueSpec) -> None:
        """A queue is new, or is another than before. The tree, and all that is kept by queue, is made anew when it is
        next looked at, so that thousands of queues cost what one costs."""
        known = self.queues.get(spec.name)
        if known is not None and known.parent is not None:
            self.children[known.parent] -= 1
        if spec.parent is not None:
            self.children[spec.parent] = self.children.get(spec.parent, 0) + 1
        self.queues[spec.name] = spec
        self._books = None
        self.agenda = None

    @property
    def books(self) -> Books:
        """What is kept by queue. The fold may not look at it in the middle of an event: books that are made anew are
        counted from the jobs and leases as they are then."""
        if self._books is None:
            self._books = Books(QueueTree(self.queues))
            for job in self.jobs.values():
                if job.phase in (Phase.SUBMITTED, Phase.WAITING):
                    self.count_pending(self.queue_of(job), 1)
            for lease in self.leases.values():
                queue = self.queue_of(lease.job)
                self.count_running(queue, 1)
                for seat in lease.seats:
                    self.use(queue, seat.flavor, seat.ask, 1)
        return self._books

    @property
    def tree(self) -> QueueTree:
        """The queues as they are configured."""
        return self.books.tree

    @property
    def charged(self) -> Charged:
        """See :data:`~controlplane.scheduler.quota.Charged`."""
        return self.books.charged

    @property
    def used(self) -> list[dict[str, int]]:
        """By queue index: resource -> amount over all flavors, all below included."""
        return self.books.used

    @property
    def pending(self) -> list[int]:
        """By queue index: jobs that wait, all below included."""
        return self.books.pending

    @property
    def running(self) -> list[int]:
        """By queue index: jobs that hold a lease, all below included."""
        return self.books.running

    def queue_of(self, job: Job) -> QueueNode | None:
        """The queue of a job in the books; ``None`` while they are to be made anew: nothing is to be counted then."""
        return self._books.queue_of(job) if self._books is not None else None

    def count_pending(self, queue: QueueNode | None, change: int) -> None:
        """A job began to wait (1) or does not any more (-1)."""
        if queue is not None:
            pending = self.books.pending
            for node in queue.path:
                pending[node.index] += change

    def count_running(self, queue: QueueNode | None, change: int) -> None:
        """A job got a lease (1) or has none any more (-1)."""
        if queue is not None:
            running = self.books.running
            for node in queue.path:
                running[node.index] += change

    def use(self, queue: QueueNode | None, flavor: str, ask: Ask, sign: int) -> None:
        """A member of a job came (1) or went (-1)."""
        if queue is None:
            return
        books = self.books
        for node in queue.path:
            used = books.used[node.index]
            for resource, amount in ask.resources:
                used[resource] = used.get(resource, 0) + sign * amount
        keys = self.keys_charged(queue, flavor)
        if keys:
            asked = dict(ask.resources)
            for resource, key in keys:
                charge(queue, key, sign * asked.get(resource, 0), books.charged)

    def keys_charged(self, queue: QueueNode, flavor: str) -> tuple[tuple[str, Key], ...]:
        """(resource, key) pairs to which usage of the flavor by the queue is charged."""
        if not queue.limited:
            return ()
        known = self.books.keys
        found = known.get((queue.index, flavor))
        if found is None:
            keys = [(key[1], key) for key in queue.limited if key[0] in (flavor, ANY_FLAVOR)]
            found = known[(queue.index, flavor)] = tuple(keys)
        return found

    def count_capacity(self, build: Build, sign: int, *, is_rented: bool) -> None:
        """A node of the build came (1) or went (-1)."""
        amounts = {CPU: build.cpu_milli, MEMORY: build.memory_bytes, GPU: build.gpus * MILLI, **dict(build.other)}
        for resource, amount in amounts.items():
            self.capacity[resource] = self.capacity.get(resource, 0) + sign * amount
            if not is_rented:
                key = (build.flavor, resource)
                self.owned[key] = self.owned.get(key, 0) + sign * amount

    def share_ppb(self, queue: QueueNode) -> int:
        """Dominant share of the capacity that is there, in parts per billion, rounded up (DRF, NSDI'11)."""
        used = self.used[queue.index]
        return max((share_ppb(amount, self.capacity.get(name, 0)) for name, amount in used.items()), default=0)

    def is_cloud(self, cluster: str) -> bool:
        """Whether the cluster is rented."""
        spec = self.clusters.get(cluster)
        return spec is not None and spec.site is Site.CLOUD


_job_key = itemgetter(
    "queue",
    "user",
    "priority",
    "estimate_ms",
    "wait_limit_ms",
    "max_attempts",
    "topology",
    "grace_ms",
    "checkpoint_every_ms",
    "start_by_ms",
    "time_limit_ms",
    "hold_ms",
    "after_ok",
    "after_any",
    "array",
    "max_running",
    "service",
)
"""What jobs of one class have in common, roles and labels besides."""
_plain_role_key = itemgetter(
    "name",
    "count",
    "min_count",
    "cpu_milli",
    "memory_bytes",
    "gpus",
    "gpu_milli",
    "gpu_models",
    "topology",
    "gpu_memory_bytes",
    "gpu_memory_min_bytes",
    "mig_profile",
)


def _role_key(role: Role) -> tuple[object, ...]:
    key: tuple[object, ...] = _plain_role_key(role.__dict__)
    if role.other or role.throughput_ppm:
        return (key, tuple(sorted(role.other.items())), tuple(sorted(role.throughput_ppm.items())))
    return key


def _firm(role: Role) -> Role:
    """The role without what may be missing."""
    return role if role.min_count is None else role.model_copy(update={"count": role.least, "min_count": None})


def _new_ask(role: Role, gang: TopologyRequest | None, kinds: KindTable) -> Ask:
    other = tuple(sorted((name, amount) for name, amount in role.other.items() if amount))
    milli = role.gpu_milli_least
    resources = {CPU: role.cpu_milli, MEMORY: role.memory_bytes, GPU: role.gpus * milli, **role.other}
    facts = RoleFacts(
        name=role.name,
        count=role.count,
        cpu_milli=role.cpu_milli,
        memory_bytes=role.memory_bytes,
        gpus=role.gpus,
        gpu_milli=milli,
        gpu_models=role.gpu_models,
        gpu_memory_bytes=role.gpu_memory_bytes,
        gpu_memory_min_bytes=role.gpu_memory_min_bytes,
        mig_profile=role.mig_profile,
        topology_required=_required(role.topology),
        topology_preferred=_preferred(role.topology),
    )
    return Ask(
        role,
        facts,
        kinds.amounts(role.cpu_milli, role.memory_bytes, milli, other, role.gpu_memory_bytes, role.mig_profile),
        role.gpus,
        frozenset(role.gpu_models),
        tuple(sorted((name, amount) for name, amount in resources.items() if amount)),
        gang,
        gpu_memory_min_bytes=role.gpu_memory_min_bytes if role.gpus else 0,
        is_plain=not role.gpu_memory_bytes and not role.mig_profile,
    )


def _required(topology: TopologyRequest | None) -> str | None:
    return topology.required.value if topology is not None and topology.required is not None else None


def _preferred(topology: TopologyRequest | None) -> str | None:
    return topology.preferred.value if topology is not None and topology.preferred is not None else None


def _gang(asks: tuple[Ask, ...]) -> tuple[tuple[str, int], ...]:
    total: dict[str, int] = {}
    for ask in asks:
        for resource, amount in ask.resources:
            total[resource] = total.get(resource, 0) + amount * ask.role.count
    return tuple(sorted(total.items()))


def _facts(spec: JobSpec, roles: tuple[Role, ...], submitted_ms: int) -> JobFacts:
    return JobFacts(
        id="",
        name=spec.name,
        queue=spec.queue,
        user=spec.user,
        priority=spec.priority,
        labels=dict(sorted(spec.labels.items())),
        members=sum(role.count for role in roles),
        gpus_milli=sum(role.count * role.gpus * role.gpu_milli_least for role in roles),
        cpu_milli=sum(role.count * role.cpu_milli for role in roles),
        memory_bytes=sum(role.count * role.memory_bytes for role in roles),
        gpu_models=tuple(sorted({model for role in spec.roles for model in role.gpu_models})),
        submitted_ms=submitted_ms,
        attempts=0,
        estimate_ms=spec.estimate_ms,
        wait_limit_ms=spec.wait_limit_ms,
        throughput_best_ppm=max((ppm for role in spec.roles for ppm in role.throughput_ppm.values()), default=PPM),
        topology_required=_required(spec.topology),
        topology_preferred=_preferred(spec.topology),
        members_most=spec.members,
        max_attempts=spec.max_attempts,
        grace_ms=spec.grace_ms,
        hold_ms=spec.hold_ms,
        start_by_ms=spec.start_by_ms,
        time_limit_ms=spec.time_limit_ms,
        array=spec.array,
        max_running=spec.max_running,
        is_service=spec.service is not None,
        latency_class=spec.service.latency_class.value if spec.service is not None else "",
    )
