"""The program as the shell runs it: start-up, streams, signals, and the same bytes under every hash seed and Python."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Tidegate
from tests.cli.worlds import POLICIES, generated_jobs, write_world
from tests.policy.bundles import SHIPPED

ROOT = Path(__file__).parents[2]
RUN = [sys.executable, "-c", "from controlplane.cli import main; main()"]
HEEDFUL = [
    sys.executable,
    "-c",
    (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from controlplane.cli import main; main()"
    ),
]
"""A shell that starts the tests in the background has them, and their children, ignore an interrupt."""
START_S = 0.3
CHECK_S, TEST_S = 0.5, 5.0
"""``policy check`` of the default bundle, and ``policy test`` of all that ship."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def run(*words: str | Path, python: str = sys.executable, **more: str) -> subprocess.CompletedProcess[str]:
    command = [python, *RUN[1:], *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment(**more), timeout=120, cwd=ROOT
    )


def took_s(*words: str | Path, **more: str) -> float:
    """The least of three runs, in processor time, since a test machine is busy."""
    took = []
    for _ in range(3):
        before = os.times()
        assert run(*words, **more).returncode == 0
        after = os.times()
        took.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(took)


@pytest.mark.slow
def test_help_is_there_at_once() -> None:
    assert took_s("--help") < START_S


@pytest.mark.slow
def test_a_policy_author_does_not_wait(tmp_path: Path) -> None:
    """As it is from the second time on, with the compiled modules that Python keeps."""
    kept = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert took_s("policy", "check", POLICIES / "default", **kept) < CHECK_S
    assert took_s("policy", "test", *(POLICIES / name for name in SHIPPED), **kept) < TEST_S


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, controlplane.cli\n"
        "heavy = {'numpy', 'sqlalchemy', 'pydantic', 'cel_expr_python', 'rich', 'alembic', 'orjson', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment(), cwd=ROOT
    )
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_the_hash_seed_changes_nothing(tmp_path: Path, finished_day: Path, seed: str) -> None:
    said = run("simulate", write_world(tmp_path), "--log", tmp_path / "a.jsonl", "--json", PYTHONHASHSEED=seed)
    assert (said.returncode, said.stderr) == (0, "")
    other = run("log", "verify", "--log", finished_day, "--json")
    assert json.loads(said.stdout)["digest"] == json.loads(other.stdout)["digest"]


@pytest.mark.slow
def test_another_python_changes_nothing(tmp_path: Path, finished_day: Path) -> None:
    """``TIDEGATE_PYTHONS``: Pythons, separated by colons, that have this project's dependencies."""
    pythons = [python for python in os.environ.get("TIDEGATE_PYTHONS", "").split(":") if python]
    if not pythons:
        pytest.skip("TIDEGATE_PYTHONS names no other Python with Tidegate's dependencies, so only this one was tried")
    wanted = json.loads(run("log", "verify", "--log", finished_day, "--json").stdout)["digest"]
    for number, python in enumerate(pythons):
        log = tmp_path / f"{number}.db"
        said = run("simulate", write_world(tmp_path), "--log", log, "--json", python=python)
        assert said.returncode == 0, said.stderr
        assert json.loads(said.stdout)["digest"] == wanted
        assert run("replay", "--verify", "--log", finished_day, python=python).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [b"caf\xe9.db", "caf\u00e9.db".encode()])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_name_that_cannot_be_printed_is_escaped(tmp_path: Path, name: bytes, encoding: str) -> None:
    """A name is bytes; neither the letters of a terminal nor UTF-8 need have it."""
    log = tmp_path / os.fsdecode(name)
    said = run("simulate", write_world(tmp_path), "--log", log, PYTHONIOENCODING=encoding)
    assert (said.returncode, said.stderr) == (0, "")
    assert log.is_file()
    for command in (["jobs"], ["log", "export", tmp_path / os.fsdecode(name[:-3] + b".jsonl"), "--json"]):
        said = run(*command, "--log", log, PYTHONIOENCODING=encoding)
        assert (said.returncode, said.stderr) == (0, "")
    said = run("jobs", "--log", tmp_path / os.fsdecode(b"gone" + name), PYTHONIOENCODING=encoding)
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)


