"""What is wrong with a policy, and where: the one shape of every complaint of this floor.

A problem names file, line and column as a compiler does, and carries the line itself with a caret below the place. It
never raises and never prints; callers decide what to do with it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from typing_extensions import override


class Severity(StrEnum):
    """Whether a bundle with this problem may be loaded."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One complaint. ``line`` and ``column`` count from 1; ``column`` counts characters."""

    file: str
    line: int
    column: int
    message: str
    snippet: str = ""
    """The line of the file and, below it, a caret under the column."""
    severity: Severity = Severity.ERROR
    code: str = "policy"
    """A short stable name of the kind of problem, such as ``unreachable-match``."""

    @override
    def __str__(self) -> str:
        head = f"{self.file}:{self.line}:{self.column}: {self.severity}: {self.message}"
        return f"{head}\n{self.snippet}" if self.snippet else head

    def as_dict(self) -> dict[str, str | int]:
        """The problem as JSON keeps it."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "severity": str(self.severity),
            "code": self.code,
            "message": self.message,
            "snippet": self.snippet,
        }


class BundleRefused(Exception):
    """A bundle cannot be loaded. ``problems`` says why, all errors at once, in the order of the files."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


_SNIPPET_WIDTH = 160
"""Longer lines are cut around the caret, so that one bad line of a megabyte stays readable."""


def snippet(text: str, line: int, column: int) -> str:
    """The given line of a text with a caret under the column; empty if there is no such line."""
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return ""
    shown, caret = lines[line - 1].rstrip("\r"), max(1, column)
    if len(shown) > _SNIPPET_WIDTH:
        start = max(0, caret - 1 - _SNIPPET_WIDTH // 2)
        shown, caret = shown[start : start + _SNIPPET_WIDTH], caret - start
    shown = "".join(char if char.isprintable() or char == "\t" else "\N{REPLACEMENT CHARACTER}" for char in shown)
    margin = "".join("\t" if char == "\t" else " " for char in shown[: caret - 1]).ljust(caret - 1)
    return f"  | {shown}\n  | {margin}^"


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean 'x'?`` when a known name is close to the given one, else nothing."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """Those of the problems that keep a bundle from loading."""
    return [problem for problem in problems if problem.severity is Severity.ERROR]
