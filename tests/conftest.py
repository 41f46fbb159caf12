"""What every test may ask for: the real traces, and how hard Hypothesis tries.

Real traces are not part of the repository. A test that needs them takes the fixture ``data_dir``; without the traces it
is skipped on a person's machine and named in the closing summary, and it fails under CI.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

ROOT = Path(__file__).resolve().parent.parent

WITHOUT_DATA = pytest.StashKey[list[str]]()
"""Node ids of the tests that found no traces, in the order in which they asked."""

# No deadlines: a slow machine is not a failing one. `ci` and `fast` draw the same examples every time, so a red run is
# red again; the default keeps looking for new ones and remembers what it found.
settings.register_profile(
    "default", deadline=None, database=DirectoryBasedExampleDatabase(ROOT / ".cache" / "hypothesis" / "examples")
)
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True, max_examples=100)
settings.register_profile("fast", settings.get_profile("ci"), max_examples=20)
settings.register_profile(
    "long", settings.get_profile("default"), max_examples=5_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


def data_path() -> Path:
    """Where the traces should be: ``TIDEGATE_DATA``, relative to the project's root, else ``../shared/data``."""
    return (ROOT / os.environ.get("TIDEGATE_DATA", "../shared/data")).resolve()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[WITHOUT_DATA] = []


@pytest.fixture(scope="session")
def project_root() -> Path:
    """The top of the checkout."""
    return ROOT


@pytest.fixture
def data_dir(request: pytest.FixtureRequest) -> Path:
    """The folder of real traces (``openb``, ``philly``, ``swf``, ...)."""
    path = data_path()
    if path.is_dir():
        return path
    sentence = f"no real traces at {path}; set TIDEGATE_DATA to their folder"
    if os.environ.get("CI"):
        pytest.fail(f"{sentence} (CI requires them)", pytrace=False)
    request.config.stash[WITHOUT_DATA].append(request.node.nodeid)
    pytest.skip(sentence)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say plainly what was not tried, so that a green run without the traces is not taken for a full one."""
    skipped = config.stash[WITHOUT_DATA]
    if not skipped:
        return
    terminalreporter.section("not tested: real traces are missing", sep="-", yellow=True)
    terminalreporter.write_line(f"{len(skipped)} tests need {data_path()} (set TIDEGATE_DATA to the folder of traces):")
    for nodeid in skipped:
        terminalreporter.write_line(f"  {nodeid}")
