"""Jobs as they are asked for: a job is a gang of roles; one task is a gang of one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from controlplane.domain.mig import MILLI_OF_PROFILE
from controlplane.domain.model import Model
from controlplane.domain.quantities import (
    CPU,
    MAX_AMOUNT,
    MAX_GPUS_PER_NODE,
    MAX_MEMBERS,
    MAX_MS,
    MEMORY,
    MILLI,
    Amount,
    Millis,
    Name,
)
from controlplane.domain.topology import Arrangement, Level, TopologyRequest

Labels = dict[Annotated[str, Field(min_length=1, max_length=253)], Annotated[str, Field(max_length=1_024)]]


JobNumber = Annotated[int, Field(ge=1, le=MAX_AMOUNT, strict=True)]
Members = Annotated[int, Field(ge=1, le=MAX_MEMBERS, strict=True)]
Starts = Annotated[int, Field(ge=1, le=1_000, strict=True)]
Duration = Annotated[int, Field(ge=1, le=MAX_MS, strict=True)]
"""Milliseconds, at least one."""
AtOnce = Annotated[int, Field(ge=1, le=MAX_MS, strict=True)]
"""Jobs of an array."""


class Role(Model):
    """Members of a gang that are alike. Amounts are per member."""

    name: Name = "main"
    count: Members = 1
    """The most."""
    min_count: Members | None = None
    """The least with which the gang starts and goes on; ``None`` is ``count``. Between the two it grows as room
    appears, and shrinks before a gang is evicted."""
    cpu_milli: Amount = 0
    memory_bytes: Amount = 0
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS_PER_NODE, strict=True)] = 0
    gpu_milli: Annotated[int, Field(ge=1, le=MILLI, strict=True)] = MILLI
    """Of each GPU, in thousandths; a fraction only when ``gpus`` is 1."""
    gpu_models: Annotated[tuple[Name, ...], Field(max_length=64)] = ()
    """Models accepted, any of them; empty accepts all. The order is a preference for rules that score by it."""
    gpu_memory_bytes: Amount = 0
    """Share one GPU by its memory instead of ``gpu_milli``; 0 does not."""
    gpu_memory_min_bytes: Amount = 0
    """Memory that each GPU must have in all; nodes that do not say theirs are refused."""
    mig_profile: Annotated[str, Field(max_length=32)] = ""
    """A MIG instance such as ``1g.10gb`` for each of ``gpus``; empty for whole GPUs or parts of them."""
    throughput_ppm: Annotated[dict[Name, Annotated[int, Field(ge=1, le=10**9, strict=True)]], Field(max_length=64)] = (
        Field(default_factory=dict)
    )
    """How fast the work goes on a model, in millionths of some common speed; others count 1,000,000."""
    other: dict[Name, Amount] = Field(default_factory=dict)
    """Named resources: ephemeral storage, licences, whatever a node declares."""
    topology: TopologyRequest | None = None
    """How close together the members of this role want to be; other roles may be elsewhere."""

    @model_validator(mode="after")
    def _fraction_of_one_gpu(self) -> Self:
        if self.gpu_milli != MILLI and self.gpus != 1:
            raise ValueError("a fraction of a GPU (gpu_milli below 1000) needs gpus: 1")
        return self

    @model_validator(mode="after")
    def _least_and_most(self) -> Self:
        if self.min_count is not None and self.min_count > self.count:
            raise ValueError(f"min_count {self.min_count:,} is more than count {self.count:,}, which is the most")
        return self

    @model_validator(mode="after")
    def _one_way_to_share(self) -> Self:
        if self.gpu_memory_bytes and (self.gpus != 1 or self.gpu_milli != MILLI or self.mig_profile):
            raise ValueError("gpu_memory_bytes shares one GPU by memory: give gpus: 1, no gpu_milli, no mig_profile")
        if self.mig_profile and self.mig_profile not in MILLI_OF_PROFILE:
            known = ", ".join(sorted(MILLI_OF_PROFILE))
            raise ValueError(f"mig_profile {self.mig_profile!r} is not known; use one of {known}")
        if self.mig_profile and (self.gpus == 0 or self.gpu_milli != MILLI):
            raise ValueError("mig_profile needs the number of instances in gpus, and no gpu_milli")
        return self

    @property
    def least(self) -> int:
        """Members without which the gang does not run."""
        return self.count if self.min_count is None else self.min_count

    @property
    def gpu_milli_least(self) -> int:
        """What each of its GPUs counts at least. A part by memory counts more on a GPU with less of it."""
        if self.gpus == 0:
            return 0
        return 1 if self.gpu_memory_bytes else MILLI_OF_PROFILE.get(self.mig_profile, self.gpu_milli)


class LatencyClass(StrEnum):
    """How much it matters that a service answers soon."""

    INTERACTIVE = "interactive"
    """A person waits for each answer."""
    STANDARD = "standard"
    """A program waits."""
    RELAXED = "relaxed"
    """Nobody waits: an answer may come whenever there is room."""


class ServiceSpec(Model):
    """What makes a job a service: its members are replicas that answer requests and never end by themselves. It starts
    with the least of them; how many it is to have after that, between its least and its most, is for rules to say."""

    latency_class: LatencyClass = LatencyClass.STANDARD
    objective_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)] | None = None
    """What the 99th percentile of its latency should stay within, where an observation names no other."""
    stale_after_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)] = 120_000
    """A signal that was observed this long ago says nothing any more. Four of Prometheus' usual scrapes of 30 s."""


