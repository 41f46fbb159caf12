"""What holds in every world, and a mutant for each that shows that it can fail.

The properties themselves are in :class:`tests.scheduler.core.Core` and :class:`tests.scheduler.ledger.Ledger`, so that
every test which uses those checks them too. A mutant patches one thing in the core; a fixed search through worlds must
then break, in the words of the property that the mutant is there for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, TypeVar, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.clusters import ClusterSpec, NodeShape
from controlplane.domain.events import (
    ClusterConfigured,
    Event,
    JobCancelRequested,
    JobRequeued,
    JobSubmitted,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
)
from controlplane.domain.ids import NodeId
from controlplane.scheduler import agenda, draft, elastic, fold, kinds, needs, packing, snapshot, topology
from controlplane.scheduler.decide import Decision, _Cycle
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.invariants import check_all
from controlplane.scheduler.kinds import Build, KindTable
from controlplane.scheduler.packing import Packer
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.snapshot import take
from controlplane.scheduler.state import Ask, BudgetAccount, Job, Lease, Node, State
from tests.scheduler import core
from tests.scheduler.core import HOME, Core, gpus, job, refold
from tests.scheduler.worlds import OTHER, RULES, SCRIPTS, Script, World, script_of

E = TypeVar("E", bound=Event)
VARIANTS = st.integers(0, len(RULES) - 1)
WORLDS_SEARCHED = 60


# --- the properties --------------------------------------------------------------------------------------------------


@given(SCRIPTS, VARIANTS)
def test_every_world_keeps_every_invariant(script: Script, variant: int) -> None:
    """Kills the mutants of :data:`MUTANTS`: allocated <= capacity, whole gangs, quota, budgets, one reason each, usage
    as recomputed, deciding is a function of the state and leaves it as it was, a snapshot is the state."""
    World(variant).play(script)


def check_prefixes(world: World, script: Script, stride: int) -> None:
    """The state folded from any prefix of the events is the live state of that time."""
    live: dict[int, bytes] = {}
    for step in script:
        world.play_step(step)
        if world.state.position % stride == 0:
            live[world.state.position] = take(world.state)
    world.cycle()
    live[world.state.position] = take(world.state)
    for position, kept in live.items():
        folded = refold(world.told[:position])
        assert take(folded) == kept, f"folding {position} events gives another state than living through them"
        check_all(folded)


@given(SCRIPTS, VARIANTS, st.integers(1, 7))
def test_folding_any_prefix_gives_the_live_state(script: Script, variant: int, stride: int) -> None:
    """Kills :func:`a_cycle_writes_what_only_the_fold_may`."""
    check_prefixes(World(variant, is_checked=False), script, stride)


def check_shuffle(order: list[int]) -> None:
    """Nodes that are reported in another order are the same nodes: every decision after is the same bytes."""
    shapes = [gpus(4), gpus(4), gpus(2), gpus(8), gpus(4, "T4"), gpus(4), gpus(0, cpu=64_000)]
    told: list[list[Event]] = []
    for sequence in (sorted(order), order):
        world = Core(RULES[0]())
        world.queue("team")
        world.home()
        world.tell(ClusterConfigured(spec=ClusterSpec(name=OTHER)))
        for number in sequence:
            world.node(f"n{number // 2}", shapes[number % len(shapes)], cluster=(HOME, OTHER)[number % 2])
        for size in (2, 1, 3, 2, 8, 1, 2):
            world.submit(job(size))
        world.submit(job(2, members=3))
        world.cycle(1)
        told.append(world.decided)
    assert told[0] == told[1], "the order in which nodes were reported changed what was decided"


@given(st.permutations(range(9)))
def test_the_order_in_which_equal_nodes_are_reported_changes_nothing(order: list[int]) -> None:
    """SCENARIOS E2. Two clusters have nodes of the same names. Kills: nodes in the order of their reports, and nodes of
    one name in that order."""
    check_shuffle(order)


def check_arrivals(order: list[int]) -> None:
    """Jobs that no two of which are equal for the ordering rules are placed alike, however they arrived together."""
    placed: list[list[tuple[str, tuple[str, ...]]]] = []
    for sequence in (sorted(order), order):
        world = Core(RULES[0]())
        world.queue("team")
        world.home(n1=gpus(4), n2=gpus(4), n3=gpus(2))
        for number in sequence:
            world.submit(job(1 + number % 4, name=f"p{number}", priority=number))
        world.cycle(1)
        leases = [event for event in world.decided if isinstance(event, LeaseGranted)]
        placed.append([(world.state.jobs[e.job].name, tuple(f"{m.node}{m.gpus}" for m in e.members)) for e in leases])
    assert placed[0] == placed[1], "the order of arrival decided, where the rules had the say"


@given(st.permutations(range(7)))
def test_arrivals_of_one_gap_may_come_in_any_order_when_the_rules_order_them(order: list[int]) -> None:
    """SCENARIOS E2. Kills :func:`the_ordering_rule_is_not_asked`."""
    check_arrivals(order)


@given(SCRIPTS, VARIANTS)
def test_observations_of_different_clusters_commute(script: Script, variant: int) -> None:
    """What two agents report between two cycles may reach the log in either order. Kills: a fold that depends on the
    neighbour in the log."""
    world = World(variant, is_checked=False)
    world.play(script)
    swapped: list[Event] = []
    for is_node, run in groupby(world.told, key=lambda event: isinstance(event, NodeObserved)):
        events = list(run)
        swapped += sorted(events, key=lambda event: getattr(event, "cluster", "")) if is_node else events
    first, second = refold(world.told), refold(swapped)
    world_facts = [(s.used, s.charged, s.capacity, sorted(s.nodes), s.freed, s.pending) for s in (first, second)]
    assert world_facts[0] == world_facts[1]


# --- the mutants -----------------------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


def room_is_not_given_back(patch: Patch) -> None:
    patch.setattr(KindTable, "give_back", lambda self, kind, amounts, gpus: kind)


def named_resources_never_lack(patch: Patch) -> None:
    patch.setattr(needs, "_other_fits", lambda asked, free: True)


def a_gang_may_lack_its_last_member(patch: Patch) -> None:
    whole = Packer.place

    def partial(self: Packer, *args: object) -> object:
        seats = whole(self, *args)  # type: ignore[arg-type]
        return seats[:-1] if seats is not None and len(seats) > 1 else seats

    patch.setattr(Packer, "place", partial)


def usage_leaks_when_a_lease_ends(patch: Patch) -> None:
    use = State.use

    def leaks(self: State, queue: QueueNode | None, flavor: str, ask: Ask, sign: int) -> None:
        if sign > 0:
            use(self, queue, flavor, ask, sign)

    patch.setattr(State, "use", leaks)


def a_draft_is_not_undone(patch: Patch) -> None:
    patch.setattr(Draft, "undo", lambda self: None)


def a_snapshot_forgets_who_came_back(patch: Patch) -> None:
    restore = snapshot.restore

    def forgets(body: bytes) -> State:
        state = restore(body)
        state.returned = []
        return state

    patch.setattr(core, "restore", forgets)


def a_restart_loses_the_turns(patch: Patch) -> None:
    restore = snapshot.restore

    def forgets(body: bytes) -> State:
        state = restore(body)
        for waiting in state.jobs.values():
            waiting.attempts = 0
        return state

    patch.setattr(core, "restore", forgets)


def promises_are_not_counted(patch: Patch) -> None:
    patch.setattr(BudgetAccount, "left", lambda self, now_ms: self.spec.limit_micro_usd)


def quota_is_never_used_up(patch: Patch) -> None:
    patch.setattr(draft, "available", lambda node, key, charged: 10**9)


def a_job_that_gave_up_still_waits(patch: Patch) -> None:
    leave = Draft.leave

    def stays(self: Draft, queue: object, job: Job, is_placed: bool) -> None:
        leave(self, queue, job, is_placed)  # type: ignore[arg-type]
        if not is_placed:
            self.gone.discard(job.id)

    patch.setattr(Draft, "leave", stays)


def a_cordoned_node_is_open(patch: Patch) -> None:
    build = Build.of

    def always_open(
        cls: type[Build], cluster: str, flavor: str, shape: NodeShape, labels: dict[str, str], *, is_open: bool
    ) -> Build:
        return build(cluster, flavor, shape, labels, is_open=True)

    patch.setattr(Build, "of", classmethod(always_open))


FOLDS = cast("dict[object, object]", fold._FOLDS)


def folding(patch: Patch, event: type[E], after: Callable[[State, E], None]) -> None:
    """Let something more happen when an event is folded."""
    before: Callable[[State, E], None] = fold._FOLDS[event]

    def both(state: State, told: E) -> None:
        before(state, told)
        after(state, told)

    patch.setitem(FOLDS, event, both)


def waiting_jobs_of_a_class_are_counted_once_too_often(patch: Patch) -> None:
    def too_often(state: State, told: JobRequeued) -> None:
        state.jobs[told.job].cls.waiting += 1

    folding(patch, JobRequeued, too_often)


def a_job_that_comes_back_is_forgotten(patch: Patch) -> None:
    folding(patch, LeaseObserved, lambda state, told: state.returned.clear())


def a_cancellation_is_forgotten(patch: Patch) -> None:
    folding(patch, JobCancelRequested, lambda state, told: state.cancels.clear())


def a_time_limit_is_forgotten_when_another_lease_ends(patch: Patch) -> None:
    release = fold._release

    def forgets(state: State, lease: Lease, at_ms: int) -> None:
        release(state, lease, at_ms)
        state.time_limits = []

    patch.setattr(fold, "_release", forgets)


def a_lease_that_runs_is_still_awaited(patch: Patch) -> None:
    awaited = fold._no_longer_awaited
    running = fold._lease_observed

    def observed(state: State, told: LeaseObserved) -> None:
        still = told.phase is LeasePhase.RUNNING
        patch.setattr(fold, "_no_longer_awaited", (lambda state, lease: None) if still else awaited)
        running(state, told)
        patch.setattr(fold, "_no_longer_awaited", awaited)

    patch.setitem(FOLDS, LeaseObserved, observed)


def nobody_gives_up(patch: Patch) -> None:
    folding(patch, JobSubmitted, lambda state, told: state.expiries.clear())


def who_waits_for_others_is_forgotten(patch: Patch) -> None:
    folding(patch, JobSubmitted, lambda state, told: state.dependents.clear())


def an_elastic_lease_is_not_kept_as_one(patch: Patch) -> None:
    folding(patch, LeaseGranted, lambda state, told: state.elastic.clear())


def a_lost_node_still_counts(patch: Patch) -> None:
    count = State.count_capacity

    def never_less(self: State, build: Build, sign: int, *, is_rented: bool) -> None:
        count(self, build, max(sign, 0), is_rented=is_rented)

    patch.setattr(State, "count_capacity", never_less)


def rented_nodes_are_owned(patch: Patch) -> None:
    count = State.count_capacity
    patch.setattr(
        State, "count_capacity", lambda self, build, sign, *, is_rented: count(self, build, sign, is_rented=False)
    )


def who_has_no_room_on_a_node_is_not_told_apart(patch: Patch) -> None:
    def forgets(state: State, told: NodeObserved) -> None:
        at = NodeId(told.cluster, told.node)
        if at in state.nodes:
            state.nodes[at].crowded.clear()

    folding(patch, NodeObserved, forgets)


def who_has_no_room_on_a_node_is_not_ended(patch: Patch) -> None:
    folding(patch, NodeObserved, lambda state, told: state.stranded.clear())


def a_node_is_open_while_who_has_no_room_is_there(patch: Patch) -> None:
    patch.setattr(Node, "is_open", property(lambda self: self.build.is_open))
    patch.setattr(Node, "build_now", property(lambda self: self.build))


def rent_is_not_counted_when_a_lease_ends(patch: Patch) -> None:
    count = fold._count_rented

    def only_more(state: State, lease: Lease, change: int, at_ms: int) -> None:
        if change > 0:
            count(state, lease, change, at_ms)

    patch.setattr(fold, "_count_rented", only_more)


def rent_is_held_for_ever(patch: Patch) -> None:
    patch.setattr(fold, "_release_hold", lambda state, request: None)


def promises_are_counted_for_ever(patch: Patch) -> None:
    patch.setattr(fold, "_settle", lambda state, request, charged: None)


def room_is_kept_for_who_has_it(patch: Patch) -> None:
    patch.setattr(fold, "_let_go_of_room", lambda state, job: False)


def dependencies_are_not_looked_at(patch: Patch) -> None:
    def at_once(state: State, job: Job) -> None:
        if job.cls.spec.after_ok or job.cls.spec.after_any:
            job.waits_for = ()

    patch.setattr(fold, "_depend", at_once)


def arrays_have_no_ceiling(patch: Patch) -> None:
    patch.setattr(Draft, "is_array_full", lambda self, job: False)


def levels_are_a_wish(patch: Patch) -> None:
    patch.setattr(packing, "cares", lambda needs: False)


def growth_forgets_levels(patch: Patch) -> None:
    patch.setattr(elastic, "nearness", lambda *requests: topology.Nearness())


def slices_are_not_taken(patch: Patch) -> None:
    patch.setattr(kinds, "slices_taken", lambda build, amounts, spot: 0)


def a_part_by_memory_counts_next_to_nothing(patch: Patch) -> None:
    patch.setattr(kinds, "memory_milli", lambda asked, there: 1)


def time_has_no_limits(patch: Patch) -> None:
    patch.setattr(_Cycle, "_end_overdue", lambda self: None)


def patience_has_no_end(patch: Patch) -> None:
    patch.setattr(_Cycle, "give_up", lambda self: None)


def a_node_is_known_by_its_name(patch: Patch) -> None:
    patch.setattr(State, "node_of", lambda self, cluster, name: self.nodes[NodeId(self.homes[name][0], name)])


MUTANTS: tuple[tuple[Callable[[Patch], None], str], ...] = (
    (a_node_is_known_by_its_name, r"node \S+: (kept as|more is allocated)"),
    (waiting_jobs_of_a_class_are_counted_once_too_often, r"jobs of a class of queue \w+ wait, not"),
    (a_job_that_comes_back_is_forgotten, r"came back and in no line"),
    (a_cancellation_is_forgotten, r"is cancelled and in no line"),
    (a_time_limit_is_forgotten_when_another_lease_ends, r"time limits are not those|list.remove"),
    (a_lease_that_runs_is_still_awaited, r"times by which leases must run are not those"),
    (nobody_gives_up, r"gives up waiting at an instant that is not kept"),
    (who_waits_for_others_is_forgotten, r"jobs wait for .* and .* is kept"),
    (an_elastic_lease_is_not_kept_as_one, r"elastic leases are not those"),
    (a_lost_node_still_counts, r"the capacity is not that of the nodes"),
    (rented_nodes_are_owned, r"what is owned is not"),
    (who_has_no_room_on_a_node_is_not_told_apart, r"knows .* not who is there"),
    (who_has_no_room_on_a_node_is_not_ended, r"has no room on node \S+, and nobody ends it|is lost and not revoked"),
    (a_node_is_open_while_who_has_no_room_is_there, r"is given as a whole 2 times|is over-allocated|of itself|at once"),
    (rent_is_not_counted_when_a_lease_ends, r"request \S+ counts \d+ leases"),
    (rent_is_held_for_ever, r"request \S+ is held for a job that does not wait"),
    (promises_are_counted_for_ever, r"budget \w+ counts other promises"),
    (room_is_kept_for_who_has_it, r"room is kept for j\d+, which does not wait"),
    (dependencies_are_not_looked_at, r"starts after j\d+"),
    (arrays_have_no_ceiling, r"one too many of its array"),
    (levels_are_a_wish, r"requires one (rack|block|host), and is in"),
    (growth_forgets_levels, r"requires one (rack|block|host), and is in"),
    (slices_are_not_taken, r"slices of GPU \d+ \S+ ?are given twice|kept as|cut at once"),
    (a_part_by_memory_counts_next_to_nothing, r"is (given away as|taken as)|does not say how much"),
    (time_has_no_limits, r"is over its time and not revoked"),
    (patience_has_no_end, r"waits for longer than it would"),
    (room_is_not_given_back, r"node \S+: kept as"),
    (named_resources_never_lack, r"more is allocated than it has|is over-allocated"),
    (a_gang_may_lack_its_last_member, r"seats \d+ of \d+ members|a partial gang"),
    (usage_leaks_when_a_lease_ends, r"what queues use is not the sum"),
    (a_draft_is_not_undone, r"deciding twice|deciding changed"),
    (a_snapshot_forgets_who_came_back, r"a snapshot restored is another state"),
    (a_restart_loses_the_turns, r"a snapshot restored is another state"),
    (promises_are_not_counted, r"budget \w+ (has|is exceeded)"),
    (quota_is_never_used_up, r"is exceeded"),
    (a_job_that_gave_up_still_waits, r"counts not \d+|ends twice|did not wait"),
    (a_cordoned_node_is_open, r"not ready"),
)


def first_failure(play: Callable[[int], None]) -> str:
    """What the first of the worlds that breaks says; empty if all of them hold."""
    for seed in range(WORLDS_SEARCHED):
        try:
            play(seed)
        except (AssertionError, KeyError) as error:
            return str(error)
    return ""


@pytest.mark.parametrize(("mutant", "says"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_invariants_would_see(mutant: Callable[[Patch], None], says: str, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    found = first_failure(lambda seed: World(seed).play(script_of(seed)))
    assert re.search(says, found), f"the mutant lives, or dies of something else: {found!r}"


@pytest.mark.slow
def test_the_searched_worlds_hold_without_a_mutant() -> None:
    assert first_failure(lambda seed: World(seed).play(script_of(seed))) == ""


def test_a_cycle_that_writes_what_only_the_fold_may_would_be_seen(monkeypatch: Patch) -> None:
    close = _Cycle.close

    def writes(self: _Cycle) -> tuple[Decision, ...]:
        self._state.freed += 1
        return close(self)

    monkeypatch.setattr(_Cycle, "close", writes)
    found = first_failure(lambda seed: check_prefixes(World(seed, is_checked=False), script_of(seed), 3))
    assert "gives another state than living through them" in found


@pytest.mark.parametrize("order", [lambda node: "", lambda node: node.name], ids=["none", "name"])
def test_nodes_in_the_order_of_their_reports_would_be_seen(monkeypatch: Patch, order: Callable[[Any], str]) -> None:
    def reported(items: Iterable[Any], *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> list[Any]:
        listed = list(items)
        return sorted(listed, key=order if listed and isinstance(listed[0], Node) else key, reverse=reverse)

    monkeypatch.setattr(agenda, "sorted", reported, raising=False)
    with pytest.raises(AssertionError, match="the order in which nodes were reported"):
        check_shuffle([8, 7, 6, 5, 4, 3, 2, 1, 0])


def test_an_ordering_rule_that_is_not_asked_would_be_seen(monkeypatch: Patch) -> None:
    monkeypatch.setattr(agenda.Agenda, "order_of", lambda self, job, queue, now_ms: (0,))
    with pytest.raises(AssertionError, match="the order of arrival decided"):
        check_arrivals([6, 5, 4, 3, 2, 1, 0])


def test_a_fold_that_depends_on_its_neighbour_would_be_seen() -> None:
    """The property compares what two orders come to; two reports on one node do not commute."""
    first = NodeObserved(cluster="a", node="n", shape=gpus(1), flavor="x")
    second = NodeObserved(cluster="a", node="n", shape=gpus(2), flavor="x")
    spec = World(0).told[1]
    assert isinstance(spec, ClusterConfigured)
    assert refold([spec, first, second]).capacity != refold([spec, second, first]).capacity
