"""What the compiler makes of a rule file: rules, cases and expressions that are ready to be asked.

Only shapes, and one question about them: what an expression says with its variables written into it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.policy.documents import Expression, Place
from controlplane.policy.engine import Fault, Program
from controlplane.policy.reads import Read
from controlplane.policy.restrictions import RESERVED, Bound
from controlplane.policy.tree import Tree
from controlplane.policy.vocabulary import Point

MAX_WRITTEN_OUT = 100_000
"""Characters that the engine takes."""


@dataclass(slots=True, eq=False)
class CompiledExpression:
    """One expression, ready to be evaluated."""

    source: Expression
    type: str
    tree: Tree
    facts: frozenset[Read]
    """Read by this expression itself; its variables have their own."""
    variables: tuple[tuple[str, CompiledVariable], ...]
    """That it names, by name."""
    is_written_out: bool
    """Whether the program has its variables in it, because the value of one cannot leave the engine; else it is given
    their values."""
    params: frozenset[str]
    program: Program
    presence: Program | None
    """For an optional value: whether there is one. ``program`` then gives the value inside."""
    bound: Bound
    fallbacks: dict[bool, Program | Fault] = field(default_factory=dict)
    """With its variables written into it, made when one of them errs; under whether presence is asked."""


@dataclass(slots=True, eq=False)
class CompiledVariable:
    """A variable of a rule."""

    name: str
    expression: CompiledExpression
    is_used: bool = False


@dataclass(slots=True, eq=False)
class CompiledMatch:
    """One case: an output or a nested rule."""

    condition: CompiledExpression | None
    """``None`` is true."""
    output: CompiledExpression | None
    rule: CompiledRule | None
    explanation: CompiledExpression | None
    at: Place

    @property
    def is_unconditional(self) -> bool:
        """No condition, or the literal ``true``."""
        return self.condition is None or is_literal(self.condition, True)


@dataclass(slots=True, eq=False)
class CompiledRule:
    """Variables and cases."""

    variables: tuple[CompiledVariable, ...]
    matches: tuple[CompiledMatch, ...]
    at: Place

    @property
    def may_be_silent(self) -> bool:
        """Whether it can end without an answer."""
        silent = False
        for match in self.matches:
            if match.rule is not None and match.rule.may_be_silent:
                if not match.is_unconditional:
                    return True
                silent = True
            elif match.is_unconditional:
                return False
            else:
                silent = True
        return silent


@dataclass(slots=True, eq=False)
class CompiledPolicy:
    """One rule file, ready to be asked."""

    file: str
    name: str
    point: Point
    rule: CompiledRule
    expressions: tuple[CompiledExpression, ...] = field(default=())
    """All of them, in file order."""

    @property
    def facts(self) -> frozenset[Read]:
        """All that any part of it may read."""
        return frozenset(fact for expression in self.expressions for fact in expression.facts)


def is_literal(expression: CompiledExpression, value: bool) -> bool:
    return expression.tree.kind == "const" and expression.tree.constant is value


# --- variables in place ----------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""
      (?:[rR][bB]?|[bB][rR])(?:\"{3}.*?\"{3}|'{3}.*?'{3}|"[^"\n]*"|'[^'\n]*')
    | [bB]?(?:\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | //[^\n]*
    | (?<![\w.])variables\s*\.\s*(?P<name>[A-Za-z_]\w*)
    """,
    re.VERBOSE | re.DOTALL,
)


def renamed(source: str, names: Mapping[str, str]) -> str:
    """The source with ``variables.<name>`` replaced by another name each; texts and comments stay."""

    def replaced(found: re.Match[str]) -> str:
        return names.get(found.group("name") or "", found.group())

    return _TOKEN.sub(replaced, source) if names else source


def written_out(expression: CompiledExpression) -> str | None:
    """The expression with all variables that it needs bound around it, each once; ``None`` if that is too long.

    The engine evaluates such a binding when it is needed, and once: the same as a variable of the format.
    """
    order: list[CompiledVariable] = []
    _collect(expression, order)
    idents = {variable: f"{RESERVED}{number}_{variable.name}" for number, variable in enumerate(order)}
    text = _with_idents(expression, idents)
    for variable in reversed(order):
        text = f"cel.bind({idents[variable]}, {_with_idents(variable.expression, idents)}\n, {text}\n)"
        if len(text) > MAX_WRITTEN_OUT:
            return None
    return text


def _collect(expression: CompiledExpression, order: list[CompiledVariable]) -> None:
    """Variables in an order in which each comes after those that it names."""
    for _, variable in expression.variables:
        if variable not in order:
            _collect(variable.expression, order)
            order.append(variable)


def _with_idents(expression: CompiledExpression, idents: Mapping[CompiledVariable, str]) -> str:
    return renamed(expression.source.text, {name: idents[variable] for name, variable in expression.variables})


_PORTABLE = re.compile(r"(?:list<|map<(?:string|int|bool), )*(?:bool|int|double|string|null)>*")


def is_portable(spelled: str) -> bool:
    """Whether a value of this type may leave the engine and come back the same."""
    return _PORTABLE.fullmatch(spelled) is not None
