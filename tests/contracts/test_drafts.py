"""Drafts: gone at the end, swept when their process is, and never anybody else's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.eventlog import drafts
from controlplane.eventlog.drafts import PREFIX, draft_of, sweep
from controlplane.eventlog.port import LogUnavailable, LogUnusable

ROOT = Path(__file__).parents[2]
HOLD = (
    "import sys, pathlib; from controlplane.eventlog.drafts import draft_of\n"
    "with draft_of(pathlib.Path(sys.argv[1])) as draft:\n"
    "    draft.write_text('half'); print(draft, flush=True); sys.stdin.read()\n"
)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process in the midst of a draft, and the draft."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a.db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_draft_lies_beside_its_place_and_is_gone_at_the_end(tmp_path: Path) -> None:
    with draft_of(tmp_path / "a.db") as draft:
        assert (draft.name, draft.parent.parent) == ("a.db", tmp_path)
        for name in ("a.db", "a.db-wal"):
            draft.with_name(name).write_text("x")
    assert list(tmp_path.iterdir()) == []


def test_two_drafts_of_one_process_leave_each_other_alone(tmp_path: Path) -> None:
    with draft_of(tmp_path / "a.db") as one, draft_of(tmp_path / "a.db") as two:
        assert one != two
        sweep(tmp_path)
        assert one.parent.is_dir()
        assert two.parent.is_dir()


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path, other: tuple[subprocess.Popen[str], Path]) -> None:
    process, draft = other
    with draft_of(tmp_path / "a.db"):
        pass
    assert draft.read_text() == "half"
    process.communicate("go on")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept(tmp_path: Path, other: tuple[subprocess.Popen[str], Path]) -> None:
    process, draft = other
    process.kill()
    process.wait()
    assert draft.exists()
    with draft_of(tmp_path / "b.db"):
        assert not draft.parent.exists()


def test_nothing_else_is_swept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / ".a.db.12345.draft.db").touch()
    before = sorted(tmp_path.iterdir())
    sweep(tmp_path)
    sweep(tmp_path / "absent")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "elsewhere" / "kept").exists()


def test_a_draft_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: taking the lock on a folder that is no more."""
    lock = drafts._lock
    stolen: list[Path] = []

    def late(folder: Path) -> int:
        if not stolen and folder.parent == tmp_path:
            stolen.append(folder)
            folder.rmdir()
        return lock(folder)

    monkeypatch.setattr(drafts, "_lock", late)
    with draft_of(tmp_path / "a.db") as draft:
        assert draft.parent != stolen[0]
        draft.write_text("x")


@pytest.mark.parametrize(("error", "fault"), [(30, LogUnusable), (13, LogUnusable), (28, LogUnavailable)])
def test_where_nothing_can_be_written_the_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, fault: type[Exception]
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError(error, os.strerror(error), "somewhere")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(fault, match=f"{tmp_path}/a.db cannot be written: "), draft_of(tmp_path / "a.db"):
        pass
