"""``tidegate policy activate``, ``shadow`` and ``history``: which bundle is active, and which is tried beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json, print_sentences, print_table, progress
from controlplane.cli.faults import DONE, WrongUse, refusal
from controlplane.cli.options import Json, LogUrl, open_for_reading
from controlplane.cli.words import command, instant, span

if TYPE_CHECKING:
    from controlplane.domain.events import Event
    from controlplane.eventlog.port import EventLog, Head
    from controlplane.policy.bundle import Bundle
    from controlplane.runtime.activation import Standing

LONGEST_AUTHOR = 128

Policies = Annotated[
    Path | None,
    typer.Option("--policies", metavar="DIR", help="A folder with a bundle.yaml.", show_default=False),
]
Author = Annotated[
    str | None,
    typer.Option("--author", metavar="NAME", help="Who does this; it stands in the log.", show_default=False),
]


def activate(
    log: LogUrl,
    digest: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIGEST]",
            help="A bundle that the log carries, by the beginning of its digest.",
            show_default=False,
        ),
    ] = None,
    policies: Policies = None,
    author: Author = None,
    json: Json = False,
) -> int:
    """Make a bundle the active one, from the next cycle on.

    From a folder, if `policy check` finds nothing against it; or, by its digest, one that was active or a shadow
    before, from the log's own text: that is the way back.
    """
    if (digest is None) == (policies is None):
        raise WrongUse("name either a folder (--policies DIR) or the DIGEST of a bundle that the log carries, not both")
    who = _author(author)
    from controlplane.domain.events import PolicyActivated

    given = _checked(policies) if policies is not None else None
    with _opened(log, quiet=json) as (opened, at):
        bundle = given if given is not None else _known(at, digest or "")
        was, is_new = at.active_digest, at.active_digest != bundle.digest
        event = PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files)
        head = _append(opened, at, event, who) if is_new else at.head
    answer = {"policy": {"name": bundle.name, "digest": bundle.digest}, "before": was or None}
    if json:
        print_json({**_done(head, who, is_new), **answer})
    elif not is_new:
        print(f"{bundle.name} ({bundle.digest}) is active already; nothing was written")
    else:
        print(f"{bundle.name} ({bundle.digest}) is active from position {head.position:,} on, by {who}")
        if was:
            back = command("policy", "activate", was[:12], "--log", log, "--author", who)
            print(f"The way back: {back}")
    return DONE


def shadow(
    log: LogUrl,
    policies: Policies = None,
    author: Author = None,
    stop: Annotated[bool, typer.Option("--stop", help="Ask no bundle beside the active one any more.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Say what each shadow so far would have decided otherwise.")
    ] = False,
    json: Json = False,
) -> int:
    """Ask a bundle beside the active one, on the same state, and record what it would have decided otherwise.

    Nothing that it decides is carried out. `--report` tells of it, and so does `top`.
    """
    if (policies is not None) + stop + report != 1:
        raise WrongUse("give exactly one of --policies DIR (to begin), --stop and --report")
    if report:
        return _report(log, json=json)
    who = _author(author)
    return _stop(log, who, json=json) if policies is None else _begin(log, policies, who, json=json)


def history(log: LogUrl, json: Json = False) -> int:
    """List which bundle was active, and which was a shadow, when and by whom."""
    from controlplane.audit.policies import history as history_of
    from controlplane.runtime.activation import SHORT

    with open_for_reading(log) as opened, progress("reading", quiet=json) as show:
        found, head = history_of(opened, show), opened.head()
    if json:
        stretches = [stretch.as_dict() for stretch in found.stretches]
        print_json({"ok": True, "digest": head.digest, "position": head.position, "policies": stretches})
        return DONE
    if not found.stretches:
        print("No policy was ever activated in this log.")
        return DONE
    rows = [
        [
            instant(of.since_ms),
            f"{of.position:,}",
            f"{of.what}{' again' if of.is_again else ''}",
            of.name,
            of.digest[:SHORT],
            of.author,
            span((of.until_ms if of.until_ms is not None else found.end_ms) - of.since_ms),
            f"{of.cycles:,}",
            of.ended or "it still is",
        ]
        for of in found.stretches
    ]
    columns = ["from", "position>", "as", "bundle", "digest", "by", "for>", "cycles>", "until"]
    print_table(columns, rows, expendable=("position", "cycles"))
    return DONE


# --- shadows ----------------------------------------------------------------------------------------------------------


def _begin(log: str, policies: Path, who: str, *, json: bool) -> int:
    from controlplane.domain.events import PolicyShadowed

    bundle = _checked(policies)
    with _opened(log, quiet=json) as (opened, at):
        if at.active is None:
            raise WrongUse(
                f"{log}: no bundle is active, so there is nothing to compare with; `policy activate` one first"
            )
        if at.active_digest == bundle.digest:
            raise WrongUse(f"{policies}: this is the active bundle ({bundle.digest}); shadow one that differs from it")
        is_new = at.shadow_digest != bundle.digest or bool(at.failure)
        event = PolicyShadowed(name=bundle.name, digest=bundle.digest, files=bundle.files)
        head = _append(opened, at, event, who) if is_new else at.head
    if json:
        print_json({**_done(head, who, is_new), "policy": {"name": bundle.name, "digest": bundle.digest}})
    elif not is_new:
        print(f"{bundle.name} ({bundle.digest}) is the shadow already; nothing was written")
    else:
        where = f"from position {head.position:,} on, by {who}"
        print(f"{bundle.name} ({bundle.digest}) is asked beside the active bundle {where}")
        print(f"What it would have decided: {command('policy', 'shadow', '--report', '--log', log)}")
    return DONE


def _stop(log: str, who: str, *, json: bool) -> int:
    from controlplane.domain.events import ShadowEnded

    with _opened(log, quiet=json) as (opened, at):
        was = at.shadow_digest
        head = _append(opened, at, ShadowEnded(), who) if was else at.head
    if json:
        print_json({**_done(head, who, bool(was)), "before": was or None})
    elif was:
        print(f"The shadow ({was}) is asked no more, from position {head.position:,} on, by {who}")
    else:
        print("There is no shadow; nothing was written")
    return DONE


def _report(log: str, *, json: bool) -> int:
    from controlplane.audit.policies import shadow_reports

    with open_for_reading(log) as opened, progress("reading", quiet=json) as show:
        reports, head = shadow_reports(opened, show), opened.head()
    if json:
        shadows = [report.as_dict() for report in reports]
        print_json({"ok": True, "digest": head.digest, "position": head.position, "shadows": shadows})
        return DONE
    if not reports:
        print("No bundle was ever a shadow in this log.")
    for number, report in enumerate(reports):
        if number:
            print()
        print_sentences(report.sentences())
    return DONE


# --- what all of them do ----------------------------------------------------------------------------------------------


def _author(name: str | None) -> str:
    if name is None:
        raise WrongUse("say who does this: --author NAME (it stands in the log for good)")
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_AUTHOR:
        raise WrongUse(f"--author {name!r}: a name has 1 to {LONGEST_AUTHOR} printable characters; write another")
    return name


def _checked(folder: Path) -> Bundle:
    """The bundle of a folder, unless `policy check` would refuse it: then by its words."""
    from controlplane.policy.bundle import read_bundle_folder
    from controlplane.policy.check import checked
    from controlplane.policy.problems import BundleRefused

    try:
        return checked(read_bundle_folder(folder))
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error


def _known(at: Standing, digest: str) -> Bundle:
    """A bundle that the log carries."""
    from controlplane.policy.problems import BundleRefused
    from controlplane.runtime.activation import NoSuchBundle

    try:
        return at.bundle(digest)
    except NoSuchBundle as error:
        raise WrongUse(str(error)) from error
    except BundleRefused as error:
        raise WrongUse(f"the bundle {digest} of the log does not load with this version: {refusal(error)}") from error


@contextmanager
def _opened(log: str, *, quiet: bool) -> Iterator[tuple[EventLog, Standing]]:
    """The log, to be appended to, and what stands at its end."""
    from controlplane.eventlog import is_exported, open_log
    from controlplane.runtime.activation import standing

    if is_exported(log):
        raise WrongUse(f"--log {log}: an exported file is never appended to; import it into a database first")
    with open_log(log, create=False) as opened:
        with progress("reading", quiet=quiet) as show:
            at = standing(opened, show)
        yield opened, at


def _append(log: EventLog, at: Standing, event: Event, who: str) -> Head:
    from controlplane.runtime.activation import append_change

    return append_change(log, at, event, who)


def _done(head: Head, who: str, is_new: bool) -> dict[str, object]:
    return {"ok": True, "changed": is_new, "author": who, "digest": head.digest, "position": head.position}
