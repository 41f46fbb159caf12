"""MIG: the ways in which NVIDIA lets one GPU be cut into instances, as tables. Nothing here places anything.

A GPU has memory slices, counted from 0, and compute slices. A *profile* takes so many of each; its memory slices lie in
a row and begin at one of a few starts. Which memory slices are taken is a bit mask; one bit more stands for the media
extensions, of which a GPU has one set, so that "at most one ``+me`` instance" is the same arithmetic.

Profiles, their share of memory and of compute: NVIDIA, "Multi-Instance GPU User Guide", section "Supported MIG
Profiles" (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/supported-mig-profiles.html). Starts and sizes: what
``nvidia-smi mig -lgipp`` prints, beside each table below; profile ids as ``nvidia-smi mig -lgip`` gives them.

A *spot* says where one member sits on a node in one integer: a whole GPU or a part of it by its index, an instance by
its index and its start. Members in the log carry the two apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from controlplane.domain.quantities import MAX_GPUS_PER_NODE, mig_milli


@dataclass(frozen=True, slots=True)
class Profile:
    """One size of instance. ``memory`` and ``compute`` are counted in slices."""

    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]
    has_media: bool = False
    """Whether it takes the media extensions, of which there is one set."""

    def mask(self, start: int) -> int:
        """The slices that an instance takes which begins there."""
        return ((1 << self.memory) - 1) << start | (MEDIA if self.has_media else 0)


MEDIA = 1 << 16
"""The bit of the media extensions, above those of all memory slices."""


@dataclass(frozen=True)
class Geometry:
    """How one model of GPU may be cut."""

    name: str
    compute_slices: int
    memory_slices: int
    profiles: tuple[Profile, ...]

    @cached_property
    def by_name(self) -> dict[str, Profile]:
        """Its profiles by name."""
        return {profile.name: profile for profile in self.profiles}

    @property
    def whole(self) -> int:
        """The mask of a GPU that is taken as a whole."""
        return (1 << self.memory_slices) - 1 | MEDIA

    def milli(self, profile: Profile) -> int:
        """Milli-GPU that an instance counts: its part of the compute slices."""
        return mig_milli(profile.compute, self.compute_slices)


def _of_seven(name: str, memory_gb: tuple[str, str, str, str]) -> Geometry:
    """The cut into 7 compute and 8 memory slices; ``memory_gb`` of an eighth, a quarter, a half and all, as NVIDIA
    rounds them in the names.

    Profiles 19 and 20 at {0,1,2,3,4,5,6}:1, 15 at {0,2,4,6}:2, 14 at {0,2,4}:2, 9 at {0,4}:4, 5 at {0}:4, 0 at {0}:8.
    """
    eighth, quarter, half, whole = memory_gb
    return Geometry(
        name,
        compute_slices=7,
        memory_slices=8,
        profiles=(
            Profile(f"1g.{eighth}gb", 1, 1, (0, 1, 2, 3, 4, 5, 6)),
            Profile(f"1g.{eighth}gb+me", 1, 1, (0, 1, 2, 3, 4, 5, 6), has_media=True),
            Profile(f"1g.{quarter}gb", 1, 2, (0, 2, 4, 6)),
            Profile(f"2g.{quarter}gb", 2, 2, (0, 2, 4)),
            Profile(f"3g.{half}gb", 3, 4, (0, 4)),
            Profile(f"4g.{half}gb", 4, 4, (0,)),
            Profile(f"7g.{whole}gb", 7, 8, (0,)),
        ),
    )


A100_40 = _of_seven("A100-40", ("5", "10", "20", "40"))
"""User guide, "A100 MIG Profiles"; starts as printed on an A100-SXM4-40GB in its section "Creating GPU Instances"."""
A100_80 = _of_seven("A100-80", ("10", "20", "40", "80"))
"""User guide, "A100 MIG Profiles" (names "change according to the memory proportion"); starts as of the A100-40."""
H100_80 = _of_seven("H100-80", ("10", "20", "40", "80"))
"""User guide, "H100 MIG Profiles"; starts as printed on H100 80GB with drivers R535 and later."""
H200 = _of_seven("H200", ("18", "35", "71", "141"))
"""User guide, "H200 MIG Profiles": fractions 1/8, 2/8, 4/8 and full and instances 7, 1, 4, 3, 2, 1, 1 as on H100, the
same silicon (GH100) with larger memory; starts as of the H100."""
B200 = _of_seven("B200", ("23", "45", "90", "180"))
"""User guide, "B200 MIG Profiles": the same fractions and numbers of instances. It prints no starts for a B200; those
of the other GPUs cut in seven give these numbers, and NVIDIA's own mock of a B200 (go-nvml, ``b200.go``) has them."""
A30 = Geometry(
    "A30",
    compute_slices=4,
    memory_slices=4,
    profiles=(
        Profile("1g.6gb", 1, 1, (0, 1, 2, 3)),
        Profile("1g.6gb+me", 1, 1, (0, 1, 2, 3), has_media=True),
        Profile("2g.12gb", 2, 2, (0, 2)),
        Profile("2g.12gb+me", 2, 2, (0, 2), has_media=True),
        Profile("4g.24gb", 4, 4, (0,)),
    ),
)
"""User guide, "A30 MIG Profiles"; 14 and 21 at {0,1,2,3}:1, 5 and 6 at {0,2}:2, 0 at {0}:4."""

