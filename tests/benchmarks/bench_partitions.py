"""What a subscription saves: transactions of one row wait in the journal, over ten tables in ten partitions by turns;
secondaries that have all, a half, a tenth and none of them catch up.

Run: python -m tests.benchmarks.bench_partitions [--transactions N] [--rounds N] [--table]

Real processes, real TCP over loopback, values of 100 bytes, one journal for all. `whole` has no subscription at all,
and is what the others are compared with. In each round every wish has its turn, with a secondary of its own.

Prints a JSON line for each wish, or with `--table` a table: transactions a second from the first one applied until all
is durable, CPU microseconds a transaction of each daemon, and the bytes of frames that came, a transaction. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import replicate
from replicate.admin.partitions import assign, create
from replicate.admin.subscriptions import set_
from replicate.bench.catch_up import DAEMONS, VALUE_BYTES, catch_up
from replicate.bench.street import Bench, value
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from tests.benchmarks import report
from tests.benchmarks.street_bench import machine, make_database

TABLES: Final = 10
WISHES: Final = {"whole": None, "all": 10, "half": 5, "tenth": 1, "nothing": 0}
"""Of how many tables a secondary has the rows; None: it subscribes to nothing."""


def write(bench: Bench, count: int) -> int:
    """One row a transaction, by turns; the last number."""
    with closing(replicate.connect(bench.primary)) as connection:
        for number in range(count):
            connection.execute(
                f"INSERT INTO part{number % TABLES} (id, value) VALUES (?, ?)", (number, value(number, 0, VALUE_BYTES))
            )
            connection.commit()
        return int(connection.last_seqno or 0)


def prepared(bench: Bench, database: Path) -> None:
    """A primary with ten tables in partitions 2 to 11, and an empty one, 12."""
    make_database(database, 0, VALUE_BYTES)
    bench.make_primary(database)
    primary = Instance.open(bench.primary)
    with closing(replicate.connect(bench.primary)) as connection:
        for table in range(TABLES):
            connection.execute(f"CREATE TABLE part{table} (id INTEGER PRIMARY KEY, value TEXT)")
        connection.commit()
    for table in range(TABLES):
        create(primary, f"p{table}", table + 2)
        assign(primary, f"p{table}", [f"part{table}"])
    create(primary, "empty", TABLES + 2)


def subscribed(bench: Bench, name: str, tables: int | None) -> Path:
    """A secondary that has the rows of so many tables, seeded."""
    made = bench.add_secondary(name)
    if tables is not None:
        set_(Instance.open(made), [str(number + 2) for number in range(tables)] or [str(TABLES + 2)])
    return made


def frame_bytes(secondary: Path, first: int, last: int) -> int:
    """Of the frames in its journal, parts of large transactions left out."""
    total = 0
    with closing(ChainReader(Chain(Instance.open(secondary).journal_directory), first)) as reader:
        while (found := reader.read(1 << 20, last)) is not None:
            total += 0 if isinstance(found, LargeTransaction) else len(found.data)
    return total


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each wish."""
    count, facts = arguments.transactions, machine()
    rounds: dict[str, list[dict[str, Any]]] = {wish: [] for wish in ("whole", *arguments.wanted)}
    with tempfile.TemporaryDirectory(prefix="bench-partitions-", dir=arguments.directory) as name:
        bench = Bench(Path(name), settings='[journal]\ndurability = "off"\n')
        try:
            prepared(bench, Path(name) / "app.db")
            there = [
                (wish, subscribed(bench, f"{wish}{number}", tables))
                for number in range(arguments.rounds)
                for wish, tables in WISHES.items()
                if wish in rounds
            ]
            first = int(bench.run("-i", bench.primary, "wait", "--seqno", "0").split()[-1].rstrip("."))
            last = write(bench, count)
            for wish, secondary in there:
                found = catch_up(bench, secondary, last, count)
                rounds[wish].append({**found, "bytes": frame_bytes(secondary, first + 1, last) / count})
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            bench.close()
    return [line(wish, found, rounds["whole"], arguments, facts) for wish, found in rounds.items()]


def line(
    wish: str, found: list[dict[str, Any]], whole: list[dict[str, Any]], arguments: argparse.Namespace, facts: Any
) -> dict[str, Any]:
    """The medians of a wish, and what they are of those of a whole secondary."""

    def middle(rounds: list[dict[str, Any]]) -> dict[str, float]:
        made = {"from_first": statistics.median(one["from_first"] for one in rounds)}
        made |= {f"cpu_us_{name}": statistics.median(one["cpu_us"][name] for one in rounds) for name in DAEMONS}
        return {**made, "bytes": statistics.median(one["bytes"] for one in rounds)}

    ours, all_of_it = middle(found), middle(whole)
    return report.line(
        "partitions",
        unit="transactions/s",
        figure={name: round(number, 2) for name, number in ours.items()},
        settings={"count": arguments.transactions, "rounds": arguments.rounds, "tables": TABLES},
        facts=facts,
        wanted=wish,
        ratio_to_whole={name: round(ours[name] / all_of_it[name], 2) for name in ours if all_of_it[name]},
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wanted", nargs="*", choices=tuple(WISHES), default=list(WISHES))
    report.add_table(parser)
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    arguments = parser.parse_args()
    report.say(measure(arguments), as_table=arguments.table)


if __name__ == "__main__":
    main()
