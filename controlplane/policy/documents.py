"""Policy files as documents: CEL Policy YAML, the bundle's own file, and tests, each part with its place in the file.

This module knows the shape of files and nothing of what the expressions in them mean. Everything wrong is collected as
problems, so that an author sees all of it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import ConfigDict

from controlplane.domain.model import Model
from controlplane.policy.problems import Problem, snippet, suggestion
from controlplane.policy.vocabulary import BY_NAME
from controlplane.policy.yamltext import Node, normalise, parse_yaml

MAX_EXPRESSION_CHARS = 8_192
"""The engine takes 100,000; nobody can review that much in one expression."""
MAX_EXPRESSIONS = 400
"""Variables, conditions and outputs of one file."""


class Place(Model):
    """A position in a file, counted from 1."""

    file: str
    line: int
    column: int


class Expression(Model):
    """CEL source, with what is needed to find a character of it in the file."""

    text: str
    raw: str
    """The same as it stands in the file, quotes and escapes included."""
    style: str
    at: Place
    """Where ``raw`` starts."""

    def locate(self, offset: int) -> Place:
        """The place in the file of the character ``offset`` of ``text``."""
        found = _raw_offset(self.raw, self.style, self.text, offset)
        before = self.raw[:found]
        line = before.count("\n")
        column = found - (before.rfind("\n") + 1) + (self.at.column if line == 0 else 1)
        return Place(file=self.at.file, line=self.at.line + line, column=column)


class VariableDocument(Model):
    """A named expression of a rule."""

    name: str
    expression: Expression
    at: Place


class MatchDocument(Model):
    """One case of a rule: ``output`` or ``rule``, never both."""

    condition: Expression | None = None
    output: Expression | None = None
    rule: RuleDocument | None = None
    explanation: Expression | None = None
    at: Place


class RuleDocument(Model):
    """Variables and cases, in the order of the file."""

    id: str = ""
    description: str = ""
    variables: tuple[VariableDocument, ...] = ()
    match: tuple[MatchDocument, ...] = ()
    at: Place


class PolicyDocument(Model):
    """One rule file."""

    file: str
    name: str
    display_name: str = ""
    description: str = ""
    point: str | None = None
    point_at: Place | None = None
    imports: tuple[tuple[str, Place], ...] = ()
    rule: RuleDocument


ParamValue = bool | int | float | str | tuple[str, ...] | tuple[int, ...]
ParamType = Literal["bool", "int", "double", "string", "list<string>", "list<int>"]
PARAM_TYPES: tuple[ParamType, ...] = ("bool", "int", "double", "string", "list<string>", "list<int>")


class ParamDocument(Model):
    """A parameter of a bundle: rules read it as ``params.<name>``."""

    name: str
    type: ParamType
    default: ParamValue
    unit: str = ""
    description: str = ""
    at: Place


class BundleDocument(Model):
    """``bundle.yaml``: which files answer which point, in which order."""

    name: str
    description: str = ""
    points: tuple[tuple[str, tuple[tuple[str, Place], ...]], ...] = ()
    params: tuple[ParamDocument, ...] = ()


PlainValue = bool | int | float | str | None | list["PlainValue"] | dict[str, "PlainValue"]


class InputDocument(Model):
    """One input of a test: a value as it is, or an expression that gives it."""

    value: Node | None = None
    expr: Expression | None = None
    at: Place

    model_config = ConfigDict(arbitrary_types_allowed=True)


class CaseDocument(Model):
    """One test of a rule."""

    name: str
    input: tuple[tuple[str, InputDocument], ...] = ()
    output: Expression | None = None
    """An expression of the value that is expected."""
    output_value: Node | None = None
    """The value that is expected, as it is."""
    explanation: Expression | None = None
    at: Place

    model_config = ConfigDict(arbitrary_types_allowed=True)


class SuiteDocument(Model):
    """The tests beside one rule file."""

    file: str
    description: str = ""
    sections: tuple[tuple[str, tuple[CaseDocument, ...]], ...] = ()


# --- reading ---------------------------------------------------------------------------------------------------------


class Reader:
    """Reads one file. ``problems`` is complete once the reading method has returned."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = normalise(text)
        self.problems: list[Problem] = []
        self.expressions = 0

    def policy(self) -> PolicyDocument | None:
        """The file as a policy; ``None`` if it is too broken to go on."""
        root = self._root()
        if root is None:
            return None
        keys = self._map(root, _POLICY_KEYS, "a policy")
        if keys is None:
            return None
        rule_node = keys.get("rule")
        if rule_node is None:
            self._say(root, "a policy needs a 'rule'", "shape")
            return None
        point = keys.get("point")
        document = PolicyDocument(
            file=self.file,
            name=self._text(keys.get("name"), "name"),
            display_name=self._text(keys.get("display_name"), "display_name"),
            description=self._text(keys.get("description"), "description"),
            point=self._point(point) if point else None,
            point_at=self._at(point) if point else None,
            imports=self._imports(keys.get("imports")),
            rule=self._rule(rule_node),
        )
        return None if self.problems else document

    def bundle(self) -> BundleDocument | None:
        """The file as ``bundle.yaml``."""
        root = self._root()
        keys = self._map(root, _BUNDLE_KEYS, "a bundle") if root else None
        if root is None or keys is None:
            return None
        name = self._text(keys.get("name"), "name")
        if not name and not self.problems:
            self._say(root, "a bundle needs a 'name'", "shape")
        points: list[tuple[str, tuple[tuple[str, Place], ...]]] = []
        for key, value in self._entries(keys.get("points"), "points"):
            files = [(self._text(item, "file"), self._at(item)) for item in self._items(value, "files")]
            points.append((self._point(key), tuple(files)))
        params = [self._param(key, value) for key, value in self._entries(keys.get("params"), "params")]
        if self.problems:
            return None
        return BundleDocument(
            name=name,
            description=self._text(keys.get("description"), "description"),
            points=tuple(points),
            params=tuple(param for param in params if param is not None),
        )

    def suite(self) -> SuiteDocument | None:
        """The file as a test suite."""
        root = self._root()
        keys = self._map(root, _SUITE_KEYS, "a test file") if root else None
        if root is None or keys is None:
            return None
        sections = [self._section(node) for node in self._items(keys.get("section") or keys.get("sections"), "section")]
        description = self._text(keys.get("description"), "description")
        if self.problems:
            return None
        return SuiteDocument(file=self.file, description=description, sections=tuple(sections))

    def facts(self) -> tuple[tuple[str, InputDocument], ...]:
        """The file as the input of one question; of a whole test its ``input``."""
        root = self._root()
        entries = self._entries(root, "the facts") if root is not None else []
        if any(key.text == "input" for key, _ in entries) and all(key.text in _CASE_KEYS for key, _ in entries):
            entries = self._entries(next(value for key, value in entries if key.text == "input"), "input")
        return tuple((key.text, self._input(value)) for key, value in entries)

    # -- parts of a policy

    def _rule(self, node: Node) -> RuleDocument:
        at = self._at(node)
        keys = self._map(node, _RULE_KEYS, "a rule")
        if keys is None:
            return RuleDocument(at=at)
        matches = tuple(self._match(item) for item in self._items(keys.get("match"), "match"))
        if not matches and not self.problems:
            self._say(node, "a rule needs at least one 'match'", "shape")
        return RuleDocument(
            id=self._text(keys.get("id"), "id"),
            description=self._text(keys.get("description"), "description"),
            variables=tuple(self._variables(keys.get("variables"))),
            match=matches,
            at=at,
        )

    def _variables(self, node: Node | None) -> list[VariableDocument]:
        found: list[VariableDocument] = []
        for item in self._items(node, "variables"):
            pair = self._variable_parts(item)
            if pair is None:
                continue
            name, expression = pair
            text = self._text(name, "name")
            if not text.isidentifier() or not text.isascii():
                self._say(name, f"'{text}' is not a name; use letters, digits and '_'", "shape")
            if any(text == other.name for other in found):
                self._say(name, f"the variable '{text}' is defined twice in this rule", "duplicate-variable")
            found.append(VariableDocument(name=text, expression=self._expression(expression), at=self._at(name)))
        return found

    def _variable_parts(self, item: Node) -> tuple[Node, Node] | None:
        """``name`` and ``expression``, or the short form of one pair, name to expression."""
        if item.kind == "map" and len(item.entries) == 1 and item.entries[0][0].text not in _VARIABLE_KEYS:
            return item.entries[0]
        keys = self._map(item, _VARIABLE_KEYS, "a variable")
        if keys is None:
            return None
        name, expression = keys.get("name"), keys.get("expression")
        if name is None or expression is None:
            self._say(item, "a variable needs a 'name' and an 'expression'", "shape")
            return None
        return name, expression

    def _match(self, node: Node) -> MatchDocument:
        at = self._at(node)
        keys = self._map(node, _MATCH_KEYS, "a match")
        if keys is None:
            return MatchDocument(at=at)
        condition, output, rule, explanation = (keys.get(key) for key in _MATCH_KEYS)
        if (output is None) == (rule is None):
            self._say(node, "a match has either an 'output' or a 'rule'", "shape")
        if explanation is not None and rule is not None:
            self._say(explanation, "an 'explanation' goes with an 'output', not with a nested 'rule'", "shape")
        return MatchDocument(
            condition=self._expression(condition) if condition else None,
            output=self._expression(output) if output else None,
            rule=self._rule(rule) if rule else None,
            explanation=self._expression(explanation) if explanation else None,
            at=at,
        )

    def _imports(self, node: Node | None) -> tuple[tuple[str, Place], ...]:
        found: list[tuple[str, Place]] = []
        for item in self._items(node, "imports"):
            keys = self._map(item, {"name"}, "an import")
            name = keys.get("name") if keys else None
            if name is not None:
                found.append((self._text(name, "name"), self._at(name)))
        return tuple(found)

    def _point(self, node: Node) -> str:
        name = self._text(node, "point")
        if name not in BY_NAME and not self.problems:
            known = ", ".join(BY_NAME)
            message = f"there is no decision point '{name}'{suggestion(name, BY_NAME)} (the points are {known})"
            self._say(node, message, "unknown-point")
        return name

    # -- parts of a bundle

    def _param(self, key: Node, node: Node) -> ParamDocument | None:
        keys = self._map(node, _PARAM_KEYS, "a parameter")
        if keys is None:
            return None
        type_node, default = keys.get("type"), keys.get("default")
        if type_node is None or default is None:
            self._say(node, f"the parameter '{key.text}' needs a 'type' and a 'default'", "shape")
            return None
        if not key.text.isidentifier() or not key.text.isascii():
            self._say(key, f"'{key.text}' is not a name; use letters, digits and '_'", "shape")
        named = next((known for known in PARAM_TYPES if known == type_node.text), None)
        if named is None:
            types = ", ".join(PARAM_TYPES)
            self._say(type_node, f"'{type_node.text}' is not a type of parameters (they are {types})", "shape")
            return None
        value = self._param_value(default, named)
        if value is None:
            self._say(default, f"the default of '{key.text}' is not a {named}", "wrong-type")
            return None
        return ParamDocument(
            name=key.text,
            type=named,
            default=value,
            unit=self._text(keys.get("unit"), "unit"),
            description=self._text(keys.get("description"), "description"),
            at=self._at(key),
        )

    def _param_value(self, node: Node, named: ParamType) -> ParamValue | None:
        if named == "list<string>" and node.kind == "list":
            texts = [self._text(item, "default") for item in node.items]
            return tuple(texts)
        if named == "list<int>" and node.kind == "list":
            numbers = [plain_value(item) for item in node.items]
            ints = [number for number in numbers if isinstance(number, int) and not isinstance(number, bool)]
            return tuple(ints) if len(ints) == len(numbers) else None
        if named == "string" and node.kind == "text":
            return node.text
        value = plain_value(node)
        if named == "bool":
            return value if isinstance(value, bool) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if named == "double":
            return float(value)
        return value if named == "int" and isinstance(value, int) and abs(value) < 2**63 else None

    # -- parts of a test suite

    def _section(self, node: Node) -> tuple[str, tuple[CaseDocument, ...]]:
        keys = self._map(node, _SECTION_KEYS, "a section") or {}
        cases = tuple(self._case(item) for item in self._items(keys.get("tests"), "tests"))
        return self._text(keys.get("name"), "name"), cases

    def _case(self, node: Node) -> CaseDocument:
        keys = self._map(node, _CASE_KEYS, "a test") or {}
        inputs = [(key.text, self._input(value)) for key, value in self._entries(keys.get("input"), "input")]
        output = keys.get("output")
        wants_nothing = output is None or output.is_null
        explanation = keys.get("explanation")
        expression, value = output, None
        if output is not None and output.kind == "map":
            parts = self._map(output, {"value", "expr"}, "an output") or {}
            expression, value = parts.get("expr"), parts.get("value")
        return CaseDocument(
            name=self._text(keys.get("name"), "name"),
            input=tuple(inputs),
            output=None if wants_nothing or expression is None else self._expression(expression),
            output_value=value,
            explanation=self._expression(explanation) if explanation else None,
            at=self._at(node),
        )

    def _input(self, node: Node) -> InputDocument:
        at = self._at(node)
        if node.kind == "map" and len(node.entries) == 1:
            key, value = node.entries[0]
            if key.text == "value":
                return InputDocument(value=value, at=at)
            if key.text == "expr":
                return InputDocument(expr=self._expression(value), at=at)
        return InputDocument(value=node, at=at)

    # -- nodes

    def _root(self) -> Node | None:
        root, problems = parse_yaml(self.file, self.text)
        self.problems.extend(problems)
        return root

    def _map(self, node: Node, known: Mapping[str, None] | set[str], what: str) -> dict[str, Node] | None:
        if node.kind != "map":
            self._say(node, f"{what} is written as keys and values, not as {_KINDS[node.kind]}", "shape")
            return None
        for key, _ in node.entries:
            if key.text not in known:
                hint = suggestion(key.text, known)
                message = f"{what} has no key '{key.text}'{hint} (its keys are {', '.join(sorted(known))})"
                self._say(key, message, "unknown-key")
        return {key.text: value for key, value in node.entries}

    def _entries(self, node: Node | None, what: str) -> list[tuple[Node, Node]]:
        if node is None or node.is_null:
            return []
        if node.kind != "map":
            self._say(node, f"'{what}' is written as keys and values, not as {_KINDS[node.kind]}", "shape")
            return []
        return node.entries

    def _items(self, node: Node | None, what: str) -> list[Node]:
        if node is None or node.is_null:
            return []
        if node.kind != "list":
            self._say(node, f"'{what}' is written as a list ('- ...'), not as {_KINDS[node.kind]}", "shape")
            return []
        return node.items

    def _text(self, node: Node | None, what: str) -> str:
        if node is None:
            return ""
        if node.kind != "text":
            self._say(node, f"'{what}' is a text, not {_KINDS[node.kind]}", "shape")
            return ""
        return node.text

    def _expression(self, node: Node) -> Expression:
        at = self._at(node)
        text = node.raw if node.style in ("|", ">") else node.text
        if node.kind != "text":
            self._say(node, f"an expression is a text, not {_KINDS[node.kind]}; put it in quotes", "shape")
        elif not text.strip():
            self._say(node, "the expression is empty", "shape")
        elif len(text) > MAX_EXPRESSION_CHARS:
            limit = f"{MAX_EXPRESSION_CHARS:,}"
            self._say(node, f"the expression is longer than {limit} characters; use variables", "too-large")
        self.expressions += 1
        if self.expressions == MAX_EXPRESSIONS + 1:
            self._say(node, f"the file has more than {MAX_EXPRESSIONS} expressions; split it", "too-large")
        return Expression(text=text, raw=node.raw, style=node.style, at=at)

    def _at(self, node: Node) -> Place:
        return Place(file=self.file, line=node.line, column=node.column)

    def _say(self, node: Node, message: str, code: str) -> None:
        shown = snippet(self.text, node.line, node.column)
        self.problems.append(Problem(self.file, node.line, node.column, message, shown, code=code))


