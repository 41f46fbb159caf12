"""What each command answers, to people and as one JSON object, about a log that is whole."""

from __future__ import annotations

import re
from pathlib import Path
from typing import cast

import pytest

from controlplane.eventlog import open_log
from tests.cli.conftest import Tidegate
from tests.cli.worlds import many_jobs, part, small_world, write_world

Rows = list[dict[str, object]]


def rows(answer: dict[str, object], key: str) -> Rows:
    return cast("Rows", answer[key])


ANSWERS: dict[str, set[str]] = {
    "replay": {"events", "decisions", "cycles", "jobs", "placements", "preemptions", "virtual_s", "wall_s", "verified",
               "utilisation", "waits", "burst", "divergence"},
    "replay --verify": {"verified", "divergence"},
    "replay --until 20": {"events"},
    "log verify": {"events", "damage", "flaws"},
    "log tail": {"events", "records"},
    "jobs": {"jobs", "live", "listed", "virtual_s", "policy", "placements", "snapshot"},
    "queues": {"jobs", "queues", "virtual_s"},
    "clusters": {"jobs", "clusters", "virtual_s"},
    "top": {"jobs", "clusters", "queues", "budgets", "longest_waiting", "rule_faults"},
}  # fmt: skip


@pytest.mark.parametrize("command", ANSWERS)
def test_every_answer_is_one_object_with_the_documented_keys(
    tidegate: Tidegate, finished_day: Path, command: str
) -> None:
    answer = tidegate(*command.split(), "--log", finished_day, "--json").answer()
    assert set(answer) >= {"ok", "position", "digest"} | ANSWERS[command]
    assert answer["ok"] is True


@pytest.mark.parametrize("command", ANSWERS)
def test_an_exported_file_answers_as_the_database_does(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, command: str
) -> None:
    file = tmp_path / "day.jsonl.gz"
    assert tidegate("log", "export", file, "--log", finished_day).code == 0
    answers = [tidegate(*command.split(), "--log", log, "--json").answer() for log in (finished_day, file)]
    for answer in answers:
        answer.pop("wall_s", None)
    assert answers[0] == answers[1]


def test_all_agree_on_where_the_log_ends(tidegate: Tidegate, finished_day: Path) -> None:
    ends = [
        (answer["position"], answer["digest"])
        for command in ("replay", "log verify", "log tail", "jobs")
        for answer in [tidegate(*command.split(), "--log", finished_day, "--json").answer()]
    ]
    assert len(set(ends)) == 1


def test_replay_verifies_and_says_so(tidegate: Tidegate, finished_day: Path) -> None:
    said = tidegate("replay", "--verify", "--log", finished_day)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Verified: ")
    assert "Utilisation" in said.out


def test_replay_stops_where_it_is_told(tidegate: Tidegate, finished_day: Path) -> None:
    answer = tidegate("replay", "--verify", "--until", "30", "--log", finished_day, "--json").answer()
    assert (answer["position"], answer["ok"]) == (30, True)


# --- the past ---------------------------------------------------------------------------------------------------------


def test_the_views_show_any_moment(tidegate: Tidegate, finished_day: Path) -> None:
    early = tidegate("top", "--at", "00:10:00", "--log", finished_day, "--json").answer()
    late = tidegate("top", "--log", finished_day, "--json").answer()
    assert cast("int", early["position"]) < cast("int", late["position"])
    assert cast("float", early["virtual_s"]) <= 600
    assert cast("int", part(early, "jobs")["running"]) > 0
    assert part(late, "jobs")["running"] == 0
    used = sum(cast("int", row["gpus_used_milli"]) for row in rows(early, "clusters"))
    queues = {str(row["queue"]): part(row, "used").get("gpu", 0) for row in rows(early, "queues")}
    assert used == queues["company"] == cast("int", queues["research"]) + cast("int", queues["product"])


