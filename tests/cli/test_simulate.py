"""``tidegate simulate``: what is printed, what is kept, and that the three next commands work as printed."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import cast

import pytest

from tests.cli.conftest import Tidegate
from tests.cli.worlds import POLICIES, Plain, generated_jobs, many_jobs, part, small_world, write_world

KEYS = {
    "ok", "world", "seed", "log", "digest", "position", "events", "decisions", "jobs", "placements", "preemptions",
    "virtual_s", "wall_s", "jobs_per_s", "utilisation", "waits", "longest_wait", "burst", "policy", "rule_faults",
}  # fmt: skip
MEASURED = {"wall_s", "jobs_per_s", "log"}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_answer_has_the_documented_keys(tidegate: Tidegate, tmp_path: Path) -> None:
    answer = tidegate("simulate", write_world(tmp_path), "--log", tmp_path / "a.db", "--json").answer()
    assert set(answer) >= KEYS
    assert answer["ok"] is True
    assert part(answer, "jobs") == {
        "submitted": 15, "running": 0, "waiting": 0, "finished": 12, "failed": 1, "cancelled": 0, "expired": 1,
        "refused": 1,
    }  # fmt: skip
    assert answer["events"] == answer["position"]
    assert {"gpu_hours", "micro_usd"} <= set(part(answer, "burst"))
    assert part(answer, "burst")["micro_usd"] != 0
    assert {"name", "digest", "asked", "evaluated"} <= set(part(answer, "policy"))
    assert set(part(answer, "waits", "research")) >= {"p50_ms", "p90_ms", "max_ms", "started", "waiting"}


def test_two_runs_say_the_same_apart_from_the_time_they_took(tidegate: Tidegate, tmp_path: Path) -> None:
    world = write_world(tmp_path)
    first, second = (
        tidegate("simulate", world, "--log", tmp_path / name, "--json").answer() for name in ("a.db", "b.db")
    )
    for key in MEASURED:
        del first[key], second[key]
    assert first == second


def test_people_are_told_what_happened(tidegate: Tidegate, tmp_path: Path) -> None:
    said = tidegate("simulate", write_world(tmp_path), "--log", tmp_path / "a.db")
    assert (said.code, said.err) == (0, "")
    assert "15 submitted: 12 finished, 1 failed, 1 expired, 1 refused" in said.out
    assert "failed: ended in an error, after up to 3 attempts" in said.out
    assert re.search(r"^small: 7 min \d\d s of submissions; the last job ended .+ later\.$", said.out, re.MULTILINE)
    assert re.search(
        r"for \$\d+\.\d\d, in \d+ requests?\nBudget       day: \$10,000.00 for every 1 d 00 h; spent \$", said.out
    )
    assert max(len(line) for line in said.out.splitlines() if str(tmp_path) not in line) < 110
    for word in ("Utilisation", "Burst", "Decisions", "Digest", "p50", "p90", "max", "research", "product", "$"):
        assert word in said.out


def test_money_is_told_window_by_window(tidegate: Tidegate, tmp_path: Path) -> None:
    answer = tidegate("simulate", write_world(tmp_path), "--log", tmp_path / "a.db", "--json").answer()
    [budget] = cast("list[dict[str, object]]", answer["budgets"])
    spent = cast("dict[str, int]", budget["spent_micro_usd"])
    assert sum(spent.values()) == part(answer, "burst")["micro_usd"]
    assert 0 < cast("float", answer["last_submitted_s"]) < cast("float", answer["last_ended_s"])
    assert cast("float", answer["last_ended_s"]) <= cast("float", answer["virtual_s"])


def test_jobs_that_have_not_ended_are_counted(tidegate: Tidegate, tmp_path: Path) -> None:
    world = {**small_world(), "until_ms": 600_000}
    said = tidegate("simulate", write_world(tmp_path, world), "--log", tmp_path / "a.db").out
    assert re.match(
        r"small: 7 min \d\d s of submissions; \d+ jobs had not ended when the run did, 2 min \d\d s later", said
    )


def test_the_version_is_told(tidegate: Tidegate) -> None:
    said = tidegate("--version")
    assert (said.code, said.err) == (0, "")
    assert re.fullmatch(r"tidegate \S+, core \d+\n", said.out)


def test_the_three_next_commands_work_as_printed(tidegate: Tidegate, tmp_path: Path) -> None:
    log = tmp_path / "a log with spaces.db"
    said = tidegate("simulate", write_world(tmp_path), "--log", log)
    commands = [shlex.split(line) for line in said.out.partition("\nTry next")[2].splitlines()[1:]]
    assert [words[:2] for words in commands] == [["tidegate", "why"], ["tidegate", "replay"], ["tidegate", "log"]]
    for words in commands:
        assert tidegate(*words[1:]).code == 0


def test_the_next_job_to_ask_about_is_the_one_that_waited_longest(tidegate: Tidegate, finished_day: Path) -> None:
    answer = tidegate("replay", "--log", finished_day, "--json").answer()
    longest = part(answer, "longest_wait")
    waits = part(answer, "waits")
    assert longest["wait_ms"] == max(int(str(part(waits, queue)["max_ms"])) for queue in waits)
    account = tidegate("why", str(longest["job"]), "--log", finished_day, "--json").answer()
    assert account["waited_ms"] == longest["wait_ms"]


def test_the_log_stands_alone(tidegate: Tidegate, tmp_path: Path) -> None:
    world = write_world(tmp_path)
    tidegate("simulate", world, "--log", tmp_path / "a.db")
    assert names(tmp_path) == ["a.db", "world.yaml"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_simulation_can_be_kept_as_an_exported_file(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, name: str
) -> None:
    answer = tidegate("simulate", write_world(tmp_path), "--log", tmp_path / name, "--json").answer()
    assert names(tmp_path) == [name, "world.yaml"]
    assert answer["digest"] == tidegate("log", "verify", "--log", finished_day, "--json").answer()["digest"]
    assert tidegate("replay", "--verify", "--log", tmp_path / name).code == 0


def test_a_simulation_in_memory_leaves_nothing_and_promises_nothing(tidegate: Tidegate, tmp_path: Path) -> None:
    said = tidegate("simulate", write_world(tmp_path), "--log", "memory:")
    assert said.code == 0
    assert "Try next" not in said.out
    assert names(tmp_path) == ["world.yaml"]


@pytest.mark.parametrize("name", ["day.db", "day.jsonl"])
def test_a_log_that_is_there_is_never_written_over(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, name: str
) -> None:
    world = write_world(tmp_path)
    log = tmp_path / name
    if name == "day.db":
        log.write_bytes(finished_day.read_bytes())
    else:
        tidegate("log", "export", log, "--log", finished_day)
    before = log.read_bytes()
    sentence = tidegate("simulate", world, "--log", log).sentence()
    assert str(log) in sentence
    assert "already" in sentence
    assert "name another" in sentence
    assert log.read_bytes() == before


def test_an_empty_log_is_filled(tidegate: Tidegate, tmp_path: Path) -> None:
    log = tmp_path / "a.db"
    log.touch()
    tidegate("simulate", write_world(tmp_path), "--log", log)
    assert names(tmp_path) == ["a.db", "world.yaml"]
    assert tidegate("replay", "--verify", "--log", log).code == 0


def test_the_seed_of_the_command_takes_the_place_of_the_worlds(tidegate: Tidegate, tmp_path: Path) -> None:
    world = {**generated_jobs(per_day=10), "seed": 3}
    path = write_world(tmp_path, world)
    answers = [
        tidegate("simulate", path, "--log", "memory:", "--json", *more).answer()
        for more in ([], ["--seed", "3"], ["--seed", "4"])
    ]
    assert [answer["seed"] for answer in answers] == [3, 3, 4]
    assert answers[0]["digest"] == answers[1]["digest"] != answers[2]["digest"]


def test_the_rules_of_the_command_take_the_place_of_the_worlds(tidegate: Tidegate, tmp_path: Path) -> None:
    folder = POLICIES / "examples" / "strict-fifo"
    answer = tidegate("simulate", write_world(tmp_path), "--log", "memory:", "--policies", folder, "--json").answer()
    assert part(answer, "policy")["name"] == "strict-fifo"


@pytest.mark.services
def test_a_simulation_goes_to_postgresql_as_a_whole(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    from tests.services import postgres

    with postgres() as url:
        world = write_world(tmp_path)
        answer = tidegate("simulate", world, "--log", url, "--json").answer()
        assert answer["digest"] == tidegate("log", "verify", "--log", finished_day, "--json").answer()["digest"]
        assert tidegate("replay", "--verify", "--log", url).code == 0
        assert "already holds a log of" in tidegate("simulate", world, "--log", url).sentence()


def test_a_world_without_jobs_is_a_log_too(tidegate: Tidegate, tmp_path: Path) -> None:
    said = tidegate("simulate", write_world(tmp_path, many_jobs(0)), "--log", tmp_path / "a.db")
    assert (said.code, said.err) == (0, "")
    assert "0 submitted" in said.out
    for line in said.out.partition("\nTry next")[2].splitlines()[1:]:
        assert tidegate(*shlex.split(line)[1:]).code == 0


def twice_at_home(*names: tuple[str, str]) -> Plain:
    """The small world with a second cluster like the first; the names of the two nodes of each."""
    world = small_world()
    clusters = cast("list[Plain]", world["clusters"])
    clusters.insert(1, {**copy.deepcopy(clusters[0]), "name": "west"})
    for number, nodes in enumerate(names):
        shape = part(world, "clusters", number, "config", "nodes", 0)["shape"]
        part(world, "clusters", number, "config")["nodes"] = [
            {"names": [name], "flavor": "a100", "shape": shape} for name in nodes
        ]
    return world


@pytest.mark.slow
def test_two_clusters_may_name_their_nodes_alike(tidegate: Tidegate, tmp_path: Path) -> None:
    """What happens is what happens under names that differ and have the same order, and the log says which is which."""
    alike, apart = tmp_path / "alike.db", tmp_path / "apart.db"
    worlds = {
        alike: twice_at_home(("gpu-0", "gpu-1"), ("gpu-0", "gpu-1")),
        apart: twice_at_home(("gpu-0a", "gpu-1a"), ("gpu-0b", "gpu-1b")),
    }
    answers = [
        tidegate("simulate", write_world(tmp_path, world), "--log", log, "--json").answer()
        for log, world in worlds.items()
    ]
    for answer in answers:
        for key in MEASURED | {"digest"}:
            del answer[key]
    assert answers[0] == answers[1]
    assert tidegate("replay", "--verify", "--log", alike).code == 0
    rows = cast("list[Plain]", tidegate("clusters", "--log", alike, "--json").answer()["clusters"])
    assert [(row["cluster"], row["gpus_milli"]) for row in rows[:2]] == [("idc", 8_000), ("west", 8_000)]
    told = "".join(tidegate("why", f"train-{number}", "--log", alike).out for number in range(6))
    assert {"idc", "west"} <= set(re.findall(r"placed on gpu-[01] of (\w+)", told))
