"""Generated worlds: a script of small numbers, read against the world as it stands, so that any script makes sense.

A step is a verb and three numbers. The numbers choose among what there is (the third lease, the second node), so that
Hypothesis can shorten a script without breaking it. What is generated includes what a good agent would never report
(late, repeated and contradictory observations), because a fold never refuses.

What a job is like is drawn from the digits of its three numbers, one after the other (:class:`Digits`): 0 is always
the plainest, and what is rare comes last, so that shortening takes features away one by one. Every feature of jobs and
nodes is drawn: gangs of several roles, elastic ones, whole GPUs, parts in thousandths and by memory, MIG instances,
models, named resources, levels, estimates, limits of time, arrays, and jobs that wait for others.

:class:`~tests.scheduler.ledger.Ledger` is the naive model beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

from hypothesis import strategies as st

from controlplane.domain.clusters import ClusterSpec, NodeState, Offer, Site
from controlplane.domain.events import (
    CapacityPhase,
    ClusterConfigured,
    Event,
    LeaseObserved,
    LeasePhase,
    MemberName,
    NodeObserved,
    PolicyActivated,
    QueueConfigured,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.topology import Level, TopologyRequest
from controlplane.domain.workloads import GangTerms, JobSpec, Role
from controlplane.scheduler.facts import JobFacts, QueueFacts
from controlplane.scheduler.state import RequestPhase
from tests.scheduler.core import CLOUD, GIB, HOME, HOUR, Core, gpus, offer
from tests.scheduler.ledger import OVER, Ledger
from tests.twins.plain_rules import PlainRules

OTHER = "home0"
"""A second cluster at home; it is configured anew now and then."""
Step = tuple[str, int, int, int]
Script = list[Step]
T = TypeVar("T")

DIGITS = 2**24
"""Each number of a step is below this: three of them choose some twenty times among a few."""

SHAPES = (
    gpus(8),
    gpus(4, cpu=8_000),
    gpus(4, "T4", cpu=16_000, memory=64 * GIB),
    gpus(0, cpu=32_000),
    gpus(2, "T4", cpu=8_000, licence=2),
    gpus(2, "A100-40").model_copy(update={"gpu_memory_bytes": 40 * GIB}),
    gpus(2, "A100-40").model_copy(update={"gpu_memory_bytes": 40 * GIB, "mig": True}),
    gpus(3, "A100-40").model_copy(update={"gpu_memory_bytes": 40 * GIB, "mig": 1, "mig_repartition": True}),
)
PLACES: tuple[dict[Level, str], ...] = (
    {},
    *({Level.BLOCK: block, Level.RACK: rack} for block in ("b1", "b2") for rack in ("r1", "r2")),
)
"""A node says block and rack, or nothing."""
OFFERS = (
    offer("big", 8_000_000, most=2),
    offer("small", 900_000, count=2, model="T4", most=3),
    offer("spot", 2_000_000, count=4, most=1),
)
MODELS: tuple[tuple[str, ...], ...] = ((), (), (), ("A100",), ("T4",), ("A100", "T4"), ("H100",))
LEVELS = (
    None,
    None,
    TopologyRequest(required=Level.RACK),
    TopologyRequest(preferred=Level.RACK),
    TopologyRequest(required=Level.BLOCK, preferred=Level.HOST),
    TopologyRequest(required=Level.HOST),
)
PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.5gb+me")


def burst_cost(job: object, home: object, offer: object, now_ms: int) -> int | None:
    """Anything may be rented, the cheaper the better, but only in the second half of each minute."""
    price = getattr(offer, "cost_micro_usd", 0)
    return int(price) if now_ms % 60_000 >= 30_000 else None


def terms_of(job: JobFacts, queue: QueueFacts, now_ms: int) -> GangTerms:
    """Less patience than jobs ask for, and more members; both are eased after a while."""
    if now_ms - job.submitted_ms >= 60_000:
        return GangTerms(max_attempts=2)
    return GangTerms(
        min_members=job.members_most,
        wait_limit_ms=45_000 if job.priority else None,
        topology_required=Level.BLOCK if job.members_most > 2 else None,
        hold_ms=60_000,
        grace_ms=1_000,
    )


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
        allow=lambda job, queue, shortage: ("queue", "reclaim", "fair-share", "cohort")[: 3 + job.priority],
        depth=lambda job: 2,
        cost=burst_cost,
    ),
    lambda: PlainRules(
        digest="strict",
        may_preempt=True,
        may_reserve=True,
        may_block=True,
        may_order_backfill=True,
        allow=lambda job, queue, shortage: ("queue", "reclaim", "borrowers")[: 2 + job.priority],
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
    lambda: PlainRules(
        digest="elastic",
        may_preempt=True,
        may_reserve=True,
        allow=lambda job, queue, shortage: ("queue", "surplus", "reclaim")[: 2 + job.priority],
        depth=lambda job: 1,
        cost=burst_cost,
    ),
    lambda: PlainRules(
        digest="terms",
        may_give_terms=True,
        gang_reads=frozenset({"job.submitted_ms", "job.members_most", "job.priority", "now"}),
        terms=terms_of,
        may_preempt=True,
        allow=lambda job, queue, shortage: ("queue", "surplus"),
        cost=burst_cost,
    ),
)


class World(Core):
    """A core in which scripts are played. ``checks`` see it after every cycle."""

    def __init__(self, variant: int = 0, *, is_checked: bool = True) -> None:
        super().__init__(RULES[variant % len(RULES)](), is_checked=is_checked)
        self.ledger = Ledger()
        self._specs: list[JobSpec] = []
        self._ids: list[int] = []
        """Jobs that were submitted."""
        self._ends: list[str] = []
        self._resized: list[LeaseObserved] = []
        self._nodes_made = {HOME: 0, OTHER: 0, CLOUD: 0}
        self._rented: dict[str, tuple[str, ...]] = {}
        """Request -> the names of its nodes."""
        self.tell(PolicyActivated(name="p", digest=self.rules.digest, files={}))
        self.home()
        self.tell(ClusterConfigured(spec=ClusterSpec(name=OTHER)))
        self.queue("root", {"gpu": 20_000})
        self.queue("left", {"gpu": Quota(nominal=8_000, borrowing_limit=4_000, lending_limit=2_000)}, parent="root")
        self.queue("right", {"gpu": 4_000}, flavor="a100", parent="root")
        self.queue("team")
        self.budget("all", 6_000_000, HOUR)
        self.budget("lefts", 3_000_000, HOUR // 2, queue="left")
        self.cloud(*OFFERS, idle_release_ms=20_000)
        for number, shape in enumerate((0, 5, 2, 7)):
            self._new_node(shape, number, 0)

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
        self._specs.append(spec_of(a, b, c, self._ids))
        self._ids.append(self.submit(self._specs[-1]))

    def _submit_alike(self, a: int, b: int, c: int) -> None:
        if self._specs:
            for _ in range(1 + b % 6):
                self._ids.append(self.submit(self._specs[a % len(self._specs)]))

    def _tick(self, a: int, b: int, c: int) -> None:
        self.cycle(self.state.now_ms + (1, 1_000, 30_000, 70_000)[a % 4] * (1 + b % 3))
        self.ledger.check_cycle(self)

    def _cancel(self, a: int, b: int, c: int) -> None:
        ids = list(self.state.jobs) or [1]
        self.cancel(ids[a % len(ids)] if b % 5 else a)

    def _report(self, a: int, b: int, c: int) -> None:
        leases = list(self.state.leases)
        if leases:
            lease = leases[a % len(leases)]
            early = (LeasePhase.RUNNING, LeasePhase.RUNNING, LeasePhase.LAUNCHING, LeasePhase.RUNNING)
            phase = (*early, LeasePhase.FINISHED, *OVER)[b % 10]
            self._ends.append(lease)
            self.report(lease, phase)

    def _report_late(self, a: int, b: int, c: int) -> None:
        lease = self._ends[a % len(self._ends)] if self._ends else "j1.1"
        self.report(lease, (LeasePhase.RUNNING, *OVER)[b % 6])

    def _resize(self, a: int, b: int, c: int) -> None:
        """What an agent would say of a gang: as of some revision, with whoever is not stopped yet. Or old news."""
        leases = [lease for lease in self.state.leases.values() if lease.job.cls.is_elastic]
        if c % 4 == 3 and self._resized:
            self.tell(self._resized[a % len(self._resized)])
        elif leases:
            lease = leases[a % len(leases)]
            revision = lease.revision - b % (1 + lease.revision)
            there = [
                MemberName(role=seat.role, ordinal=seat.ordinal)
                for number, seat in enumerate(lease.seats)
                if seat.since <= revision and not 0 < seat.leaving <= revision and (b // 8 % 4 or number != c // 4 % 4)
            ]
            self._resized.append(
                LeaseObserved(
                    cluster=lease.cluster,
                    lease=lease.id,
                    phase=LeasePhase.RESIZED,
                    observed_ms=self.state.now_ms,
                    revision=revision,
                    members=tuple(there),
                )
            )
            self.tell(self._resized[-1])

    def _new_node(self, a: int, b: int, c: int) -> None:
        cluster, shape = (HOME, HOME, HOME, OTHER)[c % 4], SHAPES[a % len(SHAPES)]
        flavor = (shape.gpu_model or "cpu").lower()
        place = PLACES[b % len(PLACES)]
        node = self._next_name(cluster)
        self.tell(NodeObserved(cluster=cluster, node=node, shape=shape, flavor=flavor, topology=place))

    def _next_name(self, cluster: str) -> str:
        """Each cluster counts for itself, so that they have nodes of the same names."""
        self._nodes_made[cluster] += 1
        return f"n{self._nodes_made[cluster]}"

    def _change_node(self, a: int, b: int, c: int) -> None:
        """It is lost, cordoned, comes back, has a GPU less, or stands elsewhere."""
        nodes = [at for at in self.ledger.nodes if at in self.state.nodes or b % 3 == 0]
        if not nodes:
            return
        at = nodes[a % len(nodes)]
        known = self.ledger.nodes[at]
        if known.request is not None and at not in self.state.nodes:
            return  # what was rented is gone for good
        update: dict[str, object] = {
            "state": (NodeState.LOST, NodeState.READY, NodeState.CORDONED, NodeState.READY)[b % 4],
            "labels": {"seen": str(c % 2)},
        }
        if c // 2 % 4 in (1, 2) and known.shape.gpus > known.shape.mig_gpus:
            update["shape"] = known.shape.model_copy(update={"gpus": known.shape.gpus - 1})
        elif c // 2 % 4 == 3 and known.request is None:
            update["topology"] = PLACES[c // 8 % len(PLACES)]
        self.tell(known.model_copy(update=update))

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
            parent = (*["root"] * 6, "left", "team")[b % 8]
            self.tell(QueueConfigured(spec=QueueSpec(name=f"extra{c % 2}", parent=parent, weight=c % 4)))
        else:
            old = self.state.queues[("left", "right")[a % 3]]
            parents = ("root", "root", "root", None, None, "team")
            self.tell(QueueConfigured(spec=old.model_copy(update={"parent": parents[b % 6], "weight": c % 5})))

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
        if request.id not in self._rented:
            self._rented[request.id] = tuple(self._next_name(CLOUD) for _ in range(request.nodes))
        names = self._rented[request.id]
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
    "resize": World._resize,
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
OFTEN = (
    *["submit"] * 9,
    *["submit_alike"] * 6,
    *["tick"] * 9,
    *["report"] * 6,
    *["resize"] * 3,
    *["provide"] * 3,
    *["change_node"] * 2,
    "end_rent",
)

_NUMBERS = st.integers(0, DIGITS - 1)
SCRIPTS: st.SearchStrategy[Script] = st.lists(
    st.tuples(st.sampled_from((*OFTEN, *VERBS)), _NUMBERS, _NUMBERS, _NUMBERS), max_size=60
)


# --- jobs ------------------------------------------------------------------------------------------------------------


class Digits:
    """Some numbers, read as the digits of choices one after the other."""

    def __init__(self, *numbers: int) -> None:
        self._left = 0
        for number in reversed(numbers):
            self._left = self._left * DIGITS + number % DIGITS

    def below(self, count: int) -> int:
        """The next choice, as a number from 0."""
        self._left, digit = divmod(self._left, count)
        return digit

    def of(self, *options: T) -> T:
        """The next choice; 0 takes the first."""
        return options[self.below(len(options))]

    def seldom(self, one_in: int) -> bool:
        """Whether the next choice is the last of so many."""
        return self.below(one_in) == one_in - 1


def spec_of(a: int, b: int, c: int, others: Sequence[int] = ()) -> JobSpec:
    """A job; ``others`` are those that it may depend on."""
    digits = Digits(a, b, c)
    queue = digits.of(*["left", "right", "team"] * 12, "extra0", "nowhere")
    roles = [_role(digits, "main")]
    plain: dict[str, object] = {
        "name": digits.of("job", "job", "job", "unwanted"),
        "queue": queue,
        "priority": digits.of(0, 5, 0),
        "max_attempts": digits.of(1, 2, 3),
        "estimate_ms": digits.of(None, 1_000, 60_000, HOUR),
        "wait_limit_ms": digits.of(None, None, None, None, None, 200_000, 200_000, 0),
    }
    if digits.seldom(5):
        server = Role(name="server", count=1 + digits.below(2), cpu_milli=2_000, memory_bytes=30 * GIB)
        roles.append(server.model_copy(update={"topology": digits.of(*LEVELS[:4])}))
    if digits.seldom(3):
        plain["topology"] = digits.of(*LEVELS)
    if digits.seldom(6):
        limits = {"time_limit_ms": 70_000, "hold_ms": 40_000, "start_by_ms": 300_000}
        plain.update([digits.of(*limits.items())])
    if digits.seldom(6):
        plain.update({"array": digits.of("sweep", "other"), "max_running": digits.of(1, 2)})
    if others and digits.seldom(6):
        ties = digits.of("after_ok", "after_any")
        plain[ties] = tuple({others[digits.below(len(others))] for _ in range(digits.of(1, 2))})
    if digits.seldom(40):
        plain["after_any"] = (10**9,)
    return JobSpec.model_validate({**plain, "roles": tuple(roles)})


def _role(digits: Digits, name: str) -> Role:
    count = digits.of(1, 1, 1, 2, 3, 6)
    plain: dict[str, object] = {"name": name, "count": count, "cpu_milli": 1_000 * digits.below(5)}
    plain["gpus"] = gpus_ = digits.of(1, 1, 2, 4, 0, 3, 2)
    if count > 1 and digits.of(True, False):
        plain["min_count"] = 1 + digits.below(count)
    if gpus_ == 1:
        share = digits.of("whole", "whole", "part", "memory", "instance")
        if share == "part":
            plain["gpu_milli"] = 250 * (1 + digits.below(3))
        elif share == "memory":
            plain["gpu_memory_bytes"] = digits.of(10, 15, 25, 40) * GIB
        elif share == "instance":
            plain["mig_profile"] = digits.of(*PROFILES)
    if digits.seldom(3):
        plain["gpu_models"] = digits.of(*MODELS)
    if digits.seldom(10):
        plain["other"] = {"licence": 1 + digits.below(2)}
    return Role.model_validate(plain)


def script_of(seed: int, length: int = 60) -> Script:
    """A script drawn from a seed, for a search that must not depend on Hypothesis' choices."""
    draw = Random(seed)
    verbs = (*OFTEN, *VERBS)

    def number() -> int:
        return draw.randrange(DIGITS)

    return [(draw.choice(verbs), number(), number(), number()) for _ in range(length)]
