"""Reads the Philly trace (Microsoft, GPU jobs of virtual clusters): ``timestamp, duration, num_gpus, cluster``.

``timestamp`` is ``YYYY-MM-DD hh:mm:ss`` without a zone and is taken as it stands; ``duration`` is in seconds. The trace
names no user, CPU or memory, so none is asked for. Jobs of more than eight GPUs become gangs over nodes of eight.

The trace is CC-BY-4.0 by Microsoft and is read where the user has put it; no row of it is part of this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from controlplane.domain.quantities import MAX_MEMBERS
from controlplane.domain.workloads import JobSpec
from controlplane.intake.tables import Row, decode_text, domain_fault, milliseconds, read_bytes, rows, shown
from controlplane.intake.traces import TraceJob, gang, renamed

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
GPUS_PER_NODE = 8
"""Philly's machines have two or eight; its larger jobs ask for multiples of four, most of them of eight."""
QUEUE_PREFIX = "vc-"
"""Before a cluster's id, which is hexadecimal: ``6214e9`` alone would be a number in many readers of YAML."""

_TIMESTAMP = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})\Z")
_MS_PER_DAY = 86_400_000
_MAX_GPUS = MAX_MEMBERS * GPUS_PER_NODE


@dataclass(frozen=True, slots=True)
class PhillyRow:
    """One job as it was recorded. ``submitted_ms`` counts from the first day of the year 1."""

    line: int
    submitted_ms: int
    runtime_ms: int
    gpus: int
    cluster: str


def read_jobs(path: Path) -> list[TraceJob]:
    """The jobs of a trace (.csv or .csv.gz) by arrival, which counts from the first. Raises :class:`IntakeError`."""
    return parse_jobs(str(path), read_bytes(path))


def read_rows(path: Path) -> list[PhillyRow]:
    """The rows by submission, ties in the order of the file. Raises :class:`IntakeError`."""
    return sorted(_recorded(str(path), read_bytes(path)), key=lambda row: row.submitted_ms)


def parse_jobs(file: str, data: bytes) -> list[TraceJob]:
    """:func:`read_jobs` for bytes already read; ``file`` is the name in errors."""
    recorded = sorted(_recorded(file, data), key=lambda row: row.submitted_ms)
    first_ms = recorded[0].submitted_ms
    kinds: dict[tuple[str, int], JobSpec] = {}
    jobs = []
    for row in recorded:
        name = f"philly-{row.line - 1}"
        try:
            kind = kinds.get((row.cluster, row.gpus))
            if kind is None:
                kind = JobSpec(name=name, queue=QUEUE_PREFIX + row.cluster, roles=gang(row.gpus, GPUS_PER_NODE))
                kinds[row.cluster, row.gpus] = kind
            jobs.append(TraceJob(renamed(kind, name), row.submitted_ms - first_ms, row.runtime_ms))
        except ValidationError as error:
            raise domain_fault(file, row.line, error) from error
    return jobs


def _recorded(file: str, data: bytes) -> Iterator[PhillyRow]:
    days: dict[str, int] = {}
    for row in rows(file, decode_text(file, data), COLUMNS):
        cluster = row.text("cluster")
        if not cluster:
            raise row.fault("cluster is empty", "name the virtual cluster")
        yield PhillyRow(
            line=row.line,
            submitted_ms=_instant_ms(row, days),
            runtime_ms=milliseconds(file, row.line, "duration", row.text("duration")),
            gpus=row.whole("num_gpus", _MAX_GPUS, least=1),
            cluster=cluster,
        )


def _instant_ms(row: Row, days: dict[str, int]) -> int:
    """The timestamp; ``days`` remembers the days already met."""
    text = row.text("timestamp")
    match = _TIMESTAMP.match(text)
    if match:
        year, month, day, hour, minute, second = map(int, match.groups())
        try:
            start = days.get(text[:10])
            if start is None:
                start = days[text[:10]] = date(year, month, day).toordinal() * _MS_PER_DAY
        except ValueError:
            start = None
        if start is not None and hour < 24 and minute < 60 and second < 60:
            return start + ((hour * 60 + minute) * 60 + second) * 1_000
    raise row.fault(f"timestamp is {shown(text)}, not a time", "write it as YYYY-MM-DD hh:mm:ss")
