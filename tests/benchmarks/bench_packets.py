"""Packets beside a line and beside a replay: transactions of one row wait in the journal; one secondary gets them by
packets, one by a line, one by a replay of the journal itself.

Run: python -m tests.benchmarks.bench_packets [--transactions N] [--rounds N] [--table]

Real processes, values of 100 bytes, one journal for all. In each round each way has its turn, with a secondary of its
own; what a command takes to start is in its figure.

Prints a JSON line, or with `--table` a table: transactions a second of export, import, replay and line (from the first
one applied until all is durable), and the bytes of packets a transaction. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import replicate
from replicate.bench.catch_up import VALUE_BYTES, catch_up
from replicate.bench.street import Bench, value
from tests.benchmarks import report
from tests.benchmarks.street_bench import machine, make_database


def write(bench: Bench, count: int) -> int:
    """Rows, one a transaction; the number of the last."""
    with closing(replicate.connect(bench.primary)) as connection:
        connection.execute("CREATE TABLE waits (id INTEGER PRIMARY KEY, value TEXT)")
        connection.commit()
        for number in range(count):
            connection.execute("INSERT INTO waits (id, value) VALUES (?, ?)", (number, value(number, 0, VALUE_BYTES)))
            connection.commit()
        return int(connection.last_seqno or 0)


def timed(bench: Bench, *words: str | Path) -> float:
    """Seconds that a command takes."""
    began = time.perf_counter()
    bench.run(*words)
    return time.perf_counter() - began


def one_round(bench: Bench, there: dict[str, Path], last: int, count: int, *, is_odd: bool) -> dict[str, float]:
    """Each way once; import and replay in turns, as the first one pays for what is on its way to the disk."""
    outbox = bench.directory / f"out-{there['packets'].name}"
    outbox.mkdir()
    to = there["packets"].name
    found = {"export": count / timed(bench, "-i", bench.primary, "packet", "export", "--to", to, "--outbox", outbox)}
    found["bytes"] = sum(path.stat().st_size for path in outbox.iterdir()) / count
    ways: list[tuple[str, tuple[str | Path, ...]]] = [
        ("import", ("-i", there["packets"], "packet", "import", outbox, "--remove")),
        ("replay", ("-i", there["replay"], "replay", "--journal", bench.primary)),
    ]
    for way, words in ways[:: -1 if is_odd else 1]:
        found[way] = count / timed(bench, *words)
    found["line"] = catch_up(bench, there["line"], last, count)["from_first"]
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """The line."""
    count, facts, rounds = arguments.transactions, machine(), []
    with tempfile.TemporaryDirectory(prefix="bench-packets-", dir=arguments.directory) as name:
        bench = Bench(Path(name), settings='[journal]\ndurability = "off"\n')
        try:
            make_database(Path(name) / "app.db", 0, VALUE_BYTES)
            bench.make_primary(Path(name) / "app.db")
            there = [
                {way: bench.add_secondary(f"{way}{number}") for way in ("packets", "replay", "line")}
                for number in range(arguments.rounds)
            ]
            last = write(bench, count)
            rounds = [
                one_round(bench, sites, last, count, is_odd=bool(number % 2)) for number, sites in enumerate(there)
            ]
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            bench.close()
    middle = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    return report.line(
        "packets",
        unit="transactions/s",
        figure={key: round(number, 1) for key, number in middle.items()},
        settings={"count": count, "rounds": arguments.rounds},
        facts=facts,
        ratio={
            "import_to_replay": round(statistics.median(one["import"] / one["replay"] for one in rounds), 2),
            "import_to_line": round(statistics.median(one["import"] / one["line"] for one in rounds), 2),
            "export_to_line": round(statistics.median(one["export"] / one["line"] for one in rounds), 2),
        },
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    report.add_table(parser)
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    arguments = parser.parse_args()
    report.say([measure(arguments)], as_table=arguments.table)


if __name__ == "__main__":
    main()
