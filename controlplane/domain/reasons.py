"""Why the answer is no.

``Reason`` is ordered: a job that cannot run for many causes has exactly one first answer, the smallest. The order goes
from what the submitter must change, through what the owner of a queue or budget must change, to what time will change.
"""

from __future__ import annotations

from enum import IntEnum


class Reason(IntEnum):
    """The ordered enum of refusals. Numbers are written to the log: add, never renumber."""

    RULE_FAILED = 5
    """A rule erred; the decision failed closed."""
    REFUSED_BY_POLICY = 10
    """The admission point answered with a refusal."""
    UNKNOWN_QUEUE = 15
    DEPENDENCY_FAILED = 17
    """A job that had to finish before it ended otherwise, or was never there: it can never run."""
    EXCEEDS_QUOTA_CEILING = 20
    """Larger than all that its queue could ever use, lent capacity included: it can never run."""
    NO_NODE_OF_MODEL = 25
    """No node, in use or idle, has a GPU of a model that the job accepts."""
    EXCEEDS_EVERY_NODE = 30
    """No node is large enough, even empty."""
    EXCEEDS_CAPACITY = 35
    """Every member fits some node, but all nodes together, empty, cannot hold the gang."""
    EXCEEDS_TOPOLOGY = 37
    """All nodes together, empty, hold the gang, but no one domain of a level that it requires does."""
    NOT_ELIGIBLE = 40
    """Nodes are large enough, but the eligibility rules refuse all of them."""
    QUEUE_HELD = 45
    """The queue is stopped by its operator."""
    DEPENDENCY = 46
    """Jobs that must be over before it starts are not."""
    ARRAY_FULL = 48
    """As many jobs of its array as may run at once hold a place."""
    QUOTA = 50
    """The queue's quota, what it may borrow included, is used up."""
    BUDGET = 55
    """It could burst, but no budget is left in this window."""
    HELD_WARM = 56
    """Room is free, but it is held warm for services, and this is none (or none that the pool is for)."""
    TOPOLOGY = 57
    """What is free holds the whole gang, but not within one domain of a level that it requires."""
    RESERVED = 58
    """Room is free, but it is kept for a job that goes first and that this one would delay."""
    BEHIND_HEAD = 59
    """Who goes before it waits for room or quota, and the rules do not let it pass."""
    CAPACITY = 60
    """It is entitled to run, but what is free does not hold the whole gang."""
    TAKE_LIMIT = 61
    """A service lacks replicas: no room is free, and the rules let it take no more from others."""
    ROOM_PROMISED = 62
    """Room is promised to it, and is held until what stands in the way has ended."""
    PROVISIONING = 65
    """Cloud capacity has been asked for and is on its way."""

    @property
    def slug(self) -> str:
        """The name as rules, JSON and people see it, such as ``exceeds-quota-ceiling``."""
        return self.name.lower().replace("_", "-")


NEVER = frozenset(
    {
        Reason.UNKNOWN_QUEUE,
        Reason.DEPENDENCY_FAILED,
        Reason.EXCEEDS_QUOTA_CEILING,
        Reason.NO_NODE_OF_MODEL,
        Reason.EXCEEDS_EVERY_NODE,
        Reason.EXCEEDS_CAPACITY,
        Reason.EXCEEDS_TOPOLOGY,
        Reason.NOT_ELIGIBLE,
    }
)
"""Reasons that time alone cannot cure: somebody must change the job, the quota or the clusters."""
