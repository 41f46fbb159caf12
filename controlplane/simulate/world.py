"""World files: clusters, queues, budgets and a workload, in YAML. What is wrong is named by file and line."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, model_validator

from controlplane.domain.clusters import Budget, ClusterSpec, WarmPool
from controlplane.domain.loads import ServiceLoad
from controlplane.domain.model import Model
from controlplane.domain.quantities import Millis, Name
from controlplane.domain.queues import HistorySpec, QueueSpec
from controlplane.domain.workloads import JobSpec, Role
from controlplane.intake import openb, philly, swf
from controlplane.intake.generator import WorkloadProfile, generate
from controlplane.intake.traces import IntakeError, Outcome, TraceJob
from controlplane.policy.documents import plain_value
from controlplane.policy.yamltext import MAX_FILE_BYTES, Node, normalise, parse_yaml
from controlplane.scheduler.quota import check_depth

DATA = "data:"
"""A path that begins so lies in the folder of traces (``TIDEGATE_DATA``, or ``../shared/data``)."""


SMALLER = "let `generate` draw the jobs, or keep them in a trace (swf, philly, openb) that the world names"
"""What to do about a world that is too large, nearly always by jobs that are written out one by one."""
_WRONG_TYPE = ("_type", "_parsing")
"""Ends of the names of errors about a value of another type, which is shown then."""
_SHOWN = 40
"""So many characters of a value."""
LATEST_MS = 2**50
"""The last instant at which something of a world may be due: 35,000 years. What is reckoned from there, such as the end
of a run, deadlines and the turn of a budget's window, stays among the integers that events can hold."""

Instant = Annotated[int, Field(ge=0, le=LATEST_MS, strict=True)]
"""Milliseconds from the beginning of the run, or until its end."""


class WorldFault(Exception):
    """A world file that cannot be used: one sentence with file, line, what is wrong and what to do."""


class WorldCluster(ClusterSpec):
    """A cluster and how it is simulated."""

    config: dict[str, object] = Field(default_factory=dict)
    """Settings of the adapter."""
    nodes_from: str | None = None
    """A list of openb nodes that the cluster has besides."""

    def spec(self) -> ClusterSpec:
        """Without what only the simulation knows."""
        return ClusterSpec.model_validate(self.model_dump(exclude={"config", "nodes_from"}))


class ScriptedJob(Model):
    """One job, written out."""

    at_ms: Instant = 0
    spec: JobSpec
    runtime_ms: Millis | None = None
    """``None`` never ends."""
    fails: bool = False


class ScriptedService(Model):
    """One service, and how it is used."""

    at_ms: Millis = 0
    spec: JobSpec
    load: ServiceLoad | None = None
    """What its cluster measures; ``None`` measures nothing."""

    @model_validator(mode="after")
    def _is_a_service(self) -> Self:
        if self.spec.service is None:
            raise ValueError(f"{self.spec.name!r} is no service: give its spec a service, or list it among the jobs")
        return self


class OpenbWorkload(Model):
    """Pods of openb, drawn as "Beware of Fragmentation" draws them: one by one, never leaving, dropped if none fits."""

    pods: str
    capacity_from: str
    """The list of nodes whose GPUs are 100 per cent."""
    percent: Annotated[int, Field(ge=1, le=1_000)] = 130
    queue: Name = "openb"
    spacing_ms: Annotated[int, Field(ge=1)] = 1_000
    is_typical: bool = False
    """Whether the whole list is made known in advance as the typical jobs of the measure of fragmentation."""


class TraceWorkload(Model):
    """Jobs of a Philly or SWF trace, as recorded."""

    file: str
    most: Annotated[int, Field(ge=1)] | None = None
    """Only the first so many."""


class Workload(Model):
    """Exactly one source of jobs."""

    generate: WorkloadProfile | None = None
    openb: OpenbWorkload | None = None
    philly: TraceWorkload | None = None
    swf: TraceWorkload | None = None
    jobs: tuple[ScriptedJob, ...] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("generate", "openb", "philly", "swf", "jobs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give exactly one of generate, openb, philly, swf and jobs")
        return self


class PolicyChange(Model):
    """What becomes of the policy at one instant, and who does it: exactly one of ``activate``, ``shadow`` and
    ``end_shadow``."""

    at_ms: Instant
    activate: str | None = None
    """Folder of the bundle that becomes the active one, relative to the world file; one that was active before is
    rolled back to."""
    shadow: str | None = None
    """Folder of the bundle that is asked beside the active one from now on."""
    end_shadow: bool = False
    author: Name = "operator"

    @model_validator(mode="after")
    def _one_change(self) -> Self:
        if (self.activate is not None) + (self.shadow is not None) + self.end_shadow != 1:
            raise ValueError("give exactly one of activate, shadow and end_shadow")
        return self


