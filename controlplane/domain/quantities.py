"""Exact amounts and their bounds.

Everything that is counted is an integer: milli-GPU, milli-CPU, bytes, micro-dollars, milliseconds. The bounds keep
every sum of the core inside a signed 64-bit integer and every single amount inside what JSON readers keep exactly
(2^53). Rounding happens only in the functions of this module, and each says which way.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

GPU = "gpu"
CPU = "cpu"
MEMORY = "memory"

MILLI = 1_000
PPM = 1_000_000
PPB = 1_000_000_000
MS_PER_HOUR = 3_600_000

MAX_AMOUNT = 2**53 - 1
MAX_GPUS_PER_NODE = 1_024
"""The largest single-image GPU machines on sale hold 72 (NVL72) to 256 (GH200 pods); 1,024 leaves room."""
MAX_MEMBERS = 100_000
MAX_MS = 2**53 - 1

Amount = Annotated[int, Field(ge=0, le=MAX_AMOUNT, strict=True)]
Millis = Annotated[int, Field(ge=0, le=MAX_MS, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._/@:+-]*[A-Za-z0-9])?$")]


def ceil_div(numerator: int, denominator: int) -> int:
    """Round up, towards plus infinity."""
    return -(-numerator // denominator)


def share_ppb(used: int, total: int) -> int:
    """A share in parts per billion, rounded up, so that using anything is never a share of zero.

    A total of zero gives 0 if nothing is used and the largest share otherwise.
    """
    if used <= 0:
        return 0
    if total <= 0:
        return MAX_AMOUNT
    return min(MAX_AMOUNT, ceil_div(used * PPB, total))


def memory_milli(asked_bytes: int, gpu_memory_bytes: int) -> int:
    """The part of a GPU that a part of its memory counts, rounded up: parts that fit by this count fit by bytes.

    More than the GPU has gives more than 1,000. Of a GPU that does not say its memory no part fits.
    """
    return ceil_div(asked_bytes * MILLI, gpu_memory_bytes) if gpu_memory_bytes else MAX_AMOUNT


def mig_milli(slices: int, slices_in_all: int) -> int:
    """Milli-GPU of a MIG instance by its compute slices, rounded down: those of a GPU never count more than it."""
    return slices * MILLI // slices_in_all


def cost_micro_usd(price_micro_usd_per_hour: int, duration_ms: int) -> int:
    """Price times time, rounded up to the micro-dollar: a promise must never be smaller than the bill."""
    return ceil_div(price_micro_usd_per_hour * duration_ms, MS_PER_HOUR)
