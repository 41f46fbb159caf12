"""What queues have used, less the longer ago it was: an exponentially decayed share, in exact integers.

Theory of operation. After each whole sampling interval ``s``, with half-life ``h`` and the dominant share ``new`` that
the queue has then,

    usage <- (1 - a) usage + a new,    1 - a = 0.5^(s/h)

(SCENARIOS A9; Slurm's multifactor priority decays usage in the same way). While ``new`` stays the same, ``k`` intervals
are one step with ``0.5^(k s/h)``, so that a long pause costs no more than a short one.

``0.5^x`` is a product: the whole part of ``x`` shifts, and each binary digit of its fraction that is set multiplies by
``0.5^(2^-i)``, from a table that is made of integer square roots. Numbers have 62 binary digits behind the point and
are rounded down; of usage 20 are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

from controlplane.domain.quantities import PPB, ceil_div
from controlplane.domain.queues import HistorySpec

DIGITS = 62
ONE = 1 << DIGITS
KEPT = 1 << 20
"""Usage is counted in this many parts of a billionth."""


def _roots() -> tuple[int, ...]:
    """``0.5^(1/2)``, ``0.5^(1/4)``, and so on, each the root of the one before."""
    roots: list[int] = []
    at = ONE >> 1
    for _ in range(DIGITS):
        at = isqrt(at << DIGITS)
        roots.append(at)
    return tuple(roots)


_ROOTS = _roots()
MOST = 1_000 * PPB
"""A queue that uses more than this share (of what is left when nodes are lost) counts so much: sums stay below 2^63."""


def remaining(elapsed_ms: int, half_life_ms: int) -> int:
    """``0.5^(elapsed / half-life)``, in parts of :data:`ONE`, rounded down."""
    whole, rest = divmod(elapsed_ms, half_life_ms)
    if whole > DIGITS:
        return 0
    fraction = (rest << DIGITS) // half_life_ms
    left = ONE
    for at, root in enumerate(_ROOTS, start=1):
        if fraction >> (DIGITS - at) & 1:
            left = left * root >> DIGITS
    return left >> whole


@dataclass(slots=True)
class History:
    """Of all queues and cohorts. ``folded_ms`` is the end of the last interval that was taken in."""

    spec: HistorySpec
    folded_ms: int
    usage: dict[str, int] = field(default_factory=dict)
    """Queue -> its decayed share, in parts of a billionth, so many as :data:`KEPT` says. What has decayed to nothing is
    gone."""

    def is_due(self, now_ms: int) -> bool:
        """Whether a whole interval has passed."""
        return now_ms - self.folded_ms >= self.spec.sample_ms

    def fold(self, now_ms: int, shares: dict[str, int]) -> None:
        """Take in the whole intervals that have passed; ``shares`` is in parts per billion, of every queue."""
        intervals = (now_ms - self.folded_ms) // self.spec.sample_ms
        if intervals <= 0:
            return
        elapsed_ms = intervals * self.spec.sample_ms
        self.folded_ms += elapsed_ms
        left = remaining(elapsed_ms, self.spec.half_life_ms)
        usage: dict[str, int] = {}
        for name, share in shares.items():
            after = (left * self.usage.get(name, 0) + (ONE - left) * min(share, MOST) * KEPT) >> DIGITS
            if after:
                usage[name] = after
        self.usage = usage

    def ppb(self, queue: str) -> int:
        """The decayed share of a queue in parts per billion, rounded up."""
        return ceil_div(self.usage.get(queue, 0), KEPT)
