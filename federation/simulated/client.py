"""The simulated cluster itself: nodes, gangs with their true runtimes, deaths, and a cloud that takes its time.

Theory of operation. The cluster is a heap of things that will happen, ordered by (time, kind, id), and the records
that they change. Every call first lets happen what is due, so that the answer is true at that instant and does not
depend on how often anyone looked before. Every change is written to a journal of (kind, id); a view of changes is the
part of the journal since a mark, looked up in the records. No call scans all gangs or nodes, except for a full view.

It knows nothing of leases or events, may not read a clock, and draws chances by hashing what they are for.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from controlplane.domain.clusters import ClusterSpec, NodeShape, NodeState
from controlplane.domain.events import LeasePhase
from controlplane.domain.topology import Level
from federation.port import AskSomeone, BadConfig, CapacityWanted, Refused, SeenCapacityPhase, SeenPhase, TryAgain
from federation.simulated.config import Loads, OutageKind, SimulatedConfig, TrueRuns
from federation.simulated.draws import draw_below, happens
from federation.simulated.gauge import Gauge
from federation.simulated.provider import Order, Provider, Rental

OVER = frozenset({SeenPhase.FINISHED, SeenPhase.FAILED, SeenPhase.LOST, SeenPhase.ENDED})
EXIT_FAILED = 1
EXIT_FINISHED = 0
SCRIPTED = -1
"""Stands where the number of a node's life does: a death that the settings list comes whatever life the node is in."""


class Due(IntEnum):
    """What can happen. The order is that within one instant: work that is done is done before its node dies."""

    FINISH = 0
    STOP = 1
    START = 2
    NODE_JOINS = 3
    NODE_RETURNS = 4
    ORDER_FAILS = 5
    NODE_DIES = 6
    NODE_LEAVES = 7
    MEMBERS_LEAVE = 8
    MEASURE = 9


class Kind(IntEnum):
    """What a journal entry is about."""

    GANG = 0
    NODE = 1
    ORDER = 2
    GAUGE = 3


# Before Python 3.12, naming a member of an enum costs more than a dictionary access; these are on the way of each job.
_GANG = Kind.GANG
_NODE = Kind.NODE
_LOST = NodeState.LOST
_LAUNCHING = SeenPhase.LAUNCHING


class Gang(NamedTuple):
    """What is launched: a name, the job whose true runtime counts, and the GPU indices on each node."""

    name: str
    job: int
    places: tuple[tuple[str, tuple[int, ...]], ...]
    members: tuple[tuple[str, int], ...] = ()
    """(role, ordinal), in the order of ``places``; not needed by gangs that never change."""
    revision: int = 0


@dataclass(slots=True)
class GangRecord:
    """One gang in the cluster."""

    name: str
    job: int
    nodes: tuple[str, ...]
    phase: SeenPhase
    stamp: int = 0
    """Raised with each change; what was due for an older stamp no longer happens."""
    fails: bool = False
    """How it will end, known once it has started."""
    exit_code: int | None = None
    detail: str = ""
    revision: int = 0
    members: dict[tuple[str, int], str] = field(default_factory=dict)
    """(role, ordinal) of all that hold room -> node."""
    wanted: frozenset[tuple[str, int]] = frozenset()
    """Those of them that are to stay; asked for membership only."""
    gauge: Gauge | None = None
    """For a service that is measured."""


@dataclass(slots=True)
class NodeRecord:
    """One node in the cluster."""

    name: str
    shape: NodeShape
    flavor: str
    labels: Mapping[str, str]
    request: str | None = None
    state: NodeState = NodeState.READY
    lives: int = 0
    """How often it has started."""
    has_left: bool = False
    gangs: dict[str, None] = field(default_factory=dict)
    topology: Mapping[Level, str] = field(default_factory=dict)


class Changes(NamedTuple):
    """What a look at the cluster gives: the records themselves, to be read and not kept."""

    mark: int
    is_full: bool
    gangs: list[GangRecord]
    nodes: list[NodeRecord]
    orders: list[Order]
    gauges: list[tuple[str, Gauge]]
    """Of gangs that were measured, by name."""


