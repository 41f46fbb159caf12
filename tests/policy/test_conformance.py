"""The engine binding against the CEL conformance set: the list of known failures is exact, with a reason for each."""

from __future__ import annotations

import json

import pytest

from tests.policy.conformance import KNOWN, cases, data_file, failures

MISSING = f"the CEL conformance set is not there ({data_file()}); set TIDEGATE_DATA"


@pytest.mark.slow
@pytest.mark.skipif(not data_file().exists(), reason=MISSING)
def test_known_failures_are_exactly_those_in_the_list() -> None:
    known: dict[str, str] = json.loads(KNOWN.read_text())
    found = failures()
    new = {name: failed for name, failed in found.items() if name not in known}
    cured = sorted(set(known) - set(found))
    assert not new, "new failures: find the reason, and only then list them"
    assert not cured, "these pass now: take them off the list (python -m tests.policy.conformance)"
    assert {name: failed.reason for name, failed in found.items()} == known


@pytest.mark.skipif(not data_file().exists(), reason=MISSING)
def test_the_set_is_the_whole_set() -> None:
    assert len(cases()) == 1_737


def test_every_known_failure_has_a_reason_and_the_list_does_not_grow() -> None:
    known: dict[str, str] = json.loads(KNOWN.read_text())
    assert all(reason for reason in known.values())
    assert len(known) <= 151
