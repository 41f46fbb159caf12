"""Plays a story through the real control plane: a log in memory, the agents that are installed, and a virtual clock.

The clock stops at each moment of the story and whenever an agent or the plane has something due, on the story's grid.
At each instant agents report first, then what the story says happens, then the plane decides and agents are told.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import yaml

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    BudgetConfigured,
    CapacityObserved,
    ClusterConfigured,
    CycleDecided,
    Event,
    HistoryConfigured,
    JobCancelRequested,
    JobSubmitted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    PolicyActivated,
    QueueConfigured,
)
from controlplane.domain.workloads import JobSpec
from controlplane.eventlog.memory import MemoryLog
from controlplane.policy.bundle import Bundle, load_bundle, read_bundle_folder
from controlplane.runtime.agents import ClusterAgent, find_agents
from controlplane.runtime.outbox import Outbox
from controlplane.runtime.plane import ControlPlane
from controlplane.scheduler.invariants import check_all
from tests.scenarios.story import Moment, Plain, PlannedJob, Story, budget, jobs, node_shape, queue
from tests.scenarios.words import BadStory, micro_usd, milliseconds

POLICIES = Path(__file__).resolve().parent.parent.parent / "policies"
ROUNDS = 16


class Stage:
    """One story being played. ``told`` is everything in the log, as (instant, position, event)."""

    def __init__(self, story: Story, *, is_restarted: bool = False) -> None:
        """``is_restarted``: the plane is killed and opened anew from its log after every other append."""
        self.story = story
        self._is_restarted = is_restarted
        self.log = MemoryLog()
        self.plane = ControlPlane(self.log)
        self.told: list[tuple[int, int, Event]] = []
        self.jobs: dict[str, int] = {}
        """Name -> id."""
        self.names: dict[int, str] = {}
        self.now_ms = 0
        self._runs: dict[int, tuple[int | None, LeasePhase]] = {}
        self._agents = [] if story.is_scripted else self._open_agents()
        self._outbox = Outbox(self._agents)
        self._reports: list[tuple[Event, str]] = []
        self._appends = 0
        self._bundle = bundle_of(story.policy, story.params, story.rules)

    # --- the clock ---------------------------------------------------------------------------------------------------

    def play(self, check: Callable[[Moment], None]) -> None:
        """Live through the story; ``check`` is called for each moment of its ``then``, after all of that instant."""
        self._configure()
        when, then = list(self.story.when), list(self.story.then)
        end_ms = max(moment.at_ms for moment in (*when, *then))
        self.now_ms = 0
        while True:
            happening = [moment for moment in when if moment.at_ms <= self.now_ms]
            when = when[len(happening) :]
            self._live_through(happening)
            self._check_counts()
            while then and then[0].at_ms <= self.now_ms:
                check(then.pop(0))
            due = [moment.at_ms for moment in (*when[:1], *then[:1])] + self._due()
            if not due or min(due) > end_ms or not (when or then):
                break
            self.now_ms = max(min(due), self.now_ms + 1)

    def _due(self) -> list[int]:
        tick = self.story.tick_ms
        grid = (self.now_ms // tick + 1) * tick
        if self._reports:
            return [grid]
        wakes = [agent.next_wake_ms(self.now_ms) for agent in self._agents]
        timers = [*wakes, self.plane.next_due_ms()]
        return [max(-(-at // tick) * tick, grid) for at in timers if at is not None]

    def _live_through(self, happening: list[Moment]) -> None:
        self._act()
        inputs, self._reports = self._reports, []
        sent = [(event, actor) for event, actor in inputs]
        for moment in happening:
            for verb, body in moment.plain.items():
                inputs.extend(self._inputs(verb, body, len(inputs)))
        for _ in range(ROUNDS):
            recorded = self.plane.advance(self.now_ms, inputs)
            if not recorded:
                return
            self.told.extend((self.now_ms, position, event) for position, event in recorded)
            check_all(self.plane.state)
            for position, event in recorded:
                self._outbox.deliver(position, event)
            for agent in self._agents:
                agent.acknowledge([event for event, actor in sent if actor == agent.cluster])
                agent.settle(self.plane.head.position)
            inputs, sent = [], []
            self._appends += 1
            if self._is_restarted and self._appends % 2:
                self.plane = ControlPlane(self.log)
            self._act()

    def _act(self) -> None:
        for agent in self._agents:
            self._reports.extend((event, agent.cluster) for event in agent.step(self.now_ms))

    def _check_counts(self) -> None:
        """Every job that holds no lease is counted under one reason (SCENARIOS E6), in every story."""
        closed = next((event for _, _, event in reversed(self.told) if isinstance(event, CycleDecided)), None)
        if closed is None or not isinstance(self.told[-1][2], CycleDecided):
            return
        waiting = [job for job in self.plane.state.jobs.values() if job.lease is None]
        counted = sum(closed.waiting.values())
        assert counted == len(waiting), f"the cycle counts {closed.waiting}, and {len(waiting)} jobs hold no lease"

    # --- what is there -----------------------------------------------------------------------------------------------

    def _open_agents(self) -> list[ClusterAgent]:
        open_agent = find_agents()
        agents: list[ClusterAgent] = []
        for cluster in self.story.clusters:
            config = {**self.story.configs[cluster.name], **self._deaths(cluster.name)}
            agents.append(open_agent(cluster, config, runs=lambda job: self._runs[job]))
        return agents

    def _deaths(self, cluster: str) -> Plain:
        """Deaths of nodes, told to the simulated cluster in advance."""
        deaths: list[Plain] = []
        for moment in self.story.when:
            lost = moment.plain.get("lose", {})
            for node, back in (lost if isinstance(lost, dict) else {str(lost): None}).items():
                if self.story.nodes.get(node, {}).get("cluster") == cluster:
                    away = {} if back is None else {"for_ms": milliseconds(back)}
                    deaths.append({"node": node, "at_ms": moment.at_ms, **away})
        return {"deaths": deaths} if deaths else {}

    def _configure(self) -> None:
        story = self.story
        events: list[tuple[Event, str]] = [(activation(self._bundle), "operator")]
        events.extend((ClusterConfigured(spec=cluster), "operator") for cluster in story.clusters)
        events.extend((QueueConfigured(spec=spec), "operator") for spec in story.queues)
        events.extend((BudgetConfigured(spec=spec), "operator") for spec in story.budgets)
        if story.history is not None:
            events.append((HistoryConfigured(spec=story.history), "operator"))
        if story.is_scripted:
            events.extend(
                (_node(name, body, NodeState.READY), str(body["cluster"])) for name, body in story.nodes.items()
            )
        recorded = self.plane.record(events, 0)
        self.told.extend((0, position, event) for position, event in recorded)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _inputs(self, verb: str, body: object, before: int) -> list[tuple[Event, str]]:
        """What one line of ``when`` puts into the log; ``before`` inputs of this instant stand in front of it."""
        verbs: dict[str, Callable[[object, int], list[tuple[Event, str]]]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "configure": self._configured,
            "lose": self._lose,
            "observe": self._observe,
        }
        if verb not in verbs:
            raise BadStory(f"{self.story.path.name}: when: {verb} is not known; use {', '.join(verbs)}")
        return verbs[verb](body, before)

    def _submit(self, body: object, before: int) -> list[tuple[Event, str]]:
        planned: list[PlannedJob] = []
        for name, text in as_map(body).items():
            planned.extend(jobs(name, as_map(text)))
        for place, job in enumerate(planned):
            id_ = self.plane.state.position + 1 + before + place
            phase = LeasePhase.FAILED if job.fails else LeasePhase.FINISHED
            self.jobs[job.name], self.names[id_], self._runs[id_] = id_, job.name, (job.runs_ms, phase)
        return [(JobSubmitted(spec=self._spec(job), submitted_ms=self.now_ms), job.spec.user) for job in planned]

    def _spec(self, job: PlannedJob) -> JobSpec:
        """With the jobs that it names by their numbers."""
        after = {word: tuple(self.jobs[name] for name in names) for word, names in job.after.items()}
        return job.spec.model_copy(update=after)

    def _cancel(self, body: object, before: int) -> list[tuple[Event, str]]:
        names = [str(name) for name in (body if isinstance(body, list) else [body])]
        return [(JobCancelRequested(job=self.jobs[name], requested_ms=self.now_ms), "client") for name in names]

    def _configured(self, body: object, before: int) -> list[tuple[Event, str]]:
        events: list[Event] = []
        given = as_map(body)
        events.extend(QueueConfigured(spec=queue(n, as_map(b))) for n, b in as_map(given.pop("queues", None)).items())
        events.extend(
            BudgetConfigured(spec=budget(n, as_map(b))) for n, b in as_map(given.pop("budgets", None)).items()
        )
        if given.keys() & {"policy", "params", "rules"}:
            params, rules = as_map(given.pop("params", None)), as_map(given.pop("rules", None))
            bundle = bundle_of(str(given.pop("policy", self.story.policy)), params, rules)
            events.append(activation(bundle))
        if given:
            raise BadStory(f"{self.story.path.name}: configure: {', '.join(sorted(given))} is not known")
        return [(event, "operator") for event in events]

    def _lose(self, body: object, before: int) -> list[tuple[Event, str]]:
        if not self.story.is_scripted:
            return []
        names = list(body) if isinstance(body, dict) else [str(body)]
        return [
            (_node(name, self.story.nodes[name], NodeState.LOST), str(self.story.nodes[name]["cluster"]))
            for name in names
        ]

    def _observe(self, body: object, before: int) -> list[tuple[Event, str]]:
        """What an agent reports, one map after the other: of a job's lease, a node, or a request for capacity."""
        events: list[tuple[Event, str]] = []
        for one in body if isinstance(body, list) else [body]:
            told = as_map(one)
            if "job" in told:
                event: LeaseObserved | NodeObserved | CapacityObserved = self._lease_report(told)
            elif "node" in told:
                event = self._node_report(told)
            else:
                event = self._capacity_report(told)
            events.append((event, event.cluster))
        return events

    def _lease_report(self, told: Plain) -> LeaseObserved:
        id_ = self.jobs[str(told["job"])]
        attempt = told.get("attempt", max(1, self._attempts(id_)))
        lease = f"j{id_}.{attempt}"
        held = self.plane.state.leases.get(lease)
        cluster = held.cluster if held is not None else self.story.clusters[0].name
        phase = LeasePhase(str(told["is"]))
        return LeaseObserved(cluster=cluster, lease=lease, phase=phase, observed_ms=self.now_ms)

    def _attempts(self, id_: int) -> int:
        job = self.plane.state.jobs.get(id_)
        return job.attempts if job is not None else 1

    def _node_report(self, told: Plain) -> NodeObserved:
        name, state = str(told.pop("node")), NodeState(str(told.pop("is", "ready")))
        known = dict(self.story.nodes.get(name, {}))
        for key in ("cluster", "flavor", "request", "labels"):
            if key in told:
                known[key] = told.pop(key)
        if told:
            shape = node_shape(told)
            known["shape"] = shape.model_dump(exclude_defaults=True)
            known.setdefault("flavor", (shape.gpu_model or "cpu").lower())
        known.setdefault("cluster", self.story.clusters[0].name)
        if "request" in known:
            known["request"] = self.request(str(known["request"]))
        self.story.nodes[name] = known
        return _node(name, known, state)

    def _capacity_report(self, told: Plain) -> CapacityObserved:
        request = self.request(str(told["capacity_for"]))
        return CapacityObserved.model_validate(
            {
                "cluster": self.cluster_of_request(request),
                "request": request,
                "phase": told["is"],
                "observed_ms": self.now_ms,
                "charged_micro_usd": micro_usd(told.get("charged_usd", 0)),
                "nodes": tuple(as_list(told.get("nodes"))),
            }
        )

    def request(self, job: str) -> str:
        """The last request that was made for a job."""
        made = [event for _, _, event in self.told if event.TYPE == "capacity_requested/1"]
        found = [str(getattr(event, "request", "")) for event in made if getattr(event, "for_job", 0) == self.jobs[job]]
        if not found:
            raise BadStory(f"{self.story.path.name}: nothing was rented for {job}")
        return found[-1]

    def cluster_of_request(self, request: str) -> str:
        """The cluster that a request went to."""
        made = (event for _, _, event in self.told if event.TYPE == "capacity_requested/1")
        return next(str(getattr(event, "cluster", "")) for event in made if getattr(event, "request", "") == request)


