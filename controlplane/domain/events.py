"""The events of the log. Names and versions are ours and never change meaning; an old version is upcast when read.

Every event has one author (law 2): what people and clients *requested*, what operators and policy authors *configured*,
what cluster agents *observed*, the clock that *ticked*, and the one output, what the scheduler *decided*.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from controlplane.domain.clusters import Budget, ClusterSpec, NodeShape, NodeState, WarmPool
from controlplane.domain.model import Model
from controlplane.domain.quantities import Amount, Millis, Name
from controlplane.domain.queues import HistorySpec, QueueSpec
from controlplane.domain.topology import DomainNames, Level
from controlplane.domain.workloads import GangTerms, JobSpec, Labels, Role


class Author(StrEnum):
    """Who speaks."""

    REQUESTED = "requested"
    CONFIGURED = "configured"
    OBSERVED = "observed"
    TICKED = "ticked"
    DECIDED = "decided"


class Event(Model):
    """What is written as the payload of one log record."""

    TYPE: ClassVar[str]
    AUTHOR: ClassVar[Author]


# --- requested -------------------------------------------------------------------------------------------------------


class JobSubmitted(Event):
    """A client asks for a job. Its id is the position of this event."""

    TYPE = "job_submitted/1"
    AUTHOR = Author.REQUESTED
    spec: JobSpec
    submitted_ms: Millis
    idempotency_key: Annotated[str, Field(max_length=256)] | None = None


class JobCancelRequested(Event):
    """A client no longer wants a job."""

    TYPE = "job_cancel_requested/1"
    AUTHOR = Author.REQUESTED
    job: int
    requested_ms: Millis


# --- configured ------------------------------------------------------------------------------------------------------


class QueueConfigured(Event):
    """A queue is created or changed."""

    TYPE = "queue_configured/1"
    AUTHOR = Author.CONFIGURED
    spec: QueueSpec


class HistoryConfigured(Event):
    """What queues use is remembered from now on, or in another way than before; what is remembered already is kept."""

    TYPE = "history_configured/1"
    AUTHOR = Author.CONFIGURED
    spec: HistorySpec | None = None
    """``None`` forgets."""


class ClusterConfigured(Event):
    """A cluster is created or changed."""

    TYPE = "cluster_configured/1"
    AUTHOR = Author.CONFIGURED
    spec: ClusterSpec


class BudgetConfigured(Event):
    """A budget is created or changed."""

    TYPE = "budget_configured/1"
    AUTHOR = Author.CONFIGURED
    spec: Budget


class WarmPoolConfigured(Event):
    """A warm pool is created, changed, or (with no blocks) given up."""

    TYPE = "warm_pool_configured/1"
    AUTHOR = Author.CONFIGURED
    spec: WarmPool


class TypicalJobsConfigured(Event):
    """What jobs are like, for the measure of fragmentation; it is learned from submissions otherwise."""

    TYPE = "typical_jobs_configured/1"
    AUTHOR = Author.CONFIGURED
    roles: tuple[Role, ...]
    """Members as they ask; ``count`` is how often. None lets it be learned again."""


class PolicyActivated(Event):
    """A bundle becomes the rules. It carries the whole text, so that the log replays without the repository."""

    TYPE = "policy_activated/1"
    AUTHOR = Author.CONFIGURED
    name: Name
    digest: str
    """SHA-256 over the canonical source, as the policy floor computes it."""
    files: dict[str, str]
    """Path inside the bundle -> text."""


class PolicyShadowed(Event):
    """A bundle is asked beside the active one from now on, on the same state; what it says is recorded and nothing
    else. It carries the whole text, as an activation does, and takes the place of an earlier shadow."""

    TYPE = "policy_shadowed/1"
    AUTHOR = Author.CONFIGURED
    name: Name
    digest: str
    files: dict[str, str]
    """Path inside the bundle -> text."""


class ShadowEnded(Event):
    """No bundle is asked beside the active one any more."""

    TYPE = "shadow_ended/1"
    AUTHOR = Author.CONFIGURED


# --- observed --------------------------------------------------------------------------------------------------------


class NodeObserved(Event):
    """A node joined, changed or was lost."""

    TYPE = "node_observed/1"
    AUTHOR = Author.OBSERVED
    cluster: Name
    node: Name
    state: NodeState = NodeState.READY
    shape: NodeShape
    flavor: Name
    labels: Labels = Field(default_factory=dict)
    request: str | None = None
    """The capacity request that it answers, for a rented node."""
    topology: DomainNames = Field(default_factory=dict)
    """Level -> name of the domain that the node is in, as far as known."""


class LeasePhase(StrEnum):
    """What an agent observed of a lease."""

    LAUNCHING = "launching"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    """The work itself failed."""
    LOST = "lost"
    """The cluster no longer has it and cannot say how it ended."""
    REFUSED = "refused"
    """The cluster would not launch it."""
    ENDED = "ended"
    """Stopped because the plane no longer wanted it."""
    RESIZED = "resized"
    """Its members are others than before: ``members`` are those that it still has room for."""


class MemberName(Model):
    """Which member of a gang."""

    role: str
    ordinal: int


class LeaseObserved(Event):
    """An agent reports on a lease. Only this makes a job running, finished or lost, or a member of it gone."""

    TYPE = "lease_observed/1"
    AUTHOR = Author.OBSERVED
    cluster: Name
    lease: str
    phase: LeasePhase
    observed_ms: Millis
    exit_code: int | None = None
    detail: Annotated[str, Field(max_length=1_024)] = ""
    revision: int = 0
    """For ``resized``: the last change of members that the cluster has carried out, or said no to."""
    members: tuple[MemberName, ...] = ()
    """For ``resized``: everyone there, those who are still being stopped included. Who was wanted up to ``revision``
    and is not listed holds no room any more."""


class ServiceObserved(Event):
    """How a service does: the signal by which rules say how many replicas it is to have. The latest observation counts,
    in whichever order they arrive."""

    TYPE = "service_observed/1"
    AUTHOR = Author.OBSERVED
    cluster: Name
    lease: str
    observed_ms: Millis
    p99_ms: Millis | None = None
    """The 99th percentile of its latency; ``None`` if nothing was answered or nobody measures it."""
    objective_ms: Millis | None = None
    """What that should stay within; ``None`` is what the job says."""
    queue_depth: Amount | None = None
    """Requests that wait to be answered."""


class CapacityPhase(StrEnum):
    """What an agent observed of a capacity request."""

    PROVIDED = "provided"
    """Its nodes are ready, or begin to be; each arrives as ``node_observed``."""
    FAILED = "failed"
    RELEASED = "released"
    """Nothing of it is left and nothing more is charged."""


class CapacityObserved(Event):
    """An agent reports on rented capacity."""

    TYPE = "capacity_observed/1"
    AUTHOR = Author.OBSERVED
    cluster: Name
    request: str
    phase: CapacityPhase
    observed_ms: Millis
    nodes: tuple[Name, ...] = ()
    charged_micro_usd: Amount = 0
    """The provider's whole charge for the request, at ``released``."""
    detail: Annotated[str, Field(max_length=1_024)] = ""


