"""The scenario tests of a bundle: stories in its ``scenarios`` folder, played under the bundle itself.

Each gives a :class:`~controlplane.policy.testing.CaseResult`, as a rule test does, so that both stand in one report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from controlplane.domain.codec import decode
from controlplane.domain.events import PolicyActivated, Ticked
from controlplane.eventlog.port import EventLog
from controlplane.policy.bundle import load_bundle
from controlplane.policy.coverage import CoverageReport, covered
from controlplane.policy.evaluation import Observer
from controlplane.policy.rules import BundleRules
from controlplane.policy.testing import CaseResult, Kind, Verdict, run_bundle_tests, scenario_files
from controlplane.scheduler.decide import decide
from controlplane.scheduler.fold import apply
from controlplane.scheduler.state import State
from controlplane.simulate.scenarios.bundles import Bundles
from controlplane.simulate.scenarios.expectations import Expectations, StoryWentOtherwise
from controlplane.simulate.scenarios.form import NO_OTHER_BUNDLE, refuse_other_bundles
from controlplane.simulate.scenarios.stage import Stage
from controlplane.simulate.scenarios.story import read_story
from controlplane.simulate.scenarios.words import BadStory


def run_all(files: Mapping[str, str], chosen: Callable[[str], bool], *, coverage: bool) -> CoverageReport:
    """Runs the rule tests and the scenarios of a bundle. ``coverage``: also find out what the scenarios go through,
    which takes as long again. Raises ``BundleRefused`` if the bundle does not load."""
    bundle = load_bundle(files)
    observers: list[Observer] = []
    played: list[Observer] = []
    tests = run_bundle_tests(bundle, files, observers, chosen)
    cases = play_scenarios(files, chosen, played if coverage else None)
    return covered(bundle, replace(tests, cases=(*tests.cases, *cases)), observers, played)


def play_scenarios(
    files: Mapping[str, str], chosen: Callable[[str], bool], observers: list[Observer] | None = None
) -> list[CaseResult]:
    """Plays the scenarios of a bundle that loads. ``chosen`` is asked with ``file: title``; ``observers`` collects what
    the rules went through."""
    results: list[CaseResult] = []
    for path in scenario_files(files):
        played = _played(path, files, chosen)
        if played is None:
            continue
        result, log = played
        results.append(result)
        if log is not None and observers is not None:
            observe(log, observers)
    return results


def _played(
    path: str, files: Mapping[str, str], chosen: Callable[[str], bool]
) -> tuple[CaseResult, EventLog | None] | None:
    """The result and the log, if there is one; ``None`` for a scenario that was not chosen."""
    try:
        story = read_story(path, files[path])
    except BadStory as bad:
        return (_broken(path, path, bad), None) if chosen(f"{path}: ") else None
    if not chosen(f"{path}: {story.title}"):
        return None
    try:
        refuse_other_bundles(story)
        stage = Stage(story, own_bundle(files))
        return _result(stage), stage.log
    except BadStory as bad:
        return _broken(path, story.title, bad), None


def _result(stage: Stage) -> CaseResult:
    """Plays. Raises :class:`BadStory`."""
    story = stage.story
    try:
        stage.play(Expectations(stage).check)
    except StoryWentOtherwise as otherwise:
        told = otherwise.difference
        return CaseResult(
            file=story.file,
            line=told.expectation.place[0],
            suite=story.title,
            section=told.moment,
            name=story.title,
            verdict=Verdict.FAILED,
            expected=told.expected,
            got=told.got,
            rule=None,
            message=told.expectation.because,
            kind=Kind.SCENARIO,
            why=told.why,
            told=told.told,
        )
    return _without_answer(story.file, 1, story.title, Verdict.PASSED, "")


def _broken(path: str, title: str, bad: BadStory) -> CaseResult:
    line, column = bad.place or (1, 1)
    return _without_answer(path, line, title, Verdict.BROKEN, f"{path}:{line}:{column}: {bad.message}")


def _without_answer(path: str, line: int, title: str, verdict: Verdict, message: str) -> CaseResult:
    return CaseResult(path, line, title, "", title, verdict, "", "", None, message, Kind.SCENARIO)


def own_bundle(files: Mapping[str, str]) -> Bundles:
    """The bundle that the scenarios stand in, whatever happens in them."""

    def files_of(name: str) -> Mapping[str, str]:
        if name:
            raise BadStory(NO_OTHER_BUNDLE)
        return files

    return files_of


def observe(log: EventLog, observers: list[Observer]) -> None:
    """Decides every cycle of a log again, and notes what its rules go through at each question that is new to them."""
    state, rules = State(), dict[str, BundleRules]()
    for record in log.read():
        event = decode(record.type, record.payload)
        apply(state, record.position, event)
        if isinstance(event, PolicyActivated) and event.digest not in rules:
            rules[event.digest] = load_bundle(event.files).rules(observers)
        elif isinstance(event, Ticked):
            decide(state, rules[state.policy_digest])
