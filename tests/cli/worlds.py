"""A small world with bad luck in it, as a file: three teams, two nodes at home, a cloud, and a job that cannot wait."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import cast

POLICIES = Path(__file__).parents[2] / "policies"
Plain = dict[str, object]

_SHAPE = {"cpu_milli": 64_000, "memory_bytes": 2**38, "gpus": 4, "gpu_model": "A100"}


def _job(at_ms: int, name: str, queue: str, gpus: int, runtime_ms: int, **more: object) -> Plain:
    role = {"cpu_milli": 1_000, "gpus": gpus}
    spec = {"name": name, "queue": queue, "roles": [role], **more}
    return {"at_ms": at_ms, "spec": spec, "runtime_ms": runtime_ms}


_WORLD: Plain = {
    "name": "small",
    "policies": str(POLICIES / "default"),
    "clusters": [
        {
            "name": "idc",
            "config": {"seed": 1, "nodes": [{"count": 2, "flavor": "a100", "shape": dict(_SHAPE)}]},
        },
        {
            "name": "cloud",
            "site": "cloud",
            "config": {"seed": 2},
            "offers": [
                {
                    "name": "a100-4",
                    "flavor": "a100-cloud",
                    "shape": dict(_SHAPE),
                    "price_micro_usd_per_hour": 10_000_000,
                    "lead_time_ms": 60_000,
                    "max_nodes": 2,
                }
            ],
        },
    ],
    "queues": [
        {"name": "company"},
        {"name": "research", "parent": "company"},
        {"name": "product", "parent": "company"},
    ],
    "budgets": [{"name": "day", "limit_micro_usd": 10_000_000_000, "window_ms": 86_400_000}],
    "workload": {
        "jobs": [
            *(_job(minute * 60_000, f"train-{minute}", "research", 4, 7_200_000) for minute in range(6)),
            *(_job(minute * 90_000, f"serve-{minute}", "product", 1, 600_000) for minute in range(6)),
            {**_job(30_000, "broken", "product", 1, 60_000, max_attempts=1), "fails": True},
            _job(
                200_000, "impatient", "product", 4, 60_000, wait_limit_ms=1_000, labels={"tidegate/stay-home": "true"}
            ),
            _job(210_000, "stray", "nowhere", 1, 60_000),
        ]
    },
}


def small_world() -> Plain:
    """The world as plain values, free to change."""
    return copy.deepcopy(_WORLD)


def part(world: Plain, *path: str | int) -> Plain:
    """The map at a place of a world."""
    at: object = world
    for step in path:
        at = cast("dict[str | int, object]", at)[step]
    return cast("Plain", at)


def write_world(folder: Path, world: Plain | None = None) -> Path:
    """The world as a file of the folder. Every JSON text is YAML too, and one line holds one field."""
    path = folder / "world.yaml"
    path.write_text(json.dumps(world if world is not None else small_world(), indent=2), encoding="utf-8")
    return path


def generated_jobs(per_day: int) -> Plain:
    """A world whose jobs are drawn, from its seed."""
    world = small_world()
    queues = [{"name": "research", "share": 1, "users": 3}]
    models = [{"model": "A100", "share": 1}]
    world["workload"] = {"generate": {"days": 1, "jobs_per_day": per_day, "queues": queues, "gpu_models": models}}
    return world


def many_jobs(count: int) -> Plain:
    """A world whose log is longer, for what takes room or time."""
    world = small_world()
    world["workload"] = {
        "jobs": [_job(number * 1_000, f"j-{number}", "research", 1, 120_000) for number in range(count)]
    }
    return world