class ShadowFailed(Event):
    """The plane could not decide the last cycle under the shadow bundle, and asks it no more. What was decided under
    the active one is not touched by that. An input: how far a machine goes is not for another one to find again."""

    TYPE = "shadow_failed/1"
    AUTHOR = Author.OBSERVED
    policy: str
    """Digest of the shadow bundle."""
    cause: Annotated[str, Field(max_length=1_024)]


# --- ticked ----------------------------------------------------------------------------------------------------------


class Ticked(Event):
    """Time is data: one cycle of the scheduler is due at this instant."""

    TYPE = "ticked/1"
    AUTHOR = Author.TICKED
    now_ms: Millis


# --- decided ---------------------------------------------------------------------------------------------------------


class Tally(Model):
    """How many nodes were refused for what, while one member looked for room."""

    nodes: int
    not_eligible: int = 0
    wrong_model: int = 0
    cordoned: int = 0
    too_small: int = 0
    """Not large enough even when empty."""
    no_cpu: int = 0
    no_memory: int = 0
    mig_misplaced: int = 0
    """Enough slices of a GPU are free for the MIG profile, but other instances lie where it would have to."""
    no_gpu: int = 0
    no_other: int = 0
    fitting: int = 0
    """Had room for a member, but not for the rest of the gang."""


