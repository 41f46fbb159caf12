"""Histories for the tests of the diff: worlds that were really simulated, in which nothing is drawn by chance."""

from __future__ import annotations

from pathlib import Path

from controlplane.eventlog.memory import MemoryLog
from controlplane.policy.bundle import Bundle
from controlplane.simulate.scenarios.bundles import bundle_of as changed
from controlplane.simulate.scenarios.story import Policy
from controlplane.simulate.simulation import Simulation
from controlplane.simulate.world import World
from tests.scenarios.policies import shipped

MINUTE, HOUR = 60_000, 3_600_000
Plain = dict[str, object]
_SHAPE: Plain = {"cpu_milli": 64_000, "memory_bytes": 2**38, "gpus": 4, "gpu_model": "A100"}


def job(at_ms: int, name: str, gpus: int = 1, *, runs: int | None = HOUR, fails: bool = False, **spec: object) -> Plain:
    """A scripted job of one member, of queue ``team`` unless something else is said."""
    asked = {"name": name, "queue": "team", "roles": [{"cpu_milli": 1_000, "gpus": gpus}], **spec}
    return {"at_ms": at_ms, "spec": asked, "runtime_ms": runs, "fails": fails}


def home(nodes: int = 2, **config: object) -> Plain:
    """A cluster of one's own: nodes of four GPUs."""
    groups = [{"count": nodes, "prefix": "n", "flavor": "a100", "shape": _SHAPE}]
    return {"name": "home", "config": {"nodes": groups, **config}}


def cloud(lead_ms: int = 2 * MINUTE, **config: object) -> Plain:
    """A cluster that rents nodes of four GPUs for ten dollars an hour."""
    offer = {"name": "a100-4", "flavor": "a100-cloud", "shape": _SHAPE, "max_nodes": 4, "lead_time_ms": lead_ms}
    offers = [{**offer, "price_micro_usd_per_hour": 10_000_000}]
    return {"name": "cloud", "site": "cloud", "idle_release_ms": 5 * MINUTE, "config": config, "offers": offers}


def world(jobs: list[Plain], *clusters: Plain, **more: object) -> World:
    """A world of these clusters (two nodes at home if none) and one queue, unless something else is said."""
    plain: Plain = {
        "name": "history",
        "clusters": [*clusters] or [home()],
        "queues": [{"name": "team"}],
        "workload": {"jobs": jobs},
        **more,
    }
    return World.model_validate(plain)


def lived(of: World, bundle: Bundle, folder: Path = Path()) -> MemoryLog:
    """The log of a world under a bundle; its paths are relative to the folder."""
    log = MemoryLog()
    Simulation(of, folder / "world.yaml", bundle, log).run()
    return log


def bundle_of(name: str, params: Plain, rules: Plain | None = None) -> Bundle:
    """A bundle that is shipped, with other defaults of its parameters and other rules at some points."""
    return changed(Policy(name, params, rules or {}), shipped)
