"""Bundles: a folder of policy as one thing that is checked, digested, activated and asked.

A bundle is ``bundle.yaml`` (which file answers which decision point, and the parameters), rule files, and tests beside
them (``<rule>.tests.yaml``). A bundle loads from a mapping of path to text, because that is what an activation in the
log carries; :func:`read_bundle_folder` makes one from a folder. Loading is checking: nothing that
:mod:`controlplane.policy.check` accepts fails here, because both are this code.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from controlplane.policy.compiled import CompiledPolicy
from controlplane.policy.compiler import Environment, PolicyCompiler
from controlplane.policy.documents import BundleDocument, ParamDocument, Place, PolicyDocument, Reader
from controlplane.policy.engine import Engine, Value
from controlplane.policy.evaluation import Observer
from controlplane.policy.problems import BundleRefused, Problem, Severity, errors, snippet, suggestion
from controlplane.policy.rules import BundleRules
from controlplane.policy.vocabulary import BY_NAME
from controlplane.policy.yamltext import MAX_FILE_BYTES, normalise

MANIFEST = "bundle.yaml"
TEST_SUFFIX = ".tests.yaml"
MAX_FILES = 1_000
MAX_BUNDLE_BYTES = 4_194_304
_YAML = (".yaml", ".yml")


@dataclass(slots=True, eq=False)
class Bundle:
    """A bundle that loads: its rules compile and may become the active ones."""

    name: str
    description: str
    digest: str
    """SHA-256 in hex over the canonical source: path, length and text of the manifest and of every rule file."""
    files: dict[str, str]
    """The canonical source: what an activation carries. Tests are not part of it."""
    params: tuple[ParamDocument, ...]
    policies: dict[str, tuple[CompiledPolicy, ...]]
    """Decision point -> its rule files, in the order of asking."""
    warnings: tuple[Problem, ...] = ()
    environment: Environment = field(default_factory=lambda: Environment(()), repr=False)

    def rules(self, observers: list[Observer] | None = None, *, is_all_evaluated: bool = False) -> BundleRules:
        """The rules as the scheduler asks them, with a memory of their own. ``observers`` collects what each evaluation
        goes through; see :class:`BundleRules`."""
        engines = {name: self.engine(name) for name in self.policies}
        name = next(iter(engines.values())).name if engines else self.environment.engine(BY_NAME["admission"]).name
        return BundleRules(
            self.digest,
            self.policies,
            self.param_values(),
            engines,
            name,
            observers,
            is_all_evaluated=is_all_evaluated or observers is not None,
        )

    def engine(self, point: str) -> Engine:
        """The engine that evaluates at a point."""
        return self.environment.engine(BY_NAME[point])

    def param_values(self) -> dict[str, Value]:
        """The parameters as the engine sees them."""
        return {
            param.name: list(param.default) if isinstance(param.default, tuple) else param.default
            for param in self.params
        }


def is_test_file(path: str) -> bool:
    """Whether a path of a bundle is a test suite."""
    name = PurePosixPath(path).name
    return name.endswith(TEST_SUFFIX) or name == "tests.yaml" or "scenarios" in PurePosixPath(path).parts


def digest_of(files: Mapping[str, str]) -> str:
    """SHA-256 over path, length in bytes and text of each file, in order of path."""
    summed = hashlib.sha256(b"tidegate bundle 1\n")
    for path in sorted(files):
        content = files[path].encode("utf-8")
        summed.update(f"{path}\n{len(content)}\n".encode())
        summed.update(content)
    return summed.hexdigest()


def load_bundle(files: Mapping[str, str]) -> Bundle:
    """The bundle in a mapping of path to text. Raises :class:`BundleRefused` with every error found."""
    bundle, problems = compile_bundle(files)
    if bundle is None:
        raise BundleRefused(errors(problems))
    return bundle


def compile_bundle(files: Mapping[str, str]) -> tuple[Bundle | None, list[Problem]]:
    """The bundle, unless there are errors, and everything that was found, warnings included, in order of files."""
    loading = _Loading(files)
    bundle = loading.load()
    order = {path: number for number, path in enumerate([MANIFEST, *sorted(files)])}
    problems = sorted(
        set(loading.problems), key=lambda found: (order.get(found.file, 0), found.line, found.column, found)
    )
    return bundle, problems


class _Loading:
    def __init__(self, files: Mapping[str, str]) -> None:
        self.problems: list[Problem] = []
        self.files = {path: normalise(files[path]) for path in sorted(files)}

    def load(self) -> Bundle | None:
        self._refuse_oversize()
        if self.problems:
            return None
        manifest = self._manifest()
        if manifest is None:
            return None
        environment = Environment(manifest.params)
        policies = {point: self._point(point, listed, environment) for point, listed in manifest.points}
        self._refuse_unlisted(manifest)
        if errors(self.problems):
            return None
        listed_files = [path for _, listed in manifest.points for path, _ in listed]
        source = {path: self.files[path] for path in sorted({MANIFEST, *listed_files})}
        return Bundle(
            name=manifest.name,
            description=manifest.description,
            digest=digest_of(source),
            files=source,
            params=manifest.params,
            policies={point: tuple(found) for point, found in policies.items() if found},
            warnings=tuple(self.problems),
            environment=environment,
        )

    def _refuse_oversize(self) -> None:
        if len(self.files) > MAX_FILES:
            self._say(MANIFEST, f"the bundle has more than {MAX_FILES:,} files", "too-large")
        if sum(len(text) for text in self.files.values()) > MAX_BUNDLE_BYTES:
            self._say(MANIFEST, f"the bundle is larger than {MAX_BUNDLE_BYTES // 2**20} MiB", "too-large")
        for path, text in self.files.items():
            if not _is_plain_path(path):
                self._say(MANIFEST, f"'{path!r}' is not a path inside the bundle", "path")
            if not _is_encodable(text):
                self._say(path, "the file is not UTF-8 text", "not-utf-8")

    def _manifest(self) -> BundleDocument | None:
        text = self.files.get(MANIFEST)
        if text is None:
            self._say(
                MANIFEST, f"a bundle needs a file '{MANIFEST}' that lists its rule files by decision point", "missing"
            )
            return None
        reader = Reader(MANIFEST, text)
        manifest = reader.bundle()
        self.problems.extend(reader.problems)
        return manifest

    def _point(self, point: str, listed: Sequence[tuple[str, Place]], environment: Environment) -> list[CompiledPolicy]:
        found: list[CompiledPolicy] = []
        complete = True
        for path, at in listed:
            policy = self._policy(point, path, at, environment)
            if policy is None:
                complete = False
            else:
                found.append(policy)
        if complete:
            self._refuse_gaps(point, found, listed)
        return found

    def _policy(self, point: str, path: str, at: Place, environment: Environment) -> CompiledPolicy | None:
        text = self.files.get(path)
        if text is None or path == MANIFEST or is_test_file(path):
            known = [
                name for name in self.files if name.endswith(_YAML) and not is_test_file(name) and name != MANIFEST
            ]
            self._say_at(at, f"there is no rule file '{path}' in the bundle{suggestion(path, known)}", "missing")
            return None
        reader = Reader(path, text)
        document = reader.policy()
        self.problems.extend(reader.problems)
        if document is None or not self._is_for(point, document, at):
            return None
        compiler = PolicyCompiler(document, BY_NAME[point], environment, text)
        policy = compiler.compile()
        self.problems.extend(compiler.problems)
        return policy

    def _is_for(self, point: str, document: PolicyDocument, at: Place) -> bool:
        if document.point == point:
            return True
        if document.point is None or document.point_at is None:
            message = f"the file does not say which decision point it serves; add 'point: {point}'"
            self._say(document.file, message, "no-point")
        else:
            message = f"the file serves '{document.point}', but {at.file}:{at.line} lists it under '{point}'"
            self._say_at(document.point_at, message, "wrong-point")
        return False

    def _refuse_gaps(self, point: str, found: Sequence[CompiledPolicy], listed: Sequence[tuple[str, Place]]) -> None:
        """Each file but the last must leave something to the next, and the last must answer if the point needs it."""
        for number, policy in enumerate(found):
            is_last = number == len(found) - 1
            silent = policy.rule.may_be_silent
            if not is_last and not silent:
                at = listed[number + 1][1]
                message = f"this file is never asked: '{policy.file}', listed before it, answers every case"
                self._say_at(at, message, "unreachable-rule")
            elif is_last and silent and not BY_NAME[point].answer.is_optional:
                message = f"the point '{point}' needs an answer in every case; add a last match without a condition"
                self._say_at(policy.rule.matches[-1].at, message, "no-default")

    def _refuse_unlisted(self, manifest: BundleDocument) -> None:
        listed: dict[str, Place] = {}
        for _, files in manifest.points:
            for path, at in files:
                if path in listed:
                    self._say_at(at, f"the file '{path}' is listed twice", "listed-twice")
                listed[path] = at
        for path in self.files:
            if path in listed or path == MANIFEST or is_test_file(path) or not path.endswith(_YAML):
                continue
            message = f"no decision point of {MANIFEST} lists this rule file; list it, or remove it"
            self._say(path, message, "unused-rule")

    def _say(self, file: str, message: str, code: str) -> None:
        shown = snippet(self.files.get(file, ""), 1, 1)
        self.problems.append(Problem(file, 1, 1, message, shown, Severity.ERROR, code))

    def _say_at(self, at: Place, message: str, code: str) -> None:
        shown = snippet(self.files.get(at.file, ""), at.line, at.column)
        self.problems.append(Problem(at.file, at.line, at.column, message, shown, Severity.ERROR, code))


def _is_plain_path(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and path.isprintable() and "\\" not in path


def _is_encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


# --- from a folder ---------------------------------------------------------------------------------------------------


def read_bundle_folder(path: Path | str) -> dict[str, str]:
    """The YAML files below a folder, path inside it -> text.

    Raises :class:`BundleRefused` for a folder that is not there, a link that leads out of it, a file that is not UTF-8
    or too large. Hidden files and folders are left out, and so is what is not YAML.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise BundleRefused([_folder_problem(str(folder), "there is no such folder of policies")])
    root = folder.resolve()
    files: dict[str, str] = {}
    problems: list[Problem] = []
    for found in _yaml_files(folder):
        inside = found.relative_to(folder).as_posix()
        refused = _file_refusal(found, root)
        if refused is None:
            try:
                files[inside] = found.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                refused = f"the file is not UTF-8 text (byte {error.start + 1}); save it as UTF-8"
            except OSError as error:
                refused = f"the file cannot be read: {error.strerror}"
        if refused is not None:
            problems.append(_folder_problem(inside, refused))
        if len(files) > MAX_FILES:
            raise BundleRefused([_folder_problem(MANIFEST, f"the bundle has more than {MAX_FILES:,} files")])
    if problems:
        raise BundleRefused(problems)
    return files


def _yaml_files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(Path(where, name) for name in folders if Path(where, name).is_symlink())
        found.extend(Path(where, name) for name in sorted(names) if name.endswith(_YAML) and not name.startswith("."))
    return sorted(found)


def _file_refusal(found: Path, root: Path) -> str | None:
    try:
        target = found.resolve(strict=True)
    except (OSError, RuntimeError):
        return "the link leads nowhere"
    if not target.is_relative_to(root):
        return "the link leads out of the bundle; copy the file into it"
    if target.is_dir():
        return "a folder inside the bundle must not be a link"
    if not target.is_file():
        return "this is not a regular file"
    if target.stat().st_size > MAX_FILE_BYTES:
        return f"the file is larger than {MAX_FILE_BYTES // 1024} KiB; split it"
    return None


def _folder_problem(file: str, message: str) -> Problem:
    return Problem(file, 1, 1, message, code="folder")
