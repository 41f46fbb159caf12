"""What can go wrong around a log: each time one clear sentence, nothing half-written, and the log still usable."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from controlplane.eventlog import open_log, upgrade_log
from controlplane.eventlog.export import export_log, import_log
from controlplane.eventlog.memory import MemoryLog
from controlplane.eventlog.port import EMPTY, EventLog, HeadMoved, LogError, LogUnavailable, LogUnusable
from controlplane.eventlog.postgresql import open_postgresql
from controlplane.eventlog.schema import REVISION, VERSION_TABLE, scripts
from controlplane.eventlog.sqlite import open_sqlite
from controlplane.eventlog.verify import verify_chain
from tests.contracts.test_event_log import entry, filled


def refusal(url: str, *, create: bool = True, read_only: bool = False) -> str:
    """The sentence with which opening is refused; one line, without a traceback's words."""
    with pytest.raises(LogUnusable) as caught:
        open_log(url, create=create, read_only=read_only)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "sqlalche" not in sentence
    return sentence


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of any file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB; where we may not mount one, a folder in which no file grows beyond that."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        with file_size_limit(2_000_000):
            yield folder
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "log", "sqlite://", "sqlite:///", "mysql://a:secret@h/d", "ftp://x", "memory:x"])
def test_a_url_that_names_no_log_is_refused_with_what_would(url: str) -> None:
    sentence = refusal(url)
    assert "postgresql://" in sentence
    assert "secret" not in sentence


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}"])
def test_a_path_and_a_url_open_the_same_log(tmp_path: Path, form: str) -> None:
    path = tmp_path / "odd name #1?%41.db"
    with open_log(form.format(path), create=True) as log:
        head = filled(log, 2)
        assert log.url == f"sqlite:///{path}"
    with open_log(str(path), create=False) as log:
        assert log.head() == head
    assert sorted(tmp_path.iterdir()) == [path]


# --- files that are no logs -------------------------------------------------------------------------------------------


def test_an_absent_file_is_not_made_unasked(tmp_path: Path) -> None:
    assert "no such log" in refusal(str(tmp_path / "absent.db"), create=False)
    assert "no such log" in refusal(str(tmp_path / "absent.db"), create=True, read_only=True)
    assert list(tmp_path.iterdir()) == []


