"""The decision points and everything that a rule may name there: type, unit and English meaning of each.

This is the contract with policy authors. The static check, the values given to the engine and the reference page are
all made from it. A field is read from the scheduler's facts under the same name; a test holds the two together. To add
a point: describe its variables here, add it to :data:`POINTS`, and ask it in :mod:`controlplane.policy.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_LABELS = 64
"""How many labels the cost bound reckons with; a loop over labels costs this many rounds."""
MAX_MODELS = 64
"""What a role may list (``workloads.Role.gpu_models``)."""
MAX_TEXT = 1_024
"""Length that the cost bound reckons with for a text (the longest label value)."""


class CelType(StrEnum):
    """Types of fields and parameters, spelled as CEL spells them."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    STRINGS = "list<string>"
    INTS = "list<int>"
    LABELS = "map<string, string>"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    name: str
    type: CelType
    unit: str
    """Such as ``ms``, ``milli-GPU``, ``bytes``; empty for names and plain counts of nothing."""
    meaning: str
    optional: bool = False
    """Whether it may be absent; ``has(...)`` tells."""


@dataclass(frozen=True, slots=True)
class Record:
    """A kind of thing that rules read, such as a job."""

    name: str
    meaning: str
    fields: tuple[Field, ...]

    def field(self, name: str) -> Field | None:
        """The field of that name."""
        return next((field for field in self.fields if field.name == name), None)


@dataclass(frozen=True, slots=True)
class Variable:
    """A name that a rule may use at a point: a record, or ``now``."""

    name: str
    record: Record | None
    meaning: str
    optional: bool = False
    """Whether all of it may be absent: then ``has()`` of each of its fields is false."""


class Answer(StrEnum):
    """What a point wants to hear."""

    BOOL = "bool"
    INT = "int"
    INTS = "list<int>"
    STRINGS = "list<string>"
    OPTIONAL_INT = "optional<int>"
    OPTIONAL_STRING = "optional<string>"
    PARTS = "map"
    """A map written out, of the parts that the point names."""

    @property
    def is_optional(self) -> bool:
        """Whether it is an answer that no match applies."""
        return self in (Answer.OPTIONAL_INT, Answer.OPTIONAL_STRING)

    @property
    def output(self) -> str:
        """The CEL type of one output."""
        return str(self).removeprefix("optional<").removesuffix(">") if self.is_optional else str(self)


@dataclass(frozen=True, slots=True)
class Point:
    """One decision point."""

    name: str
    asked: str
    variables: tuple[Variable, ...]
    answer: Answer
    meaning: str
    """Of the answer."""
    silent: str
    """What happens when the bundle has no rule for the point."""
    closed: str
    """What happens when the rule errs."""
    parts: tuple[Field, ...] = ()
    """Of a map: what it may hold; each may be left out."""

    def part(self, name: str) -> Field | None:
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)

    def variable(self, name: str) -> Variable | None:
        """The variable of that name."""
        return next((variable for variable in self.variables if variable.name == name), None)


_S, _I = CelType.STRING, CelType.INT

JOB = Record(
    "Job",
    "A job as submitted.",
    (
        Field("id", _S, "", "its id, such as j123"),
        Field("name", _S, "", "its name, as the submitter wrote it"),
        Field("queue", _S, "", "the queue that it was submitted to"),
        Field("user", _S, "", "who submitted it"),
        Field("priority", _I, "", "what the submitter asked for; higher is more urgent"),
        Field("labels", CelType.LABELS, "", "labels of the job, key to value"),
        Field("members", _I, "members", "the size of the gang, all roles together; of an elastic gang the least"),
        Field("gpus_milli", _I, "milli-GPU", "GPUs of the whole gang"),
        Field("cpu_milli", _I, "milli-CPU", "CPUs of the whole gang"),
        Field("memory_bytes", _I, "bytes", "memory of the whole gang"),
        Field("gpu_models", CelType.STRINGS, "", "GPU models that it accepts, any of them; empty accepts all"),
        Field("submitted_ms", _I, "ms since the epoch", "when it was submitted"),
        Field("attempts", _I, "attempts", "how often it has been started so far"),
        Field("estimate_ms", _I, "ms", "how long it will run, as the submitter believes", optional=True),
        Field("wait_limit_ms", _I, "ms", "how long after submission it gives up waiting", optional=True),
        Field(
            "throughput_best_ppm",
            _I,
            "parts per million",
            "how fast it goes on the best model that it names a speed for",
        ),
        Field(
            "topology_required", _S, "", "level in one domain of which all its members must be: 'rack'", optional=True
        ),
        Field("topology_preferred", _S, "", "level in one domain of which they would rather be", optional=True),
        Field("members_most", _I, "members", "the most members that it may have; above `members` if it is elastic"),
        Field("max_attempts", _I, "attempts", "starts that it may have in all, evictions aside"),
        Field("grace_ms", _I, "ms", "from the signal to stop to the end"),
        Field("hold_ms", _I, "ms", "how long a start may take before its cluster says that it runs", optional=True),
        Field("start_by_ms", _I, "ms since the epoch", "from when on starting makes no sense", optional=True),
        Field("time_limit_ms", _I, "ms", "how long each start may hold its place", optional=True),
        Field("array", _S, "", "the array that it belongs to", optional=True),
        Field("max_running", _I, "jobs", "jobs of its array that may hold a place at once", optional=True),
        Field("is_service", CelType.BOOL, "", "whether it is a service: its members are replicas that never end"),
        Field("latency_class", _S, "", "of a service: 'interactive', 'standard' or 'relaxed'; empty for any other job"),
    ),
)

