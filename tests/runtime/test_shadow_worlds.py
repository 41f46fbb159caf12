"""In any world: a shadow changes nothing, is told alike with and without memory, and the active rules feel nothing."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.runtime import shadow
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.decide import Decision
from controlplane.scheduler.state import Job, Shadow, State
from tests.runtime.shadows import ShadowedWorld
from tests.scheduler.worlds import RULES, SCRIPTS, Script, script_of

Patch = pytest.MonkeyPatch
WORLDS_SEARCHED = 20


@pytest.mark.slow
@given(script=SCRIPTS, variant=st.integers(0, len(RULES) - 1))
def test_a_shadow_is_a_function_of_the_state_and_reaches_nobody(script: Script, variant: int) -> None:
    """Kills every mutant below."""
    ShadowedWorld(variant).play(script)


@pytest.mark.slow
def test_the_worlds_tell_of_differences_of_many_kinds() -> None:
    told = {
        (difference.what, difference.by_shadow)
        for seed in range(8)
        for event in played(seed).differed
        for difference in event.differences
    }
    assert {("start", True), ("start", False), ("elsewhere", True)} <= told
    assert len({what for what, _ in told}) >= 6


def played(seed: int) -> ShadowedWorld:
    world = ShadowedWorld(seed)
    world.play(script_of(seed))
    return world


def nodes_are_not_followed(patch: Patch) -> None:
    patch.setattr(shadow._Beside, "follow", lambda self, state, active: self.agenda.refresh_nodes(state))


def who_came_is_not_passed_on(patch: Patch) -> None:
    beside = shadow.Cycles._decide_beside

    def forgetful(
        self: shadow.Cycles, state: State, of: Shadow, agenda: Agenda, began: list[Job], core: str
    ) -> tuple[Decision, ...]:
        return beside(self, state, of, agenda, [], core)

    patch.setattr(shadow.Cycles, "_decide_beside", forgetful)


def the_agenda_is_not_given_back(patch: Patch) -> None:
    """The active rules go on with what the shadow's remember."""
    decide = shadow.Cycles.decide

    def mixed(self: shadow.Cycles, state: State) -> shadow.Decided:
        decided = decide(self, state)
        if self._beside is not None and state.agenda is not None:
            self._beside.agenda.rules, state.agenda = state.agenda.rules, self._beside.agenda
        return decided

    patch.setattr(shadow.Cycles, "decide", mixed)


MUTANTS: tuple[tuple[Callable[[Patch], None], str], ...] = (
    (nodes_are_not_followed, r"without memory"),
    (who_came_is_not_passed_on, r"without memory"),
    (the_agenda_is_not_given_back, r"felt the shadow|without memory"),
)


@pytest.mark.parametrize(("mutant", "says"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
def test_the_worlds_would_see(mutant: Callable[[Patch], None], says: str, monkeypatch: Patch) -> None:
    mutant(monkeypatch)
    found = ""
    for seed in range(WORLDS_SEARCHED):
        try:
            played(seed)
        except AssertionError as error:
            found = str(error)
            break
    assert re.search(says, found), f"the mutant lives, or dies of something else: {found!r}"
