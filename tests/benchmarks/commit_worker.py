"""One writer of bench_commit.py: a process that does what it is told, a line at a time, and says how long that took.

Arguments: WAY TARGET SYNCHRONOUS. WAY is `apsw`, `sqlite3` (TARGET: the database, SYNCHRONOUS: NORMAL or FULL) or
`replicate` (TARGET: the instance, SYNCHRONOUS: not looked at). Lines: `row N` commits N single-row INSERTs; `insert N`
and `update N` write N rows in one statement and commit; `empty N` takes them out again; `profile N` is `row N` under
the profiler, whose words go to the standard error. Answers with one JSON line: `begun`, `ended` (CLOCK_MONOTONIC, so
that writers can be compared) and `cpu_s`, user and system.

Guarantees: the three ways run the same statements. Leaves to others: rounds, rivals, what is good. It imports nothing
of the tests, so that it can be run with the `replicate` of another checkout.
"""

from __future__ import annotations

import cProfile
import json
import pstats
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any, Final

BUSY_TIMEOUT_S: Final = 120.0
ROW: Final = "INSERT INTO t (name, amount) VALUES (?, ?)"
BULK: Final = {
    "insert": "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
    "INSERT INTO bulk SELECT i, printf('a name of some length, %d', i), i * 0.5 FROM n",
    "update": "UPDATE bulk SET amount = amount + 1 WHERE id <= ?",
    "empty": "DELETE FROM bulk WHERE id <= ?",
}

Run = Callable[[str, int], None]


def through_apsw(path: str, synchronous: str) -> Run:
    """Plain SQLite through the driver that we use, as one would write it by hand."""
    import apsw

    connection = apsw.Connection(path)
    connection.set_busy_timeout(int(BUSY_TIMEOUT_S * 1000))
    connection.execute(f"PRAGMA synchronous = {synchronous}")

    def run(what: str, count: int) -> None:
        if what != "row":
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(BULK[what], (count,))
            connection.execute("COMMIT")
            return
        for number in range(count):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(ROW, ("a name of some length", number * 0.5))
            connection.execute("COMMIT")

    return run


def through_pep249(connection: Any) -> Run:
    """The standard library's sqlite3, or ours in its place."""

    def run(what: str, count: int) -> None:
        if what != "row":
            connection.execute(BULK[what], (count,))
            connection.commit()
            return
        for number in range(count):
            connection.execute(ROW, ("a name of some length", number * 0.5))
            connection.commit()

    return run


def open_way(way: str, target: str, synchronous: str) -> Run:
    """Connect."""
    if way == "apsw":
        return through_apsw(target, synchronous)
    if way == "sqlite3":
        plain = sqlite3.connect(target, timeout=BUSY_TIMEOUT_S)
        plain.execute(f"PRAGMA synchronous = {synchronous}")
        return through_pep249(plain)
    import replicate

    return through_pep249(replicate.connect(target, timeout=BUSY_TIMEOUT_S))


def main() -> None:
    """Serve until the standard input ends."""
    run = open_way(*sys.argv[1:4])
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        what, count = line.split()
        begun, cpu_s = time.monotonic(), time.process_time()
        if what == "profile":
            profile = cProfile.Profile()
            profile.runcall(run, "row", int(count))
            pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(50)
        else:
            run(what, int(count))
        cpu_s, ended = time.process_time() - cpu_s, time.monotonic()
        print(json.dumps({"begun": begun, "ended": ended, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
