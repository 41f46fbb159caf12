"""``tidegate policy check`` and ``explain``: is a bundle right, and why does it answer as it does?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json
from controlplane.cli.faults import DONE, NO, WrongUse, refusal
from controlplane.cli.options import Json
from controlplane.cli.policy_sources import (
    Environment,
    Functions,
    bundle_files,
    elsewhere,
    in_folder,
    no_functions,
    read_text,
)
from controlplane.cli.words import plural

if TYPE_CHECKING:
    from controlplane.policy.problems import Problem

Target = Annotated[
    Path, typer.Argument(metavar="PATH", help="A folder with a bundle.yaml, or with --environment a policy file.")
]
HERE, DEFAULT = Path(), Path("policies/default")
"""Where rules are looked for if no folder is named."""


def check(
    path: Target,
    environment: Environment = None,
    functions: Functions = None,
    sarif: Annotated[bool, typer.Option("--sarif", help="Answer in SARIF 2.1.0, for code review.")] = False,
    json: Json = False,
) -> int:
    """Find everything that is wrong with a bundle before it is activated: names, types, reach, cost, determinism.

    With --environment, of a CEL policy that was written for another host.
    """
    from controlplane.policy.problems import errors

    if sarif and json:
        raise WrongUse("--sarif and --json are two answers; ask for one of them")
    no_functions(environment, functions)
    if environment is not None:
        digest, problems = None, _problems_elsewhere(path, environment, functions)
    else:
        digest, problems = _problems(path)
    is_good = not errors(problems)
    if sarif:
        from controlplane.policy.sarif import sarif as as_sarif

        print_json(as_sarif(problems, "" if environment is not None else str(path)))
    elif json:
        shown = [problem.as_dict() for problem in problems]
        print_json({"ok": is_good, "digest": digest, "problems": shown, "folder": str(path)})
    else:
        for problem in problems:
            print(problem if environment is not None else in_folder(problem, path))
        warnings = f" ({plural(len(problems), 'warning')})" if problems else ""
        good = f"good{warnings}" + (f"; digest {digest}" if digest else "")
        print(f"{path}: {good if is_good else plural(len(problems), 'problem')}")
    return DONE if is_good else NO


def _problems(folder: Path) -> tuple[str | None, Sequence[Problem]]:
    from controlplane.policy.check import check_report
    from controlplane.policy.testing import scenario_files

    files = bundle_files(folder)
    report = check_report(files)
    if not scenario_files(files):
        return report.digest, report.problems
    from controlplane.simulate.scenarios.form import scenario_problems  # with the whole domain behind it

    return report.digest, [*report.problems, *scenario_problems(files)]


def _problems_elsewhere(path: Path, environment: Path, functions: Path | None) -> Sequence[Problem]:
    from controlplane.policy.foreign import read_suite
    from controlplane.policy.problems import BundleRefused

    source = elsewhere(path, environment, functions)
    problems: list[Problem] = []
    try:
        problems.extend(source.load().warnings)
    except BundleRefused as refused:
        problems.extend(refused.problems)
    if source.tests.exists():
        try:
            read_suite(read_text(source.tests), str(source.tests))
        except BundleRefused as refused:
            problems.extend(refused.problems)
    return problems


def explain(
    point: Annotated[str, typer.Argument(metavar="POINT", help="A decision point, such as burst.")],
    facts: Annotated[
        Path,
        typer.Option("--input", metavar="FILE", help="Facts as in the `input` of a rule test, in YAML or JSON."),
    ],
    policies: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The bundle; else the one here, else policies/default below here.", show_default=False
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Show what a bundle answers to one question, and why: variables, the cases that were tried, what they read."""
    from controlplane.policy.bundle import load_bundle
    from controlplane.policy.explain import WrongInput, point_named
    from controlplane.policy.explain import explain as explained
    from controlplane.policy.inputs import Unusable, read_facts
    from controlplane.policy.problems import BundleRefused

    folder = policies if policies is not None else _folder_here()
    files = bundle_files(folder)
    try:
        found = explained(load_bundle(files), point, read_facts(str(facts), read_text(facts), point_named(point)))
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error
    except (WrongInput, Unusable) as error:
        raise WrongUse(str(error)) from error
    if json:
        print_json({"ok": found.fault is None, "folder": str(folder), **found.as_dict()})
    else:
        print(found.as_text(str(folder)))
    return DONE if found.fault is None else NO


def _folder_here() -> Path:
    found = next((folder for folder in (HERE, DEFAULT) if (folder / "bundle.yaml").is_file()), None)
    if found is None:
        raise WrongUse(f"there is no bundle here, nor in {DEFAULT}; name one with --policies DIR")
    return found
