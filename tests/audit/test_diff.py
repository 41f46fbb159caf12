"""A diff is exact as long as nothing changes, names the first change with its cause, and simulates what follows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from controlplane.audit.causes import POINTS
from controlplane.audit.diff import diff
from controlplane.audit.diff_report import ALL, DiffReport
from controlplane.audit.figures import Figures
from controlplane.audit.ledger import Ledger
from controlplane.audit.observed import Runtime
from controlplane.audit.whatif import NothingDecided, read_log, take_course
from controlplane.domain.codec import decode, encode
from controlplane.domain.events import (
    CycleDecided,
    JobSubmitted,
    LeaseGranted,
    LeasePhase,
    NodeObserved,
    PolicyActivated,
    ServiceObserved,
    Ticked,
)
from controlplane.eventlog.file import FileLog
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import Entry, EventLog, LogDamaged, Record
from controlplane.policy.bundle import Bundle, load_bundle, read_bundle_folder
from controlplane.policy.vocabulary import BY_NAME
from controlplane.runtime.entries import entry_of
from controlplane.scheduler.fold import apply
from controlplane.scheduler.rules import Rules
from controlplane.scheduler.state import State
from controlplane.simulate.world import World, read_world
from tests.audit.histories import HOUR, MINUTE, Plain, bundle_of, cloud, home, job, lived, world
from tests.conftest import ROOT
from tests.replay.make_golden import GOLDEN
from tests.scenarios.policies import POLICIES
from tests.scenarios.test_scenarios import play

WORLDS = ROOT / "controlplane" / "simulate" / "worlds"
STORIES = ROOT / "tests" / "scenarios"


def own_bundles(log: EventLog) -> list[Bundle]:
    """The bundles that a log activates, each once, in order."""
    events = (decode(record.type, record.payload) for record in log.read() if record.type == PolicyActivated.TYPE)
    found = {event.digest: event.files for event in events if isinstance(event, PolicyActivated)}
    return [load_bundle(files) for files in found.values()]


def folder(name: str) -> Bundle:
    return load_bundle(read_bundle_folder(POLICIES / name))


def assert_nothing_changes(report: DiffReport) -> None:
    assert report.first_change is None
    assert (report.changed, report.changes, report.by_rule) == (0, (), ())
    assert report.compared == report.recorded.decisions == report.exact_decisions > 0
    assert report.under_candidate == report.recorded
    assert report.candidate_curves == report.recorded_curves
    assert (report.jobs.sooner, report.jobs.later) == (0, 0)


# --- a bundle against itself ------------------------------------------------------------------------------------------


STORIES_WITH = (
    "a9-who-used-much-goes-second",
    "b3-victims-in-one-rack",
    "b5-a-node-under-a-gang-dies-and-returns",
    "b6-four-to-eight",
    "b6-starts-small-and-grows",
    "c6-a-reservation-on-a-node-that-is-cordoned",
    "d1-freed-room-is-held-for-the-preemptor",
    "d4-a-queue-takes-back-what-it-owns",
    "d7-moved-once-and-left-alone",
    "e4-mig-a-slice-in-the-wrong-place",
    "f2-a-launch-that-is-refused-for-ever",
    "g1-a-budget-for-two",
    "g2-cancelled-before-the-node-appears",
    "h2-a-rule-that-errs",
    "i1-a-service-grows-by-shrinking-training",
    "i2-by-eviction-within-the-bound-and-not-beyond",
    "i3-what-is-not-needed-is-given-back",
    "i5-a-warm-pool",
    "q-one-after-the-other",
    "q-the-rules-want-a-rack-for-gangs",
)
"""Preemption, elastic gangs, MIG, failures, rent, services, warm pools, dependencies, terms of gangs."""


def played(story: str) -> MemoryLog:
    return play(STORIES / f"{story}.yaml").log


@pytest.mark.parametrize("story", STORIES_WITH)
def test_a_bundle_against_itself_changes_nothing_in_a_story(story: str) -> None:
    """Kills: comparing with the rule's line; forgetting what a cluster reported; another order of nodes or leases after
    the state was taken up."""
    log = played(story)
    [bundle] = own_bundles(log)
    assert_nothing_changes(diff(log, bundle))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "candidate"),
    [
        *((path.stem, "examples/strict-fifo") for path in sorted(STORIES.glob("*.yaml"))),
        *((story, candidate) for story in STORIES_WITH for candidate in ("default", "examples/random")),
    ],
)
def test_any_story_can_take_another_course(story: str, candidate: str) -> None:
    """Every invariant holds to its end (they are checked after each cycle, and all of them at the end), and what is the
    clients' own is as it was: who came, and when."""
    report = diff(played(story), folder(candidate))
    assert report.under_candidate.jobs["seen"] == report.recorded.jobs["seen"] > 0
    assert sum(report.under_candidate.jobs.values()) == 2 * report.recorded.jobs["seen"]
    assert (report.changed == 0) == (report.first_change is None)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("core-*/*.jsonl")), ids=lambda path: path.stem)
