"""Topology: which domain a gang gets, how it lies in it, and what is said when no domain has room.

Each property names the mutant that it kills.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from controlplane.audit.sentences import smallest_change, tell
from controlplane.domain.clusters import ClusterSpec, NodeState
from controlplane.domain.events import (
    CapacityPhase,
    CapacityRequested,
    ClusterConfigured,
    JobSubmitted,
    LeaseGranted,
    LeasePhase,
    NodeObserved,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.reasons import Reason
from controlplane.domain.topology import LEVELS, Level, TopologyRequest
from controlplane.domain.workloads import JobSpec
from controlplane.scheduler.agenda import agenda_for
from controlplane.scheduler.decide import decide
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.packing import MAX_TRIES, Packer
from controlplane.scheduler.topology import DomainTree, evenly, fewest
from tests.scheduler.core import CLOUD, HOME, Core, gpus, job, offer
from tests.twins.plain_rules import PlainRules

Where = dict[str, str]
"""Level -> name"""


def core(nodes: dict[str, tuple[int, Where]], cluster: Where | None = None, rules: PlainRules | None = None) -> Core:
    """A home cluster of nodes with so many GPUs each, and a queue."""
    world = Core(rules)
    world.tell(ClusterConfigured(spec=ClusterSpec.model_validate({"name": HOME, "topology": cluster or {}})))
    world.queue("team")
    for name, (count, where) in nodes.items():
        observe(world, name, count, where)
    return world


def observe(world: Core, name: str, count: int, where: Where, **more: object) -> None:
    shape = gpus(count) if count else gpus(0)
    fields = {"cluster": HOME, "node": name, "shape": shape, "flavor": "a100", "topology": where, **more}
    world.tell(NodeObserved.model_validate(fields))


def gang(*roles: tuple[str, int, int], topology: Where | None = None, of: dict[str, Where] | None = None) -> JobSpec:
    """Roles as (name, members, GPUs of each); the gang's topology and that of its roles."""
    listed = [
        {"name": name, "count": count, "gpus": each, "cpu_milli": 1_000, "topology": (of or {}).get(name)}
        for name, count, each in roles
    ]
    return JobSpec.model_validate({"name": "gang", "queue": "team", "roles": listed, "topology": topology})


def place(world: Core, spec: JobSpec) -> list[tuple[str, int, str]] | None:
    """(role, ordinal, node) of each member as the packer would place the gang; nothing stays."""
    id_ = world.tell(JobSubmitted(spec=spec, submitted_ms=0))
    state = world.state
    agenda = agenda_for(state, world.rules)
    agenda.refresh_nodes(state)
    draft = Draft(state, agenda)
    queue = state.tree.by_name["team"]
    before = (agenda.column.kinds.tolist(), [dict(used) for used in draft.used])
    seats = Packer(state, agenda, draft).place(id_, agenda.needs_of(state, state.jobs[id_]), queue, None)
    named = None if seats is None else [named_seat(agenda.names, seat) for seat in seats]
    if seats is not None:
        draft.stand_up(queue, seats)
    used = [{name: amount for name, amount in used.items() if amount} for used in draft.used]
    assert (agenda.column.kinds.tolist(), used) == before
    return named


def named_seat(names: list[str], seat: DraftSeat) -> tuple[str, int, str]:
    return seat.need.ask.role.name, seat.ordinal, names[seat.row]


def nodes_of(seats: list[tuple[str, int, str]] | None, role: str | None = None) -> dict[str, int]:
    """Members by node."""
    assert seats is not None
    found: dict[str, int] = {}
    for name, _, node in seats:
        if role in (None, name):
            found[node] = found.get(node, 0) + 1
    return found


# --- worked examples -------------------------------------------------------------------------------------------------

TWO_BLOCKS = {
    "a1": (4, {"block": "a", "rack": "1"}),
    "a2": (4, {"block": "a", "rack": "1"}),
    "a3": (4, {"block": "a", "rack": "2"}),
    "b1": (4, {"block": "b", "rack": "1"}),
    "b2": (2, {"block": "b", "rack": "2"}),
}


