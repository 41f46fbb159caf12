"""A bundle beside the active one: what is told of it, that it reaches nobody, and that its faults are its own."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest

from controlplane.audit.replay import replay
from controlplane.domain.clusters import ClusterSpec, NodeShape
from controlplane.domain.codec import encode
from controlplane.domain.events import (
    ClusterConfigured,
    CycleDecided,
    Event,
    JobCancelRequested,
    JobSubmitted,
    LeaseGranted,
    LeaseObserved,
    LeasePhase,
    NodeObserved,
    PolicyActivated,
    PolicyShadowed,
    QueueConfigured,
    ShadowDecided,
    ShadowEnded,
    ShadowFailed,
)
from controlplane.domain.queues import QueueSpec
from controlplane.domain.reasons import Reason
from controlplane.domain.workloads import JobSpec, Role, ServiceSpec
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import EMPTY, Entry, Record
from controlplane.policy.bundle import Bundle, load_bundle
from controlplane.policy.problems import BundleRefused
from controlplane.runtime import plane as planes
from controlplane.runtime import shadow
from controlplane.runtime.outbox import Outbox
from controlplane.runtime.plane import PLANE, ControlPlane, Recorded
from controlplane.runtime.rulebook import Rulebook
from controlplane.runtime.shadow import Cycles
from controlplane.scheduler.agenda import Agenda
from controlplane.scheduler.rules import Rules

E = TypeVar("E", bound=Event)
MINUTE = 60_000


def bundle(name: str, **rules: str) -> Bundle:
    """A bundle of one file for each point (``ordering_job`` for ``ordering.job``), from the body of its matches."""
    points = {point.replace("_", ".", 1): f"{point}.yaml" for point in rules}
    listed = "".join(f"  {point}: [{file}]\n" for point, file in points.items())
    files = {"bundle.yaml": f"name: {name}\npoints:\n{listed}"}
    for (point, file), body in zip(points.items(), rules.values(), strict=True):
        files[file] = f"name: {name}\npoint: {point}\nrule:\n  match:\n{body}"
    return load_bundle(files)


def output(expression: str) -> str:
    """The body of a rule that is one expression; it stands in line 5."""
    return f"    - output: {expression!r}\n"


PLAIN = bundle("plain", ordering_job=output("[-job.priority]"))
TWIN = bundle("twin", ordering_job=output("[-job.priority]"))
"""The same rules under another digest."""
CHOOSY = bundle(
    "choosy",
    admission="    - condition: \"job.name == 'bad'\"\n      output: \"'no'\"\n",
    ordering_job=output("[job.priority]"),
    eligibility=output("job.priority < 5 || node.gpus > 4"),
)
ERRING = bundle("erring", ordering_job=output("[1 / (job.priority - 3)]"))
EVICTING = bundle(
    "evicting",
    ordering_job=output("[-job.priority]"),
    preemption_allow=output("['queue']"),
    preemption_victim=output("victim.priority"),
    reservation=output("1"),
)


def activated(of: Bundle) -> PolicyActivated:
    return PolicyActivated(name=of.name, digest=of.digest, files=of.files)


def shadowed(of: Bundle) -> PolicyShadowed:
    return PolicyShadowed(name=of.name, digest=of.digest, files=of.files)


class Life:
    """A plane with one node of four GPUs and one of eight, told what happens by the minute."""

    def __init__(self, active: Bundle = PLAIN, *, is_restarted: bool = False) -> None:
        self.log = MemoryLog()
        self.plane = ControlPlane(self.log)
        self.told: list[Event] = []
        self.minute = 0
        self._is_restarted = is_restarted
        shape = NodeShape(cpu_milli=64_000, memory_bytes=2**38, gpus=4, gpu_model="A100")
        nodes = (("small", shape), ("wide", shape.model_copy(update={"gpus": 8})))
        self._tell(
            activated(active),
            ClusterConfigured(spec=ClusterSpec(name="idc")),
            QueueConfigured(spec=QueueSpec(name="team")),
            *(NodeObserved(cluster="idc", node=name, shape=of, flavor="a100") for name, of in nodes),
        )

    def _tell(self, *events: Event) -> None:
        self.told.extend(event for _, event in self.plane.record([(event, "ann") for event in events], 0))

    def pass_minute(self, *events: Event, ends: Sequence[int] = ()) -> Recorded:
        """What comes in the next minute, leases that end among it, and the cycle that follows."""
        self.minute += 1
        if self._is_restarted:
            self.plane = ControlPlane(self.log)
        now_ms = self.minute * MINUTE
        leases = [self.plane.state.jobs[job].lease or "" for job in ends]
        over = [LeaseObserved(cluster="idc", lease=of, phase=LeasePhase.FINISHED, observed_ms=now_ms) for of in leases]
        recorded = self.plane.advance(now_ms, [(event, "ann") for event in (*events, *over)])
        self.told.extend(event for _, event in recorded)
        return recorded

    def job(self, name: str, gpus: int, priority: int = 0, **more: object) -> JobSubmitted:
        spec = JobSpec.model_validate(
            {"name": name, "queue": "team", "priority": priority, "roles": (Role(gpus=gpus, cpu_milli=1_000),), **more}
        )
        return JobSubmitted(spec=spec, submitted_ms=(self.minute + 1) * MINUTE)

    def number(self, name: str) -> int:
        return next(job.id for job in self.plane.state.jobs.values() if job.name == name)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.told if isinstance(event, kind)]


def differences(events: Iterable[ShadowDecided]) -> list[tuple[str, bool, tuple[int, ...], str | None, int | None]]:
    return [(d.what, d.by_shadow, d.jobs, d.rule, d.reason) for event in events for d in event.differences]


def busy(life: Life) -> Life:
    """Five jobs come in two minutes, and two of them end."""
    life.pass_minute(shadowed(CHOOSY), life.job("bad", 2), life.job("urgent", 8, priority=9), life.job("small", 4))
    life.pass_minute(life.job("late", 4, priority=7), life.job("later", 4))
    life.pass_minute()
    life.pass_minute(ends=[life.number("urgent")])
    life.pass_minute(life.job("last", 4), ends=[life.number("bad")])
    return life


# --- what is told ----------------------------------------------------------------------------------------------------


def test_the_same_rules_under_another_digest_have_nothing_to_tell() -> None:
    life = Life()
    life.pass_minute(shadowed(TWIN))
    busy_without_shadow(life)
    assert life.of(ShadowDecided) == []
    assert len(life.of(CycleDecided)) > 2


def busy_without_shadow(life: Life) -> None:
    life.pass_minute(life.job("bad", 2), life.job("urgent", 8, priority=9), life.job("small", 4))
    life.pass_minute(life.job("late", 4, priority=7), life.job("later", 4))
    life.pass_minute(ends=[life.number("urgent")])


def test_each_difference_is_told_once_with_its_jobs_and_its_rule() -> None:
    life = Life()
    life.pass_minute(shadowed(CHOOSY), life.job("bad", 2), life.job("urgent", 4, priority=9), life.job("calm", 8))
    bad, urgent, calm = (life.number(name) for name in ("bad", "urgent", "calm"))
    first, *more = life.of(ShadowDecided)
    assert more == []
    assert differences([first]) == [
        ("refuse", True, (bad,), "admission.yaml:5", None),
        ("start", True, (calm,), None, None),
        ("start", False, (bad,), None, None),
        ("start", False, (urgent,), None, int(Reason.CAPACITY)),
    ]
    closed = next(event for event in life.of(CycleDecided) if event.cycle == first.cycle)
    assert (closed.policy, first.policy) == (PLAIN.digest, CHOOSY.digest)
    life.pass_minute(life.job("more", 8, priority=1))
    again = differences(life.of(ShadowDecided)[1:])
    assert not any(calm in jobs for _, _, jobs, _, _ in again), "it still waits, and was told of"


def test_a_bundle_that_evicts_is_told_of_by_who_would_go_and_who_would_come() -> None:
    life = Life()
    life.pass_minute(life.job("low", 8), life.job("low-too", 4))
    life.pass_minute(shadowed(EVICTING), life.job("high", 8, priority=9), life.job("wide", 8))
    told = differences(life.of(ShadowDecided))
    assert ("make-room", True, (life.number("high"),), "preemption_allow.yaml:5", None) in told
    assert ("evict", True, (life.number("low"),), "preemption_victim.yaml:5", None) in told
    assert ("reserve", True, (life.number("wide"),), "reservation.yaml:5", None) in told
    assert life.plane.state.leases.keys() == {f"j{life.number('low')}.1", f"j{life.number('low-too')}.1"}
    assert replay(life.log, verify=True).ok


def test_a_bundle_that_scales_a_service_otherwise_is_told_of() -> None:
    one, three = (bundle(f"wants-{n}", ordering_job=output("[0]"), service_replicas=output(str(n))) for n in (1, 3))
    life = Life(one)
    replicas = Role(gpus=1, cpu_milli=1_000, count=4, min_count=1)
    life.pass_minute(shadowed(three), life.job("api", 1, roles=(replicas,), service=ServiceSpec()))
    life.pass_minute(life.job("next", 1))
    told = differences(life.of(ShadowDecided))
    assert ("scale", True, (life.number("api"),), "service_replicas.yaml:5", None) in told
    assert ("grow", True, (life.number("api"),), None, None) in told
    assert len(life.plane.state.leases[f"j{life.number('api')}.1"].seats) == 1
    assert replay(life.log, verify=True).ok


def started_once_the_first_has_gone() -> bool:
    """Under rules that place nobody, beside which others would have placed the first of two that do not fit together.
    It is cancelled: whether the second would have been started then."""
    life = Life(bundle("closed", eligibility=output("false")))
    life.pass_minute(shadowed(PLAIN), life.job("first", 8, priority=9), life.job("second", 8))
    second = life.number("second")
    life.pass_minute(JobCancelRequested(job=life.number("first"), requested_ms=0))
    return ("start", True, (second,), None, None) in differences(life.of(ShadowDecided))


def test_a_shadow_remembers_no_verdict_since_what_it_decides_is_not_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert started_once_the_first_has_gone()
    monkeypatch.setattr(shadow.ShadowAgenda, "is_lasting", Agenda.is_lasting)
    assert not started_once_the_first_has_gone()


def test_what_one_cycle_tells_is_bounded_and_the_rest_is_told_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "NAMED", 2)
    life = Life(bundle("closed", eligibility=output("false")))
    jobs = [life.job(f"j{number}", 1) for number in range(5)]
    life.pass_minute(shadowed(PLAIN), *jobs)
    life.pass_minute(life.job("more", 1))
    life.pass_minute(life.job("and-one", 1))
    told = life.of(ShadowDecided)
    assert [len(event.differences[0].jobs) for event in told] == [2, 2, 2]
    assert [event.untold for event in told] == [3, 2, 1]
    named = [job for _, _, jobs, _, _ in differences(told) for job in jobs]
    assert named == sorted(set(named))


def test_activating_the_shadow_ends_it_and_activating_another_tells_anew() -> None:
    life = Life()
    life.pass_minute(shadowed(CHOOSY), life.job("calm", 8), life.job("waits", 8))
    life.pass_minute(activated(TWIN))
    assert life.plane.state.shadow is not None
    life.pass_minute(activated(CHOOSY))
    assert life.plane.state.shadow is None
    life.pass_minute(shadowed(PLAIN))
    life.pass_minute(ShadowEnded())
    assert life.plane.state.shadow is None
    assert replay(life.log, verify=True).ok


# --- it reaches nobody -----------------------------------------------------------------------------------------------


class Listener:
    """An agent that only remembers what it was given."""

    cluster = "idc"

    def __init__(self) -> None:
        self.delivered: list[Event] = []

    def deliver(self, position: int, event: Event) -> None:
        self.delivered.append(event)


def test_nothing_of_a_shadow_is_delivered() -> None:
    life = busy(Life())
    assert life.of(ShadowDecided)
    listener = Listener()
    Outbox([listener]).catch_up(life.log)  # type: ignore[list-item]  # it is only ever delivered to
    granted = {event.lease for event in life.of(LeaseGranted)}
    assert {event.lease for event in listener.delivered if isinstance(event, LeaseGranted)} == granted
    assert not {event.TYPE for event in listener.delivered} & {ShadowDecided.TYPE, PolicyShadowed.TYPE}


def test_a_plane_that_is_opened_anew_every_minute_tells_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the tail, and from snapshots that were taken after each append."""
    once = busy(Life())
    assert busy(Life(is_restarted=True)).plane.head == once.plane.head
    monkeypatch.setattr(planes, "SNAPSHOT_EVENTS", 1)
    monkeypatch.setattr(planes, "SNAPSHOT_EVENTS_PER_ROW", 0)
    assert busy(Life(is_restarted=True)).plane.head == once.plane.head