def test_a_bundle_against_itself_changes_nothing_in_a_golden_log(path: Path) -> None:
    with FileLog(path) as log:
        bundles = own_bundles(log)
        if len(bundles) == 1:
            assert_nothing_changes(diff(log, bundles[0]))
            return
        since = [record.position for record in log.read() if record.type == PolicyActivated.TYPE]
        assert_nothing_changes(diff(log, bundles[-1], since[-1]))


@pytest.mark.slow
def test_a_bundle_against_itself_changes_nothing_in_a_company_day() -> None:
    """Until the rush of the afternoon, when more is rented."""
    of = read_world(WORLDS / "company-day.yaml").model_copy(update={"until_ms": 15 * HOUR})
    log = lived(of, folder("default"), WORLDS)
    report = diff(log, folder("default"))
    assert_nothing_changes(report)
    assert report.recorded.requests > 0


@pytest.mark.slow
def test_a_bundle_against_itself_changes_nothing_in_openb(openb: MemoryLog) -> None:
    assert_nothing_changes(diff(openb, folder("examples/best-fit")))


def test_another_place_of_the_same_rules_changes_nothing() -> None:
    """The same rules in other lines and files: every decision names another rule, and none is another decision."""
    log = lived(crowd(), folder("default"))
    files = {path: f"# moved down\n{text}" for path, text in folder("default").files.items()}
    report = diff(log, load_bundle(files))
    assert report.first_change is None
    assert report.changed == 0
    assert report.other_rules > 0


# --- against what simulating the same world gives ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def openb_world() -> World:
    return read_world(WORLDS / "openb-best-fit.yaml")


@pytest.fixture
def openb(data_dir: Path, openb_world: World) -> MemoryLog:
    """The log of the default pods of openb under best-fit."""
    return lived(openb_world, folder("examples/best-fit"), WORLDS)


def crowd() -> World:
    """Twelve jobs for eight GPUs, of two queues, some of which fail, give up, or are more urgent; later, room."""
    jobs = [
        *(job(minute * MINUTE, f"train-{minute}", 2, runs=50 * MINUTE, queue="a") for minute in range(5)),
        *(job(minute * MINUTE, f"serve-{minute}", runs=20 * MINUTE, queue="b", priority=5) for minute in range(1, 5)),
        job(2 * MINUTE, "broken", 1, runs=3 * MINUTE, fails=True, queue="b", max_attempts=2),
        job(3 * MINUTE, "impatient", 4, queue="b", wait_limit_ms=10 * MINUTE),
        job(70 * MINUTE, "late", 2, queue="a"),
    ]
    queues = [{"name": "a", "weight": 2}, {"name": "b"}]
    return world(jobs, home(launch_delay_ms=5_000, end_delay_ms=3_000), queues=queues)


def rented() -> World:
    """More work than home holds, a cloud, and a budget."""
    labels: list[Plain] = [{} if number % 3 else {"tidegate/stay-home": "true"} for number in range(8)]
    jobs = [
        job(number * MINUTE, f"train-{number}", 4, runs=2 * HOUR, estimate_ms=2 * HOUR, labels=labels[number])
        for number in range(8)
    ]
    budgets = [{"name": "day", "limit_micro_usd": 200_000_000, "window_ms": 86_400_000}]
    return world(jobs, home(), cloud(), budgets=budgets)