@pytest.mark.parametrize("forms", [("00:10:00", "10m", "600s", "0h10m", "1970-01-01T00:10:00Z", "0d 00:10:00")])
def test_a_moment_may_be_written_in_many_ways(tidegate: Tidegate, finished_day: Path, forms: tuple[str, ...]) -> None:
    positions = [
        tidegate("queues", "--at", form, "--log", finished_day, "--json").answer()["position"] for form in forms
    ]
    assert len(set(positions)) == 1
    by_position = tidegate("queues", "--at", positions[0], "--log", finished_day, "--json").answer()
    assert by_position == tidegate("queues", "--at", forms[0], "--log", finished_day, "--json").answer()


def test_jobs_waiting_and_running_are_listed_in_order_of_arrival(tidegate: Tidegate, finished_day: Path) -> None:
    answer = tidegate("jobs", "--at", "00:10:00", "--log", finished_day, "--json").answer()
    listed = rows(answer, "listed")
    assert answer["live"] == len(listed)
    waiting = [row for row in listed if row["cluster"] is None]
    assert listed[: len(waiting)] == waiting
    ages = [cast("int", row["age_ms"]) for row in waiting]
    assert ages == sorted(ages, reverse=True)
    one = rows(tidegate("jobs", "-n", "1", "--at", "10m", "--log", finished_day, "--json").answer(), "listed")
    assert one == listed[:1]
    research = tidegate("jobs", "--queue", "research", "--at", "10m", "--log", finished_day, "--json").answer()
    assert rows(research, "listed") == [row for row in listed if row["queue"] == "research"]


@pytest.mark.parametrize("command", ["top", "jobs", "queues", "clusters"])
def test_people_see_tables(tidegate: Tidegate, finished_day: Path, command: str) -> None:
    said = tidegate(command, "--at", "10m", "--log", finished_day)
    assert (said.code, said.err) == (0, "")
    assert "on the log's clock, policy default" in said.out
    assert {"top": "idc", "jobs": "train-0", "queues": "  research", "clusters": "idc"}[command] in said.out


def test_when_nothing_waits_or_runs_an_earlier_moment_is_pointed_to(tidegate: Tidegate, finished_day: Path) -> None:
    for command in ("jobs", "top"):
        said = tidegate(command, "--log", finished_day).out
        found = re.search(r"No job waits or runs at this moment; --at (\S+) shows an earlier moment", said)
        assert found is not None
        assert "train-" in tidegate("jobs", "--at", found[1], "--log", finished_day).out


# --- one job ----------------------------------------------------------------------------------------------------------


def test_between_two_cycles_the_past_knows_nothing_of_the_later(tidegate: Tidegate, finished_day: Path) -> None:
    """Inputs stand in front of the tick with which they were recorded; the instant before knows none of them."""
    with open_log(str(finished_day), create=False, read_only=True) as log:
        records = list(log.read())
    later = next(
        record
        for record, before in zip(records[40:], records[39:], strict=False)
        if record.type == "ticked/1" and before.author == "observed" and before.recorded_at_ms == record.recorded_at_ms
    )
    instant_before = later.recorded_at_ms - 1_000
    last = max(record.position for record in records if record.recorded_at_ms <= instant_before)
    assert later.position - last > 1, "something came with the later cycle"
    answer = tidegate("queues", "--at", f"{instant_before // 1_000}s", "--log", finished_day, "--json").answer()
    assert answer["position"] == last
    there = tidegate("queues", "--at", f"{later.recorded_at_ms // 1_000}s", "--log", finished_day, "--json").answer()
    assert cast("int", there["position"]) > later.position


