"""How a person meets the program: arguments in, exit code and two streams out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controlplane.cli import app
from tests.cli.worlds import write_world

Plain = dict[str, object]


@dataclass(frozen=True, slots=True)
class Said:
    """What one invocation came to."""

    code: int
    out: str
    err: str

    def answer(self) -> dict[str, object]:
        """The object on standard output, which holds nothing else; nothing is on standard error."""
        assert self.err == ""
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found

    def sentence(self, code: int = 2) -> str:
        """The one line on standard error with which the program refused; nothing is on standard output."""
        assert self.code == code, self
        assert self.out == ""
        assert self.err.startswith("tidegate: ")
        assert self.err.endswith("\n")
        assert self.err.count("\n") == 1, self.err
        assert "Traceback" not in self.err
        return self.err.removeprefix("tidegate: ").rstrip("\n")


Tidegate = Callable[..., Said]


@pytest.fixture(scope="session")
def tidegate() -> Tidegate:
    """Runs the program in this process."""
    runner = CliRunner()

    def run(*words: str | Path) -> Said:
        result = runner.invoke(app, [str(word) for word in words])
        return Said(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture(scope="session")
def finished_day(tidegate: Tidegate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of the small world; shared by all tests, so for reading only."""
    folder = tmp_path_factory.mktemp("day")
    log = folder / "day.db"
    said = tidegate("simulate", write_world(folder), "--log", log)
    assert said.code == 0, said
    return log


@pytest.fixture
def day(finished_day: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copy(finished_day, tmp_path / "day.db"))
