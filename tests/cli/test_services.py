"""A simulated morning of a service beside training: what its signals do, and what a person is told of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from controlplane.domain.codec import decode
from controlplane.domain.events import Event, LeaseGranted, LeaseGrown, LeaseShrunk, ServiceObserved, ServiceScaled
from controlplane.eventlog import open_log
from tests.cli.conftest import Tidegate
from tests.cli.worlds import POLICIES, Plain, part, write_world

MINUTE = 60_000
_SHAPE = {"cpu_milli": 64_000, "memory_bytes": 2**38, "gpus": 8, "gpu_model": "A100"}
_WORLD: Plain = {
    "name": "morning",
    "policies": str(POLICIES / "default"),
    "until_ms": 90 * MINUTE,
    "tick_ms": 5_000,
    "clusters": [{"name": "idc", "config": {"nodes": [{"count": 2, "flavor": "a100", "shape": _SHAPE}]}}],
    "queues": [
        {"name": "company"},
        {"name": "serving", "parent": "company"},
        {"name": "research", "parent": "company"},
    ],
    "warm_pools": [{"name": "spare", "cluster": "idc", "flavor": "a100", "blocks": 2, "queue": "serving"}],
    "services": [
        {
            "spec": {
                "name": "chat",
                "queue": "serving",
                "priority": 100,
                "roles": [{"min_count": 2, "count": 12, "gpus": 1}],
                "service": {"latency_class": "interactive", "objective_ms": 500},
            },
            "load": {
                "every_ms": 15_000,
                "latency_ms": 100,
                "replica_rate_milli": 10_000,
                "curve": [
                    {"at_ms": 0, "rate_milli": 5_000},
                    {"at_ms": 30 * MINUTE, "rate_milli": 60_000},
                    {"at_ms": 40 * MINUTE, "rate_milli": 60_000},
                    {"at_ms": 60 * MINUTE, "rate_milli": 3_000},
                ],
            },
        }
    ],
    "workload": {
        "jobs": [
            {
                "at_ms": 60_000,
                "runtime_ms": None,
                "spec": {"name": "train", "queue": "research", "roles": [{"min_count": 4, "count": 16, "gpus": 1}]},
            }
        ]
    },
}


@pytest.fixture(scope="module")
def morning(tidegate: Tidegate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the world."""
    folder = tmp_path_factory.mktemp("morning")
    log = folder / "morning.db"
    assert tidegate("simulate", write_world(folder, _WORLD), "--log", log, "--json").code == 0
    return log


@pytest.fixture(scope="module")
def told(morning: Path) -> list[Event]:
    with open_log(str(morning), create=False) as log:
        return [decode(record.type, record.payload) for record in log.read()]


def test_latency_goes_up_with_load_and_down_when_replicas_are_added(told: list[Event]) -> None:
    chat = next(event.lease for event in told if isinstance(event, ServiceObserved))
    replicas, last_ms, downs = 0, 0, 0
    seen: dict[int, list[int]] = {}
    """Replicas that it has grown to -> what was seen before and after."""
    for event in told:
        if isinstance(event, ServiceObserved):
            last_ms = event.p99_ms or 0
            seen.setdefault(replicas, []).append(last_ms)
        elif isinstance(event, LeaseGranted | LeaseGrown | LeaseShrunk) and event.lease == chat:
            is_less = isinstance(event, LeaseShrunk)
            downs += is_less
            replicas += -len(event.members) if is_less else len(event.members)
            if isinstance(event, LeaseGrown):
                seen[replicas] = [last_ms]
    grown = {count: latencies for count, latencies in seen.items() if latencies[0] > 500 and count > 2}
    assert len(grown) >= 3
    assert downs >= 3
    for count, (late_ms, *after) in grown.items():
        assert min(after[:3]) < late_ms, f"{count} replicas did not help: {late_ms} ms before, then {after[:3]}"
        climbing = after[2:10]
        assert climbing == sorted(climbing) or count == max(grown), "the load goes up until there are more again"


def test_the_rules_keep_it_within_its_objective_and_training_has_the_rest(tidegate: Tidegate, morning: Path) -> None:
    answer = tidegate("replay", "--verify", "--log", morning, "--json").answer()
    assert answer["ok"] is True
    (chat,) = cast("dict[str, dict[str, int]]", answer["services"]).values()
    assert chat["signals"] > 300
    assert chat["within_objective"] / chat["signals"] > 0.95
    assert chat["wanted_max"] > 6
    assert cast("dict[str, float]", answer["utilisation"])["home"] > 0.85
    assert answer["preemptions"] == 0


