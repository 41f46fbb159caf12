"""From the bundle that the log carries to the rules that the scheduler asks."""

from __future__ import annotations

from controlplane.policy.bundle import load_bundle
from controlplane.policy.rules import BundleRules
from controlplane.scheduler.state import State


class Rulebook:
    """Rules by the digest of their bundle, compiled once. The text comes from the log, never from a folder."""

    def __init__(self) -> None:
        self._compiled: dict[str, BundleRules] = {}

    def active(self, state: State) -> BundleRules:
        """The rules that the state says are active. Raises :class:`~controlplane.policy.problems.BundleRefused`."""
        found = self._compiled.get(state.policy_digest)
        if found is None:
            found = self._compiled[state.policy_digest] = load_bundle(state.policy_files).rules()
        return found
