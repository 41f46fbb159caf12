"""The core alone: a state, rules in Python, and the loop of fold, decide and fold, with everything checked on the way.

``Core`` has no log and no agents: a test tells it inputs and lets it run cycles. After every event all invariants are
recomputed, and each cycle is decided twice and once more from a snapshot, so that any test that uses it also tests that
deciding is a function of the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from controlplane.domain.clusters import Budget, ClusterSpec, NodeShape, NodeState, Offer, Site, WarmPool
from controlplane.domain.events import (
    BudgetConfigured,
    CapacityObserved,
    CapacityPhase,
    ClusterConfigured,
    CycleDecided,
    Event,
    JobCancelRequested,
    JobSubmitted,
    JobsWaiting,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    MemberName,
    NodeObserved,
    QueueConfigured,
    ServiceObserved,
    Ticked,
    WarmPoolConfigured,
)
from controlplane.domain.queues import QueueSpec, Quota
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler.decide import decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.invariants import check_all, check_touched
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.state import State
from tests.twins.plain_rules import PlainRules

E = TypeVar("E", bound=Event)
GIB = 2**30
HOME = "home"
CLOUD = "cloud"
HOUR = 3_600_000


class Core:
    """See the module. ``decided`` holds what the last cycle decided, ``told`` every event so far, in order."""

    def __init__(self, rules: PlainRules | None = None, *, is_checked: bool = True) -> None:
        self.state = State()
        self.rules = rules or PlainRules()
        self.told: list[Event] = []
        self.decided: list[Event] = []
        self._is_checked = is_checked

    # --- inputs ------------------------------------------------------------------------------------------------------

    def tell(self, *events: Event) -> int:
        """Fold events; gives the position of the last."""
        for event in events:
            apply(self.state, self.state.position + 1, event)
            self.told.append(event)
            if self._is_checked:
                check_all(self.state)
        return self.state.position

    def home(self, **nodes: NodeShape) -> None:
        """A home cluster with these nodes, ready. Names have ``_`` for ``-``."""
        self.tell(ClusterConfigured(spec=ClusterSpec(name=HOME)))
        for name, shape in nodes.items():
            self.node(name.replace("_", "-"), shape)

    def node(
        self,
        name: str,
        shape: NodeShape,
        state: NodeState = NodeState.READY,
        *,
        cluster: str = HOME,
        flavor: str | None = None,
        request: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        """An agent reports on a node. Its flavor is its GPU model in small letters unless given."""
        kind = flavor or (shape.gpu_model or "cpu").lower()
        self.tell(
            NodeObserved(
                cluster=cluster, node=name, state=state, shape=shape, flavor=kind, labels=labels or {}, request=request
            )
        )

    def queue(
        self, name: str, quotas: dict[str, Quota | int] | None = None, *, flavor: str = "any", parent: str | None = None
    ) -> None:
        """Configure a queue, with quotas by resource for one flavor."""
        limits = {
            key: quota if isinstance(quota, Quota) else Quota(nominal=quota) for key, quota in (quotas or {}).items()
        }
        self.tell(QueueConfigured(spec=QueueSpec(name=name, parent=parent, quotas={flavor: limits} if limits else {})))

    def submit(self, spec: JobSpec, at_ms: int | None = None) -> int:
        """A client asks; gives the job's id."""
        return self.tell(JobSubmitted(spec=spec, submitted_ms=self.state.now_ms if at_ms is None else at_ms))

    def cancel(self, job: int) -> None:
        """A client no longer wants a job."""
        self.tell(JobCancelRequested(job=job, requested_ms=self.state.now_ms))

    def report(self, lease: str, *phases: LeasePhase, at_ms: int | None = None) -> None:
        """An agent reports on a lease."""
        held = self.state.leases.get(lease)
        cluster = held.cluster if held is not None else HOME
        observed_ms = self.state.now_ms if at_ms is None else at_ms
        for phase in phases:
            self.tell(LeaseObserved(cluster=cluster, lease=lease, phase=phase, observed_ms=observed_ms))

    def finish(self, job: int) -> None:
        """The lease of a job ran and is over."""
        self.report(self.lease_of(job), LeasePhase.RUNNING, LeasePhase.FINISHED)

    def resized(self, job: int) -> None:
        """The cluster carried out what was decided about the members of a gang."""
        lease = self.state.leases[self.lease_of(job)]
        self.tell(
            LeaseObserved(
                cluster=lease.cluster,
                lease=lease.id,
                phase=LeasePhase.RESIZED,
                observed_ms=self.state.now_ms,
                revision=lease.revision,
                members=tuple(MemberName(role=seat.role, ordinal=seat.ordinal) for seat in lease.staying()),
            )
        )

    def settle(self) -> None:
        """Every cluster carried out all that was decided."""
        for lease in list(self.state.leases.values()):
            if lease.revoked is not None:
                self.report(lease.id, LeasePhase.ENDED)
            elif any(seat.leaving for seat in lease.seats):
                self.resized(lease.job.id)

    def signal(
        self, job: int, p99_ms: int | None = None, *, queue_depth: int | None = None, at_ms: int | None = None
    ) -> None:
        """An agent reports how a service does."""
        lease = self.lease_of(job)
        observed_ms = self.state.now_ms if at_ms is None else at_ms
        self.tell(
            ServiceObserved(cluster=HOME, lease=lease, observed_ms=observed_ms, p99_ms=p99_ms, queue_depth=queue_depth)
        )

    def pool(self, name: str, blocks: int, *, gpus: int = 1, flavor: str = "a100", queue: str | None = None) -> None:
        """Configure a warm pool at home."""
        spec = WarmPool(name=name, cluster=HOME, flavor=flavor, blocks=blocks, gpus=gpus, queue=queue)
        self.tell(WarmPoolConfigured(spec=spec))

    def cloud(self, *offers: Offer, idle_release_ms: int = 600_000) -> None:
        """A cloud cluster with offers."""
        self.tell(
            ClusterConfigured(
                spec=ClusterSpec(name=CLOUD, site=Site.CLOUD, offers=offers, idle_release_ms=idle_release_ms)
            )
        )

    def budget(self, name: str, limit_micro_usd: int, window_ms: int = HOUR, queue: str | None = None) -> None:
        """Configure a budget."""
        spec = Budget(name=name, limit_micro_usd=limit_micro_usd, window_ms=window_ms, queue=queue)
        self.tell(BudgetConfigured(spec=spec))

    def capacity(self, request: str, phase: CapacityPhase, charged: int = 0, nodes: tuple[str, ...] = ()) -> None:
        """An agent reports on rented capacity."""
        self.tell(
            CapacityObserved(
                cluster=CLOUD,
                request=request,
                phase=phase,
                observed_ms=self.state.now_ms,
                nodes=nodes,
                charged_micro_usd=charged,
            )
        )

    # --- cycles ------------------------------------------------------------------------------------------------------

    def cycle(self, now_ms: int | None = None) -> list[Event]:
        """Tick, decide, fold the decisions; gives them without the cycle's own record."""
        self.tell(Ticked(now_ms=self.state.now_ms if now_ms is None else now_ms))
        if self._is_checked:
            self._check_that_deciding_is_a_function()
        self.decided = [decision.event for decision in decide(self.state, self.rules).decisions]
        for event in self.decided:
            self.tell(event)
        if self._is_checked:
            check_touched(self.state, self.decided)
        return self.decided[:-1]

    def _check_that_deciding_is_a_function(self) -> None:
        before = take(self.state)
        first = payloads(self.state, self.rules)
        assert take(self.state) == before, "deciding changed the state"
        assert payloads(self.state, self.rules) == first, "deciding twice decided two things"
        twin = restore(before)
        assert take(twin) == before, "a snapshot restored is another state"
        again = payloads(twin, self.rules)
        assert again == first, f"after a restart the cycle decides otherwise: {again} and not {first}"

    # --- what came of it ---------------------------------------------------------------------------------------------

    @property
    def closed(self) -> CycleDecided:
        """The last cycle's own record."""
        closed = self.decided[-1]
        assert isinstance(closed, CycleDecided)
        return closed

    def last(self, kind: type[E]) -> list[E]:
        """The last cycle's decisions of one type."""
        return [event for event in self.decided if isinstance(event, kind)]

    def placed(self) -> list[int]:
        """Jobs that the last cycle placed, in order."""
        return [event.job for event in self.last(LeaseGranted)]

    def lease_of(self, job: int) -> str:
        """The lease that a job holds."""
        lease = self.state.jobs[job].lease
        assert lease is not None, f"j{job} holds no lease"
        return lease

    def waiting(self) -> dict[int, JobsWaiting]:
        """What the last cycle said of groups that wait, by their first job."""
        return {event.head: event for event in self.last(JobsWaiting)}