# --- its faults are its own ------------------------------------------------------------------------------------------


def test_a_rule_of_the_shadow_that_errs_is_told_once_and_the_cycle_says_nothing_of_it() -> None:
    life = Life()
    life.pass_minute(shadowed(ERRING), life.job("a", 2, priority=3), life.job("b", 2, priority=1))
    life.pass_minute(life.job("c", 2, priority=3))
    faults = [fault for event in life.of(ShadowDecided) for fault in event.faults]
    assert len(faults) == 1
    assert "ordering_job.yaml:5" in faults[0]
    assert "a number was divided by zero" in faults[0]
    assert [event.faults for event in life.of(CycleDecided)] == [(), ()]
    assert list(life.plane.state.faults) == []


def test_a_shadow_that_takes_too_many_steps_is_asked_no_more() -> None:
    life, alone = Life(), Life()
    life.plane._cycles = Cycles(life.plane._rulebook, 30)
    life.pass_minute(shadowed(CHOOSY), life.job("bad", 2), life.job("calm", 8))
    alone.pass_minute(ShadowEnded(), alone.job("bad", 2), alone.job("calm", 8))
    (failure,) = life.of(ShadowFailed)
    assert failure.cause == "its rules take more than 30 steps in one cycle"
    assert life.told[-1] == failure
    assert life.of(LeaseGranted) == alone.of(LeaseGranted)
    assert life.of(CycleDecided) == [
        closed.model_copy(update={"digest": life.of(CycleDecided)[0].digest}) for closed in alone.of(CycleDecided)
    ]
    life.pass_minute(life.job("more", 1))
    assert len(life.of(ShadowFailed)) == 1
    assert life.of(ShadowDecided) == []
    assert replay(life.log, verify=True).ok, "another machine may get further than this one"
    life.plane._cycles = Cycles(life.plane._rulebook)
    life.pass_minute(shadowed(CHOOSY), life.job("bad", 1))
    assert life.of(ShadowDecided)


