"""docs/scenarios.md says what the player understands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.simulate.scenarios import given, story
from controlplane.simulate.scenarios.expectations import Expectations
from controlplane.simulate.scenarios.stage import Stage
from tests.scenarios.policies import shipped

PAGE = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")


def listed(section: str) -> set[str]:
    """The words in the first column of the table of a section."""
    body = PAGE.split(f"\n## {section}\n", 1)[1].split("\n## ", 1)[0]
    return {word for row in re.findall(r"^\| (`.*?) \|", body, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)}


def test_its_tables_have_every_word() -> None:
    assert listed("given") == set(story._GIVEN)
    assert listed("when") == {"submit", "cancel", "configure", "lose", "observe"}
    assert listed("then") == {*story.EXPECTED, "because"}


@pytest.mark.parametrize("word", [*given._JOB, *given._ROLE])
def test_it_names_every_word_of_a_job(word: str) -> None:
    assert f"`{word}`" in PAGE or f"{{{word}," in PAGE


def test_its_example_goes_as_told() -> None:
    lines = PAGE[PAGE.index("    story:") :].split("\n\n", 1)[0].split("\n")
    stage = Stage(story.read_story("example.yaml", "\n".join(line[4:] for line in lines)), shipped)
    stage.play(Expectations(stage).check)
    assert stage.story.scenario == "B2"
