"""The port to a cluster: what an agent asks of it, and what it shows.

An adapter is the only thing that touches its cluster. It is synchronous, has no clock (time comes in as ``now_ms``) and
takes no decision: what should run is decided by the plane, what to do about it by :mod:`federation.reconcile`.

Three promises carry everything else, and the contract suite holds an adapter to them:

- *Idempotent by id.* ``launch`` and ``end`` by lease id, ``request_capacity`` and ``release_capacity`` by request id: a
  repeat changes nothing, and an ``end`` or release of something unknown is not an error.
- *Nothing disappears.* Once ``launch`` has returned, the lease is in every later view until ``forget``; once
  ``request_capacity`` has returned, so is the request. A cluster that shows its own work with a delay keeps what it
  accepted in the view until it does.
- *Whole gangs.* All members of a lease start, or none does; if one dies, all do.

Errors say who must act: the agent tries again, asks someone, or takes no for an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

from controlplane.domain.clusters import ClusterSpec, NodeShape, NodeState
from controlplane.domain.events import Member, MemberName
from controlplane.domain.topology import Level


class AdapterError(Exception):
    """Base of what can go wrong with a cluster; the text is one clear sentence."""


class TryAgain(AdapterError):
    """It may work later: a timeout, a throttled call, a controller that restarts. It may also have worked already."""


class AskSomeone(AdapterError):
    """It will not work until a person acts, such as on an expired credential. Tried again, slowly, and reported."""


class Refused(AdapterError):
    """The cluster understood and will never do it. Nothing of it was started."""


class BadConfig(AdapterError, ValueError):
    """The adapter's settings are wrong: says which cluster and field, what was wrong, and what to do."""


class WantedLease(NamedTuple):
    """A gang that the plane wants to be at its place, as ``LeaseGranted`` says it and ``LeaseGrown`` and
    ``LeaseShrunk`` have changed it since."""

    lease: str
    job: int
    attempt: int
    cluster: str
    members: tuple[Member, ...]
    revision: int = 0
    """How often its members have changed."""


class CapacityWanted(NamedTuple):
    """Nodes that the plane wants to rent, as ``CapacityRequested`` says it."""

    request: str
    offer: str
    nodes: int
    deadline_ms: int
    """Every node of it is ended by then. An adapter stores it beside the nodes (as a tag) and shows it again."""


class SeenPhase(StrEnum):
    """What a cluster shows of a lease."""

    ABSENT = "absent"
    """Not there. In a view of changes: no longer there."""
    LAUNCHING = "launching"
    RUNNING = "running"
    ENDING = "ending"
    """Being stopped, on request or by the cluster."""
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"
    REFUSED = "refused"
    """Accepted at first, then turned away for good; never started."""
    ENDED = "ended"
    """Stopped before it was done."""


class SeenLease(NamedTuple):
    """One lease in a view."""

    lease: str
    phase: SeenPhase
    exit_code: int | None = None
    detail: str = ""
    revision: int = 0
    """Of the last launch or resize that the cluster took."""
    members: tuple[MemberName, ...] = ()
    """With a revision above 0: all that hold room, those who are still being stopped included."""


@dataclass(frozen=True, slots=True)
class SeenNode:
    """One node in a view. A node that leaves is shown once more as ``LOST``."""

    node: str
    state: NodeState
    shape: NodeShape
    flavor: str
    labels: Mapping[str, str] = field(default_factory=dict)
    request: str | None = None
    topology: Mapping[Level, str] = field(default_factory=dict)
    """Level -> name of the domain that it is in, as far as the cluster knows."""


class SeenCapacityPhase(StrEnum):
    """What a provider shows of a capacity request."""

    ABSENT = "absent"
    ASKED = "asked"
    """Accepted, nothing ready yet."""
    PROVIDED = "provided"
    """At least one of its nodes is ready."""
    RELEASING = "releasing"
    """Its nodes are being ended and may still be charged."""
    FAILED = "failed"
    """Nothing was provided, nothing will be, nothing is charged."""
    RELEASED = "released"
    """Nothing is left and nothing more is charged."""