def test_a_bug_that_only_a_shadow_meets_does_not_stop_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("so it is\n")

    monkeypatch.setattr(shadow.ShadowAgenda, "refresh_jobs", broken)
    life = Life()
    life.pass_minute(shadowed(CHOOSY), life.job("bad", 2))
    life.pass_minute(life.job("next", 2))
    (failure,) = life.of(ShadowFailed)
    assert failure.cause == r"deciding under it failed: ZeroDivisionError: 'so it is\n'"
    assert [event.job for event in life.of(LeaseGranted)] == [life.number("bad"), life.number("next")]
    assert life.of(CycleDecided)[0].policy == PLAIN.digest


def test_a_shadow_that_does_not_load_is_not_taken_in_and_one_in_the_log_fails_alone() -> None:
    life = Life()
    broken = replace(PLAIN, digest="0" * 64, files={**PLAIN.files, "ordering_job.yaml": "name: x\n"})
    with pytest.raises(BundleRefused):
        life.pass_minute(shadowed(broken), life.job("a", 1))
    entry = Entry(PolicyShadowed.TYPE, "configured", encode(shadowed(broken)), 0, "older")
    life.log.append([entry], life.log.head())
    life.plane = ControlPlane(life.log)
    life.pass_minute(life.job("a", 1))
    (failure,) = life.of(ShadowFailed)
    assert failure.cause.startswith("it does not load: ordering_job.yaml:1:")
    assert len(life.of(LeaseGranted)) == 1


