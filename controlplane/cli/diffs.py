"""``tidegate policy diff``: what would another bundle have decided over recorded history?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json, print_sentences, print_table, progress
from controlplane.cli.faults import DONE, NO, WrongUse, refusal
from controlplane.cli.options import Json, LogUrl, open_for_reading, start_of
from controlplane.cli.words import instant, money, plural, span

if TYPE_CHECKING:
    from controlplane.audit.diff_report import ByRule, DiffReport, FirstChange, JobChange, Policy
    from controlplane.policy.bundle import Bundle

DIGEST = 12
"""So many characters of a digest tell bundles apart."""
ROWS = 12
"""So many rows of a table of causes are printed; --json has all."""


def diff(
    log: LogUrl,
    against: Annotated[
        Path, typer.Option("--against", metavar="DIR", help="The candidate: a folder with bundle.yaml.")
    ],
    since: Annotated[
        str | None,
        typer.Option(
            metavar="POSITION|TIME", help="Decide again only from there on: 1234, 14:30:00, 2h30m.", show_default=False
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with plots besides.", show_default=False)
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            metavar="EXPR",
            help="Exit with 1 if this holds, such as 'share_loss>5%' or 'wait_increase[research]>10min'; may be given "
            "several times.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Say what another bundle would have decided over the history in a log.

    Every recorded cycle is decided again: exact up to the first decision that changes, simulated from there on. Figures
    that --fail-if knows: changed_decisions, share_loss, wait_increase, wait_p95_increase, job_wait_increase,
    not_started_increase, placements_decrease, preemptions_increase, utilisation_loss, burst_increase, money_increase,
    faults.
    """
    import dataclasses

    from controlplane.audit.diff import diff as difference
    from controlplane.audit.replay import blamed
    from controlplane.audit.thresholds import parse

    thresholds = [parse(text) for text in fail_if or ()]
    candidate = _bundle(against)
    draw = _page_for(html) if html is not None else None
    begun = time.perf_counter()
    with open_for_reading(log) as opened, progress("policy diff", quiet=json) as show, blamed(opened):
        report = difference(opened, candidate, start_of(opened, since), show)
    report = dataclasses.replace(report, verdicts=tuple(threshold.verdict(report) for threshold in thresholds))
    wall_s = time.perf_counter() - begun
    if html is not None and draw is not None:
        _write(html, draw(report, log))
    if json:
        print_json({**report.as_dict(), "log": log, "against": str(against), "wall_s": round(wall_s, 3)})
    else:
        _tell(report, log, wall_s)
        if html is not None:
            print(f"\nPage         {html}")
    return DONE if report.ok else NO


def _bundle(folder: Path) -> Bundle:
    from controlplane.policy.bundle import load_bundle, read_bundle_folder
    from controlplane.policy.problems import BundleRefused

    try:
        return load_bundle(read_bundle_folder(folder))
    except BundleRefused as error:
        raise WrongUse(refusal(error, str(folder))) from error


def _page_for(file: Path) -> Callable[[DiffReport, str], str]:
    """What draws the page. That the file cannot be written is found out before the work, not after it."""
    if file.is_dir():
        raise WrongUse(f"{file} is a folder; name a file for the page")
    if not file.absolute().parent.is_dir():
        raise WrongUse(f"{file}: there is no folder {str(file.parent)!r} for it; make it, or name another file")
    from controlplane.cli.diff_page import page

    return page


