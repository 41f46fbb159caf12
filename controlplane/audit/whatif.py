"""The course that a history would have taken under another bundle: exact as long as nothing changes, simulated from
then.

Theory of operation. The log is read twice. The first time it is folded as it is: what it came to (a ledger), and what
it shows of its clusters. The second time a state of its own goes through the same inputs, and each recorded cycle is
decided again, at the recorded tick, under the candidate alone.

While every cycle decides what the log says, the two states are the same, so that everything the clusters reported is
what they would have reported: this part is exact. (Rules may make a cycle due that the log does not have, since they
look at the time: such cycles are run, at the instants on which the log's clock stands.) With the first decision that
is another one the worlds part. From there on submissions, cancellations, configuration and owned nodes are still as
recorded, each at the instant at which it was; what clusters would have reported of decisions that were never made is
simulated by :class:`~controlplane.audit.standin.StandIn`. Cycles come when they are due, by the same rule as in
production.

Policies that the log activates within the stretch are passed over: the candidate stands in for all of them. A job
keeps the number that the log gave it, though there may be fewer or more events before it: see ``_Course.submit``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from controlplane.audit.changes import Gist, gists_of, odd_ones
from controlplane.audit.folding import decoded, fold, with_cores
from controlplane.audit.ledger import Ledger
from controlplane.audit.observed import Observed, Runtime
from controlplane.audit.standin import StandIn
from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    Author,
    CapacityObserved,
    CycleDecided,
    Event,
    JobSubmitted,
    LeaseObserved,
    NodeObserved,
    PolicyActivated,
    PolicyShadowed,
    ServiceObserved,
    ShadowDecided,
    ShadowEnded,
    ShadowFailed,
    Ticked,
)
from controlplane.domain.ids import LeaseId, NodeId, job_of_lease
from controlplane.domain.quantities import MAX_MS
from controlplane.domain.version import CORE
from controlplane.eventlog.port import EventLog, Head, LogDamaged, Record
from controlplane.policy.rules import BundleRules
from controlplane.runtime.batch import rare_collection
from controlplane.scheduler.decide import Decision, decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.invariants import check_all, check_touched
from controlplane.scheduler.snapshot import restore, take
from controlplane.scheduler.state import State
from controlplane.scheduler.timers import needs_cycle, next_due_ms

Progress = Callable[[int, int, str], None]
"""(so much is done, of so much, what is being done)"""
STEP = 2_000
MAX_ROUNDS = 16
"""Cycles at one instant, as in a simulation: a cycle may make another due, but never without end."""
_OTHER_BUNDLES = frozenset({PolicyActivated.TYPE, PolicyShadowed.TYPE, ShadowEnded.TYPE, ShadowFailed.TYPE})
_BY_CLUSTERS = frozenset({LeaseObserved.TYPE, CapacityObserved.TYPE})


class NothingDecided(Exception):
    """The log decides nothing in the stretch that was asked for; one sentence."""


@dataclass(frozen=True, slots=True)
class Activation:
    """A policy that was active in the log, from a position on."""

    position: int
    name: str
    digest: str
    files: dict[str, str]


@dataclass(slots=True)
class Recorded:
    """What the log itself holds: the first reading."""

    head: Head
    start: int
    """The last position before the stretch: the next record is a tick."""
    state_at_start: bytes
    ledger: Ledger
    observed: Observed
    policies: list[Activation]
    """Those that were active in the stretch, in order."""
    cores: dict[str, None] = field(default_factory=dict)
    """Versions of the core that decided in the stretch."""


@dataclass(slots=True)
class Parting:
    """Where the worlds part: the first cycle that the candidate decides otherwise."""

    position: int
    """Of its tick; of the last record before it, for a cycle that the log does not have."""
    cycle: int
    at_ms: int
    is_extra: bool
    """Whether the log has no cycle at that instant."""
    recorded: list[tuple[int, Event, Gist]]
    """Decisions of the log that the candidate does not make, with their positions."""
    candidate: list[tuple[Event, Gist]]
    """Decisions of the candidate that are not in the log."""
    said: list[Gist]
    """Everything that the log decides in this cycle."""
    core: str
    """The version that decided the cycle."""
    state: bytes
    """As the cycle finds it."""


@dataclass(slots=True)
class Course:
    """What came of it."""

    ledger: Ledger
    parting: Parting | None
    exact_cycles: int
    """Cycles of the log that were decided again, all alike but for the last if the worlds parted there."""
    exact_decisions: int
    other_rules: int
    """Decisions that are the same although another line of rules made them, or other words tell about them."""
    runtimes: dict[int, Runtime]
    """Of the jobs that were simulated: where their run times come from."""


def read_log(log: EventLog, since: int, progress: Progress | None) -> Recorded:
    """The first reading. Raises :class:`NothingDecided` for a stretch without a cycle, and what
    :func:`~controlplane.domain.codec.decode` and the log's ``read`` raise."""
    with rare_collection():
        return _First(log.head(), log, since).read(log, progress)


