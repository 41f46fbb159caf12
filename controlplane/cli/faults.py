"""Exit codes, and the one sentence for everything that can go wrong without being a bug.

===  ===============================================================================================================
0    done; the answer is yes
1    the answer is no: a verification, check or test failed, or the log is damaged
2    wrong use or bad input; a sentence on standard error says where, what is wrong, and what to do
3    the outside world failed: no room on the disk, a database out of reach
70   a bug in Tidegate; the traceback is printed, since only a bug has one
130  interrupted (128 and the number of the signal)
141  whoever read the output stopped reading
===  ===============================================================================================================
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable

from typer import Abort, Exit
from typer._click.exceptions import UsageError  # which Typer raises and does not export

DONE, NO, WRONG, OUTSIDE = 0, 1, 2, 3
BUG = 70
INTERRUPTED = 128 + signal.SIGINT
UNREAD = 128 + signal.SIGPIPE


class WrongUse(Exception):
    """What was asked cannot be done; the text is one sentence for a person."""


class Interrupted(KeyboardInterrupt):
    """The process was told to stop by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def exit_code_of(command: Callable[[], int]) -> int:
    """Run a command to its exit code; whatever goes wrong has been said on standard error then."""
    code = _code_of(command)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # it has been told above; the interpreter would try again, fail, and end with 120
        _close_stdout()
    return code


def _code_of(command: Callable[[], int]) -> int:
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
        return UNREAD
    except KeyboardInterrupt as interrupt:
        _say("interrupted")
        return 128 + interrupt.number if isinstance(interrupt, Interrupted) else INTERRUPTED
    except Exit as left:
        return left.exit_code
    except Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost place: what is not known below is a bug and shown as one
        return _told(error)
    return code


def _told(error: Exception) -> int:
    known = _usage(error) or _of_the_log(error) or _of_the_input(error) or _of_the_system(error)
    if known is None:
        traceback.print_exception(error)
        _say("the above is a bug in Tidegate; please report it with what you ran")
        return BUG
    code, sentence = known
    _say(sentence)
    return code


def _say(sentence: str) -> None:
    """One line, whatever the sentence quotes."""
    print(f"tidegate: {' '.join(sentence.split())}", file=sys.stderr)


Known = tuple[int, str] | None
"""Exit code and sentence, if this is an error that the function knows."""


def _usage(error: Exception) -> Known:
    if isinstance(error, WrongUse):
        return WRONG, str(error)
    if isinstance(error, UsageError):
        command = error.ctx.command_path if error.ctx is not None else "tidegate"
        return WRONG, f"{error.format_message().rstrip('.')}; see `{command} --help`"
    return None


def _of_the_log(error: Exception) -> Known:
    from controlplane.domain.codec import MalformedEvent, UnknownEvent
    from controlplane.eventlog.port import HeadMoved, LogDamaged, LogUnavailable, LogUnusable

    match error:
        case LogDamaged() | MalformedEvent():
            return NO, f"the log is damaged: {error}; `tidegate log verify` says more"
        case LogUnavailable():
            return OUTSIDE, str(error)
        case LogUnusable() | HeadMoved() | UnknownEvent():
            return WRONG, str(error)
        case _:
            return None


def _of_the_input(error: Exception) -> Known:
    from controlplane.audit.thresholds import BadThreshold
    from controlplane.audit.whatif import NothingDecided
    from controlplane.audit.why import NoSuchJob
    from controlplane.intake.traces import IntakeError
    from controlplane.policy.problems import BundleRefused
    from controlplane.runtime.agents import NoAgent
    from controlplane.simulate.world import WorldFault

    match error:
        case BundleRefused():
            return WRONG, refusal(error)
        case IntakeError() | WorldFault() | NoSuchJob() | NothingDecided() | BadThreshold():
            return WRONG, str(error)
        case NoAgent():
            return OUTSIDE, str(error)
        case _:
            return None


def refusal(error: Exception, folder: str = "") -> str:
    """The first problem of a refused bundle in one line, and how many more there are."""
    from controlplane.policy.problems import BundleRefused

    assert isinstance(error, BundleRefused)
    first, more = error.problems[0], len(error.problems) - 1
    place = f"{first.file}:{first.line}:{first.column}" if first.code != "folder" else first.file
    if folder and first.code != "folder":
        place = f"{folder.rstrip('/')}/{place}"
    rest = f" (and {more} more: `tidegate policy check` lists them)" if more else ""
    return f"{place}: {first.message}{rest}"


def _of_the_system(error: Exception) -> Known:
    if isinstance(error, MemoryError):
        return OUTSIDE, "out of memory"
    if not isinstance(error, OSError):
        return None
    from controlplane.eventlog.paths import BAD_PATHS

    what = error.strerror or str(error)
    sentence = f"{error.filename}: {what}" if error.filename else what
    return (WRONG if error.filename and error.errno in BAD_PATHS else OUTSIDE), sentence


def _close_stdout() -> None:
    """Let the interpreter's own last flush go nowhere."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # no real file: a test's
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115 - lives as long as the process
