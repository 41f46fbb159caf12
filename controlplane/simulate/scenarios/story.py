"""A story as it stands in its file: what is given, what happens, what is expected, each with its place.

What is misspelt is refused when it is read, at the place of the thing that it stands in; what only shows when the story
is played (a job that has not been submitted by then) is refused at the place of the moment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from controlplane.domain.clusters import Budget, ClusterSpec, WarmPool
from controlplane.domain.ids import NodeId
from controlplane.domain.queues import HistorySpec, QueueSpec
from controlplane.policy.documents import plain_value
from controlplane.policy.yamltext import Node, normalise, parse_yaml
from controlplane.simulate.scenarios.given import (
    MAX_JOBS,
    MAX_NODES,
    Plain,
    PlannedJob,
    as_list,
    as_map,
    budget,
    jobs,
    let_in,
    node_shape,
    offer,
    pool,
    queue,
)
from controlplane.simulate.scenarios.words import BadStory, milliseconds, placed, whole

T = TypeVar("T")
At = tuple[int, int]
"""Line and column, counted from 1."""
_TOP = ("story", "scenario", "why", "given", "when", "then")
_GIVEN = (
    "policy",
    "params",
    "rules",
    "clusters",
    "queues",
    "budgets",
    "history",
    "warm_pools",
    "agents",
    "tick",
)
AGENTS = ("simulated", "scripted")
EXPECTED = (
    "running",
    "waiting",
    "placed",
    "clusters",
    "members",
    "finished",
    "ended",
    "refused",
    "evicted",
    "attempts",
    "order",
    "uses",
    "shares",
    "free_gpus",
    "rented",
    "requests",
    "released",
    "deadlines",
    "left",
    "charged",
    "tally",
    "rule",
    "offers",
    "faults",
    "reserved",
    "promised",
    "wanted",
    "lacks",
    "scaled",
    "warm",
)
"""The words of ``then``; ``because`` goes with them."""


# --- what happens ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Submit:
    """Jobs are submitted, in this order."""

    jobs: tuple[PlannedJob, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Jobs are cancelled by their clients."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules in force: a bundle by name (empty for the one that is meant anyway), other defaults of its parameters,
    and decision point -> what answers it in place of the bundle's own rules."""

    name: str = ""
    params: Mapping[str, object] = field(default_factory=dict)
    rules: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Configure:
    """The operator changes something; ``policy`` ``None`` leaves the rules as they are."""

    queues: tuple[QueueSpec, ...] = ()
    budgets: tuple[Budget, ...] = ()
    pools: tuple[WarmPool, ...] = ()
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Lose:
    """Nodes die: name -> how long they stay away, ``None`` for ever."""

    nodes: Mapping[str, int | None]


@dataclass(frozen=True, slots=True)
class Observe:
    """What an agent reports, as written."""

    reports: tuple[Plain, ...]


Deed = Submit | Cancel | Configure | Lose | Observe


@dataclass(frozen=True, slots=True)
class Happening:
    """One line of ``when``."""

    at_ms: int
    place: At
    deed: Deed


@dataclass(frozen=True, slots=True)
class Expected:
    """One line of ``then``."""

    at_ms: int
    place: At
    word: str
    given: object
    because: str = ""


@dataclass(slots=True)
class Story:
    """One file. ``when`` and ``then`` are in order of time, and of the file within one instant."""

    file: str
    title: str
    scenario: str
    policy: Policy
    clusters: list[ClusterSpec] = field(default_factory=list)
    configs: dict[str, Plain] = field(default_factory=dict)
    """Cluster -> settings of its adapter."""
    queues: list[QueueSpec] = field(default_factory=list)
    budgets: list[Budget] = field(default_factory=list)
    history: HistorySpec | None = None
    pools: list[WarmPool] = field(default_factory=list)
    is_scripted: bool = False
    tick_ms: int = 1_000
    when: list[Happening] = field(default_factory=list)
    then: list[Expected] = field(default_factory=list)
    nodes: dict[NodeId, Plain] = field(default_factory=dict)
    """Node -> its flavor, shape and labels, for scripted agents."""
    places: dict[str, At] = field(default_factory=dict)
    """Of ``policy`` and of each cluster (``cluster NAME``), for what is found wrong only when they are used."""
    jobs: set[str] = field(default_factory=set)
    """Names of all that are ever submitted."""

    def node(self, called: str) -> NodeId | None:
        """The node that is called so, by name or ``cluster/name``. Raises :class:`BadStory` where the name alone does
        not say which."""
        found = [at for at in self.nodes if called in (at.name, str(at))]
        if len(found) > 1:
            raise BadStory(f"{called} is a node of {found[0].cluster} and of {found[1].cluster}; write {found[0]}")
        return found[0] if found else None


