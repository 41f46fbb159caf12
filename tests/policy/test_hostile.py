"""Policies that mean harm: each refused or bounded with a clear sentence, quickly, in little memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.policy.bundle import compile_bundle, load_bundle
from controlplane.policy.check import check
from controlplane.policy.problems import errors
from tests.policy.bundles import (
    HOME_CLUSTER,
    ROLE,
    SHIPPED,
    bundle,
    job,
    node,
    one_rule,
    output,
    problems,
    shipped,
)

SECONDS = 5.0
MEGABYTES = 512
OWN_MEGABYTES = 128
"""What a process that has loaded the policy room takes before it meets a policy (100 MB here)."""


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """No test may take longer, nor push the peak of this process (which other tests have raised before) by more."""
    started, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.process_time() - started < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < MEGABYTES * 1024 - OWN_MEGABYTES * 1024


def expression(text: str, point: str = "scoring") -> dict[str, str]:
    return one_rule(point, f"match:\n  - output: |\n      {text}")


def doubling(rounds: int) -> str:
    lines = ["variables:", "  - {name: s0, expression: job.name + job.name}"]
    lines += [f"  - {{name: s{n}, expression: variables.s{n - 1} + variables.s{n - 1}}}" for n in range(1, rounds)]
    return "\n".join([*lines, "match:", f"  - output: size(variables.s{rounds - 1}) > 0"])


def binding(rounds: int) -> str:
    text = f"size(s{rounds})"
    for n in range(rounds, 0, -1):
        text = f"cel.bind(s{n}, s{n - 1} + s{n - 1}, {text})"
    return f"cel.bind(s0, job.name, {text}) > 0"


def chain(rounds: int, step: str, end: str) -> str:
    lines = ["variables:", "  - {name: s0, expression: '[job.members]'}"]
    lines += [f"  - {{name: s{n}, expression: '{step}'}}".replace("@", f"variables.s{n - 1}") for n in range(1, rounds)]
    return "\n".join([*lines, "match:", f"  - output: {end}".replace("@", f"variables.s{rounds - 1}")])


HOSTILE = {
    "a 1 MB expression": (expression("1" + " + 1" * 250_000), "larger than 256 KiB"),
    "a 200 kB expression": (expression("1" + " + 1" * 50_000), "longer than 8,192 characters"),
    "1,000 parentheses": (expression("(" * 1000 + "1" + ")" * 1000), "nested or chained too deep"),
    "a long chain": (expression("1" + " + 1" * 200), "nested or chained too deep"),
    "a loop over a million": (expression("size(lists.range(1000000).map(x, x))"), "more than the 100,000 allowed"),
    "a loop over as many as a field says": (
        expression("size(lists.range(after.gpus).map(x, x))"),
        "more than the 100,000 allowed",
    ),
    "a literal of thousands": (
        expression("[" + "1," * 4000 + "1].map(x, [x, x].map(y, y * 2)[0])[0]"),
        "its loops may go round",
    ),
    "loops in loops": (
        expression("job.gpu_models.all(a, job.gpu_models.all(b, job.gpu_models.all(c, a == b)))", "eligibility"),
        "loops stand more than 2 deep",
    ),
    "doubling by variables": (one_rule("eligibility", doubling(60)), "more than the 100,000 allowed"),
    "doubling lists": (one_rule("eligibility", chain(60, "@ + @", "size(@) > 0")), "more than the 100,000 allowed"),
    "doubling by nesting": (
        one_rule("eligibility", chain(9, "[@, @, @, @, @, @, @]", "size(@) > 0")),
        "more than the 100,000 allowed",
    ),
    "doubling by mapping": (
        one_rule("eligibility", chain(9, "@.map(x, [x, x, x, x, x, x, x])", "size(@) > 0")),
        "more than the 100,000 allowed",
    ),
    "doubling by binding": (expression(binding(12), "eligibility"), "more than the 100,000 allowed"),
    "replacing by more": (
        expression("size(job.name.replace('a', job.name).replace('a', job.name)) > 0", "eligibility"),
        "more than the 100,000 allowed",
    ),
    "NUL in a text": (expression("size('a\\u0000b')"), "must not contain the character NUL"),
    "an unclosed text": (expression("'abc"), "this is not a valid expression"),
    "many expressions": (
        one_rule("scoring", "match:\n" + "  - {condition: after.gpus > 1, output: '1'}\n" * 300 + "  - output: '1'"),
        "more than 400 expressions",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_policy_is_refused_with_a_sentence(name: str) -> None:
    files, sentence = HOSTILE[name]
    found = errors(check(files))
    assert found
    assert sentence in "\n".join(problem.message for problem in found)
    assert all(len(str(problem)) < 2_000 for problem in found)


def test_numbers_that_double_through_sixty_variables_are_evaluated_once_each() -> None:
    lines = ["variables:", "  - {name: s0, expression: job.members - 1}"]
    lines += [f"  - {{name: s{n}, expression: variables.s{n - 1} + variables.s{n - 1}}}" for n in range(1, 60)]
    rule = "\n".join([*lines, "match:", "  - output: variables.s59 == 0"])
    rules = bundle("eligibility", rule).rules()
    assert rules.eligibility(job(), ROLE, HOME_CLUSTER, node()).value is True
    assert rules.counters.points["eligibility"].evaluated == 61
    failing = bundle("eligibility", rule.replace("job.members - 1", "job.members / 0")).rules()
    assert failing.eligibility(job(), ROLE, HOME_CLUSTER, node()).fault is not None


def test_a_catastrophic_regex_is_linear() -> None:
    rules = output("eligibility", "job.name.matches('^(a+)+$')").rules()
    assert not rules.eligibility(job(name="a" * 250 + "!"), ROLE, HOME_CLUSTER, node()).value


def test_a_rule_that_always_errs_is_bounded_and_closed() -> None:
    rules = output("eligibility", "job.gpu_models.all(m, 1 / 0 > 0)").rules()
    asked = rules.eligibility(job(gpu_models=("a",) * 64), ROLE, HOME_CLUSTER, node())
    assert (asked.value, asked.fault is not None) == (False, True)


def test_facts_beyond_the_bounds_of_the_check_end_in_a_fault_not_in_a_hang() -> None:
    rules = output("eligibility", "job.gpu_models.all(a, job.gpu_models.all(b, a == b))").rules()
    asked = rules.eligibility(job(gpu_models=("a",) * 2_000), ROLE, HOME_CLUSTER, node())
    assert asked.value is False
    assert asked.fault is not None
    assert "too many steps" in asked.fault


def test_the_active_bundle_stays_when_another_is_refused() -> None:
    active = load_bundle(shipped("default"))
    before = active.rules().job_order_reads
    assert problems("scoring", "match:\n  - output: after.gpu")
    assert compile_bundle(expression("1 +"))[0] is None
    assert active.rules().job_order_reads == before


def test_order_of_a_map_cannot_be_asked_for() -> None:
    for text in (
        "size(job.labels.map(k, job.labels[k])[0]) > 0",
        "job.labels.filter(k, true)[0] == 'a'",
        "job.labels.transformList(k, v, v)[0] == 'a'",
        "'%s'.format([job.labels]) == 'x'",
        "['a'].map(x, {x: 1})[0].size() > 0",
        "size(job.labels.transformMap(k, v, v)) > 0",
    ):
        found = errors(problems("eligibility", f"match:\n  - output: |\n      {text}"))
        assert found, text
        assert {problem.code for problem in found} == {"map-order"}, text


RULES = [
    text for name in SHIPPED for path, text in shipped(name).items() if path != "bundle.yaml" and "tests" not in path
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_fuzz_a_changed_rule_is_loaded_or_refused_and_never_more(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(RULES))
    at = data.draw(st.integers(0, len(text)))
    removed = data.draw(st.integers(0, 12))
    added = data.draw(st.text("abcdefgxyz\"'|>&*![]{}():,.-+ \n\t0123456789\0é\ud800", max_size=12))
    changed = text[:at] + added + text[at + removed :]
    found, told = compile_bundle({"bundle.yaml": "name: x\npoints: {scoring: [r.yaml]}\n", "r.yaml": changed})
    assert (found is None) == bool(errors(told))
    for problem in told:
        assert problem.line >= 1
        assert problem.column >= 1
        assert problem.message


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200))
def test_fuzz_any_text_is_loaded_or_refused(text: str) -> None:
    for files in ({"bundle.yaml": text}, {"bundle.yaml": "name: x\npoints: {scoring: [r.yaml]}\n", "r.yaml": text}):
        found, told = compile_bundle(files)
        assert (found is None) == bool(errors(told))


def test_bundles_are_not_shared_state() -> None:
    one = bundle("scoring", "match:\n  - output: '1 + after.gpus'").rules()
    two = bundle("scoring", "match:\n  - output: '2 + after.gpus'").rules()
    assert one.scoring(ROLE, HOME_CLUSTER, node(), node(), None).value == 9
    assert two.scoring(ROLE, HOME_CLUSTER, node(), node(), None).value == 10
