"""Generated worlds of services, training and warm pools, with agents that are late, repeat themselves, tell old news.

After every event all invariants are recomputed, and each cycle is decided twice and once from a snapshot (see
``Core``). Besides, from the events alone: what services hold of taken room stays within the bound, nobody is taken from
but training, replicas stay between least and most, room that a pool holds goes to services only, and all come to rest,
with every pool as full as it can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    Event,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    MemberName,
    RoomPromised,
    ServiceScaled,
    ServiceShort,
    WarmPoolsHeld,
)
from controlplane.domain.queues import Quota
from controlplane.domain.workloads import JobSpec, Role, ServiceSpec
from controlplane.scheduler import fold, snapshot
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.facts import ServiceFacts
from controlplane.scheduler.preemption import Candidate, Demand, Preemption
from controlplane.scheduler.services import Services
from controlplane.scheduler.state import Lease, State
from controlplane.scheduler.timers import needs_cycle
from controlplane.scheduler.warm import Warm
from tests.scheduler.core import HOME, Core, gpus
from tests.twins.plain_rules import PlainRules

SEEDS = 10
STEPS = 60
TAKE = 2_000
Patch = pytest.MonkeyPatch


def by_latency(facts: ServiceFacts, now_ms: int) -> int | None:
    """A number that only the signal says, with a cooldown."""
    if facts.p99_ms is None or now_ms - facts.changed_ms < 20_000:
        return None
    return facts.p99_ms % 9


@dataclass
class Witness:
    """What the events alone say. Breaks with an ``AssertionError`` that names what went wrong."""

    specs: dict[int, JobSpec] = field(default_factory=dict)
    members: dict[str, dict[int, bool]] = field(default_factory=dict)
    """Lease -> ordinal of a replica that was not told to leave -> whether its room was taken."""
    promised: dict[str, int] = field(default_factory=dict)
    held: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    """Pool -> (node, GPU)."""

    def see(self, event: Event) -> None:
        match event:
            case LeaseGranted() | LeaseGrown():
                self._sit(event)
            case LeaseShrunk():
                self._leave(event.lease, event.for_job)
                for member in event.members:
                    self.members.get(event.lease, {}).pop(member.ordinal, None)
            case LeaseRevoked():
                self._leave(event.lease, event.for_job)
            case RoomPromised(lease=str() as lease):
                self.promised[lease] = len(event.members)
            case ServiceScaled():
                role = self.specs[event.job].roles[0]
                assert role.least <= event.wanted <= role.count
            case WarmPoolsHeld():
                for pool in event.pools:
                    self.held[pool.pool] = {(block.node, gpu) for block in pool.blocks for gpu in block.gpus}
            case _:
                pass

    def _sit(self, event: LeaseGranted | LeaseGrown) -> None:
        job = int(event.lease[1 : event.lease.index(".")])
        spec = self.specs[job]
        if spec.service is None:
            held = {place for places in self.held.values() for place in places}
            taken = {(member.node, gpu) for member in event.members for gpu in member.gpus}
            assert not held & taken, f"{event.lease} sits on {sorted(held & taken)}, which is held for services"
            return
        is_taken = isinstance(event, LeaseGrown) and event.cause == "taken"
        there = self.members.setdefault(event.lease, {})
        there.update({member.ordinal: is_taken for member in event.members})
        for places in self.held.values():
            places -= {(member.node, gpu) for member in event.members for gpu in member.gpus}
        if is_taken:
            self.promised.pop(event.lease, None)
        assert len(there) <= spec.roles[0].count, f"{event.lease} has more than its most"
        each = spec.roles[0].gpus * 1_000
        assert sum(there.values()) * each <= TAKE, f"{event.lease} holds more of taken room than it may"

    def _leave(self, lease: str, for_job: int | None) -> None:
        if for_job is None or self.specs[for_job].service is None:
            return
        if f"j{for_job}." in {name.partition(".")[0] + "." for name in self.members}:
            job = int(lease[1 : lease.index(".")])
            assert self.specs[job].service is None, f"{lease} is a service and leaves for j{for_job}"


class World:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        scopes = ("queue", self.chance.choice(["cohort", "reclaim"]), "surplus")
        allowed = tuple(scope for scope in scopes if self.chance.random() < 0.9)
        self.core = Core(
            PlainRules(
                may_preempt=bool(allowed),
                may_reserve=self.chance.random() < 0.4,
                depth=lambda job: 1,
                allow=lambda job, queue, shortage: allowed,
                victim=lambda job, victim: None if victim.is_service else victim.unsaved_ms * victim.gpus_milli,
                may_scale=True,
                replicas=by_latency,
                take=lambda service: TAKE,
            )
        )
        self.witness = Witness()
        tell = self.core.tell

        def seen(*events: Event) -> int:
            for event in events:
                self.witness.see(event)
                tell(event)
            return self.core.state.position

        self.core.tell = seen  # type: ignore[method-assign]
        self.core.queue("top")
        for name in ("a", "b"):
            quota: dict[str, Quota | int] = {"gpu": Quota(nominal=6_000, borrowing_limit=None)}
            self.core.queue(name, quota if self.chance.random() < 0.5 else {}, parent="top")
        self.core.home(n1=gpus(4), n2=gpus(4), n3=gpus(4))
        self.old: list[Event] = []

    # --- what happens ------------------------------------------------------------------------------------------------

    def play(self) -> Core:
        verbs = [self.serve, self.train, self.train, self.end, self.resize, self.resize, self.repeat, self.node]
        verbs += [self.signal] * 9 + [self.settle] * 3 + [self.pool]
        self.serve()
        self.train()
        for _ in range(STEPS):
            self.chance.choice(verbs)()
            if self.chance.random() < 0.6:
                self.cycles(self.core.state.now_ms + self.chance.choice([1_000, 25_000]))
                self.check_pools()
        self.rest()
        return self.core

    def cycles(self, now_ms: int) -> None:
        """All that are due at an instant, as a plane decides them."""
        self.core.cycle(now_ms)
        for _ in range(8):
            if not needs_cycle(self.core.state):
                return
            self.core.cycle(now_ms)
        raise AssertionError("one cycle makes another due, without an end")

    def serve(self) -> None:
        least = self.chance.randint(1, 2)
        most = least + self.chance.randint(0, 6)
        role = Role(name="r", count=most, min_count=least, gpus=self.chance.choice([1, 1, 2]))
        self.submit(
            JobSpec(
                name="s",
                queue=self.chance.choice("aaab"),
                roles=(role,),
                priority=self.chance.randint(1, 4),
                service=ServiceSpec(stale_after_ms=60_000),
            )
        )

    def train(self) -> None:
        most = self.chance.randint(1, 5)
        role = Role(name="w", count=most, min_count=self.chance.randint(1, most), gpus=self.chance.choice([1, 1, 2]))
        estimate_ms = self.chance.choice([None, 30_000])
        self.submit(
            JobSpec(
                name="t",
                queue=self.chance.choice("aaab"),
                roles=(role,),
                priority=self.chance.randint(0, 1),
                estimate_ms=estimate_ms,
            )
        )

    def submit(self, spec: JobSpec) -> None:
        self.witness.specs[self.core.state.position + 1] = spec
        self.core.submit(spec)

    def signal(self) -> None:
        served = list(self.core.state.services.values())
        if served:
            lease = self.chance.choice(served)
            at_ms = max(0, self.core.state.now_ms - self.chance.choice([0, 0, 0, 5_000, 90_000]))
            self.core.signal(lease.job.id, self.chance.randint(1, 500), at_ms=at_ms)

    def settle(self) -> None:
        """The agents carry out everything."""
        for lease in self.leases():
            if lease.revoked is not None:
                self.report(lease, LeasePhase.ENDED)
            elif any(seat.leaving for seat in lease.seats):
                self.core.resized(lease.job.id)

    def leases(self) -> list[Lease]:
        return list(self.core.state.leases.values())

    def end(self) -> None:
        if self.leases():
            lease = self.chance.choice(self.leases())
            ends = [LeasePhase.LOST] if lease.service is not None else [LeasePhase.FINISHED, LeasePhase.FAILED]
            self.report(lease, LeasePhase.ENDED if lease.revoked else self.chance.choice(ends))

    def report(self, lease: Lease, phase: LeasePhase) -> None:
        self.witness.members.pop(lease.id, None)
        self.witness.promised.pop(lease.id, None)
        self.core.report(lease.id, phase)

    def resize(self) -> None:
        """What an agent would say: of some revision, with whoever of it has not been stopped yet."""
        if not self.leases():
            return
        lease = self.chance.choice(self.leases())
        revision = self.chance.randint(0, lease.revision)
        there = [
            MemberName(role=seat.role, ordinal=seat.ordinal)
            for seat in lease.seats
            if seat.since <= revision and not 0 < seat.leaving <= revision
        ]
        event = LeaseObserved(
            cluster=HOME,
            lease=lease.id,
            phase=LeasePhase.RESIZED,
            observed_ms=self.core.state.now_ms,
            revision=revision,
            members=tuple(there),
        )
        self.old.append(event)
        self.core.tell(event)

    def repeat(self) -> None:
        """Old news."""
        if self.old:
            self.core.tell(self.chance.choice(self.old))

    def node(self) -> None:
        name = self.chance.choice(["n1", "n2", "n3"])
        states = [NodeState.LOST, NodeState.CORDONED, NodeState.READY, NodeState.READY, NodeState.READY]
        self.core.node(name, gpus(4), self.chance.choice(states))

    def pool(self) -> None:
        queue = self.chance.choice([None, None, "a"])
        name = self.chance.choice(["p", "q"])
        self.witness.held.pop(name, None)
        self.core.pool(name, self.chance.randint(0, 3), gpus=self.chance.choice([1, 2]), queue=queue)
        pool = self.core.state.pools.get(name)
        self.witness.held[name] = {(at.name, gpu) for at, ids in (pool.blocks if pool else ()) for gpu in ids}

    # --- rest --------------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """The agents carry out everything, and nothing new is seen: after a while nothing changes any more."""
        for name in ("n1", "n2", "n3"):
            self.core.node(name, gpus(4))
        for _ in range(30):
            self.settle()
            self.core.cycle(self.core.state.now_ms + 60_000)
        kinds = (LeaseGrown, LeaseShrunk, LeaseRevoked, ServiceScaled, ServiceShort, WarmPoolsHeld)
        changed = [event for event in self.core.decided if isinstance(event, kinds)]
        assert not changed, f"it does not come to rest: {changed}"
        self.check_pools()

    def check_pools(self) -> None:
        """When no cycle is due, what a pool lacks is nowhere: on no node that is ready, and on which nothing is
        promised or reserved, are that many GPUs free."""
        state = self.core.state
        held = {(node, gpu) for pool in state.pools.values() for node, ids in pool.blocks for gpu in ids}
        kept = {node for reservation in state.reservations.values() for node in reservation.nodes}
        kept |= {seat.node for promise in state.promises.values() for seat in promise.seats}
        for pool in state.pools.values():
            if len(pool.blocks) == pool.spec.blocks:
                continue
            for node in state.nodes.values():
                used = {
                    gpu for lease in node.leases.values() for s in lease.seats if s.node == node.id for gpu in s.gpus
                }
                free = [gpu for gpu in range(4) if gpu not in used and (node.id, gpu) not in held]
                is_open = node.state is NodeState.READY and node.id not in kept
                assert not (is_open and len(free) >= pool.spec.gpus), (
                    f"pool {pool.spec.name} is short beside {node.name}"
                )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_generated_worlds_hold(seed: int) -> None:
    World(seed).play()


def test_the_worlds_scale_take_give_back_and_hold() -> None:
    """So that the others test something."""
    told = [event for seed in range(SEEDS) for event in World(seed).play().told]
    assert {ServiceScaled, ServiceShort, WarmPoolsHeld, LeaseRevoked} <= {type(event) for event in told}
    causes = {event.cause for event in told if isinstance(event, LeaseGrown | LeaseShrunk)}
    assert {"", "wanted", "taken", "unwanted", "preempted"} <= causes
    assert any(isinstance(event, RoomPromised) and event.lease for event in told)


# --- the mutants -----------------------------------------------------------------------------------------------------


def what_is_held_is_not_kept_from_others(patch: Patch) -> None:
    patch.setattr(Draft, "hold", lambda self, row, amounts, gpus: None)
    patch.setattr(Draft, "let_go", lambda self, row, amounts, gpus: None)


def a_pool_is_never_filled_anew(patch: Patch) -> None:
    patch.setattr(Warm, "_fitting", lambda self, spec: [])


def a_lost_node_stays_held(patch: Patch) -> None:
    patch.setattr(fold, "let_go_of", lambda state, node, queue=None: None)


def the_bound_is_not_asked(patch: Patch) -> None:
    patch.setattr(Services, "_taken_milli", lambda self, one: 0)


def services_leave_for_services(patch: Patch) -> None:
    ranked = Preemption._ranked

    def unlimited(self: Preemption, demand: Demand, scopes: list[str], is_within: bool) -> list[Candidate]:
        self._rules.victim = lambda job, victim: 0  # type: ignore[attr-defined]
        return ranked(self, replace(demand, limit_milli=None), scopes, is_within)

    patch.setattr(Preemption, "_ranked", unlimited)


def any_number_is_wanted(patch: Patch) -> None:
    patch.setattr("controlplane.scheduler.services.min", lambda first, second: first, raising=False)


def a_restart_forgets_the_signal(patch: Patch) -> None:
    restored = snapshot._restored_lease

    def without(state: State, row: list[object]) -> Lease:
        lease = restored(state, row)
        if lease.service is not None:
            lease.service.signal = None
        return lease

    patch.setattr(snapshot, "_restored_lease", without)


def what_was_taken_is_forgotten(patch: Patch) -> None:
    patch.setattr(fold, "TAKEN", "nothing")


@pytest.mark.parametrize(
    "mutant",
    [
        what_is_held_is_not_kept_from_others,
        a_pool_is_never_filled_anew,
        a_lost_node_stays_held,
        the_bound_is_not_asked,
        services_leave_for_services,
        any_number_is_wanted,
        a_restart_forgets_the_signal,
        what_was_taken_is_forgotten,
    ],
)
def test_the_worlds_would_see(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(2 * SEEDS):
        try:
            World(seed).play()
        except (AssertionError, KeyError, ValueError):
            return
    raise AssertionError("the mutant lives")