ROLE = Record(
    "Role",
    "One role of a gang. Amounts are per member.",
    (
        Field("name", _S, "", "its name inside the job"),
        Field("count", _I, "members", "how many members it has"),
        Field("cpu_milli", _I, "milli-CPU", "CPUs of one member"),
        Field("memory_bytes", _I, "bytes", "memory of one member"),
        Field("gpus", _I, "GPUs", "GPUs of one member"),
        Field("gpu_milli", _I, "milli-GPU", "how much of each GPU; below 1000 it shares one GPU with others"),
        Field("gpu_models", CelType.STRINGS, "", "GPU models that it accepts, any of them; empty accepts all"),
        Field("gpu_memory_bytes", _I, "bytes", "what it takes of one GPU's memory if it shares by memory, else 0"),
        Field("gpu_memory_min_bytes", _I, "bytes", "memory that each GPU must have in all; 0 accepts any"),
        Field("mig_profile", _S, "", "MIG instance for each of its GPUs, such as '1g.10gb'; empty for none"),
        Field("topology_required", _S, "", "level in one domain of which its members must be: 'rack'", optional=True),
        Field("topology_preferred", _S, "", "level in one domain of which they would rather be", optional=True),
    ),
)

QUEUE = Record(
    "Queue",
    "A queue at this moment of the cycle.",
    (
        Field("name", _S, "", "its name"),
        Field("parent", _S, "", "the queue above it; empty at the top"),
        Field("weight", _I, "", "its weight among its siblings; 0 comes after all others"),
        Field(
            "share_ppb",
            _I,
            "parts per billion",
            "its dominant share of the capacity that is there, all below included; while queues are ordered, of a "
            "cohort its share of the resource that dominates the queue below it whose turn it would be",
        ),
        Field("weighted_share_ppb", _I, "parts per billion", "its share divided by its weight, rounded up"),
        Field("gpu_used_milli", _I, "milli-GPU", "GPUs in use, all below included"),
        Field("gpu_nominal_milli", _I, "milli-GPU", "GPUs that are its own"),
        Field("gpu_borrowed_milli", _I, "milli-GPU", "GPUs in use above its own"),
        Field("pending", _I, "jobs", "jobs that wait"),
        Field("running", _I, "jobs", "jobs that run"),
        Field("oldest_ms", _I, "ms since the epoch", "submission of the oldest job that waits; 0 if none does"),
        Field(
            "history_ppb",
            _I,
            "parts per billion",
            "its dominant share over time, half forgotten in each half-life; 0 where no history is configured",
        ),
        Field("weighted_history_ppb", _I, "parts per billion", "its history divided by its weight, rounded up"),
    ),
)

CLUSTER = Record(
    "Cluster",
    "A cluster.",
    (
        Field("name", _S, "", "its name"),
        Field("site", _S, "", "'home' for machines that are owned, 'cloud' for rented ones"),
        Field("labels", CelType.LABELS, "", "labels of the cluster, key to value"),
    ),
)

