"""The adapter of the simulated cluster: the port, spoken to a cluster in the same process and in virtual time."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.domain.clusters import ClusterSpec
from federation.port import CapacityWanted, ClusterView, WantedLease
from federation.simulated.client import SimulatedCluster
from federation.simulated.config import Loads, SimulatedConfig, TrueRuns, listed_runs, parse_config
from federation.simulated.translate import gang_of, view_of


class SimulatedAdapter:
    """Implements :class:`federation.port.Adapter`; entry point ``simulated`` of the group ``tidegate.adapters``."""

    def __init__(
        self,
        spec: ClusterSpec,
        config: Mapping[str, object] | SimulatedConfig,
        runs: TrueRuns | None = None,
        loads: Loads | None = None,
    ) -> None:
        """``runs``: job id -> (runtime in milliseconds or ``None`` for ever, ``FINISHED`` or ``FAILED``); by default
        what the settings list. ``loads``: job id -> how its service is used; by default nothing is measured. Raises
        :class:`~federation.port.BadConfig`."""
        settings = config if isinstance(config, SimulatedConfig) else parse_config(spec.name, config)
        self._name = spec.name
        self.world = SimulatedCluster(spec, settings, runs or listed_runs(settings), loads)
        """The cluster itself, for a simulation that asks for its bill or what it really runs."""

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        return self._name

    def launch(self, lease: WantedLease, now_ms: int) -> None:
        """See the port."""
        self.world.launch(gang_of(lease), now_ms)

    def end(self, lease: str, grace_ms: int, now_ms: int) -> None:
        """See the port."""
        self.world.end(lease, grace_ms, now_ms)

    def resize(self, lease: WantedLease, grace_ms: int, now_ms: int) -> None:
        """See :class:`federation.port.ElasticAdapter`."""
        self.world.resize(gang_of(lease), grace_ms, now_ms)

    def forget(self, lease: str, now_ms: int) -> None:
        """See the port."""
        self.world.forget(lease, now_ms)

    def observe(self, now_ms: int, after: int | None = None) -> ClusterView:
        """See the port."""
        changes = self.world.look(now_ms, after)
        if not changes.orders:
            return view_of(changes, {})
        charges = {order.request: self.world.bill_micro_usd(now_ms, order.request) for order in changes.orders}
        return view_of(changes, charges)

    def request_capacity(self, wanted: CapacityWanted, now_ms: int) -> None:
        """See the port."""
        self.world.request(wanted, now_ms)

    def release_capacity(self, request: str, now_ms: int) -> None:
        """See the port."""
        self.world.release(request, now_ms)

    def next_event_ms(self, now_ms: int) -> int | None:
        """See the port."""
        return self.world.next_event_ms(now_ms)