_KINDS = {"text": "a single text", "list": "a list", "map": "keys and values"}
_POLICY_KEYS = dict.fromkeys(("name", "display_name", "description", "point", "imports", "rule"))
_RULE_KEYS = dict.fromkeys(("id", "description", "variables", "match"))
_VARIABLE_KEYS = dict.fromkeys(("name", "expression", "description", "display_name"))
_MATCH_KEYS = dict.fromkeys(("condition", "output", "rule", "explanation"))
_BUNDLE_KEYS = dict.fromkeys(("name", "description", "points", "params"))
_PARAM_KEYS = dict.fromkeys(("type", "default", "unit", "description"))
_SUITE_KEYS = dict.fromkeys(("name", "description", "section", "sections"))
_SECTION_KEYS = dict.fromkeys(("name", "description", "tests"))
_CASE_KEYS = dict.fromkeys(("name", "description", "input", "output", "explanation"))


def plain_value(node: Node) -> PlainValue:
    """The value that YAML (its core schema, with decimal integers) reads from a node."""
    if node.kind == "list":
        return [plain_value(item) for item in node.items]
    if node.kind == "map":
        return {key.text: plain_value(value) for key, value in node.entries}
    if node.style:
        return node.text
    if node.is_null:
        return None
    if node.text in ("true", "True", "TRUE"):
        return True
    if node.text in ("false", "False", "FALSE"):
        return False
    return _number(node.text)


