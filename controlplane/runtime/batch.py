"""For commands that build up much and end: how often Python looks for garbage.

PROBLEM: a simulation or a replay makes millions of objects that live on (jobs, leases, kinds) and next to none in
cycles. The collector's default is to look whenever 700 more have been made, and it looks at those that live on again
and again: an eighth of the whole run.

SOLUTION: within :func:`rare_collection` what is there already (modules, compiled rules, workload) is left out, and the
collector looks a hundred times less often. It still looks: cycles are found, only later. Objects that are in no cycle
go at once, as ever. Nothing that is decided depends on it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG = 70_000
"""Objects made, less those gone, before the collector looks: a hundred times the default."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely inside, as before outside. May be nested: only the outermost counts."""
    before = gc.get_threshold()
    if before[0] == 0 or before[0] >= YOUNG:  # switched off, or rare already
        yield
        return
    gc.freeze()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
