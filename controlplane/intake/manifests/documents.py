"""YAML text to documents whose every field knows its path and its line.

A refusal must say ``file:line`` and the field's name, so values are read from YAML's own nodes, never from plain
dicts. Nothing is constructed: no tags, no merge keys, no expansion of aliases beyond what a converter looks at.
``null`` counts as absent, as it does in Kubernetes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from controlplane.intake.tables import shown, whole_number
from controlplane.intake.traces import IntakeError

MAX_TEXT = 2**20
"""Characters of one file. A Kubernetes object is at most 1.5 MiB; a job that is written by hand is a few KiB."""
MAX_ITEMS = 10_000
"""Elements of one list."""
_LONGEST_KEY = 120
"""Characters of a key that are repeated to the user."""
_NULL = "tag:yaml.org,2002:null"
_BOOL = "tag:yaml.org,2002:bool"
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")


class Field:
    """One value of a document: a mapping, a list, a scalar, or absent."""

    __slots__ = ("_entries", "_node", "file", "line", "path")

    def __init__(self, file: str, path: str, node: Node | None, line: int) -> None:
        self.file = file
        self.path = path
        self.line = line
        self._node = None if isinstance(node, ScalarNode) and node.tag == _NULL else node
        self._entries: dict[str, tuple[Node, int]] | None = None

    @property
    def is_present(self) -> bool:
        """False for a field that is not there or null."""
        return self._node is not None

    @property
    def is_empty(self) -> bool:
        """True for an absent field, ``{}``, ``[]`` and empty text."""
        return self._node is None or not self._node.value

    @property
    def is_mapping(self) -> bool:
        return isinstance(self._node, MappingNode)

    def get(self, key: str) -> Field:
        """A field of a mapping; absent if it or the mapping is not there."""
        node, line = self._mapping().get(key, (None, self.line))
        return Field(self.file, _joined(self.path, key), node, line)

    def at(self, *keys: str) -> Field:
        """:meth:`get` several times."""
        field = self
        for key in keys:
            field = field.get(key)
        return field

    def fields(self) -> Iterator[tuple[str, Field]]:
        """The fields of a mapping that are not null, in the order of the file."""
        for key in self._mapping():
            field = self.get(key)
            if field.is_present:
                yield key, field

    def items(self) -> list[Field]:
        """The elements of a list; empty if it is absent."""
        if self._node is None:
            return []
        if not isinstance(self._node, SequenceNode):
            raise self._wrong_form("a list")
        if len(self._node.value) > MAX_ITEMS:
            raise self.fault(f"has more than {MAX_ITEMS:,} elements", "split it")
        return [
            Field(self.file, f"{self.path}[{index}]", node, node.start_mark.line + 1)
            for index, node in enumerate(self._node.value)
        ]

    def text(self, default: str | None = None) -> str:
        """A scalar as it is written."""
        if self._node is None:
            if default is None:
                raise self.fault("is missing", "give it")
            return default
        if not isinstance(self._node, ScalarNode):
            raise self._wrong_form("a single value")
        return str(self._node.value)

    def whole(self, most: int, least: int = 0, default: int | None = None) -> int:
        """An integer between bounds."""
        if self._node is None and default is not None:
            return default
        return whole_number(self.file, self.line, self.path, self.text(), most, least)

    def flag(self, *, default: bool) -> bool:
        """True or false."""
        if self._node is None:
            return default
        if not isinstance(self._node, ScalarNode) or self._node.tag != _BOOL:
            raise self._wrong_form("true or false")
        return str(self._node.value).lower() in {"true", "yes", "on"}

    def fault(self, what: str, fix: str) -> IntakeError:
        """An error at this field; ``what`` goes on from its name: ``is missing``."""
        return IntakeError(self.file, self.line, f"{self.path or 'the document'} {what}", fix)

    def _mapping(self) -> dict[str, tuple[Node, int]]:
        if self._entries is None:
            self._entries = self._read_mapping()
        return self._entries

    def _read_mapping(self) -> dict[str, tuple[Node, int]]:
        entries: dict[str, tuple[Node, int]] = {}
        if self._node is None:
            return entries
        if not isinstance(self._node, MappingNode):
            raise self._wrong_form("a mapping")
        for key, value in self._node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode) or key.tag == _MERGE:
                raise IntakeError(self.file, line, f"{self.path} has a key that is no name", "write the fields out")
            if key.value in entries:
                what = f"{_joined(self.path, key.value)} is there twice"
                raise IntakeError(self.file, line, what, "keep one of them")
            entries[key.value] = (value, line)
        return entries

    def _wrong_form(self, wanted: str) -> IntakeError:
        if isinstance(self._node, ScalarNode):
            given = shown(str(self._node.value))
        else:
            given = "a mapping" if isinstance(self._node, MappingNode) else "a list"
        return self.fault(f"is {given}, not {wanted}", "correct it")


def _joined(path: str, key: str) -> str:
    """``spec.tasks[0].name``; keys with dots or slashes are put in brackets."""
    if not _PLAIN_KEY.match(key):
        return f"{path}[{key[:_LONGEST_KEY]!a}]"
    return f"{path}.{key}" if path else key


def documents(file: str, text: str) -> list[Field]:
    """The YAML documents of a text, without the empty ones. Raises :class:`IntakeError` for what is no YAML."""
    if len(text) > MAX_TEXT:
        raise IntakeError(file, 0, f"the file is longer than {MAX_TEXT:,} characters", "split it")
    try:
        nodes = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join((error.problem or error.context or "cannot be parsed").split())
        raise IntakeError(file, mark.line + 1 if mark else 0, f"not YAML ({problem})", "correct it") from error
    except yaml.YAMLError as error:
        raise IntakeError(file, 0, "not YAML (characters that YAML does not allow)", "correct it") from error
    except RecursionError as error:
        raise IntakeError(file, 0, "the YAML is nested too deep", "flatten it") from error
    found = [Field(file, "", node, node.start_mark.line + 1) for node in nodes]
    return [field for field in found if field.is_present]
