"""Warm pools: room that is kept free for services, so that a replica starts at once when it is wanted.

Theory of operation. A pool holds blocks (see :mod:`controlplane.scheduler.blocks`). On the draft of a cycle a block is
taken from its node, so that whoever is placed finds it occupied; for a service the pools that are open to it are let go
of while it is placed, and what it left of them is held again. What is missing is held anew at once from whatever is
free, and at the latest at the beginning of the cycle that sees room become free, before anybody is placed. So a pool is
short only while there is no room that it could hold.

What is held stays where it is as long as it can. New blocks are taken from the nodes that have least free besides, so
that whole nodes stay whole, and never where room is promised or a start is reserved. The log records each change of
what is held; the state carries it, so that people see it and the invariants can look.

Only owned nodes are held: holding a rented one would pay for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from controlplane.domain.clusters import WarmPool
from controlplane.domain.events import Event, HeldPool, WarmBlock, WarmPoolsHeld
from controlplane.domain.quantities import MILLI
from controlplane.domain.reasons import Reason
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.blocks import amounts_of, is_open_to, suits
from controlplane.scheduler.draft import Draft
from controlplane.scheduler.kinds import Amounts, Kind, can_sit
from controlplane.scheduler.quota import QueueNode
from controlplane.scheduler.reservations import Reservations
from controlplane.scheduler.state import Block, Job, State
from controlplane.scheduler.verdicts import WarmHold


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """A block on the draft."""

    row: int
    amounts: Amounts
    gpus: tuple[int, ...]


Opened = tuple[str, ...]
"""Names of pools that are let go of for the moment."""


class Warm:
    """The warm pools of one cycle, on its draft."""

    def __init__(
        self, state: State, agenda: Agenda, draft: Draft, reservations: Reservations, emit: Callable[[Event], None]
    ) -> None:
        self._state = state
        self._agenda = agenda
        self._draft = draft
        self._reservations = reservations
        self._emit = emit
        self._held: dict[str, list[_Held]] = {}
        self._told = {name: pool.blocks for name, pool in state.pools.items()}

    def hold(self) -> None:
        """Hold what was held, as far as it is there, and what is missing. To be reported before anybody is placed."""
        if not self._state.pools:
            return
        for name, pool in self._state.pools.items():
            rows = [(self._agenda.rows.get(at, -1), gpus) for at, gpus in pool.blocks]
            known = [self._block(pool.spec, row, gpus) for row, gpus in rows if row >= 0]
            self._held[name] = [block for block in known if block is not None and self._is_held(block)]
        self._refill()

    def report(self) -> None:
        """Say what is held now and was not before, and the other way round."""
        changed = {name: blocks for name in self._held if (blocks := self._blocks(name)) != self._told[name]}
        if not changed:
            return
        self._told.update(changed)
        pools = (
            HeldPool(pool=name, blocks=tuple(WarmBlock(node=at.name, gpus=gpus) for at, gpus in blocks))
            for name, blocks in changed.items()
        )
        self._emit(WarmPoolsHeld(pools=tuple(pools)))

    def open_to(self, job: Job, queue: QueueNode) -> Opened:
        """Let go of the pools that the job may take from; to be closed again when it was tried."""
        if not self._held or not job.cls.is_service:
            return ()
        return self._open(tuple(name for name in self._held if is_open_to(self._spec(name), queue)))

    def open_all(self) -> Opened:
        """Let go of every pool, to see what would be if there were none."""
        return self._open(tuple(self._held))

    def close(self, opened: Opened) -> None:
        """Hold again what was let go of and is left; in place of what was taken, something else."""
        if not opened:
            return
        before = sum(len(self._held[name]) for name in opened)
        for name in opened:
            self._held[name] = [block for block in self._held[name] if self._is_held(block)]
        if sum(len(self._held[name]) for name in opened) < before:
            # What is left of a broken block may be enough for one of any pool.
            self._refill()

    def is_fleeting(self, reason: Reason) -> bool:
        """Whether it may be another in the next cycle though nothing was freed: whether room that is free is held or
        reserved changes with every service that takes some."""
        return bool(self._held or self._state.services) and reason in (Reason.RESERVED, Reason.HELD_WARM)

    def told(self) -> list[WarmHold]:
        """What is held, pool by pool, for whoever asks why it waits."""
        return [
            WarmHold(
                name,
                sum(len(gpus) for _, gpus in blocks),
                tuple(dict.fromkeys(at.name for at, _ in blocks)),
                self._spec(name).queue,
            )
            for name in self._held
            if (blocks := self._blocks(name))
        ]

    # --- blocks ------------------------------------------------------------------------------------------------------

    def _open(self, names: Opened) -> Opened:
        for name in names:
            for block in self._held[name]:
                self._draft.let_go(block.row, block.amounts, block.gpus)
        return names

    def _spec(self, name: str) -> WarmPool:
        return self._state.pools[name].spec

    def _block(self, spec: WarmPool, row: int, gpus: tuple[int, ...]) -> _Held | None:
        node = self._agenda.nodes[row]
        if not suits(spec, node.build_now, is_rented=node.request is not None):
            return None
        return _Held(row, amounts_of(self._state.kinds, node.build, len(gpus)), gpus)

    def _is_held(self, block: _Held) -> bool:
        """Hold it if it is free."""
        is_free = can_sit(self._kind(block.row), block.amounts, block.gpus)
        if is_free:
            self._draft.hold(block.row, block.amounts, block.gpus)
        return is_free

    def _kind(self, row: int) -> Kind:
        return self._state.kinds.kinds[self._draft.column[row]]

    def _blocks(self, name: str) -> tuple[Block, ...]:
        return tuple((self._agenda.nodes[block.row].id, block.gpus) for block in self._held[name])

    # --- what is missing ---------------------------------------------------------------------------------------------

    def _refill(self) -> None:
        for name in self._held:
            missing = self._spec(name).blocks - len(self._held[name])
            if missing > 0:
                self._fill(name, missing)

    def _fill(self, name: str, missing: int) -> None:
        spec = self._spec(name)
        for row in self._fitting(spec):
            while missing > 0 and (gpus := _free(self._kind(row), spec.gpus)) is not None:
                block = self._block(spec, row, gpus)
                if block is None or not self._is_held(block):
                    break
                self._held[name].append(block)
                missing -= 1
            if missing == 0:
                return

    def _fitting(self, spec: WarmPool) -> list[int]:
        """Rows with room for a block of the pool: those that have least free first, then by name."""
        column, kinds = self._draft.column.kinds, self._state.kinds.kinds
        present, of_row = np.unique(column, return_inverse=True)
        free = np.array([self._room(spec, kinds[kind]) for kind in present.tolist()], dtype=np.int64)
        by_row = free[of_row] if free.size else np.zeros(0, dtype=np.int64)
        by_row[self._agenda.rented_rows] = 0
        by_row[self._reservations.rows_kept()] = 0
        rows = np.flatnonzero(by_row > 0)
        ordered: list[int] = rows[np.argsort(by_row[rows], kind="stable")].tolist()
        return ordered

    def _room(self, spec: WarmPool, kind: Kind) -> int:
        """Milli-GPU that is free on such a node, if a block of the pool would fit it; else 0."""
        if not suits(spec, kind.build, is_rented=False) or (gpus := _free(kind, spec.gpus)) is None:
            return 0
        amounts = amounts_of(self._state.kinds, kind.build, spec.gpus)
        return sum(kind.gpu_free) if can_sit(kind, amounts, gpus) else 0


def _free(kind: Kind, count: int) -> tuple[int, ...] | None:
    """The first so many GPUs of which nothing is used."""
    free = [gpu for gpu, milli in enumerate(kind.gpu_free) if milli == MILLI and not (kind.slices and kind.slices[gpu])]
    return tuple(free[:count]) if len(free) >= count else None