def test_why_between_two_cycles_knows_neither_jobs_nor_ends_that_came_later(
    tidegate: Tidegate, finished_day: Path
) -> None:
    with open_log(str(finished_day), create=False, read_only=True) as log:
        records = list(log.read())
    submitted = next(r for r in records if r.type == "job_submitted/1" and r.recorded_at_ms > 60_000)
    job, at_s = f"j{submitted.position}", submitted.recorded_at_ms // 1_000
    assert f"{job} is not in the log" in tidegate("why", job, "--at", f"{at_s - 1}s", "--log", finished_day).sentence()
    assert tidegate("why", job, "--at", f"{at_s}s", "--log", finished_day).code == 0
    ended = next(r for r in records if r.type == "lease_observed/1" and b'"finished"' in r.payload)
    job, at_s = ended.correlation, ended.recorded_at_ms // 1_000
    phases = [
        tidegate("why", job, "--at", f"{at}s", "--log", finished_day, "--json").answer()["phase"]
        for at in (at_s - 1, at_s)
    ]
    assert phases == ["running", "finished"]


def test_why_answers_for_a_moment_of_the_past(tidegate: Tidegate, finished_day: Path) -> None:
    early = tidegate("jobs", "--at", "4m", "--log", finished_day, "--json").answer()
    waiting = next(row for row in rows(early, "listed") if row["phase"] == "waiting")
    answer = tidegate("why", str(waiting["job"]), "--at", "4m", "--log", finished_day, "--json").answer()
    assert answer["ok"] is True
    assert answer["job"] == waiting["job"]
    assert answer["reason"]
    said = tidegate("why", str(waiting["job"]).removeprefix("j"), "--at", "4m", "--log", finished_day)
    assert said.out.split() == " ".join(cast("list[str]", answer["answer"])).split()
    assert max(map(len, said.out.splitlines())) <= 108


def test_why_tells_of_a_started_job_what_it_waited_for(tidegate: Tidegate, finished_day: Path) -> None:
    longest = part(tidegate("replay", "--log", finished_day, "--json").answer(), "longest_wait")
    answer = tidegate("why", str(longest["job"]), "--log", finished_day, "--json").answer()
    assert answer["waited_ms"] == cast("int", answer["started_ms"]) - cast("int", answer["submitted_ms"])
    assert cast("int", answer["at_ms"]) < cast("int", answer["started_ms"])
    assert answer["granted"] is False
    assert answer["reason"]
    at_that_time = tidegate("jobs", "--at", answer["position"], "--log", finished_day, "--json").answer()
    [row] = [row for row in rows(at_that_time, "listed") if row["job"] == longest["job"]]
    assert row["phase"] == "waiting"
    told = "\n".join(cast("list[str]", answer["answer"]))
    for words in (
        "from its submission at",
        "It asks for 1 member with 4 GPUs",
        "Why it waited",
        "placed on",
        "finished",
    ):
        assert words in told


def test_a_job_that_did_not_wait_is_told_so(tidegate: Tidegate, finished_day: Path) -> None:
    answer = tidegate("why", "train-0", "--log", finished_day, "--json").answer()
    assert (answer["name"], answer["reason"]) == ("train-0", None)
    assert "The first cycle that saw it placed it." in cast("list[str]", answer["answer"])


def test_of_a_job_that_was_turned_away_only_that_is_told(tidegate: Tidegate, finished_day: Path) -> None:
    told = tidegate("why", "stray", "--log", finished_day).out
    assert "never started" in told
    assert "refused: unknown-queue: there is no queue 'nowhere'" in told
    assert "What the cycle" not in told


def test_waiting_again_after_a_failure_is_not_the_wait_for_a_start(tidegate: Tidegate, tmp_path: Path) -> None:
    world = small_world()
    role = {"gpus": 4, "cpu_milli": 1_000}
    spec = {"name": "flaky", "queue": "research", "roles": [role], "max_attempts": 8}
    world["workload"] = {"jobs": [{"at_ms": 0, "spec": spec, "runtime_ms": 7_200_000, "fails": True}]}
    log = tmp_path / "a.db"
    tidegate("simulate", write_world(tmp_path, world), "--log", log)
    answer = tidegate("why", "flaky", "--log", log, "--json").answer()
    assert (answer["phase"], cast("int", answer["waited_ms"]) < 60_000) == ("failed", True)
    told = tidegate("why", "flaky", "--log", log).out
    assert f"... {len(rows(answer, 'history')) - 12} more moments" in told
    assert "ended: failed" in told


