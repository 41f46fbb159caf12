"""``tidegate log`` and ``tidegate db``: verify, copy, follow and upgrade a log."""

from __future__ import annotations

import json as text
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controlplane.cli.console import print_json, print_sentences, progress
from controlplane.cli.faults import DONE, NO, WrongUse
from controlplane.cli.options import Json, LogUrl, open_for_reading
from controlplane.cli.words import instant, plural

if TYPE_CHECKING:
    from controlplane.eventlog.port import EventLog, Head, Record

LOOK_S = 0.5
"""Between two looks at a log that is followed: quick for a person, nothing for a database."""
SHOWN = 120
"""So many characters of a payload are shown to people."""


def verify(log: LogUrl, json: Json = False) -> int:
    """Compute every digest of the chain again; name the first record that does not hold.

    This proves that the records are those that were appended, each written in the one way there is, and says whether
    the database still refuses changes. `replay --verify` proves the decisions among them.
    """
    from controlplane.audit.canonical import payload_fault
    from controlplane.eventlog.verify import Kind, verify_chain

    with open_for_reading(log) as opened, progress("verifying", quiet=json) as show:
        report, flaws = verify_chain(opened, show, payload_fault), opened.flaws()
    damage, ok = report.damage, report.ok and not flaws
    if json:
        found = None if damage is None else {"position": damage.position, "kind": str(damage.kind), "what": damage.what}
        print_json({"ok": ok, **_head(report.head), "damage": found, "flaws": list(flaws)})
        return DONE if ok else NO
    if damage is None:
        print(f"The chain holds: {plural(report.head.position, 'record')}, digest {report.head.digest}")
    else:
        broken = (
            "The chain breaks" if damage.kind is not Kind.FOREIGN else "The chain holds, but no writer made what stands"
        )
        print(f"{broken} at position {damage.position} ({damage.kind}): {damage.what}")
        print(f"Sound up to position {report.head.position}, digest {report.head.digest}.")
    _tell_flaws(flaws)
    return DONE if ok else NO


def _tell_flaws(flaws: Sequence[str]) -> None:
    if flaws:
        print("But the database around the records is not as it was made:")
        print_sentences([f"  {flaw}" for flaw in flaws])
        print("Export the log (`log export`) and import it into a new one (`log import`), which makes all of it anew.")


def export(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl[.gz]", help="An older one is replaced.")],
    log: LogUrl,
    json: Json = False,
) -> int:
    """Write the log to a file of JSON Lines, from which everything else works as from the database."""
    from controlplane.eventlog.export import export_log

    _must_be_exported(file)
    with open_for_reading(log) as opened, progress("exporting", quiet=json) as show:
        head = export_log(opened, file, show)
    return _copied(head, str(file), json=json)


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE.jsonl[.gz]", help="An exported log.")],
    log: LogUrl,
    json: Json = False,
) -> int:
    """Append an exported file to a log that is new, empty, or holds the beginning of it.

    The file's chain is verified first; the log receives all of it or nothing.
    """
    from controlplane.cli.drafts import new_log
    from controlplane.eventlog import file_of, is_exported, open_log
    from controlplane.eventlog.export import import_log

    _must_be_exported(file)
    if is_exported(log):
        raise WrongUse(f"--log {log}: a file is not imported into a file; name a database")
    target = file_of(log)
    with progress("importing", quiet=json) as show:
        if target is not None and not target.exists():
            with new_log(log) as written:
                head = import_log(file, written, show)
        else:
            with open_log(log, create=True) as opened:
                head = import_log(file, opened, show)
    return _copied(head, log, json=json)


def tail(
    log: LogUrl,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, metavar="N", help="So many of the last records.")] = 10,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is appended, until interrupted.")
    ] = False,
    json: Json = False,
) -> int:
    """Show the last records. With --json and --follow each record is an object on a line of its own."""
    with open_for_reading(log) as opened:
        head = opened.head()
        after = max(0, head.position - lines)
        if follow:
            _follow(opened, after, json=json)
            return DONE
        records = list(opened.read(after, head.position))
    if json:
        print_json({"ok": True, **_head(head), "records": [_plain(record) for record in records]})
    else:
        for record in records:
            print(_line(record))
    return DONE


def upgrade(log: LogUrl, json: Json = False) -> int:
    """Bring a database of an older version to this version's schema. Events are never rewritten."""
    from controlplane.eventlog import open_log, upgrade_log

    upgrade_log(log)
    with open_log(log, create=False, read_only=True) as opened:
        head, shown = opened.head(), opened.url
    if json:
        print_json({"ok": True, "log": shown, **_head(head)})
    else:
        print(f"{shown} is up to date: {plural(head.position, 'record')}")
    return DONE


def _must_be_exported(file: Path) -> None:
    from controlplane.eventlog import is_exported

    if not is_exported(str(file)):
        raise WrongUse(f"{file}: an exported log is called FILE.jsonl or FILE.jsonl.gz; name it so")


def _copied(head: Head, to: str, *, json: bool) -> int:
    if json:
        print_json({"ok": True, **_head(head), "file": to})
    else:
        print(f"{plural(head.position, 'record')} in {to}, digest {head.digest}")
    return DONE


def _follow(log: EventLog, after: int, *, json: bool) -> None:
    for record in _endless(log, after):
        print(text.dumps(_plain(record), ensure_ascii=False) if json else _line(record), flush=True)


def _endless(log: EventLog, after: int) -> Iterator[Record]:
    from controlplane.eventlog.tail import tail as followed

    def wait() -> bool:
        time.sleep(LOOK_S)
        return True

    try:
        yield from followed(log, after, wait)
    except KeyboardInterrupt:  # the way to end it
        return


def _head(head: Head) -> dict[str, object]:
    return {"position": head.position, "digest": head.digest, "events": head.position}


def _plain(record: Record) -> dict[str, object]:
    """A record as JSON. A payload that is no JSON (a damaged log) is given as text."""
    try:
        payload: object = text.loads(record.payload)
    except ValueError:
        payload = record.payload.decode("utf-8", "replace")
    return {**record._asdict(), "payload": payload}


def _line(record: Record) -> str:
    payload = record.payload.decode("utf-8", "replace")
    shown = payload if len(payload) <= SHOWN else f"{payload[:SHOWN]}..."
    return f"{record.position:>8}  {instant(record.recorded_at_ms)}  {record.actor:<10} {record.type:<22} {shown}"
