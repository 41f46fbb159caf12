"""``tidegate replay`` and ``tidegate why``: what a log proves, and what it can say about one job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json, print_sentences, print_table, progress
from controlplane.cli.faults import DONE, NO, WrongUse
from controlplane.cli.options import At, Json, LogUrl, job_named, open_for_reading, position_of
from controlplane.cli.words import plural

if TYPE_CHECKING:
    from controlplane.policy.second_opinion import SecondOpinion


def replay(
    log: LogUrl,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the chain, decide every cycle again, and compare byte for byte.")
    ] = False,
    until: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop after this position.", show_default=False)
    ] = None,
    second_engine: Annotated[
        bool, typer.Option("--second-engine", help="Ask an independent CEL engine about the rules' answers as well.")
    ] = False,
    exhaustive: Annotated[
        bool, typer.Option("--exhaustive", help="Ask it about every distinct evaluation, however long that takes.")
    ] = False,
    json: Json = False,
) -> int:
    """Fold a log again, or prove its decisions.

    With --verify the first divergence is named by its position, and the exit code is 1 then; so it is if the second
    engine disagrees.
    """
    from controlplane.audit.replay import replay as replayed

    if second_engine and not verify:
        raise WrongUse("--second-engine compares while cycles are decided again; add --verify")
    if exhaustive and not second_engine:
        raise WrongUse("--exhaustive says how much is asked of the second engine; add --second-engine")
    opinion = _opinion(exhaustive=exhaustive) if second_engine else None
    begun = time.perf_counter()
    with open_for_reading(log) as opened, progress("replaying", quiet=json) as show:
        report = replayed(opened, verify=verify, until=until, progress=show, opinion=opinion)
    wall_s = time.perf_counter() - begun
    is_good = report.ok and (opinion is None or opinion.is_agreed)
    if json:
        more = {"second_engine": opinion.as_dict()} if opinion is not None else {}
        print_json({**report.as_dict(), "ok": is_good, "verified": verify, **more, "wall_s": round(wall_s, 3)})
        return DONE if is_good else NO
    if report.divergence is not None:
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
    if opinion is not None:
        _print_opinion(opinion)
    return DONE if is_good else NO


def _opinion(*, exhaustive: bool) -> SecondOpinion:
    from controlplane.policy.engine import CelPy
    from controlplane.policy.second_opinion import EVERY, SecondOpinion

    return SecondOpinion(CelPy(), None if exhaustive else EVERY)


def _print_opinion(opinion: SecondOpinion) -> None:
    """Which expressions were compared, which were not and why, and where the engines differ."""
    heard = [of for of in opinion.opinions if of.evaluated]
    compared = [of for of in heard if not of.outside]
    counts = f"{plural(len(compared), 'expression')}, {sum(of.compared for of in compared):,} comparisons"
    verdict = "agrees" if opinion.is_agreed else "DISAGREES"
    print(f"\nSecond engine {opinion.engine.name} {verdict}: {counts}")
    rows = [
        [
            f"{of.file}:{of.line}",
            f"{of.evaluated:,}",
            f"{of.distinct:,}",
            f"{of.compared:,}",
            f"{of.disagreed:,}",
            of.text,
        ]
        for of in compared
    ]
    if rows:
        print_table(["rule", "evaluated>", "distinct>", "compared>", "differ>", "expression"], rows)
    for of in (of for of in opinion.opinions if of.outside):
        print(f"Not compared: {of.file}:{of.line}: {of.outside}")
    never = [f"{of.file}:{of.line}" for of in opinion.opinions if not of.outside and not of.evaluated]
    if never:
        print_sentences([f"Never evaluated in this log: {', '.join(never)}."])
    for of in compared:
        for one in of.shown:
            said = f"the deciding engine says {one.first}, {opinion.engine.name} says {one.second}"
            print(f"{of.file}:{of.line}:{of.column}: {of.text}\n  given {one.given or 'nothing'}\n  {said}")


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
