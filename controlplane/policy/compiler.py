"""From documents to compiled rules: types, names, outputs, reach, determinism and cost, each error with its place.

Every expression is compiled twice: against a protobuf description of the vocabulary, which catches what is wrong with
it, and over maps of anything, which is what evaluates it on plain dictionaries. A policy is not folded into one
expression (the engine's depth limit is 32): variables, conditions and outputs stay apart and are evaluated lazily, in
file order (:mod:`controlplane.policy.evaluation`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf import descriptor_pb2, descriptor_pool

from controlplane.policy.compiled import (
    CompiledExpression,
    CompiledMatch,
    CompiledPolicy,
    CompiledRule,
    CompiledVariable,
    is_literal,
    is_portable,
    written_out,
)
from controlplane.policy.documents import Expression, MatchDocument, ParamDocument, Place, PolicyDocument, RuleDocument
from controlplane.policy.engine import NO_PROGRAM, Base, CelExprPython, Checker, Engine, Refused, plain_words
from controlplane.policy.problems import Problem, Severity, snippet, suggestion
from controlplane.policy.reads import Read, Reading, reading
from controlplane.policy.restrictions import Bound, findings
from controlplane.policy.terms import WrongTerms, terms_of
from controlplane.policy.tree import Tree, read_tree
from controlplane.policy.vocabulary import PARAMS, RECORDS, VARIABLES, Answer, CelType, Point

# --- environments ----------------------------------------------------------------------------------------------------

_PACKAGE = "tidegate"
_FieldProto = descriptor_pb2.FieldDescriptorProto
_PROTO_TYPES = {
    "bool": _FieldProto.TYPE_BOOL,
    "int": _FieldProto.TYPE_INT64,
    "double": _FieldProto.TYPE_DOUBLE,
    "string": _FieldProto.TYPE_STRING,
}


def _describe(message: descriptor_pb2.DescriptorProto, name: str, spelled: str) -> None:
    number = len(message.field) + 1
    if spelled == CelType.LABELS:
        # protobuf takes a repeated message for a map only under exactly this name
        entry_name = "".join(part.capitalize() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        for part, at in (("key", 1), ("value", 2)):
            entry.field.add(name=part, number=at, type=_PROTO_TYPES["string"], label=_FieldProto.LABEL_OPTIONAL)
        kind = f".{_PACKAGE}.{message.name}.{entry_name}"
        message.field.add(
            name=name, number=number, type=_FieldProto.TYPE_MESSAGE, label=_FieldProto.LABEL_REPEATED, type_name=kind
        )
    elif spelled.startswith("list<"):
        element = _PROTO_TYPES[spelled.removeprefix("list<").removesuffix(">")]
        message.field.add(name=name, number=number, type=element, label=_FieldProto.LABEL_REPEATED)
    else:
        message.field.add(name=name, number=number, type=_PROTO_TYPES[spelled], label=_FieldProto.LABEL_OPTIONAL)
    message.field[-1].json_name = name  # else two parameters such as a_b and aB would clash


def _descriptors(params: Sequence[ParamDocument]) -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(name="tidegate/vocabulary.proto", package=_PACKAGE, syntax="proto3")
    for record in RECORDS:
        message = file.message_type.add(name=record.name)
        for field_ in record.fields:
            _describe(message, field_.name, str(field_.type))
    bundle_params = file.message_type.add(name="Params")
    for param in params:
        _describe(bundle_params, param.name, param.type)
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


class Environment:
    """What is shared by all rules of one bundle: descriptions, parameters, and one checker and engine per point."""

    def __init__(self, params: Sequence[ParamDocument]) -> None:
        self.params = {param.name: param for param in params}
        self._pool = _descriptors(params)
        self._checkers: dict[str, Checker] = {}
        self._engines: dict[str, CelExprPython] = {}

    def checker(self, point: Point) -> Checker:
        """Checks against the vocabulary of the point."""
        if point.name not in self._checkers:
            names = {
                variable.name: f"{_PACKAGE}.{variable.record.name}" if variable.record else "int"
                for variable in point.variables
            }
            self._checkers[point.name] = Checker(Base(descriptors=self._pool), {**names, PARAMS: f"{_PACKAGE}.Params"})
        return self._checkers[point.name]

    def engine(self, point: Point) -> Engine:
        """Evaluates over plain dictionaries at the point."""
        if point.name not in self._engines:
            names = {variable.name: "map<string, dyn>" if variable.record else "int" for variable in point.variables}
            record = "map<string, dyn>"
            self._engines[point.name] = CelExprPython({**names, PARAMS: record, VARIABLES: record})
        return self._engines[point.name]


# --- compiling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression may name, at its place in the file."""

    checker: Checker
    variables: Mapping[str, CompiledVariable | None]
    """``None`` for a variable that did not compile: it is of any type, so that the check goes on."""

    def bounds(self) -> dict[str, Bound]:
        return {
            f"{VARIABLES}.{name}": Bound(0, variable.expression.bound.size, variable.expression.bound.item)
            for name, variable in self.variables.items()
            if variable is not None
        }


