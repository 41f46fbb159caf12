"""Step 7: a start is reserved for blocked jobs, and what runs in front of it must not delay it.

EASY backfill (Lifka, JSSPP'95) reserves for the first blocked job, conservative backfill for all of them; how many may
hold a reservation is the rules' answer. The reserved instant is the earliest at which the gang fits, as occupants leave
at their estimated ends; the reserved nodes are those on which it would then sit. Another job may use these nodes only
if it ends before that instant, by its own estimate. An occupant that gives no estimate is taken to stay: the
reservation then has no instant, and its nodes are kept from everybody until they have drained. A service never ends:
what only its end would free is reserved for nobody.

Reservations are found in the order in which jobs are tried. One that is there is kept as it is, and looked at again for
an earlier start from time to time; the log records what has changed.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

import numpy as np

from controlplane.domain.quantities import MAX_MS
from controlplane.domain.queues import ANY_FLAVOR
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.draft import Draft, DraftSeat
from controlplane.scheduler.needs import Need
from controlplane.scheduler.occupants import Occupant
from controlplane.scheduler.packing import Mask, Packer
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.state import Job, State


@dataclass(slots=True, eq=False)
class Reserved:
    """A reservation of this cycle."""

    job: int
    start_ms: int | None
    rows: list[int]
    rule: str | None


class Reservations:
    """The reservations of one cycle. Leaves the draft as it was."""

    def __init__(self, state: State, agenda: Agenda, draft: Draft, packer: Packer) -> None:
        self._state = state
        self._agenda = agenda
        self._draft = draft
        self._packer = packer
        self._occupants: list[Occupant] | None = None
        self._newcomers: list[Occupant] = []
        """Gangs placed in this cycle before anybody asked who leaves when."""
        self._keeps_books = True
        """Whether packing looks at quota by flavor, so that the books must follow."""
        self.made: list[Reserved] = []

    def granted(self, queue: QueueNode, seats: list[DraftSeat], estimate_ms: int | None) -> None:
        """A gang was placed in this cycle: it, too, is expected to leave."""
        at = tuple((seat.row, seat.need.ask, seat.gpus, seat.flavor) for seat in seats)
        end_ms = None if estimate_ms is None else self._state.now_ms + estimate_ms
        newcomer = Occupant(queue, at, end_ms)
        if self._occupants is None:
            self._newcomers.append(newcomer)
        else:
            insort(self._occupants, newcomer, key=_leaving)

    def mask(self, job: Job, mask: Mask | None) -> Mask | None:
        """Rows that are not kept from the job by a reservation of a job that was tried before it."""
        estimate = job.cls.spec.estimate_ms
        return self.mask_until(None if estimate is None else self._state.now_ms + estimate, mask)

    def mask_until(self, end_ms: int | None, mask: Mask | None) -> Mask | None:
        """Rows that are not kept from whoever leaves at that instant (``None``: nobody knows)."""
        for reserved in self.made:
            if end_ms is not None and reserved.start_ms is not None and end_ms < reserved.start_ms:
                continue
            mask = np.ones(len(self._agenda.nodes), dtype=np.bool_) if mask is None else mask.copy()
            mask[reserved.rows] = False
        return mask

    def rows_kept(self) -> list[int]:
        """Rows that are reserved for somebody: in this cycle or, as far as they wait still, in the one before. Who is
        placed before anybody was tried, or stays for ever, goes nowhere else."""
        state, made = self._state, {reserved.job for reserved in self.made}
        rows = [row for reserved in self.made for row in reserved.rows]
        for earlier in state.reservations.values():
            job = state.jobs.get(earlier.job)
            if job is not None and job.lease is None and job.id not in self._draft.gone and job.id not in made:
                rows.extend(self._agenda.rows[name] for name in earlier.nodes if name in self._agenda.rows)
        return rows

    def kept(self) -> tuple[tuple[int, int | None, tuple[int, ...]], ...]:
        """What is reserved so far: (job, start, rows)."""
        return tuple((reserved.job, reserved.start_ms, tuple(reserved.rows)) for reserved in self.made)

    def keep(self, job: int) -> bool:
        """Take over the reservation that the job has, if its nodes are there and its start is to come."""
        known = self._state.reservations.get(job)
        if known is None or (known.start_ms is not None and known.start_ms <= self._state.now_ms):
            return False
        rows = [self._agenda.rows.get(name, -1) for name in known.nodes]
        if not all(row >= 0 and self._agenda.nodes[row].build.is_open for row in rows):
            return False
        self.made.append(Reserved(job, known.start_ms, rows, known.rule))
        return True

    def reserve(self, job: Job, needs: tuple[Need, ...], queue: QueueNode, mask: Mask | None, rule: str | None) -> None:
        """The earliest start of the job, if it can be seen at all, from now on kept free for it."""
        occupants = self._by_end()
        self._keeps_books = any(key[0] != ANY_FLAVOR for key in queue.limited)
        kept = self._kept_nodes(job)
        out = 0
        found: Reserved | None = None
        low, high = 1, 1
        while occupants:
            out = self._go_to(occupants, out, high)
            seats = self._packer.place(job.id, needs, queue, mask)
            if seats is not None:
                self._draft.stand_up(queue, seats)
                out, found = self._earliest(job, needs, queue, mask, occupants, (low, high, out), rule)
                break
            if high == len(occupants):
                break
            low, high = high + 1, min(2 * high, len(occupants))
        self._go_to(occupants, out, 0)
        if found is not None and found.start_ms is None and kept is not None:
            found.rows = kept
        if found is not None:
            self.made.append(found)

    def _earliest(
        self,
        job: Job,
        needs: tuple[Need, ...],
        queue: QueueNode,
        mask: Mask | None,
        occupants: list[Occupant],
        bounds: tuple[int, int, int],
        rule: str | None,
    ) -> tuple[int, Reserved]:
        """Bisect between the bounds (least, enough, out of the draft now)."""
        low, high, out = bounds
        while low < high:
            middle = (low + high) // 2
            out = self._go_to(occupants, out, middle)
            seats = self._packer.place(job.id, needs, queue, mask)
            if seats is None:
                low = middle + 1
            else:
                self._draft.stand_up(queue, seats)
                high = middle
        out = self._go_to(occupants, out, low)
        seats = self._packer.place(job.id, needs, queue, mask)
        assert seats is not None, "it fitted when this was tried before"
        self._draft.stand_up(queue, seats)
        rows = sorted({seat.row for seat in seats})
        return out, Reserved(job.id, occupants[low - 1].end_ms, rows, rule)

    def _by_end(self) -> list[Occupant]:
        """Everybody who sits, by expected end, those who do not tell last; ties in the order of their start. Who has
        outlived its estimate may leave at any moment."""
        if self._occupants is None:
            self._occupants = []
            for lease in self._state.leases.values():
                if lease.service is not None and lease.revoked is None:
                    continue  # nobody waits for the end of what never ends
                occupant = self._agenda.occupant(self._state, lease)
                occupant.end_ms = self._end_ms(lease.granted_ms, lease.job)
                self._occupants.append(occupant)
            self._occupants.extend(self._newcomers)
            self._occupants.sort(key=_leaving)
        return self._occupants

    def _end_ms(self, granted_ms: int, job: Job) -> int | None:
        estimate = job.cls.spec.estimate_ms
        return None if estimate is None else min(MAX_MS, max(granted_ms + estimate, self._state.now_ms + 1))

    def _kept_nodes(self, job: Job) -> list[int] | None:
        """The rows of its earlier reservation, while all of its nodes are there: what drains is not exchanged."""
        earlier = self._state.reservations.get(job.id)
        if earlier is None or earlier.start_ms is not None:
            return None
        rows = [self._agenda.rows.get(name, -1) for name in earlier.nodes]
        is_there = all(row >= 0 and self._agenda.nodes[row].build.is_open for row in rows)
        return rows if is_there else None

    def _go_to(self, occupants: list[Occupant], out: int, count: int) -> int:
        while out < count:
            self._draft.evict(occupants[out], books=self._keeps_books)
            out += 1
        while out > count:
            out -= 1
            self._draft.readmit(occupants[out], books=self._keeps_books)
        return out


def _leaving(occupant: Occupant) -> tuple[bool, int]:
    """Sorts by expected end, unknown last."""
    return (occupant.end_ms is None, occupant.end_ms or 0)
