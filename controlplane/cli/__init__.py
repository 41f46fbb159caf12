"""The command ``tidegate``: the composition root.

Here the floors below are put together and their answers are printed, for people or as JSON. Nothing is decided,
computed or stored here. Modules import what is heavy inside the command that needs it, so that ``--help`` is quick.
"""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper
from types import FrameType

from controlplane.cli.app import app
from controlplane.cli.faults import Interrupted

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line. Leaves by ``SystemExit`` with one of the codes of :mod:`controlplane.cli.faults`."""
    # Like Ctrl-C, so that a draft is removed and a transaction rolled back before the process goes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    # A name need not be text, nor does every terminal have all of its letters: what cannot be printed is escaped.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="tidegate")


def _interrupt(number: int, _: FrameType | None) -> None:
    raise Interrupted(number)
