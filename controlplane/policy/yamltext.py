"""YAML text as a tree of nodes that know their place, within bounds.

Only what policy files need: no aliases, no tags, no second document, no key twice. The tree is built from the parser's
events, so that a hostile file is refused before it is expanded. Problems are collected, never raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import yaml

from controlplane.policy.problems import Problem, snippet

MAX_FILE_BYTES = 262_144
"""A rule file of a thousand matches is 60 kB; a file above this is not a rule file."""
MAX_NODES = 50_000
MAX_DEPTH = 64

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
"""Characters that no editor shows, among them those that YAML, but nobody else, takes for a line's end."""

Kind = Literal["text", "list", "map"]


@dataclass(slots=True)
class Node:
    """One scalar, sequence or mapping. Lines and columns count from 1."""

    kind: Kind
    line: int
    column: int
    text: str = ""
    """Of a scalar: its value as YAML reads it."""
    style: str = ""
    """Of a scalar: ``'``, ``"``, ``|``, ``>`` or empty for plain."""
    raw: str = ""
    """Of a scalar: the text of the file that it was read from."""
    items: list[Node] = field(default_factory=list)
    entries: list[tuple[Node, Node]] = field(default_factory=list)

    @property
    def is_null(self) -> bool:
        """Whether a plain scalar stands for nothing."""
        return self.kind == "text" and not self.style and self.text in ("", "null", "~", "Null", "NULL")


def normalise(text: str) -> str:
    """Line ends as LF, without a byte-order mark: the form in which text is parsed and digested."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def parse_yaml(file: str, text: str) -> tuple[Node | None, list[Problem]]:
    """The root of the one document in ``text`` (normalised), or the problem that keeps it from being read."""
    if len(text) > MAX_FILE_BYTES or len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
        limit = MAX_FILE_BYTES // 1024
        return None, [Problem(file, 1, 1, f"the file is larger than {limit} KiB; split it", code="too-large")]
    control = _CONTROL.search(text)
    if control is not None:
        line, column = _place(text, control.start())
        name = f"U+{ord(control.group()):04X}"
        message = f"the control character {name} does not belong in a policy file; remove it"
        return None, [Problem(file, line, column, message, snippet(text, line, column), code="yaml")]
    builder = _Builder(file, text)
    try:
        root = builder.build(yaml.parse(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = builder.inside(mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = " ".join(part for part in (error.context, error.problem) if part)
        return None, [builder.problem(line, column, f"this is not valid YAML: {what}", "yaml")]
    except (yaml.YAMLError, UnicodeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return None, [builder.problem(1, 1, f"this is not valid YAML: {first}", "yaml")]
    if builder.problems:
        return None, builder.problems
    if root is None:
        return None, [Problem(file, 1, 1, "the file is empty", code="yaml")]
    return root, []


def _place(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


class _Builder:
    """Turns parser events into nodes; stops at the first thing that is out of bounds."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self.lines = text.split("\n")
        self.problems: list[Problem] = []
        self.stack: list[tuple[Node, list[Node]]] = []
        self.root: Node | None = None
        self.count = 0

    def problem(self, line: int, column: int, message: str, code: str) -> Problem:
        return Problem(self.file, line, column, message, snippet(self.text, line, column), code=code)

    def build(self, events: Iterator[yaml.Event]) -> Node | None:
        for event in events:
            refused = self._refusal(event)
            if refused:
                line, column = self._start(event)
                self.problems.append(self.problem(line, column, refused, "yaml"))
                return None
            self._take(event)
        return self.root

    def _refusal(self, event: yaml.Event) -> str | None:
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            return "YAML anchors and aliases are not used in policy files; write the text out"
        if isinstance(event, yaml.NodeEvent) and getattr(event, "tag", None) not in (None, "!"):
            return "YAML tags are not used in policy files; remove the '!'"
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            return "a policy file holds one document; put the second in a file of its own"
        if isinstance(event, yaml.NodeEvent):
            self.count += 1
            if self.count > MAX_NODES:
                return f"the file has more than {MAX_NODES:,} parts; split it"
        if isinstance(event, yaml.CollectionStartEvent) and len(self.stack) >= MAX_DEPTH:
            return f"the file is nested more than {MAX_DEPTH} deep"
        return None

    def _take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            kind: Kind = "map" if isinstance(event, yaml.MappingStartEvent) else "list"
            self.stack.append((Node(kind, *self._start(event)), []))
        elif isinstance(event, yaml.CollectionEndEvent):
            node, parts = self.stack.pop()
            if node.kind == "list":
                node.items = parts
            else:
                node.entries = list(zip(parts[::2], parts[1::2], strict=True))
                self._refuse_double_keys(node)
            self._add(node)

    def _add(self, node: Node) -> None:
        if self.stack:
            self.stack[-1][1].append(node)
        else:
            self.root = node

    def _refuse_double_keys(self, node: Node) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.entries:
            if key.kind != "text":
                self.problems.append(self.problem(key.line, key.column, "a key must be plain text", "yaml"))
            elif key.text in seen:
                message = f"the key '{key.text}' is here twice (first in line {seen[key.text]}); remove one"
                self.problems.append(self.problem(key.line, key.column, message, "duplicate-key"))
            else:
                seen[key.text] = key.line

    def _start(self, event: yaml.Event) -> tuple[int, int]:
        """Line and column of an event, counted from 1."""
        mark = event.start_mark
        assert mark is not None, "the parser marks every event"
        return self.inside(mark.line + 1, mark.column + 1)

    def inside(self, line: int, column: int) -> tuple[int, int]:
        """What is marked one line behind the end of the file belongs to its last line."""
        last = len(self.lines)
        return (line, column) if line <= last else (last, len(self.lines[-1]) + 1)

    def _scalar(self, event: yaml.ScalarEvent) -> Node:
        line, column = self._start(event)
        style = event.style or ""
        if style in ("|", ">"):
            raw, first = self._block(line - 1)
            return Node("text", min(first, len(self.lines)), 1, event.value, style, raw)
        end = event.end_mark
        assert end is not None, "the parser marks every event"
        raw = self._between(line - 1, column - 1, end.line, end.column)
        return Node("text", line, column, event.value, style, raw)

    def _between(self, line: int, column: int, end_line: int, end_column: int) -> str:
        if end_line == line:
            return self.lines[line][column:end_column]
        middle = self.lines[line + 1 : end_line]
        last = self.lines[end_line][:end_column] if end_line < len(self.lines) else ""
        return "\n".join([self.lines[line][column:], *middle, last])

    def _block(self, header: int) -> tuple[str, int]:
        """The lines below a block header that belong to it, as they stand in the file, and the number of the first."""
        owner = self.lines[header]
        key_indent = len(owner) - len(owner.lstrip(" -"))
        taken: list[str] = []
        for raw in self.lines[header + 1 :]:
            if raw.strip() and len(raw) - len(raw.lstrip(" ")) <= _dash_indent(owner, key_indent):
                break
            taken.append(raw)
        while taken and not taken[-1].strip():
            taken.pop()
        return "\n".join(taken), header + 2


def _dash_indent(owner: str, key_indent: int) -> int:
    """The indent that ends a block: that of its key, or of the dash for a block that is itself a list item."""
    after_key = owner[key_indent:]
    return owner.index("-") if after_key[:1] in ("|", ">") and "-" in owner[:key_indent] else key_indent
