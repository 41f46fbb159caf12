"""``tidegate replay`` and ``tidegate why``: what a log proves, and what it can say about one job."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from controlplane.cli.console import print_json, print_sentences, progress
from controlplane.cli.faults import DONE, NO
from controlplane.cli.options import At, Json, LogUrl, job_named, open_for_reading, position_of
from controlplane.cli.words import plural


def replay(
    log: LogUrl,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain, decide every cycle again, and compare byte for byte.")
    ] = False,
    until: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this position.", show_default=False)
    ] = None,
    json: Json = False,
) -> int:
    """Fold a log again, or prove its decisions.

    With --verify the first divergence is named by its position, and the exit code is 1 then.
    """
    from controlplane.audit.replay import replay as replayed

    begun = time.perf_counter()
    with open_for_reading(log) as opened, progress("replaying", quiet=json) as show:
        report = replayed(opened, verify=verify, until=until, progress=show)
    wall_s = time.perf_counter() - begun
    if json:
        print_json({**report.as_dict(), "verified": verify, "wall_s": round(wall_s, 3)})
    elif report.divergence is not None:
        found = report.divergence
        print(f"Not what it should be, at position {found.position}: {found.what}")
        if found.expected or found.got:
            print(f"  decided again  {found.expected or '(nothing)'}\n  in the log     {found.got or '(nothing)'}")
        print(f"Sound up to position {report.position}, digest {report.digest}.")
    else:
        from controlplane.cli.simulations import print_figures

        done = "Verified" if verify else "Replayed"
        what = f"{plural(report.events, 'event')}, {plural(report.cycles, 'cycle')}"
        print(f"{done}: {what} in {wall_s:.1f} s, up to position {report.position:,}")
        print(f"Digest       {report.digest}\n")
        print_figures(report.figures)
    return DONE if report.ok else NO


def why(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Such as j123, or its name.")],
    log: LogUrl,
    at: At = None,
    json: Json = False,
) -> int:
    """Say why a job waited, and what became of it.

    As of the log's end, or of any moment before. The last cycle that refused it by then is decided again, with this one
    job watched.
    """
    from controlplane.audit.why import why as account_of

    with open_for_reading(log) as opened, progress("looking back", quiet=json) as show:
        account = account_of(opened, job_named(opened, job), position_of(opened, at), progress=show)
    if json:
        print_json(account.as_dict())
    else:
        print_sentences(account.sentences())
    return DONE
