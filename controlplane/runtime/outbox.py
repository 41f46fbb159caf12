"""The outbox is a cursor over the log: what was decided is delivered to the cluster it is for, in order, at least once.

There is no queue beside the log. A cursor that is lost starts again at the beginning, and agents do not mind.
"""

from __future__ import annotations

from controlplane.domain.codec import decode
from controlplane.domain.events import (
    CapacityReleased,
    CapacityRequested,
    Event,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    LeaseShrunk,
)
from controlplane.eventlog.port import EventLog
from controlplane.runtime.agents import ClusterAgent

_DELIVERED = frozenset(
    event.TYPE
    for event in (
        LeaseGranted,
        LeaseGrown,
        LeaseShrunk,
        LeaseRevoked,
        CapacityRequested,
        CapacityReleased,
        LeaseObserved,
    )
)
_GOES_ON = (LeasePhase.LAUNCHING, LeasePhase.RUNNING, LeasePhase.RESIZED)
_OVER = frozenset(phase for phase in LeasePhase if phase not in _GOES_ON)


class Outbox:
    """Delivers to the agents of one control plane, in process."""

    def __init__(self, agents: list[ClusterAgent]) -> None:
        self._agents = {agent.cluster: agent for agent in agents}
        self._cluster_of: dict[str, str] = {}
        """Lease -> its cluster, for leases that have not ended: what revokes or changes one does not name it."""
        self.cursor = 0
        """Everything up to this position has been delivered."""

    def catch_up(self, log: EventLog) -> None:
        """Deliver what the log holds beyond the cursor."""
        for record in log.read(self.cursor):
            if record.type in _DELIVERED:
                self.deliver(record.position, decode(record.type, record.payload))
            self.cursor = record.position

    def deliver(self, position: int, event: Event) -> None:
        """Deliver one record to the cluster that it is for, if any."""
        match event:
            case LeaseGranted():
                self._cluster_of[event.lease] = event.cluster
                self._to(event.cluster, position, event)
            case LeaseRevoked() | LeaseGrown() | LeaseShrunk():
                self._to(self._cluster_of.get(event.lease), position, event)
            case LeaseObserved():
                self._to(event.cluster, position, event)
                if event.phase in _OVER:
                    self._cluster_of.pop(event.lease, None)
            case CapacityRequested() | CapacityReleased():
                self._to(event.cluster, position, event)
            case _:
                pass
        self.cursor = position

    def _to(self, cluster: str | None, position: int, event: Event) -> None:
        agent = self._agents.get(cluster) if cluster is not None else None
        if agent is not None:
            agent.deliver(position, event)