GEOMETRIES = (A100_40, A100_80, A30, H100_80, H200, B200)

MILLI_OF_PROFILE: dict[str, int] = {
    profile.name: geometry.milli(profile) for geometry in GEOMETRIES for profile in geometry.profiles
}
"""Profile name -> milli-GPU. The same name counts the same on every model that has it (a test holds that)."""

_GIB = 2**30
_BY_FAMILY: dict[str, tuple[tuple[int, int, Geometry], ...]] = {
    "A30": ((20, 26, A30),),
    "A100": ((36, 44, A100_40), (72, 88, A100_80)),
    "H100": ((72, 88, H100_80),),
    "H200": ((128, 145, H200),),
    "B200": ((164, 190, B200),),
}
"""Family -> (least GB, most GB, geometry). Drivers report a little less than the size in the name, and operators write
GB or GiB. The H100 with 94 or 96 GB is cut into other profiles and is not here."""
_WORDS = re.compile(r"[A-Z]+[0-9]+|[0-9]+")


def geometry_of(model: str, memory_bytes: int) -> Geometry | None:
    """How a model may be cut; ``None`` if it cannot be or nobody here knows.

    ``model`` as an operator writes it (``A100-40``, ``NVIDIA-A100-SXM4-80GB``, ``H200``); ``memory_bytes`` decides
    where it is known, else the number in the name, else there must be only one size of the family.
    """
    words = _WORDS.findall(model.upper())
    sizes = next((_BY_FAMILY[word] for word in words if word in _BY_FAMILY), ())
    numbers = [int(word) for word in words if word.isdigit()]
    gigabytes = [memory_bytes // _GIB] if memory_bytes else numbers
    found = [geometry for least, most, geometry in sizes if any(least <= gb <= most for gb in gigabytes)]
    if found:
        return found[0]
    return sizes[0][2] if len(sizes) == 1 and not memory_bytes and not numbers else None


# --- spots -----------------------------------------------------------------------------------------------------------


def spot(gpu: int, start: int) -> int:
    """The instance that begins at memory slice ``start`` of a GPU."""
    return gpu + MAX_GPUS_PER_NODE * (start + 1)


def gpu_of(spot_: int) -> int:
    """The index of the GPU of a spot."""
    return spot_ % MAX_GPUS_PER_NODE


def start_of(spot_: int) -> int:
    """Where the instance of a spot begins; -1 for a whole GPU or a part of one that is not cut."""
    return spot_ // MAX_GPUS_PER_NODE - 1


def spots(gpus: tuple[int, ...], slices: tuple[int, ...]) -> tuple[int, ...]:
    """The spots of a member in the log."""
    return tuple([spot(gpu, start) for gpu, start in zip(gpus, slices, strict=True)]) if slices else gpus


def gpus_of(spots_: tuple[int, ...]) -> tuple[int, ...]:
    """The GPUs of a member, as the log has them."""
    return spots_ if not spots_ or max(spots_) < MAX_GPUS_PER_NODE else tuple([gpu_of(spot_) for spot_ in spots_])


def slices_of(spots_: tuple[int, ...]) -> tuple[int, ...]:
    """The starts of a member's instances, as the log has them; empty for whole GPUs and parts of them."""
    return () if not spots_ or max(spots_) < MAX_GPUS_PER_NODE else tuple([start_of(spot_) for spot_ in spots_])