class SimulatedCluster:
    """One cluster in virtual time. ``now_ms`` never goes back; an earlier instant is answered as of the latest."""

    def __init__(self, spec: ClusterSpec, config: SimulatedConfig, runs: TrueRuns, loads: Loads | None = None) -> None:
        """Raises :class:`~federation.port.BadConfig`: two nodes with one name, or a death of an unknown node."""
        self._name = spec.name
        self._config = config
        self._seed = config.seed
        self._runs = runs
        self._loads = loads
        self._provider = Provider(spec.name, spec.offers, config.provider.billing_ms)
        self._gangs: dict[str, GangRecord] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._tries: dict[str, int] = {}
        self._due: list[tuple[int, Due, str, int]] = []
        self._journal: list[tuple[Kind, str]] = []
        self._journal_start = 0
        self._shown = 0
        self._now_ms = 0
        for number, group in enumerate(config.nodes):
            for name in group.node_names(spec.name, number):
                self._add_node(NodeRecord(name, group.shape, group.flavor, group.labels, topology=group.topology), 0)
        for death in config.deaths:
            if death.node not in self._nodes and not spec.offers:
                raise BadConfig(f"cluster {spec.name!r}: deaths name a node {death.node!r} that is not among its nodes")
            heapq.heappush(self._due, (death.at_ms, Due.NODE_DIES, death.node, SCRIPTED))
            if death.for_ms is not None:
                heapq.heappush(self._due, (death.at_ms + death.for_ms, Due.NODE_RETURNS, death.node, SCRIPTED))

    # --- calls -------------------------------------------------------------------------------------------------------

    def launch(self, gang: Gang, now_ms: int) -> None:
        """Start a gang; one that is known by name is left alone.

        Raises :class:`~federation.port.Refused`, :class:`~federation.port.TryAgain`,
        :class:`~federation.port.AskSomeone`.
        """
        self._arrive(now_ms, "launch")
        if gang.name in self._gangs:
            return
        self._may_fail(gang.name)
        nodes = self._check_places(gang)
        config = self._config
        record = GangRecord(gang.name, gang.job, tuple(nodes), _LAUNCHING, revision=gang.revision)
        record.members = {member: place[0] for member, place in zip(gang.members, gang.places, strict=False)}
        self._gangs[gang.name] = record
        dead: str | None = None
        for node in nodes.values():
            node.gangs[gang.name] = None
            if node.state is _LOST and dead is None:
                dead = node.name
        if dead is not None:
            self._end_gang(record, SeenPhase.LOST, None, f"node {dead} was lost before it started")
            return
        delay_ms = config.launch_delay_ms
        if config.launch_jitter_ms:
            delay_ms += draw_below(config.launch_jitter_ms + 1, self._seed, "launch", gang.name)
        if delay_ms == 0:
            self._start(record, self._now_ms)
        else:
            heapq.heappush(self._due, (self._now_ms + delay_ms, Due.START, gang.name, record.stamp))
            self._journal.append((_GANG, gang.name))

    def end(self, name: str, grace_ms: int, now_ms: int) -> None:
        """Stop a gang; one that is over or unknown is left alone."""
        self._arrive(now_ms, "end")
        record = self._gangs.get(name)
        if record is None or record.phase in OVER or record.phase is SeenPhase.ENDING:
            return
        delay_ms = min(self._config.end_delay_ms, max(0, grace_ms))
        if delay_ms == 0:
            self._end_gang(record, SeenPhase.ENDED, None, "stopped on request")
            return
        record.phase = SeenPhase.ENDING
        record.stamp += 1
        heapq.heappush(self._due, (self._now_ms + delay_ms, Due.STOP, name, record.stamp))
        self._journal.append((_GANG, name))

    def resize(self, gang: Gang, grace_ms: int, now_ms: int) -> None:
        """Give a gang other members; one that is over, ending or unknown, or has this revision, is left alone. How long
        it runs does not depend on how many they are. Raises as :meth:`launch` does."""
        self._arrive(now_ms, "resize")
        record = self._gangs.get(gang.name)
        if record is None or record.phase not in (_LAUNCHING, SeenPhase.RUNNING) or record.revision >= gang.revision:
            return
        nodes = self._check_places(gang)
        for node in nodes.values():
            if node.state is _LOST:
                raise Refused(f"node {node.name!r} was lost")
        record.revision, record.wanted = gang.revision, frozenset(gang.members)
        record.members.update({member: place[0] for member, place in zip(gang.members, gang.places, strict=True)})
        self._sit(record)
        delay_ms = min(self._config.end_delay_ms, max(0, grace_ms))
        if len(record.members) == len(gang.members):
            return
        if delay_ms == 0:
            self._members_leave(record)
        else:
            heapq.heappush(self._due, (self._now_ms + delay_ms, Due.MEMBERS_LEAVE, gang.name, record.revision))

    def forget(self, name: str, now_ms: int) -> None:
        """Drop what is remembered of a gang that is over."""
        self._arrive(now_ms, "forget")
        record = self._gangs.get(name)
        if record is not None and record.phase in OVER:
            del self._gangs[name]
            self._tries.pop(name, None)

    def look(self, now_ms: int, after: int | None) -> Changes:
        """What changed since a mark, each record once, in the order of its first change; or everything."""
        self._arrive(now_ms, "observe")
        end = self._journal_start + len(self._journal)
        self._shown = end
        if after is None or not self._journal_start <= after <= end:
            nodes = [node for node in self._nodes.values() if not node.has_left]
            known = [(name, gang.gauge) for name, gang in self._gangs.items() if gang.gauge is not None]
            gauges = [(name, gauge) for name, gauge in known if gauge.is_read]
            return Changes(end, True, list(self._gangs.values()), nodes, list(self._provider.orders.values()), gauges)
        del self._journal[: after - self._journal_start]
        self._journal_start = after
        gangs: list[GangRecord] = []
        nodes = []
        orders: list[Order] = []
        gauges = []
        fresh = self._journal if len(self._journal) == 1 else dict.fromkeys(self._journal)
        for kind, name in fresh:
            if kind is _GANG:
                record = self._gangs.get(name)
                if record is not None:
                    gangs.append(record)
            elif kind is _NODE:
                nodes.append(self._nodes[name])
            elif kind is Kind.ORDER:
                orders.append(self._provider.orders[name])
            elif (record := self._gangs.get(name)) is not None and record.gauge is not None:
                gauges.append((name, record.gauge))
        return Changes(end, False, gangs, nodes, orders, gauges)

    def request(self, wanted: CapacityWanted, now_ms: int) -> None:
        """Order nodes; an order that is known is left alone. Raises as :meth:`launch` does."""
        self._arrive(now_ms, "request")
        if wanted.request in self._provider.orders:
            return
        order = self._provider.take(wanted)
        provider = self._config.provider
        ready_ms = self._now_ms + provider.lead_times_ms.get(order.offer.name, order.offer.lead_time_ms)
        fails = happens(provider.failure_ppm, self._seed, "order", order.request)
        if fails or order.offer.name in provider.failing_offers:
            heapq.heappush(self._due, (ready_ms, Due.ORDER_FAILS, order.request, 0))
        else:
            for number, name in enumerate(order.names):
                jitter_ms = draw_below(provider.lead_jitter_ms + 1, self._seed, "lead", name)
                heapq.heappush(self._due, (ready_ms + jitter_ms, Due.NODE_JOINS, order.request, number))
        self._journal.append((Kind.ORDER, order.request))

    def release(self, request: str, now_ms: int) -> None:
        """Give back all nodes of an order; one that is over or unknown is left alone."""
        self._arrive(now_ms, "release")
        order = self._provider.orders.get(request)
        if order is None or not order.may_arrive:
            return
        if order.phase is SeenCapacityPhase.ASKED and self._config.provider.ignores_early_release:
            return
        order.phase = SeenCapacityPhase.RELEASING
        self._journal.append((Kind.ORDER, request))
        for name, rental in order.rentals.items():
            if rental.until_ms is None:
                heapq.heappush(self._due, (self._now_ms + self._config.provider.release_ms, Due.NODE_LEAVES, name, 0))
        self._close_if_empty(order)
        self._advance(self._now_ms)

    def next_event_ms(self, now_ms: int) -> int | None:
        """When something will happen by itself; ``now_ms`` if something happened that nobody has looked at."""
        self._advance(now_ms)
        if self._shown < self._journal_start + len(self._journal):
            return now_ms
        while self._due and not self._is_live(*self._due[0]):
            heapq.heappop(self._due)
        return max(now_ms, self._due[0][0]) if self._due else None

    # --- what only a simulation may ask ------------------------------------------------------------------------------

    def bill_micro_usd(self, now_ms: int, request: str | None = None) -> int:
        """The provider's charge up to now, for everything or for one request, rounded up once per request."""
        self._advance(now_ms)
        if request is not None:
            return self._provider.charge_micro_usd(request, self._now_ms)
        return self._provider.bill_micro_usd(self._now_ms)

    def running(self, now_ms: int) -> list[str]:
        """Names of the gangs that hold room now, in order of launch."""
        self._advance(now_ms)
        return [name for name, record in self._gangs.items() if record.phase not in OVER]

    def rented(self, now_ms: int) -> list[str]:
        """Names of the nodes that are charged now."""
        self._advance(now_ms)
        orders = self._provider.orders.values()
        return [name for order in orders for name, rental in order.rentals.items() if rental.until_ms is None]

    # --- what happens by itself --------------------------------------------------------------------------------------

    def _arrive(self, now_ms: int, call: str) -> None:
        """Let happen what is due, then fail if this call fails now."""
        self._advance(now_ms)
        for outage in self._config.outages:
            if outage.from_ms <= self._now_ms < outage.until_ms and (not outage.calls or call in outage.calls):
                if outage.kind is OutageKind.TRY_AGAIN:
                    raise TryAgain(f"cluster {self._name!r} does not answer")
                raise AskSomeone(f"cluster {self._name!r}: the credential has expired")

    def _may_fail(self, name: str) -> None:
        config = self._config
        if config.launch_refused_ppm and happens(config.launch_refused_ppm, self._seed, "refuse", name):
            raise Refused(f"cluster {self._name!r} does not accept this gang")
        if config.launch_try_again_ppm:
            tries = self._tries[name] = self._tries.get(name, 0) + 1
            if happens(config.launch_try_again_ppm, self._seed, "try", name, tries):
                raise TryAgain(f"cluster {self._name!r}: the launch timed out")

    def _check_places(self, gang: Gang) -> dict[str, NodeRecord]:
        """The nodes of a gang by name."""
        nodes: dict[str, NodeRecord] = {}
        for name, gpus in gang.places:
            node = self._nodes.get(name)
            if node is None:
                raise Refused(f"cluster {self._name!r} has no node {name!r}")
            if gpus and (gpus[0] if len(gpus) == 1 else max(gpus)) >= node.shape.gpus:
                raise Refused(f"node {name!r} has {node.shape.gpus} GPUs, the gang names number {max(gpus)}")
            nodes[name] = node
        return nodes

    def _advance(self, now_ms: int) -> None:
        due = self._due
        while due and due[0][0] <= now_ms:
            entry = heapq.heappop(due)
            self._now_ms = max(self._now_ms, entry[0])
            if self._is_live(*entry):
                self._happen(*entry)
        self._now_ms = max(self._now_ms, now_ms)

    def _is_live(self, _at_ms: int, due: Due, name: str, number: int) -> bool:
        """Whether what was due still concerns anything."""
        if due is Due.MEMBERS_LEAVE:
            resized = self._gangs.get(name)
            return resized is not None and resized.phase not in OVER and resized.revision == number
        if due <= Due.START or due is Due.MEASURE:
            gang = self._gangs.get(name)
            return gang is not None and gang.stamp == number
        if due in (Due.NODE_JOINS, Due.ORDER_FAILS):
            return self._provider.orders[name].may_arrive
        node = self._nodes.get(name)
        if node is None:
            return number == SCRIPTED
        return not node.has_left and (number in (SCRIPTED, node.lives) or due is Due.NODE_LEAVES)

    def _happen(self, at_ms: int, due: Due, name: str, number: int) -> None:
        match due:
            case Due.FINISH:
                self._finish(self._gangs[name])
            case Due.STOP:
                self._end_gang(self._gangs[name], SeenPhase.ENDED, None, "stopped on request")
            case Due.START:
                self._start(self._gangs[name], at_ms)
            case Due.NODE_JOINS:
                self._join(self._provider.orders[name], number, at_ms)
            case Due.NODE_RETURNS:
                self._return_node(name, at_ms)
            case Due.ORDER_FAILS:
                order = self._provider.orders[name]
                order.phase, order.detail = SeenCapacityPhase.FAILED, "the provider has no capacity"
                self._journal.append((Kind.ORDER, name))
            case Due.NODE_DIES:
                self._lose_node(name, at_ms, leaves=False)
            case Due.NODE_LEAVES:
                self._lose_node(name, at_ms, leaves=True)
            case Due.MEMBERS_LEAVE:
                self._members_leave(self._gangs[name])
            case Due.MEASURE:
                self._measure(self._gangs[name], at_ms)

    def _start(self, record: GangRecord, at_ms: int) -> None:
        runtime_ms, outcome = self._runs(record.job)
        record.phase = SeenPhase.RUNNING
        record.stamp += 1
        record.fails = outcome is LeasePhase.FAILED
        if runtime_ms is not None:
            heapq.heappush(self._due, (at_ms + runtime_ms, Due.FINISH, record.name, record.stamp))
        self._journal.append((_GANG, record.name))
        load = self._loads(record.job) if self._loads is not None else None
        if load is not None:
            record.gauge = Gauge(load, at_ms)
            heapq.heappush(self._due, (at_ms + load.every_ms, Due.MEASURE, record.name, record.stamp))

    def _measure(self, record: GangRecord, at_ms: int) -> None:
        """Those who are being stopped answer no more."""
        assert record.gauge is not None, f"{record.name} is not measured"
        record.gauge.read(at_ms, len(record.wanted) or len(record.members))
        heapq.heappush(self._due, (at_ms + record.gauge.load.every_ms, Due.MEASURE, record.name, record.stamp))
        self._journal.append((Kind.GAUGE, record.name))

    def _members_leave(self, record: GangRecord) -> None:
        record.members = {member: node for member, node in record.members.items() if member in record.wanted}
        self._sit(record)

    def _sit(self, record: GangRecord) -> None:
        """The gang is on the nodes of its members, and on no others."""
        for name in record.nodes:
            self._nodes[name].gangs.pop(record.name, None)
        record.nodes = tuple(dict.fromkeys(record.members.values()))
        for name in record.nodes:
            self._nodes[name].gangs[record.name] = None
        self._journal.append((_GANG, record.name))

    def _finish(self, record: GangRecord) -> None:
        if record.fails:
            self._end_gang(record, SeenPhase.FAILED, EXIT_FAILED, "")
        else:
            self._end_gang(record, SeenPhase.FINISHED, EXIT_FINISHED, "")

    def _end_gang(self, record: GangRecord, phase: SeenPhase, exit_code: int | None, detail: str) -> None:
        record.phase, record.exit_code, record.detail = phase, exit_code, detail
        record.stamp += 1
        for name in record.nodes:
            self._nodes[name].gangs.pop(record.name, None)
        self._journal.append((_GANG, record.name))

    def _add_node(self, node: NodeRecord, at_ms: int) -> None:
        if node.name in self._nodes:
            raise BadConfig(f"cluster {self._name!r}: two nodes have the name {node.name!r}; give each its own")
        self._nodes[node.name] = node
        self._begin_life(node, at_ms)

    def _begin_life(self, node: NodeRecord, at_ms: int) -> None:
        node.lives += 1
        failures = self._config.failures
        if failures is not None and (node.request is not None or not failures.only_rented):
            life_ms = 1 + draw_below(2 * failures.mean_ms, self._seed, "life", node.name, node.lives)
            heapq.heappush(self._due, (at_ms + life_ms, Due.NODE_DIES, node.name, node.lives))
            if failures.repair_ms is not None and node.request is None:
                back_ms = at_ms + life_ms + failures.repair_ms
                heapq.heappush(self._due, (back_ms, Due.NODE_RETURNS, node.name, node.lives))
        self._journal.append((_NODE, node.name))

    def _join(self, order: Order, number: int, at_ms: int) -> None:
        name = order.names[number]
        order.rentals[name] = Rental(at_ms)
        if order.phase is SeenCapacityPhase.ASKED:
            order.phase = SeenCapacityPhase.PROVIDED
            self._journal.append((Kind.ORDER, order.request))
        offer = order.offer
        self._add_node(NodeRecord(name, offer.shape, offer.flavor, offer.labels, order.request), at_ms)

    def _return_node(self, name: str, at_ms: int) -> None:
        node = self._nodes.get(name)
        if node is not None and node.state is _LOST:
            node.state = NodeState.READY
            self._begin_life(node, at_ms)

    def _lose_node(self, name: str, at_ms: int, leaves: bool) -> None:
        node = self._nodes.get(name)
        if node is None or node.state is _LOST:
            return
        node.state = _LOST
        for gang in list(node.gangs):
            record = self._gangs[gang]
            self._end_gang(record, SeenPhase.LOST, None, f"node {name} {'was given back' if leaves else 'was lost'}")
        self._journal.append((_NODE, name))
        if node.request is not None:
            order = self._provider.orders[node.request]
            node.has_left = True
            order.rentals[name].until_ms = at_ms
            self._close_if_empty(order)

    def _close_if_empty(self, order: Order) -> None:
        if order.is_empty:
            order.phase = SeenCapacityPhase.RELEASED
            self._journal.append((Kind.ORDER, order.request))
