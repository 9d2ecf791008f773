"""How many rows a second of a core the patrol digests, range by range, beside the digest of whole tables.

Run: python -m tests.benchmarks.bench_patrol [--rows N] [--rounds N] [--table] [--directory DIR]

One table of N rows of about 100 bytes, in the page cache. Measured are, in turns: a round of the patrol on the source
(a connection and a read transaction for each range), the verification of each of these ranges, and `digest`, which
reads the table once. A patrol of 1 % of a core does a hundredth of its figure.

Prints one JSON line for each: rows a second of CPU time, the best of the rounds, and its ratio to `digest`.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from replicate import connect
from replicate.admin.regions import add_region
from replicate.compare.patrolled import Outcome
from replicate.compare.range_check import take_range, verify
from replicate.compare.rounds import Place
from replicate.instance.instance import Instance
from replicate.region.sqlite.digest import digest_region
from replicate.region.sqlite.snapshot import reading
from replicate.wire.message import Check
from tests.benchmarks import report
from tests.benchmarks.street_bench import machine


def make_instance(directory: Path, rows: int) -> Instance:
    """A primary with one region of so many rows."""
    database = directory / "app.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, owner TEXT, amount REAL, note TEXT, data BLOB)")
        connection.executemany(
            "INSERT INTO entry VALUES (?, ?, ?, ?, ?)",
            ((n, f"owner {n}", n / 3, "x" * 60, b"y" * 12) for n in range(1, rows + 1)),
        )
        connection.commit()
    instance = Instance.create(directory / "primary", role="primary", name="primary")
    add_region(instance, database)
    with closing(connect(instance.path)) as writer:
        writer.execute("UPDATE entry SET amount = 0 WHERE id = 1")
        writer.commit()
    instance.reload()
    return instance


def round_of(instance: Instance) -> list[Check]:
    """A whole round of the patrol."""
    place: Place | None = Place(1)
    found = []
    while place is not None:
        taken = take_range(instance, place)
        if taken.check is not None:
            found.append(taken.check)
        place = taken.place
    return found


def _verify(instance: Instance, checks: list[Check]) -> None:
    for check in checks:
        assert verify(instance, check, 0).outcome is Outcome.EQUAL


def _digest(instance: Instance) -> None:
    with reading(instance.regions[0].path) as connection:
        digest_region(connection)


def measure(arguments: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each way."""
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="bench-patrol-", dir=arguments.directory) as name:
        instance = make_instance(Path(name), arguments.rows)
        checks = round_of(instance)
        assert sum(check.rows for check in checks if check.table == "entry") == arguments.rows
        ways: dict[str, Callable[[], object]] = {
            "digest of the table": lambda: _digest(instance),
            "patrol on the source": lambda: round_of(instance),
            "patrol on the secondary": lambda: _verify(instance, checks),
        }
        rates: dict[str, list[float]] = {what: [] for what in ways}
        for _ in range(arguments.rounds):
            for what, run in ways.items():
                began = time.process_time()
                run()
                rates[what].append(arguments.rows / (time.process_time() - began))
        base = max(rates["digest of the table"])
        settings = {"rows": arguments.rows, "rounds": arguments.rounds, "ranges": len(checks)}
        for what in ways:
            figure = {"rows_per_cpu_s": round(max(rates[what])), "ratio": round(max(rates[what]) / base, 3)}
            yield report.line(
                "patrol", unit=report.IN_THE_NAMES, figure=figure, settings=settings, facts=facts, what=what
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to make the instance (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    report.say(measure(arguments), as_table=arguments.table)


if __name__ == "__main__":
    main()
