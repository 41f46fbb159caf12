"""Changing the policy of a log from outside the plane: what was active and shadowed so far, and one more event.

Nothing is folded and nothing decided, so that it works while no plane runs, and on a log of any length. Beside a plane
that runs, whoever appends second is refused by the expected head: the plane folds the change and decides again, and a
person runs the command again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from controlplane.domain.codec import MalformedEvent, decode
from controlplane.domain.events import Event, PolicyActivated, PolicyShadowed, ShadowEnded, ShadowFailed
from controlplane.eventlog.port import EMPTY, EventLog, Head, HeadMoved, LogDamaged, LogUnavailable, Record
from controlplane.policy.bundle import Bundle, load_bundle
from controlplane.runtime.entries import entry_of

Progress = Callable[[int, int], None]
"""(records done, records in all)."""
STEP = 20_000
SHORT = 12
"""Characters of a digest that people are shown, as many as Git shows of a large repository."""
LEAST = 6
"""Characters of a digest that must be given."""
CHANGES = frozenset(event.TYPE for event in (PolicyActivated, PolicyShadowed, ShadowEnded, ShadowFailed))


class NoSuchBundle(Exception):
    """The log has no bundle of that digest, or several; one sentence."""


class Change(NamedTuple):
    """A change of policy as the log has it."""

    position: int
    at_ms: int
    author: str
    """The person (or, of a failure, the plane)."""
    event: Event


@dataclass(slots=True)
class Standing:
    """What stands at the end of a log. ``at_ms`` is its clock there, at which whatever is appended now is recorded."""

    head: Head = EMPTY
    at_ms: int = 0
    active: Change | None = None
    shadow: Change | None = None
    failure: str = ""
    """Why the shadow is not asked any more."""
    texts: dict[str, PolicyActivated | PolicyShadowed] = field(default_factory=dict)
    """By digest: every bundle whose text the log carries."""

    def take(self, change: Change) -> None:
        """One more change, as the fold takes it."""
        event = change.event
        match event:
            case PolicyActivated():
                self.active = change
                if self.shadow_digest == event.digest:
                    self.shadow = None
            case PolicyShadowed():
                self.shadow, self.failure = change, ""
            case ShadowEnded():
                self.shadow = None
            case ShadowFailed() if event.policy == self.shadow_digest:
                self.failure = event.cause
            case _:
                pass
        if isinstance(event, PolicyActivated | PolicyShadowed):
            self.texts[event.digest] = event

    @property
    def active_digest(self) -> str:
        """Of the active bundle; empty if there is none."""
        return _digest(self.active)

    @property
    def shadow_digest(self) -> str:
        """The same of the shadow."""
        return _digest(self.shadow)

    def bundle(self, digest: str) -> Bundle:
        """The bundle of that digest, or whose digest begins so, from the log's own text.

        Raises :class:`NoSuchBundle`, and :class:`~controlplane.policy.problems.BundleRefused` if this version does not
        load it.
        """
        found = [known for known in self.texts if known.startswith(digest)] if len(digest) >= LEAST else []
        if not found:
            known = ", ".join(f"{event.digest[:SHORT]} ({event.name})" for event in self.texts.values()) or "none"
            raise NoSuchBundle(f"the log carries no bundle whose digest begins with {digest!r}; it has {known}")
        if len(found) > 1:
            several = ", ".join(known[:SHORT] for known in found)
            raise NoSuchBundle(f"{digest!r} begins the digest of {len(found)} bundles: write more of it ({several})")
        bundle = load_bundle(self.texts[found[0]].files)
        if bundle.digest != found[0]:
            raise NoSuchBundle(
                f"the text of {found[0][:SHORT]} in the log has another digest; `tidegate replay --verify` says where"
            )
        return bundle


def _digest(change: Change | None) -> str:
    event = change.event if change is not None else None
    return event.digest if isinstance(event, PolicyActivated | PolicyShadowed) else ""


def changes(log: EventLog, until: int | None = None) -> Iterator[tuple[Record, Change | None]]:
    """Every record up to a position, and what change of policy it is, if it is one."""
    for record in log.read(0, until):
        if record.type not in CHANGES:
            yield record, None
            continue
        try:
            event = decode(record.type, record.payload)
        except MalformedEvent as error:
            raise LogDamaged(record.position, str(error)) from error
        yield record, Change(record.position, record.recorded_at_ms, record.actor, event)


def standing(log: EventLog, progress: Progress | None = None) -> Standing:
    """What stands at the end of a log. Raises what the log's ``read`` raises."""
    found, total = Standing(), log.head().position
    for record, change in changes(log):
        if change is not None:
            found.take(change)
        found.head = Head(record.position, record.digest)
        found.at_ms = max(found.at_ms, record.recorded_at_ms)
        if progress is not None and record.position % STEP == 0:
            progress(record.position, total)
    return found


def append_change(log: EventLog, at: Standing, event: Event, author: str) -> Head:
    """Append a change behind what was read, in one transaction. Gives the new head.

    Raises :class:`~controlplane.eventlog.port.LogUnavailable` if somebody else appended since, and what the log's
    ``append`` raises; in both cases nothing was written.
    """
    try:
        return log.append([entry_of(event, author, at.at_ms)], at.head)
    except HeadMoved as error:
        went = f"it went from position {at.head.position:,} to {log.head().position:,}"
        raise LogUnavailable(
            f"{log.url}: a writer has appended in the meantime ({went}), so nothing was written; run the command again"
        ) from error
