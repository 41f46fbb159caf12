"""The CEL conformance set against our binding of the deciding engine.

The set is public data outside this repository (``TIDEGATE_DATA``). What fails is listed, with the reason, in
``conformance_known.json``; :mod:`tests.policy.test_conformance` holds the list. To write it anew after an upgrade, run
this module; then read what changed.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.policy.engine import Base, CelExprPython, Fault, Refused, Value

ROOT = Path(__file__).parents[2]
KNOWN = Path(__file__).with_name("conformance_known.json")


def data_file() -> Path:
    given = os.environ.get("TIDEGATE_DATA")
    return (Path(given) if given else ROOT.parent / "shared" / "data") / "cel" / "conformance.json.gz"


_LIBRARIES = {
    "block_ext": "cel.@block is the notation of an optimiser, not of people",
    "network_ext": "the engine has no network library",
    "encoders_ext": "the library of encoders is not offered to rules",
}


@dataclass(frozen=True)
class Failure:
    reason: str
    detail: str


def cases() -> list[dict[str, Any]]:
    """The cases that need no protobuf messages: rules have none."""
    with gzip.open(data_file(), "rt", encoding="utf-8") as file:
        tests: list[dict[str, Any]] = json.load(file)["tests"]
    return [test for test in tests if not test.get("proto")]


def name_of(test: Mapping[str, Any]) -> str:
    return f"{test['file']}/{test['section']}/{test['name']}"


def failure(test: Mapping[str, Any]) -> Failure | None:
    """Why a case fails, or ``None`` if it passes."""
    environment = test.get("type_env", {})
    if any(isinstance(spelled, dict) for spelled in environment.values()):
        return Failure("it declares functions of the host, which rules have none", "")
    try:
        types = {name: spell(spelled) for name, spelled in environment.items()}
        bindings = {name: plain(value) for name, value in test.get("bindings", {}).items()}
        engine = CelExprPython(types, Base(container=test.get("container", "")))
    except (ValueError, TypeError, RuntimeError, Refused) as error:
        return Failure("a variable of it has a type that rules have none of", str(error))
    try:
        program = engine.program(test["expr"])
    except Refused as refused:
        if "want_error" in test:
            return None
        if test.get("disable_check"):
            return Failure("it is meant for evaluation without a check, and we always check", str(refused))
        return Failure(_LIBRARIES.get(test["file"], "the engine does not know the function or macro"), str(refused))
    if test.get("check_only"):
        return None
    got = program.evaluate(bindings)
    if "want_error" in test:
        return None if isinstance(got, Fault) else Failure("it should err and gives a value", repr(got))
    if isinstance(got, Fault):
        return Failure(_fault_reason(got), got.detail)
    if "want" in test and not same(got, plain(test["want"])):
        return Failure("another value", f"{got!r} instead of {test['want']!r}")
    return None


def _fault_reason(fault: Fault) -> str:
    if "cannot leave the rule" in fault.detail or "Unable to convert" in fault.detail:
        return "its value has a type that no point is answered with"
    return "the engine compiles it and cannot run it" if "No overload found" in fault.detail else "it errs"


def spell(spelled: str) -> str:
    """``list(int)`` as the engine spells it."""
    return re.sub(r"\(", "<", spelled).replace(")", ">").replace("null_type", "null")


def plain(value: Mapping[str, Any]) -> Value:
    [(kind, inner)] = value.items()
    match kind:
        case "int" | "uint":
            return int(inner)
        case "double":
            return float(inner)
        case "bytes":
            return base64.b64decode(inner)
        case "list":
            return [plain(item) for item in inner]
        case "map":
            return {_key(plain(key)): plain(item) for key, item in inner}
        case "bool" | "string" | "null":
            result: Value = inner
            return result
        case _:
            raise TypeError(f"a value of kind {kind}")


def _key(value: Value) -> bool | int | str:
    assert isinstance(value, bool | int | str)
    return value


def same(got: Value, wanted: Value) -> bool:
    if isinstance(got, float) and isinstance(wanted, float):
        return got == wanted or (math.isnan(got) and math.isnan(wanted))
    if isinstance(got, list) and isinstance(wanted, list):
        return len(got) == len(wanted) and all(same(a, b) for a, b in zip(got, wanted, strict=True))
    if isinstance(got, dict) and isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(same(got[key], wanted[key]) for key in got)
    return type(got) is type(wanted) and got == wanted


def failures() -> dict[str, Failure]:
    found: dict[str, Failure] = {}
    for test in cases():
        try:
            failed = failure(test)
        except TypeError as error:
            failed = Failure("the wanted value has a type that no point is answered with", str(error))
        if failed is not None:
            found[name_of(test)] = failed
    return found


if __name__ == "__main__":
    listed = {name: failed.reason for name, failed in sorted(failures().items())}
    KNOWN.write_text(json.dumps(listed, indent=1) + "\n")
    print(f"{len(listed)} known failures of {len(cases())} cases")
