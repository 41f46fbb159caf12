"""How near the log comes to the bare database: the same bytes, the same durability, the same run.

    python -m tests.benchmarks.bench_log [--records N] [--postgres URL] [--json]

Ours and the bare insert take turns. A rate is the best of the rounds; a ratio is the median of the rounds' own ratios,
so that what else the machine does weighs little.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import psycopg

from controlplane.eventlog import open_log
from controlplane.eventlog.chain import Row, seal
from controlplane.eventlog.export import export_log, import_log
from controlplane.eventlog.port import EMPTY, Entry, EventLog, Snapshot
from controlplane.eventlog.verify import verify_chain

RECORDS = 100_000
"""Some 45 MB: enough that both meet checkpoints."""
BATCH = 1_000
ROUNDS = 5
COLUMNS = (
    "position {integer} PRIMARY KEY, type TEXT NOT NULL, author TEXT NOT NULL, payload {bytes} NOT NULL, "
    "recorded_at_ms {integer} NOT NULL, actor TEXT NOT NULL, correlation TEXT NOT NULL, causation {integer}, "
    "previous TEXT NOT NULL, digest TEXT NOT NULL"
)

Figures = dict[str, float]


def entries(size: int) -> list[Entry]:
    """Observations of leases, some 270 bytes each: the commonest event of a busy log."""
    return [
        Entry(
            "lease_observed/1",
            "observed",
            b'{"cluster":"idc-a","detail":"%s","lease":"j%d-1-0","observed_ms":%d,"phase":"running"}'
            % (b"x" * 180, number, 1_700_000_000_000 + number),
            1_700_000_000_000 + number,
            "agent",
            f"j{number}",
            number or None,
        )
        for number in range(size)
    ]


def batches(of: list[Entry]) -> Iterator[list[Entry]]:
    return (of[start : start + BATCH] for start in range(0, len(of), BATCH))


def rate(size: int, run: Callable[[], object]) -> float:
    """Records per second of one run."""
    start = time.perf_counter()
    run()
    return size / (time.perf_counter() - start)


def append_batches(log: EventLog, of: list[Entry]) -> None:
    head = log.head()
    for batch in batches(of):
        head = log.append(batch, head)


def read_all(log: EventLog) -> None:
    for _ in log.read():
        pass


# --- SQLite -----------------------------------------------------------------------------------------------------------


def bare_sqlite(path: Path, rows: list[Row]) -> float:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"CREATE TABLE events ({COLUMNS.format(integer='INTEGER', bytes='BLOB')})")

        def run() -> None:
            for start in range(0, len(rows), BATCH):
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows[start : start + BATCH]
                )
                connection.execute("COMMIT")

        return rate(len(rows), run)


def sqlite_figures(folder: Path, size: int) -> Figures:
    of = entries(size)
    rows = seal(of, EMPTY)
    best: Figures = {}

    def keep(name: str, value: float) -> None:
        best[name] = max(best.get(name, 0.0), value)

    ratios = []
    for number in range(ROUNDS):
        bare = bare_sqlite(folder / f"bare{number}.db", rows)
        with open_log(str(folder / f"log{number}.db"), create=True) as log:
            ours = rate(size, lambda log=log: append_batches(log, of))  # type: ignore[misc]
            keep("bare_insert_per_s", bare)
            keep("append_per_s", ours)
            ratios.append(ours / bare)
            keep("read_per_s", rate(size, lambda log=log: read_all(log)))  # type: ignore[misc]
            keep("verify_per_s", rate(size, lambda log=log: verify_chain(log)))  # type: ignore[misc]
    with open_log(str(folder / "log0.db"), create=False) as log:
        keep("export_per_s", rate(size, lambda: export_log(log, folder / "log.jsonl")))
    with open_log(str(folder / "log.jsonl"), create=False) as file:
        keep("file_read_per_s", rate(size, lambda: read_all(file)))
    with open_log(str(folder / "copy.db"), create=True) as copy:
        keep("import_per_s", rate(size, lambda: import_log(folder / "log.jsonl", copy)))
    best["append_ratio"] = median(ratios)
    best["bytes_per_record"] = (folder / "log0.db").stat().st_size / size
    return best


def opening_ms(folder: Path, size: int) -> float:
    """Open a log of ``size`` records, ask for its head and its newest snapshot."""
    path = folder / "large.db"
    with open_log(str(path), create=True) as log:
        append_batches(log, entries(size))
        head = log.head()
        log.save_snapshot(Snapshot(head.position, head.digest, "core", b"x" * 100_000))
    start = time.perf_counter()
    with open_log(str(path), create=False) as log:
        assert log.head() == head
        assert next(log.snapshots("core")).position == size
        return (time.perf_counter() - start) * 1_000


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def bare_postgresql(url: str, rows: list[Row], number: int) -> float:
    table = f"bare{number}"
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} ({COLUMNS.format(integer='BIGINT', bytes='BYTEA')})".encode())
        connection.commit()
        insert = f"INSERT INTO {table} VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)".encode()

        def run() -> None:
            for start in range(0, len(rows), BATCH):
                cursor.executemany(insert, rows[start : start + BATCH])
                connection.commit()

        return rate(len(rows), run)


def postgresql_figures(server: str, size: int) -> Figures:
    of = entries(size)
    rows = seal(of, EMPTY)
    best: Figures = {"bare_insert_per_s": 0.0, "append_per_s": 0.0, "read_per_s": 0.0, "verify_per_s": 0.0}
    for number in range(2):
        name = f"bench_log_{number}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
            connection.execute(f"CREATE DATABASE {name}".encode())
        url = server.rpartition("/")[0] + "/" + name
        with open_log(url, create=True) as log:
            best["append_per_s"] = max(best["append_per_s"], rate(size, lambda log=log: append_batches(log, of)))  # type: ignore[misc]
            best["read_per_s"] = max(best["read_per_s"], rate(size, lambda log=log: read_all(log)))  # type: ignore[misc]
            best["verify_per_s"] = max(best["verify_per_s"], rate(size, lambda log=log: verify_chain(log)))  # type: ignore[misc]
        best["bare_insert_per_s"] = max(best["bare_insert_per_s"], bare_postgresql(url, rows, number))
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name}".encode())
    best["append_ratio"] = best["append_per_s"] / best["bare_insert_per_s"]
    return best


# --- the answer -------------------------------------------------------------------------------------------------------


def measure(records: int = RECORDS, server: str | None = None) -> dict[str, Figures | str]:
    """All figures; PostgreSQL's only with a server."""
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as name:
        answer: dict[str, Figures | str] = {
            "machine": f"{platform.machine()}, Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}",
            "sqlite": sqlite_figures(Path(name), records),
            "opening": {"records": float(2 * records), "ms": opening_ms(Path(name), 2 * records)},
        }
        if server is not None:
            answer["postgresql"] = postgresql_figures(server, records)
    return answer


def sentences(answer: dict[str, Figures | str]) -> str:
    """The figures for a person."""
    lines = []
    for part, figures in answer.items():
        if isinstance(figures, str):
            lines.append(f"{part:12}{figures}")
            continue
        lines += [f"{part:12}{name:20}{value:>14,.2f}" for name, value in figures.items()]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="figures of the event log beside the bare database")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--postgres", metavar="URL", help="a server on which databases may be made")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    answer = measure(given.records, given.postgres)
    sys.stdout.write((json.dumps(answer, indent=2) if given.json else sentences(answer)) + "\n")


if __name__ == "__main__":
    main()
