"""Any event that the domain accepts, drawn from its own types: a new event or field is drawn without a change here."""

from __future__ import annotations

import types
from enum import Enum
from typing import Annotated, Any, Union, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from controlplane.domain.events import EVENTS, Event
from controlplane.domain.model import Model
from controlplane.domain.quantities import MAX_AMOUNT
from controlplane.domain.reasons import Reason

NAMES = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9._/@:+-]{0,6}[A-Za-z0-9])?\Z")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
_KNOWN: dict[str, st.SearchStrategy[Any]] = {
    "reason": st.sampled_from([int(reason) for reason in Reason]),
    "mig_profile": st.just(""),
    "mig": st.just(False),
    "mig_repartition": st.just(False),
    "gpu_model": st.sampled_from(["A100", "T4"]),
}
"""Fields whose values hang together with others: the rest of their validation is tested with the type itself."""


def _numbers(info: FieldInfo) -> st.SearchStrategy[int]:
    low, high = -MAX_AMOUNT, MAX_AMOUNT
    for bound in info.metadata:
        low = int(bound.ge) if isinstance(bound, Ge) else low  # type: ignore[call-overload]
        high = int(bound.le) if isinstance(bound, Le) else high  # type: ignore[call-overload]
    return st.one_of(st.integers(low, high), st.integers(max(low, 0), min(high, 9)), st.sampled_from([low, high]))


def _texts(info: FieldInfo) -> st.SearchStrategy[str]:
    if any(getattr(bound, "pattern", None) for bound in info.metadata):
        return NAMES
    shortest = max([bound.min_length for bound in info.metadata if isinstance(bound, MinLen)], default=0)
    return TEXTS.filter(lambda text: len(text) >= shortest)


def drawn(kind: object, info: FieldInfo) -> st.SearchStrategy[Any]:
    """Values of an annotation."""
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *bounds = get_args(kind)
        nested = [part for bound in bounds for part in (bound.metadata if isinstance(bound, FieldInfo) else [bound])]
        return drawn(inner, _with(nested))
    if origin in (Union, types.UnionType):
        return st.one_of([drawn(part, info) for part in get_args(kind)])
    if origin is tuple:
        shortest = max([bound.min_length for bound in info.metadata if isinstance(bound, MinLen)], default=0)
        return st.lists(drawn(get_args(kind)[0], FieldInfo()), min_size=shortest, max_size=3).map(tuple)
    if origin is dict:
        key, value = get_args(kind)
        return st.dictionaries(drawn(key, FieldInfo()), drawn(value, FieldInfo()), max_size=3)
    return _plain(kind, info)


def _with(bounds: list[Any]) -> FieldInfo:
    info = FieldInfo()
    info.metadata = bounds
    return info


def _plain(kind: object, info: FieldInfo) -> st.SearchStrategy[Any]:
    if kind is type(None):
        return st.none()
    if kind is bool:
        return st.booleans()
    if kind is int:
        return _numbers(info)
    if kind is str:
        return _texts(info)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    assert isinstance(kind, type), f"cannot draw {kind!r}"
    assert issubclass(kind, Model), f"cannot draw {kind!r}"
    return models(kind)


def models(kind: type[Model]) -> st.SearchStrategy[Any]:
    """Instances of a model: each optional field is there or not; what its own validators refuse is drawn again."""

    @st.composite
    def made(draw: st.DrawFn) -> Model | None:
        values: dict[str, Any] = {}
        for name, info in kind.model_fields.items():
            if info.is_required() or draw(st.integers(0, 2)) == 0:
                values[name] = draw(_KNOWN[name] if name in _KNOWN else drawn(info.annotation, info))
        try:
            return kind.model_validate(values)
        except ValidationError:
            try:
                needed = {name: value for name, value in values.items() if kind.model_fields[name].is_required()}
                return kind.model_validate(needed)
            except ValidationError:
                return None

    return made().filter(lambda model: model is not None)


EVERY_EVENT: dict[str, st.SearchStrategy[Event]] = {event.TYPE: models(event) for event in EVENTS}
