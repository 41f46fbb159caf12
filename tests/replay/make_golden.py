"""Writes the golden logs of the present core version: ``python -m tests.replay.make_golden``.

Golden logs are exported logs of stories of ours, never of real traces. Those of a version that was released are never
written again: they must still verify, or the core version must say why not. Until then a change to what the core
decides is followed by running this, and the change of the files is reviewed like any other.
"""

from __future__ import annotations

from pathlib import Path

from controlplane.domain.events import LeaseGranted
from controlplane.domain.version import CORE
from controlplane.eventlog.export import export_log
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import EMPTY, Entry, EventLog, Record
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import read_story
from tests.scenarios.policies import shipped

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
BAD = GOLDEN / "bad"
SCENARIOS = HERE.parent / "scenarios"
STORIES = (
    HERE / "worlds" / "small-company.yaml",
    HERE / "worlds" / "an-offer-that-fails.yaml",
    HERE / "worlds" / "elastic-gangs.yaml",
    HERE / "worlds" / "parts-and-instances.yaml",
    HERE / "worlds" / "near-each-other.yaml",
    HERE / "worlds" / "promised-room.yaml",
    HERE / "worlds" / "one-after-another.yaml",
    SCENARIOS / "b3-victims-in-one-rack.yaml",
    SCENARIOS / "b5-a-node-under-a-gang-dies-and-returns.yaml",
    SCENARIOS / "e4-mig-a-slice-in-the-wrong-place.yaml",
    SCENARIOS / "g1-a-budget-for-two.yaml",
    SCENARIOS / "i1-a-service-grows-by-shrinking-training.yaml",
    SCENARIOS / "i2-by-eviction-within-the-bound-and-not-beyond.yaml",
    SCENARIOS / "i3-what-is-not-needed-is-given-back.yaml",
    SCENARIOS / "i5-a-warm-pool.yaml",
)
"""One for each feature whose decisions should stay what they are."""


def played(story: Path) -> EventLog:
    """The log of a story."""
    stage = Stage(read_story(story.name, story.read_text(encoding="utf-8")), shipped)
    stage.play(lambda moment: None)
    return stage.log


def sealed(records: list[Record]) -> MemoryLog:
    """A log of these records under a new, sound chain: what somebody would make who hides a change."""
    log = MemoryLog()
    log.append([Entry(*record[1:8]) for record in records], EMPTY)
    return log


def with_edited_decision(records: list[Record]) -> tuple[int, list[Record]]:
    """The middle placement goes to another node of the log; gives the position of the lie."""
    granted = [at for at, record in enumerate(records) if record.type == LeaseGranted.TYPE]
    at = granted[len(granted) // 2]
    lie = records[at].payload.replace(b'"node":"', b'"node":"not-', 1)
    return records[at].position, [*records[:at], records[at]._replace(payload=lie), *records[at + 1 :]]


def main() -> None:
    """Write the good logs of this version, and the bad one."""
    folder = GOLDEN / f"core-{CORE}"
    folder.mkdir(parents=True, exist_ok=True)
    BAD.mkdir(exist_ok=True)
    for story in STORIES:
        head = export_log(played(story), folder / f"{story.stem}.jsonl")
        print(f"{folder.name}/{story.stem}.jsonl: {head.position} records, {head.digest}")
    for old in BAD.glob(f"core-{CORE}-*.jsonl"):
        old.unlink()
    position, records = with_edited_decision(list(played(STORIES[0]).read()))
    export_log(sealed(records), BAD / f"core-{CORE}-a-decision-was-edited-at-{position}.jsonl")


if __name__ == "__main__":
    main()
