"""The naive model of a world: it knows only the events, and recomputes from them what is used, promised and owed.

Nothing of it is shared with the core but the tables of the domain. It says what must hold of a placement, of a change
of members and of a whole cycle, and breaks with an ``AssertionError`` that names what went wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

from controlplane.domain.clusters import Budget, NodeShape, NodeState
from controlplane.domain.events import (
    BudgetConfigured,
    CapacityObserved,
    CapacityPhase,
    CapacityReleased,
    CapacityRequested,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobSubmitted,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    Member,
    NodeObserved,
    QueueConfigured,
    TermsGiven,
    Ticked,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.mig import MILLI_OF_PROFILE
from controlplane.domain.queues import QueueSpec
from controlplane.domain.topology import Level
from controlplane.domain.workloads import JobSpec, Role
from tests.scheduler.core import Core
from tests.scheduler.naive_quota import TOP, NaiveQuota

OVER = (LeasePhase.FINISHED, LeasePhase.FAILED, LeasePhase.LOST, LeasePhase.REFUSED, LeasePhase.ENDED)


@dataclass(frozen=True)
class Sat:
    """One member where it sits, with what it takes there."""

    member: Member
    at: NodeId
    role: Role
    flavor: str
    milli: int
    """Of each of its GPUs, as it was when it came."""
    since: int = 0
    leaving: int = 0

    @property
    def name(self) -> tuple[str, int]:
        return (self.member.role, self.member.ordinal)

    @property
    def amounts(self) -> dict[str, int]:
        role = self.role
        return {"gpu": role.gpus * self.milli, "cpu": role.cpu_milli, "memory": role.memory_bytes, **role.other}


@dataclass
class Held:
    """A lease and what the events say of it."""

    granted: LeaseGranted
    at_ms: int
    seats: list[Sat]
    """In the order in which they came."""
    is_running: bool = False
    is_revoked: bool = False
    revision: int = 0


@dataclass
class Ledger:
    """See the module."""

    nodes: dict[NodeId, NodeObserved] = field(default_factory=dict)
    leases: dict[str, Held] = field(default_factory=dict)
    asked: dict[int, JobSpec] = field(default_factory=dict)
    """Jobs as submitted."""
    specs: dict[int, JobSpec] = field(default_factory=dict)
    """The same on the terms that they were given."""
    submitted_ms: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)
    """Jobs that were placed at least once."""
    ended: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    requests: dict[str, CapacityRequested] = field(default_factory=dict)
    queues: dict[str, QueueSpec] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)
    spent: dict[str, tuple[int, int, tuple[str, ...]]] = field(default_factory=dict)
    """Request -> (asked at, micro-dollars promised or charged, budgets), ended ones included."""
    now_ms: int = 0

    def see(self, position: int, event: Event) -> None:
        """Take one event."""
        match event:
            case JobSubmitted():
                self.asked[position] = self.specs[position] = event.spec
                self.submitted_ms[position] = event.submitted_ms
                self.waiting.add(position)
            case Ticked():
                self.now_ms = max(self.now_ms, event.now_ms)
            case NodeObserved():
                self.nodes[NodeId(event.cluster, event.node)] = event
            case QueueConfigured():
                self.queues[event.spec.name] = event.spec
            case BudgetConfigured():
                self.budgets[event.spec.name] = event.spec
            case LeaseObserved():
                self._observe(event)
            case _:
                self._see_what_is_decided(event)

    def _see_what_is_decided(self, event: Event) -> None:
        match event:
            case TermsGiven():
                assert event.job in self.waiting, f"j{event.job} is given terms and does not wait"
                self.specs[event.job] = event.terms.applied(self.asked[event.job])
            case LeaseGranted():
                self._grant(event)
            case LeaseGrown():
                self._grow(event)
            case LeaseShrunk():
                self._shrink(event)
            case LeaseRevoked():
                assert event.lease in self.leases, f"{event.lease} is revoked and was over"
                assert not self.leases[event.lease].is_revoked, f"{event.lease} is revoked twice"
                self.leases[event.lease].is_revoked = True
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

    # --- money -------------------------------------------------------------------------------------------------------

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

    # --- leases ------------------------------------------------------------------------------------------------------

    def _sat(self, spec: JobSpec, cluster: str, members: tuple[Member, ...], since: int) -> list[Sat]:
        """A gang is in one cluster: its members are on nodes of that cluster."""
        roles = {role.name: role for role in spec.roles}
        seats: list[Sat] = []
        for member in members:
            at, role = NodeId(cluster, member.node), roles[member.role]
            assert at in self.nodes, f"a member is placed on {member.node} of {cluster}, which has no such node"
            node = self.nodes[at]
            seats.append(Sat(member, at, role, node.flavor, milli_on(role, node.shape), since))
        return seats

    def _grant(self, event: LeaseGranted) -> None:
        assert event.job in self.waiting, f"j{event.job} is placed and did not wait"
        spec = self.specs[event.job]
        self._check_ties(event.job, spec)
        self.waiting.remove(event.job)
        held = Held(event, self.now_ms, self._sat(spec, event.cluster, event.members, 0))
        names = sorted(sat.name for sat in held.seats)
        assert names == sorted((role.name, at) for role in spec.roles for at in range(role.least)), "a partial gang"
        self.leases[event.lease] = held
        self._check_seats(held, held.seats)
        self.started.add(event.job)

    def _grow(self, event: LeaseGrown) -> None:
        held = self.leases[event.lease]
        assert not held.is_revoked, f"{event.lease} grows and is revoked"
        assert event.revision == held.revision + 1, f"{event.lease} has revision {held.revision}, then {event.revision}"
        held.revision = event.revision
        more = self._sat(self.specs[held.granted.job], held.granted.cluster, event.members, event.revision)
        held.seats += more
        for role in self.specs[held.granted.job].roles:
            ordinals = [sat.member.ordinal for sat in held.seats if sat.role.name == role.name]
            assert len(set(ordinals)) == len(ordinals), f"{event.lease} seats a member twice"
            assert max(ordinals) < role.count, f"{event.lease} seats more members than it may have"
        self._check_seats(held, more)

    def _shrink(self, event: LeaseShrunk) -> None:
        held = self.leases[event.lease]
        assert event.revision == held.revision + 1, f"{event.lease} has revision {held.revision}, then {event.revision}"
        held.revision = event.revision
        leaving = {(member.role, member.ordinal) for member in event.members}
        assert leaving <= {sat.name for sat in held.seats if not sat.leaving}, (
            f"{event.lease} loses whom it does not have"
        )
        held.seats = [replace(sat, leaving=event.revision) if sat.name in leaving else sat for sat in held.seats]
        self._check_least(held)

    def _check_least(self, held: Held) -> None:
        for role in self.specs[held.granted.job].roles:
            staying = sum(sat.role.name == role.name and not sat.leaving for sat in held.seats)
            assert staying >= role.least, f"{held.granted.lease} keeps {staying} of {role.least} members"

    def _check_seats(self, held: Held, more: list[Sat]) -> None:
        """Of members that came: where they may be at all, quota, room, and how near they are to the others."""
        event = held.granted
        self._check_quota(held, more)
        for at in sorted({sat.at for sat in more}):
            assert self.nodes[at].state is NodeState.READY, f"{event.lease} is placed on {at}, not ready"
            self.check_node(at)
        self._check_near(held)

    def _observe(self, event: LeaseObserved) -> None:
        held = self.leases.get(event.lease)
        if held is None:
            return
        if event.phase is LeasePhase.RUNNING:
            held.is_running = True
        elif event.phase is LeasePhase.RESIZED:
            self._resize(held, event)
        elif event.phase in OVER:
            job = self.leases.pop(event.lease).granted.job
            if event.phase is LeasePhase.FINISHED:
                assert job not in self.ended
                self.ended.add(job)
                self.finished.add(job)
            else:
                self.waiting.add(job)

    def _resize(self, held: Held, event: LeaseObserved) -> None:
        """Who came by the revision and is not named is gone; but of those who were to stay, never more than it can do
        without, the last that came first."""
        there = {(member.role, member.ordinal) for member in event.members}
        kept: list[Sat] = []
        spare = {role.name: -role.least for role in self.specs[held.granted.job].roles}
        for sat in held.seats:
            spare[sat.role.name] += not sat.leaving
        for sat in reversed(held.seats):
            is_named = sat.since > event.revision or sat.name in there
            if is_named or (not sat.leaving and spare[sat.role.name] <= 0):
                kept.append(sat)
            elif not sat.leaving:
                spare[sat.role.name] -= 1
        held.seats = kept[::-1]

    # --- what ties jobs to each other --------------------------------------------------------------------------------

    def _check_ties(self, job: int, spec: JobSpec) -> None:
        for other in spec.after_ok:
            is_over = other < job and (other in self.finished or other not in self.asked)
            assert is_over, f"j{job} starts after j{other} has finished, which has not"
        for other in spec.after_any:
            is_over = other < job and (other in self.ended or other not in self.asked)
            assert is_over, f"j{job} starts after j{other} is over, which is not"
        if spec.max_running is not None:
            at_once = sum(self._is_of(held, spec) for held in self.leases.values())
            assert at_once < spec.max_running, f"j{job} is one too many of its array"

    def _is_of(self, held: Held, spec: JobSpec) -> bool:
        other = self.specs[held.granted.job]
        return (other.queue, other.array) == (spec.queue, spec.array)

    def _job_over(self, job: int) -> None:
        assert job not in self.ended, f"j{job} ends twice"
        assert all(held.granted.job != job for held in self.leases.values()), f"j{job} ends and holds a lease"
        self.ended.add(job)
        self.waiting.discard(job)

    # --- quota -------------------------------------------------------------------------------------------------------

    def _check_quota(self, held: Held, more: list[Sat]) -> None:
        """Wherever these members add to a charge, the naive algebra allows the sum. (Quota that was lowered below what
        is used stays exceeded; nothing may be added to it.)"""
        ups = [self.specs[held.granted.job].queue]
        while (parent := self.queues[ups[-1]].parent) is not None:
            ups.append(parent)
        listed = {(flavor, res) for up in ups for flavor, by in self.queues[up].quotas.items() for res in by}
        for key in sorted(listed):
            after = NaiveQuota(self.queues, key, self._used(key))
            before = NaiveQuota(self.queues, key, self._used(key, more))
            for up in (*ups, TOP):
                is_unchanged = after.charge(up) == before.charge(up)
                assert is_unchanged or after.is_within(up), f"{key} is exceeded at {up or 'the top'}"

    def _used(self, key: tuple[str, str], without: list[Sat] | None = None) -> dict[str, int]:
        used: dict[str, int] = {}
        for held in self.leases.values():
            queue = self.specs[held.granted.job].queue
            for sat in held.seats:
                if key[0] in ("any", sat.flavor) and not any(sat is other for other in without or ()):
                    used[queue] = used.get(queue, 0) + sat.amounts.get(key[1], 0)
        return used

    # --- room --------------------------------------------------------------------------------------------------------

    def check_node(self, node: NodeId) -> None:
        """Members on the node take no more than it has, in sum and on each GPU."""
        shape, name = self.nodes[node].shape, "/".join(node)
        left = {"cpu": shape.cpu_milli, "memory": shape.memory_bytes, **shape.other}
        gpus = [Gpu(shape, index) for index in range(shape.gpus)]
        for held in self.leases.values():
            for sat in held.seats:
                if sat.at != node:
                    continue
                taken = sat.amounts
                assert len(sat.member.gpus) == sat.role.gpus, (
                    f"{held.granted.lease}: {sat.member.gpus} for {sat.role.gpus}"
                )
                taken.pop("gpu")
                for resource, amount in taken.items():
                    left[resource] = left.get(resource, 0) - amount
                for at, gpu in enumerate(sat.member.gpus):
                    if gpu < len(gpus):  # others have died under it
                        gpus[gpu].take(sat, sat.member.slices[at] if sat.member.slices else None)
        assert min(left.values()) >= 0, f"{name} is over-allocated: {left}"
        for gpu_ in gpus:
            gpu_.check(name)

    # --- nearness ----------------------------------------------------------------------------------------------------

    def _check_near(self, held: Held) -> None:
        spec = self.specs[held.granted.job]
        if spec.topology is not None and spec.topology.required is not None:
            self._check_in_one(held, spec.topology.required, held.seats)
        for role in spec.roles:
            if role.topology is not None and role.topology.required is not None:
                self._check_in_one(
                    held, role.topology.required, [sat for sat in held.seats if sat.role.name == role.name]
                )

    def _check_in_one(self, held: Held, level: Level, seats: list[Sat]) -> None:
        domains = {self._domain(sat.at, level) for sat in seats}
        assert len(domains) <= 1, f"{held.granted.lease} requires one {level.value}, and is in {sorted(domains)}"

    def _domain(self, at: NodeId, level: Level) -> tuple[str, ...]:
        """Nodes of these worlds say block and rack, or nothing: a node that says nothing is alone."""
        node = self.nodes[at]
        if not node.topology or level.depth > Level.RACK.depth:
            return at
        narrowest = level if level is Level.RACK else Level.BLOCK
        return (node.cluster, *(node.topology[up] for up in (Level.BLOCK, Level.RACK) if up.depth <= narrowest.depth))

    # --- a whole cycle -----------------------------------------------------------------------------------------------

    def check_cycle(self, core: Core) -> None:
        """After a whole cycle: every job is somewhere, every one that waits has one reason, and nothing is overdue."""
        closed = core.closed
        assert sum(closed.waiting.values()) == len(self.waiting), f"{closed.waiting} counts not {len(self.waiting)}"
        assert set(core.state.jobs) == self.waiting | {held.granted.job for held in self.leases.values()}
        assert isinstance(core.decided[-1], CycleDecided)
        assert closed.decisions == len(core.decided) - 1
        for held in self.leases.values():
            spec = self.specs[held.granted.job]
            limits = [spec.time_limit_ms, None if held.is_running else spec.hold_ms]
            late = [limit for limit in limits if limit is not None and held.at_ms + limit <= self.now_ms]
            assert held.is_revoked or not late, f"{held.granted.lease} is over its time and not revoked"
        for job in sorted(self.waiting):
            self._check_patience(core, job)

    def _check_patience(self, core: Core, job: int) -> None:
        """Terms that were given in this very cycle to who waited hold from the next on."""
        spec, waits_ms = self.specs[job], self.now_ms - self.submitted_ms[job]
        given = [event.job for event in core.last(TermsGiven)]
        if job in given or core.state.jobs[job].phase == "returned":
            return
        is_late = spec.start_by_ms is not None and spec.start_by_ms <= self.now_ms
        is_tired = spec.wait_limit_ms is not None and job not in self.started and spec.wait_limit_ms <= waits_ms
        assert not any((is_late, is_tired)), f"j{job} waits for longer than it would"


class Gpu:
    """One GPU and who is on it."""

    def __init__(self, shape: NodeShape, index: int) -> None:
        self._shape = shape
        self._is_cut = index < shape.mig_gpus
        self._index = index
        self._parts = Fraction(0)
        self._whole = 0
        self._slices: list[int] = []
        self._media = 0

    def take(self, sat: Sat, start: int | None) -> None:
        """A member came, as a whole, a part, or an instance that begins at a slice."""
        role = sat.role
        if role.mig_profile:
            assert start is not None, "an instance begins nowhere"
            geometry = self._shape.mig_geometry
            assert geometry is not None, "an instance on a GPU that is never cut"
            profile = geometry.by_name[role.mig_profile]
            assert start in profile.starts, f"{role.mig_profile} begins at {start}"
            self._slices += range(start, start + profile.memory)
            self._media += profile.has_media
        elif role.gpu_memory_bytes:
            self._parts += Fraction(role.gpu_memory_bytes, self._shape.gpu_memory_bytes)
        elif role.gpu_milli < 1_000:
            self._parts += Fraction(role.gpu_milli, 1_000)
        else:
            self._whole += 1

    def check(self, name: str) -> None:
        """One whole, or parts of one, or instances of one, none of them twice."""
        at = f"GPU {self._index} of {name}"
        assert self._whole <= 1, f"{at} is given as a whole {self._whole} times"
        assert self._parts <= 1, f"{at} is given away as {self._parts} of itself"
        assert len(set(self._slices)) == len(self._slices), f"slices of {at} are given twice"
        assert self._media <= 1, f"the media extensions of {at} are given twice"
        ways = [bool(self._whole), bool(self._parts), bool(self._slices)]
        assert sum(ways) <= 1, f"{at} is taken as a whole, in parts and cut at once: {ways}"
        is_other_way = self._is_cut if self._whole or self._parts else bool(self._slices) and not self._is_cut
        assert not is_other_way or self._shape.mig_repartition, f"{at} is in the wrong mode"


def milli_on(role: Role, shape: NodeShape) -> int:
    """What a member takes of each of its GPUs on such a node, in thousandths."""
    if not role.gpus:
        return 0
    if role.gpu_memory_bytes:
        assert shape.gpu_memory_bytes, "a part by memory, of a GPU that does not say how much it has"
        return -(-role.gpu_memory_bytes * 1_000 // shape.gpu_memory_bytes)
    return MILLI_OF_PROFILE[role.mig_profile] if role.mig_profile else role.gpu_milli