def nominal(end_delay_ms: int = 0) -> World:
    """A queue that borrows what another owns and takes back."""
    quota = {"quotas": {"any": {"gpu": {"nominal": 4_000}}}}
    jobs = [
        *(job(minute * MINUTE, f"borrows-{minute}", 2, runs=HOUR, queue="a") for minute in range(4)),
        *(job((10 + minute) * MINUTE, f"owns-{minute}", 2, runs=HOUR, queue="b") for minute in range(2)),
    ]
    queues = [{"name": "all"}, {"name": "a", "parent": "all", **quota}, {"name": "b", "parent": "all", **quota}]
    return world(jobs, home(end_delay_ms=end_delay_ms), queues=queues)


def dying() -> World:
    """A node dies under what runs there, and comes back."""
    jobs = [job(number * MINUTE, f"train-{number}", 2, runs=HOUR) for number in range(6)]
    return world(jobs, home(deaths=[{"node": "n0", "at_ms": 30 * MINUTE, "for_ms": 5 * MINUTE}]))


def elastic() -> World:
    """A gang of two to eight has taken all; then others come."""
    gang = [{"count": 8, "min_count": 2, "cpu_milli": 1_000, "gpus": 1}]
    others = [job(number * 10 * MINUTE, f"train-{number}", 2, runs=15 * MINUTE) for number in range(1, 4)]
    return world([job(0, "gang", roles=gang, runs=2 * HOUR), *others])


def table(ledger: Ledger) -> dict[str, tuple[object, ...]]:
    """By the name of a job: when it started and ended, how, and where it was placed each time."""
    return {
        line.name: (line.started_ms, line.over_ms, line.outcome, *map(str, ledger.taken["placed"].get(line.id, ())))
        for line in ledger.lines.values()
    }


def never_rents() -> Bundle:
    return bundle_of("default", {"burst_after_ms": "99d", "crowded_ppm": 10**12})


def never_evicts() -> Bundle:
    return bundle_of("default", {}, {"preemption.allow": "[]"})


def takes_surplus() -> Bundle:
    return bundle_of("default", {}, {"preemption.allow": "['surplus']"})


def spreads() -> Bundle:
    return bundle_of("default", {}, {"scoring": "after.gpu_free_milli"})


CASES: dict[str, tuple[Callable[[], World], Callable[[], Bundle], Callable[[], Bundle]]] = {
    "spread": (crowd, lambda: folder("default"), spreads),
    "to-fifo": (crowd, lambda: folder("default"), lambda: folder("examples/strict-fifo")),
    "from-fifo": (crowd, lambda: folder("examples/strict-fifo"), lambda: folder("default")),
    "rents": (rented, never_rents, lambda: folder("default")),
    "rents-later": (rented, lambda: folder("default"), lambda: bundle_of("default", {"crowded_ppm": 10**12})),
    "reclaims": (nominal, never_evicts, lambda: folder("default")),
    "leaves-alone": (nominal, lambda: folder("default"), never_evicts),
    "stops-take-their-time": (lambda: nominal(10_000), lambda: folder("default"), spreads),
    "a-node-dies": (dying, lambda: folder("default"), spreads),
    "shrinks": (elastic, never_evicts, takes_surplus),
    "does-not-shrink": (elastic, takes_surplus, never_evicts),
}
"""Name -> world, recorded bundle, candidate."""


