"""What a file asks for, once read: jobs, queues, what was changed on the way, and what stands in the way.

Every field of a known object has a fate: it is read, it belongs to the program (image, command, volumes: the
cluster's business, not the scheduler's), it is noted (Tidegate does it otherwise, and says so), or it is refused,
because leaving it out would silently start the job where or when it must not. A field without a fate is refused, too:
it may be any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controlplane.domain.queues import QueueSpec
from controlplane.domain.workloads import JobSpec
from controlplane.intake.manifests.documents import Field
from controlplane.intake.traces import IntakeError


@dataclass(frozen=True, slots=True)
class Noted:
    """A field that is taken in otherwise than its own system means it; ``what`` goes on from its name."""

    what: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that cannot be left out; ``why`` goes on from its name, ``fix`` says what to do."""

    why: str
    fix: str = "remove it"


READ = None
"""The converter looks at it."""
PROGRAM = None
"""The cluster's business: it changes what runs, not where or when it starts."""
Fates = Mapping[str, Noted | Refused | None]


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should know before submitting."""

    file: str
    line: int
    what: str

    def sentence(self) -> str:
        """``file:line: what``."""
        return f"{self.file}:{self.line}: {self.what}"


@dataclass(frozen=True, slots=True)
class Context:
    """What the file does not say."""

    queue: str | None = None
    """For jobs that name none; ``None`` refuses them."""
    user: str = "unknown"
    priorities: Mapping[str, int] = field(default_factory=dict)
    """Priority classes that are defined elsewhere."""
    gpu_models: Mapping[str, str] = field(default_factory=dict)
    """Names of GPU models as manifests have them -> as nodes have them; others are taken as they are."""

    def model(self, name: str) -> str:
        """A GPU model in our nodes' words."""
        return self.gpu_models.get(name, name)


@dataclass(frozen=True, slots=True)
class Submission:
    """All of a file. Nothing of it should be submitted while there are refusals."""

    jobs: tuple[JobSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    """In the order in which they may be configured: a parent before its children."""
    implied_queues: tuple[QueueSpec, ...] = ()
    """Cohorts that the file only mentions: to be configured first, where they do not exist yet."""
    notes: tuple[Note, ...] = ()
    refusals: tuple[IntakeError, ...] = ()


@dataclass(slots=True)
class Draft:
    """A submission while it is read."""

    file: str
    context: Context
    jobs: list[JobSpec] = field(default_factory=list)
    queues: list[QueueSpec] = field(default_factory=list)
    implied: dict[str, QueueSpec] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    refusals: list[IntakeError] = field(default_factory=list)
    priorities: dict[str, int] = field(default_factory=dict)
    """Priority classes of the file and of the context."""

    def note(self, at: Field, what: str) -> None:
        """Tell about a field; ``what`` goes on from its name."""
        self.notes.append(Note(at.file, at.line, f"{at.path} {what}"))

    def refuse(self, at: Field, why: str, fix: str = "remove it") -> None:
        """Refuse a field, and go on looking for others."""
        self.refusals.append(at.fault(why, fix))

    def survey(self, at: Field, fates: Fates) -> None:
        """Gives every field of a mapping its fate."""
        for key, value in at.fields():
            if key not in fates:
                self.refuse(value, "is not a field that Tidegate knows", "remove it, or correct its name")
                continue
            fate = fates[key]
            if isinstance(fate, Noted):
                self.note(value, fate.what)
            elif isinstance(fate, Refused):
                self.refuse(value, fate.why, fate.fix)
