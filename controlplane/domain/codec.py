"""Events to canonical bytes and back.

Fields that hold their default are left out, so that adding a field with a default never changes old bytes.
"""

from __future__ import annotations

from pydantic import ValidationError

from controlplane.domain.events import BY_TYPE, Event
from controlplane.domain.model import canonical_bytes


class UnknownEvent(Exception):
    """The log holds an event type or version that this core does not know: it was written by a newer one."""


class MalformedEvent(Exception):
    """A payload is not a valid event of its type."""


def encode(event: Event) -> bytes:
    """Canonical payload bytes of an event."""
    # Pydantic's own methods pass fifteen arguments more, here and in ``decode``: a quarter of the whole.
    return canonical_bytes(event.__pydantic_serializer__.to_python(event, mode="json", exclude_defaults=True))


def decode(type_name: str, payload: bytes) -> Event:
    """The event behind a payload.

    Raises :class:`UnknownEvent` for a type that this core does not know, :class:`MalformedEvent` for bytes that are
    not such an event.
    """
    model = BY_TYPE.get(type_name)
    if model is None:
        raise UnknownEvent(f"event type {type_name!r} is not known to this version; the log is from a newer Tidegate")
    try:
        event: Event = model.__pydantic_validator__.validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "payload"
        raise MalformedEvent(f"{type_name}: {where}: {first['msg']}") from error
    return event
