"""Rules that erred, as the log tells of them: what each said, and since when.

A rule that errs fails closed and the cycle goes on; the log names it once for each policy, in the cycle in which it
first stood behind a decision. How often it has erred since then the log does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from controlplane.audit.spans import instant
from controlplane.domain.events import CycleDecided, Event


@dataclass(frozen=True, slots=True)
class RuleFault:
    """One rule that erred in one way."""

    what: str
    """The sentence of the log: ``file:line``, what it came to, and why."""
    policy: str
    """Digest of the bundle that the rule belongs to."""
    since_ms: int | None = None
    """The instant of the cycle that names it; ``None`` if none of those that were read does."""
    position: int | None = None
    """Of that cycle's record."""

    @property
    def rule(self) -> str:
        """``file:line`` of the rule, or the name of the point."""
        return self.what.partition(": ")[0]

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"rule": self.rule, "what": self.what, "since_ms": self.since_ms, "position": self.position}

    def sentence(self, otherwise: str) -> str:
        """For a person; ``otherwise`` says since when where the log does not."""
        since = f"since {instant(self.since_ms)}" if self.since_ms is not None else otherwise
        return f"{self.what} ({since})"


class RuleFaults:
    """Those of a stretch of log, which is fed in its order."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], RuleFault] = {}
        """By policy and sentence."""

    def see(self, position: int, event: Event) -> None:
        """One event, and where it stands."""
        if isinstance(event, CycleDecided):
            for what in event.faults:
                key = (event.policy, what)
                self._seen.setdefault(key, RuleFault(what, event.policy, event.now_ms, position))

    def __iter__(self) -> Iterator[RuleFault]:
        """Of every policy, in the order in which they were named."""
        return iter(self._seen.values())

    def known(self, policy: str, sentences: Iterable[str]) -> list[RuleFault]:
        """Those that are known to have erred under a policy, of which some may have been named before what was fed."""
        return [self._seen.get((policy, what), RuleFault(what, policy)) for what in sentences]