@pytest.mark.parametrize("case", CASES)
def test_the_candidates_course_is_the_one_that_the_world_takes_under_it(case: str) -> None:
    """Every job starts and ends at the same instant in the same place, and the bill is the same, where nothing is drawn
    by chance and every job has ended by itself in the log. Kills: a run time that counts from the grant; room that is
    free before a stop has taken its time; a wrong lead time; cycles that are due and do not come."""
    make, decided_by, decided_again_by = CASES[case]
    of, candidate = make(), decided_again_by()
    log = lived(of, decided_by())
    first = read_log(log, 0, None)
    course = take_course(log, first, candidate.rules(), None)
    true = read_log(lived(of, candidate), 0, None).ledger
    assert course.parting is not None
    end_ms = min(first.ledger.end_ms, true.end_ms)
    mine, theirs = table(course.ledger), table(true)
    for name, row in theirs.items():
        over_ms = row[1]
        assert isinstance(over_ms, int)
        assert mine[name] == row or over_ms > end_ms, name
    if first.ledger.end_ms >= true.end_ms:
        assert course.ledger.charged_micro_usd == true.charged_micro_usd
        assert course.ledger.preemptions == true.preemptions
        assert course.ledger.held_gpu_ms == true.held_gpu_ms


@pytest.mark.slow
def test_another_scoring_places_the_pods_of_openb_as_simulating_it_does(openb: MemoryLog, openb_world: World) -> None:
    """All 10,790 pods: the same ones find room, on the same nodes, at the same instant."""
    candidate = folder("examples/fragmentation-descent")
    course = take_course(openb, read_log(openb, 0, None), candidate.rules(), None)
    true = read_log(lived(openb_world, candidate, WORLDS), 0, None).ledger
    assert table(course.ledger) == table(true)


@pytest.mark.slow
def test_a_lottery_places_as_many_pods_of_openb_as_simulating_it_does(openb: MemoryLog, openb_world: World) -> None:
    """Tickets are drawn by the numbers of jobs. A diff keeps those of the log; a log of its own has others, as soon as
    it has fewer or more events. So a lottery comes out otherwise, and its result about the same: a pod in a hundred."""
    candidate = folder("examples/random")
    report = diff(openb, candidate)
    true = read_log(lived(openb_world, candidate, WORLDS), 0, None).ledger
    assert report.under_candidate.placements == pytest.approx(true.placements, rel=0.01)
    hours = sum(true.held_gpu_ms["openb"].values()) / (1_000 * HOUR)
    assert report.under_candidate.shares["openb"].gpu_hours == pytest.approx(hours, rel=0.01)
    assert report.under_candidate.placements < report.recorded.placements


# --- the first change -------------------------------------------------------------------------------------------------


def test_the_first_change_is_named_with_both_decisions_and_both_lines() -> None:
    log = lived(crowd(), folder("default"))
    report = diff(log, spreads())
    first = report.first_change
    assert first is not None
    [record] = log.read(first.position - 1, first.position)
    found = decode(record.type, record.payload)
    assert isinstance(found, LeaseGranted)
    assert first.recorded is not None
    assert first.candidate is not None
    assert (first.recorded.position, first.recorded.job) == (first.position, f"j{found.job}")
    assert first.recorded.event["members"] != first.candidate.event["members"]
    assert (first.recorded.rule, first.candidate.rule) == (found.rule, "story-scoring.yaml:6")
    [tick] = log.read(first.tick - 1, first.tick)
    assert (tick.type, tick.recorded_at_ms) == (Ticked.TYPE, first.at_ms)
    assert [because.point for because in first.because] == ["scoring"]
    assert first.because[0].recorded_answer != first.because[0].candidate_answer
    assert first.because[0].candidate_rule == "story-scoring.yaml:6"
    assert (first.because[0].recorded_rule or "").startswith("scoring.yaml:")
    assert first.policy is not None
    assert first.policy.name == "default"


def test_a_change_of_the_order_is_laid_at_the_door_of_the_order() -> None:
    """Placements name the rule that scored the node; why another job got it is found by trying."""
    jobs = [job(0, "large", 4, priority=1), job(0, "small", 4, priority=2)]
    recorded, candidate = folder("default"), bundle_of("default", {}, {"ordering.job": "[job.priority]"})
    first = diff(lived(world(jobs, home(1)), recorded), candidate).first_change
    assert first is not None
    [because] = first.because
    assert (because.point, because.recorded_answer, because.candidate_answer) == ("ordering.job", "[-1]", "[1]")
    assert first.recorded is not None
    assert first.candidate is not None
    assert first.recorded.job == first.candidate.job
    assert first.recorded.sentence.startswith(f"{first.recorded.job} is placed on n0")
    assert first.candidate.sentence == f"{first.candidate.job} waits: capacity"


