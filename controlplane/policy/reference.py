"""The reference for policy authors, and the JSON Schemas of their files: all made from the vocabulary.

The written files stand in ``policies/``. A test holds them fresh; to write them anew::

    python -m controlplane.policy.reference policies
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from controlplane.policy.documents import PARAM_TYPES
from controlplane.policy.engine import EXTENSIONS
from controlplane.policy.restrictions import MAX_COST, MAX_LOOPS, MAX_ROUNDS, MAX_SIZE
from controlplane.policy.vocabulary import POINTS, RECORDS, Answer, Field, Point, Record, Variable

Schema = dict[str, object]


def written_files() -> dict[str, str]:
    """Every generated file, by name."""
    schemas = {"rule": rule_schema(), "bundle": bundle_schema(), "tests": suite_schema()}
    return {
        "REFERENCE.md": reference_page(),
        **{f"{name}.schema.json": json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()},
    }


# --- the page --------------------------------------------------------------------------------------------------------


def reference_page() -> str:
    """The page, in Markdown."""
    parts = [
        _INTRODUCTION.format(
            libraries=", ".join(EXTENSIONS),
            cost=f"{MAX_COST:,}",
            rounds=f"{MAX_ROUNDS:,}",
            size=f"{MAX_SIZE:,}",
            loops=MAX_LOOPS,
        )
    ]
    parts.append("## Decision points\n")
    parts.append(
        _table(
            ["point", "asked", "answer"], [[f"[`{p.name}`](#{_anchor(p)})", p.asked, f"`{p.answer}`"] for p in POINTS]
        )
    )
    parts.extend(_point(point) for point in POINTS)
    parts.append("## Records\n")
    parts.extend(_record(record) for record in RECORDS)
    return "\n".join(parts).rstrip("\n") + "\n"


_INTRODUCTION = """# What rules may say

This page is generated from the vocabulary. Change the vocabulary, not this page.

A rule file is CEL Policy YAML with one key more: `point`, the decision point that it serves. All numbers are whole
numbers in the unit given here. A field that may be absent is asked for with `has(...)` first. Parameters of the bundle
are read as `params.<name>`, variables of the rule as `variables.<name>`.

Rules may use the CEL standard library and these extensions: {libraries}.

