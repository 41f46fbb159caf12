"""The engines that check and evaluate CEL, behind one small interface. No other module imports one.

:class:`CelExprPython` (Google's C++ runtime) checks types and evaluates. :class:`CelPy` (pure Python, independent) is
the second opinion: it re-evaluates recorded answers and never decides. Both take plain dictionaries and give plain
values or a :class:`Fault`; no exception of theirs leaves this module.

Facts that shape this binding: a reused activation keeps stale values, so every evaluation gets its own data; errors
come back as values; strings with NUL are cut, so they are cleaned at the edge; the optional type cannot cross into
Python, so the compiler asks for its presence and its value with two expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Protocol

from cel_expr_python import cel  # type: ignore[import-untyped]

Value = bool | int | float | str | bytes | None | list["Value"] | dict["Value", "Value"]
"""What goes into an engine and what comes out."""


def show(value: Value) -> str:
    """A value as CEL writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{show(key)}: {show(value[key])}' for key in sorted(value, key=show))}}}"
    return repr(value)


@dataclass(frozen=True, slots=True)
class Fault:
    """An evaluation that ended in an error."""

    kind: str
    """One of few fixed sentences: the same for every engine, process and version, so that it may be recorded."""
    detail: str
    """What the engine said; for people, never recorded."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What the static check said about an expression. ``offset`` counts characters from the start of the source."""

    offset: int
    message: str


class Refused(Exception):
    """An expression does not compile."""

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        self.diagnostics = diagnostics
        super().__init__("; ".join(item.message for item in diagnostics))


def plain_words(message: str) -> str:
    """A diagnostic of the engine, without what its parser had hoped for."""
    if not message.startswith("Syntax error: "):
        return message
    what = re.sub(r" expecting \{.*$", "", message.removeprefix("Syntax error: "))
    return f"this is not a valid expression: {what.replace('<EOF>', 'the end')}"


class Program(Protocol):
    """An expression ready to be evaluated, any number of times."""

    def evaluate(self, data: Mapping[str, Value]) -> Value | Fault:
        """The value of the expression over these variables."""


class _NoProgram:
    """Stands where a program has not been made yet."""

    def evaluate(self, data: Mapping[str, Value]) -> Value | Fault:
        raise AssertionError("an expression was asked before it was compiled")


NO_PROGRAM: Program = _NoProgram()


class Engine(Protocol):
    """Something that evaluates CEL over plain dictionaries."""

    @property
    def name(self) -> str:
        """Name and version, such as ``cel-expr-python 0.1.3``."""

    def program(self, source: str) -> Program:
        """Raises :class:`Refused` if the source cannot be compiled."""


EXTENSIONS = ("optional", "math", "strings", "bindings", "sets", "lists", "regex", "two-var-comprehensions")
"""Libraries that rules may use."""

_CONFIG = "".join(["extensions:\n", *(f"  - name: {name}\n" for name in EXTENSIONS)])

_KINDS: tuple[tuple[str, str], ...] = (
    ("key not found", "a field or key was read that is absent"),
    ("no such key", "a field or key was read that is absent"),
    ("no such member", "a field or key was read that is absent"),
    ("index error", "a list has no element at the index"),
    ("index out of", "a list has no element at the index"),
    ("divide by zero", "a number was divided by zero"),
    ("division by zero", "a number was divided by zero"),
    ("modulus by zero", "a number was divided by zero"),
    ("modulo by zero", "a number was divided by zero"),
    ("overflow", "a number is out of range"),
    ("out of range", "a number is out of range"),
    ("out of int64", "a number is out of range"),
    ("underflow", "a number is out of range"),
    ("budget", "it takes too many steps"),
    ("no matching overload", "an operation does not fit its values"),
    ("no such overload", "an operation does not fit its values"),
)


def fault_of(detail: str) -> Fault:
    """The fault behind an engine's error text."""
    low = detail.lower()
    kind = next((sentence for mark, sentence in _KINDS if mark in low), "the evaluation failed")
    return Fault(kind, detail)


# --- cel-expr-python -------------------------------------------------------------------------------------------------

_FAILED = (cel.Type.ERROR, cel.Type.UNKNOWN)


class _CelExprProgram:
    """A program of the C++ runtime."""

    __slots__ = ("_eval",)

    def __init__(self, expression: cel.Expression) -> None:
        self._eval = expression.eval

    def evaluate(self, data: Mapping[str, Value]) -> Value | Fault:
        try:
            result = self._eval(data=data)
            value: object = result.plain_value()
            if type(value) is int or type(value) is bool:  # an error has its text for a value
                return value
            if result.type() in _FAILED:
                return fault_of(str(value))
            return _plain(value)
        except _RUNNING_FAILED as error:
            return _fault_of_exception(error)

    def native(self, data: Mapping[str, object]) -> object:
        try:
            result = self._eval(data=data)
            return fault_of(str(result.value())) if result.type() in _FAILED else result.plain_value()
        except _RUNNING_FAILED as error:
            return _fault_of_exception(error)


_RUNNING_FAILED = (RuntimeError, TypeError, ValueError, OverflowError)


def _fault_of_exception(error: Exception) -> Fault:
    return fault_of(str(error).splitlines()[0] if str(error) else type(error).__name__)


