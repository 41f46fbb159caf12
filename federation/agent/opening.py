"""Finds adapters by name and makes agents: what a composition root calls.

Adapters are entry points of the group ``tidegate.adapters``, so that a third party ships one as a package and nothing
here is edited. It may not name an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import LeasePhase
from controlplane.domain.loads import ServiceLoad
from federation.agent.agent import Agent
from federation.port import Adapter, BadConfig

GROUP = "tidegate.adapters"


Runs = Callable[[int], tuple[int | None, LeasePhase]]
"""Job id -> how long it really runs (``None`` for ever) and how it ends."""


Loads = Callable[[int], ServiceLoad | None]
"""Job id -> how its service is used; ``None`` for what is no service, or one that nobody measures."""


def open_adapter(
    spec: ClusterSpec, config: Mapping[str, object], runs: Runs | None = None, loads: Loads | None = None
) -> Adapter:
    """The adapter that a cluster names. ``config`` is the adapter's own section; ``runs`` and ``loads`` are handed to
    adapters of clusters that only pretend, and must be ``None`` for others.

    Raises :class:`~federation.port.BadConfig` if there is no such adapter or its settings are wrong.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    point = found.get(spec.adapter)
    if point is None:
        known = ", ".join(sorted(found)) or "none"
        raise BadConfig(
            f"cluster {spec.name!r}: no adapter {spec.adapter!r} is installed (installed: {known}); "
            f"install the package that has it, or correct the name"
        )
    pretended = {name: given for name, given in (("runs", runs), ("loads", loads)) if given is not None}
    adapter: Adapter = point.load()(spec, config, **pretended)
    return adapter


def open_agent(
    spec: ClusterSpec,
    config: Mapping[str, object],
    *,
    replaying: bool = False,
    runs: Runs | None = None,
    loads: Loads | None = None,
) -> Agent:
    """An agent for a cluster, with its adapter. Raises :class:`~federation.port.BadConfig`."""
    return Agent(open_adapter(spec, config, runs, loads), spec.name, replaying=replaying)
