"""The Standard Workload Format: three real logs, and every field that is read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.intake import swf
from controlplane.intake.swf import SwfTrace
from controlplane.intake.traces import IntakeError, Outcome

#        1 2   3   4   5  6   7   8  9  10  11 12 13 14 15 16 17 18
GOOD = ["7 100 -1 60 4 -1 -1 8 90 -1 1 3 1 -1 2 -1 -1 -1"]


def log(*lines: str) -> SwfTrace:
    return swf.parse_jobs("x.swf", "\n".join(lines).encode())


def line(**fields: str) -> str:
    """The good line with some fields (``f4="0"``) replaced."""
    cells = GOOD[0].split()
    for name, value in fields.items():
        cells[int(name[1:]) - 1] = value
    return " ".join(cells)


@pytest.mark.parametrize(
    ("file", "jobs", "skipped", "procs", "start"),
    [
        ("lublin_256", 10_000, 0, 256, None),
        ("HPC2N-2002-2.2-head", 3_145, 25, 240, 1_027_839_845),
        ("NASA-iPSC-1993-3.1-cln", 18_066, 173, 128, 749_458_803),
    ],
)
def test_the_real_logs(data_dir: Path, file: str, jobs: int, skipped: int, procs: int, start: int | None) -> None:
    found = swf.read_jobs(data_dir / f"swf/{file}.swf.gz")
    assert (len(found.jobs), found.skipped, found.max_procs, found.unix_start_s) == (jobs, skipped, procs, start)
    assert all(job.runtime_ms and job.runtime_ms > 0 for job in found.jobs)
    assert max(job.spec.roles[0].count for job in found.jobs) <= procs


def test_the_sequences_of_the_published_table_are_addressable(data_dir: Path) -> None:
    """PUBLISHED 2: 1,024 consecutive jobs from index 8850, counted from 0 by job number, lie within the log."""
    found = swf.read_jobs(data_dir / "swf/lublin_256.swf.gz").jobs
    numbers = [int(job.spec.name.removeprefix("swf-")) for job in found]
    assert numbers == sorted(numbers)
    assert len(found[8_850 : 8_850 + 1_024]) == 1_024
    assert all(job.spec.estimate_ms == job.runtime_ms for job in found)


def test_a_job_in_full() -> None:
    (job,) = log(*GOOD).jobs
    (role,) = job.spec.roles
    assert (role.count, role.cpu_milli, role.gpus) == (8, 1_000, 0)
    assert (job.spec.name, job.spec.user, job.spec.labels) == ("swf-7", "u3", {"swf-queue": "2"})
    assert (job.arrival_ms, job.runtime_ms, job.spec.estimate_ms) == (100_000, 60_000, 90_000)
    assert job.outcome is Outcome.FINISHED


@pytest.mark.parametrize(("status", "outcome"), [("0", Outcome.FAILED), ("5", Outcome.CANCELLED), ("-1", "finished")])
def test_the_status_is_the_outcome(status: str, outcome: Outcome) -> None:
    assert log(line(f11=status)).jobs[0].outcome == outcome


def test_the_larger_number_of_processors_counts() -> None:
    assert log(line(f5="16", f8="-1")).jobs[0].spec.members == 16
    assert log(line(f5="16", f8="8")).jobs[0].spec.members == 16
    assert log(line(f5="-1", f8="8")).jobs[0].spec.members == 8


def test_without_a_request_the_run_time_is_the_estimate() -> None:
    assert log(line(f9="-1")).jobs[0].spec.estimate_ms == 60_000


def test_jobs_that_never_ran_or_on_nothing_are_counted_not_kept() -> None:
    found = log(line(), line(f1="8", f4="0"), line(f1="9", f4="-1"), line(f1="10", f5="-1", f8="-1"))
    assert (len(found.jobs), found.skipped) == (1, 3)


def test_jobs_are_in_the_order_of_their_numbers() -> None:
    assert [job.spec.name for job in log(line(f1="10"), line(f1="9")).jobs] == ["swf-9", "swf-10"]


def test_the_header_is_free_text() -> None:
    found = log(
        "; MaxProcs: 64 (was 128)", ";MaxNodes: 32", "; MaxProcs: 1", "; hello", ";", "; UnixStartTime: x", *GOOD
    )
    assert (found.max_procs, found.unix_start_s) == (64, None)
    assert log("; MaxNodes: 32", *GOOD).max_procs == 32


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 2 3", "x.swf:2: the job has 3 fields, not 18; correct the line"),
        (line(f5="-4"), "x.swf:2: field 5 (processors allocated) is -4, below -1; "),
        (
            line(f8="1000000000000"),
            "x.swf:2: field 8 (processors asked for) is 1,000,000,000,000, above the limit of 100,",
        ),
        (line(f4="nan"), "x.swf:2: field 4 (run time) is 'nan', not a number of seconds; "),
        (line(f2="-1"), "x.swf:2: field 2 (submit time) is -1,000 (in ms), below 0; "),
        (line(f12="x"), "x.swf:2: field 12 (user) is 'x', not a whole number; "),
        ("\n" + line(), "x.swf:3: job number 7 is already in line 1; give every job its own number"),
    ],
)
def test_a_wrong_line_is_named_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(IntakeError) as caught:
        log(*GOOD, text)
    assert str(caught.value).startswith(sentence)


def test_a_header_without_jobs_is_refused() -> None:
    with pytest.raises(IntakeError, match=r"^x\.swf: the log has no jobs; give lines of 18 fields"):
        log("; MaxProcs: 64")


@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**9), st.integers(1, 100_000)), min_size=1))
def test_what_is_written_is_read(jobs: list[tuple[int, int, int]]) -> None:
    lines = [line(f1=str(n), f2=str(at), f4=str(run), f8=str(procs)) for n, (at, run, procs) in enumerate(jobs)]
    assert [(j.arrival_ms, j.runtime_ms, j.spec.members) for j in log(*lines).jobs] == [
        (at * 1_000, run * 1_000, max(4, procs)) for at, run, procs in jobs
    ]
