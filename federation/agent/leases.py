"""The leases of one cluster, as the agent knows them: what the plane wants, what the cluster shows, what to do.

Deliveries and views only change a record and mark it; :meth:`LeaseBook.act` asks the table about the marked ones and
carries out what it says. Cost follows what changed. It may not decide anything that the table does not say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from controlplane.domain.events import LeaseGranted, LeaseGrown, LeaseObserved, LeasePhase, LeaseShrunk, MemberName
from federation.agent.reports import RETRY_MAX_MS, Alarms, Reports, retry_delay_ms
from federation.port import (
    Adapter,
    AdapterError,
    ClusterView,
    ElasticAdapter,
    Refused,
    SeenLease,
    SeenPhase,
    TryAgain,
    WantedLease,
)
from federation.reconcile import Act, Action, Wanted, reconcile

TERMINAL = frozenset({LeasePhase.FINISHED, LeasePhase.FAILED, LeasePhase.LOST, LeasePhase.REFUSED, LeasePhase.ENDED})
LAUNCH_TRIES = 12
"""Failures in a row after which a launch is given up and reported as refused: about seven minutes of growing delay, so
that the plane can place the job elsewhere instead of waiting for a cluster that does not come back."""
DETAIL_CHARACTERS = 1_024
"""What ``LeaseObserved.detail`` holds; longer texts from a cluster are cut."""

# Before Python 3.12, naming a member of an enum costs more than a dictionary access; these are on the way of each job.
_ABSENT = SeenPhase.ABSENT
_LAUNCHING = SeenPhase.LAUNCHING
_WANTED = Wanted.WANTED
_HELD = Wanted.HELD
_ORPHAN = Wanted.ORPHAN

_REPORTED = {
    phase: LeasePhase(phase.value) for phase in SeenPhase if phase.value in {item.value for item in LeasePhase}
}


@dataclass(slots=True)
class LeaseRecord:
    """One lease: the row (``phase``) and the column (``seen``) of the table, and what is needed to act and report."""

    lease: str
    phase: Wanted
    seen: SeenPhase = SeenPhase.ABSENT
    wanted: WantedLease | None = None
    is_ours: bool = False
    """Granted here or seen here. A revocation alone does not say that the lease was ever in this cluster."""
    position: int = 0
    exit_code: int | None = None
    detail: str = ""
    reported: LeasePhase | None = None
    complaint: str = ""
    tries: int = 0
    grace_ms: int | None = None
    """Between asking it to stop and killing it, as its revocation says; ``None`` leaves it to the agent."""
    is_doubtful: bool = False
    """A launch failed in a way that does not say whether it worked."""
    changes: dict[int, LeaseGrown | LeaseShrunk] | None = None
    """By revision: changes of its members that wait for an earlier one or for the grant."""
    history: dict[int, WantedLease] | None = None
    """By revision: what it is in the cluster at that revision. Of leases that have changed."""
    revision: int = 0
    """Of the members that the cluster has, or said no to."""
    members: tuple[MemberName, ...] | None = None
    """Who is there, as far as a view or the last launch says."""
    told: tuple[int, tuple[MemberName, ...]] | None = None
    """The revision and members that were last reported."""

    @property
    def row(self) -> Wanted:
        """Its row in the table."""
        if self.phase is _HELD and self.wanted is not None and self.wanted.revision > self.revision:
            return Wanted.CHANGED
        return self.phase


class LeaseBook:
    """All leases that the agent has to do with."""

    def __init__(self, adapter: Adapter, reports: Reports, grace_ms: int) -> None:
        self._adapter = adapter
        self._cluster = adapter.cluster
        self._reports = reports
        self._grace_ms = grace_ms
        self._records: dict[str, LeaseRecord] = {}
        self._marked: dict[str, LeaseRecord] = {}
        self._is_urgent = False
        self._settled: dict[str, int] = {}
        """Leases that are over, in the log and forgotten -> last position heard about them: never launched again."""
        self._alarms = Alarms()

    # --- what the plane says -----------------------------------------------------------------------------------------

    def grant(self, position: int, event: LeaseGranted) -> None:
        """The plane wants a lease, unless it is known to be revoked, launched or over."""
        lease = event.lease
        if lease in self._settled:
            return
        record = self._records.get(lease)
        if record is None:
            record = self._records[lease] = LeaseRecord(lease, _WANTED)
        elif record.phase is _ORPHAN:
            record.phase = _WANTED
            record.reported = None
        if record.wanted is None:
            record.wanted = WantedLease(lease, event.job, event.attempt, event.cluster, event.members)
            record.is_ours = True
            self._mark(record)
            self._catch_up(record)
        record.position = max(record.position, position)

    def change(self, position: int, event: LeaseGrown | LeaseShrunk) -> None:
        """The plane wants a lease to have other members. Changes take effect in the order of their revisions."""
        if event.lease in self._settled:
            return
        record = self._records.get(event.lease)
        if record is None:
            record = self._records[event.lease] = LeaseRecord(event.lease, _ORPHAN)
        if record.changes is None:
            record.changes = {}
        record.changes[event.revision] = event
        record.position = max(record.position, position)
        self._catch_up(record)

    def _catch_up(self, record: LeaseRecord) -> None:
        """Apply the changes whose turn it is."""
        while record.changes and record.wanted is not None:
            event = record.changes.pop(record.wanted.revision + 1, None)
            if event is None:
                return
            if record.history is None:
                record.history = {record.wanted.revision: record.wanted}
            members = record.wanted.members
            if isinstance(event, LeaseGrown):
                members += event.members
            else:
                leaving = {(member.role, member.ordinal) for member in event.members}
                members = tuple(member for member in members if (member.role, member.ordinal) not in leaving)
                record.grace_ms = event.grace_ms
            record.wanted = record.wanted._replace(members=members, revision=event.revision)
            record.history[event.revision] = record.wanted
            if record.phase in (_WANTED, _HELD):
                self._mark(record)

    def revoke(self, position: int, lease: str, grace_ms: int | None = None) -> None:
        """The plane no longer wants a lease; wins over a grant whichever arrives first."""
        if lease in self._settled:
            return
        record = self._records.get(lease)
        if record is None:
            record = self._records[lease] = LeaseRecord(lease, Wanted.UNWANTED)
        elif record.phase in (_WANTED, _HELD, _ORPHAN):
            record.phase = Wanted.UNWANTED
            self._mark(record)
        record.grace_ms = grace_ms
        record.position = max(record.position, position)

    def recorded(self, lease: str, phase: LeasePhase) -> None:
        """A report about this lease is in the log: what it says need not be found out or reported again."""
        if lease in self._settled:
            return
        record = self._records.get(lease)
        if record is None:
            record = self._records[lease] = LeaseRecord(lease, _ORPHAN)
        if phase in TERMINAL:
            if record.phase is not Wanted.SETTLED:
                record.phase = Wanted.SETTLED
                # What is left to do is to forget: that can wait for the next step, and needs none of its own.
                self._mark(record, ours=True, urgent=record.seen in (_LAUNCHING, SeenPhase.RUNNING))
        elif record.phase is _WANTED or (record.phase is _ORPHAN and not record.is_ours):
            # After a restart: the log says that it was launched, so its absence means that it was lost.
            record.phase = _HELD
            if phase is not LeasePhase.RESIZED:
                record.reported = record.reported or phase
            self._mark(record, ours=True)

    def settle(self, position: int) -> None:
        """Nothing at or below this position is delivered again: drop what only guards against repeats."""
        while self._settled:
            lease = next(iter(self._settled))
            if self._settled[lease] > position:
                return
            del self._settled[lease]

    # --- what the cluster shows --------------------------------------------------------------------------------------

    def see(self, view: ClusterView) -> None:
        """Take over a view."""
        for seen in view.leases:
            self._see(seen)
        if view.is_full:
            listed = {seen.lease for seen in view.leases}
            for record in self._records.values():
                if record.seen is not _ABSENT and record.lease not in listed:
                    self._see(SeenLease(record.lease, _ABSENT))

    def _see(self, seen: SeenLease) -> None:
        record = self._records.get(seen.lease)
        if record is None:
            if seen.phase is _ABSENT:
                return
            phase = Wanted.SETTLED if seen.lease in self._settled else _ORPHAN
            record = self._records[seen.lease] = LeaseRecord(seen.lease, phase)
        changed = record.seen is not seen.phase or not record.is_ours
        if seen.revision and (seen.revision, seen.members) != (record.revision, record.members):
            record.revision, record.members = max(record.revision, seen.revision), seen.members
            changed = True
        record.seen, record.exit_code, record.detail = seen.phase, seen.exit_code, seen.detail
        if changed or record.reported is None:
            self._mark(record, ours=True)

    def _mark(self, record: LeaseRecord, ours: bool = False, urgent: bool = True) -> None:
        record.is_ours = record.is_ours or ours
        if record.tries:
            record.tries = 0
            self._alarms.clear(record.lease)
        if record.is_ours:
            self._marked[record.lease] = record
            self._is_urgent = self._is_urgent or urgent

    # --- acting ------------------------------------------------------------------------------------------------------

    def act(self, now_ms: int) -> None:
        """Reconcile what changed or is due again, and carry it out."""
        if self._alarms:
            for lease in self._alarms.due(now_ms):
                if lease in self._records:
                    self._marked[lease] = self._records[lease]
        if not self._marked:
            return
        marked, self._marked = self._marked, {}
        self._is_urgent = False
        wanted = {lease: record.row for lease, record in marked.items()}
        observed = {lease: record.seen for lease, record in marked.items()}
        for action in reconcile(wanted, observed):
            self._carry_out(action, marked[action.lease], now_ms)

    def next_ms(self) -> int | None:
        """When something is due again."""
        return self._alarms.next_ms()

    @property
    def is_urgent(self) -> bool:
        """Whether something has changed since the last :meth:`act` that must not wait."""
        return self._is_urgent

    def _carry_out(self, action: Action, record: LeaseRecord, now_ms: int) -> None:
        match action.act:
            case Act.LAUNCH:
                self._launch(record, now_ms)
            case Act.REPORT:
                self._report(record, _REPORTED[record.seen], now_ms)
                self._report_members(record, now_ms)
            case Act.RESIZE:
                self._resize(record, now_ms)
            case Act.END:
                self._end(record, now_ms)
            case Act.ADOPT:
                record.phase = _HELD
                if record.row is Wanted.CHANGED:
                    self._mark(record)
            case Act.REPORT_LOST:
                absent = record.seen is _ABSENT
                record.detail = "the cluster no longer has it" if absent else "stopped in the cluster, not by the plane"
                self._report(record, LeasePhase.LOST, now_ms)
            case Act.REPORT_ENDED:
                # A launch that failed may have worked all the same: make sure before saying that it is over.
                if not record.is_doubtful or self._end(record, now_ms):
                    self._report(record, LeasePhase.ENDED, now_ms)
            case Act.FORGET:
                self._forget(record, now_ms)
            case _:
                assert_never(action.act)

    def _launch(self, record: LeaseRecord, now_ms: int) -> None:
        assert record.wanted is not None, f"{record.lease}: only a grant makes a lease wanted"
        try:
            self._adapter.launch(record.wanted, now_ms)
        except Refused as error:
            self._give_up(record, str(error), now_ms)
        except AdapterError as error:
            if record.tries + 1 >= LAUNCH_TRIES:
                self._give_up(record, f"given up after {LAUNCH_TRIES} tries: {error}", now_ms)
            else:
                record.is_doubtful = True
                self._try_again(record, error, LeasePhase.LAUNCHING, now_ms)
        else:
            record.is_doubtful = False
            record.phase = _HELD
            record.seen = _LAUNCHING
            record.tries = 0
            record.revision = record.wanted.revision
            record.members = _names(record.wanted) if record.revision else None

    # --- members that change -----------------------------------------------------------------------------------------

    def _resize(self, record: LeaseRecord, now_ms: int) -> None:
        """Make the gang what is wanted; if the cluster refuses, at least as small as is wanted; if it refuses that too,
        stop it, so that the room which is promised to others becomes free."""
        assert record.wanted is not None, f"{record.lease}: only a grant makes a lease wanted"
        assert record.history is not None, f"{record.lease}: nothing was changed"
        present = {(member.role, member.ordinal) for member in record.history[record.revision].members}
        kept = tuple(member for member in record.wanted.members if (member.role, member.ordinal) in present)
        smaller = record.wanted._replace(members=kept)
        for wanted in (record.wanted, smaller):
            try:
                if not isinstance(self._adapter, ElasticAdapter):
                    continue
                self._adapter.resize(wanted, self._grace_of(record), now_ms)
            except Refused:
                continue
            except AdapterError as error:
                self._try_again(record, error, record.reported or LeasePhase.LAUNCHING, now_ms)
                return
            record.revision = wanted.revision  # who is being stopped is there until a view says otherwise
            record.history[wanted.revision] = wanted
            return
        if len(kept) == len(present):
            record.revision, record.members = smaller.revision, _names(smaller)
            record.history[smaller.revision] = smaller
            self._report_members(record, now_ms)
        elif self._end(record, now_ms):
            record.phase = Wanted.UNWANTED

    def _grace_of(self, record: LeaseRecord) -> int:
        return self._grace_ms if record.grace_ms is None else record.grace_ms

    def _report_members(self, record: LeaseRecord, now_ms: int) -> None:
        """Who is there, once it is not what was granted at first, and whenever it is others."""
        if not record.revision or record.members is None or record.seen not in (_LAUNCHING, SeenPhase.RUNNING):
            return
        if record.told == (record.revision, record.members):
            return
        record.told = (record.revision, record.members)
        event = LeaseObserved(
            cluster=self._cluster,
            lease=record.lease,
            phase=LeasePhase.RESIZED,
            observed_ms=now_ms,
            revision=record.revision,
            members=record.members,
        )
        self._reports.add(("members", record.lease), event)

    def _give_up(self, record: LeaseRecord, why: str, now_ms: int) -> None:
        record.seen = SeenPhase.REFUSED
        record.detail = why
        self._report(record, LeasePhase.REFUSED, now_ms)

    def _end(self, record: LeaseRecord, now_ms: int) -> bool:
        grace_ms = self._grace_ms if record.grace_ms is None else record.grace_ms
        try:
            self._adapter.end(record.lease, grace_ms, now_ms)
        except AdapterError as error:
            self._try_again(record, error, record.reported or LeasePhase.RUNNING, now_ms)
            return False
        # A cluster that forgot the request is asked once more when the grace is long over.
        if record.seen is not _ABSENT:
            record.tries += 1
            self._alarms.set(record.lease, now_ms + grace_ms + RETRY_MAX_MS)
        return True

    def _try_again(self, record: LeaseRecord, error: AdapterError, phase: LeasePhase, now_ms: int) -> None:
        record.tries += 1
        if isinstance(error, TryAgain):
            self._alarms.set(record.lease, now_ms + retry_delay_ms(record.tries))
            return
        self._alarms.set(record.lease, now_ms + RETRY_MAX_MS)
        complaint = f"a person must act: {error}"
        if complaint != record.complaint and record.phase is not Wanted.SETTLED and phase not in TERMINAL:
            record.complaint = complaint
            self._say(record, phase, None, complaint, now_ms)

    def _forget(self, record: LeaseRecord, now_ms: int) -> None:
        try:
            self._adapter.forget(record.lease, now_ms)
        except AdapterError:
            record.tries += 1
            self._alarms.set(record.lease, now_ms + retry_delay_ms(record.tries))
            return
        self._alarms.clear(record.lease)
        del self._records[record.lease]
        self._remember(record)

    def _remember(self, record: LeaseRecord) -> None:
        self._settled[record.lease] = record.position

    def _report(self, record: LeaseRecord, phase: LeasePhase, now_ms: int) -> None:
        if record.reported is phase:
            return
        record.reported = phase
        if phase in TERMINAL and record.phase is not _ORPHAN:
            record.phase = Wanted.OVER
            self._alarms.clear(record.lease)
        detail = record.detail
        if record.phase is _ORPHAN:
            detail = "unknown to the plane; it is ended" if phase not in TERMINAL else "was unknown to the plane"
        self._say(record, phase, record.exit_code, detail, now_ms)

    def _say(self, record: LeaseRecord, phase: LeasePhase, exit_code: int | None, detail: str, now_ms: int) -> None:
        event = LeaseObserved(
            cluster=self._cluster,
            lease=record.lease,
            phase=phase,
            observed_ms=now_ms,
            exit_code=exit_code,
            detail=detail[:DETAIL_CHARACTERS],
        )
        self._reports.add(("lease", record.lease), event)


def _names(wanted: WantedLease) -> tuple[MemberName, ...]:
    return tuple(MemberName(role=member.role, ordinal=member.ordinal) for member in wanted.members)
