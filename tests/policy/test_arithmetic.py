"""Whole-number arithmetic that is answered without the engine says what the engine says, its errors included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.policy import rules as rules_module
from controlplane.policy.rules import BundleRules
from controlplane.scheduler.rules import Answer
from tests.policy.bundles import HOME_CLUSTER, ROLE, node, output

LEAST, MOST = -(2**63), 2**63 - 1
FIELDS = ("after.cpu_free_milli", "after.gpu_free_milli", "role.cpu_milli")
EXTREMES = st.one_of(st.sampled_from((0, 1, -1, 2, -2, 3, 7, LEAST, LEAST + 1, MOST)), st.integers(LEAST, MOST))
LITERALS = EXTREMES.map(lambda number: f"({number})")
EXPRESSIONS = st.recursive(
    st.one_of(st.sampled_from(FIELDS), LITERALS),
    lambda inner: st.one_of(
        st.builds(lambda left, sign, right: f"({left} {sign} {right})", inner, st.sampled_from("+-*/%"), inner),
        inner.map(lambda one: f"(-{one})"),
    ),
    max_leaves=8,
)


def asked(expression: str, cpu: int, gpu: int) -> tuple[Answer[int], int, int]:
    """The answer; questions answered without the engine; evaluations."""
    rules = output("scoring", expression).rules()
    assert isinstance(rules, BundleRules)
    answer = rules.scoring(ROLE, HOME_CLUSTER, node(), node(cpu, gpu), None)
    counter = rules.counters.points["scoring"]
    return answer, counter.direct, counter.evaluated


@given(expression=EXPRESSIONS, cpu=EXTREMES, gpu=EXTREMES)
def test_the_answer_is_the_engines(expression: str, cpu: int, gpu: int) -> None:
    direct, directly, _ = asked(expression, cpu, gpu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules_module, "_direct", lambda _: None)
        by_engine, not_directly, evaluated = asked(expression, cpu, gpu)
    assert (directly, not_directly, evaluated) == (1, 0, 1)
    assert direct == by_engine


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(256000 - after.cpu_free_milli - 16 * after.gpu_free_milli) / 2560", 99),
        ("-7 / 2 + after.cpu_free_milli * 0", -3),
        ("-7 % 2 + after.cpu_free_milli * 0", -1),
        ("7 % -2 + after.cpu_free_milli * 0", 1),
    ],
)
def test_known_values_need_no_evaluation(expression: str, value: int) -> None:
    answer, directly, evaluated = asked(expression, 1_000, 10)
    assert (answer.value, directly, evaluated) == (value, 1, 0)


@pytest.mark.parametrize(
    "expression", ["1 / (after.cpu_free_milli - 1000)", "after.cpu_free_milli * 9223372036854775807"]
)
def test_an_error_is_told_in_the_engines_words(expression: str) -> None:
    answer, _, evaluated = asked(expression, 1_000, 10)
    assert answer.fault is not None
    assert evaluated == 1


def test_a_wrong_operation_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rules_module._OPERATIONS, "_/_", lambda left, right: left // right)
    assert asked("-7 / 2 + after.cpu_free_milli * 0", 1_000, 10)[0].value == -4