def test_a_reader_that_stops_reading_ends_it_quietly(finished_day: Path) -> None:
    with subprocess.Popen(
        [*RUN, "log", "tail", "-n", "99999", "--log", str(finished_day)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert program.stderr.read() == b""
        assert program.wait(60) == 128 + signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_answer_that_finds_no_room_is_one_sentence(finished_day: Path) -> None:
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [*RUN, "queues", "--log", str(finished_day), "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(),
            cwd=ROOT,
        )
    assert said.returncode == 3
    assert said.stderr.startswith("tidegate: ")
    assert said.stderr.count("\n") == 1


def drafts(folder: Path) -> list[Path]:
    """Databases that are being written behind the scenes."""
    return [path for path in folder.rglob("*-wal") if path.stat().st_size]


@contextmanager
def simulating(world: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A simulation that writes its draft, in a process that does not outlive the block."""
    with subprocess.Popen([*RUN, "simulate", str(world), "--log", str(log)], env=environment(), cwd=ROOT) as program:
        try:
            deadline = time.monotonic() + 60
            while not drafts(log.parent) and time.monotonic() < deadline:
                assert program.poll() is None, "it ended before it wrote anything"
            yield program
        finally:
            program.kill()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.db", "a.jsonl.gz"])
def test_what_a_killed_simulation_left_is_swept_by_the_next(
    tmp_path: Path, tidegate: Tidegate, finished_day: Path, name: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with simulating(write_world(tmp_path, generated_jobs(per_day=50_000)), out / name) as program:
        program.kill()
    assert len(list(out.iterdir())) == 1, "nothing is removed by who is killed"
    assert tidegate("jobs", "--log", finished_day).code == 0
    assert len(list(out.iterdir())) == 1, "nor by who only reads"
    assert tidegate("log", "export", out / "b.jsonl", "--log", finished_day).code == 0
    assert [path.name for path in out.iterdir()] == ["b.jsonl"]


@pytest.mark.slow
def test_what_a_living_simulation_writes_is_left_alone(tmp_path: Path, tidegate: Tidegate) -> None:
    """Kills: sweeping by name, by age, or by a process's number."""
    out = tmp_path / "out"
    out.mkdir()
    with simulating(write_world(tmp_path, generated_jobs(per_day=50_000)), out / "a.db") as program:
        [written] = out.iterdir()
        (tmp_path / "small").mkdir()
        small = write_world(tmp_path / "small")
        for name in ("b.db", "c.jsonl"):
            assert tidegate("simulate", small, "--log", out / name).code == 0
        assert tidegate("log", "import", out / "c.jsonl", "--log", out / "d.db").code == 0
        assert drafts(written)
        assert program.poll() is None
        program.terminate()
        program.wait(60)
    assert sorted(path.name for path in out.iterdir()) == ["b.db", "c.jsonl", "d.db"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_simulation_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    world, out = write_world(tmp_path, generated_jobs(per_day=50_000)), tmp_path / "out"
    out.mkdir()
    with subprocess.Popen(
        [*HEEDFUL, "simulate", str(world), "--log", str(out / "a.db")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    ) as program:
        try:
            deadline = time.monotonic() + 60
            while not drafts(out) and time.monotonic() < deadline:
                assert program.poll() is None, "it ended before it could be interrupted"
            program.send_signal(number)
            printed, said = program.communicate(timeout=60)
        finally:
            program.kill()
    assert (program.returncode, printed, said) == (128 + number, "", "tidegate: interrupted\n")
    assert list(out.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(("more", "is_shown"), [([], True), (["--json"], False)])
def test_a_bar_is_shown_on_a_terminal_and_never_with_json(tmp_path: Path, more: list[str], is_shown: bool) -> None:
    """The reader has no patience here, so that a small world shows a bar."""
    code = "from controlplane.cli import console, main; console.PATIENCE_S = 0.0; main()"
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code, "simulate", str(write_world(tmp_path)), "--log", "memory:", *more],
        stdout=subprocess.DEVNULL,
        stderr=slave,
        env=environment(TERM="xterm", COLUMNS="100"),
        cwd=ROOT,
    ) as program:
        os.close(slave)
        shown = b""
        try:
            while read := os.read(master, 1_024):
                shown += read
        except OSError:  # how a terminal says that nobody writes to it any more
            pass
        assert program.wait(60) == 0
    os.close(master)
    assert (b"simulating" in shown) is is_shown
    assert (b", jobs ended" in shown) is is_shown
    assert is_shown or shown == b""


@pytest.mark.slow
def test_next_commands_begin_as_the_program_was_started(tmp_path: Path) -> None:
    """As ``make run`` does: by the path of the checkout's own environment, from the checkout."""
    program = tmp_path / "bin" / "tidegate"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom controlplane.cli import main\nmain()\n")
    program.chmod(0o755)
    write_world(tmp_path)
    said = subprocess.run(
        ["bin/tidegate", "simulate", "world.yaml", "--log", "day.db"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
        cwd=tmp_path,
    )
    commands = said.stdout.partition("\nTry next")[2].splitlines()[1:]
    assert len(commands) == 3
    for command in commands:
        assert command.startswith("  bin/tidegate ")
        pasted = subprocess.run(
            shlex.split(command), capture_output=True, text=True, check=False, env=environment(), cwd=tmp_path
        )
        assert (pasted.returncode, pasted.stderr) == (0, "")


@pytest.mark.slow
def test_watched_tests_run_again_at_every_change(tmp_path: Path) -> None:
    """Until it is interrupted, which is the way to end it; half an edit is told and does not end it."""
    (tmp_path / "bundle.yaml").write_text("name: mine\npoints:\n  ordering.job: [order.yaml]\n")
    rule = tmp_path / "order.yaml"
    rule.write_text("name: order\npoint: ordering.job\nrule:\n  match:\n    - output: '[-job.priority]'\n")
    tests = "section:\n  - name: s\n    tests:\n      - {name: t, input: {job: {priority: 5}}, output: '[-5]'}\n"
    (tmp_path / "order.tests.yaml").write_text(tests)
    with subprocess.Popen(
        [*HEEDFUL, "policy", "test", str(tmp_path), "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None

        def told() -> str:
            """What one round says."""
            lines = iter(program.stdout.readline, "watching; interrupt to end\n")  # type: ignore[union-attr]
            return "".join(lines)

        assert told() == f"{tmp_path}: 1 of 1 test passed\n"
        rule.write_text(rule.read_text().replace("-job.priority", "job.priority"))
        assert f"\n{rule} changed\n{tmp_path}/order.tests.yaml:4: failed: s: t\n" in told()
        rule.write_text(rule.read_text().replace("job.priority", "job.priorty"))
        assert "did you mean 'priority'?" in told()
        rule.write_text(rule.read_text().replace("job.priorty", "-job.priority"))
        assert told() == f"\n{rule} changed\n{tmp_path}: 1 of 1 test passed\n"
        program.send_signal(signal.SIGINT)
        assert (program.wait(60), program.stderr.read()) == (0, "")