@dataclass(frozen=True, slots=True)
class ServiceJob(TraceJob):
    """A service among the jobs of a workload."""

    load: ServiceLoad | None = None


class World(Model):
    """See the module."""

    name: Name
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    policies: str | None = None
    """Folder of the bundle, relative to the world file; ``--policies`` takes its place."""
    policy_changes: tuple[PolicyChange, ...] = ()
    """What becomes of it later; those of one instant in the order given."""
    clusters: Annotated[tuple[WorldCluster, ...], Field(min_length=1)]
    queues: Annotated[tuple[QueueSpec, ...], Field(min_length=1)]
    """A queue stands after its parent."""
    budgets: tuple[Budget, ...] = ()
    history: HistorySpec | None = None
    """How what queues have used is remembered, for rules that order by it."""
    warm_pools: tuple[WarmPool, ...] = ()
    """What is held free for services."""
    services: tuple[ScriptedService, ...] = ()
    """What runs beside the workload and never ends; such a world needs an ``until_ms``."""
    workload: Workload
    tick_ms: Annotated[int, Field(ge=1, le=86_400_000)] = 1_000
    """Cycles happen at multiples of this; what comes in between waits for the next."""
    until_ms: Instant | None = None
    """Stop here at the latest; ``None`` runs until nothing is left to happen, but no longer than ``drain_ms`` after the
    last arrival."""
    drain_ms: Instant = 14 * 86_400_000

    @model_validator(mode="after")
    def _parents_come_first(self) -> Self:
        seen: set[str] = set()
        for queue in self.queues:
            if queue.parent is not None and queue.parent not in seen:
                raise ValueError(f"queue {queue.name!r} stands before its parent {queue.parent!r}, or there is none")
            if queue.name in seen:
                raise ValueError(f"queue {queue.name!r} stands here twice")
            seen.add(queue.name)
        specs = {queue.name: queue for queue in self.queues}
        for spec in self.queues:
            check_depth(specs, spec)
        names = [cluster.name for cluster in self.clusters]
        if len(set(names)) != len(names):
            raise ValueError("two clusters have the same name")
        return self

    @model_validator(mode="after")
    def _services_make_sense(self) -> Self:
        if self.services and self.until_ms is None:
            raise ValueError("services never end: say in until_ms how long the world is simulated")
        clusters, queues = {cluster.name for cluster in self.clusters}, {queue.name for queue in self.queues}
        names = [pool.name for pool in self.warm_pools]
        for pool in self.warm_pools:
            if pool.cluster not in clusters:
                raise ValueError(f"warm pool {pool.name!r} is in cluster {pool.cluster!r}, which the world has not")
            if pool.queue is not None and pool.queue not in queues:
                raise ValueError(f"warm pool {pool.name!r} is for queue {pool.queue!r}, which the world has not")
            if names.count(pool.name) > 1:
                raise ValueError(f"two warm pools are called {pool.name!r}")
        return self


