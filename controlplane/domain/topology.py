"""Where nodes are, as a tree, and how close together a gang wants its members.

A *level* is a kind of nearness (one region, ..., one NVLink domain, one host); a *domain* is one instance of it, such
as rack ``r7``. Levels are nested: a rack lies in one block, a block in one zone. The words are those of Kueue's
topology-aware scheduling and of Slurm's topology plugins: a level is *required*, *preferred* or, without either, the
gang is *unconstrained*.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from controlplane.domain.model import Model
from controlplane.domain.quantities import Name


class Level(StrEnum):
    """A kind of nearness, the widest first."""

    REGION = "region"
    ZONE = "zone"
    BLOCK = "block"
    RACK = "rack"
    NVLINK = "nvlink"
    """GPUs that reach each other over NVLink, in one host or across the hosts of a rack."""
    HOST = "host"

    @property
    def depth(self) -> int:
        """1 for the widest; 0 is left for the cluster."""
        return _DEPTHS[self]


LEVELS = tuple(Level)
_DEPTHS = {level: depth for depth, level in enumerate(LEVELS, start=1)}


def _without_host(domains: dict[Level, Name]) -> dict[Level, Name]:
    if Level.HOST in domains:
        raise ValueError("a node is its own host; leave the level host out")
    return domains


DomainNames = Annotated[dict[Level, Name], AfterValidator(_without_host)]
"""Level -> name of the domain. A name means something only inside the domain of the next wider level: rack ``1`` of
block ``a`` is not rack ``1`` of block ``b``."""


class Arrangement(StrEnum):
    """How members fill the domain that was chosen for them."""

    PACKED = "packed"
    """As few domains of the next narrower level as will do, and so on down; the last one is the tightest that holds the
    rest."""
    BALANCED = "balanced"
    """As few as will do, and each of them as evenly filled as its room allows."""


class TopologyRequest(Model):
    """How close together members want to be."""

    required: Level | None = None
    """All of them in one domain of this level, or none starts."""
    preferred: Level | None = None
    """In one domain of this level if one has room; else of the next wider level that has, up to the required one."""
    arrangement: Arrangement | None = None
    """``None`` leaves it to whoever is asked next (role, gang, policy), and to ``packed`` at last."""

    @model_validator(mode="after")
    def _prefers_narrower_than_it_requires(self) -> Self:
        if self.required is None and self.preferred is None and self.arrangement is None:
            raise ValueError(
                "an empty topology asks for nothing; name a required level, a preferred one or an arrangement"
            )
        if self.required is not None and self.preferred is not None and self.preferred.depth <= self.required.depth:
            raise ValueError(
                f"the preferred level {self.preferred} is not narrower than the required level {self.required}; "
                f"prefer a narrower one (of {', '.join(LEVELS)}) or leave it out"
            )
        return self