@pytest.mark.parametrize(
    ("point", "rule", "answers", "kind"),
    [
        ("service.replicas", "2", ("4", "2"), "scaled"),
        ("service.take", "1000", ("4000", "1000"), "resized"),
    ],
)
def test_replicas_of_a_service_are_laid_at_the_door_of_its_rules(
    point: str, rule: str, answers: tuple[str, str], kind: str
) -> None:
    log = played("i1-a-service-grows-by-shrinking-training")
    rules: Plain = {"service.replicas": "service.replicas_most", point: rule}
    report = diff(log, bundle_of("default", {"service_take_gpus_milli": 4_000}, rules))
    first = report.first_change
    assert first is not None
    [because] = first.because
    assert (because.point, because.recorded_answer, because.candidate_answer) == (point, *answers)
    assert first.recorded is not None
    assert first.recorded.kind == kind
    assert report.under_candidate.shrinkages < report.recorded.shrinkages


def test_how_a_service_does_is_as_recorded_on_another_course() -> None:
    """The candidate asks for another number in the same instants, as the signal of the log comes and goes."""
    report = diff(played("i4-a-signal-that-flaps"), bundle_of("default", {"service_cooldown_ms": 0}))
    scaled = {change.how: change.count for change in report.changes if change.kind == "scaled"}
    assert scaled["only-candidate"] >= 3
    assert list(report.runtimes) == ["never"]


def test_what_was_observed_of_a_service_is_observed_of_the_start_that_it_has_on_the_other_course() -> None:
    """The candidate moves it for somebody more urgent, so that it has another lease than in the log by then."""
    replicas = [{"count": 2, "min_count": 1, "cpu_milli": 1_000, "gpus": 1}]
    load = {"latency_ms": 100, "replica_rate_milli": 1_000, "curve": [{"at_ms": 0, "rate_milli": 100}]}
    spec = {"name": "api", "queue": "team", "roles": replicas, "service": {}}
    more = {"services": [{"at_ms": 0, "spec": spec, "load": load}], "until_ms": 20 * MINUTE}
    jobs = [job(MINUTE, "vip", 4, priority=9, estimate_ms=5 * MINUTE)]
    still = without(bundle_of("default", {}, {"preemption.allow": "[]"}), "service.replicas", "service.take")
    log = lived(world(jobs, home(1), **more), still)
    moves: Plain = {"preemption.allow": "['queue']", "preemption.victim": "1"}
    report = diff(
        log,
        bundle_of(
            "default", {}, {**moves, "service.replicas": "service.changed_ms > 300000 && has(service.p99_ms) ? 2 : 1"}
        ),
    )
    changes = {(change.kind, change.how): change.count for change in report.changes}
    assert changes["evicted", "only-candidate"] == changes["scaled", "only-candidate"] == 1


def test_a_gang_that_is_placed_and_grows_in_the_cycle_that_differs_is_told() -> None:
    gang = [{"count": 6, "min_count": 2, "cpu_milli": 1_000, "gpus": 1}]
    first = diff(lived(world([job(0, "gang", roles=gang)]), folder("default")), spreads()).first_change
    assert first is not None
    assert first.recorded is not None
    assert {first.recorded.kind, *(because.point for because in first.because)} <= {"placed", "resized", "scoring"}


def test_two_points_that_only_together_change_something_are_both_named() -> None:
    """The recorded rules let nobody evict and protect everybody: either alone is enough that nothing happens."""
    jobs = [job(0, "first", 4), job(MINUTE, "second", 4, priority=9)]
    protects = [{"condition": "victim.gpus_milli < 0", "output": "1"}]
    recorded = bundle_of("default", {}, {"preemption.allow": "[]", "preemption.victim": protects})
    candidate = bundle_of("default", {}, {"preemption.allow": "['queue']", "preemption.victim": "1"})
    first = diff(lived(world(jobs, home(1)), recorded), candidate).first_change
    assert first is not None
    assert first.candidate is not None
    assert first.candidate.kind == "promised"
    assert first.is_joint
    assert [because.point for because in first.because] == ["preemption.allow", "preemption.victim"]


