"""The quota algebra, said in another way: which usages are allowed at all, and how much more would still be.

A usage is allowed when no node of the tree is charged more than it may have, where a child's charge above what it keeps
for itself is its parent's. How much more a queue may use is found by trying. Nothing here is shared with the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.domain.queues import QueueSpec, Quota

Key = tuple[str, str]
TOP = ""
"""Above all queues that have no parent."""


@dataclass(frozen=True)
class NaiveQuota:
    """One key over one tree. ``used`` is by queue, its own usage only, in the unit of the resource."""

    specs: Mapping[str, QueueSpec]
    key: Key
    used: Mapping[str, int]

    def children(self, name: str) -> list[str]:
        """Queues right below."""
        return [child for child, spec in self.specs.items() if (spec.parent or TOP) == name]

    def quota(self, name: str) -> Quota | None:
        """What is listed for the key at a queue."""
        return self.specs[name].quotas.get(self.key[0], {}).get(self.key[1]) if name != TOP else None

    def is_limited(self, name: str) -> bool:
        """Whether the queue or any above it lists the key."""
        at: str | None = name
        while at is not None:
            if self.quota(at) is not None:
                return True
            at = self.specs[at].parent
        return False

    def pool(self, name: str) -> int:
        """What the queue and those below bring in together, less what those keep for themselves."""
        quota = self.quota(name)
        own = quota.nominal if quota is not None else 0
        return own + sum(self.pool(child) - self.kept(child) for child in self.children(name))

    def kept(self, name: str) -> int:
        """What it does not lend."""
        quota = self.quota(name)
        if quota is None or quota.lending_limit is None:
            return 0
        return max(0, self.pool(name) - quota.lending_limit)

    def charge(self, name: str) -> int:
        """Its own usage and what overflows from below."""
        own = self.used.get(name, 0) if name != TOP and self.is_limited(name) else 0
        return own + sum(max(0, self.charge(child) - self.kept(child)) for child in self.children(name))

    def is_allowed(self) -> bool:
        """Whether no node is charged more than it may have."""
        return all(self.is_within(name) for name in (TOP, *self.specs))

    def is_within(self, name: str) -> bool:
        """Whether the queue is charged no more than it may have and borrow."""
        if name == TOP:
            return self.charge(TOP) <= self.pool(TOP)
        quota = self.quota(name)
        if quota is None or quota.borrowing_limit is None:
            return True
        return self.charge(name) <= self.pool(name) + quota.borrowing_limit

    def room(self, name: str, most: int) -> int:
        """How much more the queue may use, found by trying up to ``most``. For a usage that is allowed."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._with(name, middle).is_allowed() else (low, middle - 1)
        return low

    def _with(self, name: str, more: int) -> NaiveQuota:
        return NaiveQuota(self.specs, self.key, {**self.used, name: self.used.get(name, 0) + more})
