"""Reads the openb trace (Alibaba cluster-trace-gpu-v2023): nodes, pods, and the arrivals of its published figures.

Nodes: ``sn, cpu_milli, memory_mib, gpu, model``. Pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli`` and, in most
lists, ``gpu_spec, qos, pod_phase, creation_time, deletion_time, scheduled_time`` (seconds). A pod becomes a gang of
one; pods that ask for the same share one tuple of roles, so that grouping them is a comparison of identities.

The trace is CC-BY-4.0 by Alibaba and is read where the user has put it; no row of it is part of this project.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import ValidationError

from controlplane.domain.clusters import NodeShape
from controlplane.domain.quantities import MAX_AMOUNT, MAX_GPUS_PER_NODE, MAX_MS, MILLI
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake.draw import Draw
from controlplane.intake.tables import Row, decode_text, domain_fault, read_bytes, rows, shown, unique_name
from controlplane.intake.traces import IntakeError, Outcome, TraceJob, TraceNode, gpus_milli, renamed

NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_KIND_COLUMNS = (*POD_COLUMNS[1:], "gpu_spec", "qos")
CPU_FLAVOR = "cpu"
QOS_LABEL = "qos"

_MIB = 2**20
_MAX_MIB = MAX_AMOUNT // _MIB
_MAX_SECONDS = MAX_MS // 1_000
_ABSENT = frozenset({"", "nan", "NaN"})
"""How the published tables write that there is no value."""
_OUTCOMES = {
    "": Outcome.FINISHED,
    "Succeeded": Outcome.FINISHED,
    "Failed": Outcome.FAILED,
    "Pending": Outcome.CANCELLED,
    "Running": Outcome.RUNNING,
}


def read_nodes(path: Path) -> list[TraceNode]:
    """The nodes of a list (.csv or .csv.gz), in the order of the file. Raises :class:`IntakeError`."""
    return parse_nodes(str(path), read_bytes(path))


def read_pods(path: Path, queue: str = "openb") -> list[TraceJob]:
    """The pods of a list (.csv or .csv.gz) as jobs of one queue, by arrival. Raises :class:`IntakeError`."""
    return parse_pods(str(path), read_bytes(path), queue)


def parse_nodes(file: str, data: bytes) -> list[TraceNode]:
    """:func:`read_nodes` for bytes already read; ``file`` is the name in errors."""
    seen: dict[str, int] = {}
    shapes: dict[tuple[int, int, int, str], NodeShape] = {}
    nodes = []
    for row in rows(file, decode_text(file, data), NODE_COLUMNS):
        name = unique_name(row, "sn", seen)
        gpus = row.whole("gpu", MAX_GPUS_PER_NODE)
        model = "" if row.text("model") in _ABSENT else row.text("model")
        if gpus and not model:
            raise row.fault(f"model is empty and gpu is {gpus}", "name the model of the GPUs")
        key = (row.whole("cpu_milli", MAX_AMOUNT), row.whole("memory_mib", _MAX_MIB), gpus, model if gpus else "")
        shape = shapes.get(key)
        if shape is None:
            shape = shapes[key] = _shape(row, *key)
        nodes.append(TraceNode(name, shape, shape.gpu_model or CPU_FLAVOR, {}))
    return nodes


def _shape(row: Row, cpu_milli: int, memory_mib: int, gpus: int, model: str) -> NodeShape:
    try:
        return NodeShape(
            cpu_milli=cpu_milli, memory_bytes=memory_mib * _MIB, gpus=gpus, gpu_model=model if gpus else None
        )
    except ValidationError as error:
        raise domain_fault(row.file, row.line, error) from error


def parse_pods(file: str, data: bytes, queue: str = "openb") -> list[TraceJob]:
    """:func:`read_pods` for bytes already read; ``file`` is the name in errors."""
    seen: dict[str, int] = {}
    kinds: dict[tuple[str, ...], JobSpec] = {}
    jobs = []
    for row in rows(file, decode_text(file, data), POD_COLUMNS):
        name = unique_name(row, "name", seen)
        asked = tuple(row.text(column) for column in _KIND_COLUMNS)
        try:
            kind = kinds.get(asked)
            if kind is None:
                kind = kinds[asked] = _kind(row, name, queue)
            jobs.append(_job(row, renamed(kind, name)))
        except ValidationError as error:
            raise domain_fault(file, row.line, error) from error
    jobs.sort(key=lambda job: job.arrival_ms)
    return jobs


def _kind(row: Row, name: str, queue: str) -> JobSpec:
    """What all pods have in common that ask for the same with the same quality of service."""
    qos = row.text("qos")
    return JobSpec(name=name, queue=queue, roles=(_role(row),), labels={} if qos in _ABSENT else {QOS_LABEL: qos})


def _role(row: Row) -> Role:
    gpus = row.whole("num_gpu", MAX_GPUS_PER_NODE)
    gpu_milli = row.whole("gpu_milli", MILLI, least=1 if gpus else 0)
    if gpus > 1 and gpu_milli != MILLI:
        raise row.fault(f"gpu_milli is {gpu_milli} with num_gpu {gpus}", "ask a fraction of one GPU only")
    spec = row.text("gpu_spec")
    models = () if spec in _ABSENT else tuple(dict.fromkeys(spec.split("|")))
    return Role(
        cpu_milli=row.whole("cpu_milli", MAX_AMOUNT),
        memory_bytes=row.whole("memory_mib", _MAX_MIB) * _MIB,
        gpus=gpus,
        gpu_milli=gpu_milli if gpus else MILLI,
        gpu_models=models if gpus else (),
    )


def _job(row: Row, spec: JobSpec) -> TraceJob:
    phase = row.text("pod_phase")
    outcome = _OUTCOMES.get(phase)
    if outcome is None:
        raise row.fault(f"pod_phase is {shown(phase)}", f"use one of {', '.join(filter(None, _OUTCOMES))}")
    arrival_s = _seconds(row, "creation_time")
    if arrival_s is None:
        return TraceJob(spec, 0, None, Outcome.RUNNING)
    runtime_ms = _runtime_ms(row, arrival_s)
    return TraceJob(spec, arrival_s * 1_000, runtime_ms, Outcome.RUNNING if runtime_ms is None else outcome)


def _runtime_ms(row: Row, arrival_s: int) -> int | None:
    """From the start (or, for a pod that never started, the creation) to the deletion; ``None`` if not deleted."""
    end_s = _seconds(row, "deletion_time")
    if end_s is None:
        return None
    scheduled_s = _seconds(row, "scheduled_time")
    start_s = arrival_s if scheduled_s is None else scheduled_s
    if not arrival_s <= start_s <= end_s:
        what = f"creation_time {arrival_s}, scheduled_time {start_s} and deletion_time {end_s} are out of order"
        raise row.fault(what, "correct the times")
    return (end_s - start_s) * 1_000


def _seconds(row: Row, column: str) -> int | None:
    return None if row.text(column) in _ABSENT else row.whole(column, _MAX_SECONDS)


def typical_roles(pods: Iterable[TraceJob]) -> tuple[Role, ...]:
    """What pods ask for and how often, as ``typical_jobs_configured`` takes it, in the order of first appearance."""
    numbers: dict[str, int] = {}
    roles: dict[str, Role] = {}
    for pod in pods:
        for role in pod.spec.roles:
            key = role.model_dump_json(exclude={"name", "count"})
            roles.setdefault(key, role)
            numbers[key] = numbers.get(key, 0) + role.count
    return tuple(role.model_copy(update={"count": numbers[key]}) for key, role in roles.items())


def capacity_milli(nodes: Iterable[TraceNode]) -> int:
    """Milli-GPU of all nodes together."""
    return sum(node.shape.gpus for node in nodes) * MILLI


def arrivals(
    pods: Sequence[TraceJob],
    capacity_milli: int,
    *,
    percent: int,
    seed: int,
    spacing_ms: int = 1_000,
    wait_limit_ms: int | None = 0,
    file: str = "the list of pods",
) -> list[TraceJob]:
    """The workload of "Beware of Fragmentation" (USENIX ATC'23): one pod after the other until the GPUs asked for reach
    a percentage of the capacity; no pod ever leaves.

    Too small a list is filled up with pods drawn again (with replacement; a copy is named ``<pod>-r<n>``), too large a
    one loses drawn pods, until the milli-GPU asked for just reach the target. Then the order is drawn. One pod arrives
    every ``spacing_ms``; with the default wait limit a pod that does not fit at once is dropped.

    Raises :class:`IntakeError` if no pod asks for a GPU or the capacity is nothing: then no number of pods is the right
    one. ``file`` is the list's name in that sentence.
    """
    if capacity_milli <= 0:
        raise IntakeError(file, 0, "the nodes to be filled have no GPUs", "name a list of nodes with GPUs")
    if not any(gpus_milli(pod.spec) for pod in pods):
        raise IntakeError(
            file, 0, "no pod asks for a GPU, so that no number of them fills the nodes", "name another list"
        )
    draw = Draw(seed)
    target = capacity_milli * percent
    chosen = _filled(pods, target, draw.branch("fill"))
    ordered = draw.branch("order").shuffled(chosen)
    return [_arrival(spec, index * spacing_ms, wait_limit_ms) for index, spec in enumerate(ordered)]


def _filled(pods: Sequence[TraceJob], target: int, draw: Draw) -> list[JobSpec]:
    """Specs whose milli-GPU times 100 just reaches the target."""
    chosen: list[JobSpec] = []
    total = 0
    for pod in draw.shuffled(pods):
        if total >= target:
            return chosen
        chosen.append(pod.spec)
        total += gpus_milli(pod.spec) * 100
    copies: dict[str, int] = {}
    taken = {spec.name for spec in chosen}
    while total < target:
        spec = pods[draw.below(len(pods))].spec
        chosen.append(spec.model_copy(update={"name": _copy_name(spec.name, copies, taken)}))
        total += gpus_milli(spec) * 100
    return chosen


def _copy_name(name: str, copies: dict[str, int], taken: set[str]) -> str:
    while True:
        copies[name] = copies.get(name, 0) + 1
        candidate = f"{name}-r{copies[name]}"
        if candidate not in taken:
            taken.add(candidate)
            return candidate


def _arrival(spec: JobSpec, arrival_ms: int, wait_limit_ms: int | None) -> TraceJob:
    stays = spec.model_copy(update={"wait_limit_ms": wait_limit_ms, "max_attempts": 1})
    return TraceJob(stays, arrival_ms, None, Outcome.RUNNING)
