"""The format as it is written elsewhere: nested rules, scoping, optional results, environment files, host functions."""

from __future__ import annotations

import datetime as dt

import pytest

from controlplane.policy.foreign import agree, load_policy
from controlplane.policy.problems import BundleRefused
from controlplane.policy.testing import Verdict

XY = "variables:\n  - {name: x, type_name: int}\n  - {name: y, type_name: int}\n"


def policy(rule: str) -> str:
    body = "".join(f"  {line}\n" for line in rule.strip("\n").split("\n"))
    return f"name: elsewhere\nrule:\n{body}"


def said(rule: str, x: int, y: int = 0) -> object:
    """The answer, or ``...`` for none."""
    answer = load_policy(policy(rule), XY).answer({"x": x, "y": y})
    assert answer.fault is None, answer.fault
    return answer.value if answer.is_answer else ...


FALLS_THROUGH = """
match:
  - rule:
      match:
        - {condition: x > 3, output: "'large'"}
        - {condition: x > 2, output: "'middling'"}
  - output: "'small'"
"""
ENDS = """
match:
  - condition: x > 0
    rule:
      match:
        - {condition: y > 0, output: "'both'"}
  - {condition: x < 0, output: "'negative'"}
"""
ENDS_INSIDE = """
match:
  - rule:
      match:
        - condition: x > 0
          rule:
            match:
              - {condition: y > 0, output: "'both'"}
        - {condition: y > 5, output: "'not asked when x is positive'"}
  - output: "'otherwise'"
"""
SHADOWED = """
variables:
  - {name: i, expression: '1'}
  - {name: when, expression: timestamp(variables.i)}
match:
  - condition: x == 1
    rule:
      variables:
        - {name: i, expression: variables.i + 4}
      match:
        - output: "variables.i * 10 + int(variables.when)"
  - output: variables.i
"""
SHORT = """
variables:
  - twice: x * 2
  - thrice: variables.twice + x
match:
  - output: variables.thrice
"""


@pytest.mark.parametrize(
    ("rule", "given", "wanted"),
    [
        (FALLS_THROUGH, (4, 0), "large"),
        (FALLS_THROUGH, (3, 0), "middling"),
        (FALLS_THROUGH, (1, 0), "small"),
        (ENDS, (1, 1), "both"),
        (ENDS, (1, 0), ...),
        (ENDS, (-1, 0), "negative"),
        (ENDS, (0, 0), ...),
        (ENDS_INSIDE, (1, 1), "both"),
        (ENDS_INSIDE, (1, 0), "otherwise"),
        (ENDS_INSIDE, (0, 6), "not asked when x is positive"),
        (SHADOWED, (1, 0), 51),
        (SHADOWED, (2, 0), 1),
        (SHORT, (5, 0), 15),
        ("match:\n  - output: |\n      x > 0 ? optional.of(x) : optional.none()", (3, 0), 3),
        ("match:\n  - output: |\n      x > 0 ? optional.of(x) : optional.none()", (0, 0), ...),
    ],
)
def test_matches_nest_fall_through_and_scope_as_in_the_format(
    rule: str, given: tuple[int, int], wanted: object
) -> None:
    assert said(rule, *given) == wanted


def test_variables_are_lazy() -> None:
    cases = "  - {condition: y > 0, output: variables.bad}\n  - output: '0'"
    rule = f"variables:\n  - {{name: bad, expression: 1 / x}}\nmatch:\n{cases}"
    assert said(rule, 0, 0) == 0
    assert load_policy(policy(rule), XY).answer({"x": 0, "y": 1}).fault is not None


