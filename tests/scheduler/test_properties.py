"""What holds in every world, and a mutant for each that shows that it can fail.

The properties themselves are in :class:`tests.scheduler.core.Core` and :class:`tests.scheduler.worlds.Ledger`, so that
every test which uses those checks them too. A mutant patches one thing in the core; a fixed search through worlds must
then break, in the words of the property that the mutant is there for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import ClusterConfigured, Event, LeaseGranted, NodeObserved
from controlplane.scheduler import agenda, draft, fold, needs, snapshot
from controlplane.scheduler.decide import Decision, _Cycle
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.kinds import Build, KindTable
from controlplane.scheduler.packing import Packer
from controlplane.scheduler.snapshot import take
from controlplane.scheduler.state import BudgetAccount, Job, State
from tests.scheduler import core
from tests.scheduler.core import Core, gpus, job, refold
from tests.scheduler.worlds import RULES, SCRIPTS, Script, World, script_of

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
        folded = take(refold(world.told[:position]))
        assert folded == kept, f"folding {position} events gives another state than living through them"


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
        for number in sequence:
            world.node(f"n{number}", shapes[number % len(shapes)])
        for size in (2, 1, 3, 2, 8, 1, 2):
            world.submit(job(size))
        world.submit(job(2, members=3))
        world.cycle(1)
        told.append(world.decided)
    assert told[0] == told[1], "the order in which nodes were reported changed what was decided"


@given(st.permutations(range(9)))
def test_the_order_in_which_equal_nodes_are_reported_changes_nothing(order: list[int]) -> None:
    """SCENARIOS E2. Kills :func:`nodes_in_the_order_of_their_reports`."""
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
    use = fold._use

    def leaks(state: State, queue: object, flavor: str, ask: object, sign: int) -> None:
        if sign > 0:
            use(state, queue, flavor, ask, sign)  # type: ignore[arg-type]

    patch.setattr(fold, "_use", leaks)


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


MUTANTS: tuple[tuple[Callable[[Patch], None], str], ...] = (
    (room_is_not_given_back, r"node n\d+: kept as"),
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


def test_nodes_in_the_order_of_their_reports_would_be_seen(monkeypatch: Patch) -> None:
    monkeypatch.setattr(agenda, "sorted", lambda items, **_: list(items), raising=False)
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