def test_required_takes_the_domain_that_is_left_with_least() -> None:
    assert set(nodes_of(place(core(TWO_BLOCKS), gang(("m", 5, 1), topology={"required": "block"})))) == {"b1", "b2"}


def test_required_refuses_what_no_one_domain_holds_though_all_together_would() -> None:
    world = core(TWO_BLOCKS)
    assert place(world, gang(("m", 13, 1), topology={"required": "block"})) is None
    assert place(world, gang(("m", 13, 1))) is not None


def test_racks_of_the_same_name_in_two_blocks_are_two_racks() -> None:
    assert place(core(TWO_BLOCKS), gang(("m", 9, 1), topology={"required": "rack"})) is None


def test_preferred_goes_up_level_by_level() -> None:
    world = core(TWO_BLOCKS)
    wish = {"preferred": "rack"}
    assert set(nodes_of(place(world, gang(("m", 8, 1), topology=wish)))) == {"a1", "a2"}, "one rack"
    assert set(nodes_of(place(world, gang(("m", 9, 1), topology=wish)))) == {"a1", "a2", "a3"}, "one block"
    assert len(nodes_of(place(world, gang(("m", 18, 1), topology=wish)))) == 5, "the cluster"


def test_preferred_looks_into_every_wider_domain_before_it_goes_up() -> None:
    """The zone that is tightest has no rack for all; the other has."""
    nodes = {
        "a1": (2, {"zone": "a", "rack": "1"}),
        "a2": (2, {"zone": "a", "rack": "2"}),
        "b1": (4, {"zone": "b", "rack": "1"}),
        "b2": (4, {"zone": "b", "rack": "2"}),
    }
    world = core(nodes)
    assert set(nodes_of(place(world, gang(("m", 4, 1), topology={"preferred": "rack"})))) == {"b1"}
    assert set(nodes_of(place(world, gang(("m", 4, 1), topology={"preferred": "zone"})))) == {"a1", "a2"}


def test_the_only_role_of_a_gang_may_care_for_it() -> None:
    world = core(TWO_BLOCKS)
    assert place(world, gang(("m", 9, 1), of={"m": {"required": "rack"}})) is None
    narrower = gang(("m", 8, 1), topology={"required": "block"}, of={"m": {"required": "rack"}})
    assert set(nodes_of(place(world, narrower))) == {"a1", "a2"}


def test_preferred_stops_at_what_is_required() -> None:
    wish = {"preferred": "rack", "required": "block"}
    assert place(core(TWO_BLOCKS), gang(("m", 13, 1), topology=wish)) is None


def test_packed_and_balanced() -> None:
    nodes = {f"n{at}": (8, {"rack": "r"}) for at in range(4)}
    packed = place(core(nodes), gang(("m", 10, 1), topology={"required": "rack"}))
    balanced = place(core(nodes), gang(("m", 10, 1), topology={"required": "rack", "arrangement": "balanced"}))
    assert sorted(nodes_of(packed).values()) == [2, 8]
    assert sorted(nodes_of(balanced).values()) == [5, 5]


def test_members_are_numbered_along_the_tree() -> None:
    seats = place(core(TWO_BLOCKS), gang(("m", 12, 1), topology={"required": "block"}))
    assert seats is not None
    assert [node for _, _, node in sorted(seats, key=lambda seat: seat[1])] == ["a1"] * 4 + ["a2"] * 4 + ["a3"] * 4


def test_a_role_may_care_while_its_gang_does_not() -> None:
    seats = place(core(TWO_BLOCKS), gang(("trainer", 8, 1), ("loader", 6, 1), of={"trainer": {"required": "rack"}}))
    assert set(nodes_of(seats, "trainer")) == {"a1", "a2"}


def test_roles_in_their_racks_and_the_gang_in_one_block() -> None:
    nodes = {
        "a1": (4, {"block": "a", "rack": "1"}),
        "a2": (2, {"block": "a", "rack": "2"}),
        "b1": (4, {"block": "b", "rack": "1"}),
        "b2": (4, {"block": "b", "rack": "2"}),
    }
    rack = {"required": "rack"}
    spec = gang(("x", 4, 1), ("y", 3, 1), topology={"required": "block"}, of={"x": rack, "y": rack})
    seats = place(core(nodes), spec)
    assert {node[0] for node in nodes_of(seats)} == {"b"}
    assert len(nodes_of(seats, "x")) == len(nodes_of(seats, "y")) == 1


