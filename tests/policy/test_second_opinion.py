"""Two engines agree on the portable subset, what is outside of it is known, and a disagreement is found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from controlplane.audit.replay import replay
from controlplane.eventlog.file import FileLog
from controlplane.eventlog.memory import MemoryLog
from controlplane.policy.bundle import load_bundle, read_bundle_folder
from controlplane.policy.engine import Base, CelExprPython, CelPy, Checker, Engine, Fault, Program, Refused, Value
from controlplane.policy.second_opinion import EVERY, Opinion, SecondOpinion, is_same, why_outside
from controlplane.policy.tree import read_tree
from controlplane.scheduler.facts import JobFacts
from tests.policy.bundles import job, output, queue
from tests.policy.conformance import cases, data_file, plain, spell
from tests.replay.make_golden import GOLDEN

POLICIES = Path(__file__).resolve().parents[2] / "policies"
LONG = max(GOLDEN.glob("core-*/small-company.jsonl"))
"""A golden log under the default bundle."""


class Mutant:
    """The second engine with one operator taken for another."""

    def __init__(self, operator: str, other: str) -> None:
        self._engine = CelPy()
        self._operator, self._other = operator, other

    @property
    def name(self) -> str:
        return "mutant"

    def program(self, source: str) -> Program:
        return self._engine.program(source.replace(self._operator, self._other))


def heard(path: Path, engine: Engine, every: int | None = EVERY) -> SecondOpinion:
    """The opinion of an engine on a log, which must verify."""
    opinion = SecondOpinion(engine, every)
    with FileLog(path) as log:
        assert replay(log, verify=True, opinion=opinion).ok
    return opinion


def by_place(opinion: SecondOpinion) -> dict[str, Opinion]:
    return {f"{of.file}:{of.line}": of for of in opinion.opinions}


# --- replay ----------------------------------------------------------------------------------------------------------


def test_the_engines_agree_on_every_rule_of_a_golden_log() -> None:
    opinion = heard(LONG, CelPy())
    answer = opinion.as_dict()
    assert (answer["ok"], answer["disagreed"]) == (True, 0)
    found = by_place(opinion)
    assert [place for place, of in found.items() if of.outside] == ["gang.yaml:8", "gang.yaml:10"], "math.least()"
    asked = {place for place, of in found.items() if of.evaluated}
    assert {"burst.yaml:9", "scoring.yaml:7", "reservation.yaml:6"} <= asked
    assert {"ordering-job.yaml:6", "ordering-queue.yaml:6"} <= asked, "bare fields are evaluated, too"
    compared = [of for of in found.values() if of.evaluated and not of.outside]
    assert all(1 <= of.compared <= of.distinct <= of.evaluated for of in compared)


@pytest.mark.parametrize(
    ("operator", "other", "place"),
    [
        (">=", ">", "preemption-allow.yaml:10"),
        ("-job.priority", "job.priority", "ordering-job.yaml:6"),
        ("8 * variables", "9 * variables", "scoring.yaml:11"),
        ("&&", "||", "burst.yaml:16"),
    ],
)
def test_a_planted_disagreement_is_found_at_its_line(operator: str, other: str, place: str) -> None:
    opinion = heard(LONG, Mutant(operator, other))
    assert not opinion.is_agreed
    wrong = by_place(opinion)[place]
    assert wrong.disagreed > 0
    shown = wrong.shown[0]
    assert shown.first != shown.second
    assert shown.given
    assert opinion.as_dict()["ok"] is False


def test_more_than_is_compared_is_compared_on_request() -> None:
    few, all_of_them = heard(LONG, CelPy(), every=2), heard(LONG, CelPy(), every=None)
    assert [of.distinct for of in few.opinions] == [of.distinct for of in all_of_them.opinions]
    assert all(of.compared == of.distinct for of in all_of_them.opinions if not of.outside)
    most = max(all_of_them.opinions, key=lambda of: of.distinct)
    fewer = by_place(few)[f"{most.file}:{most.line}"]
    assert 2 <= fewer.compared < most.compared / 4


# --- one expression at a time ----------------------------------------------------------------------------------------


JOBS = (
    job(name="job", labels={"a": "1", "b": "2"}, gpu_models=("A100", "T4")),
    job(name="job", priority=3, estimate_ms=60_000, labels={"a": "2"}),
    job(name="other", priority=-2, labels={"a": "1"}),
)


def opinion_on(expression: str, *jobs: JobFacts, engine: Engine | None = None) -> Opinion:
    """What came of an ordering rule that is asked about jobs."""
    listening = SecondOpinion(engine or CelPy())
    rules = listening.rules(output("ordering.job", f"[{expression}]"))
    for one in jobs:
        rules.job_order(one, queue(), 60_000)
    (found,) = listening.opinions
    return found


@pytest.mark.parametrize(
    "expression",
    [
        "has(job.estimate_ms) ? job.estimate_ms : -1",
        "job.labels['a'] == '1' && 'b' in job.labels && !('c' in job.labels) ? 1 : 0",
        "size(job.name) * 7 % 5 - now / 1000",
        "job.gpu_models.exists(model, model.startsWith('A')) ? 1 : 0",
        "size(job.gpu_models.filter(model, model != 'T4').map(model, model + '!'))",
        "job.name.matches('j.b+') ? int('4') : 5",
        "1 / job.priority",
        "9223372036854775807 + job.priority",
        "{'a': 1, 'b': 2}[job.name == 'job' ? 'a' : 'c']",
        "int(string(job.priority) + '0')",
    ],
)
def test_what_is_inside_is_compared_and_agrees(expression: str) -> None:
    found = opinion_on(expression, *JOBS)
    assert found.outside == ""
    assert (found.disagreed, found.shown) == (0, [])
    assert 1 <= found.compared <= found.evaluated


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("int(timestamp(0).getHours('UTC'))", "getHours()"),
        ("timestamp(now) > timestamp(0) ? 1 : 0", "google.protobuf.Timestamp"),
        ("math.greatest(job.priority, 2)", "math.greatest()"),
        ("job.name.split('-').size()", "split()"),
        ("optional.of(job.priority).orValue(3)", "orValue()"),
        ("cel.bind(p, job.priority, p * p)", "cel.bind()"),
        ("job.gpu_models.all(i, model, i < 3) ? 1 : 0", "two variables"),
        ("job.name.matches('^j[ab]$') ? 1 : 0", "regular expression"),
        ("job.gpu_models.exists(job, job == 'T4') ? 1 : 0", "hides 'job'"),
        ("size('''a''')", "escapes or quotes"),
        ("int(double(job.priority) / 2.0)", "double"),
    ],
)
def test_what_is_outside_is_named_with_the_reason_and_not_compared(expression: str, why: str) -> None:
    found = opinion_on(expression, *JOBS)
    assert why in found.outside
    assert found.evaluated >= 1
    assert found.compared == found.distinct == 0
    assert "outside" in found.as_dict()


class Refusing:
    """An engine that reads nothing."""

    name = "refusing"

    def program(self, source: str) -> Program:
        raise Refused([])


class Constant:
    """An engine that always says the same."""

    name = "constant"

    def __init__(self, value: Value | Fault) -> None:
        self._value = value

    def program(self, source: str) -> Program:
        return self

    def evaluate(self, data: Mapping[str, Value]) -> Value | Fault:
        return self._value


def test_an_error_that_only_one_engine_gives_is_a_disagreement() -> None:
    found = opinion_on("job.priority", job(priority=7), engine=Constant(Fault("it failed", "")))
    assert found.disagreed == 1
    assert (found.shown[0].given, found.shown[0].first) == ("job: {'priority': 7}", "[7]")
    assert found.shown[0].second == "an error: it failed"


def test_equal_values_are_asked_about_once_whatever_else_differs() -> None:
    found = opinion_on(
        "job.priority + 1", job(name="a", priority=7), job(name="b", priority=7), job(name="c", priority=8)
    )
    assert (found.distinct, found.compared) == (2, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (True, 1),
        (1, 1.0),
        ("1", 1),
        ([1], [True]),
        ({"a": 1}, {"a": 1.0}),
        ([], {}),
        (None, False),
        (0.0, Fault("", "")),
    ],
)
def test_values_of_two_types_are_not_the_same(first: Value | Fault, second: Value | Fault) -> None:
    assert not is_same(first, second)
    assert is_same(first, first)
    assert is_same(second, second)


# --- the subset ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not data_file().exists(), reason="the CEL conformance set is not there; set TIDEGATE_DATA")
def test_inside_the_subset_the_engines_agree_on_the_conformance_set() -> None:
    """Cases that resolve names in a container, or variables with dots, which rules have none of, are left out."""
    second, compared, differ = CelPy(), 0, []
    for test in cases():
        environment = test.get("type_env", {})
        names = "".join(test.get("bindings", {}))
        if test.get("container") or "." in names or any(isinstance(of, dict) for of in environment.values()):
            continue
        try:
            types = {name: spell(spelled) for name, spelled in environment.items()}
            given = {name: plain(value) for name, value in test.get("bindings", {}).items()}
            first = CelExprPython(types).program(test["expr"])
            tree = read_tree(Checker(Base(), types).check(test["expr"]))
            if why_outside(tree, test["expr"], set(types)):
                continue
            other = second.program(test["expr"])
        except (Refused, TypeError, ValueError, RuntimeError):  # not for both: it is not compared in a log either
            continue
        compared += 1
        if not is_same(first.evaluate(given), other.evaluate(given)):
            differ.append(test["expr"])
    assert differ == []
    assert compared >= 408, "the subset has shrunk"


def test_of_the_bundles_that_ship_little_is_outside() -> None:
    """What is, is on this list: a rule that cannot be heard twice is a choice, not an accident."""
    outside: list[str] = []
    for manifest in sorted(POLICIES.rglob("bundle.yaml")):
        listening = SecondOpinion(CelPy())
        files = read_bundle_folder(manifest.parent)
        listening.rules(load_bundle(files))
        assert listening.opinions
        outside.extend(
            f"{manifest.parent.name}/{of.file}:{of.line}: {of.outside}" for of in listening.opinions if of.outside
        )
    least = "it uses math.least(), which the engines do not have alike"
    listed = ["default/gang.yaml:8", "default/gang.yaml:10", "slurm-fair-share/gang.yaml:7"]
    assert outside == [f"{place}: {least}" for place in listed]


def test_a_log_without_rules_has_nothing_to_compare() -> None:
    opinion = SecondOpinion(CelPy())
    assert replay(MemoryLog(), verify=True, opinion=opinion).ok
    assert opinion.as_dict()["expressions"] == 0
    assert opinion.is_agreed