class JobSpec(Model):
    """What a client asks for. The id is given by the log."""

    name: Name
    queue: Name
    user: Name = "unknown"
    priority: Annotated[int, Field(ge=-(10**9), le=10**9, strict=True)] = 0
    """Higher goes first, as far as the ordering rules say so."""
    roles: Annotated[tuple[Role, ...], Field(min_length=1, max_length=64)]
    labels: Labels = Field(default_factory=dict)
    estimate_ms: Millis | None = None
    """How long it will run, as the client believes; ``None`` if unknown."""
    wait_limit_ms: Millis | None = None
    """Give up when not started this long after submission; 0 means now or never, ``None`` means wait for ever."""
    start_by_ms: Millis | None = None
    """An instant of the log's clock from which on starting makes no sense: it gives up then, for good."""
    time_limit_ms: Duration | None = None
    """How long each start may hold its place; then it is stopped, and the job has failed."""
    hold_ms: Duration | None = None
    """How long each start may hold its place before its cluster says that it runs; then it is stopped, and that start
    has failed."""
    after_ok: Annotated[tuple[JobNumber, ...], Field(max_length=1_000)] = ()
    """Jobs, by number, that must have finished before it may start; if one ends otherwise, it is refused."""
    after_any: Annotated[tuple[JobNumber, ...], Field(max_length=1_000)] = ()
    """Jobs, by number, that must be over before it may start, however they ended."""
    array: Name | None = None
    """Names jobs of one queue that belong together."""
    max_running: AtOnce | None = None
    """It starts only while fewer jobs of its array hold a place."""
    max_attempts: Starts = 3
    """Starts in all, after failures and losses of nodes; being preempted does not count."""
    grace_ms: Millis = 30_000
    """Between the signal to stop (time for a checkpoint) and the end, when it is preempted or cancelled."""
    checkpoint_every_ms: Duration | None = None
    """How often it saves its work by itself; ``None`` saves nothing until it ends."""
    topology: TopologyRequest | None = None
    """How close together the whole gang wants to be."""
    service: ServiceSpec | None = None
    """For a service: it has one role, whose members are its replicas, and neither estimate nor time limit."""

    @model_validator(mode="after")
    def _services_never_end(self) -> Self:
        if self.service is None:
            return self
        given = [name for name in ("estimate_ms", "time_limit_ms") if getattr(self, name) is not None]
        if given:
            raise ValueError(f"a service never ends by itself: leave out {' and '.join(given)}")
        if len(self.roles) != 1:
            raise ValueError("a service has one role, whose members are its replicas; submit other roles as other jobs")
        return self

    @model_validator(mode="after")
    def _roles_are_distinct_and_bounded(self) -> Self:
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise ValueError("two roles of one job have the same name")
        if self.members > MAX_MEMBERS:
            raise ValueError(f"a gang has at most {MAX_MEMBERS:,} members, this one has {self.members:,}")
        for name, amount in self._totals().items():
            if amount > MAX_AMOUNT:
                raise ValueError(f"the gang asks for {amount:,} of {name} in all, more than {MAX_AMOUNT:,}")
        return self

    @model_validator(mode="after")
    def _arrays_and_dependencies_make_sense(self) -> Self:
        if self.max_running is not None and self.array is None:
            raise ValueError("max_running limits the jobs of an array: name it in array, the same for all of them")
        both = sorted(set(self.after_ok) & set(self.after_any))
        if both:
            raise ValueError(f"job {both[0]} is in after_ok and in after_any; keep it in one of them")
        return self

    def _totals(self) -> dict[str, int]:
        """What the whole gang asks for, for the resources whose amounts a client chooses freely."""
        totals = {CPU: 0, MEMORY: 0}
        for role in self.roles:
            totals[CPU] += role.count * role.cpu_milli
            totals[MEMORY] += role.count * role.memory_bytes
            for name, amount in role.other.items():
                totals[name] = totals.get(name, 0) + role.count * amount
        return totals

    @property
    def members(self) -> int:
        """The size of the gang, at most."""
        return sum(role.count for role in self.roles)


