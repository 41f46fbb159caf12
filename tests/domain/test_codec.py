"""Events as bytes: what is written is read again, and there is one way to write it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from controlplane.domain import codec
from controlplane.domain.codec import MalformedEvent, UnknownEvent, decode, encode
from controlplane.domain.events import BY_TYPE, EVENTS, Event, JobSubmitted, Ticked
from controlplane.domain.model import Model
from tests.domain.events_drawn import EVERY_EVENT
from tests.scheduler.core import job

ANY_EVENT = st.sampled_from(sorted(EVERY_EVENT)).flatmap(EVERY_EVENT.__getitem__)
SLOWLY = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


def check_round_trip(event: Event) -> None:
    payload = codec.encode(event)
    again = decode(event.TYPE, payload)
    assert again == event, "an event that was written is read as another"
    assert codec.encode(again) == payload, "an event has two encodings"


@SLOWLY
@given(ANY_EVENT)
def test_what_is_written_is_read_again(event: Event) -> None:
    """Kills :func:`rounds_large_numbers` and :func:`leaves_out_what_is_false`."""
    check_round_trip(event)


@pytest.mark.parametrize("type_name", sorted(BY_TYPE))
def test_every_type_of_event_is_drawn_and_comes_back(type_name: str) -> None:
    @settings(SLOWLY, max_examples=8)
    @given(EVERY_EVENT[type_name])
    def search(event: Event) -> None:
        check_round_trip(event)

    search()


def check_canonical(event: Event) -> None:
    payload = codec.encode(event)
    plain = json.loads(payload, object_pairs_hook=_sorted_pairs, parse_float=_no_float)
    assert orjson.dumps(plain, option=orjson.OPT_SORT_KEYS) == payload, "there is space, or another order of keys"
    _check_defaults(event, plain)


def _sorted_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key.encode() for key, _ in pairs]
    assert keys == sorted(set(keys)), f"keys are not sorted, or double: {keys}"
    return dict(pairs)


def _no_float(text: str) -> float:
    raise AssertionError(f"a float is written: {text}")


def _check_defaults(model: Model, plain: dict[str, Any]) -> None:
    """A field is written exactly when it is not what it would be anyway."""
    for name, info in type(model).model_fields.items():
        value = getattr(model, name)
        is_default = not info.is_required() and value == info.get_default(call_default_factory=True)
        assert (name in plain) != is_default, f"{name}: a default is written, or a value is not"
        if isinstance(value, Model) and name in plain:
            _check_defaults(value, plain[name])


@SLOWLY
@given(ANY_EVENT)
def test_there_is_one_way_to_write_an_event(event: Event) -> None:
    """Keys sorted, no white space, no floats, defaults left out. Kills :func:`writes_defaults`."""
    check_canonical(event)


def rounds_large_numbers(event: Event) -> bytes:
    plain = json.loads(encode(event), parse_int=lambda text: int(float(text) // 2 * 2))
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)


def leaves_out_what_is_false(event: Event) -> bytes:
    plain = {key: value for key, value in json.loads(encode(event)).items() if value not in (False, 0, "")}
    return orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)


def writes_defaults(event: Event) -> bytes:
    return orjson.dumps(event.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)


@pytest.mark.parametrize("mutant", [rounds_large_numbers, leaves_out_what_is_false, writes_defaults])
def test_a_wrong_encoding_would_be_seen(mutant: Callable[[Event], bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "encode", mutant)

    @settings(SLOWLY, derandomize=True, database=None, max_examples=300, phases=[Phase.generate])
    @given(ANY_EVENT)
    def search(event: Event) -> None:
        check_round_trip(event)
        check_canonical(event)

    with pytest.raises((AssertionError, MalformedEvent)):
        search()


def test_types_are_versioned_and_each_stands_once() -> None:
    assert len(BY_TYPE) == len(EVENTS)
    assert all(name.rpartition("/")[2].isdigit() for name in BY_TYPE)


def test_a_type_of_a_newer_core_is_named() -> None:
    with pytest.raises(UnknownEvent, match="'job_submitted/2' is not known to this version; the log is from a newer"):
        decode("job_submitted/2", b"{}")


@pytest.mark.parametrize(
    ("type_name", "payload", "sentence"),
    [
        ("ticked/1", b"", "ticked/1: payload: "),
        ("ticked/1", b"{}", "ticked/1: now_ms: Field required"),
        ("ticked/1", b'{"now_ms":1.5}', "ticked/1: now_ms: "),
        ("ticked/1", b'{"now_ms":-1}', "ticked/1: now_ms: "),
        ("ticked/1", b'{"now_ms":"1"}', "ticked/1: now_ms: "),
        ("ticked/1", b'{"now_ms":9007199254740992}', "ticked/1: now_ms: "),
        ("ticked/1", b'{"now_ms":1,"why":2}', "ticked/1: why: "),
        ("job_submitted/1", b'{"spec":{"name":"a","queue":"q","roles":[]},"submitted_ms":0}', "spec.roles: "),
    ],
)
def test_bytes_that_are_no_such_event_are_refused_in_a_sentence(type_name: str, payload: bytes, sentence: str) -> None:
    with pytest.raises(MalformedEvent, match=sentence):
        decode(type_name, payload)


def test_a_payload_of_known_bytes() -> None:
    """Written once and for ever: changing these bytes changes every old log."""
    submitted = JobSubmitted(spec=job(2, members=3, name="a", priority=1), submitted_ms=5)
    assert encode(submitted) == (
        b'{"spec":{"name":"a","priority":1,"queue":"team","roles":[{"count":3,"gpus":2}]},"submitted_ms":5}'
    )
    assert encode(Ticked(now_ms=0)) == b'{"now_ms":0}'