def test_a_cycle_that_the_log_does_not_have_is_found_when_it_is_due() -> None:
    """The recorded rules never rent, so that nothing is due while a job waits; the candidate looks at the time."""
    jobs = [job(0, "first", 4, runs=3 * HOUR), job(MINUTE, "second", 4, estimate_ms=HOUR)]
    budgets = [{"name": "day", "limit_micro_usd": 10**9, "window_ms": 86_400_000}]
    others = ("reservation", "preemption.allow", "preemption.victim")
    candidate = without(bundle_of("default", {"crowded_ppm": 10**12}), *others)
    log = lived(world(jobs, home(1), cloud(), budgets=budgets), without(candidate, "burst"))
    report = diff(log, candidate)
    first = report.first_change
    assert first is not None
    assert first.is_extra
    assert first.at_ms == 31 * MINUTE, "half an hour after its submission"
    assert first.recorded is None
    assert first.candidate is not None
    assert first.candidate.kind == "rented"
    assert [because.point for because in first.because] == ["burst"]
    assert report.under_candidate.requests == 1
    assert report.jobs.gain[0].candidate_wait_ms == 32 * MINUTE


def test_a_candidate_that_scales_services_is_asked_about_them_though_the_log_never_was() -> None:
    """The recorded rules scale nothing, so that no cycle is due after the service has started; a signal does not make
    one due either."""
    replicas = [{"count": 4, "min_count": 1, "cpu_milli": 1_000, "gpus": 1}]
    jobs = [job(0, "api", roles=replicas, service={}, runs=None), job(10 * MINUTE, "other", runs=MINUTE)]
    recorded = without(folder("default"), "service.replicas", "service.take")
    log = lived(world(jobs, home()), recorded)
    report = diff(log, bundle_of("default", {}, {"service.replicas": "service.replicas_most"}))
    first = report.first_change
    assert first is not None
    assert first.candidate is not None
    assert (first.is_extra, first.at_ms, first.candidate.kind) == (True, 30_000, "scaled")
    assert [because.point for because in first.because] == ["service.replicas"]
    assert report.under_candidate.shares["team"].gpu_hours > report.recorded.shares["team"].gpu_hours
    lease = next(decode(record.type, record.payload) for record in log.read() if record.type == LeaseGranted.TYPE)
    assert isinstance(lease, LeaseGranted)
    signal = ServiceObserved(cluster="home", lease=lease.lease, observed_ms=HOUR, p99_ms=100)
    log.append([entry_of(signal, "home", HOUR)], log.head())
    first = diff(log, bundle_of("default", {}, {"service.replicas": "has(service.p99_ms) ? 2 : 1"})).first_change
    assert first is not None
    assert first.candidate is not None
    assert (first.is_extra, first.at_ms, first.candidate.kind) == (True, HOUR, "scaled")


def without(bundle: Bundle, *points: str) -> Bundle:
    """The bundle without its rules at some points."""
    manifest = yaml.safe_load(bundle.files["bundle.yaml"])
    gone = [file for point in points for file in manifest["points"].pop(point)]
    files = {path: text for path, text in bundle.files.items() if path not in gone}
    return load_bundle({**files, "bundle.yaml": yaml.safe_dump(manifest, sort_keys=False)})


# --- logs and bundles that are not simple -----------------------------------------------------------------------------


