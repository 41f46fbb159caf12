"""Laws of the core that no import contract can see: nothing whose order or value differs between two runs of Python."""

from __future__ import annotations

import ast

import pytest

from tests.house.conftest import Module

CORE = ("controlplane/domain/", "controlplane/scheduler/")

RUN_DEPENDENT = frozenset({"hash", "input", "open", "print"})
"""Builtins whose answer depends on the hash seed or on the world. ``id`` may key a memory; nothing may sort by it."""


def run_dependent(tree: ast.AST) -> list[str]:
    """Calls of run-dependent builtins, as ``line: name()``."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        f"{call.lineno}: {call.func.id}()"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in RUN_DEPENDENT
    ]


def loops_over_sets(tree: ast.AST) -> list[str]:
    """Loops and comprehensions that walk a set as it is written, as ``line: loop over a set``."""
    walked = [node.iter for node in ast.walk(tree) if isinstance(node, ast.For | ast.comprehension)]
    return [f"{walk.lineno}: loop over a set" for walk in walked if _is_set(walk)]


def _is_set(node: ast.expr) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"set", "frozenset"}


def test_the_core_asks_nothing_that_differs_between_runs(modules: list[Module]) -> None:
    core = [module for module in modules if module.path.startswith(CORE)]
    assert core
    assert [f"{m.path}:{seen}" for m in core for seen in run_dependent(m.tree) + loops_over_sets(m.tree)] == []


@pytest.mark.parametrize("bad", ["key = hash(name)", "print(job)"])
def test_a_run_dependent_call_would_be_seen(bad: str) -> None:
    assert len(run_dependent(ast.parse(bad))) == 1


@pytest.mark.parametrize(
    "bad",
    ["for x in {1, 2}: ...", "y = [x for x in set(jobs)]", "for x in frozenset(jobs): ...", "z = {1: x for x in {2}}"],
)
def test_a_loop_over_a_set_would_be_seen(bad: str) -> None:
    assert len(loops_over_sets(ast.parse(bad))) == 1


def test_a_sorted_set_passes() -> None:
    assert loops_over_sets(ast.parse("for x in sorted({1, 2}): ...")) == []