def _write(file: Path, text: str) -> None:
    """The page stands there whole, or not at all."""
    draft = file.with_name(f".{file.name}.{os.getpid()}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        error.filename = str(file)
        raise
    finally:
        draft.unlink(missing_ok=True)


# --- for people -------------------------------------------------------------------------------------------------------


def _tell(report: DiffReport, log: str, wall_s: float) -> None:
    print(f"Log          {log}, position {report.position:,}, digest {report.digest}")
    for policy in report.policies:
        print(f"Recorded     {_policy(policy)}, from position {policy.position:,}")
    print(f"Candidate    {_policy(report.candidate)}")
    cycles = plural(report.exact_cycles, "cycle")
    print(f"Stretch      {instant(report.from_ms)} to {instant(report.end_ms)}, from position {report.start + 1:,}")
    same = f"{plural(report.exact_decisions, 'decision')} the same"
    others = f", {report.other_rules:,} of them by another line of rules" if report.other_rules else ""
    until = f"up to {instant(report.exact_until_ms)}" if report.first_change is not None else "to the end"
    print(f"Exact        {until}: {cycles} decided again, {same}{others}")
    if report.first_change is not None:
        sources = ", ".join(f"{count:,} {source}" for source, count in report.runtimes.items())
        print(f"Simulated    from there on; run times of jobs: {sources or 'none needed'}")
    print(f"Took         {wall_s:.1f} s\n")
    if report.first_change is None:
        print("Nothing changes: the candidate decides what the log says, to its end.")
    else:
        _tell_first(report.first_change)
        _tell_changes(report)
        _tell_figures(report)
        _tell_queues(report)
        _tell_jobs(report)
    print_sentences([f"Note: {note}." for note in report.notes])
    for fault in report.under_candidate.faults:
        print_sentences([f"Fault: {fault}"])
    for verdict in report.verdicts:
        print(f"{'FAILS ' if verdict.holds else 'passes'}  {verdict.sentence}")


def _policy(policy: Policy) -> str:
    return f"{policy.name} ({policy.digest[:DIGEST]})"


def first_change(first: FirstChange) -> list[str]:
    """The first change in sentences, for a person."""
    where = f"The first change is in cycle {first.cycle:,} at {instant(first.at_ms)} (position {first.position:,})"
    by = {True: " for which the log has no cycle", False: ""}[first.is_extra]
    lines = [f"{where}{by}."]
    for who, decided in (("In the log", first.recorded), ("Under the candidate", first.candidate)):
        if decided is None:
            lines.append(f"{who}: nothing in its place.")
        else:
            lines.append(f"{who}: {decided.sentence}{f', by {decided.rule}' if decided.rule else ''}.")
    if first.others:
        lines.append(f"{plural(first.others, 'more decision')} of that cycle differ.")
    joint = "only together do these points make it: " if first.is_joint and first.because else ""
    for because in first.because:
        head = f"Because of {because.point}: {joint}"
        if not because.about:
            lines.append(f"{head}one of the bundles has such rules, or has them otherwise.")
            continue
        old = f"{because.recorded_answer} ({because.recorded_rule or 'no rule'}) in the log"
        new = f"{because.candidate_answer} ({because.candidate_rule or 'no rule'}) under the candidate"
        lines.append(f"{head}asked about {because.about}, the answer is {old}, {new}.")
    if first.note:
        lines.append(f"{first.note[0].upper()}{first.note[1:]}.")
    return lines


def _tell_first(first: FirstChange) -> None:
    print_sentences(first_change(first))
    print()


def _tell_changes(report: DiffReport) -> None:
    from controlplane.audit.changes import KINDS
    from controlplane.audit.diff_report import HOWS

    print(f"Changed      {report.changed:,} of {plural(report.compared, 'decision')}")
    rows = [[f"{change.count:,}", change.kind, HOWS[change.how], KINDS[change.kind]] for change in report.changes]
    print_table(["count>", "kind", "how", "what that is"], rows, expendable=["what that is"])
    print()
    causes = [[f"{row.count:,}", row.kind, row.how, cause(row)] for row in report.by_rule[:ROWS]]
    print_table(["count>", "kind", "how", "because of"], causes)
    if len(report.by_rule) > ROWS:
        print(f"({len(report.by_rule) - ROWS} more rows; --json has all)")
    print()


def cause(row: ByRule) -> str:
    """The rule lines behind a row, in words."""
    lines = [(row.recorded_rule, "in the log"), (row.candidate_rule, "of the candidate")]
    rules = ", ".join(f"{rule} {whose}" for rule, whose in lines if rule)
    waited = f"waited for {row.reason}" if row.reason else ""
    return ", ".join(part for part in (waited, rules) if part) or "follows from other decisions"


def figures(report: DiffReport) -> list[list[str]]:
    """Figures of both courses: what, in the log, under the candidate."""
    rows: list[list[str]] = []
    for key in report.recorded.jobs:
        counts = [side.jobs[key] for side in (report.recorded, report.under_candidate)]
        if any(counts):
            rows.append([f"jobs {key}", *(f"{count:,}" for count in counts)])
    for name in ("decisions", "placements", "preemptions", "requests"):
        counts = [getattr(side, name) for side in (report.recorded, report.under_candidate)]
        rows.append([name, *(f"{count:,}" for count in counts)])
    sides = (report.recorded, report.under_candidate)
    rows.append(["utilisation at home", *(f"{side.utilisation['home']:.1%}" for side in sides)])
    rows.append(["burst GPU hours", *(f"{side.burst_gpu_hours:,.1f}" for side in sides)])
    rows.append(["rented GPU hours", *(f"{side.rented_gpu_hours:,.1f}" for side in sides)])
    rows.append(["money", *(money(side.micro_usd) for side in sides)])
    rows.append(["faulty rules", *(f"{len(side.faults):,}" for side in sides)])
    return rows


def _tell_figures(report: DiffReport) -> None:
    print_table(["figures", "in the log>", "candidate>"], figures(report))
    print()


def queues(report: DiffReport) -> list[list[str]]:
    """Waits and shares by queue: the figures in the log, then under the candidate, of each."""
    rows: list[list[str]] = []
    for queue, waits in report.recorded.waits.items():
        both = (waits, report.under_candidate.waits[queue])
        shares = [side.shares.get(queue) for side in (report.recorded, report.under_candidate)]
        rows.append(
            [
                queue,
                *(f"{of.started:,}" for of in both),
                *(span(getattr(of, key)) for key in ("mean_ms", "p50_ms", "p95_ms") for of in both),
                *(f"{share.part:.1%}" if share is not None else "" for share in shares),
            ]
        )
    return rows


def _tell_queues(report: DiffReport) -> None:
    columns = ["queue", "started>", "then>", "mean wait>", "then>", "median>", "then>", "95%>", "then>"]
    print_table([*columns, "share>", "then>"], queues(report))
    print('("then": under the candidate; who still waits counts with the time so far)\n')


def job_row(change: JobChange) -> list[str]:
    """One job whose wait changes: who, and both waits."""
    waits = (change.recorded_wait_ms, change.recorded_started), (change.candidate_wait_ms, change.candidate_started)
    said = [span(wait_ms) if has_started else f"never started ({span(wait_ms)})" for wait_ms, has_started in waits]
    sign = "+" if change.later_ms > 0 else "-"
    return [change.job, change.name, change.queue, *said, f"{sign}{span(abs(change.later_ms))}"]


def _tell_jobs(report: DiffReport) -> None:
    jobs = report.jobs
    print(
        f"Jobs         {jobs.sooner:,} start sooner, {jobs.later:,} later; "
        f"{jobs.only_recorded:,} start only in the log, {jobs.only_candidate:,} only under the candidate"
    )
    columns = ["name", "queue", "waited>", "then>", "change>"]
    for title, changes in (("gains most", jobs.gain), ("loses most", jobs.lose)):
        if changes:
            print_table([title, *columns], [job_row(change) for change in changes], expendable=["name"])
            print()
