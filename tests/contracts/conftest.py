"""Servers and folders that contract tests ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count

import psycopg
import pytest

from tests.services import STARTED, NoService, postgres

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a running PostgreSQL; a failure under CI if there is none, else a named skip."""
    try:
        server = postgres()
        url = server.__enter__()
    except NoService as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error} (CI requires it)", pytrace=False)
        pytest.skip(str(error))
    try:
        yield url
    finally:
        server.__exit__(None, None, None)


@pytest.fixture
def postgres_url(postgres_server: str) -> str:
    """The URL of a new, empty database."""
    name = f"log_{next(_NUMBERS)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres_server.rpartition("/")[0] + "/" + name


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how each server was started."""
    for service, how in STARTED.items():
        terminalreporter.write_line(f"service {service}: {how}")
