"""``tidegate policy activate``, ``shadow`` and ``history``: what an author does to a log, and what a bad one cannot."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.domain.events import CycleDecided, JobSubmitted
from controlplane.domain.workloads import JobSpec, Role
from controlplane.eventlog import open_log
from controlplane.eventlog.port import EventLog, Head, HeadMoved, LogUnavailable
from controlplane.policy.bundle import load_bundle, read_bundle_folder
from controlplane.runtime.activation import append_change, standing
from controlplane.runtime.plane import ControlPlane
from controlplane.simulate.policies import activation
from tests.cli.conftest import Said, Tidegate
from tests.cli.worlds import POLICIES, Plain, part, small_world, write_world

ORDER = "name: order\npoint: ordering.job\nrule:\n  match:\n    - output: '[{}]'\n"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of one rule: the least important first."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "bundle.yaml").write_text("name: mine\npoints:\n  ordering.job: [order.yaml]\n")
    (folder / "order.yaml").write_text(ORDER.format("job.priority"))
    return folder


def head_of(log: Path) -> Head:
    with open_log(str(log), create=False, read_only=True) as opened:
        return opened.head()


def digest(folder: Path) -> str:
    return load_bundle(read_bundle_folder(folder)).digest


def rows(said: Said) -> list[Plain]:
    found = said.answer()["policies"]
    assert isinstance(found, list)
    return found


# --- activate --------------------------------------------------------------------------------------------------------


def test_a_bundle_is_activated_and_the_way_back_is_printed_and_works(
    tidegate: Tidegate, day: Path, bundle: Path
) -> None:
    before = head_of(day)
    said = tidegate("policy", "activate", "--log", day, "--policies", bundle, "--author", "Ann Lee")
    assert (said.code, said.err) == (0, "")
    assert f"mine ({digest(bundle)}) is active from position {before.position + 1:,} on, by Ann Lee" in said.out
    way_back = said.out.split("The way back: ")[1].split()
    short = way_back[way_back.index("activate") + 1]
    back = tidegate("policy", "activate", short, "--log", day, "--author", "bob", "--json").answer()
    assert back["policy"] == {"name": "default", "digest": digest(POLICIES / "default")}
    assert (back["changed"], back["author"], back["before"]) == (True, "bob", digest(bundle))
    assert (back["digest"], back["position"]) == (head_of(day).digest, before.position + 2)
    active = rows(tidegate("policy", "history", "--log", day, "--json"))
    assert [(row["name"], row["author"], row["again"]) for row in active] == [
        ("default", "operator", False),
        ("mine", "Ann Lee", False),
        ("default", "bob", True),
    ]
    assert tidegate("replay", "--verify", "--log", day).code == 0
    table = tidegate("policy", "history", "--log", day).out
    assert "active again" in table
    assert "mine was activated by Ann Lee" in table


def test_what_is_active_already_is_not_written_twice(tidegate: Tidegate, day: Path) -> None:
    before = head_of(day)
    said = tidegate("policy", "activate", "--log", day, "--policies", POLICIES / "default", "--author", "ann")
    assert (said.code, head_of(day)) == (0, before)
    assert "is active already; nothing was written" in said.out


BROKEN: dict[str, Callable[[Path], object]] = {
    "a typo": lambda folder: (folder / "order.yaml").write_text(ORDER.format("job.priorty")),
    "an int with a text": lambda folder: (folder / "order.yaml").write_text(ORDER.format("job.priority + job.name")),
    "another output": lambda folder: (folder / "order.yaml").write_text(ORDER.format("job.name")),
    "an unused rule": lambda folder: (folder / "more.yaml").write_text(ORDER.format("1")),
    "the order of a map": lambda folder: (folder / "order.yaml").write_text(
        ORDER.format("size(job.labels.map(key, key))")
    ),
    "a broken test": lambda folder: (folder / "order.tests.yaml").write_text("section: 3\n"),
    "not UTF-8": lambda folder: (folder / "order.yaml").write_bytes(b"\xff\xfe"),
    "no manifest": lambda folder: (folder / "bundle.yaml").unlink(),
    "a link out of it": lambda folder: (folder / "more.yaml").symlink_to(POLICIES / "default" / "burst.yaml"),
}


@pytest.mark.parametrize("how", ["activate", "shadow"])
@pytest.mark.parametrize("fault", BROKEN)
def test_what_a_check_refuses_is_refused_in_the_same_words_and_nothing_is_done(
    how: str, fault: str, tidegate: Tidegate, day: Path, bundle: Path
) -> None:
    """SCENARIOS H1: the active bundle stays."""
    BROKEN[fault](bundle)
    before = head_of(day)
    sentence = tidegate("policy", how, "--log", day, "--policies", bundle, "--author", "ann").sentence()
    checked = tidegate("policy", "check", bundle)
    said = checked.out if checked.code == 1 else checked.err
    place, _, message = sentence.split(" (and ")[0].partition(": ")
    assert place.split(":")[0] in said
    assert message in said
    assert head_of(day) == before


@pytest.mark.parametrize(
    ("words", "part_of_it"),
    [
        (["activate"], "name either a folder (--policies DIR) or the DIGEST"),
        (["activate", "abcdef", "--policies", "x", "--author", "a"], "not both"),
        (["activate", "abc", "--author", "a"], "carries no bundle whose digest begins with 'abc'; it has"),
        (["activate", "feedfeed", "--author", "a"], "(default)"),
        (["activate", "feedfeed"], "say who does this: --author NAME"),
        (["activate", "feedfeed", "--author", " "], "1 to 128 printable characters"),
        (["activate", "feedfeed", "--author", "a\nb"], "1 to 128 printable characters"),
        (["activate", "--policies", "nowhere", "--author", "a"], "nowhere: there is no such folder of policies"),
        (["shadow", "--author", "a"], "exactly one of --policies DIR (to begin), --stop and --report"),
        (["shadow", "--stop", "--report", "--author", "a"], "exactly one of"),
        (["shadow", "--stop"], "say who does this"),
    ],
)
def test_wrong_use_is_one_sentence_and_writes_nothing(
    words: list[str], part_of_it: str, tidegate: Tidegate, day: Path
) -> None:
    before = head_of(day)
    assert part_of_it in tidegate("policy", *words, "--log", day).sentence()
    assert head_of(day) == before


def test_an_exported_file_and_a_log_that_is_not_there_are_refused(
    tidegate: Tidegate, day: Path, bundle: Path, tmp_path: Path
) -> None:
    tidegate("log", "export", tmp_path / "day.jsonl", "--log", day)
    args = ("--policies", bundle, "--author", "ann")
    assert "never appended to" in tidegate("policy", "activate", "--log", tmp_path / "day.jsonl", *args).sentence()
    assert "there is no such log" in tidegate("policy", "activate", "--log", tmp_path / "no.db", *args).sentence()
    assert not (tmp_path / "no.db").exists()


# --- beside a writer -------------------------------------------------------------------------------------------------


def test_whoever_appends_second_is_told_and_nothing_is_written(
    tidegate: Tidegate, day: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from controlplane.runtime import activation as module

    read = module.standing

    def overtaken(log: EventLog, progress: object = None) -> module.Standing:
        found = read(log)
        with open_log(str(day), create=False) as writer:
            ControlPlane(writer).record([(submission(), "client")], found.at_ms)
        return found

    monkeypatch.setattr(module, "standing", overtaken)
    before = head_of(day)
    said = tidegate("policy", "activate", "--log", day, "--policies", bundle, "--author", "ann").sentence(3)
    assert f"it went from position {before.position:,} to {before.position + 1:,}" in said
    assert said.endswith("so nothing was written; run the command again")
    assert head_of(day).position == before.position + 1


def submission() -> JobSubmitted:
    spec = JobSpec(name="late", queue="research", roles=(Role(gpus=1, cpu_milli=1_000),))
    return JobSubmitted(spec=spec, submitted_ms=0)


def test_a_plane_that_was_overtaken_opens_anew_and_decides_under_the_new_rules(
    tidegate: Tidegate, day: Path, bundle: Path
) -> None:
    with open_log(str(day), create=False) as log:
        plane = ControlPlane(log)
        now_ms = plane.state.now_ms + 60_000
        assert tidegate("policy", "activate", "--log", day, "--policies", bundle, "--author", "ann").code == 0
        with pytest.raises(HeadMoved):
            plane.advance(now_ms, [(submission(), "client")])
        recorded = ControlPlane(log).advance(now_ms, [(submission(), "client")])
    closed = [event for _, event in recorded if isinstance(event, CycleDecided)]
    assert [event.policy for event in closed] == [digest(bundle)]
    assert tidegate("replay", "--verify", "--log", day).code == 0


def test_a_change_behind_another_is_refused_by_the_log_itself(day: Path, bundle: Path) -> None:
    event = activation(load_bundle(read_bundle_folder(bundle)))
    with open_log(str(day), create=False) as log:
        at = standing(log)
        append_change(log, at, event, "first")
        with pytest.raises(LogUnavailable, match="nothing was written"):
            append_change(log, at, event, "second")
        assert log.head().position == at.head.position + 1


# --- shadow ----------------------------------------------------------------------------------------------------------


def with_changes(folder: Path, *changes: Plain) -> Path:
    world = small_world()
    world["policy_changes"] = list(changes)
    return write_world(folder, world)


@pytest.fixture
def tried(tidegate: Tidegate, tmp_path: Path, bundle: Path) -> Path:
    """The log of a day on which a bundle was tried, activated, and rolled back."""
    shutil.copytree(POLICIES / "examples" / "strict-fifo", tmp_path / "strict")
    world = with_changes(
        tmp_path,
        {"at_ms": 60_000, "shadow": "strict", "author": "ann"},
        {"at_ms": 600_000, "activate": "strict", "author": "ann"},
        {"at_ms": 900_000, "shadow": str(bundle), "author": "bob"},
        {"at_ms": 1_200_000, "activate": str(POLICIES / "default"), "author": "bob"},
        {"at_ms": 1_800_000, "end_shadow": True, "author": "bob"},
    )
    said = tidegate("simulate", world, "--log", tmp_path / "tried.db")
    assert (said.code, said.err) == (0, "")
    assert "Shadow strict-fifo" in said.out
    assert said.out.count("Policy  ") == 3
    return tmp_path / "tried.db"


def test_a_day_on_which_a_bundle_is_tried_activated_and_rolled_back(tidegate: Tidegate, tried: Path) -> None:
    """SCENARIOS H4: each stretch of the log has its own bundle, and replays under it."""
    assert tidegate("replay", "--verify", "--log", tried).code == 0
    found = rows(tidegate("policy", "history", "--log", tried, "--json"))
    assert [(row["what"], row["name"], row["author"], row["since_ms"], row["until_ms"]) for row in found] == [
        ("active", "default", "operator", 0, 600_000),
        ("shadow", "strict-fifo", "ann", 60_000, 600_000),
        ("active", "strict-fifo", "ann", 600_000, 1_200_000),
        ("shadow", "mine", "bob", 900_000, 1_800_000),
        ("active", "default", "bob", 1_200_000, None),
    ]
    assert [row["again"] for row in found] == [False, False, False, False, True]
    assert all(row["cycles"] for row in found)
    with open_log(str(tried), create=False, read_only=True) as log:
        policies = [r.payload.split(b'"policy":"')[1][:64].decode() for r in log.read() if r.type == CycleDecided.TYPE]
    stretches = [policy for policy, before in zip(policies, ["", *policies], strict=False) if policy != before]
    default = digest(POLICIES / "default")
    assert stretches == [default, digest(POLICIES / "examples" / "strict-fifo"), default]


def test_what_shadows_would_have_decided_is_reported(tidegate: Tidegate, tried: Path) -> None:
    answer = tidegate("policy", "shadow", "--report", "--log", tried, "--json").answer()
    shadows = answer["shadows"]
    assert isinstance(shadows, list)
    strict, mine = shadows
    assert (strict["name"], strict["author"], strict["ended"]) == ("strict-fifo", "ann", "it was activated by ann")
    assert (mine["name"], mine["ended"]) == ("mine", "it was ended by bob")
    told = {(found["what"], found["by"]): found for found in strict["differences"] + mine["differences"]}
    rented = told["rent", "active"]
    assert rented["jobs"] == sum(rented["queues"].values()) == sum(rented["rules"].values())
    assert all(example["name"] for example in rented["examples"])
    said = tidegate("policy", "shadow", "--report", "--log", tried).out
    assert said.startswith("Shadow strict-fifo (")
    assert "was given rented nodes by burst.yaml:" in said or "were given rented nodes by burst.yaml:" in said


def test_a_diff_is_of_what_was_decided_and_not_of_what_a_shadow_said(tidegate: Tidegate, tmp_path: Path) -> None:
    world = with_changes(tmp_path, {"at_ms": 0, "shadow": str(POLICIES / "examples" / "strict-fifo")})
    assert tidegate("simulate", world, "--log", tmp_path / "day.db").code == 0
    args = ("policy", "diff", "--log", tmp_path / "day.db", "--json", "--against")
    same = tidegate(*args, POLICIES / "default").answer()
    assert (same["changed"], same["first_change"]) == (0, None)
    assert tidegate(*args, POLICIES / "examples" / "strict-fifo").answer()["first_change"] is not None


def test_top_tells_of_a_shadow_while_it_is_asked(tidegate: Tidegate, tried: Path) -> None:
    at = ("--at", "8m")
    assert "Shadow: strict-fifo (" in tidegate("top", "--log", tried, *at).out
    shadow = part(tidegate("top", "--log", tried, *at, "--json").answer(), "shadow")
    assert shadow["name"] == "strict-fifo"
    assert isinstance(shadow["cycles"], int)
    assert shadow["cycles"] > 0
    assert tidegate("top", "--log", tried, "--json").answer()["shadow"] is None


def test_a_shadow_is_set_and_stopped_by_command(tidegate: Tidegate, day: Path, bundle: Path) -> None:
    args = ("--log", day, "--author", "ann")
    begun = tidegate("policy", "shadow", "--policies", bundle, *args, "--json").answer()
    assert begun["changed"] is True
    again = tidegate("policy", "shadow", "--policies", bundle, *args)
    assert "is the shadow already; nothing was written" in again.out
    assert part(tidegate("top", "--log", day, "--json").answer(), "shadow")["name"] == "mine"
    with open_log(str(day), create=False) as log:
        plane = ControlPlane(log)
        plane.advance(plane.state.now_ms + 60_000, [(submission(), "client")])
    stopped = tidegate("policy", "shadow", "--stop", *args)
    assert f"The shadow ({digest(bundle)}) is asked no more" in stopped.out
    assert "There is no shadow" in tidegate("policy", "shadow", "--stop", *args).out
    assert tidegate("replay", "--verify", "--log", day).code == 0
    active = tidegate("policy", "shadow", "--policies", POLICIES / "default", *args).sentence()
    assert "this is the active bundle" in active


def test_what_was_a_shadow_is_activated_by_its_digest(tidegate: Tidegate, day: Path, bundle: Path) -> None:
    args = ("--log", day, "--author", "ann")
    tidegate("policy", "shadow", "--policies", bundle, *args)
    shutil.rmtree(bundle)
    last = rows(tidegate("policy", "history", "--log", day, "--json"))[-1]
    answer = tidegate("policy", "activate", str(last["digest"])[:12], *args, "--json").answer()
    assert part(answer, "policy")["name"] == "mine"
    assert rows(tidegate("policy", "history", "--log", day, "--json"))[1]["ended"] == "it was activated by ann"


# --- worlds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"at_ms": 1}, "exactly one of activate, shadow and end_shadow"),
        ({"at_ms": 1, "activate": "a", "shadow": "b"}, "exactly one of activate, shadow and end_shadow"),
        ({"at_ms": 1, "activate": "nowhere"}, "there is no policy folder"),
        ({"at_ms": 1, "shadow": "bad"}, "order.yaml:5:"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused_before_anything_is_written(
    change: Plain, sentence: str, tidegate: Tidegate, tmp_path: Path, bundle: Path
) -> None:
    (bundle / "order.yaml").write_text(ORDER.format("job.priorty"))
    bundle.rename(tmp_path / "bad")
    said = tidegate("simulate", with_changes(tmp_path, change), "--log", tmp_path / "day.db").sentence()
    assert "world.yaml:" in said
    assert sentence in said
    assert not (tmp_path / "day.db").exists()