class Surroundings(Protocol):
    """What a rule file is compiled in."""

    @property
    def params(self) -> Mapping[str, ParamDocument]:
        """Parameters by name."""

    def checker(self, point: Point) -> Checker:
        """The static check."""

    def engine(self, point: Point) -> Engine:
        """What evaluates."""


class PolicyCompiler:
    """Compiles one rule file. ``problems`` is complete once :meth:`compile` has returned."""

    unwraps = True
    """Whether an output of an optional type is taken apart, because its point wants what is in it."""

    def __init__(self, document: PolicyDocument, point: Point, environment: Surroundings, text: str) -> None:
        self.document = document
        self.point = point
        self.environment = environment
        self.engine = environment.engine(point)
        self.text = text
        self.problems: list[Problem] = []
        self.expressions: list[CompiledExpression] = []

    def compile(self) -> CompiledPolicy | None:
        """The policy, or ``None`` if there are errors."""
        scope = Scope(self.environment.checker(self.point), {})
        rule = self._rule(self.document.rule, scope)
        if any(problem.severity is Severity.ERROR for problem in self.problems):
            return None
        return CompiledPolicy(self.document.file, self.document.name, self.point, rule, tuple(self.expressions))

    # -- rules

    def _rule(self, document: RuleDocument, scope: Scope) -> CompiledRule:
        before = len(self.problems)
        own: list[CompiledVariable] = []
        for variable in document.variables:
            expression = self._expression(variable.expression, scope, "variable")
            compiled = CompiledVariable(variable.name, expression) if expression else None
            if compiled is not None:
                own.append(compiled)
            spelled = expression.type if expression else "dyn"
            checker = scope.checker.with_variable(f"{VARIABLES}.{variable.name}", spelled)
            scope = Scope(checker, {**scope.variables, variable.name: compiled})
        matches = tuple(self._match(match, scope) for match in document.match)
        rule = CompiledRule(tuple(own), matches, document.at)
        if len(self.problems) == before:  # a condition that does not compile says nothing about what is reached
            self._refuse_disagreement(rule)
            self._refuse_unreachable(rule)
            self._warn_of_unused(document, rule)
        return rule

    def _refuse_disagreement(self, rule: CompiledRule) -> None:
        """Outputs agree with the point, and so with one another."""

    def _match(self, document: MatchDocument, scope: Scope) -> CompiledMatch:
        condition = self._expression(document.condition, scope, "condition") if document.condition else None
        if condition is not None and condition.type != "bool" and document.condition is not None:
            message = f"a condition is true or false, but this is of type {condition.type}"
            self._say(document.condition.locate(0), message, "wrong-type")
        output = self._expression(document.output, scope, "output") if document.output else None
        if output is not None and document.output is not None:
            self._refuse_wrong_output(document.output, output)
        explanation = self._expression(document.explanation, scope, "explanation") if document.explanation else None
        if explanation is not None and explanation.type != "string" and document.explanation is not None:
            message = f"an explanation is a text, but this is of type {explanation.type}; quote it inside the quotes"
            self._say(document.explanation.locate(0), message, "wrong-type")
        rule = self._rule(document.rule, scope) if document.rule else None
        return CompiledMatch(condition, output, rule, explanation, document.at)

    def _refuse_wrong_output(self, source: Expression, output: CompiledExpression) -> None:
        if self.point.answer is Answer.PARTS:
            self._refuse_wrong_parts(source, output.tree)
            return
        wanted = self.point.answer.output
        fits = {wanted, f"optional_type<{wanted}>", "optional_type<dyn>"} if self.point.answer.is_optional else {wanted}
        is_empty_list = output.tree.kind == "list" and not output.tree.children
        if output.type in fits or (is_empty_list and wanted.startswith("list<")):
            return
        message = f"the point '{self.point.name}' is answered with {_WANTED[wanted]}, but this is of type {output.type}"
        self._say(source.locate(0), message, "wrong-output")

    def _refuse_wrong_parts(self, source: Expression, tree: Tree) -> None:
        """A map is written out with its keys, so that each is known, once, and of its type."""
        known = [part.name for part in self.point.parts]
        if tree.kind != "struct" or tree.name:
            message = (
                f"the point '{self.point.name}' is answered with a map written out, such as {{'{known[0]}': ...}}; "
                "give each case a match of its own"
            )
            self._say(source.locate(tree.offset if tree.kind == "struct" else 0), message, "wrong-output")
            return
        seen: set[object] = set()
        for key, value in zip(tree.children[::2], tree.children[1::2], strict=True):
            part = self.point.part(key.constant) if isinstance(key.constant, str) else None
            if part is None:
                name = key.constant if isinstance(key.constant, str) else "something worked out"
                message = f"the answer of '{self.point.name}' has no '{name}'{suggestion(str(name), known)}"
                self._say(source.locate(key.offset), f"{message} (it has {', '.join(known)})", "wrong-output")
            elif part.name in seen:
                self._say(source.locate(key.offset), f"'{part.name}' stands here twice", "wrong-output")
            elif value.type != part.type:
                message = f"'{part.name}' is {_WANTED[part.type]}, but this is of type {value.type}"
                self._say(source.locate(value.offset), message, "wrong-output")
            elif value.kind == "const":
                self._refuse_wrong_term(source, part.name, value)
            seen.add(key.constant)

    def _refuse_wrong_term(self, source: Expression, name: str, value: Tree) -> None:
        try:
            terms_of({name: value.constant})
        except WrongTerms as wrong:
            self._say(source.locate(value.offset), str(wrong), "wrong-output")

    def _refuse_unreachable(self, rule: CompiledRule) -> None:
        conditions: dict[str, int] = {}
        for number, match in enumerate(rule.matches):
            ends_here = match.is_unconditional and not (match.rule is not None and match.rule.may_be_silent)
            if ends_here and number < len(rule.matches) - 1:
                unreached = rule.matches[number + 1]
                message = f"this match can never be reached: the one in line {match.at.line} always applies"
                self._say(unreached.at, message, "unreachable-match")
                return
            if match.condition is None:
                continue
            if is_literal(match.condition, False):
                self._say(
                    match.at, "this match can never be reached: its condition is always false", "unreachable-match"
                )
            seen = conditions.setdefault(" ".join(match.condition.source.text.split()), match.at.line)
            if seen != match.at.line and not self._falls_through(rule, seen):
                message = f"this match can never be reached: line {seen} has the same condition"
                self._say(match.at, message, "unreachable-match")

    def _falls_through(self, rule: CompiledRule, line: int) -> bool:
        return any(match.is_unconditional for match in rule.matches if match.at.line == line)

    def _warn_of_unused(self, document: RuleDocument, rule: CompiledRule) -> None:
        unused = {variable.name for variable in rule.variables if not variable.is_used}
        for variable in document.variables:
            if variable.name in unused:
                message = f"the variable '{variable.name}' is never used; remove it"
                self._say(variable.at, message, "unused-variable", Severity.WARNING)

    # -- expressions

    def _expression(self, source: Expression, scope: Scope, role: str) -> CompiledExpression | None:
        try:
            tree = read_tree(scope.checker.check(source.text))
        except Refused as refused:
            for diagnostic in refused.diagnostics:
                if _follows_from_another(diagnostic.message, refused):
                    continue
                offset = _start_of_name(diagnostic.message, source.text, diagnostic.offset)
                message = self._sentence(diagnostic.message, source.text, offset, scope)
                self._say(source.locate(offset), message, "does-not-compile")
            return None
        read = reading(tree, self.point)
        bound = self._restrict(source, tree, read, scope)
        if bound is None:
            return None
        used = {name: scope.variables.get(name) for name in sorted(read.variables)}
        known = {name: variable for name, variable in used.items() if variable is not None}
        if len(known) < len(used):
            return None  # a variable of it has already been reported
        for variable in known.values():
            variable.is_used = True
        return self._program(source, tree, known, bound, role, (read.facts, read.params))

    def _restrict(self, source: Expression, tree: Tree, read: Reading, scope: Scope) -> Bound | None:
        """The bounds of an expression; ``None`` if it depends on what it may not, or costs too much."""
        found, bound = findings(tree, scope.bounds())
        for finding in found:
            self._say(source.locate(finding.offset), finding.message, finding.code)
        for name, offset in {name: offset for offset, name in reversed(read.whole)}.items():
            field = self._a_field(name)
            message = f"'{name}' as a whole is not a value; name one of its fields, such as {name}.{field}"
            self._say(source.locate(offset), message, "whole-record")
        return None if found or read.whole else bound

    def _program(
        self,
        source: Expression,
        tree: Tree,
        variables: dict[str, CompiledVariable],
        bound: Bound,
        role: str,
        read: tuple[frozenset[Read], frozenset[str]],
    ) -> CompiledExpression | None:
        compiled = CompiledExpression(
            source=source,
            type=tree.type,
            tree=tree,
            facts=read[0],
            variables=tuple(sorted(variables.items())),
            is_written_out=not all(is_portable(variable.expression.type) for variable in variables.values()),
            params=read[1],
            program=NO_PROGRAM,
            presence=None,
            bound=bound,
        )
        text = written_out(compiled) if compiled.is_written_out else source.text
        if text is None:
            self._say(source.locate(0), "with its variables written into it, the expression is too long", "too-large")
            return None
        try:
            if self.unwraps and tree.type.startswith("optional_type") and role == "output":
                compiled.presence = self.engine.program(f"({text}\n).hasValue()")
                compiled.program = self.engine.program(f"({text}\n).value()")
            else:
                compiled.program = self.engine.program(text)
        except Refused as refused:
            message = f"the expression cannot be run: {refused.diagnostics[0].message}"
            self._say(source.locate(0), message, "does-not-compile")
            return None
        self.expressions.append(compiled)
        return compiled

    # -- words

    def _a_field(self, name: str) -> str:
        if name == PARAMS:
            return next(iter(self.environment.params), "<name>")
        variable = self.point.variable(name)
        return variable.record.fields[0].name if variable is not None and variable.record is not None else "<name>"

    def _sentence(self, message: str, source: str, offset: int, scope: Scope) -> str:
        """The engine's message in the words of the vocabulary."""
        undefined = re.match(r"undefined field '([^']*)' not found in struct '(?:\w+\.)*(\w+)'", message)
        if undefined:
            return self._no_such_field(undefined.group(1), undefined.group(2), source, offset)
        unknown = _UNDECLARED.match(message)
        if unknown:
            return self._no_such_name(unknown.group(1), source, offset, scope)
        overload = re.match(r"found no matching overload for '([^']*)' applied to '(.*)'$", message)
        if overload:
            return _no_overload(overload.group(1), overload.group(2))
        if "recursion" in message:
            return "the expression is nested or chained too deep (32 is the limit); use variables for its parts"
        return plain_words(message).replace("tidegate.", "")

    def _no_such_field(self, name: str, struct: str, source: str, offset: int) -> str:
        if struct == "Params":
            known = suggestion(name, self.environment.params)
            return f"the bundle has no parameter '{name}'{known} (parameters stand in bundle.yaml)"
        record = next(record for record in RECORDS if record.name == struct)
        before = re.search(r"(\w+)\s*$", source[:offset])
        owner = before.group(1) if before else record.name.lower()
        return f"{owner} has no field '{name}'{suggestion(name, [field_.name for field_ in record.fields])}"

    def _no_such_name(self, name: str, source: str, offset: int, scope: Scope) -> str:
        after = re.match(r"variables\s*\.\s*(\w+)", source[offset:])
        if after:
            return f"no variable '{after.group(1)}' is defined above{suggestion(after.group(1), scope.variables)}"
        name = name.partition(".")[0]
        known = [variable.name for variable in self.point.variables] + [PARAMS, VARIABLES]
        names = ", ".join(sorted(known))
        return f"there is no '{name}' at the point '{self.point.name}'{suggestion(name, known)} (it has {names})"

    def _say(self, at: Place, message: str, code: str, severity: Severity = Severity.ERROR) -> None:
        shown = snippet(self.text, at.line, at.column)
        self.problems.append(Problem(at.file, at.line, at.column, message, shown, severity, code))