def test_a_name_that_several_jobs_have_is_refused_with_their_numbers(tidegate: Tidegate, tmp_path: Path) -> None:
    world = many_jobs(2)
    for job in cast("list[dict[str, object]]", part(world, "workload")["jobs"]):
        cast("dict[str, object]", job["spec"])["name"] = "twin"
    tidegate("simulate", write_world(tmp_path, world), "--log", tmp_path / "a.db")
    assert "2 jobs are called 'twin': say which (j" in tidegate("why", "twin", "--log", tmp_path / "a.db").sentence()


@pytest.mark.parametrize("command", [["why", "train-0"], ["jobs"]])
def test_a_time_beyond_the_end_is_one_sentence(tidegate: Tidegate, finished_day: Path, command: list[str]) -> None:
    assert "the log ends at" in tidegate(*command, "--at", "9d", "--log", finished_day).sentence()


@pytest.mark.slow
def test_why_knows_how_each_job_ended(tidegate: Tidegate, finished_day: Path) -> None:
    records = rows(tidegate("log", "tail", "-n", "9999", "--log", finished_day, "--json").answer(), "records")
    phases = {}
    for record in records:
        if record["type"] == "job_submitted/1":
            answer = tidegate("why", f"j{record['position']}", "--log", finished_day, "--json").answer()
            phases[answer["name"]] = answer["phase"]
    assert phases["broken"] == "failed"
    assert phases["impatient"] == "expired"
    assert phases["stray"] == "refused"
    assert phases["train-0"] == phases["serve-5"] == "finished"


# --- copies -----------------------------------------------------------------------------------------------------------


def test_a_log_goes_out_and_in_unchanged(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "a.jsonl.gz", tmp_path / "b.db"
    out = tidegate("log", "export", file, "--log", finished_day, "--json").answer()
    back = tidegate("log", "import", file, "--log", copy, "--json").answer()
    assert (out["position"], out["digest"]) == (back["position"], back["digest"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl.gz", "b.db"]
    assert tidegate("replay", "--verify", "--log", copy).code == 0
    assert tidegate("log", "import", file, "--log", copy).code == 0  # once more changes nothing


def test_an_import_into_another_log_is_refused(tidegate: Tidegate, finished_day: Path, tmp_path: Path) -> None:
    from controlplane.eventlog import open_log
    from controlplane.eventlog.port import EMPTY, Entry

    tidegate("log", "export", tmp_path / "a.jsonl", "--log", finished_day)
    with open_log(str(tmp_path / "b.db"), create=True) as log:
        log.append([Entry("ticked/1", "ticked", b'{"now_ms":1}', 1, "clock")], EMPTY)
    assert "another log" in tidegate("log", "import", tmp_path / "a.jsonl", "--log", tmp_path / "b.db").sentence()


def test_the_tail_shows_the_last_records(tidegate: Tidegate, finished_day: Path) -> None:
    answer = tidegate("log", "tail", "-n", "3", "--log", finished_day, "--json").answer()
    records = rows(answer, "records")
    assert [row["position"] for row in records] == [cast("int", answer["position"]) - back for back in (2, 1, 0)]
    assert records[-1]["digest"] == answer["digest"]
    assert len(tidegate("log", "tail", "-n", "3", "--log", finished_day).out.splitlines()) == 3
    assert tidegate("log", "tail", "-n", "0", "--log", finished_day).out == ""


def test_upgrading_what_is_new_enough_changes_nothing(tidegate: Tidegate, day: Path) -> None:
    before = tidegate("log", "verify", "--log", day, "--json").answer()
    answer = tidegate("db", "upgrade", "--log", day, "--json").answer()
    assert (answer["position"], answer["digest"]) == (before["position"], before["digest"])
    assert "is up to date" in tidegate("db", "upgrade", "--log", day).out
