"""The tree of commands, and the group that turns every outcome into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from controlplane.cli import activations, audits, diffs, logs, policies, policy_tests, simulations, views
from controlplane.cli.faults import exit_code_of


class Tidegate(TyperGroup):
    """The root: commands return their exit code, and errors become a sentence and a code in one place."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,  # noqa: ANN401 - as in the method that it takes the place of
    ) -> None:
        words = list(sys.argv[1:] if args is None else args) or ["--help"]

        def answer() -> int:
            with self.make_context(prog_name or "tidegate", words, **extra) as context:
                code = self.invoke(context)
            return code if isinstance(code, int) else 0

        sys.exit(exit_code_of(answer))


def _say_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import PackageNotFoundError, version

        from controlplane.domain.version import CORE

        try:
            installed = version("tidegate")
        except PackageNotFoundError:
            installed = "(not installed)"
        print(f"tidegate {installed}, core {CORE}")
        raise typer.Exit


app = typer.Typer(
    cls=Tidegate,
    name="tidegate",
    help="A scheduling control plane for GPU work at home and in the cloud. Every decision can be replayed.",
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong use or bad input, 3 the outside world failed.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, since importing the other takes twice as long as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)
_log = typer.Typer(help="Verify, copy and follow a log.")
_db = typer.Typer(help="The schema of a log's database.")
_policy = typer.Typer(help="Check, test and explain rule files; activate them, or try them beside the active ones.")


@app.callback()
def _tidegate(
    version: Annotated[
        bool, typer.Option("--version", help="Say which version this is.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """A scheduling control plane for GPU work at home and in the cloud. Every decision can be replayed."""


app.command("simulate")(simulations.simulate)
app.command("why")(audits.why)
app.command("replay")(audits.replay)
app.command("top")(views.top)
app.command("jobs")(views.jobs)
app.command("queues")(views.queues)
app.command("clusters")(views.clusters)
app.add_typer(_log, name="log")
app.add_typer(_db, name="db")
app.add_typer(_policy, name="policy")
_log.command("verify")(logs.verify)
_log.command("export")(logs.export)
_log.command("import")(logs.import_)
_log.command("tail")(logs.tail)
_db.command("upgrade")(logs.upgrade)
_policy.command("check")(policies.check)
_policy.command("test")(policy_tests.run_tests)
_policy.command("explain")(policies.explain)
_policy.command("diff")(diffs.diff)
_policy.command("activate")(activations.activate)
_policy.command("shadow")(activations.shadow)
_policy.command("history")(activations.history)


@_db.callback()
def _database() -> None:
    """The schema of a log's database."""
