"""Philly: real jobs of virtual clusters as gangs of whole GPUs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.intake import philly
from controlplane.intake.traces import IntakeError, TraceJob, gang, gpus_milli

HEAD = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def jobs(*rows: str) -> list[TraceJob]:
    return philly.parse_jobs("p.csv", (HEAD + "\n".join(rows)).encode())


def test_the_real_trace(data_dir: Path) -> None:
    found = philly.read_jobs(data_dir / "philly/philly_jobs.csv.gz")
    assert len(found) == 82_247
    assert found[0].arrival_ms == 0
    assert [job.arrival_ms for job in found] == sorted(job.arrival_ms for job in found)
    assert len({job.spec.name for job in found}) == len(found)
    assert len({job.spec.queue for job in found}) == 15
    sizes = Counter(gpus_milli(job.spec) // 1_000 for job in found)
    assert (sizes[1], sizes[12], sizes[128]) == (76_627, 7, 3)
    assert len({id(job.spec.roles) for job in found}) < 120


def test_arrival_counts_from_the_first_submission_wherever_it_stands() -> None:
    later, first = jobs("2017-03-01 00:00:00,1,1,1,b", "2017-02-28 23:59:58,66.25,2,1,a")[::-1]
    assert (first.arrival_ms, first.runtime_ms, first.spec.queue) == (0, 66_250, "vc-a")
    assert (later.arrival_ms, later.spec.name) == (2_000, "philly-1")


@pytest.mark.parametrize(
    ("gpus", "roles"),
    [
        (1, [("main", 1, 1)]),
        (8, [("main", 1, 8)]),
        (12, [("main", 1, 8), ("rest", 1, 4)]),
        (16, [("main", 2, 8)]),
        (128, [("main", 16, 8)]),
    ],
)
def test_more_than_a_node_is_a_gang(gpus: int, roles: list[tuple[str, int, int]]) -> None:
    (job,) = jobs(f"2017-03-01 00:00:00,1,{gpus},1,a")
    assert [(role.name, role.count, role.gpus) for role in job.spec.roles] == roles


@given(st.integers(1, 100_000), st.integers(1, 64))
def test_a_gang_holds_all_its_gpus_and_no_member_outgrows_a_node(gpus: int, per_node: int) -> None:
    roles = gang(gpus, per_node, cpu_milli=3, memory_bytes=5, gpu_models=("T4",))
    assert sum(role.count * role.gpus for role in roles) == gpus
    assert all(0 < role.gpus <= per_node for role in roles)
    assert all((role.cpu_milli, role.memory_bytes) == (3 * role.gpus, 5 * role.gpus) for role in roles)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("2017-02-29 00:00:00,1,1,1,a", "timestamp is '2017-02-29 00:00:00', not a time; write it as YYYY-MM-DD"),
        ("2017-02-28T00:00:00,1,1,1,a", "timestamp is '2017-02-28T00:00:00', not a time; "),
        ("2017-02-28 24:00:00,1,1,1,a", "timestamp is '2017-02-28 24:00:00', not a time; "),
        ("2017-02-28 00:00:00,nan,1,1,a", "duration is 'nan', not a number of seconds; write it as decimal digits"),
        ("2017-02-28 00:00:00,1e3,1,1,a", "duration is '1e3', not a number of seconds; "),
        ("2017-02-28 00:00:00,-2.5,1,1,a", "duration is -2,500 (in ms), below 0; "),
        ("2017-02-28 00:00:00,9999999999999,1,1,a", "duration is 9,999,999,999,999,000 (in ms), above the limit of "),
        ("2017-02-28 00:00:00,1,0,1,a", "num_gpus is 0, below 1; "),
        ("2017-02-28 00:00:00,1,1000000000000,1,a", "num_gpus is 1,000,000,000,000, above the limit of 800,000; "),
        ("2017-02-28 00:00:00,1,1,1,", "cluster is empty; name the virtual cluster"),
        ("2017-02-28 00:00:00,1,1,1,a b", "queue is 'vc-a b': String should match pattern"),
    ],
)
def test_a_wrong_row_is_named_with_its_place(row: str, sentence: str) -> None:
    with pytest.raises(IntakeError) as caught:
        jobs("2017-02-28 00:00:00,1,1,1,a", row)
    assert str(caught.value).startswith(f"p.csv:3: {sentence}")
