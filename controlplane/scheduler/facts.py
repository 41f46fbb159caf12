"""What rules may know: flat records that the scheduler builds and a rule reads.

Each attribute here is a field of the policy vocabulary under the same name; the vocabulary adds unit and meaning, and
a test holds the two together. Amounts are integers in the units of :mod:`controlplane.domain.quantities`. ``None``
means absent (``has(job.estimate_ms)`` is false in a rule).

They are immutable by agreement and not by ``frozen=True``, which triples the cost of making one; the core makes several
for each placement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class JobFacts:
    """One job as submitted. Built once; the same object for the whole life of the job unless ``attempts`` changes."""

    id: str
    name: str
    queue: str
    user: str
    priority: int
    labels: Mapping[str, str]
    members: int
    gpus_milli: int
    cpu_milli: int
    memory_bytes: int
    gpu_models: tuple[str, ...]
    submitted_ms: int
    attempts: int
    estimate_ms: int | None = None
    wait_limit_ms: int | None = None
    throughput_best_ppm: int = 1_000_000
    """How fast it goes on the model that suits it best, of those that its roles name a speed for."""
    topology_required: str | None = None
    """The level in one domain of which all its members must be, such as ``rack``."""
    topology_preferred: str | None = None
    members_most: int = 1
    """The most members that the gang may have; ``members`` is the least."""
    max_attempts: int = 3
    grace_ms: int = 30_000
    hold_ms: int | None = None
    start_by_ms: int | None = None
    time_limit_ms: int | None = None
    array: str | None = None
    max_running: int | None = None
    is_service: bool = False
    """Whether it is a service: its members are replicas that never end by themselves."""
    latency_class: str = ""
    """Of a service; empty otherwise."""


@dataclass(slots=True, eq=False)
class RoleFacts:
    """One role of a job; amounts per member."""

    name: str
    count: int
    cpu_milli: int
    memory_bytes: int
    gpus: int
    gpu_milli: int
    gpu_models: tuple[str, ...]
    gpu_memory_bytes: int = 0
    """What it takes of the memory of one GPU, where it shares by memory."""
    gpu_memory_min_bytes: int = 0
    mig_profile: str = ""
    topology_required: str | None = None
    """The level in one domain of which all members of the role must be, such as ``rack``."""
    topology_preferred: str | None = None


@dataclass(slots=True, eq=False)
class QueueFacts:
    """One queue (leaf or cohort) at this moment of the cycle."""

    name: str
    parent: str
    weight: int
    share_ppb: int
    """Dominant share of the capacity that is there, all below included; while queues are ordered, of a cohort its
    share of the resource that dominates the queue below it whose turn it would be, see
    :mod:`controlplane.scheduler.claims`."""
    weighted_share_ppb: int
    """``share_ppb`` divided by weight, rounded up; the largest number for weight 0."""
    gpu_used_milli: int
    gpu_nominal_milli: int
    gpu_borrowed_milli: int
    pending: int
    running: int
    oldest_ms: int
    """Submission of the oldest job that waits; 0 if none does."""
    history_ppb: int = 0
    """Its share over time, less the longer ago; 0 where no history is kept."""
    weighted_history_ppb: int = 0
    """``history_ppb`` divided by weight, rounded up; the largest number for weight 0."""


@dataclass(slots=True, eq=False)
class ClusterFacts:
    """The cluster of a node or offer."""

    name: str
    site: str
    labels: Mapping[str, str]


@dataclass(slots=True, eq=False)
class NodeFacts:
    """A kind of node: capacity, and what is free of it. Nodes in the same state share one."""

    cluster: str
    flavor: str
    gpu_model: str
    labels: Mapping[str, str]
    cpu_milli: int
    memory_bytes: int
    gpus: int
    cpu_free_milli: int
    memory_free_bytes: int
    gpu_free_milli: int
    gpus_free: int
    """GPUs of which nothing is used."""
    gpu_free_largest_milli: int
    """What is free on the GPU with most free."""
    gpu_memory_bytes: int = 0
    """Of each GPU in all; 0 if not known."""
    mig_gpus: int = 0
    """GPUs in MIG mode."""
    mig_placements: int = 0
    """MIG placements that are still possible: over all GPUs that are cut or may be, over all profiles, the starts that
    are free."""
    fragmentation_milli: int = 0
    """GPU that typical jobs could not use here, see :mod:`controlplane.scheduler.fragmentation`. Measured only for
    rules that read it."""


@dataclass(slots=True, eq=False)
class AfterFacts(NodeFacts):
    """A kind of node as it would be with a member of one role on it, and how it suits that role."""

    model_rank: int = 0
    """Place of the node's GPU model in the list of the role: 0 is its first choice, and where it lists none."""
    throughput_ppm: int = 1_000_000
    """How fast the role goes on the model."""
    descent_score: int = 50
    """0 to 99, by how much the member takes away fragmentation: int(100 sigmoid(GPUs of fragmentation before - after)),
    so that 50 to 99 lessens it. Measured only for rules that read it."""


