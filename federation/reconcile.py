"""What to do about the difference between what is wanted and what is there: two tables, and nothing else.

PROBLEM: deliveries come twice, late or out of order; clusters lose things, keep things, and finish things in the very
moment in which they are no longer wanted. Code that branches on messages forgets a case.

SOLUTION: messages change only what the agent knows (the row), views change only what it sees (the column), and the
cell says what to do. Every cell is filled in, so that no combination is an accident. An empty cell means that the next
change, or a retry, will bring the lease to another cell.

It may not act, remember, or know the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from federation.port import SeenCapacityPhase, SeenPhase


class Wanted(StrEnum):
    """What the agent knows about the plane's wish, for a lease or a capacity request."""

    WANTED = "wanted"
    """Granted; as far as this agent knows it was never launched."""
    HELD = "held"
    """Granted, and launched or found in the cluster."""
    CHANGED = "changed"
    """The same, and its members are to be others than those that it was launched or last resized with."""
    UNWANTED = "unwanted"
    """Revoked, released or past its deadline; how it ended has not been reported."""
    OVER = "over"
    """How it ended has been reported; the report is not known to be in the log."""
    SETTLED = "settled"
    """How it ended is in the log."""
    ORPHAN = "orphan"
    """In the cluster, but unknown to the plane."""


class Act(StrEnum):
    """What can be done about a lease."""

    LAUNCH = "launch"
    END = "end"
    RESIZE = "resize"
    ADOPT = "adopt"
    """Take what is found as what was wanted."""
    REPORT = "report"
    """Tell the plane what is seen."""
    REPORT_LOST = "report-lost"
    """Tell the plane that it is gone, or was stopped by somebody else."""
    REPORT_ENDED = "report-ended"
    """Tell the plane that it was stopped, or never started, as wished."""
    FORGET = "forget"


class CapacityAct(StrEnum):
    """What can be done about a capacity request."""

    REQUEST = "request"
    RELEASE = "release"
    ADOPT = "adopt"
    REPORT = "report"
    REPORT_RELEASED = "report-released"
    """Tell the plane that nothing of it is there."""


_LEASE_CODES: dict[str, tuple[Act, ...]] = {
    "-": (),
    "L": (Act.LAUNCH,),
    "E": (Act.END,),
    "A": (Act.ADOPT,),
    "A+R": (Act.ADOPT, Act.REPORT),
    "R": (Act.REPORT,),
    "lost": (Act.REPORT_LOST,),
    "ended": (Act.REPORT_ENDED,),
    "R+E": (Act.REPORT, Act.END),
    "R+Z": (Act.REPORT, Act.RESIZE),
    "R+F": (Act.REPORT, Act.FORGET),
    "F": (Act.FORGET,),
}

# HELD and ENDING: the cluster stops it by itself; how that ends is reported when it is known.
# HELD and ENDED: somebody stopped it behind the plane's back, so it is lost, not ended as wished.
# UNWANTED and FINISHED: it was done before the revocation reached it, and that is what happened (one end, not two).
# OVER, SETTLED and RUNNING: a launch that was thought to have failed appears late: it is ended.
_LEASES = """
            absent  launching  running  ending  finished  failed  lost  refused  ended
wanted      L       A+R        A+R      A       R         R       R     R        lost
held        lost    R          R        -       R         R       R     R        lost
changed     lost    R+Z        R+Z      -       R         R       R     R        lost
unwanted    ended   E          E        -       R         R       R     R        ended
over        -       E          E        -       -         -       -     -        -
settled     F       E          E        -       F         F       F     F        F
orphan      -       R+E        R+E      -       R+F       R+F     R+F   R+F      R+F
"""

_CAPACITY_CODES: dict[str, tuple[CapacityAct, ...]] = {
    "-": (),
    "Q": (CapacityAct.REQUEST,),
    "X": (CapacityAct.RELEASE,),
    "A": (CapacityAct.ADOPT,),
    "A+R": (CapacityAct.ADOPT, CapacityAct.REPORT),
    "R": (CapacityAct.REPORT,),
    "gone": (CapacityAct.REPORT_RELEASED,),
    "R+X": (CapacityAct.REPORT, CapacityAct.RELEASE),
}

# CHANGED: a request never is; it would be as HELD.
# UNWANTED and PROVIDED: released while it was on its way, and it appeared all the same: it is ended.
# OVER, SETTLED and RELEASED: reported again if the charge is another (the agent reports each figure once).
_CAPACITY = """
            absent  asked  provided  releasing  failed  released
wanted      Q       A      A+R       A          R       R
held        gone    -      R         -          R       R
changed     gone    -      R         -          R       R
unwanted    gone    X      X         -          R       R
over        -       X      X         -          -       R
settled     -       X      X         -          -       R
orphan      -       R+X    R+X       -          R       R
"""


def _cells(grid: str) -> dict[tuple[str, str], str]:
    """Row and column names -> code."""
    head, *rows = (line.split() for line in grid.strip().splitlines())
    return {(row[0], column): code for row in rows for column, code in zip(head, row[1:], strict=True)}


LEASE_TABLE: dict[tuple[Wanted, SeenPhase], tuple[Act, ...]] = {
    (Wanted(row), SeenPhase(column)): _LEASE_CODES[code] for (row, column), code in _cells(_LEASES).items()
}
CAPACITY_TABLE: dict[tuple[Wanted, SeenCapacityPhase], tuple[CapacityAct, ...]] = {
    (Wanted(row), SeenCapacityPhase(column)): _CAPACITY_CODES[code] for (row, column), code in _cells(_CAPACITY).items()
}


class Action(NamedTuple):
    """One thing to do about one lease."""

    act: Act
    lease: str


class CapacityAction(NamedTuple):
    """One thing to do about one capacity request."""

    act: CapacityAct
    request: str


def reconcile(wanted: Mapping[str, Wanted], observed: Mapping[str, SeenPhase]) -> list[Action]:
    """What to do about each lease, in the order of ``wanted``, then of what was only observed.

    A lease that is missing from ``observed`` is absent, one that is missing from ``wanted`` is an orphan. The answer
    for one lease depends on that lease only, so any part of the two mappings may be asked about by itself.
    """
    actions = [
        Action(act, lease)
        for lease, phase in wanted.items()
        for act in LEASE_TABLE[phase, observed.get(lease, SeenPhase.ABSENT)]
    ]
    for lease, seen in observed.items():
        if lease not in wanted:
            actions.extend(Action(act, lease) for act in LEASE_TABLE[Wanted.ORPHAN, seen])
    return actions


def reconcile_capacity(wanted: Mapping[str, Wanted], observed: Mapping[str, SeenCapacityPhase]) -> list[CapacityAction]:
    """The same for capacity requests."""
    actions = [
        CapacityAction(act, request)
        for request, phase in wanted.items()
        for act in CAPACITY_TABLE[phase, observed.get(request, SeenCapacityPhase.ABSENT)]
    ]
    for request, seen in observed.items():
        if request not in wanted:
            actions.extend(CapacityAction(act, request) for act in CAPACITY_TABLE[Wanted.ORPHAN, seen])
    return actions
