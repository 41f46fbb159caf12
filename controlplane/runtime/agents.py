"""Agents as the control plane sees them, and how one is found: by entry point, never by import.

The control plane does not import federation; a package that brings adapters also brings the agent that drives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import entry_points
from typing import Protocol

from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import Event, LeasePhase
from controlplane.domain.loads import ServiceLoad

GROUP = "tidegate.agents"


class ClusterAgent(Protocol):
    """Speaks for one cluster. Deliveries are at-least-once; reports repeat until acknowledged."""

    @property
    def cluster(self) -> str:
        """The cluster's name."""

    def deliver(self, position: int, event: Event) -> None:
        """Take one record of the log."""

    def acknowledge(self, events: Iterable[Event]) -> None:
        """These reports of the agent are in the log."""

    def settle(self, position: int) -> None:
        """Nothing up to this position will be delivered again."""

    def caught_up(self) -> None:
        """Everything that is wanted has been delivered."""

    def step(self, now_ms: int) -> list[Event]:
        """Act, look, and report what was observed."""

    def next_wake_ms(self, now_ms: int) -> int | None:
        """When the next step is due; ``None`` if nothing is foreseen."""


class OpenAgent(Protocol):
    """Opens the agent of a cluster."""

    def __call__(
        self,
        spec: ClusterSpec,
        config: Mapping[str, object],
        *,
        runs: Callable[[int], tuple[int | None, LeasePhase]] | None = None,
        loads: Callable[[int], ServiceLoad | None] | None = None,
    ) -> ClusterAgent:
        """``config`` is the adapter's own section. ``runs`` tells a simulated cluster how long a job really runs and
        how it ends, ``loads`` how a service is used; real clusters find out for themselves.

        Raises ``ValueError``, in one sentence, for settings that the adapter does not understand."""


class NoAgent(Exception):
    """No installed package brings agents."""


def find_agents() -> OpenAgent:
    """What opens the agent of a cluster, from its specification and its adapter's settings."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    if "in-process" not in points:
        raise NoAgent("no package with agents is installed; install the project itself (make setup) and try again")
    opened: OpenAgent = points["in-process"].load()
    return opened