@dataclass(slots=True, eq=False)
class CandidateFacts:
    """One node (and one GPU of it, for a fraction) as a place for one member. A scoring rule that reads it is asked
    once per node instead of once per kind of node."""

    node: str
    gpu: int
    """Index of the GPU for a fraction, -1 otherwise."""
    lottery: int
    """A ticket in 0 .. 2^62-1 drawn by hashing job and node (upper half) and GPU (lower half): the largest ticket is
    uniform over nodes and, within a node, over GPUs, and the same in every replay."""


@dataclass(slots=True, eq=False)
class HomeFacts:
    """All clusters of site ``home`` together."""

    gpu_milli: int
    gpu_free_milli: int
    gpu_pending_milli: int
    """Asked for by jobs that wait."""
    pressure_ppm: int
    """(used + pending) / capacity of GPUs, in millionths, rounded up."""


@dataclass(slots=True, eq=False)
class OfferFacts:
    """One offer of a cloud, as seen by one waiting job."""

    cluster: str
    name: str
    flavor: str
    market: str
    gpu_model: str
    gpus: int
    price_micro_usd_per_hour: int
    lead_time_ms: int
    nodes_needed: int
    """To hold the whole gang of the job."""
    nodes_left: int
    cost_micro_usd: int
    """What would be promised for the job: nodes needed, to the deadline."""


@dataclass(slots=True, eq=False)
class BudgetFacts:
    """The tightest budget that a burst of the job would be charged to."""

    name: str
    limit_micro_usd: int
    left_micro_usd: int
    """In this window, promises counted as spent."""
    window_left_ms: int


@dataclass(slots=True, eq=False)
class CohortFacts:
    """What a job's queue shares with others: the queue right below the root that it belongs to."""

    name: str
    gpu_nominal_milli: int
    """Of all queues below together."""
    gpu_used_milli: int


@dataclass(slots=True, eq=False)
class ShortageFacts:
    """Why a job does not start, as far as evicting others could help."""

    reason: str
    """``capacity``, ``topology``, ``held-warm`` or ``quota``."""
    waited_ms: int
    """Since its submission; for more replicas of a service, since they have been wanted."""
    is_within_nominal: bool
    """Whether the queue would stay within its own nominal quota with the job."""


@dataclass(slots=True, eq=False)
class VictimFacts:
    """One running gang that could be evicted."""

    id: str
    queue: str
    user: str
    priority: int
    labels: Mapping[str, str]
    members: int
    gpus_milli: int
    running_ms: int
    """Since it was placed."""
    unsaved_ms: int
    """Work that would be lost: since the last checkpoint that the job said it makes."""
    evictions: int
    """How often this job was evicted so far."""
    evictions_last_hour: int
    is_borrowing: bool
    """Whether its queue uses more than its nominal quota of something."""
    queue_weighted_share_ppb: int
    scope: str = ""
    """Under which answer of ``preemption.allow`` it may be evicted."""
    is_service: bool = False


@dataclass(slots=True, eq=False)
class ServiceFacts:
    """One service that holds its place, and how it does."""

    latency_class: str
    replicas: int
    """Those that were not told to leave."""
    replicas_least: int
    replicas_most: int
    wanted: int
    """How many it was last to have."""
    changed_ms: int
    """When that was last changed; at first when it was placed."""
    replica_gpus_milli: int
    """GPUs of one replica."""
    taken_gpus_milli: int
    """GPUs of the replicas for which others had to leave, those for which room is promised included."""
    observed_ms: int | None = None
    """When the signal was observed; this and what follows are absent where there is none, or a stale one."""
    p99_ms: int | None = None
    objective_ms: int | None = None
    queue_depth: int | None = None