def take_course(log: EventLog, recorded: Recorded, rules: BundleRules, progress: Progress | None) -> Course:
    """The second reading: the course that the stretch takes under other rules."""
    with rare_collection():
        return _Course(log, recorded, rules, progress).run()


# --- the first reading ------------------------------------------------------------------------------------------------


class _First:
    """Folds the log as it is."""

    def __init__(self, head: Head, log: EventLog, since: int) -> None:
        self._head = head
        self._since = since
        self._end_ms = next((record.recorded_at_ms for record in log.read(head.position - 1, head.position)), 0)
        self._state = State()
        self._observed = Observed()
        self._found: Recorded | None = None
        self._policy: Activation | None = None

    def read(self, log: EventLog, progress: Progress | None) -> Recorded:
        for record in log.read(0, self._head.position):
            self._take(record)
            if progress is not None and record.position % STEP == 0:
                progress(record.position, 2 * self._head.position, "reading what was decided")
        if self._found is None:
            raise NothingDecided(self._why_nothing())
        self._observed.close(self._end_ms)
        self._found.ledger.close(self._state)
        return self._found

    def _take(self, record: Record) -> None:
        event = decoded(record)
        if isinstance(event, Ticked) and self._found is None and record.position > self._since:
            self._begin(event)
        fold(self._state, record, event)
        self._observed.see(self._state, record.position, event, record.recorded_at_ms)
        if isinstance(event, PolicyActivated):
            self._policy = Activation(record.position, event.name, event.digest, event.files)
            if self._found is not None:
                self._found.policies.append(self._policy)
        if self._found is not None:
            self._found.ledger.see(self._state, event, record.recorded_at_ms)
            if isinstance(event, CycleDecided):
                self._found.cores[event.core] = None

    def _begin(self, tick: Ticked) -> None:
        ledger = Ledger(self._state, tick.now_ms, max(self._end_ms, tick.now_ms))
        policies = [self._policy] if self._policy is not None else []
        start = self._state.position
        self._found = Recorded(self._head, start, take(self._state), ledger, self._observed, policies)

    def _why_nothing(self) -> str:
        if self._head.position == 0:
            return "the log is empty: there is nothing to decide again"
        after = f" after position {self._since:,}" if self._since else ""
        return f"the log has no cycle{after}: there is nothing to decide again (it ends at {self._head.position:,})"


# --- the second reading -----------------------------------------------------------------------------------------------


