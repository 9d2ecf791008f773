"""How many rows a second of a core the patrol digests, range by range, beside the digest of whole tables; and what
others notice of it.

Run: python -m tests.benchmarks.bench_patrol [--rows N] [--rounds N] [--commits N] [--table] [--directory DIR]

One table of N rows of about 100 bytes, in the page cache. Measured are, in turns: a round of the patrol on the source
(a connection and a read transaction for each range), the verification of each of these ranges, and `digest`, which
reads the table once. A patrol of 1 % of a core does a hundredth of its figure.

Then pairs with real daemons, whose table has N rows, too, and an index, in turns without patrols and with those of both
sites, of rows and of indexes, at their default, 1 % of a core, but that each begins its next round at once: a backlog
of N updates in random order, and commits on a level pair.

Prints a JSON line for each: rows a second of CPU time, the best of the rounds, and its ratio to `digest`; of the pairs
the medians with and without (transactions a second of the backlog; milliseconds of a commit, and from there to a reader
on the secondary), and the ratio of the speeds.
"""

from __future__ import annotations

import argparse
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Final

from replicate import connect
from replicate.admin.regions import add_region
from replicate.bench.catch_up import VALUE_BYTES, catch_up, write
from replicate.bench.latency import latency
from replicate.bench.street import Bench
from replicate.compare.index_found import look_at_indexes
from replicate.compare.patrol_found import Outcome, look_at_patrolled
from replicate.compare.patrol_rounds import Place
from replicate.compare.range_check import take_range, verify
from replicate.instance.instance import Instance
from replicate.region.sqlite.digest import digest_region
from replicate.region.sqlite.snapshot import reading
from replicate.wire.message import Check
from tests.benchmarks import report
from tests.benchmarks.street_bench import machine, make_database

PATROLS: Final = {"without": "[{}]\npatrol_percent = 0\n", "with": "[{}]\npatrol_round_s = 0.1\n"}
"""Of a source, and of a receiver."""
"""Settings of the primary."""
NOTICED: Final = ("backlog", "commit", "visible")


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


def measure_noticed(arguments: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each of NOTICED."""
    facts, count = machine(), arguments.rows
    found: dict[str, dict[str, list[float]]] = {what: {patrol: [] for patrol in PATROLS} for what in NOTICED}
    with tempfile.TemporaryDirectory(prefix="bench-patrol-", dir=arguments.directory) as name:
        bench = Bench(Path(name), settings='[journal]\ndurability = "off"\n')
        try:
            make_database(Path(name) / "app.db", count, VALUE_BYTES)
            with closing(sqlite3.connect(Path(name) / "app.db")) as connection:
                connection.execute("CREATE INDEX item_value ON item (value)")
            bench.make_primary(Path(name) / "app.db")
            secondaries = [bench.add_secondary(f"s{number}") for number in range(2 * arguments.rounds)]
            last, _ = write(bench.primary, "update", count)
            for place, secondary in enumerate(secondaries):
                patrol = ("without", "with", "with", "without")[place % 4]
                for instance, section in ((bench.primary, "source"), (secondary, "receiver")):
                    (instance / "replicate.toml").write_text(PATROLS[patrol].format(section))
                noted = look_at_patrolled(secondary), look_at_indexes(secondary)  # while it was seeded there were both
                found["backlog"][patrol].append(float(catch_up(bench, secondary, last, count)["from_start"]))
                taken = latency(bench, secondary, arguments.commits, 0.005)
                last += arguments.commits
                found["commit"][patrol] += taken["commit"]
                found["visible"][patrol] += taken["visible"]
                now = look_at_patrolled(secondary), look_at_indexes(secondary)
                if {before != after for before, after in zip(noted, now, strict=True)} != {patrol == "with"}:
                    raise RuntimeError(f"{patrol} a patrol, and what it noted says otherwise")
        finally:
            bench.close()
    for what, by_patrol in found.items():
        figure = {patrol: round(statistics.median(taken), 3) for patrol, taken in by_patrol.items()}
        fast, slow = ("with", "without") if what == "backlog" else ("without", "with")
        figure["ratio"] = round(figure[fast] / figure[slow], 3)
        settings = {"rows": count, "rounds": arguments.rounds, "commits": arguments.commits}
        yield report.line(
            "patrol", unit=report.IN_THE_NAMES, figure=figure, settings=settings, facts=facts, what=f"noticed: {what}"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits", type=int, default=300, help="of each round, on a level pair")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    report.say(chain(measure(arguments), measure_noticed(arguments)), as_table=arguments.table)


if __name__ == "__main__":
    main()