def read_story(file: str, text: str) -> Story:
    """The story in a text. Raises :class:`BadStory` with its place."""
    root, problems = parse_yaml(file, normalise(text))
    if root is None or problems:
        raise BadStory(problems[0].message, (problems[0].line, problems[0].column))
    with placed(root):
        return _Reading(file, root).story


class _Reading:
    """Reads one file, from the top down; each part is refused at its own place."""

    def __init__(self, file: str, root: Node) -> None:
        self._reported: set[str] = set()
        """Nodes that a story tells of only by what is observed."""
        self._queues: dict[str, QueueSpec] = {}
        """As they are by then, in the order of the file."""
        top = _parts(root, "a story", _TOP)
        given = _parts(top["given"], "given", _GIVEN) if "given" in top else {}
        if "story" not in top or not top["story"].text.strip():
            raise BadStory("a story begins with 'story', one sentence that tells it")
        scenario = top["scenario"].text if "scenario" in top else ""
        self.story = Story(file, top["story"].text, scenario, self._policy(given))
        self._read_given(given)
        for at_ms, node in _moments(top.get("when"), "when"):
            self._happen(at_ms, node)
        for at_ms, node in _moments(top.get("then"), "then"):
            self._expect(at_ms, node)
        self.story.when.sort(key=lambda happening: happening.at_ms)
        self.story.then.sort(key=lambda expected: expected.at_ms)
        if not self.story.then:
            raise BadStory("a story that expects nothing cannot fail; give it a then")

    # --- given -------------------------------------------------------------------------------------------------------

    def _policy(self, given: Mapping[str, Node]) -> Policy:
        parts = {word: plain_value(given[word]) for word in ("policy", "params", "rules") if word in given}
        first = next((given[word] for word in parts), None)
        with placed(first if first is not None else (1, 1)):
            return _policy(parts)

    def _read_given(self, given: Mapping[str, Node]) -> None:
        story = self.story
        for word in ("policy", "params", "rules"):
            if word in given:
                story.places.setdefault("policy", (given[word].line, given[word].column))
        for key, _ in given["clusters"].entries if "clusters" in given else ():
            story.places[f"cluster {key.text}"] = (key.line, key.column)
        story.clusters.extend(_each(given.get("clusters"), "clusters", self._cluster))
        story.queues.extend(_each(given.get("queues"), "queues", queue))
        story.budgets.extend(_each(given.get("budgets"), "budgets", budget))
        story.pools.extend(_each(given.get("warm_pools"), "warm_pools", self._pool))
        for word, node in given.items():
            with placed(node):
                self._set(word, plain_value(node))
        self._check_parents(story.queues, given.get("queues"))

    def _set(self, word: str, plain: object) -> None:
        match word:
            case "history":
                body = as_map(plain, "history", ("half_life", "sample"))
                times = {"half_life_ms": body.get("half_life"), "sample_ms": body.get("sample")}
                self.story.history = HistorySpec.model_validate(
                    {key: milliseconds(value) for key, value in times.items()}
                )
            case "agents":
                if plain not in AGENTS:
                    raise BadStory(f"agents: {plain!r} is not known; use {' or '.join(AGENTS)}")
                self.story.is_scripted = plain == "scripted"
            case "tick":
                self.story.tick_ms = milliseconds(plain)
                if not self.story.tick_ms:
                    raise BadStory("tick: a clock that does not move has no cycles; write it like 1s")
            case _:
                pass

    def _check_parents(self, specs: Sequence[QueueSpec], node: Node | None) -> None:
        """Queues are configured one after the other, and none before its parent."""
        at = {key.text: key for key, _ in node.entries} if node is not None else {}
        for spec in specs:
            with placed(at.get(spec.name, (1, 1))):
                if spec.parent is not None and spec.parent not in self._queues:
                    raise BadStory(f"queue {spec.name} stands before its parent {spec.parent}, or there is none")
                let_in(self._queues, spec)
            self._queues[spec.name] = spec

    def _cluster(self, name: str, body: Plain) -> ClusterSpec:
        groups: list[Plain] = []
        for prefix, group in as_map(body.pop("nodes", None), f"nodes of {name}").items():
            groups.extend(self._nodes(name, prefix, as_map(group, prefix)))
        config = as_map(body.pop("config", None), f"config of {name}")
        offers = [offer(one, as_map(text, one)) for one, text in as_map(body.pop("offers", None), "offers").items()]
        if "idle_release" in body:
            body["idle_release_ms"] = milliseconds(body.pop("idle_release"))
        site = body.pop("site", "cloud" if offers else "home")
        self.story.configs[name] = {**config, "nodes": groups}
        return ClusterSpec.model_validate({"name": name, "site": site, "offers": offers, **body})

    def _pool(self, name: str, body: Plain) -> WarmPool:
        spec = pool(name, body)
        if all(cluster.name != spec.cluster for cluster in self.story.clusters):
            raise BadStory(f"warm pool {name}: no cluster is called {spec.cluster}")
        return spec

    def _nodes(self, cluster: str, prefix: str, body: Plain) -> list[Plain]:
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
            many = whole(count, f"count of {prefix}", MAX_NODES)
            width = len(str(many - 1))
            names = [f"{prefix}{number:0{width}d}" for number in range(many)]
        for name in names:
            at = NodeId(cluster, name)
            if at in self.story.nodes:
                raise BadStory(f"two nodes of {cluster} are called {name}")
            self.story.nodes[at] = group
        if len(self.story.nodes) > MAX_NODES:
            raise BadStory(f"the story has more than {MAX_NODES:,} nodes; tell it with fewer")
        return [{**group, "names": [name]} for name in names]

    # --- when and then -----------------------------------------------------------------------------------------------

    def _happen(self, at_ms: int, node: Node) -> None:
        verbs: dict[str, Callable[[Node], Deed]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "configure": self._configure,
            "lose": self._lose,
            "observe": self._observe,
        }
        for key, body in node.entries:
            if key.text == "at":
                continue
            with placed(key):
                if key.text not in verbs:
                    raise BadStory(f"when: {key.text} is not known; use {', '.join(verbs)}")
                deed = verbs[key.text](body)
            self.story.when.append(Happening(at_ms, (key.line, key.column), deed))

    def _submit(self, node: Node) -> Submit:
        return Submit(tuple(job for alike in _each(node, "submit", self._jobs) for job in alike))

    def _jobs(self, name: str, body: Plain) -> list[PlannedJob]:
        planned = jobs(name, body)
        for job in planned:
            if job.name in self.story.jobs:
                raise BadStory(f"two jobs are called {job.name}")
            for earlier in (one for names in job.after.values() for one in names):
                if earlier not in self.story.jobs:
                    raise BadStory(f"{name}: no job before it is called {earlier}")
            self.story.jobs.add(job.name)
        if len(self.story.jobs) > MAX_JOBS:
            raise BadStory(f"the story has more than {MAX_JOBS:,} jobs; tell it with fewer")
        return planned

    def _cancel(self, node: Node) -> Cancel:
        names = tuple(str(name) for name in as_list(plain_value(node)))
        unknown = [name for name in names if name not in self.story.jobs]
        if unknown:
            raise BadStory(f"cancel: no job before is called {unknown[0]}")
        return Cancel(names)

    def _configure(self, node: Node) -> Configure:
        parts = _parts(node, "configure", ("queues", "budgets", "warm_pools", "policy", "params", "rules"))
        queues = tuple(_each(parts.get("queues"), "queues", queue))
        self._check_parents(queues, parts.get("queues"))
        rules = {word: plain_value(part) for word, part in parts.items() if word in ("policy", "params", "rules")}
        budgets = tuple(_each(parts.get("budgets"), "budgets", budget))
        pools = tuple(_each(parts.get("warm_pools"), "warm_pools", self._pool))
        return Configure(queues, budgets, pools, _policy(rules) if rules else None)

    def _lose(self, node: Node) -> Lose:
        plain = plain_value(node)
        lost = plain if isinstance(plain, dict) else dict.fromkeys(str(name) for name in as_list(plain))
        unknown = [name for name in lost if name not in self._reported and self.story.node(name) is None]
        if unknown:
            raise BadStory(f"lose: no node is called {unknown[0]}")
        return Lose({name: None if back is None else milliseconds(back) for name, back in lost.items()})

    def _observe(self, node: Node) -> Observe:
        reports = [as_map(one, "observe") for one in as_list(plain_value(node))]
        for report in reports:
            if "node" in report:
                self._reported.add(str(report["node"]))
            if not {"job", "node", "capacity_for", "service"} & report.keys():
                raise BadStory("observe: a report is about a job, a service, a node, or capacity_for a job")
            for word in ("job", "service", "capacity_for"):
                if word in report and str(report[word]) not in self.story.jobs:
                    raise BadStory(f"observe: no job before is called {report[word]}")
        return Observe(tuple(reports))

    def _expect(self, at_ms: int, node: Node) -> None:
        because = next((value.text for key, value in node.entries if key.text == "because"), "")
        for key, value in node.entries:
            if key.text in ("at", "because"):
                continue
            with placed(key):
                if key.text not in EXPECTED:
                    raise BadStory(f"then: {key.text} is not known; use {', '.join(EXPECTED)}")
                expected = Expected(at_ms, (key.line, key.column), key.text, plain_value(value), because)
            self.story.then.append(expected)


