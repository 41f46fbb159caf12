"""What is installed: the same versions for running and for developing, each checked by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

NAME = re.compile(r"^[A-Za-z0-9._-]+")


def pins(text: str) -> dict[str, str]:
    """Name to version (with its marker, if any) of each pinned package."""
    entries = re.findall(r"^([a-z0-9._-]+)==(.+?) \\$", text, flags=re.MULTILINE)
    return dict(entries)


def without_hash(text: str) -> list[str]:
    """Pinned packages whose next line is no hash."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    following = [*lines[1:], ""]
    return [
        line for line, after in zip(lines, following, strict=True) if "==" in line and "--hash=sha256:" not in after
    ]


@pytest.fixture(scope="module")
def runtime(project_root: Path) -> str:
    """The text of requirements/runtime.txt."""
    return (project_root / "requirements" / "runtime.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def dev(project_root: Path) -> str:
    """The text of requirements/dev.txt."""
    return (project_root / "requirements" / "dev.txt").read_text(encoding="utf-8")


def test_what_is_tested_is_what_runs(runtime: str, dev: str) -> None:
    assert pins(runtime)
    assert pins(runtime).items() <= pins(dev).items()


def test_every_package_is_checked_by_its_hash(runtime: str, dev: str) -> None:
    assert without_hash(runtime) + without_hash(dev) == []


def test_a_missing_hash_would_be_seen() -> None:
    assert without_hash("one==1 \\\n    --hash=sha256:ab\ntwo==2\n") == ["two==2"]


def test_the_lock_holds_what_the_project_names(project_root: Path, runtime: str, dev: str) -> None:
    project = tomllib.loads((project_root / "pyproject.toml").read_text(encoding="utf-8"))
    for needs, lock in ((project["project"]["dependencies"], runtime), (project["dependency-groups"]["dev"], dev)):
        names = {found.group() for need in needs if (found := NAME.match(need))}
        assert names - pins(lock).keys() == set(), "run `make lock`"
