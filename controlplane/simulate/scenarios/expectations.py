"""What a story may expect at a moment, and how a failure is told: what was expected, what came, why, and the story so
far, in sentences."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from controlplane.domain.clusters import NodeState
from controlplane.domain.events import (
    CapacityObserved,
    CapacityReleased,
    CapacityRequested,
    CycleDecided,
    Event,
    JobEnded,
    JobRefused,
    JobsWaiting,
    LeaseGranted,
    LeaseGrown,
    LeaseObserved,
    LeasePhase,
    LeaseRevoked,
    PromiseReleased,
    ReservationMade,
    ReservationReleased,
    RoomPromised,
    ServiceScaled,
)
from controlplane.domain.ids import NodeId
from controlplane.domain.quantities import share_ppb
from controlplane.domain.reasons import Reason
from controlplane.scheduler.state import TAKEN, Job, RequestPhase
from controlplane.simulate.scenarios.given import as_list, as_map
from controlplane.simulate.scenarios.narration import Narration, job_of, waits
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import EXPECTED, Expected
from controlplane.simulate.scenarios.words import BadStory, amount, clock, dollars, exact, micro_usd, milliseconds, said

E = TypeVar("E", bound=Event)
SENTENCES = 60
"""So much of the story so far is told, the latest."""
NAMED = 5
"""Of so many jobs that are not where they were expected it is told why."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An expectation that was not met."""

    expectation: Expected
    expected: str
    got: str
    why: tuple[str, ...]
    """What was last said of the jobs that are not where they were expected."""
    told: tuple[str, ...]
    """What happened, the latest :data:`SENTENCES` of it."""

    @property
    def moment(self) -> str:
        """Such as ``at 1m, running``."""
        return f"at {clock(self.expectation.at_ms)}, {self.expectation.word}"

    def lines(self) -> list[str]:
        """Expected, got, because, why, and what happened."""
        because = [f"because:  {self.expectation.because}"] if self.expectation.because else []
        why = [f"{'why:' if number == 0 else '':8}  {line}" for number, line in enumerate(self.why)]
        happened = ["what happened:", *(f"  {line}" for line in self.told)]
        return [f"expected: {self.expected}", f"got:      {self.got}", *because, *why, *happened]


class StoryWentOtherwise(AssertionError):
    """An expectation was not met; the text is the story."""

    def __init__(self, title: str, difference: Difference) -> None:
        self.difference = difference
        told = "".join(f"\n  {line}" for line in difference.lines())
        super().__init__(f"{title}\n{difference.moment}:{told}")


