"""What ``tidegate policy`` reads: the folder of a bundle, or a policy of another host with its environment."""

from __future__ import annotations

import dataclasses
import runpy
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.faults import WrongUse, refusal

if TYPE_CHECKING:
    from controlplane.policy.foreign import ForeignPolicy
    from controlplane.policy.problems import Problem

Environment = Annotated[
    Path | None,
    typer.Option(
        "--environment",
        metavar="FILE",
        help="The environment of a CEL policy that was written for another host: PATH is its file then.",
        show_default=False,
    ),
]
Functions = Annotated[
    Path | None,
    typer.Option(
        "--functions",
        metavar="FILE.py",
        help="Functions of that host: a Python file with FUNCTIONS, overload id -> function. It is run.",
        show_default=False,
    ),
]
POLICY_FILE = "policy.yaml"
TESTS_FILE = "tests.yaml"


def bundle_files(folder: Path) -> dict[str, str]:
    """The files of a bundle. Raises :class:`WrongUse`."""
    from controlplane.policy.bundle import read_bundle_folder
    from controlplane.policy.problems import BundleRefused

    if folder.is_file():
        other = "or give --environment FILE for a policy that was written for another host"
        raise WrongUse(f"{folder} is a file: name the folder of its bundle, {other}")
    try:
        return read_bundle_folder(folder)
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error


def in_folder(problem: Problem, folder: Path) -> Problem:
    """The problem with its file as seen from here."""
    return dataclasses.replace(problem, file=f"{folder}/{problem.file}")


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A policy of another host, as files."""

    policy: Path
    environment: Path
    functions: Path | None

    @property
    def tests(self) -> Path:
        """Its tests: ``NAME.tests.yaml`` beside ``NAME.yaml``, else ``tests.yaml``."""
        beside = self.policy.with_name(f"{self.policy.stem}.tests.yaml")
        return beside if beside.exists() else self.policy.with_name(TESTS_FILE)

    def load(self) -> ForeignPolicy:
        """The policy, ready to be tested. Raises ``BundleRefused`` with every problem, and :class:`WrongUse`."""
        from controlplane.policy.foreign import load_policy

        return load_policy(
            read_text(self.policy),
            read_text(self.environment),
            host_functions(self.functions) if self.functions is not None else {},
            str(self.policy),
            str(self.environment),
        )


def elsewhere(path: Path, environment: Path, functions: Path | None) -> Elsewhere:
    """The policy in a file, or in the ``policy.yaml`` of a folder."""
    return Elsewhere(path / POLICY_FILE if path.is_dir() else path, environment, functions)


def no_functions(environment: Path | None, functions: Path | None) -> None:
    """Refuse ``--functions`` where nothing could call them."""
    if environment is None and functions is not None:
        raise WrongUse("--functions belongs to a policy of another host; give its --environment as well")


def read_text(path: Path) -> str:
    """The text of a file. Raises :class:`WrongUse`, and ``OSError`` for a path that cannot be read."""
    from controlplane.policy.yamltext import MAX_FILE_BYTES

    if path.exists() and not path.is_file():
        raise WrongUse(f"{path} is not a file; name a file")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise WrongUse(f"{path} is larger than {MAX_FILE_BYTES // 1024} KiB; name a smaller file")
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise WrongUse(f"{path}: the file is not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from error


def host_functions(file: Path) -> Mapping[str, Callable[..., object]]:
    """The mapping ``FUNCTIONS`` of a Python file, which is run. Raises :class:`WrongUse` for whatever goes wrong."""
    read_text(file)
    try:
        found = runpy.run_path(str(file)).get("FUNCTIONS")
    except SystemExit as error:
        raise WrongUse(f"{file}: it ended the program; a file of functions only defines them") from error
    except Exception as error:  # somebody else's code: whatever it raises is told as theirs
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else frames[-1].lineno if frames else 1
        raise WrongUse(f"{file}:{line}: {type(error).__name__}: {error}; correct it") from error
    if not isinstance(found, Mapping) or not all(isinstance(name, str) and callable(found[name]) for name in found):
        raise WrongUse(f"{file}: FUNCTIONS is missing or not a mapping; write FUNCTIONS = {{'overload_id': function}}")
    return found
