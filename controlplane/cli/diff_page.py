"""The page of a diff: one file of HTML that needs no other. Plots are drawn as SVG by leather and stand in the page.

Everything that comes from a log or a bundle is escaped; the page runs no script and loads nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import leather  # type: ignore[import-untyped]

from controlplane.audit.changes import KINDS
from controlplane.audit.diff_report import HOWS
from controlplane.cli.diffs import DIGEST, cause, figures, first_change, job_row, queues
from controlplane.cli.words import instant

if TYPE_CHECKING:
    from controlplane.audit.diff_report import Curves, DiffReport

RECORDED, CANDIDATE, LINE = "#4e79a7", "#e15759", "#9c9c9c"
"""Colours of the two courses, and of what belongs to neither."""
WIDTH, HEIGHT, BAR = 860, 300, 26
"""Of a plot, in pixels; a bar takes so much of the height."""
QUEUES = 16
"""So many queues are drawn, those with the most jobs; the table has all."""
LABEL = 28
"""Characters of the name of a queue beside its bars."""
FONT = "system-ui, sans-serif"
HOUR_MS, MINUTE_MS = 3_600_000, 60_000
_LONG = re.compile(r"(\d+\.\d{2})\d+")
_STYLE = """
body { font-family: system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; font-size: 0.9em; } td, th { padding: 0.2em 0.7em; text-align: left; }
th { border-bottom: 1px solid #999; } tr:nth-child(even) td { background: #f4f4f4; }
td.figure, th.figure { text-align: right; font-variant-numeric: tabular-nums; }
code { font-family: ui-monospace, monospace; } .fails { color: #b00020; font-weight: bold; } .passes { color: #1b6e3c; }
svg { max-width: 100%; height: auto; } p.note { color: #555; }
"""


def page(report: DiffReport, log: str) -> str:
    """The whole page."""
    title = f"{report.candidate.name} against what was recorded"
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in _head(report, log)),
        *_verdicts(report),
        *_first(report),
        *(_plots(report) if report.first_change is not None else []),
        *_tables(report),
        *(f'<p class="note">{escape(note)}</p>' for note in (*report.notes, *report.under_candidate.faults)),
    ]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _head(report: DiffReport, log: str) -> list[str]:
    policies = ", then ".join(f"{policy.name} ({policy.digest[:DIGEST]})" for policy in report.policies)
    candidate = f"{report.candidate.name} ({report.candidate.digest[:DIGEST]})"
    stretch = f"From {instant(report.from_ms)} to {instant(report.end_ms)} of its clock"
    exact = f"{report.exact_cycles:,} cycles were decided again, exactly, up to {instant(report.exact_until_ms)}"
    return [
        f"Log {log}, position {report.position:,}, digest {report.digest}.",
        f"{stretch}; decided by {policies}; decided again by {candidate}.",
        f"{exact}; {report.changed:,} of {report.compared:,} decisions differ.",
    ]


def _verdicts(report: DiffReport) -> list[str]:
    return [
        f'<p class="{"fails" if verdict.holds else "passes"}">{escape(verdict.sentence)}</p>'
        for verdict in report.verdicts
    ]


def _first(report: DiffReport) -> list[str]:
    if report.first_change is None:
        return ["<h2>Nothing changes</h2>", "<p>The candidate decides what the log says, to its end.</p>"]
    lines = (f"<p>{escape(line)}</p>" for line in first_change(report.first_change))
    return ["<h2>The first change</h2>", *lines]


# --- tables -----------------------------------------------------------------------------------------------------------


def _tables(report: DiffReport) -> list[str]:
    changes = [[f"{change.count:,}", KINDS[change.kind], HOWS[change.how]] for change in report.changes]
    causes = [[f"{row.count:,}", row.kind, HOWS[row.how], cause(row)] for row in report.by_rule]
    jobs = ["job", "name", "queue", "waited in the log>", "under the candidate>", "change>"]
    waits = ["mean wait>", "then>", "median>", "then>", "95%>", "then>", "share>", "then>"]
    tables = [
        ("Figures", ["", "in the log>", "under the candidate>"], figures(report)),
        ("Queues", ["queue", "started>", "then>", *waits], queues(report)),
        ("What differs", ["decisions>", "what", "how"], changes),
        ("Because of which rule", ["decisions>", "kind", "how", "because of"], causes),
        ("Jobs that gain most", jobs, [job_row(change) for change in report.jobs.gain]),
        ("Jobs that lose most", jobs, [job_row(change) for change in report.jobs.lose]),
    ]
    return [_table(title, columns, rows) for title, columns, rows in tables if rows]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under its title. A column whose name ends with ``>`` holds figures."""
    marks = [' class="figure"' if column.endswith(">") else "" for column in columns]
    heads = "".join(
        f"<th{mark}>{escape(column.removesuffix('>'))}</th>" for mark, column in zip(marks, columns, strict=True)
    )
    lines = (
        "<tr>" + "".join(f"<td{mark}>{escape(cell)}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<h2>{escape(title)}</h2>\n<table>\n<tr>{heads}</tr>\n" + "\n".join(lines) + "\n</table>"


# --- plots ------------------------------------------------------------------------------------------------------------


def _plots(report: DiffReport) -> list[str]:
    _set_theme()
    plots = [_curves(report, "GPUs in use at home", [curves.gpus["home"] for curves in _both(report)])]
    cloud = [curves.gpus["cloud"] for curves in _both(report)]
    if any(map(any, cloud)):
        plots.append(_curves(report, "GPUs in use in the cloud", cloud))
    plots.append(_curves(report, "Jobs that wait", [curves.waiting for curves in _both(report)]))
    sides = (report.recorded, report.under_candidate)
    shown = sorted(report.recorded.shares, key=lambda queue: (-report.recorded.waits[queue].jobs, queue))[:QUEUES]
    waits = [[side.waits[queue].mean_ms / MINUTE_MS for queue in shown] for side in sides]
    plots.append(_bars("Mean wait by queue, in minutes", shown, waits))
    tails = [[side.waits[queue].p95_ms / MINUTE_MS for queue in shown] for side in sides]
    plots.append(_bars("95th percentile of the waits by queue, in minutes", shown, tails))
    parts = [[100 * side.shares[queue].part for queue in shown] for side in sides]
    plots.append(_bars("Share of the GPU time by queue, in per cent", shown, parts))
    return ["<h2>Plots</h2>", *plots]


def _both(report: DiffReport) -> tuple[Curves, Curves]:
    return report.recorded_curves, report.candidate_curves


def _set_theme() -> None:
    """The library keeps its style in a module of its own."""
    theme = leather.theme
    theme.title_font_family = theme.legend_font_family = theme.axis_title_font_family = theme.tick_font_family = FONT
    theme.background_color = "#ffffff"
    theme.label_color = "#555"
    theme.tick_font_size = theme.legend_font_size = theme.axis_title_font_size = 12


def _curves(report: DiffReport, title: str, values: Sequence[Sequence[float]]) -> str:
    chart = leather.Chart(title)
    first = report.recorded_curves
    hours = [round((first.from_ms + first.step_ms * (at + 0.5)) / HOUR_MS, 4) for at in range(len(values[0]))]
    for name, colour, ys in zip(("in the log", "candidate"), (RECORDED, CANDIDATE), values, strict=True):
        chart.add_line(list(zip(hours, ys, strict=True)), name=name, stroke_color=colour)
    top = max(1.0, *values[0], *values[1])
    parted = round(report.exact_until_ms / HOUR_MS, 4)
    chart.add_line([(parted, 0), (parted, top)], name="simulated from here", stroke_color=LINE, stroke_dasharray="4")
    chart.add_x_axis(name="hours of the log's clock")
    chart.add_y_scale(0, top)
    chart.add_x_scale(min(parted, hours[0]), max(parted, hours[-1]))
    return _svg(chart, HEIGHT)


def _bars(title: str, names: Sequence[str], values: Sequence[Sequence[float]]) -> str:
    """Two bars for each queue, that of the log above that of the candidate."""
    bars: list[tuple[float, str]] = []
    for at, name in enumerate(names):
        label = name if len(name) <= LABEL else f"{name[:LABEL]}… ({at + 1})"  # numbered: a bar is known by its label
        bars.append((round(values[0][at], 3), f"{label}, log"))
        bars.append((round(values[1][at], 3), f"{label}, candidate"))
    chart = leather.Chart(title)
    chart.add_bars(bars, fill_color=lambda bar: RECORDED if bar.y.endswith(", log") else CANDIDATE)
    return _svg(chart, 110 + BAR * len(bars))


def _svg(chart: leather.Chart, height: int) -> str:
    drawn: str = chart.to_svg(width=WIDTH, height=height)
    short = _LONG.sub(r"\1", drawn)
    return f"<p>{short}</p>"