def test_an_absent_folder_is_not_made(tmp_path: Path) -> None:
    assert "make it first" in refusal(str(tmp_path / "absent" / "log.db"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()
    assert "is a directory" in refusal(str(tmp_path / "folder.db"))


@pytest.mark.parametrize("content", [b"hello\n", b"\x00" * 5_000, b"SQLite format 3\x00" + b"\x07" * 5_000])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(content)
    sentence = refusal(str(path))
    assert "not a SQLite database" in sentence or "damaged" in sentence
    assert path.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [path]


def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.commit()
    assert "songs" in refusal(str(path))
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master ORDER BY name").fetchall()
    assert tables == [("alembic_version",), ("songs",)]


def test_an_empty_file_becomes_a_log_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.touch()
    assert "is empty" in refusal(str(path), create=False)
    assert path.stat().st_size == 0
    with open_log(str(path), create=True) as log:
        assert filled(log, 2).position == 2


def test_what_a_lost_log_left_behind_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "log.db-wal").write_bytes(b"old")
    assert "left over" in refusal(str(tmp_path / "log.db"))


# --- versions ---------------------------------------------------------------------------------------------------------


def test_this_version_knows_the_newest_revision() -> None:
    configuration = Config()
    configuration.set_main_option("script_location", str(scripts()))
    assert ScriptDirectory.from_config(configuration).get_current_head() == REVISION


@pytest.mark.parametrize(
    ("revision", "sentence"),
    [("9999", "from a newer Tidegate"), ("0000", "from an older Tidegate"), ("6ba1f2", "from a newer Tidegate")],
)
def test_a_log_of_another_version_is_refused_and_left_alone(tmp_path: Path, revision: str, sentence: str) -> None:
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        filled(log, 2)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", (revision,))
        connection.commit()
    assert sentence in refusal(str(path))


def test_upgrading_a_current_log_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        head = filled(log, 2)
    upgrade_log(str(path))
    with open_log(str(path), create=False) as log:
        assert log.head() == head
    with pytest.raises(LogUnusable, match="no schema"):
        upgrade_log("memory:")


# --- places that cannot be written ------------------------------------------------------------------------------------


@contextmanager
def without_roots_rights() -> Iterator[None]:
    """Root may write anywhere; so, for the time of the block, be somebody else."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder with a log in it, in which a user without rights may read and not write."""
    folder = Path(tempfile.mkdtemp(prefix="tidegate-ro-"))
    with open_log(str(folder / "log.db"), create=True) as log:
        filled(log, 3)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()


def test_a_folder_that_cannot_be_written_is_named(read_only_folder: Path) -> None:
    with without_roots_rights():
        for name in ("new.db", "log.db"):
            assert f"{name} cannot be " in refusal(str(read_only_folder / name))
        with MemoryLog() as log, pytest.raises(LogUnusable, match=r"new.jsonl cannot be written"):
            export_log(log, read_only_folder / "new.jsonl")
    assert [file.name for file in read_only_folder.iterdir()] == ["log.db"]


def test_a_log_in_a_folder_that_cannot_be_written_can_be_read(read_only_folder: Path) -> None:
    with without_roots_rights(), open_log(str(read_only_folder / "log.db"), create=False, read_only=True) as log:
        assert log.head().position == 3
        assert verify_chain(log).ok
    assert [file.name for file in read_only_folder.iterdir()] == ["log.db"]


def test_a_file_that_may_not_be_read_is_named(read_only_folder: Path) -> None:
    (read_only_folder / "log.db").chmod(0o000)
    with without_roots_rights():
        assert "cannot be opened" in refusal(str(read_only_folder / "log.db"), create=False, read_only=True)


def test_a_log_opened_for_reading_refuses_to_write(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        head = filled(log, 2)
    with open_log(str(path), create=False, read_only=True) as log:
        with pytest.raises(LogUnusable, match="reading only"):
            log.append([entry()], head)
        assert log.head() == head


# --- full disks -------------------------------------------------------------------------------------------------------

LARGE = [entry(number, b"%d" % number + b"x" * 1_000) for number in range(4_000)]


def must_survive(log: EventLog) -> None:
    """After a failed append, the log is as before and takes the next one."""
    before = log.head()
    with pytest.raises(LogUnavailable, match="nothing was written"):
        log.append(LARGE, before)
    assert log.head() == before
    assert sum(1 for _ in log.read()) == before.position
    assert verify_chain(log).ok


def test_a_batch_that_does_not_fit_on_the_disk_leaves_no_trace(small_disk: Path) -> None:
    with open_log(str(small_disk / "log.db"), create=True) as log:
        filled(log, 100)
        must_survive(log)
        assert log.append([entry(1)], log.head()).position == 101
    with open_log(str(small_disk / "log.db"), create=False) as log:
        assert log.head().position == 101
        assert verify_chain(log).ok


def test_a_batch_beyond_the_limit_on_file_size_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        filled(log, 100)
        with file_size_limit(1_000_000):
            must_survive(log)
        assert log.append(LARGE, log.head()).position == 4_100
        assert verify_chain(log).ok


@pytest.mark.parametrize("size", [0, 8_192, 30_000])
def test_a_log_that_does_not_fit_on_the_disk_is_not_half_made(tmp_path: Path, size: int) -> None:
    path = tmp_path / "log.db"
    with file_size_limit(size), pytest.raises(LogError) as caught:
        open_log(str(path), create=True)
    assert isinstance(caught.value, LogUnavailable)
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_does_not_fit_leaves_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with MemoryLog() as log:
        filled(log, 1)
        export_log(log, path)
        before = path.read_bytes()
        log.append(LARGE, log.head())
        with file_size_limit(100_000), pytest.raises(LogUnavailable, match="cannot be written"):
            export_log(log, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_import_that_does_not_fit_leaves_no_trace(tmp_path: Path) -> None:
    with MemoryLog() as source:
        source.append(LARGE, EMPTY)
        export_log(source, tmp_path / "log.jsonl.gz")
    with open_log(str(tmp_path / "log.db"), create=True) as log:
        with file_size_limit(2_000_000), pytest.raises(LogUnavailable):
            import_log(tmp_path / "log.jsonl.gz", log)
        assert log.head() == EMPTY
        assert import_log(tmp_path / "log.jsonl.gz", log).position == len(LARGE)


# --- other processes --------------------------------------------------------------------------------------------------


def test_a_writer_that_does_not_let_go_is_waited_for_and_then_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.eventlog.sqlite.BUSY_S", 0.05)
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogUnavailable, match="another process"):
            log.append([entry()], EMPTY)
        other.rollback()
        assert log.append([entry()], EMPTY).position == 1


@pytest.mark.slow
def test_a_killed_writer_leaves_a_whole_log(tmp_path: Path) -> None:
    """The write-ahead log of a process that ended in the middle of a transaction is not played."""
    path = tmp_path / "log.db"
    with open_log(str(path), create=True) as log:
        filled(log, 3)
    child = (
        "import os\n"
        "from controlplane.eventlog import open_log\n"
        "from tests.contracts.test_event_log import entry\n"
        f"log = open_log({str(path)!r}, create=False)\n"
        "head = log.append([entry(7)], log.head())\n"
        "def batches():\n"
        "    yield [entry(8)] * 5_000\n"
        "    os._exit(9)\n"
        "log.append_all(batches(), head)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", child], env=environment, check=False, timeout=60)
    assert done.returncode == 9
    with open_log(str(path), create=False) as log:
        assert log.head().position == 4
        assert verify_chain(log).ok


def test_every_connection_waits_for_the_disk(tmp_path: Path) -> None:
    """Kills: a pragma that was set on the first connection only."""
    backend = open_sqlite(tmp_path / "log.db", create=True, read_only=False)
    with backend.engine.connect() as first, backend.engine.connect() as second:
        for connection in (first, second):
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
            assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    backend.engine.dispose()


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


@pytest.mark.services
class TestPostgresFaults:
    def test_a_server_that_does_not_answer_is_unavailable(self) -> None:
        with pytest.raises(LogUnavailable, match="not available") as caught:
            open_log("postgresql://ada:secret@127.0.0.1:1/log", create=True)
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_an_absent_database_is_named(self, postgres_server: str) -> None:
        assert "create it first" in refusal(postgres_server.rpartition("/")[0] + "/absent")

    def test_a_malformed_url_is_refused(self) -> None:
        assert "not of the form" in refusal("postgresql://ada@host:port/log")

    def test_an_empty_database_is_filled_only_when_asked(self, postgres_url: str) -> None:
        assert "is empty" in refusal(postgres_url, create=False)
        assert "is empty" in refusal(postgres_url, create=True, read_only=True)
        with psycopg.connect(postgres_url) as connection:
            assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)

    def test_somebody_elses_database_is_refused(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url) as connection:
            connection.execute("CREATE TABLE songs (title TEXT)")
        assert "songs" in refusal(postgres_url)

    def test_a_log_of_a_newer_version_is_refused(self, postgres_url: str) -> None:
        open_log(postgres_url, create=True).close()
        upgrade_log(postgres_url)
        with psycopg.connect(postgres_url) as connection:
            connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'".encode())
        assert "from a newer Tidegate" in refusal(postgres_url)

    def test_a_log_opened_for_reading_refuses_to_write(self, postgres_url: str) -> None:
        with open_log(postgres_url, create=True) as log:
            head = filled(log, 2)
        with open_log(postgres_url, create=False, read_only=True) as log:
            assert log.head() == head
            with pytest.raises(LogUnusable, match="reading only"):
                log.append([entry()], head)

    def test_a_user_without_rights_is_told(self, postgres_url: str) -> None:
        open_log(postgres_url, create=True).close()
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DROP ROLE IF EXISTS eve")
            connection.execute("CREATE ROLE eve LOGIN")
        assert "right" in refusal(postgres_url.replace("tidegate@", "eve@"), create=False)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("DROP ROLE eve")

    def test_a_broken_connection_costs_at_most_one_refusal(self, postgres_url: str) -> None:
        with open_log(postgres_url, create=True) as log:
            head = filled(log, 2)
            with psycopg.connect(postgres_url, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'tidegate' AND datname = current_database()"
                )
            assert log.append([entry()], head).position == 3

    @pytest.mark.slow
    def test_two_first_openings_make_the_tables_once(self, postgres_url: str) -> None:
        code = f"from controlplane.eventlog import open_log; print(open_log({postgres_url!r}, create=True).head())"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        children = [
            subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        said = [child.communicate(timeout=60)[0].strip() for child in children]
        assert said == [str(EMPTY)] * 2

    def test_a_server_that_does_not_wait_for_its_disk_is_told_to(self, postgres_url: str) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END$$"
            )
        backend = open_postgresql(postgres_url, create=True, read_only=False)
        with backend.engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
        backend.engine.dispose()

    def test_a_conflict_is_told_from_a_fault(self, postgres_url: str) -> None:
        """A row that somebody put behind the head's back meets the primary key."""
        with open_log(postgres_url, create=True) as log:
            head = filled(log, 1)
            with psycopg.connect(postgres_url) as connection:
                connection.execute(
                    "INSERT INTO events SELECT 2, type, author, payload, recorded_at_ms, actor, correlation, "
                    "causation, previous, digest FROM events"
                )
            with pytest.raises(HeadMoved):
                log.append([entry()], head)


@pytest.mark.slow
def test_alembic_finds_the_scripts_by_its_own_configuration(tmp_path: Path, project_root: Path) -> None:
    """`alembic -x url=...` works for people who change the schema."""
    url = f"sqlite:///{tmp_path}/log.db"
    done = subprocess.run(
        [sys.executable, "-m", "alembic", "-x", f"url={url}", "upgrade", "head"],
        cwd=project_root,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    with create_engine(url).connect() as connection:
        assert connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar() == REVISION
    with open_log(url, create=False) as log:
        assert filled(log, 1).position == 1