NODE = Record(
    "Node",
    "A kind of node: its capacity and what is free of it. Nodes in the same state share one.",
    (
        Field("cluster", _S, "", "the cluster that it belongs to"),
        Field("flavor", _S, "", "its kind of capacity"),
        Field("gpu_model", _S, "", "model of its GPUs; empty if it has none"),
        Field("labels", CelType.LABELS, "", "labels of the node, key to value"),
        Field("cpu_milli", _I, "milli-CPU", "its CPUs"),
        Field("memory_bytes", _I, "bytes", "its memory"),
        Field("gpus", _I, "GPUs", "how many GPUs it has"),
        Field("cpu_free_milli", _I, "milli-CPU", "CPUs that are free"),
        Field("memory_free_bytes", _I, "bytes", "memory that is free"),
        Field("gpu_free_milli", _I, "milli-GPU", "what is free on all its GPUs together"),
        Field("gpus_free", _I, "GPUs", "GPUs of which nothing is used"),
        Field("gpu_free_largest_milli", _I, "milli-GPU", "what is free on the GPU with most free"),
        Field("gpu_memory_bytes", _I, "bytes", "memory of each of its GPUs; 0 if not known"),
        Field("mig_gpus", _I, "GPUs", "how many GPUs are in MIG mode"),
        Field(
            "mig_placements",
            _I,
            "",
            "MIG placements still possible: over its GPUs and all profiles, the starts that are free",
        ),
        Field("fragmentation_milli", _I, "milli-GPU", "free GPU that typical jobs could not use, on average over them"),
    ),
)

AFTER = Record(
    "After",
    "A kind of node as it would be with a member of the role on it, and how it suits the role.",
    (
        *NODE.fields,
        Field(
            "model_rank", _I, "", "place of the node's GPU model in the role's list: 0 is the first choice, or no list"
        ),
        Field(
            "throughput_ppm",
            _I,
            "parts per million",
            "how fast the role goes on the model; 1000000 if it does not say",
        ),
        Field(
            "descent_score",
            _I,
            "",
            "0 to 99: 100 x sigmoid(fragmentation before - after, in GPUs), cut; above 50 lessens fragmentation",
        ),
    ),
)

CANDIDATE = Record(
    "Candidate",
    "One node (and one of its GPUs, for a fraction) as a place for one member. Reading it costs one question per node.",
    (
        Field("node", _S, "", "name of the node"),
        Field("gpu", _I, "", "index of the GPU for a fraction, -1 otherwise"),
        Field("lottery", _I, "", "a ticket drawn by hashing job, node and GPU: the same in every replay"),
    ),
)

HOME = Record(
    "Home",
    "All clusters of site 'home' together.",
    (
        Field("gpu_milli", _I, "milli-GPU", "GPUs in all"),
        Field("gpu_free_milli", _I, "milli-GPU", "GPUs that are free"),
        Field("gpu_pending_milli", _I, "milli-GPU", "GPUs asked for by jobs that wait"),
        Field(
            "pressure_ppm", _I, "parts per million", "GPUs used and waited for, relative to all GPUs; 1000000 is full"
        ),
    ),
)

OFFER = Record(
    "Offer",
    "One offer of a cloud, as seen by one waiting job.",
    (
        Field("cluster", _S, "", "the cloud cluster that offers"),
        Field("name", _S, "", "name of the offer"),
        Field("flavor", _S, "", "kind of capacity that it provides"),
        Field("market", _S, "", "how it is bought: 'reserved', 'on-demand' or 'spot'"),
        Field("gpu_model", _S, "", "model of its GPUs; empty if it has none"),
        Field("gpus", _I, "GPUs", "GPUs of one node"),
        Field("price_micro_usd_per_hour", _I, "micro-USD per hour", "price of one node"),
        Field("lead_time_ms", _I, "ms", "from asking to a ready node, as expected"),
        Field("nodes_needed", _I, "nodes", "nodes that hold the whole gang"),
        Field("nodes_left", _I, "nodes", "nodes that can still be asked for"),
        Field("cost_micro_usd", _I, "micro-USD", "what would be promised for the job, up to the deadline"),
    ),
)

BUDGET = Record(
    "Budget",
    "The tightest budget that a burst of the job would be charged to.",
    (
        Field("name", _S, "", "its name"),
        Field("limit_micro_usd", _I, "micro-USD", "its limit in one window"),
        Field("left_micro_usd", _I, "micro-USD", "what is left in this window; promises count as spent"),
        Field("window_left_ms", _I, "ms", "time to the end of this window"),
    ),
)