def bundle_of(policy: str, params: Plain, rules: Plain | None = None) -> Bundle:
    """The bundle in a folder of ``policies``, with other defaults of its parameters, and with other rules: decision
    point -> the expression that answers it, or a list of matches (``condition``, ``output``) in order."""
    files = read_bundle_folder(POLICIES / policy)
    manifest = as_map(yaml.safe_load(files["bundle.yaml"]))
    known, points = as_map(manifest.get("params")), as_map(manifest.get("points"))
    for name, value in params.items():
        if name not in known:
            raise BadStory(f"policy {policy} has no parameter {name}; it has {', '.join(sorted(known))}")
        default = milliseconds(value) if name.endswith("_ms") else value
        known[name] = {**as_map(known[name]), "default": default}
    for point, expression in (rules or {}).items():
        file = f"story-{point.replace('.', '-')}.yaml"
        match = expression if isinstance(expression, list) else [{"output": str(expression)}]
        rule = {"name": file.removesuffix(".yaml"), "description": "Of this story.", "point": point}
        files[file] = yaml.safe_dump({**rule, "rule": {"match": match}}, sort_keys=False)
        points[point] = [file]
    manifest.update({"params": known, "points": points} if known else {"points": points})
    used = {str(file) for listed in points.values() for file in as_list(listed)}
    kept = {path: text for path, text in files.items() if path in used}
    return load_bundle({**kept, "bundle.yaml": yaml.safe_dump(manifest, sort_keys=False)})


def activation(bundle: Bundle) -> PolicyActivated:
    """What puts a bundle in force."""
    return PolicyActivated(name=bundle.name, digest=bundle.digest, files=bundle.files)


def _node(name: str, body: Plain, state: NodeState) -> NodeObserved:
    return NodeObserved.model_validate({"node": name, "state": state, **body})


def as_map(plain: object) -> Plain:
    """A map of YAML, copied."""
    if plain is None:
        return {}
    if not isinstance(plain, dict):
        raise BadStory(f"a map is expected, not {plain!r}")
    return {str(key): value for key, value in plain.items()}


def as_list(plain: object) -> list[object]:
    """A list of YAML; one thing is a list of one."""
    return [] if plain is None else list(plain) if isinstance(plain, list) else [plain]
