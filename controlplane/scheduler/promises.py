"""Promises of quota that are larger than what there is. They are reported and not refused: not everybody comes at once.

What there is: owned nodes that are not lost, whether ready or cordoned, and all that the offers of the clouds would
rent out. Nodes that are rented now do not count beside the offers that they come from, so that renting changes nothing.
"""

from __future__ import annotations

from controlplane.domain.events import OverPromise
from controlplane.domain.quantities import CPU, GPU, MEMORY, MILLI
from controlplane.domain.queues import ANY_FLAVOR
from controlplane.scheduler.quota import Key, over_promised
from controlplane.scheduler.state import State


def over_promises(state: State) -> tuple[OverPromise, ...]:
    """By flavor and resource, sorted; none while no node is known yet, since clusters report after queues exist."""
    if not any(state.owned.values()):
        return ()
    found = over_promised(state.tree, _there(state))
    return tuple(OverPromise(flavor=key[0], resource=key[1], promised=all_, there=there) for key, all_, there in found)


def _there(state: State) -> dict[Key, int]:
    """(flavor or any, resource) -> amount."""
    there = dict(state.owned)
    for _, spec in sorted(state.clusters.items()):
        for offer in spec.offers:
            shape = offer.shape
            amounts = {CPU: shape.cpu_milli, MEMORY: shape.memory_bytes, GPU: shape.gpus * MILLI, **shape.other}
            for resource, amount in amounts.items():
                key = (offer.flavor, resource)
                there[key] = there.get(key, 0) + offer.max_nodes * amount
    for (_, resource), amount in list(there.items()):
        there[(ANY_FLAVOR, resource)] = there.get((ANY_FLAVOR, resource), 0) + amount
    return there
