"""The tree of queues. A leaf takes jobs; an interior node is a cohort that shares among its children."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from controlplane.domain.model import Model
from controlplane.domain.quantities import MAX_MS, Amount, Name


class Quota(Model):
    """What one queue may use of one resource of one flavor, in Kueue's meanings."""

    nominal: Amount
    """Its own, which it can always get back. For a cohort: extra, shared by all below it."""
    borrowing_limit: Amount | None = None
    """At most this much above nominal; ``None`` is no limit."""
    lending_limit: Amount | None = None
    """At most this much of idle nominal is lent; ``None`` lends all."""


class QueueSpec(Model):
    """A queue as its operator configures it.

    A resource of a flavor that is not listed is not limited here. ``ANY`` as the flavor counts all flavors together.
    """

    name: Name
    parent: Name | None = None
    """``None`` hangs it under the root."""
    weight: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 1
    quotas: dict[Name, dict[Name, Quota]] = Field(default_factory=dict)
    """flavor -> resource (``gpu`` in milli-GPU, ``cpu`` in milli-CPU, ``memory`` in bytes, or a named one) -> quota."""
    held: bool = False
    """True stops new placements from this queue and all below."""


class HistorySpec(Model):
    """How long what queues have used is remembered, for rules that order by it."""

    half_life_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)]
    """After this long, what was used counts half."""
    sample_ms: Annotated[int, Field(ge=1, le=MAX_MS, strict=True)]
    """How often what is used is looked at."""


ANY_FLAVOR = "any"
