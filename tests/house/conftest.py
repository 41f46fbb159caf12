"""The project's own source, read once for the tests of its style."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGES = ("controlplane", "federation")


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the product: its path from the project's root, and its syntax tree."""

    path: str
    tree: ast.Module

    @property
    def is_empty(self) -> bool:
        """An ``__init__`` that only marks a package has nothing to say."""
        return not self.tree.body


@pytest.fixture(scope="session")
def modules(project_root: Path) -> list[Module]:
    """Every Python file of the product, by path."""
    paths = sorted(path for package in PACKAGES for path in (project_root / package).rglob("*.py"))
    assert paths, "no source was found: these tests would hold nothing"
    return [Module(path.relative_to(project_root).as_posix(), ast.parse(path.read_bytes())) for path in paths]


@pytest.fixture(scope="session")
def tracked(project_root: Path) -> list[Path]:
    """Every file that git tracks and that is there, by path."""
    if not (project_root / ".git").exists():
        pytest.skip("not a git checkout: there is no list of tracked files to look through")
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=project_root, check=True, capture_output=True).stdout
    paths = [project_root / name for name in listing.decode().split("\0") if name]
    return [path for path in paths if path.is_file()]
