"""The typed tree of a checked expression, read from the engine's serialised form.

The wire format is ``cel.expr.CheckedExpr`` of the CEL specification (checked.proto, syntax.proto), wrapped in an Any.
Only what the checks need is kept: shape, names, types, positions. Nothing here evaluates.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

NodeKind = Literal["const", "ident", "select", "call", "list", "struct", "comprehension"]
Constant = bool | int | float | str | bytes | None


@dataclass(slots=True)
class Tree:
    """One node of an expression."""

    kind: NodeKind
    id: int
    type: str = "dyn"
    """As CEL spells it, such as ``list<int>``."""
    offset: int = 0
    """Where it stands in the source, in characters."""
    name: str = ""
    """Of an ident: the name. Of a select: the field. Of a call: the function. Of a struct: the message."""
    constant: Constant = None
    is_test: bool = False
    """Of a select: whether it is ``has(...)``."""
    is_member: bool = False
    """Of a call: whether it was written ``target.f(...)``; the target is the first child."""
    children: list[Tree] = field(default_factory=list)
    """Of a select: operand. Of a call: arguments. Of a list: elements. Of a struct: keys and values in turn. Of a
    comprehension: range, start, condition, step, result."""
    loop: tuple[str, str, str] = ("", "", "")
    """Of a comprehension: loop variable, second loop variable or empty, accumulator."""

    def walk(self) -> Iterator[Tree]:
        """This node and all below, parents first."""
        stack = [self]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children))


Fields = dict[int, list[int | bytes]]


def _fields(data: bytes) -> Fields:
    """The fields of one protobuf message: varints and fixed numbers as int, everything else as bytes."""
    found: Fields = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value: int | bytes
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
            case 1:
                value, at = data[at : at + 8], at + 8
            case 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            case 5:
                value, at = data[at : at + 4], at + 4
            case kind:
                raise ValueError(f"wire type {kind} is not part of a checked expression")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _bytes(fields: Fields, number: int) -> bytes:
    found = fields.get(number)
    return found[-1] if found and isinstance(found[-1], bytes) else b""


def _text(fields: Fields, number: int) -> str:
    return _bytes(fields, number).decode()


def _int(fields: Fields, number: int) -> int:
    found = fields.get(number)
    return found[-1] if found and isinstance(found[-1], int) else 0


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _messages(fields: Fields, number: int) -> list[bytes]:
    return [value for value in fields.get(number, []) if isinstance(value, bytes)]


_PRIMITIVES = {1: "bool", 2: "int", 3: "uint", 4: "double", 5: "string", 6: "bytes"}
_WELL_KNOWN = {1: "any", 2: "google.protobuf.Timestamp", 3: "google.protobuf.Duration"}


def _type(data: bytes) -> str:
    fields = _fields(data)
    number = next(iter(fields), 1)
    inner = _bytes(fields, number)
    match number:
        case 2:
            return "null"
        case 3:
            return _PRIMITIVES.get(_int(fields, 3), "dyn")
        case 4:
            return f"wrapper<{_PRIMITIVES.get(_int(fields, 4), 'dyn')}>"
        case 5:
            return _WELL_KNOWN.get(_int(fields, 5), "any")
        case 6:
            return f"list<{_type(_bytes(_fields(inner), 1))}>"
        case 7:
            pair = _fields(inner)
            return f"map<{_type(_bytes(pair, 1))}, {_type(_bytes(pair, 2))}>"
        case 9:
            return inner.decode()
        case 11:
            return f"type<{_type(inner)}>"
        case 14:
            shape = _fields(inner)
            params = ", ".join(_type(param) for param in _messages(shape, 2))
            return f"{_text(shape, 1)}<{params}>" if params else _text(shape, 1)
        case _:
            return "dyn"


class _Reader:
    def __init__(self, checked: Fields) -> None:
        self.types: dict[int, str] = {}
        for entry in _messages(checked, 3):
            pair = _fields(entry)
            self.types[_int(pair, 1)] = _type(_bytes(pair, 2))
        self.names: dict[int, str] = {}
        for entry in _messages(checked, 2):
            pair = _fields(entry)
            self.names[_int(pair, 1)] = _text(_fields(_bytes(pair, 2)), 1)
        self.offsets: dict[int, int] = {}
        for entry in _messages(_fields(_bytes(checked, 5)), 4):
            pair = _fields(entry)
            self.offsets[_int(pair, 1)] = _int(pair, 2)

    def read(self, data: bytes) -> Tree:
        fields = _fields(data)
        number = _int(fields, 2)
        kind, inner = next(((k, _bytes(fields, k)) for k in (3, 4, 5, 6, 7, 8, 9) if k in fields), (3, b""))
        node = Tree("const", number, self.types.get(number, "dyn"), self.offsets.get(number, 0))
        shape = _fields(inner)
        match kind:
            case 3:
                node.constant = _constant(shape)
            case 4:
                node.kind, node.name = "ident", self.names.get(number) or _text(shape, 1)
            case 5:
                self._select(node, shape)
            case 6:
                node.kind, node.name = "call", _text(shape, 2)
                node.is_member = 1 in shape
                node.children = [self.read(part) for part in [*_messages(shape, 1), *_messages(shape, 3)]]
            case 7:
                node.kind = "list"
                node.children = [self.read(part) for part in _messages(shape, 1)]
            case 8:
                self._struct(node, shape)
            case _:
                node.kind = "comprehension"
                node.loop = (_text(shape, 1), _text(shape, 8), _text(shape, 3))
                node.children = [self.read(_bytes(shape, part)) for part in (2, 4, 5, 6, 7)]
        return node

    def _select(self, node: Tree, shape: Fields) -> None:
        resolved = self.names.get(node.id)
        if resolved and not _int(shape, 3):
            node.kind, node.name = "ident", resolved
            return
        node.kind, node.name, node.is_test = "select", _text(shape, 2), bool(_int(shape, 3))
        node.children = [self.read(_bytes(shape, 1))]

    def _struct(self, node: Tree, shape: Fields) -> None:
        node.kind, node.name = "struct", _text(shape, 1)
        for part in _messages(shape, 2):
            entry = _fields(part)
            if 3 in entry:
                node.children.append(self.read(_bytes(entry, 3)))
            else:
                node.children.append(Tree("const", _int(entry, 1), "string", constant=_text(entry, 2)))
            node.children.append(self.read(_bytes(entry, 4)))


def _constant(shape: Fields) -> Constant:
    number = next(iter(shape), 1)
    match number:
        case 2:
            return bool(_int(shape, 2))
        case 3:
            return _signed(_int(shape, 3))
        case 4:
            return _int(shape, 4)
        case 5:
            value: float = struct.unpack("<d", _bytes(shape, 5))[0]
            return value
        case 6:
            return _text(shape, 6)
        case 7:
            return _bytes(shape, 7)
        case _:
            return None


def read_tree(serialised: bytes) -> Tree:
    """The tree inside what ``Expression.serialize()`` gives."""
    checked = _fields(_bytes(_fields(serialised), 2))
    return _Reader(checked).read(_bytes(checked, 4))
