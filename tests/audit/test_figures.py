"""Figures count what held from one instant to the next, whenever the next cycle is."""

from __future__ import annotations

from typing import cast

from controlplane.audit.figures import Figures
from controlplane.domain.clusters import ClusterSpec
from controlplane.domain.events import ClusterConfigured, Event, LeasePhase, ServiceObserved
from controlplane.scheduler.fold import apply
from controlplane.scheduler.state import State
from tests.scheduler.core import HOME, Core, gpus, job
from tests.scheduler.test_services import service
from tests.twins.plain_rules import PlainRules

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


def test_a_service_is_measured_against_its_objective() -> None:
    core = Core(PlainRules(may_scale=True, replicas=lambda service, now: 3))
    core.home(a=gpus(8))
    core.queue("team")
    api = core.submit(service(1, 4))
    core.submit(job(1))
    core.cycle(0)
    for at, p99_ms in enumerate((400, 500, 501), start=1):
        core.signal(api, p99_ms, at_ms=at)
    core.tell(ServiceObserved(cluster=HOME, lease=core.lease_of(api), observed_ms=9, p99_ms=900, objective_ms=1_000))
    core.signal(api, queue_depth=3, at_ms=10)
    core.cycle(MINUTE)
    state, figures = State(), Figures()
    for position, event in enumerate(core.told, start=1):
        apply(state, position, event)
        figures.see(state, event)
    (served,) = cast("dict[str, dict[str, object]]", figures.summary(state)["services"]).values()
    assert served == {
        "name": "api",
        "signals": 4,
        "within_objective": 3,
        "p99_max_ms": 900,
        "changes": 1,
        "wanted_max": 3,
    }


def test_nodes_of_one_name_count_each() -> None:
    """Sixteen GPUs in two clusters, half of them used."""
    core = Core()
    core.home(n1=gpus(8))
    core.tell(ClusterConfigured(spec=ClusterSpec(name="other")))
    core.node("n1", gpus(8), cluster="other")
    core.queue("team")
    core.submit(job(8))
    core.cycle(0)
    core.cycle(MINUTE)
    assert utilisation(core.told) == {"home": 0.5, "cloud": 0.0}
