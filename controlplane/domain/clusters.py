"""Where work can run: clusters, their nodes, and what a cloud offers to rent."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from controlplane.domain.mig import GEOMETRIES, Geometry, geometry_of
from controlplane.domain.model import Model
from controlplane.domain.quantities import MAX_GPUS_PER_NODE, MAX_MS, Amount, Millis, Name
from controlplane.domain.topology import DomainNames, Level
from controlplane.domain.workloads import Labels


class Site(StrEnum):
    """Whose machines."""

    HOME = "home"
    CLOUD = "cloud"


class Market(StrEnum):
    """How capacity is bought."""

    OWNED = "owned"
    RESERVED = "reserved"
    ON_DEMAND = "on-demand"
    SPOT = "spot"


class NodeShape(Model):
    """The capacity of one node."""

    cpu_milli: Amount
    memory_bytes: Amount
    gpus: Annotated[int, Field(ge=0, le=MAX_GPUS_PER_NODE, strict=True)] = 0
    gpu_model: Name | None = None
    gpu_memory_bytes: Amount = 0
    """Of each GPU; 0 does not say."""
    mig: Annotated[bool, Field(strict=True)] | Annotated[int, Field(ge=0, le=MAX_GPUS_PER_NODE, strict=True)] = False
    """GPUs in MIG mode: all, or the first so many by index. They take MIG instances only."""
    mig_repartition: bool = False
    """Whether an idle GPU may change its mode: then a whole-GPU member may take an empty one that is in MIG mode, and a
    MIG instance may be cut from an idle one that is not."""
    other: dict[Name, Amount] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _gpus_have_a_model(self) -> Self:
        if self.gpus > 0 and self.gpu_model is None:
            raise ValueError("a node with GPUs names their model (gpu_model)")
        return self

    @model_validator(mode="after")
    def _mig_is_known(self) -> Self:
        if self.mig_gpus > self.gpus:
            raise ValueError(f"mig is {self.mig_gpus} with {self.gpus} GPUs; no more can be in MIG mode than there are")
        if (self.mig or self.mig_repartition) and self.mig_geometry is None:
            known = ", ".join(geometry.name for geometry in GEOMETRIES)
            raise ValueError(
                f"no MIG placements are known for gpu_model {self.gpu_model!r} with gpu_memory_bytes "
                f"{self.gpu_memory_bytes}; use a model and size among {known}, or leave out mig"
            )
        return self

    @property
    def mig_gpus(self) -> int:
        """How many GPUs are in MIG mode."""
        return self.gpus if self.mig is True else int(self.mig)

    @property
    def mig_geometry(self) -> Geometry | None:
        """How its GPUs may be cut."""
        return geometry_of(self.gpu_model or "", self.gpu_memory_bytes)


class Offer(Model):
    """A priced, timed possibility of cloud capacity."""

    name: Name
    flavor: Name
    shape: NodeShape
    market: Market = Market.ON_DEMAND
    price_micro_usd_per_hour: Amount
    """Of one node."""
    lead_time_ms: Millis
    """From asking to a ready node, as expected."""
    max_nodes: Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
    labels: Labels = Field(default_factory=dict)
    together: Level | None = None
    """The nodes of one request are promised to share one domain of this level (a placement group, a capacity block);
    ``None`` promises nothing, so that a gang with a required level is rented a single node or none."""


class ClusterSpec(Model):
    """A cluster as its operator configures it."""

    name: Name
    site: Site = Site.HOME
    adapter: Name = "simulated"
    labels: Labels = Field(default_factory=dict)
    offers: Annotated[tuple[Offer, ...], Field(max_length=10_000)] = ()
    idle_release_ms: Millis = 600_000
    """A rented node that has been idle for this long is given back."""
    topology: DomainNames = Field(default_factory=dict)
    """Domains in which all of the cluster lies, for nodes that do not say themselves."""

    @model_validator(mode="after")
    def _only_clouds_offer(self) -> Self:
        if self.offers and self.site is not Site.CLOUD:
            raise ValueError("only a cloud cluster has offers")
        names = [offer.name for offer in self.offers]
        if len(set(names)) != len(names):
            raise ValueError("two offers of one cluster have the same name")
        return self


class WarmPool(Model):
    """Capacity that is held free for services: nobody else is placed on it, and what a service has taken is held anew
    as soon as room becomes free. Only owned nodes are held."""

    name: Name
    cluster: Name
    flavor: Name
    blocks: Annotated[int, Field(ge=0, le=1_000_000, strict=True)]
    """How many blocks are held; 0 gives the pool up."""
    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE, strict=True)] = 1
    """Whole GPUs of one node in each block, with their part of its CPU and memory; as many as a node has are a node."""
    queue: Name | None = None
    """Only services of this queue, and of those below it, may take from the pool; ``None`` is every service."""


class NodeState(StrEnum):
    """What an agent observed of a node."""

    READY = "ready"
    CORDONED = "cordoned"
    """Keeps what runs on it, takes nothing new."""
    LOST = "lost"


class Budget(Model):
    """Money per window. Promises count as spent."""

    name: Name
    limit_micro_usd: Amount
    window_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)]
    """Windows start at multiples of this length since the epoch of the log's clock."""
    queue: Name | None = None
    """The queue, with all below it, whose bursts are charged here; ``None`` charges all."""