def test_at_most_one_change_in_a_cooldown(told: list[Event]) -> None:
    at = [event.observed_ms for event in told if isinstance(event, ServiceScaled)]
    assert all(at)
    gaps = [later - earlier for earlier, later in zip(cast("list[int]", at), cast("list[int]", at)[1:], strict=False)]
    assert min(gaps) > 5 * MINUTE - 30_000, "the cooldown of the default bundle, less the age of a signal"


def test_why_tells_of_each_change_with_the_rule_and_what_it_saw(tidegate: Tidegate, morning: Path) -> None:
    answer = tidegate("why", "chat", "--log", morning, "--json").answer()
    history = [str(moment["what"]) for moment in cast("list[dict[str, object]]", answer["history"])]
    scaled = [what for what in history if what.startswith("is to have")]
    assert scaled
    assert all("service-replicas.yaml:" in what and "p99" in what and "against 500 ms" in what for what in scaled)
    assert any(what.startswith("room for") and "once j" in what and "made way" in what for what in history)
    assert any("in room that others left" in what for what in history)
    assert any(what.startswith("gives back 1 member, by service-replicas.yaml") for what in history)
    assert "an interactive service whose p99 should stay within 500 ms" in str(answer["asks"])
    training = tidegate("why", "train", "--log", morning, "--json").answer()
    told = [str(moment["what"]) for moment in cast("list[dict[str, object]]", training["history"])]
    assert any(f"told to leave for {answer['job']}: preempted, by preemption-victim.yaml" in what for what in told)


def test_views_show_replicas_and_what_is_held(tidegate: Tidegate, morning: Path) -> None:
    early = ("--log", morning, "--at", "00:02:00", "--json")
    (cluster,) = cast("list[Plain]", tidegate("clusters", *early).answer()["clusters"])
    assert (cluster["gpus_warm_milli"], cluster["gpus_used_milli"]) == (2_000, 14_000)
    queues = cast("list[Plain]", tidegate("queues", *early).answer()["queues"])
    (pool,) = next(cast("list[Plain]", row["warm_pools"]) for row in queues if row["queue"] == "serving")
    assert (pool["pool"], pool["held"], pool["blocks"]) == ("spare", 2, 2)
    listed = cast("list[Plain]", tidegate("jobs", *early).answer()["listed"])
    service = {str(row["name"]): row["service"] for row in listed}
    assert service["train"] is None
    assert cast("Plain", service["chat"])["wanted"] == cast("Plain", service["chat"])["replicas"] == 2
    shown = [tidegate(command, "--log", morning, "--at", "00:02:00").out for command in ("clusters", "queues")]
    assert all("2 of 2 GPUs (spare)" in out for out in shown)
    wide = {str(row["name"]): row["members"] for row in listed}
    assert wide["train"] == 12, "as many as it has, not as many as it needs"


def test_where_there_are_no_pools_tables_are_as_they_were(tidegate: Tidegate, finished_day: Path) -> None:
    for command in ("clusters", "queues"):
        assert "warm" not in tidegate(command, "--log", finished_day).out


def changed(*path: str | int, value: object) -> Callable[[Plain], None]:
    """Puts a value into a world."""

    def change(world: Plain) -> None:
        part(world, *path[:-1])[path[-1]] = value  # type: ignore[index]

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("until_ms", value=None), ["services never end", "until_ms"]),
        (changed("services", 0, "spec", "service", value=None), ["'chat' is no service"]),
        (changed("services", 0, "spec", "estimate_ms", value=5), ["services.0.spec", "leave out estimate_ms"]),
        (changed("services", 0, "spec", "service", "latency_class", value="fast"), ["latency_class", "interactive"]),
        (changed("services", 0, "load", "curve", value=[]), ["services.0.load.curve"]),
        (changed("services", 0, "load", "latency_ms", value=0), ["services.0.load.latency_ms"]),
        (changed("warm_pools", 0, "cluster", value="nowhere"), ["'spare'", "'nowhere'"]),
        (changed("warm_pools", 0, "queue", value="nobody"), ["'spare'", "'nobody'"]),
        (changed("warm_pools", 0, "blocks", value=-1), ["warm_pools.0.blocks"]),
    ],
)
def test_a_bad_world_is_one_sentence(
    tidegate: Tidegate, tmp_path: Path, change: Callable[[Plain], None], words: list[str]
) -> None:
    world = copy.deepcopy(_WORLD)
    change(world)
    said = tidegate("simulate", write_world(tmp_path, world), "--log", tmp_path / "a.db").sentence()
    assert all(word in said for word in words), said
    assert [path.name for path in tmp_path.iterdir()] == ["world.yaml"]