class JobRefused(Event):
    """A submission is turned away, for good."""

    TYPE = "job_refused/1"
    AUTHOR = Author.DECIDED
    job: int
    reason: int
    detail: str
    rule: str | None = None
    """``file:line`` of the rule that refused."""


class TermsGiven(Event):
    """The rules give a job that waits other terms than those that it asked for, or than it was given before."""

    TYPE = "terms_given/1"
    AUTHOR = Author.DECIDED
    job: int
    terms: GangTerms
    """All of them; a term that was given before and is not among them is again as the job asked."""
    rule: str | None = None
    """``file:line`` of the rule that gave them."""


class Member(Model):
    """One member of a gang on one node, on GPUs by index."""

    role: str
    ordinal: int
    node: str
    gpus: tuple[int, ...] = ()
    slices: tuple[int, ...] = ()
    """For MIG instances: the first memory slice of each, in the order of ``gpus``."""


class LeaseGranted(Event):
    """The whole gang has its place in one cluster, until the lease ends."""

    TYPE = "lease_granted/1"
    AUTHOR = Author.DECIDED
    lease: str
    job: int
    attempt: int
    cluster: str
    members: tuple[Member, ...]
    rule: str | None = None
    """``file:line`` of the scoring rule that preferred the first member's node."""


class LeaseRevoked(Event):
    """The plane no longer wants a lease; its room counts as free once the cluster says that it ended."""

    TYPE = "lease_revoked/1"
    AUTHOR = Author.DECIDED
    lease: str
    cause: str
    """Such as ``cancelled``, ``node-lost``, ``deadline``, ``preempted`` (by priority), ``reclaimed`` (by quota)."""
    for_job: int | None = None
    """The job to which its room is promised."""
    grace_ms: Millis | None = None
    rule: str | None = None
    """``file:line`` of the rule that made it a victim."""


class LeaseGrown(Event):
    """An elastic gang has more members from now on, beside those that it has."""

    TYPE = "lease_grown/1"
    AUTHOR = Author.DECIDED
    lease: str
    revision: int
    """Counts the changes of the lease's members, from 1: they take effect in this order, whichever arrives first."""
    members: tuple[Member, ...]
    rule: str | None = None
    """``file:line`` of the scoring rule that preferred the first member's node; of the rule that let it preempt, for
    replicas that were ``taken``."""
    cause: str = ""
    """For replicas of a service: ``wanted``, in room that was free, or ``taken``, in room that others left for it."""


class LeaseShrunk(Event):
    """An elastic gang is to go on with fewer members. Their room counts as free once the cluster says that they are
    gone."""

    TYPE = "lease_shrunk/1"
    AUTHOR = Author.DECIDED
    lease: str
    revision: int
    members: tuple[MemberName, ...]
    """Those who leave."""
    cause: str
    """``preempted`` or ``reclaimed``, as for a revocation; ``unwanted`` for replicas that a service gives back."""
    for_job: int | None = None
    """The job to which their room is promised."""
    grace_ms: Millis | None = None
    rule: str | None = None
    """``file:line`` of the rule that made it a victim, or that said how many replicas a service is to have."""


class ShrinkAwaited(Model):
    """A shrinkage that a promise waits for."""

    lease: str
    revision: int


class RoomPromised(Event):
    """A job will have this placement as soon as the leases that stand in the way have ended or shrunk. What of it is
    free, and what becomes free of it, is held for the job until then."""

    TYPE = "room_promised/1"
    AUTHOR = Author.DECIDED
    job: int
    cluster: str
    members: tuple[Member, ...]
    victims: tuple[str, ...]
    rule: str | None = None
    """``file:line`` of the rule that let the job preempt."""
    shrinks: tuple[ShrinkAwaited, ...] = ()
    lease: str | None = None
    """For more replicas of a service: the lease that they will belong to."""


class PromiseReleased(Event):
    """Room that was promised is held no longer: the job is gone, or the room is."""

    TYPE = "promise_released/1"
    AUTHOR = Author.DECIDED
    job: int
    cause: str


class ServiceScaled(Event):
    """A service is to have another number of replicas than it was last to have. Beside it: what the rules saw."""

    TYPE = "service_scaled/1"
    AUTHOR = Author.DECIDED
    job: int
    lease: str
    wanted: int
    """Between the least and the most that the job allows."""
    replicas: int
    """Those that it has now and that were not told to leave."""
    rule: str | None = None
    """``file:line`` of the rule that said so."""
    observed_ms: Millis | None = None
    """When the signal was observed; ``None``, as are its parts, if there is none that is not stale."""
    p99_ms: Millis | None = None
    objective_ms: Millis | None = None
    queue_depth: Amount | None = None


