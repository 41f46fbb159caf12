"""From the bundles that the log carries to the rules that the scheduler asks."""

from __future__ import annotations

from collections.abc import Mapping

from controlplane.policy.bundle import Bundle, load_bundle
from controlplane.policy.rules import BundleRules
from controlplane.policy.second_opinion import SecondOpinion
from controlplane.scheduler.state import Shadow, State


class Rulebook:
    """Rules by the digest of their bundle, compiled once. The text comes from the log, never from a folder."""

    def __init__(self, opinion: SecondOpinion | None = None) -> None:
        """``opinion`` hears every answer that an expression gives."""
        self._opinion = opinion
        self._compiled: dict[str, tuple[Bundle, BundleRules]] = {}

    def active(self, state: State) -> BundleRules:
        """The rules that the state says are active. Raises :class:`~controlplane.policy.problems.BundleRefused`."""
        found = self._compiled.get(state.policy_digest)
        return found[1] if found is not None else self._compile(state.policy_digest, state.policy_files)[1]

    def shadow(self, shadow: Shadow) -> tuple[Bundle, BundleRules]:
        """The bundle that is asked beside the active one, and its rules. Raises the same."""
        return self._compiled.get(shadow.digest) or self._compile(shadow.digest, shadow.files)

    def asked(self) -> list[tuple[Bundle, BundleRules]]:
        """Every bundle that was needed so far, in that order, with its rules and their counters."""
        return list(self._compiled.values())

    def _compile(self, digest: str, files: Mapping[str, str]) -> tuple[Bundle, BundleRules]:
        bundle = load_bundle(files)
        rules = bundle.rules() if self._opinion is None else self._opinion.rules(bundle)
        self._compiled[digest] = bundle, rules
        return bundle, rules
