"""A rule that errs fails closed, and whoever looks at what came of it is told: which rule, how, and since when."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from controlplane.cli import past
from controlplane.eventlog import open_log
from tests.cli.conftest import Said, Tidegate
from tests.cli.worlds import part, small_world, write_world

ERRING = {
    "eligibility": "node.labels['rack'] == 'r1'",
    "admission": "job.labels['team'] == 'red' ? 'no' : 'no either'",
    "burst": "offer.cost_micro_usd / (offer.cost_micro_usd - offer.cost_micro_usd)",
    "ordering.job": "[1 / (job.priority - job.priority)]",
}
"""Point -> an expression that errs whenever it is asked."""
CLOSED = {
    "eligibility": "the node is not eligible",
    "admission": "the submission is refused",
    "burst": "the job stays at home",
    "ordering.job": "the job goes last",
}


def erring_log(tidegate: Tidegate, folder: Path, point: str) -> tuple[Path, Said]:
    """The log of twenty minutes under a bundle whose one rule errs, and what was said of the run."""
    rules = folder / "rules"
    rules.mkdir()
    (rules / "bundle.yaml").write_text(f"name: erring\npoints:\n  {point}: [mine.yaml]\n")
    lines = ["name: mine", f"point: {point}", "rule:", "  match:", f'    - output: "{ERRING[point]}"']
    (rules / "mine.yaml").write_text("\n".join(lines) + "\n")
    world = {**small_world(), "until_ms": 1_200_000}
    log = folder / "a.db"
    said = tidegate("simulate", write_world(folder, world), "--policies", rules, "--log", log)
    assert (said.code, said.err) == (0, "")
    return log, said


def faults(answer: dict[str, object]) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", answer["rule_faults"])


@pytest.mark.parametrize("point", ERRING)
def test_whoever_looks_is_told_which_rule_errs_and_since_when(tidegate: Tidegate, tmp_path: Path, point: str) -> None:
    log, said = erring_log(tidegate, tmp_path, point)
    with open_log(str(log), create=False, read_only=True) as opened:
        first = next(record for record in opened.read() if b'"faults":' in record.payload)
    [fault] = faults(tidegate("top", "--log", log, "--json").answer())
    assert fault["rule"] == "mine.yaml:5"
    assert (fault["position"], fault["since_ms"]) == (first.position, first.recorded_at_ms)
    assert f"mine.yaml:5: the rule failed, so {CLOSED[point]}: " in str(fault["what"])
    line = f"Rule error   mine.yaml:5: the rule failed, so {CLOSED[point]}: "
    replayed = tidegate("replay", "--log", log)
    for told in (said.out, tidegate("top", "--log", log).out, replayed.out):
        assert line in told
        assert "(since 00:" in " ".join(told.split())
    assert faults(tidegate("replay", "--log", log, "--json").answer()) == [fault]
    waiting = cast("list[dict[str, object]]", tidegate("jobs", "--log", log, "--json").answer()["listed"])
    job = str(waiting[0]["job"]) if waiting else "train-3"
    answer = tidegate("why", job, "--log", log, "--json").answer()
    [of_job] = faults(answer)
    assert of_job == {**fault, "concerns_job": point != "ordering.job"}
    told = tidegate("why", job, "--log", log).out
    assert ("A rule erred about it: " if of_job["concerns_job"] else "Besides, a rule errs: ") in told
    assert "mine.yaml:5" in told


def test_the_simulation_says_so_as_json_too(tidegate: Tidegate, tmp_path: Path) -> None:
    log, _ = erring_log(tidegate, tmp_path, "eligibility")
    world = write_world(tmp_path, {**small_world(), "until_ms": 1_200_000})
    again = tidegate("simulate", world, "--policies", tmp_path / "rules", "--log", "memory:", "--json").answer()
    assert faults(again) == faults(tidegate("top", "--log", log, "--json").answer())
    assert cast("int", part(again, "policy")["erred"]) > 0


def test_an_offer_that_its_rule_erred_about_is_told_as_such(tidegate: Tidegate, tmp_path: Path) -> None:
    log, _ = erring_log(tidegate, tmp_path, "burst")
    with open_log(str(log), create=False, read_only=True) as opened:
        asked = next(record for record in opened.read() if b'"faults":' in record.payload).position
    early = cast("list[dict[str, object]]", tidegate("jobs", "--at", asked, "--log", log, "--json").answer()["listed"])
    answer = tidegate("why", str(early[0]["job"]), "--at", asked, "--log", log, "--json").answer()
    [fault] = faults(answer)
    assert fault["concerns_job"] is True
    [offer] = cast("list[dict[str, object]]", answer["offers"])
    assert offer["answer"] == fault["what"]


def test_a_job_that_a_sound_rule_refuses_is_not_told_that_a_rule_erred(tidegate: Tidegate, finished_day: Path) -> None:
    assert faults(tidegate("why", "train-3", "--log", finished_day, "--json").answer()) == []
    for command in (["why", "train-3"], ["top"], ["replay"]):
        told = tidegate(*command, "--log", finished_day).out
        assert "err" not in told.replace("ended in an error", "")


def test_of_what_was_named_before_the_snapshot_the_time_is_not_known(
    tidegate: Tidegate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = erring_log(tidegate, tmp_path, "eligibility")
    monkeypatch.setattr(past, "FOLDED_WHOLE", 1)
    [fault] = faults(tidegate("top", "--log", log, "--json").answer())
    assert (fault["rule"], fault["since_ms"]) == ("mine.yaml:5", None)
    assert "(since before the snapshot)" in " ".join(tidegate("top", "--log", log).out.split())


def test_the_smallest_change_is_a_rule_that_does_not_err(tidegate: Tidegate, tmp_path: Path) -> None:
    log, _ = erring_log(tidegate, tmp_path, "eligibility")
    told = " ".join(tidegate("why", "train-3", "--log", log).out.split())
    assert "Reason not-eligible: " in told
    assert "Smallest change that would have let it run: an eligibility rule that does not err" in told