COHORT = Record(
    "Cohort",
    "What a job's queue shares with others: the queue right below the root that it belongs to.",
    (
        Field("name", _S, "", "its name"),
        Field("gpu_nominal_milli", _I, "milli-GPU", "nominal quota of GPUs of all queues below together"),
        Field("gpu_used_milli", _I, "milli-GPU", "GPUs used by all queues below together"),
    ),
)

SHORTAGE = Record(
    "Shortage",
    "Why a job does not start, as far as evicting others could help.",
    (
        Field(
            "reason",
            _S,
            "",
            "'capacity' when no room is free ('topology': none in one domain of a level that it requires; "
            "'held-warm': none that is not held for services), 'quota' when the quota is used up",
        ),
        Field(
            "waited_ms",
            _I,
            "ms",
            "how long it has waited since its submission; for more replicas of a service, since they have been wanted",
        ),
        Field("is_within_nominal", CelType.BOOL, "", "whether its queue stays within its nominal quota with the job"),
    ),
)

VICTIM = Record(
    "Victim",
    "One running gang that could be evicted.",
    (
        Field("id", _S, "", "id of its job, such as j123"),
        Field("queue", _S, "", "its queue"),
        Field("user", _S, "", "who submitted it"),
        Field("priority", _I, "", "its priority; higher is more urgent"),
        Field("labels", CelType.LABELS, "", "labels of the job, key to value"),
        Field("members", _I, "members", "the size of the gang"),
        Field("gpus_milli", _I, "milli-GPU", "GPUs of the whole gang"),
        Field("running_ms", _I, "ms", "time since it was placed"),
        Field("unsaved_ms", _I, "ms", "work that would be lost: since its last checkpoint"),
        Field("evictions", _I, "evictions", "how often the job was evicted so far"),
        Field("evictions_last_hour", _I, "evictions", "how often it was evicted in the last hour"),
        Field("is_borrowing", CelType.BOOL, "", "whether its queue uses more of something than its nominal quota"),
        Field("queue_weighted_share_ppb", _I, "parts per billion", "weighted dominant share of its queue"),
        Field("scope", _S, "", "under which answer of `preemption.allow` it may be evicted"),
        Field("is_service", CelType.BOOL, "", "whether it is a service"),
    ),
)

SERVICE = Record(
    "Service",
    "A service that holds its place, and how it does. What was observed is absent where it is stale.",
    (
        Field("latency_class", _S, "", "'interactive', 'standard' or 'relaxed', as submitted"),
        Field("replicas", _I, "replicas", "how many it has, those that were told to leave not counted"),
        Field("replicas_least", _I, "replicas", "the least that its job allows"),
        Field("replicas_most", _I, "replicas", "the most that its job allows"),
        Field("wanted", _I, "replicas", "how many it was last to have"),
        Field(
            "changed_ms", _I, "ms since the epoch", "when that was last changed; at first when the service was placed"
        ),
        Field("replica_gpus_milli", _I, "milli-GPU", "GPUs of one replica"),
        Field(
            "taken_gpus_milli",
            _I,
            "milli-GPU",
            "GPUs of those of its replicas for which others had to leave, those on their way included",
        ),
        Field("observed_ms", _I, "ms since the epoch", "when its signal was observed", optional=True),
        Field("p99_ms", _I, "ms", "the 99th percentile of its latency", optional=True),
        Field("objective_ms", _I, "ms", "what that should stay within", optional=True),
        Field("queue_depth", _I, "requests", "requests that wait to be answered", optional=True),
    ),
)

RECORDS = (JOB, ROLE, QUEUE, CLUSTER, NODE, AFTER, CANDIDATE, HOME, OFFER, BUDGET, COHORT, SHORTAGE, VICTIM, SERVICE)

NOW = Variable("now", None, "the instant of the decision, in ms since the epoch")
_JOB = Variable("job", JOB, "the job")
_ROLE = Variable("role", ROLE, "the role of the job that needs a place")

