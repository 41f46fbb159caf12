"""The version of the core's behaviour, written into every cycle of the log."""

from __future__ import annotations

CORE = "1"
"""Changes whenever an old log would decide differently; see CHANGELOG.md."""