def test_a_role_that_took_the_wrong_domain_moves_on() -> None:
    """``x`` fits either rack and takes the tighter one, which is the only one that holds ``y``'s node."""
    nodes = {
        "p": (2, {"rack": "1"}),
        "q1": (2, {"rack": "2"}),
        "q2": (1, {"rack": "2"}),
    }
    world = core(nodes)
    world.node("p", gpus(2, cpu=64_000))
    observe(world, "p", 2, {"rack": "1"}, shape=gpus(2, cpu=64_000))
    observe(world, "q1", 2, {"rack": "2"}, shape=gpus(2, cpu=4_000))
    observe(world, "q2", 1, {"rack": "2"}, shape=gpus(1, cpu=4_000))
    spec = JobSpec.model_validate(
        {
            "name": "gang",
            "queue": "team",
            "roles": [
                {"name": "x", "count": 2, "gpus": 1, "cpu_milli": 1_000, "topology": {"required": "rack"}},
                {"name": "y", "count": 1, "gpus": 1, "cpu_milli": 32_000},
            ],
            "topology": {"arrangement": "packed"},
        }
    )
    seats = place(world, spec)
    assert set(nodes_of(seats, "y")) == {"p"}
    assert set(nodes_of(seats, "x")) <= {"q1", "q2"}


def test_an_exchange_that_no_order_of_roles_finds() -> None:
    """``x`` may sit anywhere and would take the node that ``y`` needs, in either order; each has to give way."""
    world = core({})
    for name, cpu, memory in (("both", 8_000, 8 * 2**30), ("cpu", 8_000, 1), ("memory", 1, 8 * 2**30)):
        observe(world, name, 1, {}, shape=gpus(1, cpu=cpu, memory=memory))
    for name, cpu, memory in (("both2", 8_000, 8 * 2**30),):
        observe(world, name, 1, {}, shape=gpus(1, cpu=cpu, memory=memory))
    rules = [{"name": "x", "count": 2, "gpus": 1, "cpu_milli": 8_000}]
    rules += [{"name": "y", "count": 2, "gpus": 1, "memory_bytes": 8 * 2**30}]
    spec = JobSpec.model_validate({"name": "gang", "queue": "team", "roles": rules})
    world.rules.score = lambda after, candidate: after.cpu_milli + after.memory_bytes
    seats = place(world, spec)
    assert "cpu" in nodes_of(seats, "x")
    assert "memory" in nodes_of(seats, "y")


@pytest.mark.parametrize("topology", [None, {"required": "block"}])
def test_an_exchange_that_only_another_order_finds(topology: Where | None) -> None:
    """``x`` goes first, as it asks for a GPU, and would take the node that can spare no CPU."""
    world = core({})
    for name, cpu in (("a", 17_000), ("b", 18_000)):
        observe(world, name, 1, {"block": "1"}, shape=gpus(1, cpu=cpu))
    roles = [{"name": "x", "gpus": 1, "cpu_milli": 2_000}, {"name": "y", "count": 4, "cpu_milli": 8_000}]
    world.rules.score = lambda after, candidate: 0
    spec = {"name": "gang", "queue": "team", "roles": roles, "topology": topology}
    assert nodes_of(place(world, JobSpec.model_validate(spec)), "x") == {"b": 1}


def test_an_exchange_that_only_giving_way_finds() -> None:
    """Either role, first, would take both nodes that suit both."""
    world = core({})
    for name, cpu, memory in (("n1", 8, 8), ("n2", 8, 8), ("n3", 8, 1), ("n4", 1, 8)):
        observe(world, name, 1, {"block": "1"}, shape=gpus(1, cpu=cpu * 1_000, memory=memory * 2**30))
    roles = [{"name": "x", "count": 2, "gpus": 1, "cpu_milli": 8_000}]
    roles += [{"name": "y", "count": 2, "gpus": 1, "memory_bytes": 8 * 2**30}]
    spec = {"name": "gang", "queue": "team", "roles": roles, "topology": {"required": "block"}}
    seats = place(world, JobSpec.model_validate(spec))
    assert "n3" in nodes_of(seats, "x")
    assert "n4" in nodes_of(seats, "y")


