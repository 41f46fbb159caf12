"""Jobs share a class, and with it every verdict, only if they are alike in all that their specification says."""

from __future__ import annotations

import pytest

from controlplane.domain.topology import Level, TopologyRequest
from controlplane.domain.workloads import JobSpec, Role, ServiceSpec
from controlplane.scheduler.state import State

ROLE: dict[str, object] = {
    "name": "other",
    "count": 2,
    "min_count": 1,
    "cpu_milli": 1,
    "memory_bytes": 1,
    "gpus": 2,
    "gpu_milli": 500,
    "gpu_models": ("A100",),
    "gpu_memory_bytes": 1,
    "gpu_memory_min_bytes": 1,
    "mig_profile": "1g.10gb",
    "throughput_ppm": {"A100": 2_000_000},
    "topology": TopologyRequest(required=Level.RACK),
    "other": {"licence": 1},
}
"""Another value for each field of a role: a field that is added must be added here."""

JOB: dict[str, object] = {
    "queue": "other",
    "user": "other",
    "priority": 1,
    "roles": (Role(name="main", gpus=1), Role(name="other")),
    "labels": {"a": "b"},
    "estimate_ms": 1,
    "wait_limit_ms": 1,
    "max_attempts": 1,
    "grace_ms": 1,
    "checkpoint_every_ms": 1,
    "start_by_ms": 1,
    "time_limit_ms": 1,
    "hold_ms": 1,
    "after_ok": (1,),
    "after_any": (1,),
    "array": "sweep",
    "max_running": 1,
    "topology": TopologyRequest(required=Level.RACK),
    "service": ServiceSpec(),
}


def are_alike(first: JobSpec, second: JobSpec) -> bool:
    state = State()
    return state.class_of(first, 0) is state.class_of(second, 0)


def spec(job: str = "a", /, **role: object) -> JobSpec:
    return JobSpec(name=job, queue="team", roles=(Role.model_validate({"gpus": 1, **role}),))


def test_another_name_is_no_other_class() -> None:
    assert are_alike(spec("a"), spec("b"))


def test_every_field_is_tried() -> None:
    assert set(ROLE) == set(Role.model_fields)
    assert set(JOB) == set(JobSpec.model_fields) - {"name"}


@pytest.mark.parametrize("field", sorted(ROLE))
def test_jobs_that_differ_in_a_field_of_a_role_are_not_alike(field: str) -> None:
    count = {"count": 2} if field == "min_count" else {}
    assert not are_alike(spec(**count), spec(**{**count, field: ROLE[field]}))


@pytest.mark.parametrize("field", sorted(JOB))
def test_jobs_that_differ_in_a_field_are_not_alike(field: str) -> None:
    assert not are_alike(spec(), spec().model_copy(update={field: JOB[field]}))
