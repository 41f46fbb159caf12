"""The rented capacity of one cluster, as the agent knows it, and the deadline that ends it whatever else happens.

The deadline is enforced here, beside the cluster, because this is the last place that works when the plane is silent.
It is known twice: from the delivery, and from the provider's view (where the adapter stored it), so that an agent that
was restarted and has not heard from the plane still ends what is overdue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from controlplane.domain.events import CapacityObserved, CapacityPhase, CapacityRequested
from federation.agent.reports import RETRY_MAX_MS, Alarms, Reports, earliest, retry_delay_ms
from federation.port import (
    Adapter,
    AdapterError,
    CapacityWanted,
    ClusterView,
    Refused,
    SeenCapacity,
    SeenCapacityPhase,
    TryAgain,
)
from federation.reconcile import CapacityAct, CapacityAction, Wanted, reconcile_capacity

DETAIL_CHARACTERS = 1_024
TERMINAL = frozenset({CapacityPhase.FAILED, CapacityPhase.RELEASED})

_REPORTED = {
    SeenCapacityPhase.PROVIDED: CapacityPhase.PROVIDED,
    SeenCapacityPhase.FAILED: CapacityPhase.FAILED,
    SeenCapacityPhase.RELEASED: CapacityPhase.RELEASED,
}
"""``ASKED`` and ``RELEASING`` are between two facts, and are not reported."""


@dataclass(slots=True)
class CapacityRecord:
    """One request: the row (``phase``) and the column (``seen``) of the table, and what is needed to act and report."""

    request: str
    phase: Wanted
    seen: SeenCapacityPhase = SeenCapacityPhase.ABSENT
    wanted: CapacityWanted | None = None
    deadline_ms: int | None = None
    nodes: tuple[str, ...] = ()
    charged_micro_usd: int = 0
    detail: str = ""
    reported: tuple[CapacityPhase, int] | None = None
    """Phase and charge of the last report."""
    complaint: str = ""
    tries: int = 0
    is_doubtful: bool = False
    """A request failed in a way that does not say whether it worked."""

    @property
    def is_paid_for_nothing(self) -> bool:
        """It is there, or on its way, and must not be."""
        there = self.seen in (SeenCapacityPhase.ASKED, SeenCapacityPhase.PROVIDED)
        return self.phase is Wanted.UNWANTED and there


class CapacityBook:
    """All capacity requests that the agent has to do with. They are few (one per burst), and are kept."""

    def __init__(self, adapter: Adapter, reports: Reports) -> None:
        self._adapter = adapter
        self._reports = reports
        self._records: dict[str, CapacityRecord] = {}
        self._marked: dict[str, CapacityRecord] = {}
        self._alarms = Alarms()
        self._deadlines = Alarms()

    # --- what the plane says -----------------------------------------------------------------------------------------

    def request(self, event: CapacityRequested) -> None:
        """The plane wants nodes, unless the request is known to be released, asked for or over."""
        record = self._record(event.request, Wanted.WANTED)
        if record.phase is Wanted.ORPHAN:
            record.phase, record.reported = Wanted.WANTED, None
        if record.wanted is None:
            record.wanted = CapacityWanted(event.request, event.offer, event.nodes, event.deadline_ms)
            self._set_deadline(record, event.deadline_ms)
            self._mark(record)

    def release(self, request: str, cause: str) -> None:
        """The plane no longer wants the nodes; wins over a request whichever arrives first."""
        record = self._record(request, Wanted.UNWANTED)
        if record.phase in (Wanted.WANTED, Wanted.HELD, Wanted.ORPHAN):
            record.phase = Wanted.UNWANTED
        record.detail = record.detail or cause[:DETAIL_CHARACTERS]
        self._mark(record)

    def recorded(self, event: CapacityObserved) -> None:
        """A report about this request is in the log."""
        record = self._record(event.request, Wanted.ORPHAN)
        if event.phase in TERMINAL:
            record.phase = Wanted.SETTLED
            record.reported = record.reported or (event.phase, event.charged_micro_usd)
            self._deadlines.clear(event.request)
        elif record.phase is Wanted.WANTED or (
            record.phase is Wanted.ORPHAN and record.seen is SeenCapacityPhase.ABSENT
        ):
            # After a restart: the log says that it was provided, so its absence means that it is gone.
            record.phase = Wanted.HELD
            record.reported = record.reported or (event.phase, 0)

    # --- what the cluster shows --------------------------------------------------------------------------------------

    def see(self, view: ClusterView) -> None:
        """Take over a view."""
        for seen in view.capacity:
            self._see(seen)
        if view.is_full:
            listed = {seen.request for seen in view.capacity}
            for record in self._records.values():
                if record.seen is not SeenCapacityPhase.ABSENT and record.request not in listed:
                    record.seen = SeenCapacityPhase.ABSENT
                    self._mark(record)

    def _see(self, seen: SeenCapacity) -> None:
        record = self._record(seen.request, Wanted.ORPHAN)
        if record.deadline_ms is None:
            self._set_deadline(record, seen.deadline_ms)
        changed = record.seen is not seen.phase or record.charged_micro_usd != seen.charged_micro_usd
        record.seen, record.nodes, record.charged_micro_usd = seen.phase, seen.nodes, seen.charged_micro_usd
        record.detail = seen.detail or record.detail
        if changed:
            self._mark(record)

    def _record(self, request: str, phase: Wanted) -> CapacityRecord:
        """The record of a request, made with this phase and marked if it is new."""
        record = self._records.get(request)
        if record is None:
            record = self._records[request] = CapacityRecord(request, phase)
            self._mark(record)
        return record

    def _set_deadline(self, record: CapacityRecord, deadline_ms: int) -> None:
        record.deadline_ms = deadline_ms
        if record.phase in (Wanted.WANTED, Wanted.HELD, Wanted.ORPHAN):
            self._deadlines.set(record.request, deadline_ms)

    def _mark(self, record: CapacityRecord) -> None:
        if record.tries:
            record.tries = 0
            self._alarms.clear(record.request)
        self._marked[record.request] = record

    # --- acting ------------------------------------------------------------------------------------------------------

    def enforce_deadlines(self, now_ms: int) -> None:
        """What is overdue is no longer wanted, whatever the plane says or does not say."""
        for request in self._deadlines.due(now_ms):
            record = self._records[request]
            if record.phase in (Wanted.WANTED, Wanted.HELD, Wanted.ORPHAN):
                record.phase = Wanted.UNWANTED
                record.detail = "ended by its deadline"
                self._mark(record)

    def act(self, now_ms: int, only_overdue: bool = False) -> None:
        """Reconcile what changed or is due again, and carry it out.

        ``only_overdue`` ends what is there and not wanted, and leaves the rest for later: it is for the time in which
        the plane has not yet been heard.
        """
        for request in self._alarms.due(now_ms):
            self._marked[request] = self._records[request]
        if not self._marked:
            return
        marked, self._marked = self._marked, {}
        if only_overdue:
            self._marked = marked
            marked = {name: record for name, record in marked.items() if record.is_paid_for_nothing}
        wanted = {request: record.phase for request, record in marked.items()}
        observed = {request: record.seen for request, record in marked.items()}
        for action in reconcile_capacity(wanted, observed):
            self._carry_out(action, marked[action.request], now_ms)

    def next_ms(self) -> int | None:
        """When something is due: a retry or a deadline."""
        return earliest(self._alarms.next_ms(), self._deadlines.next_ms())

    @property
    def is_idle(self) -> bool:
        """Whether :meth:`enforce_deadlines` and :meth:`act` have nothing to do at any time."""
        return not (self._marked or self._alarms or self._deadlines)

    @property
    def is_marked(self) -> bool:
        """Whether something has changed since the last :meth:`act`."""
        return bool(self._marked)

    def _carry_out(self, action: CapacityAction, record: CapacityRecord, now_ms: int) -> None:
        match action.act:
            case CapacityAct.REQUEST:
                self._request(record, now_ms)
            case CapacityAct.RELEASE:
                self._release(record, now_ms)
            case CapacityAct.ADOPT:
                record.phase = Wanted.HELD
            case CapacityAct.REPORT:
                self._report(record, _REPORTED.get(record.seen, CapacityPhase.PROVIDED), now_ms)
            case CapacityAct.REPORT_RELEASED:
                if record.phase is Wanted.HELD:
                    record.detail = "the provider no longer has it"
                # A request that failed may have worked all the same: make sure before saying that nothing is left.
                if not record.is_doubtful or self._release(record, now_ms):
                    self._report(record, CapacityPhase.RELEASED, now_ms)
            case _:
                assert_never(action.act)

    def _request(self, record: CapacityRecord, now_ms: int) -> None:
        assert record.wanted is not None, f"{record.request}: only a delivery makes a request wanted"
        try:
            self._adapter.request_capacity(record.wanted, now_ms)
        except Refused as error:
            record.seen, record.detail = SeenCapacityPhase.FAILED, str(error)
            self._report(record, CapacityPhase.FAILED, now_ms)
        except AdapterError as error:
            # No bound on the tries but the deadline: until then the promise stands and the nodes may still be had.
            record.is_doubtful = True
            self._try_again(record, error, now_ms)
        else:
            record.is_doubtful = False
            record.phase, record.seen, record.tries = Wanted.HELD, SeenCapacityPhase.ASKED, 0

    def _release(self, record: CapacityRecord, now_ms: int) -> bool:
        try:
            self._adapter.release_capacity(record.request, now_ms)
        except AdapterError as error:
            self._try_again(record, error, now_ms)
            return False
        # Paid nodes are worth a second look: asked again until the provider shows that nothing is left.
        if record.seen is not SeenCapacityPhase.ABSENT:
            record.tries += 1
            self._alarms.set(record.request, now_ms + RETRY_MAX_MS)
        return True

    def _try_again(self, record: CapacityRecord, error: AdapterError, now_ms: int) -> None:
        record.tries += 1
        if isinstance(error, TryAgain):
            self._alarms.set(record.request, now_ms + retry_delay_ms(record.tries))
            return
        self._alarms.set(record.request, now_ms + RETRY_MAX_MS)
        complaint = f"a person must act: {error}"
        if complaint != record.complaint and record.seen is SeenCapacityPhase.PROVIDED:
            record.complaint = complaint
            self._say(record, CapacityPhase.PROVIDED, 0, complaint, now_ms)

    def _report(self, record: CapacityRecord, phase: CapacityPhase, now_ms: int) -> None:
        charged = record.charged_micro_usd if phase is CapacityPhase.RELEASED else 0
        if record.reported == (phase, charged):
            return
        record.reported = (phase, charged)
        detail = record.detail
        if record.phase is Wanted.ORPHAN:
            detail = f"unknown to the plane; {detail or 'it is released'}"
        if phase in TERMINAL:
            record.phase = Wanted.OVER
            self._alarms.clear(record.request)
            self._deadlines.clear(record.request)
        self._say(record, phase, charged, detail, now_ms)

    def _say(self, record: CapacityRecord, phase: CapacityPhase, charged: int, detail: str, now_ms: int) -> None:
        event = CapacityObserved(
            cluster=self._adapter.cluster,
            request=record.request,
            phase=phase,
            observed_ms=now_ms,
            nodes=record.nodes,
            charged_micro_usd=charged,
            detail=detail[:DETAIL_CHARACTERS],
        )
        self._reports.add(("capacity", record.request), event)