def test_a_log_with_two_policies_is_compared_with_each_in_its_own_stretch() -> None:
    """SCENARIOS H4. The first policy runs one job at a time; the second, from 10 minutes on, all that fit."""
    log = played("q-a-policy-changes-between-two-jobs")
    first, second = own_bundles(log)
    positions = [record.position for record in log.read() if record.type == PolicyActivated.TYPE]
    whole = diff(log, first)
    assert [policy.position for policy in whole.policies] == positions
    assert whole.first_change is not None
    assert whole.first_change.position > positions[1]
    assert whole.first_change.policy is not None
    assert whole.first_change.policy.digest == second.digest
    assert any("several policies" in note for note in whole.notes)
    assert_nothing_changes(diff(log, second, positions[1]))
    early = diff(log, second).first_change
    assert early is not None
    assert positions[0] < early.position < positions[1]
    assert early.policy is not None
    assert early.policy.digest == first.digest


def test_since_leaves_out_what_came_before() -> None:
    log = lived(crowd(), folder("default"))
    whole = diff(log, spreads())
    assert whole.first_change is not None
    late = next(record.position for record in log.read() if record.recorded_at_ms >= 65 * MINUTE)
    report = diff(log, spreads(), late)
    assert report.start >= late
    assert report.recorded.jobs["seen"] < whole.recorded.jobs["seen"]
    assert report.first_change is None or report.first_change.position > late
    assert report.recorded.waits[ALL].jobs == 1, "only the job that came late began to wait in the stretch"
    last = log.head().position
    with pytest.raises(NothingDecided, match=f"no cycle after position {last}"):
        diff(log, spreads(), last)
    with pytest.raises(NothingDecided, match="empty"):
        diff(MemoryLog(), spreads())


def test_a_candidate_whose_rule_errs_fails_closed_and_the_fault_is_told() -> None:
    """SCENARIOS H2, over history: nobody is eligible for any node where the rule cannot say."""
    log = lived(crowd(), folder("default"))
    broken = {"condition": "int(role.name) > 0", "output": "true"}
    report = diff(log, bundle_of("default", {}, {"eligibility": [broken, {"output": "true"}]}))
    assert report.under_candidate.placements == 0
    assert report.under_candidate.faults
    assert "story-eligibility.yaml:6" in report.under_candidate.faults[0]
    assert report.recorded.faults == ()
    assert report.jobs.only_recorded == report.recorded.waits[ALL].started
    assert {row.reason for row in report.by_rule if row.how == "only-recorded" and row.kind == "placed"}


def test_a_log_that_another_core_decided_says_so() -> None:
    """The first placement is made to name the other node: the log's own rules do not decide that."""
    records = list(lived(crowd(), folder("default")).read())
    at = next(record.position for record in records if record.type == LeaseGranted.TYPE)
    granted = decode(LeaseGranted.TYPE, records[at - 1].payload)
    assert isinstance(granted, LeaseGranted)
    [member] = granted.members
    moved = member.model_copy(update={"node": "n1" if member.node == "n0" else "n0"})
    payload = encode(granted.model_copy(update={"members": (moved,)}))
    log = resealed([record._replace(payload=payload) if record.position == at else record for record in records])
    first = diff(log, folder("default")).first_change
    assert first is not None
    assert first.position == at
    assert first.because == ()
    assert "another core" in first.note


def resealed(records: list[Record]) -> MemoryLog:
    """A log of these records under a chain of its own."""
    log = MemoryLog()
    log.append([Entry(*record[1:8]) for record in records], log.head())
    return log


def test_a_log_that_does_not_follow_from_itself_is_refused() -> None:
    log = lived(crowd(), folder("default"))
    records = list(log.read())
    at = next(at for at, record in enumerate(records) if record.type == CycleDecided.TYPE)
    node = next(record for record in records if record.type == NodeObserved.TYPE)
    with pytest.raises(LogDamaged, match=f"position {at + 1}: node_observed/1: is no decision, in the middle"):
        diff(resealed([*records[:at], node, *records[at + 1 :]]), folder("default"))
    with pytest.raises(LogDamaged, match="the log ends in the middle of a cycle"):
        diff(resealed(records[:at]), folder("default"))
    with pytest.raises(LogDamaged, match=r"position \d+: lease_granted/1 does not follow"):
        diff(resealed([record for record in records if record.type != JobSubmitted.TYPE]), spreads())


