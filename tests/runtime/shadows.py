"""Generated worlds in which a bundle is asked beside the active rules, another one every few cycles.

The naive model is a cycle that remembers nothing: at each tick the same is decided once more from a snapshot, by a
:class:`Cycles` that has never seen a cycle.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from controlplane.domain.events import Event, PolicyShadowed, ShadowDecided, Ticked
from controlplane.policy.bundle import Bundle, load_bundle, read_bundle_folder
from controlplane.policy.rules import BundleRules
from controlplane.runtime.rulebook import Rulebook
from controlplane.runtime.shadow import Cycles, Decided
from controlplane.scheduler.decide import decide
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.state import State
from tests.scheduler.worlds import World
from tests.twins.plain_rules import PlainRules

POLICIES = Path(__file__).resolve().parents[2] / "policies"
CANDIDATES = (
    "default",
    "examples/strict-fifo",
    "examples/slurm-fair-share",
    "examples/random",
    "examples/fragmentation-descent",
)
CYCLES_EACH = 6


@lru_cache
def shipped(folder: str) -> Bundle:
    """A bundle that ships; the default one meddles from the first minute here."""
    files = read_bundle_folder(POLICIES / folder)
    if folder == "default":
        text = files["bundle.yaml"]
        for slow in ("default: 120000", "default: 300000", "default: 1800000"):
            text = text.replace(slow, "default: 0")
        files["bundle.yaml"] = text
    return load_bundle({path: text for path, text in files.items() if not path.endswith(".tests.yaml")})


def shadowing(bundle: Bundle) -> PolicyShadowed:
    """The event that sets a bundle beside the active one."""
    return PolicyShadowed(name=bundle.name, digest=bundle.digest, files=bundle.files)


class TwinBook(Rulebook):
    """The active rules are those in Python that a world has."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def active(self, state: State) -> BundleRules:
        rules: PlainRules = self._world.rules
        return rules  # type: ignore[return-value]  # both are what the scheduler's port asks for


class ShadowedWorld(World):
    """See the module. ``differed`` holds what was told of shadows."""

    def __init__(self, variant: int) -> None:
        self.differed: list[ShadowDecided] = []
        self._cycles: Cycles | None = None
        self._ticks = 0
        super().__init__(variant, is_checked=False)

    def cycle(self, now_ms: int | None = None) -> list[Event]:
        """As in the core; what it decides is decided again without memory, and the rest without a shadow."""
        if self._ticks % CYCLES_EACH == 0:
            self.tell(shadowing(shipped(CANDIDATES[(self._ticks // CYCLES_EACH + len(self.told)) % len(CANDIDATES)])))
        self._ticks += 1
        self._cycles = self._cycles or Cycles(TwinBook(self))
        self.tell(Ticked(now_ms=self.state.now_ms if now_ms is None else now_ms))
        before = take(self.state)
        decided = self._cycles.decide(self.state)
        assert take(self.state) == before, "deciding under a shadow changed the state"
        anew = Cycles(TwinBook(self)).decide(restore(before))
        assert bytes_of(decided) == bytes_of(anew), f"without memory: {bytes_of(anew)} and not {bytes_of(decided)}"
        assert decided.failure is None
        told = [decision.event for decision in decided.decisions if isinstance(decision.event, ShadowDecided)]
        alone = decide(restore(before), self.rules).decisions
        active = decided.decisions[: len(decided.decisions) - len(told)]
        assert [d.payload for d in alone] == [d.payload for d in active], "the active rules felt the shadow"
        self.differed.extend(told)
        self.decided = [decision.event for decision in active]
        for decision in decided.decisions:
            self.tell(decision.event)
        return self.decided[:-1]


def bytes_of(decided: Decided) -> list[tuple[str, bytes]]:
    """What was decided, as types and bytes."""
    return [(decision.event.TYPE, decision.payload) for decision in decided.decisions]
