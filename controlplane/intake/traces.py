"""What the readers of traces hand on: jobs with arrival and run time, nodes with their shape, and one kind of error.

A trace is a table that somebody else recorded. The readers beside this module turn it into domain values and nothing
more: they decide nothing, know no clock and touch no log. Everything that is wrong with a file is an
:class:`IntakeError`, which names the place and says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pydantic import TypeAdapter

from controlplane.domain.clusters import NodeShape
from controlplane.domain.quantities import Name
from controlplane.domain.workloads import JobSpec, Role

_NAME: TypeAdapter[str] = TypeAdapter(Name)


class Outcome(StrEnum):
    """How a job of a trace ended, as its recorder saw it."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RUNNING = "running"
    """It still ran when the recording stopped: its run time is a lower bound, or ``None``."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace or of the generator.

    ``arrival_ms`` counts from the start of the trace. ``runtime_ms`` is the time from start to end on the recorded
    machine; ``None`` never ends.
    """

    spec: JobSpec
    arrival_ms: int
    runtime_ms: int | None
    outcome: Outcome = Outcome.FINISHED


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One node of a trace. ``flavor`` is the GPU model, or ``cpu`` for a node without GPUs."""

    name: str
    shape: NodeShape
    flavor: str
    labels: Mapping[str, str]


class IntakeError(Exception):
    """A file that cannot be taken in: where, what is wrong, what to do. Its text is one sentence for a person.

    ``line`` counts from 1; 0 means the file as a whole.
    """

    def __init__(self, file: str, line: int, what: str, fix: str) -> None:
        super().__init__(f"{file}:{line}: {what}; {fix}" if line else f"{file}: {what}; {fix}")
        self.file = file
        self.line = line
        self.what = what
        self.fix = fix


def renamed(spec: JobSpec, name: str) -> JobSpec:
    """The same job under another name. Everything else is shared, so that a million alike jobs cost a million names.

    Raises pydantic's ``ValidationError`` for a name that the domain refuses.
    """
    return spec.model_copy(update={"name": _NAME.validate_python(name)})


def gpus_milli(spec: JobSpec) -> int:
    """Milli-GPU that all members of a job ask for together."""
    return sum(role.count * role.gpus * role.gpu_milli for role in spec.roles)


def gang(
    gpus: int,
    gpus_per_node: int,
    *,
    cpu_milli: int = 0,
    memory_bytes: int = 0,
    gpu_models: tuple[str, ...] = (),
) -> tuple[Role, ...]:
    """Whole GPUs as roles: one member up to a node's worth, then full nodes and one member (``rest``) for what is left.

    CPU and memory are per GPU.
    """

    def member(name: str, count: int, each: int) -> Role:
        return Role(
            name=name,
            count=count,
            cpu_milli=cpu_milli * each,
            memory_bytes=memory_bytes * each,
            gpus=each,
            gpu_models=gpu_models,
        )

    if gpus <= gpus_per_node:
        return (member("main", 1, gpus),)
    full, rest = divmod(gpus, gpus_per_node)
    return (member("main", full, gpus_per_node), *([member("rest", 1, rest)] if rest else []))
