"""``tidegate replay --verify --second-engine``: what an auditor sees of a second opinion."""

from __future__ import annotations

from pathlib import Path

import pytest

from controlplane.policy import engine
from controlplane.policy.engine import Program
from tests.cli.conftest import Tidegate
from tests.cli.worlds import part


def test_a_second_engine_that_agrees_is_told_rule_by_rule(tidegate: Tidegate, day: Path) -> None:
    said = tidegate("replay", "--verify", "--second-engine", "--log", day)
    assert (said.code, said.err) == (0, "")
    assert f"Second engine {engine.CelPy().name} agrees: " in said.out
    assert "burst.yaml:16" in said.out
    assert "Never evaluated in this log: admission.yaml:8" in said.out
    answer = tidegate("replay", "--verify", "--second-engine", "--exhaustive", "--log", day, "--json").answer()
    second = part(answer, "second_engine")
    assert (answer["ok"], second["ok"], second["disagreed"]) == (True, True, 0)
    assert second["compared_evaluations"] == second["distinct"]


def test_one_that_disagrees_is_an_answer_of_no(tidegate: Tidegate, day: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = engine.CelPy.program

    def mutant(self: engine.CelPy, source: str) -> Program:
        return program(self, source.replace(">=", ">"))

    monkeypatch.setattr(engine.CelPy, "program", mutant)
    said = tidegate("replay", "--verify", "--second-engine", "--log", day)
    assert (said.code, said.err) == (1, "")
    assert "Verified: " in said.out
    assert "DISAGREES" in said.out
    assert f"the deciding engine says true, {engine.CelPy().name} says false" in said.out
    answer = tidegate("replay", "--verify", "--second-engine", "--log", day, "--json")
    assert (answer.code, answer.answer()["ok"], answer.answer()["divergence"]) == (1, False, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--second-engine"], "--second-engine compares while cycles are decided again; add --verify"),
        (["--verify", "--exhaustive"], "--exhaustive says how much is asked of the second engine; add --second-engine"),
    ],
)
def test_half_of_the_words_are_refused(words: list[str], sentence: str, tidegate: Tidegate, day: Path) -> None:
    assert tidegate("replay", *words, "--log", day).sentence() == sentence