# --- figures ----------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_every_other_command() -> None:
    log = lived(rented(), folder("default"))
    state, figures = State(), Figures()
    for record in log.read():
        event = decode(record.type, record.payload)
        apply(state, record.position, event)
        figures.see(state, event)
    known = figures.summary(state)
    side = diff(log, folder("default")).recorded
    plain = side.as_dict()
    assert plain["placements"] == known["placements"]
    assert plain["preemptions"] == known["preemptions"]
    assert side.utilisation == pytest.approx(known["utilisation"], abs=0.01)  # nodes come and go between two ticks
    burst = known["burst"]
    assert isinstance(burst, dict)
    assert side.burst_gpu_hours == pytest.approx(burst["gpu_hours"], abs=1e-3)
    assert side.micro_usd == burst["micro_usd"]
    assert side.requests == burst["requests"] > 0


def test_a_placement_that_comes_later_is_laid_to_the_rule_that_held_the_job() -> None:
    """Borrowing is forbidden by the candidate, and the reason for which the jobs waited names the rule."""
    quota = {"quotas": {"any": {"gpu": {"nominal": 4_000}}}}
    queues = [{"name": "all"}, {"name": "a", "parent": "all", **quota}, {"name": "b", "parent": "all", **quota}]
    jobs = [job(0, f"borrows-{number}", 2, queue="a") for number in range(4)]
    candidate = bundle_of("default", {}, {"quota": "job.gpus_milli < 0"})
    report = diff(lived(world(jobs, home(), queues=queues), folder("default")), candidate)
    [row] = [row for row in report.by_rule if row.kind == "placed"]
    assert (row.how, row.reason, row.candidate_rule, row.count) == ("later", "quota", "story-quota.yaml:6", 2)
    assert [change.name for change in report.jobs.lose] == ["borrows-2", "borrows-3"]
    assert {change.later_ms for change in report.jobs.lose} == {HOUR}
    assert report.recorded.waits["a"].mean_ms == 0
    assert report.under_candidate.waits["a"].mean_ms == HOUR // 2


def test_run_times_come_from_the_log_then_from_estimates_then_from_the_queue() -> None:
    jobs = [
        job(0, "fills", 4, runs=HOUR),
        job(0, "breaks", 4, runs=2 * HOUR, fails=True, max_attempts=1),
        job(MINUTE, "estimated", 4, estimate_ms=30 * MINUTE, wait_limit_ms=5 * MINUTE),
        job(MINUTE, "unknown", 4, wait_limit_ms=5 * MINUTE),
        job(MINUTE, "served", 4, wait_limit_ms=5 * MINUTE, service={}),
        job(MINUTE, "stray", 4, queue="nowhere"),
    ]
    log = lived(world(jobs, home()), folder("default"))
    observed = read_log(log, 0, None).observed
    state = State()
    known: dict[str, tuple[object, ...]] = {}
    for record in log.read():
        event = decode(record.type, record.payload)
        apply(state, record.position, event)
        if isinstance(event, JobSubmitted):
            known[event.spec.name] = observed.run_of(state.jobs[record.position], 0)
    assert known == {
        "fills": (HOUR, LeasePhase.FINISHED, Runtime.OBSERVED),
        "breaks": (2 * HOUR, LeasePhase.FAILED, Runtime.OBSERVED),
        "estimated": (30 * MINUTE, LeasePhase.FINISHED, Runtime.ESTIMATE),
        "unknown": (HOUR, LeasePhase.FINISHED, Runtime.QUEUE),
        "served": (None, LeasePhase.FINISHED, Runtime.NEVER),
        "stray": (None, LeasePhase.FINISHED, Runtime.NEVER),
    }


# --- the points at which bundles are crossed --------------------------------------------------------------------------


def test_every_decision_point_can_be_exchanged_with_all_that_the_scheduler_asks_of_it() -> None:
    """A member of the port that no point names would stay the recorded bundle's whatever is exchanged."""
    asked = {name for name in vars(Rules) if not name.startswith("_")} - {"digest", "engine"}
    assert {name for names in POINTS.values() for name in names} == asked
    assert set(POINTS) == set(BY_NAME)
