"""Whatever the text is, it gives jobs or sentences; quantities are exact."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from controlplane.intake.manifests.amounts import bytes_of, count, cpu_milli, quantity
from controlplane.intake.manifests.documents import documents
from controlplane.intake.manifests.reading import CONVERTERS, read_manifest
from controlplane.intake.manifests.submission import Context
from controlplane.intake.traces import IntakeError
from tests.intake.manifests.test_jobs import RAY, VOLCANO, job
from tests.intake.manifests.test_queues import HIERARCHY, KUEUE

GOOD = (job(), VOLCANO, RAY, KUEUE, HIERARCHY)
PIECES = (
    "0",
    "-1",
    "[]",
    "{}",
    "null",
    "~",
    "'",
    ": ",
    "\n",
    "- ",
    "*a",
    "&a ",
    "!!python/object:os.system ",
    "9" * 25,
)


def sentences(text: str) -> list[str]:
    """Of everything that stands in the way; any other exception comes through."""
    try:
        return [str(refusal) for refusal in read_manifest("f", text, Context(queue="q")).refusals]
    except IntakeError as error:
        return [str(error)]


@given(st.text(max_size=200))
@example("? [a]\n: b")
@example("apiVersion: v1\nkind: Pod\nspec: []\nmetadata: 3")
@example("%YAML 9.9\n---\n")
@example("a: 2001-02-30\n")
def test_any_text(text: str) -> None:
    assert all(each.startswith("f:") and "\n" not in each for each in sentences(text))


@given(st.sampled_from(GOOD), st.data())
def test_any_damage(good: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(good) - 1))
    cut = data.draw(st.integers(0, 12))
    piece = data.draw(st.one_of(st.text(max_size=5), st.sampled_from(PIECES)))
    assert all(each.startswith("f:") and "\n" not in each for each in sentences(good[:at] + piece + good[at + cut :]))


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.sampled_from(["a", "1Gi", "-1", ""])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["spec", "template", "containers", "resources", "requests", "tasks", "replicas", "metadata"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(("group", "kind"), sorted(CONVERTERS))
@given(spec=_json, metadata=_json)
def test_any_spec_of_each_kind(group: str, kind: str, spec: object, metadata: object) -> None:
    import json

    text = json.dumps(
        {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "spec": spec, "metadata": metadata}
    )
    assert all(each.startswith("f:") and "\n" not in each for each in sentences(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("2", 2), ("0.5", Fraction(1, 2)), (".5", Fraction(1, 2)), ("2.", 2), ("+3", 3), ("100m", Fraction(1, 10))),
        *(("1k", 1_000), ("1Ki", 1_024), ("1.5Gi", 3 * 2**29), ("2e3", 2_000), ("1E2", 100), ("3E", 3 * 10**18)),
        *(("1e-3", Fraction(1, 1_000)), ("5n", Fraction(5, 10**9)), ("7u", Fraction(7, 10**6)), ("1Ei", 2**60)),
    ],
)
def test_quantities(text: str, value: Fraction) -> None:
    (document,) = documents("f", f"q: {text}")
    assert quantity(document.get("q")) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "-1", "1KiB", "1e999", "0x10", "1_000", "nan", "'1\n'", "1" * 31, "[1]"]
)
def test_what_is_no_quantity(text: str) -> None:
    (document,) = documents("f", f"q: {text}")
    with pytest.raises(IntakeError):
        quantity(document.get("q"))


def test_amounts_round_up_to_their_unit() -> None:
    (document,) = documents("f", "{a: 1u, b: 0.1, c: 1500m}")
    assert cpu_milli(document.get("a")) == 1
    assert bytes_of(document.get("b")) == 1
    with pytest.raises(IntakeError, match="not a whole number"):
        count(document.get("c"))
