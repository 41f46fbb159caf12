"""Figures count what held from one instant to the next, whenever the next cycle is."""

from __future__ import annotations

from controlplane.audit.figures import Figures
from controlplane.domain.events import Event, LeasePhase
from controlplane.scheduler.fold import apply
from controlplane.scheduler.state import State
from tests.scheduler.core import Core, gpus, job

MINUTE = 60_000


def utilisation(events: list[Event]) -> object:
    state, figures = State(), Figures()
    for position, event in enumerate(events, start=1):
        apply(state, position, event)
        figures.see(state, event)
    return figures.summary(state)["utilisation"]


def test_a_lease_counts_until_it_ended_and_not_until_the_tick_before() -> None:
    """Eight of sixteen GPUs for a minute, then all sixteen for a minute; no tick after the last end."""
    core = Core()
    core.home(a=gpus(8), b=gpus(8))
    core.queue("team")
    first = core.submit(job(8))
    core.cycle(0)
    second = core.submit(job(8, members=2))
    core.cycle(0)
    core.report(core.lease_of(first), LeasePhase.RUNNING, LeasePhase.FINISHED, at_ms=MINUTE)
    core.cycle(MINUTE)
    core.report(core.lease_of(second), LeasePhase.RUNNING, LeasePhase.FINISHED, at_ms=2 * MINUTE)
    assert utilisation(core.told) == {"home": 0.75, "cloud": 0.0}