class Expectations:
    """Checks the lines of a ``then`` against what was played."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._words: dict[str, Callable[[object], tuple[object, object]]] = {
            word: getattr(self, f"_{word}") for word in EXPECTED
        }

    def check(self, expectation: Expected) -> None:
        """Raises :class:`StoryWentOtherwise`, and :class:`BadStory` for what cannot be compared."""
        expected, found = self._words[expectation.word](expectation.given)
        if expected != found:
            narration = Narration(self._stage)
            told = tuple(f"{clock(at_ms):>8}  {text}" for at_ms, text in narration.told()[-SENTENCES:])
            why = dict.fromkeys(filter(None, (self._why(name, narration) for name in self._astray(expected, found))))
            difference = Difference(expectation, _shown(expected), _shown(found), tuple(why), told)
            story = self._stage.story
            numbered = f" ({story.scenario})" if story.scenario else ""
            raise StoryWentOtherwise(f"{story.file}{numbered}: {story.title}", difference)

    def _why(self, name: str, narration: Narration) -> str | None:
        """Why a job waits, else what was last said of it."""
        waiting = [job for job in self._jobs() if job.lease is None]
        record = self._records(waiting).get(self._stage.jobs[name])
        return waits(name, record) if record is not None else narration.last_of(name)

    def _astray(self, expected: object, found: object) -> list[str]:
        """Jobs of which one thing was expected and another came, those that wait first."""
        names: list[object] = []
        if isinstance(expected, dict) and isinstance(found, dict):
            names = [key for key in {**expected, **found} if expected.get(key) != found.get(key)]
        elif isinstance(expected, list) and isinstance(found, list):
            names = [name for name in [*expected, *found] if name not in expected or name not in found]
        known = [job for name in names for job in self._stage.jobs if name in (job, _group(job))]
        waiting = {job.id for job in self._jobs() if job.lease is None}
        return sorted(known, key=lambda name: self._stage.jobs[name] not in waiting)[:NAMED]

    # --- jobs --------------------------------------------------------------------------------------------------------

    def _named(self, ids: Iterable[int], given: object) -> tuple[object, object]:
        """Jobs by name; where the story gives counts (``{fill: 3}``), by the name before the number."""
        names = [self._stage.names[id_] for id_ in ids]
        if isinstance(given, dict):
            counts: dict[str, int] = {}
            for name in names:
                group = name if name in given else _group(name)
                counts[group] = counts.get(group, 0) + 1
            return dict(sorted(given.items())), dict(sorted(counts.items()))
        return sorted(str(name) for name in as_list(given)), sorted(names)

    def _running(self, given: object) -> tuple[object, object]:
        return self._named((job.id for job in self._jobs() if job.lease is not None), given)

    def _jobs(self) -> list[Job]:
        return list(self._stage.plane.state.jobs.values())

    def _waiting(self, given: object) -> tuple[object, object]:
        """Name (or the name before the numbers) -> reason, or {reason, short}; a reason for each job that waits."""
        waiting = [job for job in self._jobs() if job.lease is None]
        records = self._records(waiting)
        counts = Counter(_group(self._stage.names[job.id]) for job in waiting)
        expected: dict[str, object] = {}
        found: dict[str, object] = {}
        wanted = as_map(given)
        for job in waiting:
            name = self._stage.names[job.id]
            key = name if name in wanted else _group(name)
            text = wanted.get(key)
            record = records[job.id]
            reason: object = Reason(record.reason).slug if record is not None else "not decided yet"
            if job.id in self._stage.plane.state.promises:
                reason = Reason.ROOM_PROMISED.slug
            if isinstance(text, dict):
                reason = {"reason": reason}
                if "short" in text and record is not None:
                    reason["short"] = {res: said(res, units) for res, units in record.short.items()}
                if "count" in text:
                    reason["count"] = counts[key]
            found[key] = reason
        for key, text in wanted.items():
            expected[key] = _with_shorts(text)
        return expected, found

    def _records(self, waiting: list[Job]) -> dict[int, JobsWaiting | None]:
        """Why jobs wait, as recorded: with the first of their group that has the reason last recorded before them."""
        latest = {event.head: event for event in self._events(JobsWaiting)}
        of_class: dict[int, JobsWaiting | None] = {}
        records: dict[int, JobsWaiting | None] = {}
        for job in sorted(waiting, key=lambda job: job.id):
            if job.recorded_reason:
                of_class[job.cls.index] = latest.get(job.id)
            records[job.id] = of_class.get(job.cls.index)
        return records

    def _placed(self, given: object) -> tuple[object, object]:
        """Job -> the nodes of its members, in order of role and number; one name for one node. A node may be called by
        its name or by ``cluster/name``."""
        expected = {name: [str(node) for node in as_list(nodes)] for name, nodes in as_map(given).items()}
        found: dict[str, object] = {}
        for name, called in expected.items():
            job = self._stage.plane.state.jobs.get(self._stage.job(name))
            lease = self._stage.plane.state.leases.get(job.lease or "") if job is not None else None
            seats = lease.seats if lease is not None else ()
            found[name] = [_called(seat.node, called) for seat in seats] or "nowhere"
        return expected, found

    def _clusters(self, given: object) -> tuple[object, object]:
        expected = as_map(given)
        state = self._stage.plane.state
        found: dict[str, object] = {}
        for name in expected:
            job = state.jobs.get(self._stage.job(name))
            lease = state.leases.get(job.lease or "") if job is not None else None
            found[name] = lease.cluster if lease is not None else "nowhere"
        return expected, found

    def _members(self, given: object) -> tuple[object, object]:
        """Job -> how many members it has, those who are told to leave not counted."""
        expected = as_map(given)
        state = self._stage.plane.state
        found: dict[str, object] = {}
        for name in expected:
            job = state.jobs.get(self._stage.job(name))
            lease = state.leases.get(job.lease or "") if job is not None else None
            found[name] = len(lease.staying()) if lease is not None else 0
        return expected, found

    def _finished(self, given: object) -> tuple[object, object]:
        done = (e for e in self._events(LeaseObserved) if e.phase is LeasePhase.FINISHED)
        known = dict.fromkeys(int(event.lease[1 : event.lease.index(".")]) for event in done)
        still = self._stage.plane.state.jobs
        return self._named((id_ for id_ in known if id_ not in still), given)

    def _ended(self, given: object) -> tuple[object, object]:
        """Name -> outcome, or {outcome, reason} for a job that gave up waiting."""
        expected = as_map(given)
        found: dict[str, object] = {}
        for event in self._events(JobEnded):
            name = self._stage.names[event.job]
            outcome: object = event.outcome
            if isinstance(expected.get(name), dict):
                reason = Reason(event.reason).slug if event.reason is not None else None
                outcome = {"outcome": event.outcome, "reason": reason}
            key = name if name in expected else _group(name)
            found[key] = outcome
        return expected, found

    def _refused(self, given: object) -> tuple[object, object]:
        """Name -> reason, or {reason, says: part of the sentence}."""
        expected = as_map(given)
        found: dict[str, object] = {}
        for event in self._events(JobRefused):
            name = self._stage.names[event.job]
            text = expected.get(name)
            found[name] = Reason(event.reason).slug
            if isinstance(text, dict):
                says = str(text.get("says", ""))
                found[name] = {
                    "reason": Reason(event.reason).slug,
                    "says": says if says in event.detail else event.detail,
                }
        return expected, found

    def _evicted(self, given: object) -> tuple[object, object]:
        """Every revocation so far: names, or name -> cause."""
        causes = {self._stage.names[job_of(event.lease)]: event.cause for event in self._events(LeaseRevoked)}
        if isinstance(given, dict):
            return given, causes
        return sorted(str(name) for name in as_list(given)), sorted(causes)

    def _attempts(self, given: object) -> tuple[object, object]:
        expected = as_map(given)
        granted = [event.job for event in self._events(LeaseGranted)]
        return expected, {name: granted.count(self._stage.job(name)) for name in expected}

    def _order(self, given: object) -> tuple[object, object]:
        """The order in which jobs were placed, from the beginning; ``a-1`` and ``a-2`` may both be called ``a``."""
        expected = [str(name) for name in as_list(given)]
        placed = [self._stage.names[event.job] for event in self._events(LeaseGranted)][: len(expected)]
        return expected, [name if name in expected else _group(name) for name in placed]

    def _events(self, kind: type[E]) -> list[E]:
        return [event for _, _, event in self._stage.told if isinstance(event, kind)]

    # --- amounts -----------------------------------------------------------------------------------------------------

    def _uses(self, given: object) -> tuple[object, object]:
        """Queue -> resource -> amount; ``all`` is everybody."""
        expected: dict[str, object] = {}
        found: dict[str, object] = {}
        for queue, by in as_map(given).items():
            used = self._stage.plane.state.used[self._index(queue)]
            wanted = as_map(by)
            expected[queue] = {res: said(res, amount(res, text)) for res, text in wanted.items()}
            found[queue] = {res: said(res, used.get(res, 0)) for res in wanted}
        return expected, found

    def _index(self, queue: str) -> int:
        tree = self._stage.plane.state.tree
        if queue == "all":
            return tree.root.index
        if queue not in tree.by_name:
            raise BadStory(f"there is no queue {queue}; the queues are {', '.join(sorted(tree.by_name))}")
        return tree.by_name[queue].index

    def _shares(self, given: object) -> tuple[object, object]:
        """Queue -> dominant share, as a fraction; compared after rounding up to parts per billion, as rules see it."""
        state = self._stage.plane.state
        expected: dict[str, object] = {}
        found: dict[str, object] = {}
        for queue, text in as_map(given).items():
            share = exact(text)
            expected[queue] = share_ppb(share.numerator, share.denominator)
            used = state.used[self._index(queue)]
            parts = [share_ppb(units, state.capacity.get(res, 0)) for res, units in used.items()]
            found[queue] = max(parts, default=0)
        return expected, found

    def _free_gpus(self, given: object) -> tuple[object, object]:
        state = self._stage.plane.state
        nodes = (node for node in state.nodes.values() if node.state is not NodeState.LOST)
        return str(exact(given)), said("gpu", sum(sum(state.kinds.kinds[node.kind].gpu_free) for node in nodes))

    # --- rent and money ----------------------------------------------------------------------------------------------

    def _rented(self, given: object) -> tuple[object, object]:
        """``cluster/offer`` -> nodes that are asked for or there, and not being given back."""
        found: dict[str, int] = {}
        for request in self._stage.plane.state.requests.values():
            if request.phase is not RequestPhase.RELEASING:
                key = f"{request.cluster}/{request.offer}"
                found[key] = found.get(key, 0) + request.nodes
        return as_map(given), found

    def _requests(self, given: object) -> tuple[object, object]:
        """How often capacity was asked for so far, for anybody or by job."""
        made = [event.for_job for event in self._events(CapacityRequested)]
        if isinstance(given, dict):
            return given, {name: made.count(self._stage.job(name)) for name in given}
        return given, len(made)

    def _released(self, given: object) -> tuple[object, object]:
        """Why capacity was given back, in order."""
        return as_list(given), [event.cause for event in self._events(CapacityReleased)]

    def _deadlines(self, given: object) -> tuple[object, object]:
        """Job -> when the nodes that were last asked for on its behalf are ended, whatever else happens."""
        expected = {name: clock(milliseconds(text)) for name, text in as_map(given).items()}
        found: dict[str, object] = dict.fromkeys(expected, "nothing was asked for")
        for event in self._events(CapacityRequested):
            name = self._stage.names[event.for_job]
            if name in expected:
                found[name] = clock(event.deadline_ms)
        return expected, found

    def _left(self, given: object) -> tuple[object, object]:
        """Budget -> dollars that may still be promised in this window."""
        state = self._stage.plane.state
        expected = {name: dollars(micro_usd(text)) for name, text in as_map(given).items()}
        unknown = [name for name in expected if name not in state.budgets]
        if unknown:
            raise BadStory(
                f"there is no budget {unknown[0]}; the budgets are {', '.join(sorted(state.budgets)) or 'none'}"
            )
        return expected, {name: dollars(state.budgets[name].left(self._stage.now_ms)) for name in expected}

    def _charged(self, given: object) -> tuple[object, object]:
        """Dollars that providers have charged in all."""
        charged = sum(event.charged_micro_usd for event in self._events(CapacityObserved))
        return dollars(micro_usd(given)), dollars(charged)

    # --- why ---------------------------------------------------------------------------------------------------------

    def _tally(self, given: object) -> tuple[object, object]:
        """Waiting job -> for what how many nodes were refused, as far as the story names it."""
        expected = as_map(given)
        found: dict[str, object] = {}
        for name, wanted in expected.items():
            record = self._records([one for one in self._jobs() if one.lease is None]).get(self._stage.job(name))
            counts = record.tally.model_dump() if record is not None and record.tally is not None else {}
            found[name] = {cause: counts.get(cause) for cause in as_map(wanted)}
        return expected, found

    def _rule(self, given: object) -> tuple[object, object]:
        """Job -> the rule behind what was last decided about it, as ``file`` or ``file:line``."""
        expected = {name: str(text) for name, text in as_map(given).items()}
        found: dict[str, object] = {}
        for name, text in expected.items():
            rules = [getattr(event, "rule", None) for event in self._about(self._stage.job(name))]
            last = next((rule for rule in reversed(rules) if rule is not None), "none")
            found[name] = text if last == text or last.split(":")[0] == text else last
        return expected, found

    def _about(self, id_: int) -> list[Event]:
        about = ("job", "for_job", "head")
        return [event for _, _, event in self._stage.told if any(getattr(event, key, None) == id_ for key in about)]

    def _offers(self, given: object) -> tuple[object, object]:
        """Job -> refused offer -> part of the sentence that says why."""
        expected: dict[str, object] = {}
        found: dict[str, object] = {}
        for name, wanted in as_map(given).items():
            made = [e for e in self._events(CapacityRequested) if e.for_job == self._stage.job(name)]
            why = made[-1].refused_offers if made else {}
            expected[name] = as_map(wanted)
            found[name] = {
                offer: text if str(text) in why.get(offer, "") else why.get(offer, "chosen, or never asked")
                for offer, text in as_map(wanted).items()
            }
        return expected, found

    def _faults(self, given: object) -> tuple[object, object]:
        """Parts of the sentences in which rules that erred were reported, in order."""
        expected = [str(text) for text in as_list(given)]
        told = [fault for event in self._events(CycleDecided) for fault in event.faults]
        if len(told) != len(expected):
            return expected, told
        return expected, [text if text in fault else fault for text, fault in zip(expected, told, strict=True)]

    def _reserved(self, given: object) -> tuple[object, object]:
        """Job -> {start, nodes} of the reservation that it holds."""
        expected = as_map(given)
        held: dict[int, ReservationMade] = {}
        for _, _, event in self._stage.told:
            if isinstance(event, ReservationMade):
                held[event.job] = event
            elif isinstance(event, ReservationReleased | LeaseGranted | JobEnded):
                held.pop(event.job, None)
        found: dict[str, object] = {}
        for id_, made in held.items():
            name = self._stage.names[id_]
            start = clock(made.start_ms) if made.start_ms is not None else None
            wanted = expected.get(name)
            called = [str(node) for node in as_list(wanted.get("nodes"))] if isinstance(wanted, dict) else []
            nodes = [_called(NodeId(made.cluster, node), called) for node in made.nodes]
            known = {"start": start, "nodes": nodes}
            keys = as_map(wanted, "reserved", tuple(known)) if isinstance(wanted, dict) else {}
            found[name] = {key: known[key] for key in keys} if keys else wanted
        return expected, found

    def _promised(self, given: object) -> tuple[object, object]:
        """Job -> jobs whose leases must end before it has its promised room."""
        promises: dict[str, object] = {}
        for _, _, event in self._stage.told:
            if isinstance(event, RoomPromised):
                victims = [self._stage.names[job_of(lease)] for lease in event.victims]
                promises[self._stage.names[event.job]] = sorted(victims)
            elif isinstance(event, PromiseReleased | LeaseGranted):
                promises.pop(self._stage.names[event.job], None)
            elif isinstance(event, LeaseGrown) and event.cause == TAKEN:
                promises.pop(self._stage.names[job_of(event.lease)], None)
        return {name: sorted(as_list(jobs), key=str) for name, jobs in as_map(given).items()}, promises

    # --- services ----------------------------------------------------------------------------------------------------

    def _wanted(self, given: object) -> tuple[object, object]:
        """Service -> how many replicas it is to have."""
        expected = as_map(given)
        wanted = {lease.job.id: lease.service for lease in self._stage.plane.state.services.values()}
        served = {name: wanted.get(self._stage.job(name)) for name in expected}
        return expected, {name: one.wanted if one is not None else "none" for name, one in served.items()}

    def _lacks(self, given: object) -> tuple[object, object]:
        """Service that has fewer replicas than it is to have -> why, as last recorded."""
        found: dict[str, object] = {}
        for lease in self._stage.plane.state.services.values():
            if lease.service is not None and len(lease.staying()) < lease.service.wanted:
                reason = lease.service.recorded_reason
                found[self._stage.names[lease.job.id]] = Reason(reason).slug if reason else "not said"
        return as_map(given), found

    def _scaled(self, given: object) -> tuple[object, object]:
        """Service -> how often it was to have another number of replicas."""
        changed = [event.job for event in self._events(ServiceScaled)]
        return given, {name: changed.count(self._stage.job(name)) for name in as_map(given)}

    def _warm(self, given: object) -> tuple[object, object]:
        """Warm pool -> how many blocks it holds."""
        pools = self._stage.plane.state.pools
        return given, {name: len(pool.blocks) for name, pool in pools.items()}


def _called(node: NodeId, known: Sequence[str]) -> str:
    """As it is called there, if it is."""
    return str(node) if str(node) in known else node.name


def _group(name: str) -> str:
    return re.sub(r"-\d+$", "", name)


def _with_shorts(text: object) -> object:
    if not isinstance(text, dict) or "short" not in text:
        return text
    return {**text, "short": {res: said(res, amount(res, units)) for res, units in as_map(text["short"]).items()}}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_shown(one)}" for key, one in value.items()) or "nothing"
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "nobody"
    return str(value)
