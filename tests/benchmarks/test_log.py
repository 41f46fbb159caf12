"""The log's figures in ``make bench``, and the floors that they must not fall through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks.bench_log import measure, sentences
from tests.services import NoService, postgres


@pytest.mark.bench
def test_the_log_is_near_the_bare_database(project_root: Path) -> None:
    try:
        with postgres() as server:
            answer = measure(server=server)
    except NoService:
        answer = measure()
    print(f"\n{sentences(answer)}")
    folder = project_root / "out" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.json").write_text(json.dumps(answer, indent=2) + "\n")
    for part in ("sqlite", "postgresql"):
        figures = answer.get(part)
        if isinstance(figures, dict):
            assert figures["append_ratio"] >= 0.6