class GangTerms(Model):
    """Terms on which a gang waits, starts and goes on, as the rules give them. What is left out stays as it was asked.

    They stand in place of what was asked, with two exceptions, in which nobody gets less than it asked for: the least
    is never fewer members than the gang needs (nor more than it may have), and a required level never a wider one.
    """

    min_members: Members | None = None
    """The least of the whole gang. What is beyond the least of its roles is given to them in the order as written."""
    topology_required: Level | None = None
    topology_preferred: Level | None = None
    """Left out where the gang requires a level that is as narrow."""
    arrangement: Arrangement | None = None
    """For gangs that do not say."""
    max_attempts: Starts | None = None
    wait_limit_ms: Millis | None = None
    start_by_ms: Millis | None = None
    hold_ms: Duration | None = None
    time_limit_ms: Duration | None = None
    """For jobs that end; a service has none."""
    grace_ms: Millis | None = None
    max_running: AtOnce | None = None
    """For jobs of an array."""

    def applied(self, asked: JobSpec) -> JobSpec:
        """The job as if it had asked for these terms."""
        given: dict[str, object] = {
            name: value for name in _REPLACED if (value := getattr(self, name)) not in (None, getattr(asked, name))
        }
        if asked.service is not None:
            given.pop("time_limit_ms", None)
        if asked.array is not None and self.max_running not in (None, asked.max_running):
            given["max_running"] = self.max_running
        if self.min_members is not None and self.min_members > sum(role.least for role in asked.roles):
            given["roles"] = _with_least(asked.roles, self.min_members)
        topology = self._nearness(asked)
        if topology != asked.topology:
            given["topology"] = topology
        return asked.model_copy(update=given) if given else asked

    def new_to(self, asked: JobSpec) -> GangTerms:
        """Those of the terms that are others than the job asks for."""
        given = {name: value for name in GangTerms.model_fields if (value := getattr(self, name)) is not None}
        new = {name: value for name, value in given.items() if GangTerms(**{name: value}).applied(asked) is not asked}
        return self if len(new) == len(given) else GangTerms(**new)

    def _nearness(self, asked: JobSpec) -> TopologyRequest | None:
        """Of several members; one is always near itself."""
        own = asked.topology
        levels = [own.required if own is not None else None, self.topology_required]
        required = max((level for level in levels if level is not None), key=lambda level: level.depth, default=None)
        preferred = self.topology_preferred or (own.preferred if own is not None else None)
        if preferred is not None and required is not None and preferred.depth <= required.depth:
            preferred = None
        arrangement = (own.arrangement if own is not None else None) or self.arrangement
        if asked.members == 1 or (required is None and preferred is None and arrangement is None):
            return own
        return TopologyRequest(required=required, preferred=preferred, arrangement=arrangement)


_REPLACED = ("max_attempts", "wait_limit_ms", "start_by_ms", "hold_ms", "time_limit_ms", "grace_ms")


def _with_least(roles: tuple[Role, ...], least: int) -> tuple[Role, ...]:
    """The roles with so many members at least, all of them together; as many as they may have, if that is fewer."""
    missing = least - sum(role.least for role in roles)
    raised: list[Role] = []
    for role in roles:
        more = min(max(0, missing), role.count - role.least)
        missing -= more
        needed = role.least + more
        raised.append(role.model_copy(update={"min_count": needed if needed < role.count else None}) if more else role)
    return tuple(raised)