# --- parts of a file -------------------------------------------------------------------------------------------------


def _parts(node: Node, what: str, known: Sequence[str]) -> dict[str, Node]:
    """The entries of a map whose keys are known."""
    if node.is_null:
        return {}
    if node.kind != "map":
        with placed(node):
            raise BadStory(f"{what} is written as keys and values")
    for key, _ in node.entries:
        if key.text not in known:
            with placed(key):
                raise BadStory(f"{what}: {key.text} is not known here; use {', '.join(known)}")
    return {key.text: value for key, value in node.entries}


def _each(node: Node | None, what: str, take: Callable[[str, Plain], T]) -> list[T]:
    """What becomes of each entry, from its name and its plain body; what is refused of one is refused at its place."""
    if node is None or node.is_null:
        return []
    if node.kind != "map":
        with placed(node):
            raise BadStory(f"{what}: names and what they stand for are expected")
    taken: list[T] = []
    for key, value in node.entries:
        with placed(key):
            taken.append(take(key.text, as_map(plain_value(value), key.text)))
    return taken


def _moments(node: Node | None, where: str) -> list[tuple[int, Node]]:
    if node is None or node.is_null:
        return []
    with placed(node):
        if node.kind != "list":
            raise BadStory(f"{where}: a list of moments is expected ('- at: 10s')")
    return [(_instant(one, where), one) for one in node.items]


def _instant(node: Node, where: str) -> int:
    with placed(node):
        if node.kind != "map":
            raise BadStory(f"{where}: a moment is written as keys and values ('- at: 10s')")
    at = next((value for key, value in node.entries if key.text == "at"), None)
    if at is None:
        return 0
    with placed(at):
        return milliseconds(plain_value(at))


def _policy(parts: Mapping[str, object]) -> Policy:
    name = parts.get("policy") or ""
    if not isinstance(name, str):
        raise BadStory("policy: the name of a bundle is expected")
    return Policy(name, as_map(parts.get("params"), "params"), as_map(parts.get("rules"), "rules"))