def payloads(state: State, rules: PlainRules) -> list[tuple[str, bytes]]:
    """What a cycle would decide, as types and bytes."""
    return [(decision.event.TYPE, decision.payload) for decision in decide(state, rules).decisions]


def refold(events: Sequence[Event]) -> State:
    """The state after these events, folded from nothing."""
    state = State()
    for position, event in enumerate(events, start=1):
        apply(state, position, event)
    return state


def gpus(count: int, model: str = "A100", cpu: int = 64_000, memory: int = 512 * GIB, **other: int) -> NodeShape:
    """A node with GPUs."""
    return NodeShape(cpu_milli=cpu, memory_bytes=memory, gpus=count, gpu_model=model if count else None, other=other)


def job(
    gpu: int = 0, *, queue: str = "team", members: int = 1, cpu: int = 0, name: str = "job", **more: object
) -> JobSpec:
    """A job of one role."""
    role_fields = {key: more.pop(key) for key in ("memory_bytes", "gpu_milli", "gpu_models", "other") if key in more}
    role = Role.model_validate({"count": members, "cpu_milli": cpu, "gpus": gpu, **role_fields})
    return JobSpec.model_validate({"name": name, "queue": queue, "roles": (role,), **more})


def offer(
    name: str, price: int, *, count: int = 8, model: str = "A100", most: int = 10, lead_ms: int = 60_000
) -> Offer:
    """Rentable nodes with GPUs; the price is of one node for an hour, in micro-dollars."""
    return Offer(
        name=name,
        flavor=f"{model.lower()}-cloud",
        shape=gpus(count, model),
        price_micro_usd_per_hour=price,
        lead_time_ms=lead_ms,
        max_nodes=most,
    )