def test_a_node_that_says_nothing_is_alone() -> None:
    world = core({"a": (4, {}), "b": (4, {})})
    rack = {"required": "rack"}
    assert place(world, gang(("m", 5, 1), topology=rack)) is None, "nothing is known of a rack"
    assert len(nodes_of(place(world, gang(("m", 4, 1), topology=rack)))) == 1, "one host is surely in one rack"


def test_a_rack_of_an_unnamed_block_is_surely_in_one_block() -> None:
    world = core({"a": (4, {"rack": "1"}), "b": (4, {"rack": "1"}), "c": (4, {"rack": "2"})})
    block = {"required": "block"}
    assert set(nodes_of(place(world, gang(("m", 8, 1), topology=block)))) == {"a", "b"}
    assert place(world, gang(("m", 9, 1), topology=block)) is None


def test_a_cluster_speaks_for_its_nodes() -> None:
    nodes: dict[str, tuple[int, Where]] = {"a": (4, {}), "b": (4, {}), "c": (4, {"zone": "z2"})}
    world = core(nodes, cluster={"zone": "z1"})
    assert set(nodes_of(place(world, gang(("m", 8, 1), topology={"required": "zone"})))) == {"a", "b"}
    assert place(world, gang(("m", 9, 1), topology={"required": "zone"})) is None


def test_a_gang_stays_in_one_cluster_whatever_it_prefers() -> None:
    world = core({"a": (4, {"zone": "z"})})
    world.tell(ClusterConfigured(spec=ClusterSpec(name="other")))
    observe(world, "b", 4, {"zone": "z"}, cluster="other")
    assert place(world, gang(("m", 8, 1), topology={"preferred": "zone"})) is None


def test_quota_by_flavor_is_kept_while_sharing_out() -> None:
    world = core({})
    observe(world, "a", 4, {"rack": "1"}, flavor="red")
    observe(world, "b", 4, {"rack": "1"}, flavor="blue")
    world.queue("team", {"gpu": 2_000}, flavor="red")
    rack = {"required": "rack"}
    assert nodes_of(place(world, gang(("m", 6, 1), topology=rack))) == {"a": 2, "b": 4}
    assert place(world, gang(("m", 7, 1), topology=rack)) is None


def test_what_is_wrong_with_a_topology_is_said_in_a_sentence() -> None:
    with pytest.raises(ValidationError, match="preferred level block is not narrower than the required level rack"):
        TopologyRequest(required=Level.RACK, preferred=Level.BLOCK)
    with pytest.raises(ValidationError, match="an empty topology asks for nothing"):
        TopologyRequest()
    with pytest.raises(ValidationError, match="a node is its own host"):
        NodeObserved.model_validate(
            {"cluster": "c", "node": "n", "shape": gpus(1), "flavor": "f", "topology": {"host": "n"}}
        )


# --- whole cycles ----------------------------------------------------------------------------------------------------


def test_b3_two_roles_of_two_need_one_block() -> None:
    """Scenario B3, with a mutant that ignores the gang's level placing 2 and 2 in two blocks."""
    nodes = {f"{block}{at}": (1, {"block": block}) for block in "ab" for at in range(3)}
    world = core(nodes)
    spec = gang(("x", 2, 1), ("y", 2, 1), topology={"required": "block"})
    waits = world.submit(spec)
    world.cycle()
    assert world.placed() == []
    said = world.waiting()[waits]
    assert said.reason == Reason.EXCEEDS_TOPOLOGY
    assert said.topology is not None
    assert (said.topology.level, said.topology.domain, said.topology.room) == (Level.BLOCK, "home/a", 3)
    observe(world, "b3", 1, {"block": "b"})
    world.cycle()
    assert world.placed() == [waits]
    assert {seat.node.name[0] for seat in world.state.leases[world.lease_of(waits)].seats} == {"b"}