The check refuses a rule whose answer could differ from run to run or from machine to machine (the order of a map,
`dyn()`, named time zones, texts made of doubles), one that may take more than {cost} steps or {rounds} rounds of its
loops, or make a value of more than {size} parts, and loops more than {loops} deep. A rule that errs fails closed.
"""


def _anchor(point: Point) -> str:
    return point.name.replace(".", "")


def _point(point: Point) -> str:
    rows = [[f"`{v.name}`", _kind(v), v.meaning + (" (may be absent)" if v.optional else "")] for v in point.variables]
    return "\n".join(
        [
            f"### {point.name}\n",
            f"Asked {point.asked}. Answer: `{point.answer}`: {point.meaning}.\n",
            f"Without a rule: {point.silent}. If the rule errs: {point.closed}.\n",
            _table(["variable", "type", "meaning"], rows),
            *_parts(point),
        ]
    )


def _parts(point: Point) -> list[str]:
    rows = [[f"`{part.name}`", f"`{part.type}`", part.unit, part.meaning] for part in point.parts]
    return [_table(["key of the answer", "type", "unit", "meaning"], rows)] if rows else []


def _kind(variable: Variable) -> str:
    return f"[{variable.record.name}](#{variable.record.name.lower()})" if variable.record else "int"


def _record(record: Record) -> str:
    rows = [[f"`{f.name}`", f"`{f.type}`", f.unit, _meaning(f)] for f in record.fields]
    return "\n".join(
        [f"### {record.name}\n", f"{record.meaning}\n", _table(["field", "type", "unit", "meaning"], rows)]
    )


def _meaning(field: Field) -> str:
    return field.meaning + (" (may be absent)" if field.optional else "")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# --- schemas ---------------------------------------------------------------------------------------------------------

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _object(properties: Schema, required: Sequence[str] = (), description: str = "") -> Schema:
    written: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    if required:
        written["required"] = list(required)
    if description:
        written["description"] = description
    return written


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _expression(description: str) -> Schema:
    """YAML reads ``true`` and ``1`` as something else than text; as expressions they are fine."""
    return {"type": ["string", "boolean", "number"], "description": description}


def _list(items: Schema, description: str = "") -> Schema:
    return {"type": "array", "items": items, **({"description": description} if description else {})}


def rule_schema() -> Schema:
    """Of a rule file."""
    points: Schema = {
        "description": "the decision point that the rule serves",
        "oneOf": [{"const": point.name, "description": f"{point.meaning} ({_wanted(point)})"} for point in POINTS],
    }
    named = _object(
        {
            "name": _text("read as variables.<name>"),
            "expression": _expression("CEL; evaluated when it is needed, once"),
            "description": _text("what it means"),
            "display_name": _text("its name for people"),
        },
        ["name", "expression"],
    )
    short: Schema = {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": _expression("CEL"),
    }
    match = _object(
        {
            "condition": _expression("CEL of type bool; none is true"),
            "output": _expression("CEL of the type that the point wants"),
            "rule": {"$ref": "#/$defs/rule"},
            "explanation": _expression("CEL of type string: why, in words"),
        }
    )
    match["oneOf"] = [{"required": ["output"]}, {"required": ["rule"]}]
    rule = _object(
        {
            "id": _text("a name for the rule"),
            "description": _text("what it decides, in words"),
            "variables": _list({"anyOf": [named, short]}, "named expressions, in order: each may use those above it"),
            "match": {**_list(match, "cases, in order: the first that applies answers"), "minItems": 1},
        },
        ["match"],
    )
    whole = _object(
        {
            "name": _text("a name for the file"),
            "display_name": _text("its name for people"),
            "description": _text("what it decides, in words"),
            "point": points,
            "imports": _list(_object({"name": _text("a type")}, ["name"])),
            "rule": {"$ref": "#/$defs/rule"},
        },
        ["name", "point", "rule"],
    )
    return {"$schema": _DRAFT, "title": "Tidegate rule file (CEL Policy YAML)", **whole, "$defs": {"rule": rule}}


def _wanted(point: Point) -> str:
    none = ", or no answer" if point.answer in (Answer.OPTIONAL_INT, Answer.OPTIONAL_STRING) else ""
    return f"{point.answer.output}{none}"


def bundle_schema() -> Schema:
    """Of ``bundle.yaml``."""
    files = _list(_text("a path in the bundle"), "rule files, in the order of asking")
    param = _object(
        {
            "type": {"enum": list(PARAM_TYPES)},
            "default": {"type": ["boolean", "number", "string", "array"]},
            "unit": _text("such as ms"),
            "description": _text("what it changes"),
        },
        ["type", "default"],
    )
    whole = _object(
        {
            "name": _text("a name for the bundle"),
            "description": _text("what it does and when to choose it"),
            "points": _object({point.name: {**files, "description": point.meaning} for point in POINTS}),
            "params": {"type": "object", "additionalProperties": param},
        },
        ["name"],
    )
    return {"$schema": _DRAFT, "title": "Tidegate policy bundle", **whole}


def suite_schema() -> Schema:
    """Of a file of rule tests."""
    given: Schema = {
        "description": "a value, or an expression that gives it",
        "anyOf": [_object({"value": {}}, ["value"]), _object({"expr": _expression("CEL")}, ["expr"]), {}],
    }
    case = _object(
        {
            "name": _text("what it shows"),
            "description": _text("more words"),
            "input": {"type": "object", "additionalProperties": given},
            "output": {"description": "CEL of the expected answer; none wants no answer"},
            "explanation": _expression("CEL of the expected explanation"),
        },
        ["name"],
    )
    section = _object({"name": _text("a heading"), "description": _text("words"), "tests": _list(case)}, ["tests"])
    whole = _object(
        {"name": _text("a name"), "description": _text("what is tested"), "section": _list(section)}, ["section"]
    )
    return {"$schema": _DRAFT, "title": "Tidegate rule tests (CEL policy tests)", **whole}


def write_files(folder: Path) -> None:
    """Writes the page and the schemas into a folder."""
    for name, text in written_files().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
