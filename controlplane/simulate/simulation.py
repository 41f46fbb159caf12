"""A virtual clock around the real core, log, outbox, agents and adapters.

Nothing waits: the clock jumps to the next instant at which something is due, on a grid of ``tick_ms``. At each instant
agents look at their clusters first, then what arrived is recorded with what they saw, in one append; then, if a cycle
is due, it is decided and recorded, delivered, and the agents act on it. The whole run is a function of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from controlplane.audit.figures import Figures
from controlplane.domain.events import (
    BudgetConfigured,
    ClusterConfigured,
    Event,
    HistoryConfigured,
    JobSubmitted,
    LeasePhase,
    QueueConfigured,
    TypicalJobsConfigured,
    WarmPoolConfigured,
)
from controlplane.domain.loads import ServiceLoad
from controlplane.eventlog.port import EventLog
from controlplane.intake.traces import Outcome, TraceJob
from controlplane.policy.bundle import Bundle
from controlplane.runtime.agents import ClusterAgent, find_agents
from controlplane.runtime.batch import rare_collection
from controlplane.runtime.outbox import Outbox
from controlplane.runtime.plane import ControlPlane, Recorded
from controlplane.scheduler.invariants import check_all
from controlplane.simulate.policies import activation, changes_of
from controlplane.simulate.world import ServiceJob, World, WorldFault, cluster_config, jobs_of, place_in, typical_roles

Progress = Callable[[int, int, int], None]
"""(jobs that arrived, jobs in all, virtual milliseconds)."""
TrueRuns = dict[int, tuple[int | None, LeasePhase]]
MAX_ROUNDS = 16
"""Cycles at one instant: a cycle may make another due (a requeued job), but never without end."""
OPERATOR = "operator"
CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What a run came to."""

    figures: dict[str, object]
    position: int
    digest: str
    virtual_ms: int


