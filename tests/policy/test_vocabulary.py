"""The vocabulary and the scheduler's facts are two views of one thing."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Union, get_args, get_origin, get_type_hints

import pytest

from controlplane.policy.vocabulary import BY_NAME, POINTS, RECORDS, CelType, Point, Record
from controlplane.scheduler import facts
from controlplane.scheduler.rules import Rules

METHODS = {
    "ordering.queue": "queue_order",
    "ordering.job": "job_order",
    "ordering.backfill": "backfill_order",
    "reservation": "reserve",
}
"""Points whose method of the port has another name."""


def facts_of(record: Record) -> type:
    found: type = getattr(facts, f"{record.name}Facts")
    return found


def cel_type(hint: object) -> tuple[CelType, bool]:
    """The CEL type of a Python annotation, and whether it may be absent."""
    if get_origin(hint) in (types.UnionType, Union):
        inner = [arg for arg in get_args(hint) if arg is not type(None)]
        return cel_type(inner[0])[0], True
    if hint is bool:
        return CelType.BOOL, False
    if hint is int:
        return CelType.INT, False
    if hint is str:
        return CelType.STRING, False
    if get_origin(hint) is tuple:
        return {str: CelType.STRINGS, int: CelType.INTS}[get_args(hint)[0]], False
    assert get_origin(hint) is Mapping, hint
    return CelType.LABELS, False


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name)
def test_every_fact_is_a_field_of_the_same_name_type_and_absence(record: Record) -> None:
    hints = get_type_hints(facts_of(record))
    described = {field.name: (field.type, field.optional) for field in record.fields}
    assert described == {name: cel_type(hint) for name, hint in hints.items()}
    assert [field.name for field in record.fields] == [field.name for field in dataclasses.fields(facts_of(record))]


def test_every_record_of_facts_is_described() -> None:
    names = {name.removesuffix("Facts") for name in vars(facts) if name.endswith("Facts")}
    assert names == {record.name for record in RECORDS}


def test_every_field_has_a_meaning_and_every_amount_a_unit() -> None:
    for record in RECORDS:
        for field in record.fields:
            assert field.meaning, field
            if field.name.endswith(("_ms", "_milli", "_bytes", "_ppm", "_ppb", "_micro_usd")):
                assert field.unit, field


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_a_point_is_asked_with_its_variables_in_the_order_of_the_port(point: Point) -> None:
    name = point.name
    method = METHODS.get(name, name.replace(".", "_"))
    hints = [hint for hint in get_type_hints(getattr(Rules, method)) if hint != "return"]
    assert [variable.name for variable in BY_NAME[name].variables] == [hint.replace("now_ms", "now") for hint in hints]