def test_topology_is_the_reason_only_while_room_elsewhere_would_do() -> None:
    nodes: dict[str, tuple[int, Where]] = {"a": (4, {"rack": "1"}), "b": (4, {"rack": "2"})}
    world = core(nodes)
    small = [world.submit(job(2, name="small")) for _ in range(2)]
    world.cycle()
    spread = {world.state.leases[world.lease_of(id_)].seats[0].node for id_ in small}
    assert spread == {NodeId(HOME, "a")}, "best fit"
    near = world.submit(gang(("m", 4, 1), topology={"required": "rack"}))
    other = world.submit(gang(("m", 4, 1), topology={"required": "rack"}))
    world.cycle()
    assert world.placed() == [near]
    assert world.closed.waiting == {"capacity": 1}, "nothing is free at all"
    world.finish(small[0])
    world.finish(near)
    world.submit(job(2, name="small"))
    world.cycle()
    assert other in world.placed()


def test_the_reason_is_looked_at_again_though_nothing_was_freed() -> None:
    """Room that is taken elsewhere turns topology into capacity. Kills: remembering the reason with the verdict."""
    world = core({"a": (4, {"rack": "1"}), "b": (4, {"rack": "2"})})
    world.rules.score = lambda after, candidate: after.gpu_free_milli
    for _ in range(2):
        world.submit(job(2))
    world.cycle()
    waits = world.submit(gang(("m", 4, 1), topology={"required": "rack"}))
    world.cycle()
    assert world.waiting()[waits].reason == Reason.TOPOLOGY
    world.submit(job(1, name="later"))
    world.cycle()
    world.cycle()
    assert world.waiting()[waits].reason == Reason.CAPACITY
    assert world.waiting()[waits].topology is None


def told(world: Core, id_: int) -> list[str]:
    watch = decide(world.state, world.rules, watched_job=id_).watch
    assert watch is not None
    return [*tell(watch), smallest_change(watch)]


def test_why_names_the_level_and_the_largest_domain() -> None:
    world = core({"a": (4, {"rack": "1"}), "b": (4, {"rack": "2"}), "c": (1, {"rack": "2"})})
    waits = world.submit(gang(("m", 6, 1), topology={"required": "rack"}))
    world.cycle()
    assert world.waiting()[waits].reason == Reason.EXCEEDS_TOPOLOGY
    lines = told(world, waits)
    assert lines[0].startswith("Reason exceeds-topology: no one domain")
    assert "Topology: it requires one rack for its 6 members; home/2 comes nearest, with room for 5." in lines
    assert lines[-1] == "a larger rack, a smaller gang, or a wider level to require"


def test_why_names_the_role_whose_level_is_in_the_way() -> None:
    world = core({"a": (4, {"rack": "1"}), "b": (4, {"rack": "2"})})
    world.rules.score = lambda after, candidate: after.gpu_free_milli
    for _ in range(2):
        world.submit(job(1))
    world.cycle()
    waits = world.submit(gang(("x", 2, 1), ("y", 4, 1), of={"y": {"required": "rack"}}))
    world.cycle()
    assert world.waiting()[waits].reason == Reason.TOPOLOGY
    lines = told(world, waits)
    assert "Topology: it requires one rack for the 4 members of role y; home/1 comes nearest, with room for 3." in lines


def test_the_smallest_change_is_room_in_the_best_domain() -> None:
    nodes: dict[str, tuple[int, Where]] = {"a": (4, {"rack": "1"}), "b": (4, {"rack": "2"})}
    rules = PlainRules(
        score=lambda after, candidate: after.gpu_free_milli, scoring_reads=frozenset({"after.gpu_free_milli"})
    )
    world = core(nodes, rules=rules)
    for _ in range(2):
        world.submit(job(1))
    world.cycle()
    waits = world.submit(gang(("m", 4, 1), topology={"required": "rack"}))
    world.cycle()
    said = world.waiting()[waits]
    assert said.reason == Reason.TOPOLOGY
    assert said.topology is not None
    assert (said.topology.room, said.topology.members) == (3, 4)
    lines = told(world, waits)
    assert "Topology: it requires one rack for its 4 members; home/1 comes nearest, with room for 3." in lines
    assert lines[-1] == "room for 1 more of its members in home/1, or a wider level to require"


