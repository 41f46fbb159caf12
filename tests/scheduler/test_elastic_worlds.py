"""Generated worlds of elastic and rigid gangs, with agents that are late, repeat themselves and tell old news.

After every event all invariants are recomputed, and each cycle is decided twice and once from a snapshot (see
``Core``). Besides: room is freed by observations only, and all come to rest.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    Event,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
    MemberName,
)
from controlplane.domain.queues import Quota
from controlplane.domain.workloads import JobSpec, Role
from controlplane.scheduler import fold, snapshot
from controlplane.scheduler.elastic import Growth
from controlplane.scheduler.preemption import Preemption
from controlplane.scheduler.state import Lease, Seat, State
from tests.scheduler.core import HOME, Core, gpus
from tests.twins.plain_rules import PlainRules

SEEDS = 8
STEPS = 60
Patch = pytest.MonkeyPatch


class World:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        # Not "cohort" beside the others: priority and entitlement may point in opposite directions, without an end.
        scopes = ("queue", self.chance.choice(["cohort", "reclaim", "fair-share"]), "surplus")
        allowed = tuple(scope for scope in scopes if self.chance.random() < 0.7)
        self.core = Core(PlainRules(may_preempt=bool(allowed), allow=lambda job, queue, shortage: allowed))
        self.core.queue("top")
        for name in ("a", "b"):
            quota: dict[str, Quota | int] = {
                "gpu": Quota(nominal=6_000, borrowing_limit=self.chance.choice([None, 2_000]))
            }
            self.core.queue(name, quota if self.chance.random() < 0.7 else {}, parent="top")
        self.core.home(n1=gpus(4), n2=gpus(4), n3=gpus(4))
        self.old: list[LeaseObserved] = []

    def play(self) -> Core:
        for _ in range(STEPS):
            self.chance.choice([self.submit, self.submit, self.end, self.resize, self.resize, self.repeat, self.node])()
            if self.chance.random() < 0.5:
                self.core.cycle(self.core.state.now_ms + self.chance.choice([1_000, 40_000]))
        self.rest()
        return self.core

    def submit(self) -> None:
        roles = []
        for name in ("x", "y")[: self.chance.choice([1, 1, 2])]:
            most = self.chance.randint(1, 5)
            least = self.chance.randint(1, most)
            roles.append(Role(name=name, count=most, min_count=least, gpus=self.chance.choice([1, 1, 2])))
        self.core.submit(
            JobSpec(name="j", queue=self.chance.choice("ab"), roles=tuple(roles), priority=self.chance.randint(0, 2))
        )

    def leases(self) -> list[Lease]:
        return list(self.core.state.leases.values())

    def end(self) -> None:
        if self.leases():
            lease = self.chance.choice(self.leases())
            phase = LeasePhase.ENDED if lease.revoked else self.chance.choice([LeasePhase.FINISHED, LeasePhase.FAILED])
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
        self.core.node(name, gpus(4), self.chance.choice([NodeState.LOST, NodeState.READY, NodeState.READY]))

    def rest(self) -> None:
        """The agents carry out everything: after a while nothing changes any more."""
        for name in ("n1", "n2", "n3"):
            self.core.node(name, gpus(4))
        for _ in range(30):
            for lease in self.leases():
                if lease.revoked is not None:
                    self.core.report(lease.id, LeasePhase.ENDED)
                elif any(seat.leaving for seat in lease.seats):
                    there = tuple(MemberName(role=seat.role, ordinal=seat.ordinal) for seat in lease.staying())
                    self.core.tell(
                        LeaseObserved(
                            cluster=HOME,
                            lease=lease.id,
                            phase=LeasePhase.RESIZED,
                            observed_ms=self.core.state.now_ms,
                            revision=lease.revision,
                            members=there,
                        )
                    )
            self.core.cycle(self.core.state.now_ms + 60_000)
        changed = [event for event in self.core.decided if isinstance(event, LeaseGrown | LeaseShrunk | LeaseRevoked)]
        assert not changed, f"it does not come to rest: {changed}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_generated_worlds_hold(seed: int) -> None:
    World(seed).play()


def test_the_worlds_grow_shrink_and_evict() -> None:
    """So that the others test something."""
    seen = {type(event) for seed in range(4) for event in World(seed).play().told}
    assert {LeaseGrown, LeaseShrunk, LeaseRevoked} <= seen


def shrinks_below_the_minimum(patch: Patch) -> None:
    parts = Preemption._parts

    def greedy(self: Preemption, lease: Lease, *rest: object) -> object:
        least = [ask.role for ask in lease.job.cls.asks]
        firm = [role.count for role in least]
        for role in least:
            object.__setattr__(role, "count", 0)
        found = list(parts(self, lease, *rest))  # type: ignore[arg-type]
        for role, count in zip(least, firm, strict=True):
            object.__setattr__(role, "count", count)
        return iter(found)

    patch.setattr(Preemption, "_parts", greedy)


def frees_room_when_it_is_told_to(patch: Patch) -> None:
    shrunk = fold._lease_shrunk

    def early(state: State, event: LeaseShrunk) -> None:
        shrunk(state, event)
        lease = state.leases[event.lease]
        for seat in lease.seats:
            if seat.leaving == event.revision:
                node = state.nodes[seat.node]
                fold._set_kind(state, node, state.kinds.give_back(node.kind, seat.ask.amounts, seat.gpus))

    folds: dict[type[Event], Callable[[State, Any], None]] = dict(fold._FOLDS)
    folds[LeaseShrunk] = early
    patch.setattr(fold, "_FOLDS", folds)


def gives_one_ordinal_twice(patch: Patch) -> None:
    grow = Growth._event

    def again(self: Growth, one: object) -> LeaseGrown:
        event = grow(self, one)  # type: ignore[arg-type]
        same = event.members[0].model_copy(update={"ordinal": 0})
        return event.model_copy(update={"members": (same, *event.members[1:])})

    patch.setattr(Growth, "_event", again)


def believes_any_report(patch: Patch) -> None:
    def all_gone(state: State, lease: Lease, event: LeaseObserved) -> None:
        there = {(member.role, member.ordinal) for member in event.members}
        out: list[Seat] = [seat for seat in lease.seats if (seat.role, seat.ordinal) not in there]
        if out:
            fold._let_go(state, lease, out, event.observed_ms)

    patch.setattr(fold, "_lease_resized", all_gone)


def forgets_who_leaves(patch: Patch) -> None:
    restored = snapshot._restored_lease

    def without(state: State, row: list[object]) -> Lease:
        lease = restored(state, row)
        for seat in lease.seats:
            seat.leaving = 0
        return lease

    patch.setattr(snapshot, "_restored_lease", without)


@pytest.mark.parametrize(
    "mutant",
    [
        shrinks_below_the_minimum,
        frees_room_when_it_is_told_to,
        gives_one_ordinal_twice,
        believes_any_report,
        forgets_who_leaves,
    ],
)
def test_the_worlds_would_see(mutant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    for seed in range(SEEDS):
        try:
            World(seed).play()
        except (AssertionError, KeyError):
            return
    raise AssertionError("the mutant lives")
