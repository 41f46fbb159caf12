"""Golden logs still verify, and logs that were tampered with do not, and the first wrong position is named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from controlplane.audit import folding
from controlplane.audit.canonical import payload_fault
from controlplane.audit.replay import Divergence, replay
from controlplane.domain.codec import decode
from controlplane.domain.events import CycleDecided, JobsWaiting, LeaseObserved, PolicyActivated, Ticked
from controlplane.domain.reasons import Reason
from controlplane.domain.version import CORE, FIRST_CORE
from controlplane.eventlog.file import FileLog
from controlplane.eventlog.port import Record
from controlplane.eventlog.verify import Kind, verify_chain
from tests.replay.make_golden import BAD, GOLDEN, sealed, with_edited_decision

GOOD = sorted(GOLDEN.glob("core-*/*.jsonl"))
LONG = GOLDEN / f"core-{CORE}" / "small-company.jsonl"
Tampering = Callable[[list[Record]], tuple[int, list[Record]]]
"""Gives the first position that is wrong, and the records to be sealed anew under a sound chain."""


def records_of(path: Path) -> list[Record]:
    with FileLog(path) as log:
        return list(log.read())


def divergence_of(path: Path) -> Divergence:
    with FileLog(path) as log:
        found = replay(log, verify=True).divergence
    assert found is not None, "the log verifies, though it should not"
    return found


def test_there_are_golden_logs_of_this_core() -> None:
    assert LONG in GOOD
    assert len(records_of(LONG)) >= 300


def shown(story: str) -> set[str]:
    """What a golden log of this core decides, in words: types of events, causes and reasons of waiting."""
    words: set[str] = set()
    for record in records_of(GOLDEN / f"core-{CORE}" / f"{story}.jsonl"):
        event = decode(record.type, record.payload)
        words.add(record.type.partition("/")[0])
        words.update(str(value) for name, value in event if name in ("cause", "outcome"))
        if isinstance(event, JobsWaiting):
            words.add(Reason(event.reason).slug)
        words.update("slices" for member in getattr(event, "members", ()) if getattr(member, "slices", ()))
    return words


@pytest.mark.parametrize(
    ("story", "features"),
    [
        ("elastic-gangs", {"lease_grown", "lease_shrunk", "room_promised", "job_requeued", "failed"}),
        ("parts-and-instances", {"slices", "room_promised", "preempted", "exceeds-every-node", "expired"}),
        ("near-each-other", {"exceeds-topology", "topology", "reservation_made", "job_requeued"}),
        (
            "promised-room",
            {"room_promised", "reclaimed", "preempted", "quota_over_promised", "capacity", "cancelled"},
        ),
        ("one-after-another", {"terms_given", "dependency", "array-full", "time-limit", "job_refused", "expired"}),
    ],
)
def test_each_feature_has_a_golden_log_that_shows_it(story: str, features: set[str]) -> None:
    assert features <= shown(story), f"{story} does not show {sorted(features - shown(story))}"


@pytest.mark.parametrize("path", GOOD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_golden_log_verifies_by_the_rules_of_its_own_core(path: Path) -> None:
    with FileLog(path) as log:
        report = replay(log, verify=True)
        assert report.divergence is None, f"{report.divergence}; if that is meant: python -m tests.replay.make_golden"
        assert (report.position, report.digest) == log.head()
        assert report.cycles > 0


def test_a_log_of_the_first_core_follows_from_its_own_rules_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "core_of", lambda record: CORE)
    assert divergence_of(GOLDEN / f"core-{FIRST_CORE}" / "an-offer-that-fails.jsonl").position > 0


@pytest.mark.parametrize("path", sorted(BAD.glob("*.jsonl")), ids=lambda path: path.stem)
def test_the_bad_log_has_a_sound_chain_and_fails_where_it_lies(path: Path) -> None:
    with FileLog(path) as log:
        assert verify_chain(log).ok
    lied_at = re.search(r"edited-at-(\d+)", path.stem)
    assert lied_at is not None
    found = divergence_of(path)
    assert found.position == int(lied_at.group(1))
    assert found.what == "lease_granted/1 was decided otherwise"
    assert '"node":"not-' in found.got
    assert '"node":"not-' not in found.expected


# --- the file itself -------------------------------------------------------------------------------------------------


def changed_byte(lines: list[bytes], at: int) -> list[bytes]:
    """One digit or letter inside the payload becomes another; it is still JSON."""
    head, mark, payload = lines[at].partition(b',"payload":')
    place = max(index for index, byte in enumerate(payload) if chr(byte).isalnum())
    byte = payload[place : place + 1]
    other = b"7" if byte != b"7" else b"8"
    return [*lines[:at], head + mark + payload[:place] + other + payload[place + 1 :], *lines[at + 1 :]]


def dropped_row(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], *lines[at + 1 :]]


def swapped_rows(lines: list[bytes], at: int) -> list[bytes]:
    return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]]


@pytest.mark.parametrize("damage", [changed_byte, dropped_row, swapped_rows], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("position", [1, 2, 17, 64, 150, 299])
def test_damage_to_the_file_is_named_by_its_position(
    damage: Callable[[list[bytes], int], list[bytes]], position: int, tmp_path: Path
) -> None:
    lines = LONG.read_bytes().splitlines(keepends=True)
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"".join(damage(lines, position)))  # the header is line 0, so that a line's number is its position
    assert divergence_of(path).position == position
    with FileLog(path) as log:
        found = verify_chain(log).damage
    assert found is not None
    assert found.position == position


def test_a_file_without_its_last_rows_is_named_by_the_first_that_is_missing(tmp_path: Path) -> None:
    lines = LONG.read_bytes().splitlines(keepends=True)
    path = tmp_path / "cut.jsonl"
    path.write_bytes(b"".join(lines[:-3]))
    assert divergence_of(path).position == len(lines) - 3


# --- under a chain that was made anew --------------------------------------------------------------------------------


def decision_dropped(records: list[Record]) -> tuple[int, list[Record]]:
    at = with_edited_decision(records)[0] - 1
    return records[at].position, [*records[:at], *records[at + 1 :]]


def decision_repeated(records: list[Record]) -> tuple[int, list[Record]]:
    at = with_edited_decision(records)[0] - 1
    return records[at].position + 1, [*records[: at + 1], *records[at:]]


def decision_outside_a_cycle(records: list[Record]) -> tuple[int, list[Record]]:
    closed = next(at for at, record in enumerate(records) if record.type == CycleDecided.TYPE and at > 100)
    granted = records[with_edited_decision(records)[0] - 1]
    return records[closed].position + 1, [*records[: closed + 1], granted, *records[closed + 1 :]]


def decision_claims_another_author(records: list[Record]) -> tuple[int, list[Record]]:
    at = with_edited_decision(records)[0] - 1
    forged = records[at]._replace(author="observed")
    return records[at].position, [*records[:at], forged, *records[at + 1 :]]


def cycle_claims_another_policy(records: list[Record]) -> tuple[int, list[Record]]:
    at = next(at for at, record in enumerate(records) if record.type == CycleDecided.TYPE and at > 100)
    payload = re.sub(rb'"policy":"[0-9a-f]', b'"policy":"x', records[at].payload)
    return records[at].position, [*records[:at], records[at]._replace(payload=payload), *records[at + 1 :]]


def lying_decision(name: str, lie: Callable[[Record], Record]) -> Tampering:
    def forged(records: list[Record]) -> tuple[int, list[Record]]:
        at = with_edited_decision(records)[0] - 1
        return records[at].position, [*records[:at], lie(records[at]), *records[at + 1 :]]

    forged.__name__ = name
    return forged


def clock_that_goes_back(records: list[Record]) -> tuple[int, list[Record]]:
    at = [at for at, record in enumerate(records) if record.type == Ticked.TYPE][3]
    return records[at].position, [*records[:at], records[at]._replace(payload=b'{"now_ms":0}'), *records[at + 1 :]]


def policy_under_another_digest(records: list[Record]) -> tuple[int, list[Record]]:
    at = next(at for at, record in enumerate(records) if record.type == PolicyActivated.TYPE)
    payload = re.sub(rb'"digest":"[0-9a-f]{64}"', b'"digest":"' + b"0" * 64 + b'"', records[at].payload)
    return records[at].position, [*records[:at], records[at]._replace(payload=payload), *records[at + 1 :]]


@pytest.mark.parametrize(
    "tampering",
    [
        lying_decision("actor", lambda record: record._replace(actor="mallory")),
        lying_decision("recorded_at_ms", lambda record: record._replace(recorded_at_ms=1)),
        lying_decision("causation", lambda record: record._replace(causation=1)),
        lying_decision("correlation", lambda record: record._replace(correlation="j1")),
        clock_that_goes_back,
        policy_under_another_digest,
        with_edited_decision,
        decision_dropped,
        decision_repeated,
        decision_outside_a_cycle,
        decision_claims_another_author,
        cycle_claims_another_policy,
    ],
    ids=lambda tampering: tampering.__name__,
)
def test_a_lie_under_a_sound_chain_is_named_by_its_position(tampering: Tampering) -> None:
    position, records = tampering(records_of(LONG))
    log = sealed(records)
    assert verify_chain(log).ok
    found = replay(log, verify=True).divergence
    assert found is not None
    assert found.position == position


REWRITINGS: dict[str, Callable[[bytes], bytes]] = {
    "white space": lambda payload: b" " + payload,
    "a key twice": lambda payload: b'{"spec":{"name":"decoy"},' + payload[1:],
    "another order": lambda payload: orjson.dumps(dict(reversed(orjson.loads(payload).items()))),
    "a default written out": lambda payload: payload[:-1] + b',"idempotency_key":null}',
    "a letter escaped": lambda payload: payload.replace(b'"name":"', b'"name":"\\u0041', 1),
}
"""Other bytes that decode to an event."""


@pytest.mark.parametrize("rewriting", REWRITINGS)
def test_a_payload_that_is_written_otherwise_is_named_by_both_verifications(rewriting: str) -> None:
    """Kills: comparing what payloads mean; two readers could read two things out of the same bytes."""
    records = records_of(LONG)
    at = next(at for at, record in enumerate(records) if b'"priority":' in record.payload)
    payload = REWRITINGS[rewriting](records[at].payload)
    assert payload != records[at].payload
    decode(records[at].type, payload)
    log = sealed([*records[:at], records[at]._replace(payload=payload), *records[at + 1 :]])
    assert verify_chain(log).ok
    found = replay(log, verify=True).divergence
    assert found is not None
    assert found.position == at + 1
    assert "not written as such an event is" in found.what
    damage = verify_chain(log, judge=payload_fault).damage
    assert damage is not None
    assert (damage.position, damage.kind) == (at + 1, Kind.FOREIGN)


@pytest.mark.parametrize("number", [b'"7"', b"7.0", b"1" + b"0" * 30])
def test_a_number_that_no_writer_writes_so_is_named(number: bytes) -> None:
    payload = b'{"job":' + number + b',"requested_ms":0}'
    decode("job_cancel_requested/1", payload)
    records = records_of(LONG)
    forged = records[0]._replace(type="job_cancel_requested/1", author="requested", payload=payload)
    log = sealed([forged, *records])
    found = replay(log, verify=True).divergence
    assert found is not None
    assert found.position == 1
    damage = verify_chain(log, judge=payload_fault).damage
    assert damage is not None
    assert damage.position == 1


@pytest.mark.parametrize(
    ("payload", "is_sound"), [(b'{"a":1,"b":[]}', True), (b'{"b":[],"a":1}', False), (b"{", False)]
)
def test_of_an_event_of_a_newer_version_it_is_known_how_it_is_written(payload: bytes, is_sound: bool) -> None:
    [record] = sealed([records_of(LONG)[0]._replace(type="job_submitted/99", payload=payload)]).read()
    assert (payload_fault(record) is None) is is_sound


@pytest.mark.parametrize("path", GOOD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_payload_of_a_golden_log_is_written_as_its_event_is(path: Path) -> None:
    with FileLog(path) as log:
        assert verify_chain(log, judge=payload_fault).ok


def test_a_report_that_was_left_out_shows_in_the_decisions_after_it() -> None:
    """Whether inputs are true a log cannot prove; but what was decided from a report shows that there was one."""
    records = records_of(LONG)
    at = next(at for at, record in enumerate(records) if b'"failed"' in record.payload and _is_report(record))
    found = replay(sealed([*records[:at], *records[at + 1 :]]), verify=True).divergence
    assert found is not None
    assert found.position > at


def _is_report(record: Record) -> bool:
    return record.type == LeaseObserved.TYPE
