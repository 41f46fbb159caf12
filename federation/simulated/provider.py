"""The cloud behind a simulated cluster: what was rented, for how long, and the bill.

It keeps the account that a real provider keeps, independently of what the plane believes, so that the two can be
compared to the micro-dollar. It may not schedule anything: the cluster tells it what happened and when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.domain.clusters import Offer
from controlplane.domain.quantities import ceil_div, cost_micro_usd
from federation.port import CapacityWanted, Refused, SeenCapacityPhase


@dataclass(slots=True)
class Rental:
    """One node of a request: charged from ``from_ms`` until ``until_ms`` (``None`` while it is there)."""

    from_ms: int
    until_ms: int | None = None


@dataclass(slots=True)
class Order:
    """One capacity request, as the provider knows it."""

    request: str
    offer: Offer
    names: tuple[str, ...]
    deadline_ms: int
    phase: SeenCapacityPhase = SeenCapacityPhase.ASKED
    detail: str = ""
    rentals: dict[str, Rental] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Nothing of it is there and nothing will be."""
        return self.phase in (SeenCapacityPhase.FAILED, SeenCapacityPhase.RELEASED)

    @property
    def may_arrive(self) -> bool:
        """Nodes that are on their way still come."""
        return self.phase in (SeenCapacityPhase.ASKED, SeenCapacityPhase.PROVIDED)

    @property
    def is_empty(self) -> bool:
        """None of its nodes is there, and none is still to come."""
        gone = all(rental.until_ms is not None for rental in self.rentals.values())
        return gone and (len(self.rentals) == len(self.names) or not self.may_arrive)


class Provider:
    """Orders and their bill."""

    def __init__(self, cluster: str, offers: Sequence[Offer], billing_ms: int) -> None:
        self._cluster = cluster
        self._offers = {offer.name: offer for offer in offers}
        self._billing_ms = billing_ms
        self.orders: dict[str, Order] = {}

    def take(self, wanted: CapacityWanted) -> Order:
        """Accept a new request. Raises :class:`~federation.port.Refused`: no such offer, or not so many nodes left."""
        offer = self._offers.get(wanted.offer)
        if offer is None:
            raise Refused(f"cluster {self._cluster!r} has no offer {wanted.offer!r}")
        taken = sum(self._nodes_of(order) for order in self.orders.values() if order.offer.name == offer.name)
        if taken + wanted.nodes > offer.max_nodes:
            raise Refused(f"offer {offer.name!r} has {offer.max_nodes - taken} nodes left, {wanted.nodes} were asked")
        names = tuple(f"{self._cluster}/{wanted.request}.{number}" for number in range(wanted.nodes))
        order = self.orders[wanted.request] = Order(wanted.request, offer, names, wanted.deadline_ms)
        return order

    @staticmethod
    def _nodes_of(order: Order) -> int:
        """Nodes that are there or still to come."""
        ended = sum(1 for rental in order.rentals.values() if rental.until_ms is not None)
        return 0 if order.is_over else len(order.names) - ended

    def charge_micro_usd(self, request: str, now_ms: int) -> int:
        """The charge of one request up to now; rounded up once per request, so that it never exceeds its promise."""
        order = self.orders.get(request)
        if order is None:
            return 0
        billing = self._billing_ms
        total_ms = sum(
            ceil_div((now_ms if rental.until_ms is None else rental.until_ms) - rental.from_ms, billing) * billing
            for rental in order.rentals.values()
        )
        return cost_micro_usd(order.offer.price_micro_usd_per_hour, total_ms)

    def bill_micro_usd(self, now_ms: int) -> int:
        """The charge of all requests up to now."""
        return sum(self.charge_micro_usd(request, now_ms) for request in self.orders)
