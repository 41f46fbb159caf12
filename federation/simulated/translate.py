"""Between the port's words and those of the simulated cluster. Pure: no state, no cluster."""

from __future__ import annotations

from controlplane.domain.events import MemberName
from federation.port import (
    ClusterView,
    SeenCapacity,
    SeenCapacityPhase,
    SeenLease,
    SeenNode,
    SeenSignal,
    WantedLease,
)
from federation.simulated.client import Changes, Gang, GangRecord, NodeRecord
from federation.simulated.gauge import Gauge
from federation.simulated.provider import Order


def gang_of(lease: WantedLease) -> Gang:
    """A lease as the gang to launch; it bears the name of the lease, which makes a repeat harmless."""
    places = tuple([(member.node, member.gpus) for member in lease.members])
    return Gang(lease.lease, lease.job, places, tuple([(m.role, m.ordinal) for m in lease.members]), lease.revision)


def seen_lease(record: GangRecord) -> SeenLease:
    """A gang as a lease in a view."""
    if not record.revision:
        return SeenLease(record.name, record.phase, record.exit_code, record.detail)
    members = tuple(MemberName(role=role, ordinal=ordinal) for role, ordinal in record.members)
    return SeenLease(record.name, record.phase, record.exit_code, record.detail, record.revision, members)


def seen_node(record: NodeRecord) -> SeenNode:
    """A node in a view."""
    return SeenNode(
        record.name, record.state, record.shape, record.flavor, record.labels, record.request, record.topology
    )


def seen_signal(lease: str, gauge: Gauge) -> SeenSignal:
    """What a gauge last showed."""
    return SeenSignal(lease, gauge.read_ms, gauge.p99_ms, gauge.queue_depth)


def seen_capacity(order: Order, charged_micro_usd: int) -> SeenCapacity:
    """An order in a view. The charge is shown when it is final."""
    final = charged_micro_usd if order.phase is SeenCapacityPhase.RELEASED else 0
    return SeenCapacity(order.request, order.phase, order.deadline_ms, order.names, final, order.detail)


def view_of(changes: Changes, charges: dict[str, int]) -> ClusterView:
    """What a look at the cluster gave, as a view. ``charges``: by request, up to now."""
    return ClusterView(
        changes.mark,
        changes.is_full,
        tuple(map(seen_lease, changes.gangs)),
        tuple(map(seen_node, changes.nodes)),
        tuple([seen_capacity(order, charges[order.request]) for order in changes.orders]),
        tuple([seen_signal(name, gauge) for name, gauge in changes.gauges]),
    )
