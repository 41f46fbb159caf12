"""Reads the Standard Workload Format of the Parallel Workloads Archive: header comments, then 18 fields a job.

A job asks for processors: one role with so many members of 1,000 milli-CPU. The fields read here are 1 (job number), 2
(submit time), 4 (run time), 5 and 8 (processors allocated and asked for: the larger counts), 9 (time asked for), 11
(status), 12 (user) and 15 (queue); -1 means unknown. Jobs without a positive run time, or whose processors are unknown,
are left out and counted, as the users of the archive do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from controlplane.domain.quantities import MAX_MEMBERS, MAX_MS, MILLI
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake.tables import decode_text, domain_fault, milliseconds, read_bytes, whole_number
from controlplane.intake.traces import IntakeError, Outcome, TraceJob

FIELDS = 18
QUEUE_LABEL = "swf-queue"

_HEADER = re.compile(r";\s*([A-Za-z]+):\s*(.*)")
_LEADING = re.compile(r"[0-9]{1,15}")
_MAX_NUMBER = 2**53 - 1
_OUTCOMES = {0: Outcome.FAILED, 5: Outcome.CANCELLED}
"""Of field 11; 1 is completed, -1 unknown, 2 to 4 are parts of a job that went on."""


@dataclass(frozen=True, slots=True)
class SwfTrace:
    """A log: its machine, its jobs by job number, and how many were left out."""

    header: dict[str, str]
    """Header comments by name, the first of each."""
    max_procs: int | None
    """Processors of the machine (``MaxProcs``, else ``MaxNodes``)."""
    unix_start_s: int | None
    """The instant of submit time 0 (``UnixStartTime``)."""
    jobs: list[TraceJob]
    skipped: int


def read_jobs(path: Path, queue: str = "swf") -> SwfTrace:
    """The log (.swf or .swf.gz) as jobs of one queue. Raises :class:`IntakeError`.

    ``arrival_ms`` is the submit time; jobs are in the order of their numbers, which need not be that of arrival.
    """
    return parse_jobs(str(path), read_bytes(path), queue)


def parse_jobs(file: str, data: bytes, queue: str = "swf") -> SwfTrace:
    """:func:`read_jobs` for bytes already read; ``file`` is the name in errors."""
    header: dict[str, str] = {}
    numbered: dict[int, TraceJob] = {}
    lines: dict[int, int] = {}
    roles: dict[int, tuple[Role, ...]] = {}
    for line, text in enumerate(decode_text(file, data).split("\n"), start=1):
        if text.startswith(";"):
            comment = _HEADER.match(text)
            if comment:
                header.setdefault(comment.group(1), comment.group(2).strip())
            continue
        fields = text.split()
        if not fields:
            continue
        record = _record(file, line, fields)
        first = lines.setdefault(record.number, line)
        if first != line:
            what = f"job number {record.number} is already in line {first}"
            raise IntakeError(file, line, what, "give every job its own number")
        if record.runtime_ms > 0 and record.processors > 0:
            numbered[record.number] = _job(file, line, record, queue, roles)
    if not lines:
        raise IntakeError(file, 0, "the log has no jobs", f"give lines of {FIELDS} fields")
    return SwfTrace(
        header=header,
        max_procs=_header_number(header, "MaxProcs") or _header_number(header, "MaxNodes"),
        unix_start_s=_header_number(header, "UnixStartTime"),
        jobs=[numbered[number] for number in sorted(numbered)],
        skipped=len(lines) - len(numbered),
    )


@dataclass(frozen=True, slots=True)
class _Record:
    number: int
    submitted_ms: int
    runtime_ms: int
    processors: int
    estimate_ms: int
    status: int
    user: int
    queue: int


def _record(file: str, line: int, fields: list[str]) -> _Record:
    if len(fields) != FIELDS:
        raise IntakeError(file, line, f"the job has {len(fields)} fields, not {FIELDS}", "correct the line")

    def count(number: int, name: str, most: int = _MAX_NUMBER, least: int = -1) -> int:
        return whole_number(file, line, f"field {number} ({name})", fields[number - 1], most, least)

    def time_ms(number: int, name: str, least: int) -> int:
        return milliseconds(file, line, f"field {number} ({name})", fields[number - 1], least)

    return _Record(
        number=count(1, "job number", least=0),
        submitted_ms=time_ms(2, "submit time", 0),
        runtime_ms=time_ms(4, "run time", -1_000),
        processors=max(count(5, "processors allocated", MAX_MEMBERS), count(8, "processors asked for", MAX_MEMBERS)),
        estimate_ms=time_ms(9, "time asked for", -1_000),
        status=count(11, "status"),
        user=count(12, "user"),
        queue=count(15, "queue"),
    )


def _job(file: str, line: int, record: _Record, queue: str, roles: dict[int, tuple[Role, ...]]) -> TraceJob:
    alike = roles.get(record.processors)
    if alike is None:
        alike = roles[record.processors] = (Role(count=record.processors, cpu_milli=MILLI),)
    estimate_ms = record.estimate_ms if record.estimate_ms > 0 else record.runtime_ms
    try:
        spec = JobSpec(
            name=f"swf-{record.number}",
            queue=queue,
            user="unknown" if record.user < 0 else f"u{record.user}",
            roles=alike,
            labels={} if record.queue < 0 else {QUEUE_LABEL: str(record.queue)},
            estimate_ms=min(estimate_ms, MAX_MS),
        )
    except ValidationError as error:
        raise domain_fault(file, line, error) from error
    return TraceJob(spec, record.submitted_ms, record.runtime_ms, _OUTCOMES.get(record.status, Outcome.FINISHED))


def _header_number(header: dict[str, str], name: str) -> int | None:
    """The number that a header comment begins with; comments are free text, so anything else is no number."""
    match = _LEADING.match(header.get(name, ""))
    return int(match.group()) if match else None
