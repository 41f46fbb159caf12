"""The version of the core's behaviour, written into every cycle of the log."""

from __future__ import annotations

CORE = "2"
"""Changes whenever an old log would decide differently; see CHANGELOG.md."""
FIRST_CORE = "1"
KNOWN_CORES = (FIRST_CORE, CORE)
"""Versions whose rules this code still follows: a cycle is decided again by the version that decided it."""