def test_topology_changes_while_gangs_wait() -> None:
    """The nodes turn out to be in one rack; a node that is cordoned does not count."""
    world = core({"a": (4, {}), "b": (4, {})})
    waits = world.submit(gang(("m", 8, 1), topology={"required": "rack"}))
    world.cycle()
    assert world.placed() == []
    observe(world, "a", 4, {"rack": "1"})
    observe(world, "b", 4, {"rack": "1"}, state=NodeState.CORDONED)
    world.cycle()
    assert world.placed() == []
    observe(world, "b", 4, {"rack": "1"})
    world.cycle()
    assert world.placed() == [waits]


def test_a_gang_that_requires_a_level_rents_only_what_is_promised_to_be_together() -> None:
    rules = PlainRules(cost=lambda job, home, offer, now: offer.cost_micro_usd)
    world = core({}, rules=rules)
    cheap = offer("scattered", 1_000_000, count=4)
    dear = offer("placement-group", 2_000_000, count=4).model_copy(update={"together": Level.BLOCK})
    world.cloud(cheap, dear)
    waits = world.submit(gang(("m", 8, 1), topology={"required": "block"}))
    world.cycle()
    asked = world.last(CapacityRequested)
    assert [request.offer for request in asked] == ["placement-group"]
    assert "share one block" in asked[0].refused_offers["cloud/scattered"]
    for at in range(2):
        world.node(f"r{at}", gpus(4), cluster=CLOUD, request=asked[0].request)
    world.capacity(asked[0].request, CapacityPhase.PROVIDED)
    world.cycle()
    assert world.placed() == [waits], "nodes of one request are in one block by the word of the offer"


def test_preferring_needs_no_promise() -> None:
    rules = PlainRules(cost=lambda job, home, offer, now: offer.cost_micro_usd)
    world = core({}, rules=rules)
    world.cloud(offer("scattered", 1_000_000, count=4))
    world.submit(gang(("m", 8, 1), topology={"preferred": "rack"}))
    world.cycle()
    assert len(world.last(CapacityRequested)) == 1


def test_members_come_back_to_one_domain_after_a_loss() -> None:
    nodes: dict[str, tuple[int, Where]] = {f"{rack}{at}": (2, {"rack": rack}) for rack in "pq" for at in range(2)}
    world = core(nodes)
    id_ = world.submit(gang(("m", 4, 1), topology={"required": "rack"}))
    world.cycle()
    lease = world.lease_of(id_)
    world.report(lease, LeasePhase.RUNNING)
    observe(world, "p0", 2, {"rack": "p"}, state=NodeState.LOST)
    world.cycle()
    world.report(lease, LeasePhase.ENDED)
    world.cycle()
    world.cycle()
    granted = [event for event in world.told if isinstance(event, LeaseGranted)]
    assert [{member.node[0] for member in event.members} for event in granted] == [{"p"}, {"q"}]


# --- properties ------------------------------------------------------------------------------------------------------

WIDE = ("zone", "block", "rack")


@st.composite
def yards(draw: st.DrawFn) -> dict[str, tuple[int, Where]]:
    """Up to eight nodes of up to three GPUs in a small tree, where some do not say everything."""
    nodes: dict[str, tuple[int, Where]] = {}
    for at in range(draw(st.integers(1, 8))):
        where = {level: draw(st.sampled_from(("", "1", "2"))) for level in WIDE}
        nodes[f"n{at}"] = (draw(st.integers(0, 3)), {level: name for level, name in where.items() if name})
    return nodes


def is_together(one: Where, other: Where, level: str) -> bool:
    """Whether two nodes are known to share a domain of a level: both name, at it or narrower, the same domain."""
    levels = [str(each) for each in LEVELS]
    for at in range(levels.index(level), len(levels) - 1):
        if one.get(levels[at]) and all(one.get(up) == other.get(up) for up in levels[: at + 1]):
            return True
    return False


def groups(nodes: dict[str, tuple[int, Where]], level: str) -> list[frozenset[str]]:
    """The domains of a level, found by comparing every pair."""
    return sorted(
        {
            frozenset(other for other in nodes if other == name or is_together(nodes[name][1], nodes[other][1], level))
            for name in nodes
        },
        key=sorted,
    )


