"""The base of everything that is written down: strict, frozen, closed, and canonical as bytes."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict


class Model(BaseModel):
    """An immutable record. Unknown fields are refused, defaults are left out of the canonical bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")


def canonical_bytes(value: Any) -> bytes:
    """The one encoding of a plain value: UTF-8 JSON, keys sorted, no white space; integers and strings only inside.

    This is RFC 8785 restricted to what we write (no floats; keys are ASCII).
    """
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
