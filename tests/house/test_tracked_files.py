"""What must never be committed: addresses of package registries, one machine's paths, and built or copied data."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

LARGEST_BYTES = 700 * 1024
"""Nothing written by hand is larger; a trace or a build product is."""

# Each pattern holds a character class so that this file is not its own finding.
REGISTRIES = re.compile(
    r"p[y]pi\.org|python[h]osted\.org|npm[j]s\.(?:org|com)|proxy\.g[o]lang\.org|deb\.d[e]bian\.org|cr[a]tes\.io"
    r"|repo1?\.m[a]ven|--(?:extra-)?index[-]url[ =]h"
)
MACHINE_PATHS = re.compile(r"/w[o]rk/|/r[o]ot/|/h[o]me/[a-z]|/U[s]ers/[A-Za-z]|/opt/wh[e]els|[.]libr[a]ry/|\bf[a]rm/")


def findings(pattern: re.Pattern[str], text: str) -> list[str]:
    """``line: match`` for each line of the text that the pattern finds."""
    lines = enumerate(text.splitlines(), start=1)
    return [f"{number}: {found.group()}" for number, line in lines if (found := pattern.search(line))]


def readable(path: Path) -> str:
    """A file's text; of a binary file, whatever of it is text."""
    return path.read_bytes().decode("utf-8", errors="replace")


@pytest.mark.parametrize("pattern", [REGISTRIES, MACHINE_PATHS], ids=["registries", "machine paths"])
def test_no_tracked_file_names(pattern: re.Pattern[str], tracked: list[Path], project_root: Path) -> None:
    found = [f"{p.relative_to(project_root)}:{seen}" for p in tracked for seen in findings(pattern, readable(p))]
    assert found == []


def test_no_tracked_file_is_a_trace_or_a_build(tracked: list[Path], project_root: Path) -> None:
    large = [path.relative_to(project_root).as_posix() for path in tracked if path.stat().st_size > LARGEST_BYTES]
    assert large == []


@pytest.mark.parametrize("host", ["p" + "ypi.org", "files.python" + "hosted.org", "registry.npm" + "js.org"])
def test_a_registry_would_be_seen(host: str) -> None:
    assert findings(REGISTRIES, f"one\nsource = https://{host}/simple") == [
        f"2: {host.removeprefix('files.').removeprefix('registry.')}"
    ]


@pytest.mark.parametrize("path", ["/ro" + "ot/x", "/ho" + "me/ann/x", "/Us" + "ers/Ann", "/wo" + "rk/main"])
def test_a_machine_path_would_be_seen(path: str) -> None:
    assert len(findings(MACHINE_PATHS, f"log: {path}")) == 1