class ServiceShort(Event):
    """A service has fewer replicas than it is to have, and why has changed."""

    TYPE = "service_short/1"
    AUTHOR = Author.DECIDED
    job: int
    lease: str
    missing: int
    """Replicas that it lacks, those for which room is promised included."""
    reason: int
    short: dict[str, int] = Field(default_factory=dict)
    """What is missing for one replica, by resource, in its unit, where that is known."""
    rule: str | None = None
    """``file:line`` of the rule that keeps it from having them."""


class WarmBlock(Model):
    """GPUs of one node that are held for services."""

    node: Name
    gpus: tuple[int, ...]
    """By index."""


class HeldPool(Model):
    """What one warm pool holds: these blocks and no others."""

    pool: str
    blocks: tuple[WarmBlock, ...]


class WarmPoolsHeld(Event):
    """What warm pools hold has changed. All changes at once, since a GPU may pass from one pool to another."""

    TYPE = "warm_pools_held/1"
    AUTHOR = Author.DECIDED
    pools: tuple[HeldPool, ...]
    """Those that hold something else than before."""


class ReservationMade(Event):
    """A blocked job has a promised start, or another one than before: what would delay it stays off these nodes."""

    TYPE = "reservation_made/1"
    AUTHOR = Author.DECIDED
    job: int
    start_ms: Millis | None = None
    """By the estimates of what runs there; ``None`` where one gives none."""
    nodes: tuple[Name, ...]
    rule: str | None = None
    cluster: str = ""
    """Of the nodes; left out where no other cluster has a node of such a name."""


class ReservationReleased(Event):
    """A blocked job loses its reservation: another goes first, or the rules no longer grant it."""

    TYPE = "reservation_released/1"
    AUTHOR = Author.DECIDED
    job: int
    cause: str


class OverPromise(Model):
    """What queues are promised of one resource of one flavor is more than there is."""

    flavor: str
    """``any`` for all flavors together."""
    resource: str
    promised: int
    """Nominal quota in all, in the unit of the resource."""
    there: int


class QuotaOverPromised(Event):
    """The sum of what queues are promised exceeds the capacity, by other amounts than when this was last said."""

    TYPE = "quota_over_promised/1"
    AUTHOR = Author.DECIDED
    promises: tuple[OverPromise, ...]
    """Sorted by flavor and resource; none when all promises could be kept again."""


class JobRequeued(Event):
    """A job whose lease failed or was lost waits again, as a whole gang."""

    TYPE = "job_requeued/1"
    AUTHOR = Author.DECIDED
    job: int
    cause: str


class JobEnded(Event):
    """A job is over by decision: it gave up waiting, was cancelled while it waited, or used up its attempts."""

    TYPE = "job_ended/1"
    AUTHOR = Author.DECIDED
    job: int
    outcome: str
    reason: int | None = None
    """Why it had not started, for ``expired``."""


class TopologyShort(Model):
    """The best that one domain of a required level has for the members that must share it."""

    role: str | None
    """The role whose members must share it; ``None`` for the whole gang."""
    level: Level
    domain: str
    """Its path from the cluster down, such as ``home/b1/r7``; empty if no node has room for a member."""
    room: int
    """Members that have room there, counted role by role."""
    members: int
    """How many need it."""


class JobsWaiting(Event):
    """Alike jobs of one queue wait, and why has changed. Recorded when decided, never reconstructed."""

    TYPE = "jobs_waiting/1"
    AUTHOR = Author.DECIDED
    queue: str
    head: int
    """The first of them; the others are behind it."""
    count: int
    reason: int
    short: dict[str, int] = Field(default_factory=dict)
    """What is missing, by resource, in its unit."""
    tally: Tally | None = None
    rule: str | None = None
    topology: TopologyShort | None = None
    """For a reason of topology."""


