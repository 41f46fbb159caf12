"""Makes workloads of our own that look like the traces: arrivals by hour, sweeps, sizes, run times, estimates.

Theory of operation. The number of jobs is fixed by the profile; when each comes is drawn. Every (day, hour, queue) is
a bucket whose weight is the product of the queue's share, the measured weight of the hour and weekday, and the rushes
that the profile declares. People submit in sweeps: one user sends several alike jobs within seconds. So a sweep is
drawn as a whole (bucket, instant, user, kind of job) and then its jobs, each with a run time of its own. Jobs of one
kind share their roles, so that the scheduler's grouping finds them alike, as it does in real life.

All numbers are drawn by :mod:`controlplane.intake.draw` and looked up in tables of integers, by linear interpolation:
the same profile and seed give the same jobs on every machine and Python. Each purpose has its own branch of the seed,
so that changing, say, the share of fractions leaves the arrivals as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Self

from pydantic import Field, model_validator

from controlplane.domain.model import Model
from controlplane.domain.quantities import (
    MAX_GPUS_PER_NODE,
    MAX_MEMBERS,
    MILLI,
    MS_PER_HOUR,
    PPM,
    Millis,
    Name,
    ceil_div,
)
from controlplane.domain.workloads import JobSpec, Labels, Role
from controlplane.intake.draw import Draw, Weights, interpolate
from controlplane.intake.figures import MEASURED, POSITIONS, Quantiles, Shapes
from controlplane.intake.traces import Outcome, TraceJob, gang

MAX_JOBS = 10_000_000
"""Of one workload: what fits into memory as a list of instants."""
MAX_BUCKETS = 1_000_000
"""Hours times queues of one workload."""
_MIB = 2**20
_MS_PER_DAY = 24 * MS_PER_HOUR
_SWEEP_END = 300
"""Above the last size of the sweep table sizes are drawn up to this (Philly's longest was 423)."""
_SWEEP_GAP_MS = 3_000
"""Jobs of a sweep follow each other by less than this."""
_ROUND_MS = 60_000
"""People ask for whole minutes."""
_ESTIMATED_FROM, _ESTIMATED_TO = 50_000, 950_000
"""Estimates are drawn from the middle nine tenths: beyond, they are slips of the pen."""

Share = Annotated[int, Field(ge=0, le=PPM, strict=True)]
Ppm = Annotated[int, Field(ge=0, le=PPM, strict=True)]


class QueueProfile(Model):
    """Who submits to one queue."""

    name: Annotated[Name, Field(max_length=200)]
    """Of a leaf in the queue tree."""
    share: Share
    """Of the submissions, in proportion to the other queues' shares."""
    users: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 8
    """The n-th user submits 1/n as much as the first."""
    priority: Annotated[int, Field(ge=-(10**9), le=10**9, strict=True)] = 0
    stay_home_ppm: Ppm | None = None
    """``None`` takes the profile's."""


class ModelShare(Model):
    """How often jobs that insist on a GPU model insist on this one."""

    model: Name
    share: Share


class Rush(Model):
    """Hours before a deadline, in which more is submitted."""

    day: Annotated[int, Field(ge=0, le=3_660, strict=True)]
    """Counted from 0."""
    hour: Annotated[int, Field(ge=0, le=23, strict=True)]
    hours: Annotated[int, Field(ge=1, le=24 * 31, strict=True)] = 1
    percent: Annotated[int, Field(ge=0, le=10_000, strict=True)]
    """Of the usual submissions; the surplus comes on top of ``jobs_per_day``."""
    queue: Name | None = None
    """``None`` is all queues."""


class SizeShare(Model):
    """How often jobs on whole GPUs ask for so many."""

    gpus: Annotated[int, Field(ge=1, le=MAX_MEMBERS, strict=True)]
    share: Share


class WorkloadProfile(Model):
    """A workload in words. Shares count in proportion to each other, ``_ppm`` fields in a million."""

    days: Annotated[int, Field(ge=1, le=3_660, strict=True)] = 1
    jobs_per_day: Annotated[int, Field(ge=1, le=MAX_JOBS, strict=True)]
    """On average, without rushes."""
    queues: Annotated[tuple[QueueProfile, ...], Field(min_length=1, max_length=1_000)]
    gpu_models: Annotated[tuple[ModelShare, ...], Field(max_length=64)] = ()
    rushes: Annotated[tuple[Rush, ...], Field(max_length=100)] = ()
    first_weekday: Annotated[int, Field(ge=0, le=6, strict=True)] = 0
    """0 is Monday."""
    hours_ahead: Annotated[int, Field(ge=0, le=23, strict=True)] = 8
    """How far the clock here is ahead of Philly's, whose zone is not told; with 8 the busiest hour is 15 to 16 o'clock,
    and the quietest is 22 to 23."""
    model_choice_ppm: Ppm = 330_000
    """Jobs on GPUs that insist on a model. openb's authors state about 33 per cent."""
    sizes: Annotated[tuple[SizeShare, ...], Field(min_length=1, max_length=100)] = tuple(
        SizeShare(gpus=gpus, share=share) for gpus, share in MEASURED.sizes
    )
    largest_sweep: Annotated[int, Field(ge=1, le=_SWEEP_END, strict=True)] = _SWEEP_END
    """So many alike jobs come together at most; 1 is no sweeps at all."""
    gpus_per_node: Annotated[int, Field(ge=1, le=MAX_GPUS_PER_NODE, strict=True)] = 8
    """Larger jobs are gangs over nodes of so many."""
    cpu_only_ppm: Ppm = MEASURED.cpu_only_ppm
    fraction_ppm: Ppm = MEASURED.fraction_ppm
    """Of the jobs of one GPU, those that ask for a part of it."""
    failed_ppm: Ppm = MEASURED.failed_ppm
    stay_home_ppm: Ppm = 0
    stay_home_labels: Labels = Field(default_factory=lambda: {"tidegate/stay-home": "true"})
    """What a job that may not leave carries: the label that the default policies read."""
    estimated_ppm: Ppm = PPM
    """Jobs that come with an estimate of their run time, as wrong as people's are."""
    runtime_percent: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 100
    max_runtime_ms: Annotated[Millis, Field(ge=1)] = 14 * _MS_PER_DAY
    """Longer runs are cut: many clusters limit run time so, and services that run for months are not jobs."""

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        names = [queue.name for queue in self.queues]
        if len(set(names)) != len(names):
            raise ValueError("two queues of the profile have the same name")
        for what, shares in (
            ("queues", [queue.share for queue in self.queues]),
            ("sizes", [size.share for size in self.sizes]),
            ("gpu_models", [model.share for model in self.gpu_models] or [1]),
        ):
            if not any(shares):
                raise ValueError(f"the shares of {what} are all zero")
        for rush in self.rushes:
            if rush.queue is not None and rush.queue not in names:
                raise ValueError(f"a rush names queue {rush.queue}, which the profile does not have")
            if rush.day >= self.days:
                raise ValueError(f"a rush on day {rush.day} is after the last day ({self.days - 1}, counted from 0)")
        if self.days * 24 * len(self.queues) > MAX_BUCKETS:
            raise ValueError(f"hours times queues are at most {MAX_BUCKETS:,}: lower days or use fewer queues")
        weights, usual = _buckets(self)
        if sum(weights) == 0:
            raise ValueError("the rushes leave no hour in which anything is submitted")
        if _jobs(self, weights, usual) > MAX_JOBS:
            raise ValueError(f"a workload has at most {MAX_JOBS:,} jobs: lower days, jobs_per_day or a rush")
        return self


def generate(profile: WorkloadProfile, seed: int) -> Iterator[TraceJob]:
    """The workload, by arrival. Names are ``<queue>-<n>``, counted by arrival, and unique."""
    draw = Draw(seed).branch("runs")
    for number, arrival in enumerate(_arrivals(profile, seed), start=1):
        kind = arrival.kind
        run = _run(profile, kind.runtimes_ms, draw)
        # A copy without validation: the name is a valid queue name and a number, the estimate is bounded.
        named = {"name": f"{kind.spec.queue}-{number}", "estimate_ms": run.estimate_ms}
        yield TraceJob(kind.spec.model_copy(update=named), arrival.at_ms, run.runtime_ms, run.outcome)


def mean_gpu_ms(profile: WorkloadProfile) -> int:
    """GPU-milliseconds that a job takes on average: what to size a cluster by.

    In the long run ``jobs_per_day * mean_gpu_ms(profile) / 86_400_000`` GPUs are busy.
    """
    cut_s = profile.max_runtime_ms * 100 // profile.runtime_percent // 1_000

    def mean_s(values: Quantiles) -> int:
        cut = [min(value, cut_s) for value in values]
        parts = zip(POSITIONS, POSITIONS[1:], cut, cut[1:], strict=False)
        return sum((right - left) * (low + high) for left, right, low, high in parts) // (2 * PPM)

    total = sum(size.share for size in profile.sizes)
    whole_s = sum(size.gpus * mean_s(_runtimes_s(size.gpus)) * size.share for size in profile.sizes) // total
    single_ppm = sum(size.share for size in profile.sizes if size.gpus == 1) * PPM // total
    part_milli = sum(milli * share for milli, share in MEASURED.fractions) // PPM
    saved_s = mean_s(_runtimes_s(1)) - part_milli * mean_s(MEASURED.fraction_runtimes_s) // MILLI
    gpu_s = whole_s - saved_s * single_ppm // PPM * profile.fraction_ppm // PPM
    return gpu_s * 10 * profile.runtime_percent * (PPM - profile.cpu_only_ppm) // PPM


# --- when ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Arrival:
    at_ms: int
    kind: _Kind


def _arrivals(profile: WorkloadProfile, seed: int) -> list[_Arrival]:
    """All arrivals, in order; ties in the order in which they were drawn."""
    draw = Draw(seed).branch("arrivals")
    kinds = _Kinds(profile, Draw(seed).branch("kinds"))
    weights, usual = _buckets(profile)
    left = _jobs(profile, weights, usual)
    last_ms = profile.days * _MS_PER_DAY - 1
    buckets = Weights(weights)
    users = [Weights([PPM // (rank + 1) for rank in range(queue.users)]) for queue in profile.queues]
    sweeps = _Table(MEASURED.sweeps)
    arrivals: list[_Arrival] = []
    while left > 0:
        hour, index = divmod(buckets.draw(draw), len(profile.queues))
        kind = kinds.draw(profile.queues[index], users[index].draw(draw))
        at_ms = hour * MS_PER_HOUR + draw.below(MS_PER_HOUR)
        size = min(left, profile.largest_sweep, sweeps.between(draw, _SWEEP_END))
        for _ in range(size):
            arrivals.append(_Arrival(at_ms, kind))
            at_ms = min(last_ms, at_ms + draw.below(_SWEEP_GAP_MS))
        left -= size
    arrivals.sort(key=attrgetter("at_ms"))
    return arrivals


def _buckets(profile: WorkloadProfile) -> tuple[list[int], int]:
    """The weight of each (hour since the start, queue), hour by hour, and what they would add up to without rushes."""
    usual: list[int] = []
    for hour in range(profile.days * 24):
        of_day = MEASURED.hours[(hour - profile.hours_ahead) % 24]
        tide = of_day * MEASURED.weekdays[(profile.first_weekday + hour // 24) % 7]
        usual.extend(queue.share * tide * 100 for queue in profile.queues)
    weights = list(usual)
    for bucket, percent in _rush_percents(profile).items():
        weights[bucket] = usual[bucket] // 100 * percent
    return weights, sum(usual)


def _rush_percents(profile: WorkloadProfile) -> dict[int, int]:
    """The percentage of each bucket that lies in a rush; of several the strongest."""
    percents: dict[int, int] = {}
    for rush in profile.rushes:
        first = rush.day * 24 + rush.hour
        for hour in range(first, min(first + rush.hours, profile.days * 24)):
            for index, queue in enumerate(profile.queues):
                if rush.queue in {None, queue.name}:
                    bucket = hour * len(profile.queues) + index
                    percents[bucket] = max(rush.percent, percents.get(bucket, 0))
    return percents


def _jobs(profile: WorkloadProfile, weights: Sequence[int], usual: int) -> int:
    return max(1, profile.days * profile.jobs_per_day * sum(weights) // usual)


# --- what ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """What the jobs of a sweep have in common."""

    spec: JobSpec
    runtimes_ms: Quantiles


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a job asks for; CPU and memory per GPU, if it has whole ones."""

    gpus: int
    gpu_milli: int
    cpu_milli: int
    memory_mib: int
    model: str | None


class _Kinds:
    """Draws kinds of jobs. Equal ones are the same object, and equal shapes share their roles over all queues."""

    def __init__(self, profile: WorkloadProfile, draw: Draw) -> None:
        self._profile = profile
        self._draw = draw
        self._sizes = _Table([(size.gpus, size.share) for size in profile.sizes])
        self._models = Weights([model.share for model in profile.gpu_models]) if profile.gpu_models else None
        self._fractions = _Table(MEASURED.fractions)
        self._requests = {
            table: Weights([share for _, _, share in table])
            for table in (MEASURED.cpu_shapes, MEASURED.fraction_shapes, MEASURED.whole_shapes)
        }
        self._roles: dict[_Shape, tuple[Role, ...]] = {}
        self._kinds: dict[tuple[str, int, bool, _Shape], _Kind] = {}

    def draw(self, queue: QueueProfile, user: int) -> _Kind:
        profile = self._profile
        stays = self._draw.chance(profile.stay_home_ppm if queue.stay_home_ppm is None else queue.stay_home_ppm)
        shape = self._shape()
        key = (queue.name, user, stays, shape)
        kind = self._kinds.get(key)
        if kind is None:
            spec = JobSpec(
                name=queue.name,
                queue=queue.name,
                user=f"{queue.name}-u{user + 1}",
                priority=queue.priority,
                roles=self._shared_roles(shape),
                labels=profile.stay_home_labels if stays else {},
            )
            # Validation copies tuples; the one that all alike jobs share is put back.
            spec = spec.model_copy(update={"roles": self._shared_roles(shape)})
            kind = self._kinds[key] = _Kind(spec, tuple(value * 1_000 for value in _runtimes_of(shape)))
        return kind

    def _shape(self) -> _Shape:
        profile, draw = self._profile, self._draw
        if draw.chance(profile.cpu_only_ppm):
            return _Shape(0, MILLI, *self._request(MEASURED.cpu_shapes), None)
        gpus = self._sizes.value(draw)
        chosen = self._models is not None and draw.chance(profile.model_choice_ppm)
        model = profile.gpu_models[self._models.draw(draw)].model if chosen and self._models else None
        if gpus == 1 and draw.chance(profile.fraction_ppm):
            return _Shape(1, self._fractions.value(draw), *self._request(MEASURED.fraction_shapes), model)
        return _Shape(gpus, MILLI, *self._request(MEASURED.whole_shapes), model)

    def _request(self, table: Shapes) -> tuple[int, int]:
        cpu_milli, memory_mib, _ = table[self._requests[table].draw(self._draw)]
        return cpu_milli, memory_mib

    def _shared_roles(self, shape: _Shape) -> tuple[Role, ...]:
        roles = self._roles.get(shape)
        if roles is None:
            roles = self._roles[shape] = _roles_of(shape, self._profile.gpus_per_node)
        return roles


def _roles_of(shape: _Shape, gpus_per_node: int) -> tuple[Role, ...]:
    models = (shape.model,) if shape.model else ()
    memory_bytes = shape.memory_mib * _MIB
    if shape.gpus == 0 or shape.gpu_milli < MILLI:
        return (
            Role(
                cpu_milli=shape.cpu_milli,
                memory_bytes=memory_bytes,
                gpus=shape.gpus,
                gpu_milli=shape.gpu_milli,
                gpu_models=models,
            ),
        )
    return gang(shape.gpus, gpus_per_node, cpu_milli=shape.cpu_milli, memory_bytes=memory_bytes, gpu_models=models)


def _runtimes_of(shape: _Shape) -> Quantiles:
    if shape.gpus == 0:
        return MEASURED.cpu_runtimes_s
    return MEASURED.fraction_runtimes_s if shape.gpu_milli < MILLI else _runtimes_s(shape.gpus)


def _runtimes_s(gpus: int) -> Quantiles:
    """Of the largest measured class that is not above so many GPUs."""
    return MEASURED.runtimes_s[max(size for size in MEASURED.runtimes_s if size <= gpus)]


@dataclass(frozen=True, slots=True)
class _Run:
    runtime_ms: int
    estimate_ms: int | None
    outcome: Outcome


def _run(profile: WorkloadProfile, runtimes_ms: Quantiles, draw: Draw) -> _Run:
    """How one job goes, from exactly four draws, whatever the profile: so that neighbours keep theirs."""
    at, misjudged = draw.below(PPM), draw.below(_ESTIMATED_TO - _ESTIMATED_FROM)
    is_estimated, has_failed = draw.chance(profile.estimated_ppm), draw.chance(profile.failed_ppm)
    usual_ms = interpolate(POSITIONS, runtimes_ms, at) * profile.runtime_percent // 100
    runtime_ms = max(1, min(profile.max_runtime_ms, usual_ms))
    percent = interpolate(POSITIONS, MEASURED.estimate_percent, _ESTIMATED_FROM + misjudged)
    asked_ms = ceil_div(ceil_div(runtime_ms * percent, 100), _ROUND_MS) * _ROUND_MS
    return _Run(
        runtime_ms,
        min(asked_ms, max(profile.max_runtime_ms, _ROUND_MS)) if is_estimated else None,
        Outcome.FAILED if has_failed else Outcome.FINISHED,
    )


class _Table:
    """Draws a value of a weighted table."""

    __slots__ = ("_values", "_weights")

    def __init__(self, table: Sequence[tuple[int, int]]) -> None:
        self._values = [value for value, _ in table]
        self._weights = Weights([weight for _, weight in table])

    def value(self, draw: Draw) -> int:
        return self._values[self._weights.draw(draw)]

    def between(self, draw: Draw, end: int) -> int:
        """From the drawn value up to, not including, the next one of the table (or ``end``)."""
        index = self._weights.draw(draw)
        upper = self._values[index + 1] if index + 1 < len(self._values) else end
        return self._values[index] + draw.below(upper - self._values[index])