def read_world(path: Path) -> World:
    """The world in a file. Raises :class:`WorldFault`."""
    root, problems = parse_yaml(str(path), _text(path))
    if problems:
        problem = problems[0]
        what = problem.message.replace("policy file", "world file").replace("split it", SMALLER)
        raise WorldFault(f"{path}:{problem.line}:{problem.column}: {what}{'' if ';' in what else '; correct it'}")
    if root is None or not isinstance(plain := plain_value(root), dict):
        raise WorldFault(f"{path}:1: a world is a map of name, clusters, queues and workload; the file holds none")
    try:
        # As JSON, in which lists and names of things are what they should be even where nothing is guessed.
        return World.model_validate_json(json.dumps(plain), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        line = _line(root, first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        is_shown = first["type"].endswith(_WRONG_TYPE) and not isinstance(first["input"], dict | list)
        given = f", not {json.dumps(first['input'])[:_SHOWN]}" if is_shown else ""
        raise WorldFault(
            f"{path}:{line}: {where or 'world'}: {what[:1].lower()}{what[1:]}{given}; correct it"
        ) from error


def _text(path: Path) -> str:
    """The text of a world file, as rule files are read: a byte order mark is dropped. Raises :class:`WorldFault`."""
    if path.exists() and not path.is_file():
        # A device or a pipe may have no end.
        raise WorldFault(f"{path}: is not a file; name a world file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise WorldFault(f"{path}: the file is larger than {MAX_FILE_BYTES // 1024} KiB; {SMALLER}")
        return normalise(content.decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise WorldFault(f"{path}: cannot be read: {what}; name a world file") from error


def place_in(world_file: Path, loc: Sequence[str | int]) -> str:
    """``file:line`` of the deepest part of a path, such as ``clusters``, 0, ``config``, that stands in a world file."""
    root, _ = parse_yaml(str(world_file), _text(world_file))
    return f"{world_file}:{_line(root, loc)}" if root is not None else str(world_file)


def _line(node: Node, loc: Sequence[str | int]) -> int:
    """The line of the deepest part of a path that stands in the file."""
    at = node
    for part in loc:
        if isinstance(part, int):
            if part >= len(at.items):
                break
            at = at.items[part]
        else:
            found = next((value for key, value in at.entries if key.text == part), None)
            if found is None:
                break
            at = found
    return at.line


def data_path(path: str, world_file: Path) -> Path:
    """Where a file named by a world lies. Raises :class:`WorldFault` for what can be no path."""
    if "\0" in path:
        raise WorldFault(f"{world_file}: {path!r} is no path; correct it")
    if path.startswith(DATA):
        return Path(os.environ.get("TIDEGATE_DATA", "../shared/data")) / path[len(DATA) :]
    return world_file.parent / path


def jobs_of(world: World, world_file: Path) -> list[TraceJob]:
    """Services and the workload by arrival; ties in the order of the source, services first. Raises
    :class:`IntakeError` and :class:`WorldFault`."""
    workload = world.workload
    if workload.generate is not None:
        jobs = list(generate(workload.generate, world.seed))
    elif workload.openb is not None:
        jobs = _openb_jobs(workload.openb, world, world_file)
    elif workload.philly is not None:
        jobs = philly.read_jobs(data_path(workload.philly.file, world_file))[: workload.philly.most]
    elif workload.swf is not None:
        jobs = swf.read_jobs(data_path(workload.swf.file, world_file)).jobs[: workload.swf.most]
    else:
        jobs = [_scripted(job) for job in workload.jobs or ()]
    services = [ServiceJob(one.spec, one.at_ms, None, load=one.load) for one in world.services]
    jobs = sorted([*services, *jobs], key=lambda job: job.arrival_ms)
    if jobs and jobs[-1].arrival_ms > LATEST_MS:
        what = f"a job of the workload arrives after {jobs[-1].arrival_ms:,} ms, and no run goes beyond {LATEST_MS:,}"
        raise WorldFault(f"{place_in(world_file, ('workload',))}: {what}; let its times begin near zero")
    return jobs


def _openb_jobs(source: OpenbWorkload, world: World, world_file: Path) -> list[TraceJob]:
    nodes = openb.read_nodes(data_path(source.capacity_from, world_file))
    pods = openb.read_pods(data_path(source.pods, world_file), source.queue)
    return openb.arrivals(
        pods, openb.capacity_milli(nodes), percent=source.percent, seed=world.seed, spacing_ms=source.spacing_ms
    )


def typical_roles(world: World, world_file: Path) -> tuple[Role, ...]:
    """What is made known in advance of what jobs ask for; nothing lets it be learned. Raises :class:`IntakeError`."""
    source = world.workload.openb
    if source is None or not source.is_typical:
        return ()
    return openb.typical_roles(openb.read_pods(data_path(source.pods, world_file), source.queue))


def _scripted(job: ScriptedJob) -> TraceJob:
    return TraceJob(job.spec, job.at_ms, job.runtime_ms, Outcome.FAILED if job.fails else Outcome.FINISHED)


def cluster_config(cluster: WorldCluster, world_file: Path) -> dict[str, object]:
    """The adapter's settings, with the nodes of a list added. Raises :class:`IntakeError`."""
    if cluster.nodes_from is None:
        return cluster.config
    path = data_path(cluster.nodes_from, world_file)
    groups = [
        {"names": [node.name], "shape": node.shape.model_dump(), "flavor": node.flavor, "labels": dict(node.labels)}
        for node in openb.read_nodes(path)
    ]
    own = cluster.config.get("nodes", [])
    if not isinstance(own, list):
        raise IntakeError(str(path), 0, "the cluster's own nodes are not a list", "write them as a list")
    return {**cluster.config, "nodes": [*own, *groups]}