def test_every_question_of_the_port_is_measured() -> None:
    """A new decision point that is missing here would make every shadow fail."""
    questions = {name for name, member in vars(Rules).items() if callable(member) and not name.startswith("_")}
    assert questions == shadow._POINT_OF.keys()


def test_whatever_the_fold_tells_an_agenda_a_shadow_follows(project_root: Path) -> None:
    """The fold knows the active agenda alone. What it tells it, ``_Beside.follow`` must find out for the shadow's."""
    tree = ast.parse((project_root / "controlplane" / "scheduler" / "fold.py").read_text(encoding="utf-8"))
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    told = {
        call.attr for call in calls if isinstance(call, ast.Attribute) and ast.unparse(call.value) == "state.agenda"
    }
    assert told == {"node_changed", "members_changed", "typical_changed", "forget_kinds"}


# --- replay ----------------------------------------------------------------------------------------------------------


def sealed(records: Sequence[Record]) -> MemoryLog:
    log = MemoryLog()
    log.append([Entry(*record[1:8]) for record in records], EMPTY)
    return log


def test_what_a_shadow_is_said_to_have_decided_is_decided_again() -> None:
    records = list(busy(Life()).log.read())
    report = replay(sealed(records), verify=True)
    assert report.ok
    at = next(at for at, record in enumerate(records) if record.type == ShadowDecided.TYPE)
    lie = records[at]._replace(payload=records[at].payload.replace(b'"refuse"', b'"start"'))
    for changed in (
        [*records[:at], lie, *records[at + 1 :]],
        [*records[:at], *records[at + 1 :]],
        [*records[: at + 1], *records[at:]],
    ):
        found = replay(sealed(changed), verify=True).divergence
        assert found is not None
        assert found.position in (at + 1, at + 2)


