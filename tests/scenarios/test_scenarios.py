"""Every story in this folder, played. Those in ``ahead/`` must go otherwise: the core does not know them yet."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from controlplane.audit.replay import replay
from controlplane.simulate.scenarios.expectations import Expectations, StoryWentOtherwise
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import read_story
from controlplane.simulate.scenarios.words import BadStory
from tests.scenarios.policies import shipped

HERE = Path(__file__).resolve().parent
STORIES = sorted(HERE.glob("*.yaml"))
AHEAD = sorted(HERE.glob("ahead/*.yaml"))


def play(path: Path, *, is_restarted: bool = False) -> Stage:
    """Play one story; raises :class:`StoryWentOtherwise` with the story so far."""
    stage = Stage(read_story(path.name, path.read_text(encoding="utf-8")), shipped, is_restarted=is_restarted)
    stage.play(Expectations(stage).check)
    return stage


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path) -> None:
    went_otherwise = ""
    try:
        play(path)
    except (StoryWentOtherwise, BadStory) as error:
        went_otherwise = str(error)
    if went_otherwise:
        pytest.fail(went_otherwise, pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_plane_that_is_killed_after_every_other_append_tells_the_same_story(path: Path) -> None:
    """SCENARIOS E5. The log proves it: the same last digest, and every cycle decided anew gives the same bytes."""
    once, anew = play(path), play(path, is_restarted=True)
    assert anew.plane.head == once.plane.head
    report = replay(once.log, verify=True)
    assert report.divergence is None
    assert report.position == once.plane.head.position


@pytest.mark.xfail(
    strict=True,
    raises=(StoryWentOtherwise, BadStory, ValidationError),
    reason="the core does not do it yet; a story that begins to hold is moved out of ahead/",
)
@pytest.mark.parametrize("path", AHEAD, ids=lambda path: path.stem)
def test_a_story_ahead_goes_otherwise(path: Path) -> None:
    play(path)


@pytest.mark.parametrize("path", AHEAD, ids=lambda path: path.stem)
def test_a_story_ahead_is_yaml_with_its_parts(path: Path) -> None:
    """It may use words that nobody knows yet, but not be broken."""
    plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"story", "scenario", "given", "when", "then"} <= plain.keys()


BAD = """
story: One GPU is one GPU
scenario: none
given:
  clusters: {home: {nodes: {n: {gpus: 1}}}}
  queues: {team: {}}
when:
  - at: 0s
    submit: {a: {gpus: 1}, b: {gpus: 1}}
then:
  - at: 1m
    running: [a, b]
    because: somebody hoped so
"""


def test_a_story_that_goes_otherwise_is_told(tmp_path: Path) -> None:
    path = tmp_path / "one-gpu.yaml"
    path.write_text(BAD, encoding="utf-8")
    with pytest.raises(StoryWentOtherwise) as told:
        play(path)
    text = str(told.value)
    assert "at 1m, running:\n  expected: a, b\n  got:      a\n  because:  somebody hoped so" in text
    assert "a is placed on n" in text
    assert "b waits: capacity" in text


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("running:", "runing:"), "runing is not known; use running,"),
        (("submit:", "sumbit:"), "sumbit is not known; use submit,"),
        (("gpus: 1}, b", "gpu: 1/3}, b"), "'1/3' is no whole number of thousandths"),
        (("at: 1m", "at: soon"), "'soon' is no time; write it like 30s"),
        (("a: {gpus: 1}", "a: {gpuz: 1}"), "gpuz"),
        (("then:", "otherwise:"), "otherwise is not known here"),
    ],
)
def test_a_story_that_cannot_be_read_says_why(change: tuple[str, str], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(BAD.replace(*change), encoding="utf-8")
    with pytest.raises((BadStory, ValueError), match=sentence):
        play(path)