class CapacityRequested(Event):
    """Nodes are asked of a cloud. The termination deadline stands from this moment."""

    TYPE = "capacity_requested/1"
    AUTHOR = Author.DECIDED
    request: str
    cluster: str
    offer: str
    nodes: int
    for_job: int
    deadline_ms: Millis
    """Every node of the request is ended by then, whatever else happens."""
    promised_micro_usd: Amount
    budgets: tuple[str, ...]
    rule: str | None = None
    refused_offers: dict[str, str] = Field(default_factory=dict)
    """``cluster/offer`` -> why it was not chosen."""


class CapacityReleased(Event):
    """Rented nodes are given back."""

    TYPE = "capacity_released/1"
    AUTHOR = Author.DECIDED
    request: str
    cluster: str
    cause: str


class CycleDecided(Event):
    """The end of one cycle's batch: what decided, under which rules, and a digest over the decisions before it."""

    TYPE = "cycle_decided/1"
    AUTHOR = Author.DECIDED
    cycle: int
    now_ms: Millis
    core: str
    policy: str
    """Digest of the active bundle."""
    engine: str
    decisions: int
    digest: str
    """SHA-256 over the types and canonical payloads of the cycle's decisions, in order."""
    waiting: dict[str, int] = Field(default_factory=dict)
    """Jobs that are neither running nor ended, by reason."""
    reask_ms: Millis | None = None
    """When a cycle is due by time alone: a rule that looks at the time kept a job at home, a budget's window will turn,
    or victims are to be looked for again."""
    services_ms: Millis | None = None
    """When the rules are to be asked about services again, though nothing else happens; ``None`` if there is none that
    they scale."""
    searched_ms: Millis | None = None
    """When victims were last looked for on behalf of everybody; ``None`` if that has not been since the last time."""
    faults: tuple[str, ...] = ()
    """Rules that erred behind this cycle's decisions (each failed closed), one sentence each; sorted. What an earlier
    cycle reported of the same policy is not reported again."""


class ShadowDifference(Model):
    """Decisions of one kind that one of the two bundles makes and the other does not, by the same rule."""

    what: str
    """Such as ``start`` or ``evict``: see :data:`controlplane.runtime.shadow.KINDS`."""
    by_shadow: bool
    """Whether the shadow bundle decides so, and the active one does not; else the other way round."""
    jobs: tuple[int, ...]
    """The jobs about which it is, by number."""
    rule: str | None = None
    """``file:line`` of the rule behind the decision, in the bundle that makes it."""
    reason: int | None = None
    """For jobs that only the active bundle starts: why they would wait under the shadow, where that is known."""
    promised_micro_usd: Amount = 0
    """For capacity that would be rented: what it would cost at most."""


class ShadowDecided(Event):
    """What the shadow bundle decides otherwise in the cycle that was just recorded, as far as it was not told before:
    each job is named once for each kind of difference, for as long as the same two bundles stand."""

    TYPE = "shadow_decided/1"
    AUTHOR = Author.DECIDED
    cycle: int
    policy: str
    """Digest of the shadow bundle."""
    differences: tuple[ShadowDifference, ...] = ()
    untold: int = 0
    """So many more jobs, beyond those that one record names; who still differs in the next cycle is named then."""
    faults: tuple[str, ...] = ()
    """Rules of the shadow that erred and were not reported before, one sentence each; sorted."""


EVENTS: tuple[type[Event], ...] = (
    JobSubmitted,
    JobCancelRequested,
    QueueConfigured,
    HistoryConfigured,
    ClusterConfigured,
    BudgetConfigured,
    PolicyActivated,
    PolicyShadowed,
    ShadowEnded,
    TypicalJobsConfigured,
    NodeObserved,
    LeaseObserved,
    CapacityObserved,
    ShadowFailed,
    Ticked,
    JobRefused,
    TermsGiven,
    LeaseGranted,
    LeaseGrown,
    LeaseShrunk,
    LeaseRevoked,
    RoomPromised,
    PromiseReleased,
    ReservationMade,
    ReservationReleased,
    QuotaOverPromised,
    JobRequeued,
    JobEnded,
    JobsWaiting,
    CapacityRequested,
    CapacityReleased,
    CycleDecided,
    ShadowDecided,
    ServiceObserved,
    ServiceScaled,
    ServiceShort,
    WarmPoolConfigured,
    WarmPoolsHeld,
)
BY_TYPE: dict[str, type[Event]] = {event.TYPE: event for event in EVENTS}
