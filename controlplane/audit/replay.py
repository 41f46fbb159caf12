"""Replay: the inputs of a log are folded again, every cycle is decided again, and what comes out is compared.

What a successful verification proves: each decision in the log is what this core, under the policy that the log itself
carries, decides from the events before it, byte for byte; nothing was decided outside a cycle; no record was changed,
lost or moved; and each snapshot that the log keeps is the state that it folds to there. What it does not prove: that
the inputs are true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from controlplane.audit.canonical import NOT_CANONICAL, canonical
from controlplane.audit.figures import Figures
from controlplane.audit.folding import CANNOT_BE, decide_again, decoded, fold, with_cores
from controlplane.audit.snapshots import KeptSnapshots
from controlplane.domain.codec import MalformedEvent, decode
from controlplane.domain.events import (
    Author,
    CycleDecided,
    Event,
    PolicyActivated,
    PolicyShadowed,
    ShadowDecided,
    ShadowFailed,
    Ticked,
)
from controlplane.domain.version import KNOWN_CORES
from controlplane.eventlog.port import EMPTY, Entry, EventLog, LogDamaged, Record
from controlplane.eventlog.verify import verify_chain
from controlplane.policy.bundle import digest_of
from controlplane.policy.second_opinion import SecondOpinion
from controlplane.runtime.batch import rare_collection
from controlplane.runtime.entries import SCHEDULER, entry_of
from controlplane.runtime.rulebook import Rulebook
from controlplane.runtime.shadow import STEPS, Cycles
from controlplane.scheduler.decide import Decision
from controlplane.scheduler.invariants import check_all
from controlplane.scheduler.state import State

Progress = Callable[[int, int], None]
"""(records done, records in all)."""
STEP = 2_000
SHADOW_MARGIN = 100
"""So many times as many steps as live may a shadow's cycle take here: a plane that was opened anew remembers less than
a replay, but one that hears a second opinion evaluates what a plane need not."""
_SHOWN = 400
"""So many characters of a payload are shown."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place at which the log is not what it should be."""

    position: int
    what: str
    expected: str = ""
    got: str = ""

    def as_dict(self) -> dict[str, object]:
        """JSON-ready."""
        return {"position": self.position, "what": self.what, "expected": self.expected, "got": self.got}