def _plain(value: object) -> Value:
    """The value without the engine's own types. Raises ``TypeError`` for one that has no plain form."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): _plain(item) for key, item in value.items()}
    if isinstance(value, bytearray):
        return bytes(value)
    raise TypeError(f"a value of type {type(value).__name__} cannot leave the rule")


def _key(key: object) -> bool | int | str:
    if isinstance(key, bool | int | str):
        return key
    raise TypeError(f"a map key of type {type(key).__name__} cannot leave the rule")


HostFunction = Callable[..., object]
"""A function that the host gives to rules; known by the id of an overload that the environment declares."""


@dataclass(frozen=True, slots=True)
class Base:
    """What an environment stands on, apart from its variables."""

    config: str = _CONFIG
    """Libraries, and what else an environment file declares (YAML of the CEL project)."""
    descriptors: object = None
    """A protobuf pool that describes messages."""
    container: str = ""
    """Names are resolved in it."""
    imports: tuple[str, ...] = ()
    """Qualified names that may be written by their last part."""
    functions: Mapping[str, HostFunction] = field(default_factory=dict)

    def env(self, variables: Mapping[str, str]) -> cel.Env:
        """``variables`` maps each name to its CEL type, such as ``map<string, dyn>``. Raises :class:`Refused`."""
        container = cel.ExpressionContainer(self.container, list(self.imports)) if self.imports else self.container
        try:
            return cel.NewEnv(
                descriptor_pool=self.descriptors,
                config=cel.NewEnvConfigFromYaml(self.config),
                variables={name: cel.Type(spelled) for name, spelled in variables.items()},
                container=container or None,
                function_impls=dict(self.functions) or None,
            )
        except (RuntimeError, ValueError, TypeError) as error:
            raise Refused(_diagnostics(str(error), self.config)) from error


class CelExprPython:
    """The deciding engine. Records are maps of anything here; the compiler has checked types before."""

    def __init__(self, variables: Mapping[str, str], base: Base | None = None) -> None:
        """``variables`` maps each name to its CEL type, such as ``map<string, dyn>``. Raises :class:`Refused`."""
        self._env = (base or Base()).env(variables)

    @property
    def name(self) -> str:
        return f"cel-expr-python {version('cel-expr-python')}"

    def program(self, source: str) -> Program:
        return _CelExprProgram(_compile(self._env, source))

    def native(self, source: str, data: Mapping[str, object]) -> object:
        """The value of an expression as Python has it (a timestamp is a ``datetime``), or a :class:`Fault`.

        Raises :class:`Refused`. Slow: compiles every time.
        """
        program = _CelExprProgram(_compile(self._env, source))
        return program.native(data)


class Checker:
    """The static check: types, names and overloads against declared variables. Raises :class:`Refused`."""

    def __init__(self, base: Base, variables: Mapping[str, str]) -> None:
        self._base = base
        self._variables = dict(variables)
        self._env = base.env(self._variables)

    def with_variable(self, name: str, spelled: str) -> Checker:
        """The same with one more variable, or with another type of one that it has."""
        return Checker(self._base, {**self._variables, name: spelled})

    def check(self, source: str) -> bytes:
        """The typed tree (:mod:`controlplane.policy.tree` reads it). Raises :class:`Refused`."""
        serialised: bytes = _compile(self._env, source).serialize()
        return serialised


_MARK = re.compile(r"(?:ERROR: <input>:|^INVALID_ARGUMENT: )(-?\d+):(-?\d+): (.*)")


def _compile(env: cel.Env, source: str) -> cel.Expression:
    try:
        return env.compile(source)
    except (RuntimeError, ValueError, TypeError) as error:
        raise Refused(_diagnostics(str(error), source)) from error


def _diagnostics(text: str, source: str) -> list[Diagnostic]:
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    found: dict[Diagnostic, None] = {}
    for mark in _MARK.finditer(text):
        row, column = int(mark.group(1)), int(mark.group(2))
        offset = starts[row - 1] + column - 1 if 1 <= row < len(starts) else 0
        found[Diagnostic(max(0, min(offset, len(source))), mark.group(3).removesuffix(" [INVALID_ARGUMENT]"))] = None
    if not found:
        first = text.splitlines()[0] if text else "the expression cannot be compiled"
        found[Diagnostic(0, re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", first))] = None
    return list(found)


# --- celpy -----------------------------------------------------------------------------------------------------------


class CelPy:
    """The second opinion: the interpreter of cel-python (its compiled runner gives wrong answers). Never decides."""

    @property
    def name(self) -> str:
        return f"cel-python {version('cel-python')}"

    def program(self, source: str) -> Program:
        import celpy  # slow to import, and only wanted for second opinions
        from celpy.celparser import CELParseError

        try:
            environment = celpy.Environment()
            return _CelPyProgram(environment.program(environment.compile(source)))
        except (CELParseError, ValueError, RecursionError) as error:
            raise Refused([Diagnostic(0, str(error).splitlines()[0])]) from error


class _CelPyProgram:
    __slots__ = ("_runner",)

    def __init__(self, runner: object) -> None:
        self._runner = runner

    def evaluate(self, data: Mapping[str, Value]) -> Value | Fault:
        from celpy.adapter import json_to_cel
        from celpy.evaluation import CELEvalError

        try:
            context = {name: json_to_cel(value) for name, value in data.items()}  # type: ignore[arg-type]
            result = self._runner.evaluate(context)  # type: ignore[attr-defined]
        except (CELEvalError, ValueError, TypeError, KeyError, ArithmeticError, RecursionError) as error:
            return fault_of(str(error))
        return _from_celpy(result)


def _from_celpy(value: object) -> Value:
    """Its types are subclasses of Python's; its booleans are integers, told apart by name."""
    if value is None or isinstance(value, bool):
        return value
    if type(value).__name__ == "BoolType":
        return bool(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, list):
        return [_from_celpy(item) for item in value]
    if isinstance(value, dict):
        return {_key(_from_celpy(key)): _from_celpy(item) for key, item in value.items()}
    return None
