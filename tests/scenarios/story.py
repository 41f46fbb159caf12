"""A story as it stands in its file, and what it means: clusters, queues, jobs and moments in the core's own words.

Friendly words (``gang``, ``gpu``, ``runs``) are turned into fields of the domain; any other key of a job, a role, a
node, an offer, a queue or a cluster is handed to the domain as it is, so that a new field needs no change here. What is
misspelt is refused by the domain's own validation, with the file and the thing that it stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from pydantic import ValidationError

from controlplane.domain.clusters import Budget, ClusterSpec, NodeShape
from controlplane.domain.quantities import MILLI
from controlplane.domain.queues import HistorySpec, QueueSpec
from controlplane.domain.workloads import JobSpec
from tests.scenarios.words import BadStory, amount, byte_count, micro_usd, milli, milliseconds

Plain = dict[str, object]
NODE_CPU, NODE_MEMORY = 1_000, "4Ti"
"""What a node has when the story does not care: enough of everything."""


@dataclass
class PlannedJob:
    """One job of a story. ``runs_ms`` ``None`` never ends."""

    name: str
    spec: JobSpec
    runs_ms: int | None
    fails: bool
    after: dict[str, list[str]] = field(default_factory=dict)
    """``after_ok`` or ``after_any`` -> names of jobs."""


@dataclass
class Moment:
    """What happens, or what is expected, at one instant."""

    at_ms: int
    plain: Plain


@dataclass
class Story:
    """One file. ``when`` and ``then`` are in order of time, and of the file within one instant."""

    path: Path
    title: str
    scenario: str
    policy: str
    params: Plain
    rules: Plain
    clusters: list[ClusterSpec]
    configs: dict[str, Plain]
    queues: list[QueueSpec]
    budgets: list[Budget]
    history: HistorySpec | None
    is_scripted: bool
    tick_ms: int
    when: list[Moment]
    then: list[Moment]
    nodes: dict[str, Plain] = field(default_factory=dict)
    """Node -> its cluster, flavor, shape and labels, for scripted agents."""


def read_story(path: Path) -> Story:
    """The story in a file. Raises :class:`BadStory`."""
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _story(path, plain)
    except yaml.YAMLError as error:
        raise BadStory(f"{path.name}: not YAML: {error}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or error.title
        raise BadStory(f"{path.name}: {error.title} {where}: {first['msg']}") from error
    except BadStory as error:
        raise BadStory(f"{path.name}: {error}") from error


def _story(path: Path, plain: object) -> Story:
    top = _map(plain, "the story", {"story", "scenario", "why", "given", "when", "then"})
    given = _map(
        top.get("given"),
        "given",
        {"policy", "params", "rules", "clusters", "queues", "budgets", "history", "agents", "tick"},
    )
    story = Story(
        path=path,
        title=str(top["story"]),
        scenario=str(top.get("scenario", "")),
        policy=str(given.get("policy", "default")),
        params=_map(given.get("params"), "params"),
        rules=_map(given.get("rules"), "rules"),
        clusters=[],
        configs={},
        queues=[queue(name, _map(body, name)) for name, body in _map(given.get("queues"), "queues").items()],
        budgets=[budget(name, _map(body, name)) for name, body in _map(given.get("budgets"), "budgets").items()],
        history=_history(_map(given.get("history"), "history", {"half_life", "sample"})),
        is_scripted=given.get("agents", "simulated") == "scripted",
        tick_ms=milliseconds(given.get("tick", "1s")),
        when=_moments(top.get("when"), "when"),
        then=_moments(top.get("then"), "then"),
    )
    for name, body in _map(given.get("clusters"), "clusters").items():
        _cluster(story, name, _map(body, name))
    if not story.then:
        raise BadStory("a story that expects nothing cannot fail; give it a then")
    return story


def _history(body: Plain) -> HistorySpec | None:
    if not body:
        return None
    times = {"half_life_ms": body.get("half_life"), "sample_ms": body.get("sample")}
    return HistorySpec.model_validate({key: milliseconds(value) for key, value in times.items()})


def _moments(plain: object, where: str) -> list[Moment]:
    moments: list[Moment] = []
    for one in _list(plain, where):
        body = _map(one, where)
        moments.append(Moment(milliseconds(body.pop("at", 0)), body))
    return sorted(moments, key=lambda moment: moment.at_ms)


# --- clusters --------------------------------------------------------------------------------------------------------


def _cluster(story: Story, name: str, body: Plain) -> None:
    groups: list[Plain] = []
    for prefix, group in _map(body.pop("nodes", None), f"nodes of {name}").items():
        groups.extend(_nodes(story, name, prefix, _map(group, prefix)))
    config = _map(body.pop("config", None), f"config of {name}")
    offers = [_offer(one, _map(text, one)) for one, text in _map(body.pop("offers", None), "offers").items()]
    if "idle_release" in body:
        body["idle_release_ms"] = milliseconds(body.pop("idle_release"))
    site = body.pop("site", "cloud" if offers else "home")
    story.clusters.append(ClusterSpec.model_validate({"name": name, "site": site, "offers": offers, **body}))
    story.configs[name] = {**config, "nodes": groups}


def _nodes(story: Story, cluster: str, prefix: str, body: Plain) -> list[Plain]:
    """A name alone is one node; with a ``count`` it stands in front of the numbers."""
    count = body.pop("count", None)
    labels = body.pop("labels", {})
    group: Plain = {"labels": labels}
    if "topology" in body:
        group["topology"] = body.pop("topology")
    shape = node_shape(body)
    group["flavor"] = body.pop("flavor", (shape.gpu_model or "cpu").lower())
    if body:
        raise BadStory(f"{prefix}: a node has no {', '.join(sorted(body))}")
    group["shape"] = shape.model_dump(exclude_defaults=True)
    names = [prefix]
    if count is not None:
        width = len(str(int(str(count)) - 1))
        names = [f"{prefix}{number:0{width}d}" for number in range(int(str(count)))]
    for name in names:
        story.nodes[name] = {"cluster": cluster, **group}
    return [{**group, "names": [name]} for name in names]


def node_shape(body: Plain) -> NodeShape:
    """A shape; takes its words out of ``body``. GPUs are A100 unless the story names their model."""
    gpus = int(str(body.pop("gpus", 0)))
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


def _offer(name: str, body: Plain) -> Plain:
    shape = node_shape(body)
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
    for key, given in _map(body.pop("quota", None), f"quota of {name}").items():
        if isinstance(given, dict) and not {"nominal", "borrow", "lend"} & given.keys():
            quotas[key] = {res: _quota(res, one) for res, one in given.items()}
        else:
            quotas.setdefault("any", {})[key] = _quota(key, given)
    return QueueSpec.model_validate({"name": name, "quotas": quotas, **body})


def _quota(resource: str, given: object) -> Plain:
    if not isinstance(given, dict):
        return {"nominal": amount(resource, given)}
    words = {"nominal": "nominal", "borrow": "borrowing_limit", "lend": "lending_limit"}
    return {words[key]: amount(resource, value) for key, value in _map(given, resource, set(words)).items()}


def budget(name: str, body: Plain) -> Budget:
    """``{usd: 10, per: 1h, queue: team}``."""
    limit, window = micro_usd(body.pop("usd")), milliseconds(body.pop("per"))
    return Budget.model_validate({"name": name, "limit_micro_usd": limit, "window_ms": window, **body})


_ROLE: dict[str, tuple[str, Callable[[object], object]]] = {
    "gang": ("count", lambda value: value),
    "members": ("count", lambda value: value),
    "cpu": ("cpu_milli", milli),
    "memory": ("memory_bytes", byte_count),
    "gpus": ("gpus", lambda value: value),
    "models": ("gpu_models", lambda value: tuple(_list(value, "models"))),
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
    "checkpoint_every": ("checkpoint_every_ms", milliseconds),
}


def jobs(name: str, body: Plain) -> list[PlannedJob]:
    """The job ``name``, or with ``copies`` the jobs ``name-1``, ``name-2`` and so on."""
    copies = body.pop("copies", None)
    runs = body.pop("runs", None)
    runs_ms = milliseconds(runs) if runs is not None else None
    fails = bool(body.pop("fails", False))
    words = ("after_ok", "after_any")
    after = {word: [str(one) for one in _list(body.pop(word), word)] for word in words if word in body}
    names = [name] if copies is None else [f"{name}-{number}" for number in range(1, int(str(copies)) + 1)]
    fields: Plain = {"queue": body.pop("queue", "team")}
    for word, (key, convert) in _JOB.items():
        if word in body:
            fields[key] = convert(body.pop(word))
    given = body.pop("roles", None)
    if given is not None:
        fields["roles"] = [_role(role, _map(text, role)) for role, text in _map(given, "roles").items()]
    else:
        fields["roles"] = [_role("main", body)]
    fields.update(body)
    spec = JobSpec.model_validate({"name": names[0], **fields})
    return [PlannedJob(one, spec.model_copy(update={"name": one}), runs_ms, fails, after) for one in names]


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


# --- reading ---------------------------------------------------------------------------------------------------------


def _map(plain: object, where: str, known: set[str] | None = None) -> Plain:
    if plain is None:
        return {}
    if not isinstance(plain, Mapping):
        raise BadStory(f"{where}: a map is expected, not {plain!r}")
    unknown = sorted(str(key) for key in plain if known is not None and key not in known)
    if unknown and known is not None:
        raise BadStory(f"{where}: {', '.join(unknown)} is not known here; use {', '.join(sorted(known))}")
    return {str(key): value for key, value in plain.items()}


def _list(plain: object, where: str) -> list[object]:
    if plain is None:
        return []
    if not isinstance(plain, list):
        raise BadStory(f"{where}: a list is expected, not {plain!r}")
    return list(plain)