@dataclass(slots=True)
class ReplayReport:
    """What a replay found. ``position`` and ``digest`` are of the last record that was replayed soundly, or up to which
    the chain holds if it breaks: then nothing is decided again."""

    position: int = 0
    digest: str = EMPTY.digest
    events: int = 0
    decisions: int = 0
    cycles: int = 0
    virtual_ms: int = 0
    divergence: Divergence | None = None
    figures: dict[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether everything agreed."""
        return self.divergence is None

    def as_dict(self) -> dict[str, object]:
        """JSON-ready; the figures' own keys are at the top."""
        own: dict[str, object] = {
            "ok": self.ok,
            "position": self.position,
            "digest": self.digest,
            "events": self.events,
            "decisions": self.decisions,
            "cycles": self.cycles,
            "virtual_s": self.virtual_ms / 1_000,
            "divergence": self.divergence.as_dict() if self.divergence is not None else None,
        }
        return {**self.figures, **own}


class _Diverged(Exception):
    def __init__(self, divergence: Divergence) -> None:
        super().__init__(divergence.what)
        self.divergence = divergence


def replay(
    log: EventLog,
    *,
    verify: bool = False,
    until: int | None = None,
    progress: Progress | None = None,
    opinion: SecondOpinion | None = None,
) -> ReplayReport:
    """Fold the log up to ``until`` (its end by default); with ``verify`` check the chain, re-decide every cycle, and
    compare the snapshots up to there.
    ``opinion`` hears every answer of the rules while they are asked again, and says afterwards what came of it.

    Stops at the first divergence and names it. Raises :class:`~controlplane.domain.codec.UnknownEvent` for a log of a
    newer version, and what the log's ``read`` raises when it cannot be reached.
    """
    with rare_collection():
        return _replayed(log, _Replay(verify, opinion), verify, until, progress)


def _replayed(
    log: EventLog, replaying: _Replay, verify: bool, until: int | None, progress: Progress | None
) -> ReplayReport:
    chain = verify_chain(log) if verify else None
    if chain is not None and chain.damage is not None:
        replaying.report.divergence = Divergence(chain.damage.position, f"{chain.damage.kind}: {chain.damage.what}")
        replaying.report.position, replaying.report.digest = chain.head
        return replaying.close()
    if verify:
        replaying.snapshots = KeptSnapshots(log)
    total = log.head().position if until is None else min(until, log.head().position)
    try:
        for record, core in with_cores(log.read()):
            if record.position > total:
                break
            replaying.take(record, core)
            if progress is not None and record.position % STEP == 0:
                progress(record.position, total)
        replaying.finish(total, is_whole=until is None)
    except _Diverged as diverged:
        replaying.report.divergence = diverged.divergence
    except LogDamaged as damage:
        replaying.report.divergence = Divergence(damage.position, damage.what)
    return replaying.close()


@contextmanager
def blamed(log: EventLog) -> Iterator[None]:
    """For what reads a log and goes on from there: if the core is given what cannot be, and the log does not verify, it
    is the log's doing, and :class:`LogDamaged` says where. Of a log that verifies it is a bug, and stays one."""
    try:
        yield
    except CANNOT_BE as error:
        found = replay(log, verify=True).divergence
        if found is None:
            raise
        raise LogDamaged(found.position, found.what) from error


class _Replay:
    def __init__(self, verify: bool, opinion: SecondOpinion | None) -> None:
        self.report = ReplayReport()
        self.snapshots: KeptSnapshots | None = None
        """Those to be compared on the way."""
        self._verify = verify
        self._state = State()
        self._figures = Figures()
        self._rulebook = Rulebook(opinion)
        self._cycles = Cycles(self._rulebook, STEPS * SHADOW_MARGIN)
        self._expected: list[Decision] = []
        """What the last tick's cycle decides and the log has not shown yet, last first."""
        self._tick = 0
        """The position of the last tick."""
        self._core = KNOWN_CORES[0]
        """The version that decided the last cycle."""
        self._failure: ShadowFailed | None = None
        """Of the last cycle's shadow, here."""

    def take(self, record: Record, core: str) -> None:
        """One more record of the log; of a tick, with the version of the core that decided its cycle."""
        event = self._event(record)
        if self._verify and record.author != Author.DECIDED.value:
            self._check_input(record, event)
        fold(self._state, record, event)
        self._figures.see(self._state, event)
        self._compare_snapshot(record.position)
        self.report.events += 1
        self.report.position, self.report.digest = record.position, record.digest
        if isinstance(event, Ticked) and self._verify:
            self._check_core(record, core)
            self._tick = record.position
            began = self._state.began_waiting
            again = decide_again(self._state, self._rulebook, record.position, core=core)
            decided = self._cycles.beside(self._state, again.decisions, began, core)
            self._expected, self._failure = list(reversed(decided.decisions)), decided.failure

    def _check_core(self, record: Record, core: str) -> None:
        """A plane that was upgraded never decides as the version before it again."""
        if KNOWN_CORES.index(core) < KNOWN_CORES.index(self._core):
            what = f"the cycle of this tick says core version {core}, after cycles of version {self._core}"
            raise _Diverged(Divergence(record.position, what))
        self._core = core

    def _compare_snapshot(self, position: int) -> None:
        fault = self.snapshots.fault(self._state) if self.snapshots is not None else None
        if fault is not None:
            raise _Diverged(Divergence(position, fault))

    def _check_input(self, record: Record, event: Event) -> None:
        """What no writer of ours could have appended, though the chain is sound."""
        written = canonical(event)
        if written != record.payload:
            what = f"{record.type}: {NOT_CANONICAL}"
            raise _Diverged(Divergence(record.position, what, _shown(written or b""), _shown(record.payload)))
        if isinstance(event, Ticked) and event.now_ms < self._state.now_ms:
            what = f"the clock goes back, from {self._state.now_ms} to {event.now_ms}"
            raise _Diverged(Divergence(record.position, what))
        if isinstance(event, PolicyActivated | PolicyShadowed):
            digest = digest_of(event.files)
            if digest != event.digest:
                what = "the digest of the policy is not that of its text"
                raise _Diverged(Divergence(record.position, what, digest, event.digest))

    def _event(self, record: Record) -> Event:
        """The event of a record; of a decision that is as expected, without decoding it again."""
        if self._verify and record.author == Author.DECIDED.value:
            return self._compare(record)
        if record.type == ShadowFailed.TYPE:
            # What the shadow decides here it did not decide there, and that is an input.
            self._expected = [one for one in self._expected if not isinstance(one.event, ShadowDecided)]
        if self._expected:
            self._refuse_missing(record.position)
        event = decoded(record)
        if event.AUTHOR.value != record.author:
            raise _Diverged(Divergence(record.position, f"{record.type} by {record.author}, not {event.AUTHOR.value}"))
        if isinstance(event, CycleDecided):
            self.report.cycles += 1
        return event

    def _compare(self, record: Record) -> Event:
        if not self._expected:
            what = f"{record.type}: a decision that no cycle makes"
            if record.type == ShadowDecided.TYPE and self._failure is not None:
                what = f"{record.type}: the shadow cannot be decided here: {self._failure.cause}"
            raise _Diverged(Divergence(record.position, what, "", _shown(record.payload)))
        expected = self._expected.pop()
        if record.type != expected.event.TYPE or record.payload != expected.payload:
            raise _Diverged(self._difference(record, expected))
        entry = entry_of(expected.event, SCHEDULER, self._state.now_ms, self._tick, expected.payload)
        got = Entry(*(getattr(record, name) for name in Entry._fields))
        if got != entry:
            wrong = [name for name in Entry._fields if getattr(got, name) != getattr(entry, name)]
            columns = ", ".join(wrong)
            shown = [str({name: getattr(of, name) for name in wrong}) for of in (entry, got)]
            raise _Diverged(Divergence(record.position, f"{record.type} has a wrong {columns}", *shown))
        self.report.decisions += 1
        if isinstance(expected.event, CycleDecided):
            self.report.cycles += 1
        return expected.event

    def _difference(self, record: Record, expected: Decision) -> Divergence:
        what = f"the log says {record.type}, deciding again says {expected.event.TYPE}"
        if record.type == expected.event.TYPE:
            what = f"{record.type} was decided otherwise"
        core = _core_of(record)
        if core is not None and core not in KNOWN_CORES:
            known = " and ".join(KNOWN_CORES)
            what = f"the cycle was decided by core version {core}, this knows {known}: verify it with that version"
        return Divergence(record.position, what, _shown(expected.payload), _shown(record.payload))

    def _refuse_missing(self, position: int) -> None:
        expected = self._expected[-1]
        what = f"{expected.event.TYPE} is missing: the cycle decides it, the log does not have it"
        raise _Diverged(Divergence(position, what, _shown(expected.payload), ""))

    def finish(self, total: int, is_whole: bool) -> None:
        """The log is read up to ``total``; ``is_whole`` if that is its end, where no cycle can be half recorded."""
        if self._verify and self.report.position != total:
            raise _Diverged(Divergence(self.report.position + 1, f"missing: the log ends at {total}"))
        if self._verify and is_whole and self._expected:
            self._refuse_missing(total + 1)
        if self._verify:
            try:
                check_all(self._state)
            except CANNOT_BE as error:
                raise _Diverged(Divergence(self.report.position, f"an invariant is broken: {error}")) from error

    def close(self) -> ReplayReport:
        """The report, with the figures so far."""
        self.report.virtual_ms = self._state.now_ms
        self.report.figures = self._figures.summary(self._state)
        return self.report


def _core_of(record: Record) -> str | None:
    if record.type != CycleDecided.TYPE:
        return None
    try:
        event = decode(record.type, record.payload)
    except MalformedEvent:
        return None
    return event.core if isinstance(event, CycleDecided) else None


def _shown(payload: bytes) -> str:
    text = payload.decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
