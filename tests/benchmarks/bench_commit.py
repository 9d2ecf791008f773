"""What the commit door costs an application: single-row INSERT transactions, one connection, durability off.

Run: python tests/benchmarks/bench_commit.py [--transactions N] [--rounds N] [--directory DIR] [--profile]

Prints one JSON line: microseconds a transaction of plain sqlite3, plain APSW and `replicate.connect()`, taking turns
in short rounds: wall time of the best round, and CPU time (user and system) of all; the ratios; and what it ran on.
Nothing is asserted: the figures are for reading, and for comparing with those of another day on the same machine.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import platform
import pstats
import resource
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from replicate import connect
from replicate.instance import Instance
from replicate.regions import add_region

SCHEMA = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount REAL)"
INSERT = "INSERT INTO t (name, amount) VALUES (?, ?)"

Run = Callable[[int], None]


def plain_sqlite3(path: Path) -> Run:
    """The standard library's sqlite3."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(SCHEMA)

    def run(count: int) -> None:
        for number in range(count):
            connection.execute(INSERT, ("a name of some length", number * 0.5))
            connection.commit()

    return run


def plain_apsw(path: Path) -> Run:
    """APSW, as one would write it by hand."""
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(SCHEMA)

    def run(count: int) -> None:
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(INSERT, ("a name of some length", number * 0.5))
            connection.execute("COMMIT")

    return run


def through_the_door(directory: Path) -> Run:
    """`replicate.connect()` to a primary of its own."""
    database = directory / "region.db"
    made = apsw.Connection(str(database))
    made.execute(SCHEMA)
    made.close()
    Instance.create(directory / "instance", role="primary", name="bench")
    (directory / "instance" / "replicate.toml").write_text('[journal]\ndurability = "off"\n')
    add_region(Instance.open(directory / "instance"), database)
    connection = connect(directory / "instance")

    def run(count: int) -> None:
        for number in range(count):
            connection.execute(INSERT, ("a name of some length", number * 0.5))
            connection.commit()

    return run


def measure(run: Run, count: int) -> dict[str, float]:
    """Microseconds a transaction."""
    before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run(count)
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return {"wall": wall / count * 1e6, "cpu": cpu / count * 1e6}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=400, help="of each round")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--directory", help="where to make the databases (default: the temporary directory)")
    parser.add_argument("--profile", action="store_true", help="profile the door instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-commit-", dir=arguments.directory) as name:
        directory = Path(name)
        (directory / "shm").mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(directory / "shm")
        door = through_the_door(directory)
        if arguments.profile:
            door(500)
            profile = cProfile.Profile()
            profile.runcall(door, arguments.transactions)
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
            return
        kinds = {
            "sqlite3": plain_sqlite3(directory / "sqlite3.db"),
            "apsw": plain_apsw(directory / "apsw.db"),
            "replicate": door,
        }
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for _ in range(arguments.rounds):
            for kind, run in kinds.items():
                found[kind].append(measure(run, arguments.transactions))
    best = {
        kind: {
            "wall": round(min(one["wall"] for one in rounds), 2),
            "cpu": round(sum(one["cpu"] for one in rounds) / len(rounds), 2),
        }
        for kind, rounds in found.items()
    }
    ratios = {
        f"to_{kind}": {what: round(best["replicate"][what] / best[kind][what], 2) for what in ("wall", "cpu")}
        for kind in ("sqlite3", "apsw")
    }
    print(json.dumps({"microseconds": best, **ratios, **_machine(), "transactions": arguments.transactions}))


def _machine() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "apsw": apsw.apsw_version(),
        "sqlite3": sqlite3.sqlite_version,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "system": sys.platform,
    }


if __name__ == "__main__":
    main()
