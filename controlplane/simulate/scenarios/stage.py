"""Plays a story through the real control plane: a log in memory, the agents that are installed, and a virtual clock.

The clock stops at each moment of the story and whenever an agent or the plane has something due, on the story's grid.
At each instant agents report first, then what the story says happens, then the plane decides and agents are told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar, assert_never

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    BudgetConfigured,
    CapacityObserved,
    CapacityRequested,
    ClusterConfigured,
    CycleDecided,
    Event,
    HistoryConfigured,
    JobCancelRequested,
    JobSubmitted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    QueueConfigured,
    ServiceObserved,
    WarmPoolConfigured,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.loads import ServiceLoad
from controlplane.domain.workloads import JobSpec
from controlplane.eventlog.memory import MemoryLog
from controlplane.runtime.agents import ClusterAgent, find_agents
from controlplane.runtime.outbox import Outbox
from controlplane.runtime.plane import ControlPlane
from controlplane.scheduler.invariants import check_all
from controlplane.simulate.scenarios.bundles import Bundles, activation, bundle_of
from controlplane.simulate.scenarios.given import Plain, PlannedJob, as_list, let_in, node_shape
from controlplane.simulate.scenarios.story import (
    Cancel,
    Configure,
    Expected,
    Happening,
    Lose,
    Observe,
    Story,
    Submit,
)
from controlplane.simulate.scenarios.words import BadStory, micro_usd, milliseconds, placed

K = TypeVar("K", bound=StrEnum)
ROUNDS = 16
"""Cycles at one instant: a cycle may make another due, but never without end."""
MAX_INSTANTS = 20_000
"""At which something is due in one story (the longest of ours has 422)."""
OPERATOR, CLIENT = "operator", "client"


class Stage:
    """One story being played. ``told`` is everything in the log, as (instant, position, event)."""

    def __init__(self, story: Story, bundles: Bundles, *, is_restarted: bool = False) -> None:
        """``is_restarted``: the plane is killed and opened anew from its log after every other append.

        Raises :class:`BadStory` for rules and settings of clusters that cannot be used.
        """
        self.story = story
        self._bundles = bundles
        self._is_restarted = is_restarted
        self.log = MemoryLog()
        self.plane = ControlPlane(self.log)
        self.told: list[tuple[int, int, Event]] = []
        self.jobs: dict[str, int] = {}
        """Name -> id."""
        self.names: dict[int, str] = {}
        self.now_ms = 0
        self._runs: dict[int, tuple[int | None, LeasePhase]] = {}
        self._loads: dict[int, ServiceLoad] = {}
        self._agents = [] if story.is_scripted else self._open_agents()
        self._outbox = Outbox(self._agents)
        self._reports: list[tuple[Event, str]] = []
        self._appends = 0
        with placed(story.places.get("policy", (1, 1))):
            self._bundle = bundle_of(story.policy, bundles)

    # --- the clock ---------------------------------------------------------------------------------------------------

    def play(self, check: Callable[[Expected], None]) -> None:
        """Live through the story up to its last expectation; ``check`` is called for each, after all of its instant.

        Raises :class:`BadStory` for what only shows when it is played, and what ``check`` raises.
        """
        self._configure()
        when, then = list(self.story.when), list(self.story.then)
        self.now_ms = 0
        for _ in range(MAX_INSTANTS):
            happening = [one for one in when if one.at_ms <= self.now_ms]
            when = when[len(happening) :]
            self._live_through(happening)
            self._check_counts()
            while then and then[0].at_ms <= self.now_ms:
                with placed(then[0].place):
                    check(then.pop(0))
            if not then:
                return
            due = [then[0].at_ms, *(one.at_ms for one in when[:1]), *self._due()]
            self.now_ms = max(min(due), self.now_ms + 1)
        raise BadStory(f"the story has more than {MAX_INSTANTS:,} instants; tell a shorter one", then[0].place)

    def _due(self) -> list[int]:
        tick = self.story.tick_ms
        grid = (self.now_ms // tick + 1) * tick
        if self._reports:
            return [grid]
        wakes = [agent.next_wake_ms(self.now_ms) for agent in self._agents]
        timers = [*wakes, self.plane.next_due_ms()]
        return [max(-(-at // tick) * tick, grid) for at in timers if at is not None]

    def _live_through(self, happening: Sequence[Happening]) -> None:
        self._act()
        inputs, self._reports = self._reports, []
        sent = [(event, actor) for event, actor in inputs]
        for one in happening:
            with placed(one.place):
                inputs.extend(self._inputs(one, len(inputs)))
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
            try:
                agents.append(open_agent(cluster, config, runs=lambda job: self._runs[job], loads=self._loads.get))
            except ValueError as error:
                raise BadStory(str(error), self.story.places.get(f"cluster {cluster.name}")) from error
        return agents

    def _deaths(self, cluster: str) -> Plain:
        """Deaths of nodes, told to the simulated cluster in advance."""
        deaths: list[Plain] = []
        for one in self.story.when:
            lost = one.deed.nodes if isinstance(one.deed, Lose) else {}
            for called, back_ms in lost.items():
                at = self.story.node(called)
                if at is not None and at.cluster == cluster:
                    away = {} if back_ms is None else {"for_ms": back_ms}
                    deaths.append({"node": at.name, "at_ms": one.at_ms, **away})
        return {"deaths": deaths} if deaths else {}

    def _configure(self) -> None:
        story = self.story
        events: list[tuple[Event, str]] = [(activation(self._bundle), OPERATOR)]
        events.extend((ClusterConfigured(spec=cluster), OPERATOR) for cluster in story.clusters)
        events.extend((QueueConfigured(spec=spec), OPERATOR) for spec in story.queues)
        events.extend((BudgetConfigured(spec=spec), OPERATOR) for spec in story.budgets)
        events.extend((WarmPoolConfigured(spec=spec), OPERATOR) for spec in story.pools)
        if story.history is not None:
            events.append((HistoryConfigured(spec=story.history), OPERATOR))
        if story.is_scripted:
            events.extend((_node(at, body, NodeState.READY), at.cluster) for at, body in story.nodes.items())
        recorded = self.plane.record(events, 0)
        self.told.extend((0, position, event) for position, event in recorded)

    # --- what happens ------------------------------------------------------------------------------------------------

    def _inputs(self, one: Happening, before: int) -> list[tuple[Event, str]]:
        """What one line of ``when`` puts into the log; ``before`` inputs of this instant stand in front of it."""
        match one.deed:
            case Submit():
                return self._submit(one.deed.jobs, before)
            case Cancel():
                jobs = [self.job(name) for name in one.deed.names]
                return [(JobCancelRequested(job=job, requested_ms=self.now_ms), CLIENT) for job in jobs]
            case Configure():
                return [(event, OPERATOR) for event in self._configured(one.deed)]
            case Lose():
                return self._lose(one.deed) if self.story.is_scripted else []
            case Observe():
                events = [self._report(dict(report)) for report in one.deed.reports]
                return [(event, event.cluster) for event in events]
            case _:
                assert_never(one.deed)

    def _submit(self, planned: Sequence[PlannedJob], before: int) -> list[tuple[Event, str]]:
        for place, job in enumerate(planned):
            id_ = self.plane.state.position + 1 + before + place
            phase = LeasePhase.FAILED if job.fails else LeasePhase.FINISHED
            self.jobs[job.name], self.names[id_], self._runs[id_] = id_, job.name, (job.runs_ms, phase)
            if job.load is not None:
                self._loads[id_] = job.load
        return [(JobSubmitted(spec=self._spec(job), submitted_ms=self.now_ms), job.spec.user) for job in planned]

    def _spec(self, job: PlannedJob) -> JobSpec:
        """With the jobs that it names by their numbers."""
        after = {word: tuple(self.job(name) for name in names) for word, names in job.after.items()}
        return job.spec.model_copy(update=after)

    def job(self, name: object) -> int:
        """The number of a job. Raises :class:`BadStory`."""
        found = self.jobs.get(str(name))
        if found is None:
            known = ", ".join(list(self.jobs)[:8]) or "none"
            raise BadStory(f"no job {name} has been submitted by now (submitted: {known})")
        return found

    def _configured(self, deed: Configure) -> list[Event]:
        known = dict(self.plane.state.queues)
        for spec in deed.queues:
            let_in(known, spec)
            known[spec.name] = spec
        events: list[Event] = [QueueConfigured(spec=spec) for spec in deed.queues]
        events.extend(BudgetConfigured(spec=spec) for spec in deed.budgets)
        events.extend(WarmPoolConfigured(spec=spec) for spec in deed.pools)
        if deed.policy is not None:
            policy = replace(deed.policy, name=deed.policy.name or self.story.policy.name)
            events.append(activation(bundle_of(policy, self._bundles)))
        return events

    def _lose(self, deed: Lose) -> list[tuple[Event, str]]:
        lost: list[tuple[Event, str]] = []
        for called in deed.nodes:
            at = self.story.node(called)
            if at is None:
                raise BadStory(f"no node {called} has been observed by now")
            lost.append((_node(at, self.story.nodes[at], NodeState.LOST), at.cluster))
        return lost

    def _report(self, told: Plain) -> LeaseObserved | NodeObserved | CapacityObserved | ServiceObserved:
        """What an agent reports: of a job's lease, a service, a node, or a request for capacity."""
        if "job" in told:
            return self._lease_report(told)
        if "service" in told:
            return self._service_report(told)
        return self._node_report(told) if "node" in told else self._capacity_report(told)

    def _lease_report(self, told: Plain) -> LeaseObserved:
        id_ = self.job(told["job"])
        attempt = told.get("attempt", max(1, self._attempts(id_)))
        lease = f"j{id_}.{attempt}"
        held = self.plane.state.leases.get(lease)
        cluster = held.cluster if held is not None else self._first_cluster()
        phase = _one_of(LeasePhase, told.get("is"))
        return LeaseObserved(cluster=cluster, lease=lease, phase=phase, observed_ms=self.now_ms)

    def _service_report(self, told: Plain) -> ServiceObserved:
        id_ = self.job(told["service"])
        lease = self.plane.state.leases.get(f"j{id_}.{max(1, self._attempts(id_))}")
        seen = {"p99_ms": told.get("p99"), "objective_ms": told.get("objective")}
        return ServiceObserved.model_validate(
            {
                "cluster": lease.cluster if lease is not None else self._first_cluster(),
                "lease": f"j{id_}.{max(1, self._attempts(id_))}",
                "observed_ms": milliseconds(told["seen_at"]) if "seen_at" in told else self.now_ms,
                "queue_depth": told.get("queue"),
                **{key: milliseconds(text) for key, text in seen.items() if text is not None},
            }
        )

    def _first_cluster(self) -> str:
        if not self.story.clusters:
            raise BadStory("observe: there is no cluster that could report it")
        return self.story.clusters[0].name

    def _attempts(self, id_: int) -> int:
        job = self.plane.state.jobs.get(id_)
        return job.attempts if job is not None else 1

    def _node_report(self, told: Plain) -> NodeObserved:
        called, state = str(told.pop("node")), _one_of(NodeState, told.pop("is", "ready"))
        at = NodeId(str(told.pop("cluster")), called) if "cluster" in told else self.story.node(called)
        at = at or NodeId(self._first_cluster(), called)
        known = dict(self.story.nodes.get(at, {}))
        if "request" in told:
            known["request"] = self.request(told.pop("request"))
        for key in ("flavor", "labels"):
            if key in told:
                known[key] = told.pop(key)
        if told:
            shape = node_shape(told)
            if told:
                raise BadStory(f"observe: a node has no {', '.join(sorted(told))}")
            known["shape"] = shape.model_dump(exclude_defaults=True)
            known.setdefault("flavor", (shape.gpu_model or "cpu").lower())
        self.story.nodes[at] = known
        return _node(at, known, state)

    def _capacity_report(self, told: Plain) -> CapacityObserved:
        request = self.request(str(told["capacity_for"]))
        return CapacityObserved.model_validate(
            {
                "cluster": self.cluster_of_request(request),
                "request": request,
                "phase": told.get("is"),
                "observed_ms": self.now_ms,
                "charged_micro_usd": micro_usd(told.get("charged_usd", 0)),
                "nodes": tuple(as_list(told.get("nodes"))),
            }
        )

    def request(self, job: object) -> str:
        """The last request that was made for a job."""
        number = self.job(job)
        found = [event.request for event in self._requests() if event.for_job == number]
        if not found:
            raise BadStory(f"nothing was rented for {job}")
        return found[-1]

    def cluster_of_request(self, request: str) -> str:
        """The cluster that a request went to."""
        return next(event.cluster for event in self._requests() if event.request == request)

    def _requests(self) -> list[CapacityRequested]:
        return [event for _, _, event in self.told if isinstance(event, CapacityRequested)]


def _one_of(kind: type[K], text: object) -> K:
    """The member of an enumeration that is written so. Raises :class:`BadStory`."""
    found = next((member for member in kind if member.value == text), None)
    if found is None:
        raise BadStory(f"is: {text!r} is not known; use {', '.join(member.value for member in kind)}")
    return found


def _node(at: NodeId, body: Plain, state: NodeState) -> NodeObserved:
    return NodeObserved.model_validate({"cluster": at.cluster, "node": at.name, "state": state, **body})
