"""Settings of a simulated cluster, as they stand in a world file. Prices and lead times come from the cluster's offers.

Everything has a default that means "nothing goes wrong", so that a world names only what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple, Self

from pydantic import Field, ValidationError, model_validator

from controlplane.domain.clusters import NodeShape
from controlplane.domain.events import LeasePhase
from controlplane.domain.loads import ServiceLoad
from controlplane.domain.model import Model
from controlplane.domain.quantities import PPM, Millis, Name
from controlplane.domain.topology import DomainNames
from controlplane.domain.workloads import Labels
from federation.port import BadConfig

MAX_NODES = 1_000_000
NAME_BEGINS = r"^([A-Za-z0-9][A-Za-z0-9._/@:+-]*)?$"
"""What may stand before a number for both to be the name of a node."""
Chance = Annotated[int, Field(ge=0, le=PPM, strict=True)]
"""In parts per million."""


class NodeGroup(Model):
    """Nodes that are alike. Their names are ``prefix`` with a number of fixed width, or those listed in ``names``."""

    count: Annotated[int, Field(ge=1, le=MAX_NODES, strict=True)] = 1
    prefix: Annotated[str, Field(max_length=200, pattern=NAME_BEGINS)] | None = None
    """``None`` is ``<cluster>/<number of the group>-``."""
    names: tuple[Name, ...] = ()
    shape: NodeShape
    flavor: Name
    labels: Labels = Field(default_factory=dict)
    topology: DomainNames = Field(default_factory=dict)
    """The domains that all of them are in."""

    @model_validator(mode="after")
    def _one_way_of_naming(self) -> Self:
        if self.names and (self.count != 1 or self.prefix is not None):
            raise ValueError("give names, or count and prefix, not both")
        return self

    def node_names(self, cluster: str, group: int) -> tuple[str, ...]:
        """The names, in order; the order of names is the order of numbers."""
        if self.names:
            return self.names
        prefix = f"{cluster}/{group}-" if self.prefix is None else self.prefix
        width = len(str(self.count - 1))
        return tuple(f"{prefix}{number:0{width}d}" for number in range(self.count))


class NodeDeath(Model):
    """One node dies at a given moment, and comes back after a while or never."""

    node: Name
    at_ms: Millis
    for_ms: Annotated[int, Field(ge=1, strict=True)] | None = None


class NodeFailures(Model):
    """Nodes that die at random: the time to the next death is uniform between 1 and twice the mean."""

    mean_ms: Annotated[int, Field(ge=1, le=2**50, strict=True)]
    """Mean time of one node from its start, or its return, to its death."""
    repair_ms: Annotated[int, Field(ge=1, le=2**50, strict=True)] | None = None
    """``None``: a dead node stays dead."""
    only_rented: bool = False
    """For spot capacity: owned nodes live, rented ones are taken away."""


class OutageKind(StrEnum):
    """How the cluster's control interface fails; what runs goes on."""

    TRY_AGAIN = "try-again"
    ASK_SOMEONE = "ask-someone"


class Outage(Model):
    """A time in which calls fail. ``calls`` empty means all of them."""

    from_ms: Millis
    until_ms: Millis
    kind: OutageKind = OutageKind.TRY_AGAIN
    calls: tuple[Annotated[str, Field(pattern=r"^(launch|end|forget|observe|request|release)$")], ...] = ()


class Provider(Model):
    """How the cloud behind a cluster behaves. Its prices, shapes and expected lead times are the cluster's offers."""

    lead_times_ms: dict[Name, Millis] = Field(default_factory=dict)
    """Offer -> its true lead time, where it is not what the offer says."""
    lead_jitter_ms: Millis = 0
    """Added to the lead time of each node: uniform between 0 and this."""
    failure_ppm: Chance = 0
    """Chance that a request fails, after its lead time."""
    failing_offers: tuple[Name, ...] = ()
    """Offers of which every request fails."""
    billing_ms: Annotated[int, Field(ge=1, le=86_400_000, strict=True)] = 1
    """Granularity of the bill: the time of each node is rounded up to a multiple of this."""
    release_ms: Millis = 0
    """From giving a node back to its end; it is charged until then."""
    ignores_early_release: bool = False
    """A release that comes before the nodes is lost: they appear, are charged, and must be released again."""


class SimulatedConfig(Model):
    """A simulated cluster."""

    seed: Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)] = 0
    nodes: tuple[NodeGroup, ...] = ()
    launch_delay_ms: Millis = 0
    launch_jitter_ms: Millis = 0
    """Added to the launch delay of each lease: uniform between 0 and this."""
    end_delay_ms: Millis = 0
    """What a lease takes to stop when asked; a shorter grace cuts it."""
    launch_refused_ppm: Chance = 0
    """Chance that a lease is refused for good."""
    launch_try_again_ppm: Chance = 0
    """Chance that one try of launching a lease times out, without effect."""
    deaths: tuple[NodeDeath, ...] = ()
    failures: NodeFailures | None = None
    outages: tuple[Outage, ...] = ()
    provider: Provider = Field(default_factory=Provider)
    runtimes_ms: dict[Annotated[str, Field(pattern=r"^j?[1-9][0-9]*$")], Millis | None] = Field(default_factory=dict)
    """Job (``12`` or ``j12``) -> how long it runs, ``null`` for ever. For worlds without a workload that says so."""
    default_runtime_ms: Millis | None = None
    """Of jobs that are not listed; ``null`` for ever."""


class TrueRun(NamedTuple):
    """How a job really runs, once all its members have started. The plane does not know it."""

    runtime_ms: int | None
    """``None`` never ends."""
    outcome: LeasePhase = LeasePhase.FINISHED
    """``FINISHED`` or ``FAILED``."""


TrueRuns = Callable[[int], tuple[int | None, LeasePhase]]
"""Job id -> :class:`TrueRun` (or a plain pair). Asked once per launch, with no effect."""


Loads = Callable[[int], ServiceLoad | None]
"""Job id -> how its service is used; ``None`` for what is no service, or one that nobody measures. Asked as
:data:`TrueRuns` is."""


def parse_config(cluster: str, config: Mapping[str, object]) -> SimulatedConfig:
    """Settings from YAML. Raises :class:`~federation.port.BadConfig`."""
    try:
        return SimulatedConfig.model_validate(config)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        raise BadConfig(f"cluster {cluster!r}: {where}: {first['msg']}; correct the settings of the cluster") from error


def listed_runs(config: SimulatedConfig) -> TrueRuns:
    """True runs from the table in the settings."""
    table = {int(job.removeprefix("j")): runtime_ms for job, runtime_ms in config.runtimes_ms.items()}

    def runs(job: int) -> TrueRun:
        return TrueRun(table.get(job, config.default_runtime_ms))

    return runs
