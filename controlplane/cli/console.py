"""What goes to the terminal: one JSON object or words and tables on standard output, progress on standard error."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PATIENCE_S = 2.0
"""What is done sooner shows no bar."""
WIDE = 200
"""Columns where standard output is no terminal, so that no table is cut."""

GAP = 2
"""Between two columns of a table."""
LEGIBLE = 8
"""Words in a table are not cut shorter than this."""
READABLE = 108
"""Columns that a sentence takes at most."""


class Report(Protocol):
    """So much of so much is done; a note beside it says what else may be told."""

    def __call__(self, done: int, total: int, note: str = "") -> None: ...


def print_json(answer: Mapping[str, object]) -> None:
    """The one object of ``--json``."""
    print(json.dumps(answer, indent=2, ensure_ascii=False))


def print_sentences(sentences: Sequence[str]) -> None:
    """Each begins a line; what does not fit goes on below it, indented."""
    columns = min(shutil.get_terminal_size().columns, READABLE) if sys.stdout.isatty() else READABLE
    for sentence in sentences:
        print(textwrap.fill(sentence, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def console() -> Console:
    """Standard output for words and tables."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, markup=False, soft_wrap=False)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], title: str = "", expendable: Sequence[str] = ()
) -> None:
    """A table, one line to a row. A column whose name ends with ``>`` holds figures, set flush right.

    Where the terminal is too narrow, expendable columns are left out, in the order given and named below; then words
    (never figures) are cut short.
    """
    from rich.table import Table
    from rich.text import Text

    to = console()
    shown = list(range(len(columns)))
    names = [column.rstrip(">") for column in columns]
    left_out: list[str] = []
    for name in expendable:
        if _width(shown, names, rows) > to.width:
            shown.remove(names.index(name))
            left_out.append(name)
    rows = _cut(shown, columns, rows, _width(shown, names, rows) - to.width)
    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", header_style="bold")
    for column in shown:
        justify = "right" if columns[column].endswith(">") else "left"
        table.add_column(names[column], justify=justify, overflow="ellipsis", no_wrap=True)  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(Text(row[column]) for column in shown))
    to.print(table)
    if left_out:
        print(f"(left out for want of room: {', '.join(left_out)}; --json has all)")


def _width(shown: Sequence[int], names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns of the terminal that a table takes."""
    widths = (max([len(names[column]), *(len(row[column]) for row in rows)]) for column in shown)
    return sum(widths) + GAP * (len(shown) - 1)


def _cut(
    shown: Sequence[int], columns: Sequence[str], rows: Sequence[Sequence[str]], excess: int
) -> Sequence[Sequence[str]]:
    """The rows with their longest words cut short, so that the table takes that much less, as far as possible."""
    widths = {
        column: max([LEGIBLE, *(len(row[column]) for row in rows)])
        for column in shown
        if not columns[column].endswith(">")
    }
    while excess > 0 and widths and max(widths.values()) > LEGIBLE:
        longest = max(widths, key=lambda column: widths[column])
        widths[longest] -= 1
        excess -= 1
    return [
        [
            cell if column not in widths or len(cell) <= widths[column] else f"{cell[: widths[column] - 1]}…"
            for column, cell in enumerate(row)
        ]
        for row in rows
    ]


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[Report | None]:
    """A bar on standard error for what takes longer than :data:`PATIENCE_S`; ``None`` where nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what)
    try:
        yield bar.show
    finally:
        bar.close()


class _Bar:
    def __init__(self, what: str) -> None:
        self._what = what
        self._begun = time.monotonic()
        self._shown: tuple[Progress, TaskID] | None = None

    def show(self, done: int, total: int, note: str = "") -> None:
        """See :class:`Report`."""
        if self._shown is None:
            if time.monotonic() - self._begun < PATIENCE_S:
                return
            self._shown = self._open()
        bar, task = self._shown
        bar.update(task, completed=done, total=total, description=f"{self._what} {note}".rstrip())

    def _open(self) -> tuple[Progress, TaskID]:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        bar.start()
        return bar, bar.add_task(self._what, total=None)

    def close(self) -> None:
        """Take it away."""
        if self._shown is not None:
            self._shown[0].stop()
