"""What a story gives, in the domain's own words: nodes, offers, queues, budgets, jobs.

Friendly words (``gang``, ``gpu``, ``runs``) are turned into fields of the domain; any other key of a job, a role, a
node, an offer or a queue is handed to the domain as it is, so that a new field needs no change here. All functions
raise :class:`BadStory`, or pydantic's ``ValidationError`` for what the domain refuses; the caller knows the place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.domain.clusters import Budget, NodeShape, WarmPool
from controlplane.domain.loads import LoadPoint, ServiceLoad
from controlplane.domain.model import Model
from controlplane.domain.quantities import MILLI, Name
from controlplane.domain.queues import QueueSpec
from controlplane.domain.workloads import JobSpec
from controlplane.scheduler.quota import check_depth
from controlplane.simulate.scenarios.words import (
    BadStory,
    amount,
    byte_count,
    micro_usd,
    milli,
    milliseconds,
    whole,
)

Plain = dict[str, object]
NODE_CPU, NODE_MEMORY = 1_000, "4Ti"
"""What a node has when the story does not care: enough of everything."""
MAX_JOBS = MAX_NODES = 20_000
"""In one story: what is played in seconds."""


@dataclass(slots=True)
class PlannedJob:
    """One job of a story. ``runs_ms`` ``None`` never ends."""

    name: str
    spec: JobSpec
    runs_ms: int | None
    fails: bool
    after: dict[str, list[str]] = field(default_factory=dict)
    """``after_ok`` or ``after_any`` -> names of jobs."""
    load: ServiceLoad | None = None
    """How a service is used, where its cluster measures that."""


def as_map(plain: object, where: str = "", known: Sequence[str] | None = None) -> Plain:
    """A map of YAML, copied; nothing is an empty one."""
    before = f"{where}: " if where else ""
    if plain is None:
        return {}
    if not isinstance(plain, Mapping):
        raise BadStory(f"{before}a map is expected, not {plain!r}")
    unknown = sorted(str(key) for key in plain if known is not None and key not in known)
    if unknown and known is not None:
        raise BadStory(f"{before}{', '.join(unknown)} is not known here; use {', '.join(known)}")
    return {str(key): value for key, value in plain.items()}


def as_list(plain: object) -> list[object]:
    """A list of YAML; one thing is a list of one."""
    return [] if plain is None else list(plain) if isinstance(plain, list) else [plain]


# --- clusters --------------------------------------------------------------------------------------------------------


def node_shape(body: Plain) -> NodeShape:
    """A shape; takes its words out of ``body``. GPUs are A100 unless the story names their model."""
    gpus = whole(body.pop("gpus", 0), "gpus", 2**31)
    shape: Plain = {
        "cpu_milli": milli(body.pop("cpu", NODE_CPU)),
        "memory_bytes": byte_count(body.pop("memory", NODE_MEMORY)),
        "gpus": gpus,
    }
    model = body.pop("model", "A100" if gpus else None)
    if model is not None:
        shape["gpu_model"] = model
    if "gpu_memory" in body:
        shape["gpu_memory_bytes"] = byte_count(body.pop("gpu_memory"))
    fields = [name for name in body if name in NodeShape.model_fields]
    shape.update({name: body.pop(name) for name in fields})
    return NodeShape.model_validate(shape)


def offer(name: str, body: Plain) -> Plain:
    shape = node_shape(body)
    if "usd_per_hour" not in body:
        raise BadStory(f"{name}: an offer has a price, usd_per_hour")
    offer: Plain = {
        "name": name,
        "flavor": body.pop("flavor", f"{(shape.gpu_model or 'cpu').lower()}-cloud"),
        "shape": shape,
        "price_micro_usd_per_hour": micro_usd(body.pop("usd_per_hour")),
        "lead_time_ms": milliseconds(body.pop("lead", 0)),
        "max_nodes": body.pop("nodes", 100),
    }
    return {**offer, **body}


# --- queues, budgets, jobs -------------------------------------------------------------------------------------------


def queue(name: str, body: Plain) -> QueueSpec:
    """``quota: {gpu: 8}`` for all flavors together, ``quota: {a100: {gpu: 8}}`` for one; an amount or
    ``{nominal, borrow, lend}``."""
    quotas: dict[str, dict[str, Plain]] = {}
    for key, given in as_map(body.pop("quota", None), f"quota of {name}").items():
        if isinstance(given, dict) and not {"nominal", "borrow", "lend"} & given.keys():
            quotas[key] = {res: _quota(res, one) for res, one in given.items()}
        else:
            quotas.setdefault("any", {})[key] = _quota(key, given)
    return QueueSpec.model_validate({"name": name, "quotas": quotas, **body})


def _quota(resource: str, given: object) -> Plain:
    if not isinstance(given, dict):
        return {"nominal": amount(resource, given)}
    words = {"nominal": "nominal", "borrow": "borrowing_limit", "lend": "lending_limit"}
    return {words[key]: amount(resource, value) for key, value in as_map(given, resource, tuple(words)).items()}


def let_in(known: Mapping[str, QueueSpec], spec: QueueSpec) -> None:
    """Whether the queue may be configured beside those that are known. Raises :class:`BadStory`."""
    try:
        check_depth(known, spec)
    except ValueError as error:
        raise BadStory(str(error)) from error


def budget(name: str, body: Plain) -> Budget:
    """``{usd: 10, per: 1h, queue: team}``."""
    if not {"usd", "per"} <= body.keys():
        raise BadStory(f"budget {name}: write it like {{usd: 10, per: 1h}}")
    limit, window = micro_usd(body.pop("usd")), milliseconds(body.pop("per"))
    return Budget.model_validate({"name": name, "limit_micro_usd": limit, "window_ms": window, **body})


def pool(name: str, body: Plain) -> WarmPool:
    """``{cluster: home, flavor: a100, blocks: 2, gpus: 1, queue: team}``."""
    return WarmPool.model_validate({"name": name, **body})


_LOAD = ("latency", "replica", "curve", "every", "period")
_SERVICE = ("class", "objective", "stale_after")


def load(name: str, body: Plain) -> ServiceLoad:
    """``{latency: 100ms, replica: 10, curve: {0s: 5, 10m: 60}, every: 15s, period: 1d}``; rates are requests per
    second."""
    if not {"latency", "replica", "curve"} <= body.keys():
        raise BadStory(f"{name}: write it like {{latency: 100ms, replica: 10, curve: {{0s: 5, 10m: 60}}}}")
    points = [
        LoadPoint(at_ms=milliseconds(at), rate_milli=milli(rate)) for at, rate in as_map(body["curve"], "curve").items()
    ]
    times = {"every": "every_ms", "latency": "latency_ms", "period": "period_ms"}
    given: Plain = {key: milliseconds(body[word]) for word, key in times.items() if word in body}
    return ServiceLoad.model_validate({"curve": tuple(points), "replica_rate_milli": milli(body["replica"]), **given})


def service(body: Plain) -> Plain:
    """``{class: interactive, objective: 500ms, stale_after: 1m}``."""
    times = {"objective": "objective_ms", "stale_after": "stale_after_ms"}
    given: Plain = {key: milliseconds(body[word]) for word, key in times.items() if word in body}
    return {**given, "latency_class": body["class"]} if "class" in body else given


_ROLE: dict[str, tuple[str, Callable[[object], object]]] = {
    "gang": ("count", lambda value: value),
    "members": ("count", lambda value: value),
    "cpu": ("cpu_milli", milli),
    "memory": ("memory_bytes", byte_count),
    "gpus": ("gpus", lambda value: value),
    "models": ("gpu_models", lambda value: tuple(as_list(value))),
    "model": ("gpu_models", lambda value: (value,)),
    "gpu_memory": ("gpu_memory_bytes", byte_count),
    "gpu_memory_min": ("gpu_memory_min_bytes", byte_count),
    "mig": ("mig_profile", lambda value: value),
    "other": ("other", lambda value: value),
    "min": ("min_count", lambda value: value),
    "max": ("count", lambda value: value),
}
_JOB: dict[str, tuple[str, Callable[[object], object]]] = {
    "estimate": ("estimate_ms", milliseconds),
    "wait_limit": ("wait_limit_ms", milliseconds),
    "attempts": ("max_attempts", lambda value: value),
    "grace": ("grace_ms", milliseconds),
    "start_by": ("start_by_ms", milliseconds),
    "time_limit": ("time_limit_ms", milliseconds),
    "hold": ("hold_ms", milliseconds),
    "checkpoint_every": ("checkpoint_every_ms", milliseconds),
}


class _Named(Model):
    """What the domain accepts as a name."""

    name: Name


def jobs(name: str, body: Plain) -> list[PlannedJob]:
    """The job ``name``, or with ``copies`` the jobs ``name-1``, ``name-2`` and so on."""
    copies = body.pop("copies", None)
    runs = body.pop("runs", None)
    runs_ms = milliseconds(runs) if runs is not None else None
    fails = body.pop("fails", False) is True
    words: tuple[str, ...] = ("after_ok", "after_any")
    after = {word: [str(one) for one in as_list(body.pop(word))] for word in words if word in body}
    used = load(f"load of {name}", as_map(body.pop("load"), f"load of {name}", _LOAD)) if "load" in body else None
    names = [name]
    if copies is not None:
        names = [f"{name}-{number}" for number in range(1, whole(copies, f"copies of {name}", MAX_JOBS) + 1)]
    fields: Plain = {"queue": body.pop("queue", "team")}
    for word, (key, convert) in _JOB.items():
        if word in body:
            fields[key] = convert(body.pop(word))
    if "service" in body:
        fields["service"] = service(as_map(body.pop("service"), f"service of {name}", _SERVICE))
    if used is not None and "service" not in fields:
        raise BadStory(f"load of {name}: only services have one; say service, or leave it out")
    given = body.pop("roles", None)
    if given is not None:
        fields["roles"] = [_role(role, as_map(text, role)) for role, text in as_map(given, "roles").items()]
    else:
        fields["roles"] = [_role("main", body)]
    fields.update(body)
    spec = JobSpec.model_validate({"name": _Named(name=name).name, **fields})
    return [PlannedJob(one, spec.model_copy(update={"name": one}), runs_ms, fails, after, used) for one in names]


def _role(name: str, body: Plain) -> Plain:
    """Takes the words of a role out of ``body``; what is left is the job's."""
    role: Plain = {"name": name}
    if "gpu" in body:
        part = milli(body.pop("gpu"))
        role.update({"gpus": 1, "gpu_milli": part} if part % MILLI else {"gpus": part // MILLI})
    for word, (key, convert) in _ROLE.items():
        if word in body:
            role[key] = convert(body.pop(word))
    return role if name == "main" else {**role, **body}