class _Course:
    def __init__(self, log: EventLog, recorded: Recorded, rules: BundleRules, progress: Progress | None) -> None:
        self._log = log
        self._recorded = recorded
        self._rules = rules
        self._progress = progress
        self._state = restore(recorded.state_at_start)
        self._state.faults = {}  # what the rules of the log did wrong says nothing of these
        first = recorded.ledger
        self._ledger = Ledger(self._state, first.from_ms, first.end_ms)
        self._course = Course(self._ledger, None, 0, 0, 0, {})
        self._asked_again_ms = _asked_again_ms(self._state.reask_ms, self._state.services_ms)
        """When the log's own rules were to be asked again."""
        self._heard_ms = first.from_ms
        """When the last input was recorded."""
        self._now_ms = first.from_ms
        self._core = CORE
        """The version by which the log decides: what differs is to be the rules' doing."""

    def run(self) -> Course:
        records = self._log.read(self._recorded.start, self._recorded.head.position)
        left = self._follow(records)
        if left is not None:
            self._leave(left)
        self._ledger.close(self._state)
        check_all(self._state)
        return self._course

    def _tell(self, record: Record, what: str) -> None:
        if self._progress is not None and record.position % STEP == 0:
            head = self._recorded.head.position
            self._progress(head + record.position, 2 * head, what)

    # --- as recorded -------------------------------------------------------------------------------------------------

    def _follow(self, records: Iterator[Record]) -> Iterator[Record] | None:
        """Go along with the log as long as it decides alike; the records behind the first cycle that does not."""
        tick: Record | None = None
        decided: list[Record] = []
        cycle: tuple[Decision, ...] = ()
        ahead = with_cores(records)
        for record, core in ahead:
            self._tell(record, "deciding again")
            if record.type == ShadowDecided.TYPE:
                continue  # what a bundle beside the active one would have decided
            is_decided = record.author == Author.DECIDED.value
            if is_decided != (tick is not None):
                what = "is no decision, in the middle of a cycle" if tick is not None else "decided outside of a cycle"
                raise LogDamaged(record.position, f"{record.type}: {what}")
            if tick is not None:
                decided.append(record)
                if record.type == CycleDecided.TYPE:
                    if not self._agree(tick, decided, cycle):
                        return (record for record, _ in ahead)
                    tick, decided = None, []
            elif self._is_early(record.recorded_at_ms, record.position - 1):
                return chain((record,), (following for following, _ in ahead))
            elif record.type == Ticked.TYPE:
                self._core = core
                tick, cycle = record, self._tick(record.recorded_at_ms)
            else:
                self._take_input(record)
        if tick is not None:
            raise LogDamaged(self._recorded.head.position, "the log ends in the middle of a cycle")
        return iter(()) if self._is_early(self._ledger.end_ms + 1, self._recorded.head.position) else None

    def _tick(self, now_ms: int) -> tuple[Decision, ...]:
        self._now_ms = max(now_ms, self._state.now_ms)
        self._fold(Ticked(now_ms=self._now_ms))
        return decide(self._state, self._rules, core=self._core).decisions

    def _take_input(self, record: Record) -> None:
        if record.type in _OTHER_BUNDLES:
            return
        self._heard_ms = record.recorded_at_ms
        event = decoded(record)
        if isinstance(event, JobSubmitted):
            self._submit(record.position, event)
        else:
            self._fold(event, record.recorded_at_ms)

    def _agree(self, tick: Record, records: list[Record], cycle: tuple[Decision, ...]) -> bool:
        """Whether a recorded cycle and the one that was decided again say the same; then it is folded."""
        course = self._course
        course.exact_cycles += 1
        last = decoded(records[-1])
        assert isinstance(last, CycleDecided)
        mine = [decision.event for decision in cycle[:-1]]
        if [record.payload for record in records[:-1]] != [decision.payload for decision in cycle[:-1]]:
            theirs = [decoded(record) for record in records[:-1]]
            said, says = gists_of(theirs, self._state), gists_of(mine, self._state)
            odd, mine_odd = odd_ones(said, says)
            if odd or mine_odd:
                recorded = [(records[at].position, theirs[at], said[at]) for at in odd]
                candidate = [(mine[at], says[at]) for at in mine_odd]
                where = (tick.position, last.cycle, self._now_ms, False)
                self._part(Parting(*where, recorded, candidate, said, self._core, take(self._state)), cycle)
                return False
            pairs = zip(records, cycle[:-1], strict=False)
            course.other_rules += sum(record.payload != decision.payload for record, decision in pairs)
        course.exact_decisions += len(mine)
        self._record(cycle)
        self._asked_again_ms = _asked_again_ms(last.reask_ms, last.services_ms)
        return True

    def _is_early(self, until_ms: int, position: int) -> bool:
        """Run the cycles that are due by these rules before the log goes on behind a position; whether one decides
        anything."""
        while True:
            due_ms = self._early_ms()
            if due_ms is None or due_ms >= until_ms:
                return False
            number = self._state.cycle
            cycle = self._tick(due_ms)
            if len(cycle) > 1:
                mine = [decision.event for decision in cycle[:-1]]
                candidate = list(zip(mine, gists_of(mine, self._state), strict=True))
                where = (position, number + 1, due_ms, True)
                self._part(Parting(*where, [], candidate, [], self._core, take(self._state)), cycle)
                return True
            self._record(cycle)
            self._state.cycle = number  # requests are named by their cycle, and must be as in the log

    def _early_ms(self) -> int | None:
        """When a cycle is due that was not by the log's own rules, on the grid of the log's clock."""
        state = self._state
        mine = _asked_again_ms(state.reask_ms if state.pending[0] else None, state.services_ms)
        pairs = zip(mine, self._asked_again_ms, strict=True)
        due = [self._on_grid(at_ms) for at_ms, known_ms in pairs if at_ms < known_ms]
        if state.fresh_signals and mine[1] < MAX_MS == self._asked_again_ms[1]:  # only these rules look at services
            due.append(self._heard_ms)
        return max(min(due), self._on_grid(self._now_ms + 1)) if due else None

    def _part(self, parting: Parting, cycle: tuple[Decision, ...]) -> None:
        self._course.parting = parting
        self._standin = StandIn(self._state, self._recorded.observed, parting.position)
        self._record(cycle)

    # --- simulated ---------------------------------------------------------------------------------------------------

    def _leave(self, records: Iterator[Record]) -> None:
        """From the first other decision to the end of the log."""
        self._decide()
        end_ms = self._ledger.end_ms
        pending = next(records, None)
        while True:
            due_ms = self._due_ms(pending)
            if due_ms is None or due_ms > end_ms:
                break
            self._now_ms = due_ms
            for event in self._standin.due(due_ms):
                self._fold(event, due_ms)
            while pending is not None and pending.recorded_at_ms <= due_ms:
                self._repeat(pending)
                self._tell(pending, "simulating what follows")
                pending = next(records, None)
            self._decide()
        self._course.runtimes = self._standin.runtimes

    def _due_ms(self, pending: Record | None) -> int | None:
        """The next instant at which something is due: an input when it was recorded, all else on the log's grid."""
        later = [at_ms for at_ms in (self._standin.next_ms(), next_due_ms(self._state)) if at_ms is not None]
        due_ms = max(self._on_grid(min(later)), self._on_grid(self._now_ms + 1)) if later else None
        if pending is None:
            return due_ms
        input_ms = max(pending.recorded_at_ms, self._now_ms)
        return input_ms if due_ms is None else min(due_ms, input_ms)

    def _on_grid(self, at_ms: int) -> int:
        grid_ms = self._recorded.observed.grid_ms
        return -(-at_ms // grid_ms) * grid_ms

    def _repeat(self, record: Record) -> None:
        """An input of the log, if it is one that does not come of what was decided."""
        if record.author in (Author.DECIDED.value, Author.TICKED.value) or record.type in _BY_CLUSTERS:
            return
        if record.type == ServiceObserved.TYPE:
            self._serve(record)
            return
        if record.type != NodeObserved.TYPE:
            self._take_input(record)
            return
        event = decoded(record)
        assert isinstance(event, NodeObserved)
        if event.request is not None:
            return
        if event.state is NodeState.LOST:
            for lost in self._standin.lose(NodeId(event.cluster, event.node), self._now_ms):
                self._fold(lost, self._now_ms)
        self._fold(event, self._now_ms)

    def _serve(self, record: Record) -> None:
        """What the log observed of a service is observed of the lease that the service has here."""
        event = decoded(record)
        assert isinstance(event, ServiceObserved)
        job = self._state.jobs.get(job_of_lease(LeaseId(event.lease)))
        lease = self._state.leases.get(job.lease or "") if job is not None else None
        if lease is not None:
            self._fold(event.model_copy(update={"lease": lease.id, "cluster": lease.cluster}), record.recorded_at_ms)

    def _decide(self) -> None:
        for _ in range(MAX_ROUNDS):
            due_ms = next_due_ms(self._state)
            if not needs_cycle(self._state) and (due_ms is None or due_ms > self._now_ms):
                return
            self._record(self._tick(self._now_ms))

    # --- folding -----------------------------------------------------------------------------------------------------

    def _record(self, cycle: tuple[Decision, ...]) -> None:
        standin = self._standin if self._course.parting is not None else None
        for decision in cycle:
            self._fold(decision.event)
            if standin is not None:
                standin.tell(decision.event, self._now_ms)
        check_touched(self._state, [decision.event for decision in cycle])

    def _fold(self, event: Event, at_ms: int | None = None) -> None:
        apply(self._state, self._state.position + 1, event)
        self._ledger.see(self._state, event, self._now_ms if at_ms is None else at_ms)

    def _submit(self, number: int, event: JobSubmitted) -> None:
        """A job's number is its position in the log, and other jobs name it by that. The positions of this course,
        which order leases and tell cycles apart, go on by themselves."""
        own = self._state.position
        self._state.position = number - 1
        apply(self._state, number, event)
        self._state.position = own + 1
        self._ledger.see(self._state, event, self._now_ms)


def _asked_again_ms(reask_ms: int | None, services_ms: int | None) -> tuple[int, int]:
    """When rules are to be asked again: about who waits, and about services. What never comes is at the end of time."""
    return (MAX_MS if reask_ms is None else reask_ms, MAX_MS if services_ms is None else services_ms)