def test_a_failure_stands_where_the_record_would_and_nowhere_else() -> None:
    """The plane observed that it could not tell; a cycle's own decisions are not hidden by that."""
    records = list(busy(Life()).log.read())
    at = next(at for at, record in enumerate(records) if record.type == ShadowDecided.TYPE)
    failed = ShadowFailed(policy=CHOOSY.digest, cause="it takes more memory than there is")
    entry = records[at]._replace(type=failed.TYPE, author="observed", actor=PLANE, payload=encode(failed))
    until_then = [*records[:at], entry]
    assert replay(sealed(until_then), verify=True).ok
    missing = replay(sealed([*records[: at - 1], entry]), verify=True).divergence
    assert missing is not None
    assert "cycle_decided/1 is missing" in missing.what


def test_each_stretch_is_replayed_under_its_own_bundle() -> None:
    """SCENARIOS H4: two activations and a roll-back."""
    life = Life()
    life.pass_minute(life.job("bad", 1), life.job("a", 2, priority=9))
    life.pass_minute(activated(CHOOSY), life.job("bad", 1), life.job("b", 2, priority=9))
    life.pass_minute(activated(TWIN), life.job("bad", 1))
    life.pass_minute(activated(PLAIN), life.job("bad", 1))
    assert [event.policy for event in life.of(CycleDecided)] == [
        PLAIN.digest,
        CHOOSY.digest,
        TWIN.digest,
        PLAIN.digest,
    ]
    assert len([event for event in life.told if event.TYPE == "job_refused/1"]) == 1
    report = replay(life.log, verify=True)
    assert report.ok
    assert report.cycles == 4


def test_one_bundle_for_all_stretches_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life()
    life.pass_minute(life.job("a", 1))
    life.pass_minute(activated(CHOOSY), life.job("bad", 1))
    active = Rulebook.active
    monkeypatch.setattr(
        Rulebook, "active", lambda self, state: next((rules for _, rules in self.asked()), None) or active(self, state)
    )
    found = replay(life.log, verify=True).divergence
    assert found is not None
    assert found.position > life.log.head().position - 3