@settings(deadline=None)
@given(yards(), st.integers(2, 8), st.integers(1, 2), st.sampled_from((*WIDE, "host")))
def test_required_finds_a_domain_exactly_if_there_is_one(
    nodes: dict[str, tuple[int, Where]], members: int, each: int, level: str
) -> None:
    """And then the one that is left with least. Kills: taking the fullest domain, comparing names without their path,
    letting unnamed domains be one."""
    room = {group: sum(nodes[name][0] // each for name in group) for group in groups(nodes, level)}
    able = {group: slots - members for group, slots in room.items() if slots >= members}
    seats = place(core(nodes), gang(("m", members, each), topology={"required": level}))
    if not able:
        assert seats is None
        return
    used = nodes_of(seats)
    assert sum(used.values()) == members
    assert all(count * each <= nodes[name][0] for name, count in used.items())
    homes = [group for group in able if group.issuperset(used)]
    assert homes
    assert min(able[group] for group in homes) == min(able.values())


@settings(deadline=None)
@given(yards(), st.integers(2, 8), st.sampled_from(WIDE), st.sampled_from(("packed", "balanced")))
def test_preferred_is_the_narrowest_level_that_has_room(
    nodes: dict[str, tuple[int, Where]], members: int, level: str, arrangement: str
) -> None:
    """From the preferred level up, the cluster last. Kills: going up too early, stopping below the cluster."""
    wish = {"preferred": level, "arrangement": arrangement}
    seats = place(core(nodes), gang(("m", members, 1), topology=wish))
    if sum(count for count, _ in nodes.values()) < members:
        assert seats is None
        return
    used = nodes_of(seats)
    for up in reversed(WIDE[: WIDE.index(level) + 1]):
        able = [group for group in groups(nodes, up) if sum(nodes[name][0] for name in group) >= members]
        if able:
            assert any(group.issuperset(used) for group in able)
            return


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(("x", "y", "xy", "-")), min_size=2, max_size=8),
    st.integers(1, 5),
    st.integers(1, 5),
    st.booleans(),
)
def test_two_roles_on_one_slot_nodes_fit_exactly_if_they_can(hosts: list[str], xs: int, ys: int, is_near: bool) -> None:
    """With and without a block that all must share. Kills: giving up after the first order, not giving way."""
    world = core({})
    world.rules.score = lambda after, candidate: 0
    for at, holds in enumerate(hosts):
        cpu, memory = 8_000 if "x" in holds else 1, 2**30 if "y" in holds else 1
        observe(world, f"n{at}", 1, {"block": "b"}, shape=gpus(1, cpu=cpu, memory=memory))
    roles = [{"name": "x", "count": xs, "gpus": 1, "cpu_milli": 8_000}]
    roles += [{"name": "y", "count": ys, "gpus": 1, "memory_bytes": 2**30}]
    wish = {"topology": {"required": "block"}} if is_near else {}
    seats = place(world, JobSpec.model_validate({"name": "gang", "queue": "team", "roles": roles, **wish}))
    can_x, can_y = sum("x" in holds for holds in hosts), sum("y" in holds for holds in hosts)
    either = sum(holds != "-" for holds in hosts)
    assert (seats is not None) == (xs <= can_x and ys <= can_y and xs + ys <= either)


@settings(deadline=None)
@given(yards(), st.data())
def test_gangs_of_several_roles_are_placed_whole_and_near_or_not_at_all(
    nodes: dict[str, tuple[int, Where]], data: st.DataObject
) -> None:
    """Whatever is asked: what is placed keeps every level. Kills: a role that forgets its own level, or its gang's."""
    levels = st.sampled_from((None, *WIDE, "host"))
    sizes = [(name, data.draw(st.integers(1, 3)), data.draw(st.integers(0, 2))) for name in "xyz"]
    of = {name: {"required": level} for name in "xyz" if (level := data.draw(levels)) is not None}
    whole = data.draw(levels)
    seats = place(core(nodes), gang(*sizes, topology={"required": whole} if whole else None, of=of))
    if seats is None:
        return
    assert len(seats) == sum(count for _, count, _ in sizes)
    for name, wish in [*of.items(), *([(None, {"required": whole})] if whole else [])]:
        used = nodes_of(seats, name)
        assert any(group.issuperset(used) for group in groups(nodes, wish["required"]))


