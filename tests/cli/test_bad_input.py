"""Whatever a person gives: one sentence with place, fault and way out; the right code; nothing left behind."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Tidegate
from tests.cli.worlds import Plain, many_jobs, part, small_world, write_world

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,262144,4,A100\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np1,1000,1024,1,1000\n"


def openb_world(folder: Path, nodes: str = NODES, pods: str = PODS) -> Path:
    """A world of two CSV files."""
    (folder / "nodes.csv").write_text(nodes)
    (folder / "pods.csv").write_text(pods)
    world = small_world()
    world["clusters"] = [{"name": "openb", "nodes_from": "nodes.csv"}]
    world["queues"] = [{"name": "openb"}]
    world["workload"] = {"openb": {"pods": "pods.csv", "capacity_from": "nodes.csv"}}
    return write_world(folder, world)


def test_the_csv_world_itself_is_good(tidegate: Tidegate, tmp_path: Path) -> None:
    assert tidegate("simulate", openb_world(tmp_path), "--log", tmp_path / "a.db").code == 0


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"nodes": ""}, "nodes.csv: the file is empty; "),
        ({"pods": ""}, "pods.csv: the file is empty; "),
        ({"nodes": NODES.replace(",gpu,", ",gpus,")}, "nodes.csv:1: the header lacks column gpu;"),
        ({"pods": PODS.replace("num_gpu,", "gpus,")}, "pods.csv:1: the header lacks column num_gpu;"),
        ({"nodes": NODES.replace(",4,", ",-4,")}, "nodes.csv:2: gpu is -4"),
        ({"pods": PODS.replace(",1,1000", ",-1,1000")}, "pods.csv:2: num_gpu is -1"),
        ({"nodes": NODES.replace(",4,", ",1000000000000,")}, "nodes.csv:2: gpu is 1,000,000,000,000"),
    ],
)
def test_a_bad_table_is_named_by_file_and_line(
    tidegate: Tidegate, tmp_path: Path, files: dict[str, str], sentence: str
) -> None:
    log = tmp_path / "out" / "a.db"
    log.parent.mkdir()
    said = tidegate("simulate", openb_world(tmp_path, **files), "--log", log).sentence()
    assert said.startswith(f"{tmp_path}/{sentence}"), said
    assert ";" in said  # and says what to do
    assert list(log.parent.iterdir()) == []


def changed(*path: str | int, value: object) -> Callable[[Plain], None]:
    """Puts a value into a world."""

    def change(world: Plain) -> None:
        part(world, *path[:-1])[path[-1]] = value  # type: ignore[index]

    return change


SHAPE = ("clusters", 0, "config", "nodes", 0, "shape")
ROLE = ("workload", "jobs", 2, "spec", "roles", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(*ROLE, "gpus", value=-1), ["workload.jobs.2.spec.roles.0.gpus", "greater than or equal to 0"]),
        (changed(*SHAPE, "gpus", value=10**12), ["'idc'", "nodes.0.shape.gpus", "less than or equal to 1024"]),
        (changed("clusters", 0, "config", "sede", value=1), ["'idc'", "sede"]),
        (changed("clusters", 0, "config", "nodes", 0, "prefix", value="\u00e9-"), ["'idc'", "nodes.0.prefix"]),
        (changed("clusters", 0, "config", "nodes", 0, "prefix", value="-x"), ["'idc'", "nodes.0.prefix"]),
        (changed("budgets", 0, "window_ms", value=10**30), ["budgets.0.window_ms", "less than or equal to"]),
        (changed("clusters", 1, "adapter", value="slurm-9"), ["'cloud'", "'slurm-9'", "simulated"]),
        (changed("policies", value="nowhere"), ["nowhere", "--policies"]),
        (changed("policies", value=None), ["names no policies", "--policies"]),
        (changed("queues", 1, "parent", value="nobody"), ["'research'", "'nobody'"]),
        (
            changed("queues", value=[{"name": f"q{n}", **({"parent": f"q{n - 1}"} if n else {})} for n in range(65)]),
            ["'q64'", "more than 64 levels", "make the tree flatter"],
        ),
        (changed("clusters", value=[]), ["clusters", "at least 1"]),
        (changed("workload", value={}), ["exactly one of generate, openb, philly, swf and jobs"]),
        (changed("wrokload", value={}), ["wrokload"]),
        (changed("workload", value={"swf": {"file": "gone.swf"}}), ["gone.swf"]),
        (changed("clusters", 1, "offers", 0, "price_micro_usd_per_hour", value=-1), ["price_micro_usd_per_hour"]),
    ],
)
def test_a_bad_world_is_named_by_file_and_line(
    tidegate: Tidegate, tmp_path: Path, change: Callable[[Plain], None], words: list[str]
) -> None:
    world = small_world()
    change(world)
    said = tidegate("simulate", write_world(tmp_path, world), "--log", tmp_path / "a.db").sentence()
    assert all(word in said for word in words), said
    assert str(tmp_path) in said
    assert [path.name for path in tmp_path.iterdir()] == ["world.yaml"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed("seed", value=True), ["seed: input should be a valid integer, not true"]),
        (changed("seed", value="3"), ['seed: input should be a valid integer, not "3"']),
        (changed("seed", value=3.0), ["seed: input should be a valid integer, not 3.0"]),
        (changed("tick_ms", value="1000"), ["tick_ms: ", 'not "1000"']),
        (changed("until_ms", value=True), ["until_ms: ", "not true"]),
        (changed("name", value=7), ["name: input should be a valid string, not 7"]),
        (changed("policies", value=False), ["policies: ", "not false"]),
        (changed("workload", "jobs", 2, "fails", value="no"), ["workload.jobs.2.fails: ", 'not "no"']),
        (changed("workload", "jobs", 2, "fails", value=0), ["workload.jobs.2.fails: ", "not 0"]),
        (changed("workload", "jobs", 2, "at_ms", value="5"), ["workload.jobs.2.at_ms: ", 'not "5"']),
        (changed("workload", "jobs", 2, "spec", "priority", value="high"), ["spec.priority: ", 'not "high"']),
        (changed("workload", value={"swf": {"file": "x.swf", "most": "9"}}), ["workload.swf.most: ", 'not "9"']),
        (changed("clusters", 0, "config", "seed", value=True), ["'idc'", "seed"]),
        (changed("clusters", 0, "config", "nodes", 0, "count", value="2"), ["'idc'", "nodes.0.count"]),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(
    tidegate: Tidegate, tmp_path: Path, change: Callable[[Plain], None], words: list[str]
) -> None:
    """Nothing is guessed: `yes` is no switch, and "3" no number."""
    world = small_world()
    change(world)
    said = tidegate("simulate", write_world(tmp_path, world), "--log", "memory:").sentence()
    assert all(word in said for word in words), said
    assert said.startswith(f"{tmp_path}/world.yaml:")


def test_a_world_may_begin_with_a_byte_order_mark_and_end_its_lines_as_elsewhere(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path
) -> None:
    path = write_world(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    answer = tidegate("simulate", path, "--log", "memory:", "--json").answer()
    assert answer["digest"] == tidegate("log", "verify", "--log", finished_day, "--json").answer()["digest"]
    path.write_bytes(path.read_bytes().replace(b'"default"', b'"gone"').replace(b"default", b"gone"))
    assert f"{path}:3: " in tidegate("simulate", path, "--log", "memory:").sentence()
    path.write_bytes("name: a".encode("utf-16"))
    assert "it is not UTF-8 text" in tidegate("simulate", path, "--log", "memory:").sentence()


def test_a_world_that_is_too_large_is_told_what_helps_a_world(tidegate: Tidegate, tmp_path: Path) -> None:
    for count in (1_000, 60_000):
        said = tidegate("simulate", write_world(tmp_path, many_jobs(count)), "--log", "memory:").sentence()
        assert f"{tmp_path}/world.yaml: the file is larger than 256 KiB; let `generate` draw the jobs" in said
        assert "split" not in said
    (tmp_path / "world.yaml").write_text("a: [" + "1," * 60_000 + "1]")
    said = tidegate("simulate", tmp_path / "world.yaml", "--log", "memory:").sentence()
    assert "the file has more than 50,000 parts; let `generate` draw the jobs" in said


@pytest.mark.parametrize("text", ["a: &x 1\nb: *x\n", "a: !t 1\n", "a: 1\n---\nb: 2\n", "a: \x07\n"])
def test_what_a_world_may_not_hold_is_not_said_of_policy_files(tidegate: Tidegate, tmp_path: Path, text: str) -> None:
    (tmp_path / "world.yaml").write_text(text)
    said = tidegate("simulate", tmp_path / "world.yaml", "--log", "memory:").sentence()
    assert "world file" in said
    assert "policy" not in said


def test_the_line_is_that_of_the_very_field(tidegate: Tidegate, tmp_path: Path) -> None:
    world = small_world()
    part(world, *SHAPE)["gpus"] = 10**12
    path = write_world(tmp_path, world)
    line = 1 + next(at for at, text in enumerate(path.read_text().split("\n")) if '"gpus": 1000000000000' in text)
    assert tidegate("simulate", path, "--log", "memory:").sentence().startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", ":1:1: the file is empty"),
        ("# nothing\n", ":1:1: the file is empty"),
        ("- a\n- b\n", ":1: "),
        ("name: a\nname: b\n", ":2:"),
        ("name: [\n", ":"),
        ("name: \x00\n", ":"),
    ],
)
def test_a_world_that_is_no_world_is_named_by_line(tidegate: Tidegate, tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(text)
    said = tidegate("simulate", path, "--log", tmp_path / "a.db").sentence()
    assert said.startswith(f"{path}{place}"), said


def test_a_world_that_cannot_be_read_is_named(tidegate: Tidegate, tmp_path: Path) -> None:
    assert "gone.yaml" in tidegate("simulate", tmp_path / "gone.yaml", "--log", tmp_path / "a.db").sentence()
    assert str(tmp_path) in tidegate("simulate", tmp_path, "--log", tmp_path / "a.db").sentence()


def test_a_world_without_an_end_is_not_read(tidegate: Tidegate, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert f"{path}: is not a file" in tidegate("simulate", path, "--log", tmp_path / "a.db").sentence()
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    assert "UTF-8" in tidegate("simulate", tmp_path / "latin.yaml", "--log", tmp_path / "a.db").sentence()


def test_a_rule_with_a_typo_is_named_by_file_line_and_column(tidegate: Tidegate, tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "bundle.yaml").write_text("name: mine\npoints:\n  ordering.job: [order.yaml]\n")
    (folder / "order.yaml").write_text(
        "name: order\npoint: ordering.job\nrule:\n  match:\n    - output: '[-job.priorty]'\n"
    )
    said = tidegate("simulate", write_world(tmp_path), "--policies", folder, "--log", tmp_path / "a.db").sentence()
    assert said.startswith(f"{folder}/order.yaml:5:")
    assert "priorty" in said
    assert "priority" in said
    assert not (tmp_path / "a.db").exists()


# --- logs -------------------------------------------------------------------------------------------------------------

READING = [
    ["replay"],
    ["replay", "--verify"],
    ["why", "j10"],
    ["log", "verify"],
    ["log", "tail"],
    ["jobs"],
    ["queues"],
    ["clusters"],
    ["top"],
]


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_log_that_is_not_there_is_not_made(tidegate: Tidegate, tmp_path: Path, command: list[str]) -> None:
    assert "there is no such log" in tidegate(*command, "--log", tmp_path / "gone.db").sentence()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_log_of_a_newer_schema_is_refused(tidegate: Tidegate, day: Path, command: list[str]) -> None:
    with closing(sqlite3.connect(day)) as database:
        database.execute("UPDATE tidegate_schema SET version_num = '9999'")
        database.commit()
    assert "from a newer Tidegate" in tidegate(*command, "--log", day).sentence()


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_an_exported_file_of_a_newer_format_is_refused(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, command: list[str]
) -> None:
    file = tmp_path / "day.jsonl"
    tidegate("log", "export", file, "--log", finished_day)
    header, rest = file.read_bytes().split(b"\n", 1)
    file.write_bytes(json.dumps({**json.loads(header), "tidegate_log": 99}).encode() + b"\n" + rest)
    assert "from a newer Tidegate" in tidegate(*command, "--log", file).sentence()


def test_an_event_of_a_newer_version_is_refused(tidegate: Tidegate, tmp_path: Path) -> None:
    from controlplane.eventlog import open_log
    from controlplane.eventlog.port import EMPTY, Entry

    with open_log(str(tmp_path / "a.db"), create=True) as log:
        log.append([Entry("job_submitted/7", "requested", b"{}", 0, "client")], EMPTY)
    for command in (["replay"], ["jobs"], ["top"]):
        said = tidegate(*command, "--log", tmp_path / "a.db").sentence()
        assert "job_submitted/7" in said
        assert "newer Tidegate" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["why", "day"], "'day' names no job"),
        (["why", "j0"], "'j0' names no job"),
        (["why", "j1"], "j1 is not in the log"),
        (["why", "j999999"], "j999999 is not in the log"),
        (["why", "j10", "--at", "0"], "--at 0: the log has positions 1 to"),
        (["why", "j10", "--at", "9999999"], "--at 9999999: the log has positions 1 to"),
        (["why", "j10", "--at", "tomorrow"], "'tomorrow' is neither a position nor a time"),
        (["why", "j10", "--at", "25:61:00"], "--at '25:61:00': no clock shows that; hours go to 23"),
        (["top", "--at", "1d 24:00:00"], "no clock shows that"),
        (["jobs", "--at", "9" * 5_000], "the log has positions 1 to"),
        (["jobs", "--at", "9" * 5_000 + "h"], "is neither a position nor a time"),
        (["replay", "--until", "9" * 5_000], "--until"),
        (["jobs", "--at", "1969-01-01"], "'1969-01-01' is neither a position nor a time"),
        (["jobs", "--queue", "reserch"], "no such queue (it has: company, product, research)"),
        (["log", "export", "day.txt"], "day.txt: an exported log is called"),
        (["log", "import", "day.db"], "day.db: an exported log is called"),
        (["replay", "--until", "0"], "--until"),
    ],
)
def test_a_wrong_question_is_answered_with_what_would_be_right(
    tidegate: Tidegate, finished_day: Path, words: list[str], said: str
) -> None:
    assert said in tidegate(*words, "--log", finished_day).sentence()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["simulate"], "Missing argument 'WORLD.yaml'; see `tidegate simulate --help`"),
        (["replay"], "Missing option '--log'"),
        (["--bogus"], "No such option: --bogus; see `tidegate --help`"),
        (["fly"], "No such command 'fly'"),
        (["log"], "Missing command; see `tidegate log --help`"),
        (["simulate", "w.yaml", "--log", "a.db", "--seed", "-1"], "--seed"),
        (["jobs", "--log", "ftp://x"], "'ftp://x' names no log; use"),
        (["db", "upgrade", "--log", "gone.db"], "gone.db: there is no such log"),
        (["db", "upgrade", "--log", "memory:"], "has no schema to upgrade"),
        (["policy", "check", "gone"], "gone: there is no such folder of policies"),
        (["policy", "test", "gone"], "gone: there is no such folder of policies"),
        (["policy", "check", "x", "--json", "--sarif"], "ask for one of them"),
    ],
)
def test_wrong_use_is_one_sentence(tidegate: Tidegate, words: list[str], said: str) -> None:
    assert said in tidegate(*words).sentence()


def test_a_password_is_never_repeated(tidegate: Tidegate) -> None:
    for url, code in (("mysql://ada:hush@host/db", 2), ("postgresql://ada:hush@127.0.0.1:1/db", 3)):
        assert "hush" not in tidegate("jobs", "--log", url).sentence(code)


# --- disks ------------------------------------------------------------------------------------------------------------


def _is_mounted(folder: Path, options: str) -> bool:
    if os.geteuid() != 0:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB; where we may not mount one, a folder in which no file grows beyond that."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if _is_mounted(folder, "size=256k"):
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256_000, hard))
    yield folder
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A folder into which nothing can be written, by root neither."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    if _is_mounted(folder, "ro"):
        yield folder
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):
        message = "root may neither mount a file system here nor be kept out of a folder by its mode"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    yield folder
    folder.chmod(0o755)


@pytest.mark.parametrize("name", ["a.db", "a.jsonl", "a.jsonl.gz"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tidegate: Tidegate, tmp_path: Path, small_disk: Path, name: str
) -> None:
    log = small_disk / name
    said = tidegate("simulate", write_world(tmp_path, many_jobs(400)), "--log", log).sentence(3)
    assert said.startswith(str(log)), said
    assert "draft" not in said
    assert list(small_disk.iterdir()) == []


@pytest.mark.slow
def test_a_disk_that_fills_up_during_an_import_or_export_keeps_nothing(
    tidegate: Tidegate, tmp_path: Path, small_disk: Path
) -> None:
    tidegate("simulate", write_world(tmp_path, many_jobs(400)), "--log", tmp_path / "a.jsonl")
    log = small_disk / "b.db"
    assert str(log) in tidegate("log", "import", tmp_path / "a.jsonl", "--log", log).sentence(3)
    assert list(small_disk.iterdir()) == []
    copy = small_disk / "b.jsonl"
    assert str(copy) in tidegate("log", "export", copy, "--log", tmp_path / "a.jsonl").sentence(3)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("name", ["a.db", "a.jsonl", "a.jsonl.gz"])
def test_a_read_only_folder_is_one_sentence(
    tidegate: Tidegate, finished_day: Path, tmp_path: Path, read_only: Path, name: str
) -> None:
    """And one exit code, whichever way somebody wants to write there."""
    log = read_only / name
    commands: list[list[str | Path]] = [["simulate", write_world(tmp_path), "--log", log]]
    if name == "a.db":
        tidegate("log", "export", tmp_path / "day.jsonl", "--log", finished_day)
        commands.append(["log", "import", tmp_path / "day.jsonl", "--log", log])
    else:
        commands.append(["log", "export", log, "--log", finished_day])
    for command in commands:
        said = tidegate(*command).sentence()
        assert said.startswith(f"{log} cannot be written: "), said
        assert "draft" not in said
    assert list(read_only.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_sentence(tidegate: Tidegate, tmp_path: Path) -> None:
    said = tidegate("simulate", write_world(tmp_path), "--log", tmp_path / "no" / "a.db").sentence()
    assert "the folder" in said
    assert "draft" not in said


@pytest.mark.parametrize("content", [b"not a log", b"SQLite format 3\x00 but no more"])
def test_a_file_that_is_no_log_is_left_alone(tidegate: Tidegate, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "a.db"
    file.write_bytes(content)
    tidegate("simulate", write_world(tmp_path), "--log", file).sentence()
    tidegate("jobs", "--log", file).sentence()
    assert file.read_bytes() == content