_WANTED = {
    "bool": "true or false",
    "int": "a whole number (int)",
    "list<int>": "a list of whole numbers (list<int>)",
    "list<string>": "a list of texts (list<string>)",
    "string": "a text (string)",
}


_UNDECLARED = re.compile(r"undeclared reference to '([^']*)'")


def _start_of_name(message: str, source: str, offset: int) -> int:
    """The engine points at the last dot of an unknown dotted name; people look at its start."""
    unknown = _UNDECLARED.match(message)
    if unknown is None or "." not in unknown.group(1):
        return offset
    head = r"\s*\.\s*".join(re.escape(part) for part in unknown.group(1).split(".")[:-1])
    before = re.search(head + r"\s*$", source[:offset])
    return before.start() if before else offset


def _follows_from_another(message: str, refused: Refused) -> bool:
    """After ``variables`` as a whole is unknown, the engine complains of each part of the name as well."""
    texts = [diagnostic.message for diagnostic in refused.diagnostics]
    before = texts[: texts.index(message)]
    return _UNDECLARED.match(message) is not None and any("'variables'" in other for other in before)


_SIGNS = re.compile(r"^_(.+)_$|^(.)_$")


def _no_overload(function: str, arguments: str) -> str:
    kinds = arguments.strip("()").replace("tidegate.", "")
    signs = _SIGNS.match(function)
    if function == "_?_:_":
        return f"'? :' needs true or false before '?' and the same type on both sides of ':', not ({kinds})"
    if function == "_[_]":
        return f"[ ] does not fit ({kinds})"
    if signs is None:
        return f"{function.removeprefix('@')}() cannot be applied to ({kinds})"
    sign = signs.group(1) or signs.group(2)
    hint = ""
    if {"int", "double"} == {kind.strip() for kind in kinds.split(",")}:
        hint = "; write both as whole numbers, or convert with int() or double()"
    return f"'{sign}' cannot be applied to ({kinds}){hint}"
