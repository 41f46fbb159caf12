"""The agent beside a cluster: takes deliveries from the plane, makes the cluster agree, reports what it observed.

Theory of operation. The agent has no durable state: the wish is in the log, the truth is in the cluster, and what is
between them can be found out again from both. Three things follow.

Deliveries commute. A delivery is known by what it is about (the lease or request id), not by when it came: repeated,
late or out of order, the same deliveries leave the same records. A revocation that overtakes its grant wins.

Reports repeat. Each change is reported once; a report is kept until it is known to be in the log (``acknowledge``, or
the record itself delivered back), and ``resend`` gives all that are not. How a lease ended stays in the cluster's
memory until then, so that a crash of the agent loses no ending.

Silence is not a wish. An agent that was restarted is made with ``replaying=True``: until ``caught_up`` it launches and
ends nothing, because a lease that it does not know may simply not have been delivered again yet. Only deadlines of
rented capacity are enforced at once. An agent that the plane has left alone goes on with what it knows.

It may not know the time (it comes in as an argument), and decides nothing that the tables do not say.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    CapacityObserved,
    CapacityReleased,
    CapacityRequested,
    Event,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeaseRevoked,
    LeaseShrunk,
    NodeObserved,
    ServiceObserved,
)
from federation.agent.capacity import CapacityBook
from federation.agent.leases import LeaseBook
from federation.agent.reports import Reports, earliest, retry_delay_ms
from federation.port import Adapter, AdapterError, ClusterView, SeenNode, SeenSignal

GRACE_MS = 30_000
"""Between asking a lease to stop and killing it: the default of Kubernetes (terminationGracePeriodSeconds)."""


class Agent:
    """One agent for one cluster."""

    def __init__(self, adapter: Adapter, cluster: str, *, grace_ms: int = GRACE_MS, replaying: bool = False) -> None:
        """``replaying``: deliveries were made to an earlier agent of this cluster; see :meth:`caught_up`."""
        assert adapter.cluster == cluster, f"the adapter speaks to {adapter.cluster!r}, the agent to {cluster!r}"
        self._adapter = adapter
        self._cluster = cluster
        self._replaying = replaying
        self._reports = Reports()
        self._leases = LeaseBook(adapter, self._reports, grace_ms)
        self._capacity = CapacityBook(adapter, self._reports)
        self._nodes: dict[str, SeenNode] = {}
        self._mark: int | None = None
        self._settled = 0
        self._failures = 0
        self._look_again_ms: int | None = None
        self.trouble: str | None = None
        """Why the cluster could not be observed the last time it was tried; ``None`` if it could."""

    @property
    def cluster(self) -> str:
        """The name of the cluster that it speaks for."""
        return self._cluster

    # --- from the plane ----------------------------------------------------------------------------------------------

    def deliver(self, position: int, event: Event) -> None:
        """Take one record of the log, at its position; nothing is done before :meth:`step`.

        Events of other clusters and of other kinds are ignored. An observation of this cluster says that the report is
        in the log. Delivered twice, late or out of order, the result is the same.
        """
        if position <= self._settled:
            return
        match event:
            case LeaseGranted(cluster=self._cluster):
                self._leases.grant(position, event)
            case LeaseGrown() | LeaseShrunk():
                self._leases.change(position, event)
            case LeaseRevoked():
                self._leases.revoke(position, event.lease, event.grace_ms)
            case CapacityRequested(cluster=self._cluster):
                self._capacity.request(event)
            case CapacityReleased(cluster=self._cluster):
                self._capacity.release(event.request, event.cause)
            case (
                LeaseObserved(cluster=self._cluster)
                | CapacityObserved(cluster=self._cluster)
                | NodeObserved(cluster=self._cluster)
                | ServiceObserved(cluster=self._cluster)
            ):
                self._recorded(event)
            case _:
                pass

    def acknowledge(self, events: Iterable[Event]) -> None:
        """These reports of this agent are in the log."""
        for event in events:
            self._recorded(event)

    def settle(self, position: int) -> None:
        """Everything up to this position has been delivered and none of it comes again; repeats are now ignored."""
        self._settled = max(self._settled, position)
        self._leases.settle(position)

    def caught_up(self) -> None:
        """Every lease and request that the plane still wants has been delivered: what is not known is an orphan."""
        self._replaying = False

    def _recorded(self, event: Event) -> None:
        self._reports.acknowledge(event)
        if isinstance(event, LeaseObserved):
            self._leases.recorded(event.lease, event.phase)
        elif isinstance(event, CapacityObserved):
            self._capacity.recorded(event)
        elif isinstance(event, NodeObserved) and self._mark is None:
            # After a restart: what the plane believes of a node, so that one which vanished meanwhile is noticed.
            self._nodes[event.node] = SeenNode(
                event.node, event.state, event.shape, event.flavor, event.labels, event.request, event.topology
            )

    # --- with the cluster --------------------------------------------------------------------------------------------

    def step(self, now_ms: int) -> list[Event]:
        """Act on what is known, look at the cluster, act on what is seen. Gives the new observations, in order: nodes
        that came or changed, leases, nodes that left, capacity, signals of services; so that nothing is on a node that
        is not there."""
        if self._mark is not None:
            self._act(now_ms)
        view = self._look(now_ms)
        if view is None:
            return self._reports.take()
        lost = self._see_nodes(view) if view.nodes or view.is_full else None
        self._leases.see(view)
        if view.capacity or view.is_full:
            self._capacity.see(view)
        self._act(now_ms, lost)
        for signal in view.signals:
            self._report_signal(signal)
        return self._reports.take()

    def resend(self) -> list[Event]:
        """All reports that are not known to be in the log, the latest of each subject, oldest first."""
        return self._reports.unacknowledged()

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When the next step is due without a new delivery: ``now_ms`` if something is due already, ``None`` if nothing
        is foreseen. A cluster that does not know its future must be looked at from time to time besides."""
        if self._mark is None:
            return max(now_ms, self._look_again_ms or now_ms)
        if not self._replaying and (self._leases.is_urgent or self._capacity.is_marked):
            return now_ms
        due_ms = earliest(self._leases.next_ms(), self._capacity.next_ms())
        if self._look_again_ms is None:
            due_ms = earliest(due_ms, self._adapter.next_event_ms(now_ms))
        else:
            due_ms = earliest(due_ms, self._look_again_ms)
        return None if due_ms is None else max(now_ms, due_ms)

    def _look(self, now_ms: int) -> ClusterView | None:
        try:
            view = self._adapter.observe(now_ms, self._mark)
        except AdapterError as error:
            self.trouble = str(error)
            self._failures += 1
            self._look_again_ms = now_ms + retry_delay_ms(self._failures)
            return None
        self.trouble, self._failures, self._look_again_ms = None, 0, None
        self._mark = view.mark
        return view

    def _act(self, now_ms: int, lost: list[SeenNode] | None = None) -> None:
        if not self._replaying:
            self._leases.act(now_ms)
        if lost:
            for node in lost:
                self._report_node(node)
        if not self._capacity.is_idle:
            self._capacity.enforce_deadlines(now_ms)
            self._capacity.act(now_ms, only_overdue=self._replaying)

    def _see_nodes(self, view: ClusterView) -> list[SeenNode]:
        """Report nodes that came or changed; give those that were lost, to be reported after their leases."""
        lost: list[SeenNode] = []
        for node in view.nodes:
            known = self._nodes.get(node.node)
            if known == node:
                continue
            self._nodes[node.node] = node
            if node.state is not NodeState.LOST:
                self._report_node(node)
            else:
                lost.append(node)
        if view.is_full:
            listed = {node.node for node in view.nodes}
            for name, known in self._nodes.items():
                if name not in listed and known.state is not NodeState.LOST:
                    gone = replace(known, state=NodeState.LOST)
                    self._nodes[name] = gone
                    lost.append(gone)
        return lost

    def _report_signal(self, seen: SeenSignal) -> None:
        event = ServiceObserved(
            cluster=self._cluster,
            lease=seen.lease,
            observed_ms=seen.observed_ms,
            p99_ms=seen.p99_ms,
            objective_ms=seen.objective_ms,
            queue_depth=seen.queue_depth,
        )
        self._reports.add(("service", seen.lease), event)

    def _report_node(self, node: SeenNode) -> None:
        event = NodeObserved(
            cluster=self._cluster,
            node=node.node,
            state=node.state,
            shape=node.shape,
            flavor=node.flavor,
            labels=dict(node.labels),
            request=node.request,
            topology=dict(node.topology),
        )
        self._reports.add(("node", node.node), event)