class SeenCapacity(NamedTuple):
    """One capacity request in a view."""

    request: str
    phase: SeenCapacityPhase
    deadline_ms: int
    nodes: tuple[str, ...] = ()
    """Names of its nodes, those still on their way included."""
    charged_micro_usd: int = 0
    """The whole charge, final at ``RELEASED``."""
    detail: str = ""


class SeenSignal(NamedTuple):
    """How a service does, as its cluster measures it."""

    lease: str
    observed_ms: int
    """When it was measured, by the cluster's own account; not when it was looked at."""
    p99_ms: int | None = None
    """The 99th percentile of its latency; ``None`` if nothing was answered or nobody measures it."""
    queue_depth: int | None = None
    """Requests that wait to be answered."""
    objective_ms: int | None = None
    """What the percentile should stay within, where that is known to the cluster and not to the job."""


class ClusterView(NamedTuple):
    """What a cluster really runs.

    A full view lists everything that the cluster knows of us: what it does not list is not there. A view of changes
    lists what changed since ``after``; a lease that is no longer there is listed as ``ABSENT``.
    """

    mark: int
    """Hand it in as ``after`` to get the changes since this view."""
    is_full: bool
    leases: tuple[SeenLease, ...] = ()
    nodes: tuple[SeenNode, ...] = ()
    capacity: tuple[SeenCapacity, ...] = ()
    signals: tuple[SeenSignal, ...] = ()
    """Of services that were measured since the view that this one follows; of each the latest."""


class Adapter(Protocol):
    """One cluster. Every method may raise :class:`TryAgain` or :class:`AskSomeone`; only ``launch`` and
    ``request_capacity`` may raise :class:`Refused`."""

    @property
    def cluster(self) -> str:
        """The name of the cluster that it speaks to."""

    def launch(self, lease: WantedLease, now_ms: int) -> None:
        """Start the whole gang, or nothing. A lease that the cluster knows, running or over, is left as it is."""

    def end(self, lease: str, grace_ms: int, now_ms: int) -> None:
        """Stop a lease: ask its members to stop, kill what is left after ``grace_ms``. Returns without waiting."""

    def forget(self, lease: str, now_ms: int) -> None:
        """How this lease ended is in the log: the cluster need not remember it. Not for a lease that is not over."""

    def observe(self, now_ms: int, after: int | None = None) -> ClusterView:
        """What the cluster runs: everything if ``after`` is ``None``, else what changed since the view of that mark.

        An adapter that cannot tell changes, or no longer knows the mark, gives a full view.
        """

    def request_capacity(self, wanted: CapacityWanted, now_ms: int) -> None:
        """Ask the provider for nodes. Returns when the request is accepted, long before a node is ready."""

    def release_capacity(self, request: str, now_ms: int) -> None:
        """Give back all nodes of a request, also those still on their way. Returns without waiting."""

    def next_event_ms(self, now_ms: int) -> int | None:
        """When the cluster will next change by itself, never before ``now_ms``; ``None`` if nothing will or nobody can
        know. Only simulated clusters know; others are asked from time to time."""


@runtime_checkable
class ElasticAdapter(Protocol):
    """What an adapter has besides if its cluster can change the members of a running gang. One that cannot leaves it
    out: its gangs then never grow once they are launched, and are stopped as a whole where they should shrink."""

    def resize(self, lease: WantedLease, grace_ms: int, now_ms: int) -> None:
        """Make the gang these members: start those that are missing, stop those that are not among them as ``end``
        does, leave the others alone. Returns without waiting.

        Idempotent by lease id and revision: a lease that is unknown, over or ending, or has this revision or a later
        one, is left as it is. A member that is being stopped is in every view until it holds no room any more. Raises
        :class:`Refused` if it will never do it; then nothing was changed.
        """


class OpenAdapter(Protocol):
    """What an entry point of the group ``tidegate.adapters`` is: gives the adapter of one cluster."""

    def __call__(self, spec: ClusterSpec, config: Mapping[str, object]) -> Adapter:
        """``config`` is the adapter's own section, as read from YAML. Raises :class:`BadConfig`."""