@settings(deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=2), st.lists(st.integers(1, 4), min_size=2, max_size=4))
@example([6, 4], [3, 2, 3, 2])
def test_roles_find_racks_of_their_own_exactly_if_they_can(racks: list[int], sizes: list[int]) -> None:
    """Each role in one rack, shared or not; small enough for the search to see all. Kills: a role that never tries
    its next domain."""
    nodes: dict[str, tuple[int, Where]] = {f"n{at}": (slots, {"rack": f"{at}"}) for at, slots in enumerate(racks)}
    roles = [(f"r{at}", size, 1) for at, size in enumerate(sizes)]
    seats = place(core(nodes), gang(*roles, of={name: {"required": "rack"} for name, _, _ in roles}))
    assert (seats is not None) == any(
        all(
            sum(size for size, at in zip(sizes, chosen, strict=True) if at == rack) <= slots
            for rack, slots in enumerate(racks)
        )
        for chosen in product(range(len(racks)), repeat=len(sizes))
    )


@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(1, 12))
def test_shares_are_fewest_and_even(rooms: list[int], members: int) -> None:
    """Against all choices. Kills: filling the smallest first, an even part that is rounded the wrong way."""
    if sum(rooms) < members:
        return
    room = np.array(rooms, dtype=np.int64)
    choices = [
        chosen
        for size in range(1, len(rooms) + 1)
        for chosen in combinations(range(len(rooms)), size)
        if sum(rooms[at] for at in chosen) >= members
    ]
    number = min(len(chosen) for chosen in choices)
    best = max(min(members // number, *(rooms[at] for at in chosen)) for chosen in choices if len(chosen) == number)
    for parts in (fewest(room, members), evenly(room, members)):
        assert sum(part for _, part in parts) == members
        assert all(0 < part <= rooms[at] for at, part in parts)
        assert [at for at, _ in parts] == sorted({at for at, _ in parts})
        assert len(parts) == number
    assert min(part for _, part in evenly(room, members)) == best
    if number == 1:
        tightest = min(slots for slots in rooms if slots >= members)
        assert {rooms[parts[0][0]] for parts in (fewest(room, members), evenly(room, members))} == {tightest}


@given(st.lists(st.tuples(*(st.sampled_from(("", "1", "2")) for _ in range(3))), min_size=1, max_size=12))
def test_the_tree_is_the_pairs_comparison(wheres: list[tuple[str, str, str]]) -> None:
    """Every level's ranges are the groups that comparing all pairs gives. Kills: an unnamed domain begun too late."""
    nodes: dict[str, tuple[int, Where]] = {
        f"n{at:02}": (1, {level: name for level, name in zip(WIDE, where, strict=True) if name})
        for at, where in enumerate(wheres)
    }
    paths = [("home", *(where.get(level, "") for level in LEVELS[:-1]), name) for name, (_, where) in nodes.items()]
    tree = DomainTree(paths)
    names = list(nodes)
    for level in LEVELS[:-1]:
        found = []
        for at in range(len(tree.starts[level.depth]) - 1):
            low, high = tree.span(level.depth, at)
            found.append(frozenset(names[row] for row in tree.rows[low:high].tolist()))
        assert sorted(found, key=sorted) == groups(nodes, str(level))


def test_a_search_is_bounded_by_a_count() -> None:
    """Twelve roles that cannot all find their racks: refused, and not after trying every combination."""
    nodes: dict[str, tuple[int, Where]] = {
        f"n{rack}{at}": (3, {"rack": f"{rack}"}) for rack, at in product(range(12), range(2))
    }
    world = core(nodes)
    of = {f"r{at}": {"required": "rack"} for at in range(12)}
    roles = [(f"r{at}", 5, 1) for at in range(12)]
    assert place(world, gang(*roles, of=of)) is not None
    tight = [*roles[:11], ("r11", 2, 4)]
    assert MAX_TRIES < 12 * 12
    assert place(world, gang(*tight, of=of)) is None