TERMS = (
    Field(
        "min_members",
        _I,
        "members",
        "the least with which it starts and goes on; never fewer than it needs, nor more than it may have",
    ),
    Field(
        "topology_required", _S, "", "level in one domain of which all its members must be; never wider than it asks"
    ),
    Field("topology_preferred", _S, "", "level in one domain of which they would rather be"),
    Field("arrangement", _S, "", "'packed' or 'balanced', for gangs that do not say"),
    Field("max_attempts", _I, "attempts", "starts in all, evictions aside; 1 to 1000"),
    Field("wait_limit_ms", _I, "ms", "how long after submission it gives up waiting; 0 is now or never"),
    Field("start_by_ms", _I, "ms since the epoch", "from when on starting makes no sense: it gives up then, for good"),
    Field("hold_ms", _I, "ms", "how long each start may hold its place before its cluster says that it runs"),
    Field("time_limit_ms", _I, "ms", "how long each start may hold its place; services have no limit"),
    Field("grace_ms", _I, "ms", "from the signal to stop to the end"),
    Field("max_running", _I, "jobs", "how many jobs of its array may hold a place at once; for jobs of an array"),
)
"""What `gang` answers with; bounds and meaning are those of :class:`~controlplane.domain.workloads.GangTerms`."""

POINTS: tuple[Point, ...] = (
    Point(
        "admission",
        "once per submission",
        (_JOB, Variable("queue", QUEUE, "the queue that it was submitted to"), NOW),
        Answer.OPTIONAL_STRING,
        "why the submission is refused; no answer admits it",
        "every submission is admitted",
        "the submission is refused",
    ),
    Point(
        "ordering.queue",
        "per queue with work, in every cycle",
        (Variable("queue", QUEUE, "the queue"), NOW),
        Answer.INTS,
        "the queue with the lowest list goes first; lists are compared number by number",
        "queues go by weighted dominant share",
        "the queue goes last",
    ),
    Point(
        "ordering.job",
        "per kind of job in one queue",
        (_JOB, Variable("queue", QUEUE, "the queue of the job"), NOW),
        Answer.INTS,
        "the job with the lowest list goes first; lists are compared number by number",
        "jobs go by priority",
        "the job goes last",
    ),
    Point(
        "ordering.backfill",
        "per kind of job in one queue, where a start is reserved",
        (_JOB, Variable("queue", QUEUE, "the queue of the job"), NOW),
        Answer.INTS,
        "once a start is reserved for somebody, the job with the lowest list goes first behind it. In a bundle that "
        "has this point or `overtaking`, who holds a reservation stays chosen: it is tried first, whoever came since",
        "backfill goes in the order of the jobs",
        "the job goes last",
    ),
    Point(
        "gang",
        "per kind of job when it is admitted; if the rule reads `now`, again each minute for every job that waits",
        (
            Variable("job", JOB, "the job as it was submitted"),
            Variable("queue", QUEUE, "the queue of the job"),
            Variable("home", HOME, "all clusters of site 'home' together"),
            NOW,
        ),
        Answer.PARTS,
        "the terms on which the gang waits, starts and goes on, in place of those that it asked for; what is left out "
        "stays as it was asked. The map is written out, such as `{'max_attempts': 3}`; a match for each case chooses "
        "between several. What a job was given it keeps while it holds a place, and when the policy changes",
        "gangs have the terms that they ask for",
        "the submission is refused (a job that waits keeps its terms)",
        TERMS,
    ),
    Point(
        "eligibility",
        "per role and kind of node",
        (
            _JOB,
            _ROLE,
            Variable("cluster", CLUSTER, "the cluster of the node"),
            Variable("node", NODE, "the kind of node"),
        ),
        Answer.BOOL,
        "whether members of the role may be on such nodes",
        "every node is eligible",
        "the node is not eligible",
    ),
    Point(
        "scoring",
        "per role and kind of node that has room",
        (
            _ROLE,
            Variable("cluster", CLUSTER, "the cluster of the node"),
            Variable("before", NODE, "the node as it is"),
            Variable("after", AFTER, "the node as it would be with the member on it"),
            Variable("candidate", CANDIDATE, "the very node; reading it costs one question per node", optional=True),
        ),
        Answer.INT,
        "the node with the highest number is taken",
        "all nodes are alike",
        "the node is taken last",
    ),
    Point(
        "quota",
        "when a job needs more than its queue's nominal quota",
        (
            _JOB,
            Variable("queue", QUEUE, "the queue of the job"),
            Variable("cohort", COHORT, "what the queue shares with others"),
        ),
        Answer.BOOL,
        "whether the job may be placed on borrowed quota",
        "every job may borrow",
        "the job may not borrow",
    ),
    Point(
        "preemption.allow",
        "per blocked job",
        (
            _JOB,
            Variable("queue", QUEUE, "the queue of the job"),
            Variable("shortage", SHORTAGE, "why the job does not start"),
        ),
        Answer.STRINGS,
        "whom the job may evict: 'queue' (lower priority in its own queue), 'cohort' (lower priority below the same "
        "top queue), 'reclaim' (queues above their nominal quota, if its own ends within), 'borrowers' (lower "
        "priority below the same top queue, in queues above their nominal quota), 'fair-share' (queues that would "
        "still have the larger weighted share afterwards), 'surplus' (only members above the minimum of elastic "
        "gangs, whatever their priority: of its own queue, and of queues above their nominal quota or without one); an "
        "empty list evicts nobody. Elastic gangs shrink before anybody is evicted",
        "nobody is evicted",
        "nobody is evicted for the job",
    ),
    Point(
        "preemption.victim",
        "per gang that the job may evict",
        (Variable("preemptor", JOB, "the job that needs room"), Variable("victim", VICTIM, "the gang in its way")),
        Answer.OPTIONAL_INT,
        "what evicting it costs, lower goes first; no answer protects it",
        "the cost is the work that would be lost, in GPU-milliseconds",
        "the gang is protected",
    ),
    Point(
        "reservation",
        "per job that no room is free for",
        (_JOB, Variable("queue", QUEUE, "the queue of the job"), NOW),
        Answer.INT,
        "how many blocked jobs may hold a reservation when this one asks for one: 0 reserves nothing for it, 1 is EASY "
        "backfill, a large number is conservative backfill",
        "nothing is reserved",
        "nothing is reserved for the job",
    ),
    Point(
        "overtaking",
        "per job that no room or no quota is free for",
        (_JOB, Variable("queue", QUEUE, "the queue of the job"), NOW),
        Answer.STRINGS,
        "who may still be placed in this cycle: 'queue' (the jobs behind it in its own queue), 'others' (the other "
        "queues); an empty list is strict first in, first out. Who can never run as things are blocks nobody",
        "everybody may pass",
        "only other queues may pass",
    ),
    Point(
        "service.replicas",
        "per service that holds its place, when it was observed and every half minute",
        (
            Variable("job", JOB, "the job of the service"),
            Variable("service", SERVICE, "the service and how it does"),
            Variable("queue", QUEUE, "its queue"),
            NOW,
        ),
        Answer.OPTIONAL_INT,
        "how many replicas it is to have, cut to what its job allows; no answer leaves it at what it was last to have. "
        "It grows into free room, warm pools included, before anybody else is placed, and beyond that by what "
        "`service.take` lets it take; what it has beyond the number it gives back, first what was taken",
        "services stay as they are; they start with the least that their job allows",
        "the service is left at what it was last to have",
    ),
    Point(
        "service.take",
        "per service that is to have more replicas than there is free room for",
        (
            Variable("job", JOB, "the job of the service"),
            Variable("service", SERVICE, "the service and how it does"),
            Variable("queue", QUEUE, "its queue"),
            NOW,
        ),
        Answer.INT,
        "how much GPU, in milli-GPU, it may hold of room that others had to leave, what it holds so already included; "
        "nor does more than so much have to leave at once. Who may have to leave, and who first, is for "
        "`preemption.allow` and `preemption.victim` to say; elastic gangs shrink before anybody is evicted, and no "
        "service has to leave for another",
        "nothing is taken",
        "nothing is taken for the service",
    ),
    Point(
        "burst",
        "per waiting job and offer",
        (
            _JOB,
            Variable("queue", QUEUE, "the queue of the job"),
            Variable("home", HOME, "all clusters of site 'home' together"),
            Variable("offer", OFFER, "the offer"),
            Variable("budget", BUDGET, "the tightest budget that would be charged; absent if none is", optional=True),
            NOW,
        ),
        Answer.OPTIONAL_INT,
        "cost of serving the job by the offer, lower is better; no answer keeps the job at home",
        "the job stays at home",
        "the job stays at home",
    ),
)

BY_NAME: dict[str, Point] = {point.name: point for point in POINTS}
PARAMS = "params"
"""The variable under which the parameters of a bundle are read."""
VARIABLES = "variables"
"""The variable under which the variables of a rule are read."""