BANK = """
name: bank
extensions:
  - name: strings
    version: 2
variables:
  - name: now
    type_name: google.protobuf.Timestamp
  - name: origin.ip
    type_name: string
  - name: account
    type_name: map
    params: [{type_name: string}, {type_name: dyn}]
functions:
  - name: country
    overloads:
      - id: country_string
        args: [{type_name: string}]
        return: {type_name: string}
"""
RULE = """
variables:
  - name: hour
    expression: now.getHours()
  - name: opened
    expression: >
      has(account.opened) ? timestamp(account.opened) : now
match:
  - condition: country(origin.ip) != account.home
    output: >
      {'allowed': false, 'why': 'from %s'.format([country(origin.ip)])}
  - condition: |
      // at night, new accounts wait
      variables.hour < 6
      && now - variables.opened < duration('24h')
    output: "{'allowed': false, 'why': 'night'}"
"""
SUITE = """
description: who may pay
section:
  - name: payments
    tests:
      - name: abroad
        input:
          now: {expr: "timestamp('2030-01-01T12:00:00Z')"}
          origin.ip: 10.0.0.2
          account: {home: us}
        output: "{'allowed': false, 'why': 'from de'}"
      - name: at night
        input:
          now: {expr: "timestamp('2030-01-01T03:00:00Z')"}
          origin.ip: 10.0.0.1
          account: {value: {home: us, opened: '2029-12-31T20:00:00Z'}}
        output: {expr: "optional.of({'allowed': false, 'why': 'night'})"}
      - name: by day
        input:
          now: {expr: "timestamp('2030-01-01T12:00:00Z')"}
          origin.ip: 10.0.0.1
          account: {home: us}
        output: optional.none()
      - name: as a value
        input:
          now: {expr: "timestamp('2030-01-01T12:00:00Z')"}
          origin.ip: 10.0.0.2
          account: {home: us}
        output: {value: {allowed: false, why: from de}}
      - name: wrong on purpose
        input:
          now: {expr: "timestamp('2030-01-01T12:00:00Z')"}
          origin.ip: 10.0.0.1
          account: {home: us}
        output: "{'allowed': false}"
"""


def country(ip: str) -> str:
    return {"10.0.0.1": "us", "10.0.0.2": "de"}.get(ip, "zz")


def test_an_environment_file_host_functions_and_tests_of_the_format() -> None:
    bank = load_policy(policy(RULE), BANK, {"country_string": country})
    results = bank.run_suite(SUITE)
    assert [(case.name, case.verdict) for case in results] == [
        ("abroad", Verdict.PASSED),
        ("at night", Verdict.PASSED),
        ("by day", Verdict.PASSED),
        ("as a value", Verdict.PASSED),
        ("wrong on purpose", Verdict.FAILED),
    ]
    assert results[1].rule == "policy.yaml:13"
    now = dt.datetime(2030, 1, 1, 12, tzinfo=dt.UTC)
    answer = bank.answer({"now": now, "origin.ip": "10.0.0.9", "account": {"home": "us"}})
    assert answer.value == {"allowed": False, "why": "from zz"}


@pytest.mark.parametrize(
    ("rule", "environment", "sentence"),
    [
        (
            "match:\n  - {condition: x > 0, output: '1'}\n  - output: \"'a'\"",
            XY,
            "policy.yaml:5:16: error: outputs differ: this is of type string, the one in line 4 of type int",
        ),
        (
            "match:\n  - {condition: x > 0, output: '1'}\n  - rule:\n      match:\n        - output: \"'a'\"",
            XY,
            "policy.yaml:7:22: error: outputs differ",
        ),
        ("match:\n  - output: xx", XY, "policy.yaml:4:15: error: the environment has no 'xx'"),
        ("match:\n  - output: variables.q", XY, "policy.yaml:4:15: error: no variable 'q' is defined above"),
        ("match:\n  - output: '1'\n  - output: '2'", XY, "policy.yaml:5:7: error: this match can never be reached"),
        ("match:\n  - output: '1'", "variables: 3", "config.yaml:1:1: error: Node 'variables' is not a sequence"),
        ("match:\n  - output: '1'", "[1]", "config.yaml:1:1: error: an environment is written as keys and values"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(rule: str, environment: str, sentence: str) -> None:
    with pytest.raises(BundleRefused) as refused:
        load_policy(policy(rule), environment)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("one", "other", "fits"),
    [
        ("int", "int", True),
        ("int", "string", False),
        ("list<dyn>", "list<int>", True),
        ("map<string, list<int>>", "map<string, dyn>", True),
        ("map<string, int>", "map<int, int>", False),
        ("list<int>", "optional_type<int>", False),
    ],
)
def test_types_agree_when_one_may_stand_for_the_other(one: str, other: str, fits: bool) -> None:
    assert agree(one, other) is fits
    assert agree(other, one) is fits