def _number(text: str) -> int | float | str:
    if not text[:1].isascii() or text[:1] not in "0123456789+-." or "_" in text:
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


# --- from a character of an expression to its place in the file ------------------------------------------------------

_ESCAPE_LENGTHS = {"x": 4, "u": 6, "U": 10}


def _raw_offset(raw: str, style: str, text: str, offset: int) -> int:
    """Where character ``offset`` of the value stands in the raw scalar, by walking both side by side."""
    if style in ("|", ">") or raw == text:
        return min(offset, len(raw))
    at, value = (1 if style in ("'", '"') else 0), 0
    while value < offset and at < len(raw):
        step, read = _one_character(raw, at, style)
        at += step
        value += read
    return min(at, len(raw))


def _one_character(raw: str, at: int, style: str) -> tuple[int, int]:
    """How many raw characters the next step takes, and how many characters of the value it makes."""
    char = raw[at]
    if char in " \t\n":
        end = at
        while end < len(raw) and raw[end] in " \t\n":
            end += 1
        breaks = raw.count("\n", at, end)
        if breaks:
            return end - at, max(1, breaks - 1)
    if style == "'" and raw.startswith("''", at):
        return 2, 1
    if style == '"' and char == "\\" and at + 1 < len(raw):
        if raw[at + 1] == "\n":
            return 2, 0
        return _ESCAPE_LENGTHS.get(raw[at + 1], 2), 1
    return 1, 1
