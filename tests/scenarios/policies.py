"""The bundles that a story of the repository may name: folders of ``policies/``; ``default`` if it names none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from controlplane.policy.bundle import read_bundle_folder

POLICIES = Path(__file__).resolve().parent.parent.parent / "policies"


@cache
def shipped(name: str) -> Mapping[str, str]:
    """The files of a bundle."""
    return read_bundle_folder(POLICIES / (name or "default"))
