"""Style that a formatter cannot hold: length, names, docstrings, packages. STYLE's reasons stand in CONTRIBUTING."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.conftest import PACKAGES, Module

LONGEST = 70
"""Lines of a function, from ``def`` to its end: what fits on one screen (TigerBeetle's limit)."""

NO_NAMES = frozenset({"helper", "helpers", "manager", "managers", "misc", "util", "utils"})
"""Words that name no thing. A name that needs one belongs to a module that is not yet understood."""

NO_VERBS = frozenset({"do", "handle", "manage", "process"})
"""Verbs that say nothing, as the first word of a function's name."""


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def too_long(tree: ast.AST) -> list[str]:
    """``name (lines)`` of each function over the limit."""
    spans = ((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions(tree))
    return [f"{name} ({lines} lines)" for name, lines in spans if lines > LONGEST]


def words(name: str) -> list[str]:
    """The words of a name in any spelling: ``HTTPServer_v2`` is http, server, v2."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def empty_names(tree: ast.AST) -> list[str]:
    """Names of functions and classes that say nothing."""
    named = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef))
    return [
        node.name
        for node in named
        if NO_NAMES.intersection(words(node.name))
        or (not isinstance(node, ast.ClassDef) and NO_VERBS.intersection(words(node.name)[:1]))
    ]


def test_no_function_is_longer_than_a_screen(modules: list[Module]) -> None:
    assert [f"{module.path}: {name}" for module in modules for name in too_long(module.tree)] == []


def test_a_function_of_71_lines_would_be_seen() -> None:
    body = "\n".join(f"    x{line} = {line}" for line in range(LONGEST - 1))
    assert too_long(ast.parse(f"def short():\n{body}")) == []
    assert too_long(ast.parse(f"async def long():\n{body}\n    return 0")) == ["long (71 lines)"]


def test_names_are_nouns_of_the_field(modules: list[Module]) -> None:
    assert [f"{module.path}: {name}" for module in modules for name in empty_names(module.tree)] == []


@pytest.mark.parametrize(
    "bad", ["class JobManager: ...", "def node_utils(): ...", "def handle(): ...", "def do_it(): ..."]
)
def test_an_empty_name_would_be_seen(bad: str) -> None:
    assert len(empty_names(ast.parse(bad))) == 1


@pytest.mark.parametrize(
    "good", ["class Domain: ...", "def doable(): ...", "def reprocess(): ...", "def manages(): ..."]
)
def test_a_name_that_merely_contains_one_passes(good: str) -> None:
    assert empty_names(ast.parse(good)) == []


def test_no_file_or_folder_is_named_after_nothing(modules: list[Module]) -> None:
    assert [
        m.path for m in modules if NO_NAMES.intersection(word for part in Path(m.path).parts for word in words(part))
    ] == []


def test_every_module_says_what_it_is_for(modules: list[Module]) -> None:
    assert [module.path for module in modules if not module.is_empty and not ast.get_docstring(module.tree)] == []


def test_every_folder_of_source_is_a_package(project_root: Path) -> None:
    folders = {path.parent for package in PACKAGES for path in (project_root / package).rglob("*.py")}
    missing = sorted(folder.relative_to(project_root) for folder in folders if not (folder / "__init__.py").exists())
    assert missing == []
