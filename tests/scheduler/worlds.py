"""Generated worlds: a script of small numbers, read against the world as it stands, so that any script makes sense.

A step is a verb and three numbers. The numbers choose among what there is (the third lease, the second node), so that
Hypothesis can shorten a script without breaking it. What is generated includes what a good agent would never report
(late, repeated and contradictory observations), because a fold never refuses.

``Ledger`` is the naive model: it knows only the events, and recomputes from them what is used and promised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

from controlplane.domain.clusters import Budget, ClusterSpec, NodeShape, NodeState, Offer, Site
from controlplane.domain.events import (
    BudgetConfigured,
    CapacityObserved,
    CapacityPhase,
    CapacityReleased,
    CapacityRequested,
    ClusterConfigured,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobSubmitted,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    NodeObserved,
    PolicyActivated,
    QueueConfigured,
    Ticked,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.state import RequestPhase
from tests.scheduler.core import CLOUD, GIB, HOUR, Core, gpus, job, offer
from tests.scheduler.naive_quota import TOP, NaiveQuota
from tests.twins.plain_rules import PlainRules

Step = tuple[str, int, int, int]
Script = list[Step]

SHAPES = (
    gpus(8),
    gpus(4, cpu=8_000),
    gpus(4, "T4", cpu=16_000, memory=64 * GIB),
    gpus(0, cpu=32_000),
    gpus(2, "T4", cpu=8_000, licence=2),
)
OFFERS = (
    offer("big", 8_000_000, most=2),
    offer("small", 900_000, count=2, model="T4", most=3),
    offer("spot", 2_000_000, count=4, most=1),
)
OVER = (LeasePhase.FINISHED, LeasePhase.FAILED, LeasePhase.LOST, LeasePhase.REFUSED, LeasePhase.ENDED)
MODELS: tuple[tuple[str, ...], ...] = ((), (), (), ("A100",), ("T4",), ("A100", "T4"), ("H100",))


def burst_cost(job: object, home: object, offer: object, now_ms: int) -> int | None:
    """Anything may be rented, the cheaper the better, but only in the second half of each minute."""
    price = getattr(offer, "cost_micro_usd", 0)
    return int(price) if now_ms % 60_000 >= 30_000 else None


RULES: tuple[Callable[[], PlainRules], ...] = (
    PlainRules,
    lambda: PlainRules(cost=burst_cost),
    lambda: PlainRules(
        digest="eligible",
        eligibility_reads=frozenset({"job.priority", "node.gpu_free_milli"}),
        is_eligible=lambda job, role, cluster, node: node.gpu_free_milli < 8_000 or job.priority > 0,
        order_job=lambda job, queue, now: (now - job.submitted_ms, queue.running),
        job_order_reads=frozenset({"job.submitted_ms", "queue.running", "now"}),
        cost=burst_cost,
    ),
    lambda: PlainRules(
        digest="preempting",
        may_preempt=True,
        may_reserve=True,
        allow=lambda job, queue, shortage: ("queue", "cohort", "reclaim", "fair-share")[: 1 + job.priority],
        depth=lambda job: 2,
        cost=burst_cost,
    ),
    lambda: PlainRules(
        digest="strict",
        may_preempt=True,
        may_reserve=True,
        may_block=True,
        may_order_backfill=True,
        allow=lambda job, queue, shortage: ("queue", "reclaim", "borrowers")[: 1 + job.priority],
        depth=lambda job: 1 + job.members % 2,
        may_pass=lambda job, queue: (("queue", "others"), ("others",), ())[job.priority % 3],
        cost=burst_cost,
    ),
    lambda: PlainRules(
        digest="lottery",
        scoring_reads=frozenset({"candidate.lottery"}),
        score=lambda after, candidate: candidate.lottery if candidate is not None else 0,
        admission_reads=frozenset({"job.name"}),
        admit=lambda job: "no" if job.name == "unwanted" else None,
        cost=burst_cost,
    ),
)


class World(Core):
    """A core in which scripts are played. ``checks`` see it after every cycle."""

    def __init__(self, variant: int = 0, *, is_checked: bool = True) -> None:
        super().__init__(RULES[variant % len(RULES)](), is_checked=is_checked)
        self.ledger = Ledger()
        self._specs: list[JobSpec] = []
        self._ends: list[str] = []
        self._nodes_made = 0
        self.tell(PolicyActivated(name="p", digest=self.rules.digest, files={}))
        self.home()
        self.queue("root", {"gpu": 20_000})
        self.queue("left", {"gpu": Quota(nominal=8_000, borrowing_limit=4_000, lending_limit=2_000)}, parent="root")
        self.queue("right", {"gpu": 4_000}, flavor="a100", parent="root")
        self.queue("team")
        self.budget("all", 6_000_000, HOUR)
        self.budget("lefts", 3_000_000, HOUR // 2, queue="left")
        self.cloud(*OFFERS, idle_release_ms=20_000)
        for number in range(3):
            self._new_node(number, 0, 0)

    def tell(self, *events: Event) -> int:
        for event in events:
            super().tell(event)
            self.ledger.see(self.state.position, event)
        return self.state.position

    def play(self, script: Iterable[Step]) -> None:
        """Do the steps, then let everything that has a place find it."""
        for step in script:
            self.play_step(step)
        self.cycle(self.state.now_ms + 1)

    def play_step(self, step: Step) -> None:
        """Do one step."""
        verb, a, b, c = step
        VERBS[verb](self, a, b, c)

    # --- verbs -------------------------------------------------------------------------------------------------------

    def _submit(self, a: int, b: int, c: int) -> None:
        self._specs.append(spec_of(a, b, c))
        self.submit(self._specs[-1])

    def _submit_alike(self, a: int, b: int, c: int) -> None:
        if self._specs:
            for _ in range(1 + b % 4):
                self.submit(self._specs[a % len(self._specs)])

    def _tick(self, a: int, b: int, c: int) -> None:
        self.cycle(self.state.now_ms + (1, 1_000, 30_000, 400_000)[a % 4] * (1 + b % 3))
        self.ledger.check_cycle(self)

    def _cancel(self, a: int, b: int, c: int) -> None:
        ids = list(self.state.jobs) or [1]
        self.cancel(ids[a % len(ids)] if b % 5 else a)

    def _report(self, a: int, b: int, c: int) -> None:
        leases = list(self.state.leases)
        if leases:
            lease = leases[a % len(leases)]
            phase = (LeasePhase.LAUNCHING, LeasePhase.RUNNING, LeasePhase.FINISHED, *OVER)[b % 8]
            self._ends.append(lease)
            self.report(lease, phase)

    def _report_late(self, a: int, b: int, c: int) -> None:
        lease = self._ends[a % len(self._ends)] if self._ends else "j1.1"
        self.report(lease, (LeasePhase.RUNNING, *OVER)[b % 6])

    def _new_node(self, a: int, b: int, c: int) -> None:
        self._nodes_made += 1
        self.node(f"n{self._nodes_made}", SHAPES[a % len(SHAPES)])

    def _change_node(self, a: int, b: int, c: int) -> None:
        nodes = list(self.state.nodes.values())
        if nodes:
            node = nodes[a % len(nodes)]
            shape = NodeShape(
                cpu_milli=node.build.cpu_milli,
                memory_bytes=node.build.memory_bytes,
                gpus=node.build.gpus,
                gpu_model=node.build.gpu_model or None,
                other=dict(node.build.other),
            )
            states = (NodeState.LOST, NodeState.READY, NodeState.CORDONED, NodeState.READY)
            self.node(
                node.name,
                shape,
                states[b % 4],
                cluster=node.build.cluster,
                flavor=node.build.flavor,
                request=node.request,
                labels={"seen": str(c % 2)},
            )

    def _change_quota(self, a: int, b: int, c: int) -> None:
        name = ("left", "right", "root", "team")[a % 4]
        old = self.state.queues[name]
        quota = Quota(
            nominal=1_000 * (b % 16),
            borrowing_limit=(None, 0, 2_000)[c % 3],
            lending_limit=(None, 0, 3_000)[c // 3 % 3],
        )
        flavor = ("any", "a100")[c // 9 % 2]
        quotas = {} if b % 7 == 6 else {flavor: {"gpu": quota}}
        self.tell(QueueConfigured(spec=old.model_copy(update={"quotas": quotas, "held": b % 11 == 10})))

    def _change_tree(self, a: int, b: int, c: int) -> None:
        if a % 3 == 2:
            parent = ("root", "left", "team")[b % 3]
            self.tell(QueueConfigured(spec=QueueSpec(name=f"extra{c % 2}", parent=parent, weight=c % 4)))
        else:
            old = self.state.queues[("left", "right")[a % 3]]
            parents = ("root", None, "team")
            self.tell(QueueConfigured(spec=old.model_copy(update={"parent": parents[b % 3], "weight": c % 5})))

    def _change_policy(self, a: int, b: int, c: int) -> None:
        if a % 3:
            self.rules = RULES[b % len(RULES)]()
        self.tell(PolicyActivated(name="p", digest=self.rules.digest, files={}))

    def _change_cluster(self, a: int, b: int, c: int) -> None:
        if a % 3 == 0:
            self.tell(ClusterConfigured(spec=ClusterSpec(name=f"home{b % 2}", labels={"n": str(c % 3)})))
        elif a % 3 == 1:
            offers: tuple[Offer, ...] = OFFERS[: 1 + b % 3]
            self.tell(ClusterConfigured(spec=ClusterSpec(name=CLOUD, site=Site.CLOUD, offers=offers)))
        else:
            self.budget("all", 500_000 * (1 + b % 40), (HOUR, HOUR // 3, 2 * HOUR)[c % 3])

    def _provide(self, a: int, b: int, c: int) -> None:
        requests = list(self.state.requests.values())
        if not requests:
            return
        request = requests[a % len(requests)]
        found = next((one for one in OFFERS if one.name == request.offer), OFFERS[0])
        names = tuple(f"{request.id}-{number}" for number in range(request.nodes))
        for name in names:
            self.node(name, found.shape, cluster=CLOUD, flavor=found.flavor, request=request.id)
        self.capacity(request.id, CapacityPhase.PROVIDED, nodes=names)

    def _end_rent(self, a: int, b: int, c: int) -> None:
        requests = list(self.state.requests.values())
        if not requests:
            return
        request = requests[a % len(requests)]
        if b % 3 and request.phase is not RequestPhase.RELEASING:
            return
        for node in [node for node in self.state.nodes.values() if node.request == request.id]:
            for lease in list(node.leases):
                self.report(lease, LeasePhase.LOST)
            self._lose_rented(node.name)
        phase = CapacityPhase.FAILED if request.phase is RequestPhase.ASKED else CapacityPhase.RELEASED
        self.capacity(request.id, phase, charged=0 if phase is CapacityPhase.FAILED else 1_000)

    def _lose_rented(self, name: str) -> None:
        node = self.state.nodes.get(NodeId(CLOUD, name))
        if node is not None:
            shape = gpus(node.build.gpus, node.build.gpu_model)
            self.node(name, shape, NodeState.LOST, cluster=CLOUD, flavor=node.build.flavor, request=node.request)


VERBS: dict[str, Callable[[World, int, int, int], None]] = {
    "submit": World._submit,
    "submit_alike": World._submit_alike,
    "tick": World._tick,
    "report": World._report,
    "report_late": World._report_late,
    "cancel": World._cancel,
    "new_node": World._new_node,
    "change_node": World._change_node,
    "change_quota": World._change_quota,
    "change_tree": World._change_tree,
    "change_policy": World._change_policy,
    "change_cluster": World._change_cluster,
    "provide": World._provide,
    "end_rent": World._end_rent,
}
OFTEN = (*["submit"] * 8, *["submit_alike"] * 3, *["tick"] * 9, *["report"] * 7, *["provide"] * 3, "end_rent")

_NUMBERS = st.integers(0, 2**16)
SCRIPTS: st.SearchStrategy[Script] = st.lists(
    st.tuples(st.sampled_from((*OFTEN, *VERBS)), _NUMBERS, _NUMBERS, _NUMBERS), max_size=60
)


def spec_of(a: int, b: int, c: int) -> JobSpec:
    """A job: of one GPU, a fraction, many, none; alone or a gang; of one role or two."""
    count = (1, 1, 1, 1, 2, 3, 6)[b % 7]
    wanted = (1, 1, 2, 2, 4, 0, 3)[c % 7]
    fraction = {"gpu_milli": 250 * (1 + b // 7 % 3)} if wanted == 1 and b // 7 % 2 == 0 else {}
    made = job(
        wanted,
        queue=(*["left", "right", "team"] * 4, "extra0", "nowhere")[a % 14],
        members=count,
        cpu=1_000 * (b // 21 % 9),
        name=("job", "job", "job", "unwanted")[a // 14 % 4],
        priority=(0, 0, 5)[a // 56 % 3],
        gpu_models=MODELS[c // 7 % 7],
        other={"licence": c // 49 % 3} if c // 147 % 8 == 0 else {},
        estimate_ms=(None, 1_000, 60_000, HOUR)[c // 1176 % 4],
        wait_limit_ms=(None, None, 0, 50_000)[b // 9 % 4],
        max_attempts=1 + a // 168 % 3,
        **fraction,
    )
    if b // 63 % 5 == 0:
        helper = Role(name="server", count=1 + c % 2, cpu_milli=2_000, memory_bytes=30 * GIB)
        made = made.model_copy(update={"roles": (*made.roles, helper)})
    return made


def _asks(role: Role) -> dict[str, int]:
    return {"gpu": role.gpus * role.gpu_milli, "cpu": role.cpu_milli, "memory": role.memory_bytes, **role.other}


# --- the naive model -------------------------------------------------------------------------------------------------


@dataclass
class Ledger:
    """What the events alone say. Breaks with an ``AssertionError`` that names what went wrong."""

    nodes: dict[str, NodeObserved] = field(default_factory=dict)
    leases: dict[str, LeaseGranted] = field(default_factory=dict)
    specs: dict[int, JobSpec] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    """Jobs that were placed at least once."""
    ended: set[int] = field(default_factory=set)
    requests: dict[str, CapacityRequested] = field(default_factory=dict)
    revoked: set[str] = field(default_factory=set)
    queues: dict[str, QueueSpec] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    spent: dict[str, tuple[int, int, tuple[str, ...]]] = field(default_factory=dict)
    """Request -> (asked at, micro-dollars promised or charged, budgets), ended ones included."""
    now_ms: int = 0

    def see(self, position: int, event: Event) -> None:
        """Take one event."""
        match event:
            case JobSubmitted():
                self.specs[position] = event.spec
                self.waiting.add(position)
            case Ticked():
                self.now_ms = max(self.now_ms, event.now_ms)
            case NodeObserved():
                self.nodes[event.node] = event
            case QueueConfigured():
                self.queues[event.spec.name] = event.spec
            case BudgetConfigured():
                self.budgets[event.spec.name] = event.spec
            case _:
                self._see_what_follows(event)

    def _see_what_follows(self, event: Event) -> None:
        match event:
            case LeaseGranted():
                self._grant(event)
            case LeaseRevoked():
                assert event.lease in self.leases, f"{event.lease} is revoked and was over"
                assert event.lease not in self.revoked, f"{event.lease} is revoked twice"
                self.revoked.add(event.lease)
            case LeaseObserved(phase=phase) if phase in OVER and event.lease in self.leases:
                self._end(event)
            case JobEnded() | JobRefused():
                self._job_over(event.job)
            case CapacityRequested():
                self._rent(event)
            case CapacityReleased():
                assert event.request in self.requests, f"{event.request} is released and was over"
            case CapacityObserved(phase=CapacityPhase.RELEASED | CapacityPhase.FAILED):
                if self.requests.pop(event.request, None) is not None:
                    asked_ms, _, budgets = self.spent[event.request]
                    self.spent[event.request] = (asked_ms, event.charged_micro_usd, budgets)
            case _:
                pass

    def _rent(self, event: CapacityRequested) -> None:
        assert event.deadline_ms > self.now_ms, f"{event.request} has no deadline ahead"
        assert event.for_job in self.waiting, f"{event.request} is for j{event.for_job}, which does not wait"
        twice = [held.request for held in self.requests.values() if held.for_job == event.for_job]
        assert not twice or event.for_job in self.started, f"{event.request} and {twice} are for one job"
        self.requests[event.request] = event
        self.spent[event.request] = (self.now_ms, event.promised_micro_usd, event.budgets)
        for name in event.budgets:
            self.check_budget(name)

    def check_budget(self, name: str) -> None:
        """What was promised and charged for requests of this window is within the limit."""
        budget = self.budgets[name]
        window = self.now_ms // budget.window_ms
        sums = [usd for at, usd, names in self.spent.values() if name in names and at // budget.window_ms == window]
        assert sum(sums) <= budget.limit_micro_usd, f"budget {name} has {budget.limit_micro_usd}, taken {sum(sums)}"

    def check_quota(self, granted: LeaseGranted) -> None:
        """Wherever the grant adds to a charge, the naive algebra allows the sum. (Quota that was lowered below what is
        used stays exceeded; nothing may be added to it.)"""
        spec = self.specs[granted.job]
        ups = [spec.queue]
        while (parent := self.queues[ups[-1]].parent) is not None:
            ups.append(parent)
        listed = {(flavor, res) for up in ups for flavor, by in self.queues[up].quotas.items() for res in by}
        for key in sorted(listed):
            after = NaiveQuota(self.queues, key, self._used(key))
            before = NaiveQuota(self.queues, key, self._used(key, granted.lease))
            for up in (*ups, TOP):
                is_unchanged = after.charge(up) == before.charge(up)
                assert is_unchanged or after.is_within(up), f"{key} is exceeded at {up or 'the top'}"

    def _used(self, key: tuple[str, str], without: str = "") -> dict[str, int]:
        used: dict[str, int] = {}
        for lease in self.leases.values():
            spec = self.specs[lease.job]
            roles = {role.name: role for role in spec.roles}
            for member in lease.members:
                if lease.lease != without and key[0] in ("any", self.nodes[member.node].flavor):
                    used[spec.queue] = used.get(spec.queue, 0) + _asks(roles[member.role]).get(key[1], 0)
        return used

    def _job_over(self, job: int) -> None:
        assert job not in self.ended, f"j{job} ends twice"
        assert all(lease.job != job for lease in self.leases.values()), f"j{job} ends and holds a lease"
        self.ended.add(job)
        self.waiting.discard(job)

    def _grant(self, event: LeaseGranted) -> None:
        assert event.job in self.waiting, f"j{event.job} is placed and did not wait"
        self.waiting.remove(event.job)
        self.leases[event.lease] = event
        spec = self.specs[event.job]
        seats = sorted((member.role, member.ordinal) for member in event.members)
        assert seats == sorted((role.name, at) for role in spec.roles for at in range(role.count)), "a partial gang"
        clusters = {self.nodes[member.node].cluster for member in event.members}
        assert clusters == {event.cluster}, f"{event.lease} is spread over {sorted(clusters)}"
        self.check_quota(event)
        self.started.add(event.job)
        for name in sorted({member.node for member in event.members}):
            assert self.nodes[name].state is NodeState.READY, f"{event.lease} is placed on {name}, not ready"
            self.check_node(name)

    def _end(self, event: LeaseObserved) -> None:
        over = self.leases.pop(event.lease)
        self.revoked.discard(event.lease)
        if event.phase is LeasePhase.FINISHED:
            assert over.job not in self.ended
            self.ended.add(over.job)
        else:
            self.waiting.add(over.job)

    def check_node(self, name: str) -> None:
        """Members on the node take no more than it has, in sum and on each GPU."""
        shape = self.nodes[name].shape
        left = {"cpu": shape.cpu_milli, "memory": shape.memory_bytes, **shape.other}
        left.update({f"gpu {index}": 1_000 for index in range(shape.gpus)})
        for lease in self.leases.values():
            roles = {role.name: role for role in self.specs[lease.job].roles}
            for member in lease.members:
                if member.node != name:
                    continue
                role = roles[member.role]
                assert len(set(member.gpus)) == role.gpus, f"{lease.lease}: {member.gpus} for {role.gpus} GPUs"
                asked = {"cpu": role.cpu_milli, "memory": role.memory_bytes, **role.other}
                asked.update({f"gpu {index}": role.gpu_milli for index in member.gpus})
                for resource, amount in asked.items():
                    left[resource] = left.get(resource, 0) - amount
        assert min(left.values()) >= 0, f"{name} is over-allocated: {left}"

    def check_cycle(self, core: Core) -> None:
        """After a whole cycle: every job is somewhere, and every one that waits has one reason."""
        closed = core.closed
        assert sum(closed.waiting.values()) == len(self.waiting), f"{closed.waiting} counts not {len(self.waiting)}"
        assert set(core.state.jobs) == self.waiting | {lease.job for lease in self.leases.values()}
        assert isinstance(core.decided[-1], CycleDecided)
        assert closed.decisions == len(core.decided) - 1


def script_of(seed: int, length: int = 60) -> Script:
    """A script drawn from a seed, for a search that must not depend on Hypothesis' choices."""
    draw = Random(seed)
    verbs = (*OFTEN, *VERBS)

    def number() -> int:
        return draw.randrange(2**16)

    return [(draw.choice(verbs), number(), number(), number()) for _ in range(length)]