class Simulation:
    """One run of one world on an empty log."""

    def __init__(self, world: World, world_file: Path, bundle: Bundle, log: EventLog) -> None:
        """Raises :class:`~controlplane.intake.traces.IntakeError` for a workload that cannot be read, and
        :class:`WorldFault` for settings that an adapter does not understand and for bundles that are refused; nothing
        has been written then."""
        self._world = world
        self._bundle = bundle
        with rare_collection():
            self._jobs = jobs_of(world, world_file)
        self._typical = typical_roles(world, world_file)
        self._changes = changes_of(world, world_file)
        """Of the policy, those to come."""
        self._runs: TrueRuns = {}
        self._loads: dict[int, ServiceLoad] = {}
        self._agents = self._open_agents(world_file)
        self._reports: dict[str, list[Event]] = {agent.cluster: [] for agent in self._agents}
        """By cluster: what agents reported and the log does not have yet."""
        self._sent: dict[str, list[Event]] = {}
        self._figures = Figures()
        self._plane = ControlPlane(log, self._seen)
        self._outbox = Outbox(self._agents)

    @property
    def plane(self) -> ControlPlane:
        """The control plane of the run."""
        return self._plane

    def _seen(self, position: int, event: Event) -> None:
        self._figures.see(self._plane.state, event)

    def _open_agents(self, world_file: Path) -> list[ClusterAgent]:
        open_agent = find_agents()

        def run_of(job: int) -> tuple[int | None, LeasePhase]:
            return self._runs[job]

        agents: list[ClusterAgent] = []
        for number, cluster in enumerate(self._world.clusters):
            config: Mapping[str, object] = cluster_config(cluster, world_file)
            try:
                agents.append(open_agent(cluster.spec(), config, runs=run_of, loads=self._loads.get))
            except ValueError as error:
                raise WorldFault(f"{_blamed(error, world_file, number)}: {error}") from error
        return agents

    def run(self, progress: Progress | None = None) -> Outcomes:
        """Run to the end. Raises what the log's ``append`` raises."""
        with rare_collection():
            self._live(progress)
            check_all(self._plane.state)
            summary = self._figures.summary(self._plane.state)
        return Outcomes(summary, self._plane.head.position, self._plane.head.digest, self._plane.state.now_ms)

    def _live(self, progress: Progress | None) -> None:
        self._configure()
        arrivals = iter(self._jobs)
        pending = next(arrivals, None)
        arrived = 0
        now_ms = 0
        last_ms = max([*(job.arrival_ms for job in self._jobs[-1:]), *(change.at_ms for change in self._changes), 0])
        end_ms = self._world.until_ms if self._world.until_ms is not None else last_ms + self._world.drain_ms
        while True:
            batch: list[TraceJob] = []
            while pending is not None and pending.arrival_ms <= now_ms:
                batch.append(pending)
                pending = next(arrivals, None)
            arrived += len(batch)
            self._live_through(now_ms, batch)
            if progress is not None:
                progress(arrived, len(self._jobs), now_ms)
            due_ms = self._next_ms(now_ms, pending)
            if due_ms is None or due_ms > end_ms:
                return
            now_ms = due_ms

    def _configure(self) -> None:
        events: list[tuple[Event, str]] = [(activation(self._bundle), OPERATOR)]
        events.extend((ClusterConfigured(spec=cluster.spec()), OPERATOR) for cluster in self._world.clusters)
        events.extend((QueueConfigured(spec=queue), OPERATOR) for queue in self._world.queues)
        events.extend((WarmPoolConfigured(spec=pool), OPERATOR) for pool in self._world.warm_pools)
        events.extend((BudgetConfigured(spec=budget), OPERATOR) for budget in self._world.budgets)
        if self._world.history is not None:
            events.append((HistoryConfigured(spec=self._world.history), OPERATOR))
        if self._typical:
            events.append((TypicalJobsConfigured(roles=self._typical), OPERATOR))
        self._plane.record(events, 0)

    def _live_through(self, now_ms: int, batch: list[TraceJob]) -> None:
        """Everything that happens at one instant."""
        inputs = self._take_reports(now_ms)
        while self._changes and self._changes[0].at_ms <= now_ms:
            change = self._changes.pop(0)
            inputs.append((change.event, change.author))
        first_job = self._plane.state.position + 1 + len(inputs)
        for position, job in enumerate(batch, start=first_job):
            phase = LeasePhase.FAILED if job.outcome is Outcome.FAILED else LeasePhase.FINISHED
            self._runs[position] = (job.runtime_ms, phase)
            if isinstance(job, ServiceJob) and job.load is not None:
                self._loads[position] = job.load
        inputs.extend((_submission(job), CLIENT) for job in batch)
        for _ in range(MAX_ROUNDS):
            recorded = self._plane.advance(now_ms, inputs)
            if not recorded:
                return
            self._deliver(recorded)
            inputs = []
            self._act(now_ms)

    def _take_reports(self, now_ms: int) -> list[tuple[Event, str]]:
        """What agents have seen since they were last asked, by cluster; from now on it is on its way into the log."""
        self._act(now_ms)
        self._sent = self._reports
        self._reports = {agent.cluster: [] for agent in self._agents}
        return [(event, cluster) for cluster, events in self._sent.items() for event in events]

    def _act(self, now_ms: int) -> None:
        """Let the agents do what they were told; what they report meanwhile is recorded at the next instant."""
        for agent in self._agents:
            self._reports[agent.cluster].extend(agent.step(now_ms))

    def _deliver(self, recorded: Recorded) -> None:
        for position, event in recorded:
            self._outbox.deliver(position, event)
        for agent in self._agents:
            agent.acknowledge(self._sent.get(agent.cluster, ()))
            agent.settle(self._plane.head.position)
        self._sent = {}

    def _next_ms(self, now_ms: int, pending: TraceJob | None) -> int | None:
        """The next instant on the grid at which something is due; ``None`` when nothing ever is."""
        if any(self._reports.values()):
            return (now_ms // self._world.tick_ms + 1) * self._world.tick_ms
        due = [wake for agent in self._agents if (wake := agent.next_wake_ms(now_ms)) is not None]
        if pending is not None:
            due.append(pending.arrival_ms)
        due.extend(change.at_ms for change in self._changes[:1])
        timer = self._plane.next_due_ms()
        if timer is not None and (due or self._is_money_at_stake()):
            due.append(timer)
        if not due:
            return None
        tick = self._world.tick_ms
        return max(-(-min(due) // tick), now_ms // tick + 1) * tick

    def _is_money_at_stake(self) -> bool:
        """Whether passing time alone can still change something: rent, or jobs that will give up or may yet burst."""
        state = self._plane.state
        return bool(state.requests or state.pending[0])


def _blamed(error: ValueError, world_file: Path, cluster: int) -> str:
    """The line of a cluster's settings that its adapter refuses."""
    cause = error.__cause__
    inside = cause.errors(include_url=False)[0]["loc"] if isinstance(cause, ValidationError) else ()
    return place_in(world_file, ("clusters", cluster, "config", *inside))


def _submission(job: TraceJob) -> JobSubmitted:
    return JobSubmitted(spec=job.spec, submitted_ms=job.arrival_ms)
