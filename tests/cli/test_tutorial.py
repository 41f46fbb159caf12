"""docs/tutorial.md is true: its files are written, its commands are run, and they say what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)(?: (file|append)=(\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Step:
    """A file to write, or a command and what it says."""

    line: int
    file: str = ""
    appends: bool = False
    text: str = ""
    command: str = ""


def steps() -> list[Step]:
    page, found = PAGE.read_text(encoding="utf-8"), []
    for block in BLOCK.finditer(page):
        line = page[: block.start()].count("\n") + 1
        kind, how, file, text = block.groups()
        if kind != "console":
            assert file, f"{PAGE.name}:{line}: a block of {kind} says which file it is"
            found.append(Step(line, file, how == "append", text))
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line += 1
            command, _, said = part.partition("\n")
            found.append(Step(line, text=said, command=command))
            line += said.count("\n")
    return found


def as_told(said: str, told: str) -> bool:
    """Whether a command says what the page tells; ``...`` stands for anything."""
    pattern = ".*?".join(re.escape(part) for part in re.split(r"\.\.\.", told))
    return re.fullmatch(pattern, said, re.DOTALL) is not None


def test_three_dots_stand_for_anything_and_nothing_else_does() -> None:
    assert as_told("a 5 b\nc\n", "a ... b\n...")
    assert not as_told("a 5 b\nc\n", "a ... b\n")
    assert not as_told("a.b\n", "a+b\n")


@pytest.mark.slow
def test_every_command_of_the_tutorial_says_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "tidegate"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "from controlplane.cli import main; main()" "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    surroundings = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    code, commands = 0, 0
    for step in steps():
        where = f"{PAGE.name}:{step.line}"
        if step.file:
            file = tmp_path / step.file
            file.parent.mkdir(exist_ok=True)
            before = file.read_text(encoding="utf-8") if step.appends else ""
            file.write_text(before + step.text, encoding="utf-8")
            continue
        commands += 1
        if step.command == "echo $?":
            assert step.text == f"{code}\n", where
            continue
        ran = subprocess.run(
            ["sh", "-c", step.command],
            cwd=tmp_path,
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        code = ran.returncode
        assert ran.stderr == "", where
        assert as_told(ran.stdout, step.text), f"{where}: $ {step.command}\n{ran.stdout}"
    assert commands > 15
    assert (tmp_path / "coverage.html").read_text(encoding="utf-8").startswith("<!doctype html>")
