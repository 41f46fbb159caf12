"""What is wrong with a bundle, as a list: the library behind ``policy check``.

Checking is loading without keeping the result, plus the tests' own files. Nothing that passes here fails to load live.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.policy.bundle import Bundle, compile_bundle
from controlplane.policy.problems import BundleRefused, Problem, errors
from controlplane.policy.testing import read_suites


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The answer of a check."""

    problems: tuple[Problem, ...]
    """Errors and warnings, in order of files and lines."""
    digest: str | None
    """Of the bundle, if it loads."""

    @property
    def ok(self) -> bool:
        """Whether the bundle loads and its tests can be read; warnings do not count."""
        return not errors(self.problems)

    def as_dict(self) -> dict[str, object]:
        """The report as JSON keeps it."""
        return {"ok": self.ok, "digest": self.digest, "problems": [problem.as_dict() for problem in self.problems]}


def check(files: Mapping[str, str]) -> list[Problem]:
    """Everything that is wrong with the bundle in a mapping of path to text; empty if nothing is."""
    return list(check_report(files).problems)


def checked(files: Mapping[str, str]) -> Bundle:
    """The bundle, if a check finds nothing against it. Raises :class:`BundleRefused` with every error found."""
    bundle, problems = compile_bundle(files)
    found = errors([*problems, *read_suites(files, bundle).problems])
    if bundle is None or found:
        raise BundleRefused(found)
    return bundle


def check_report(files: Mapping[str, str]) -> CheckReport:
    """The same with the digest of the bundle."""
    bundle, problems = compile_bundle(files)
    suites = read_suites(files, bundle)
    found: Sequence[Problem] = [*problems, *suites.problems]
    return CheckReport(tuple(found), bundle.digest if bundle is not None else None)
