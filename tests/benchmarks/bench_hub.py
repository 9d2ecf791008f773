"""How long a small transaction of one site takes to the hub of a star, while the hub takes the backlog of another site.

Run: python -m tests.benchmarks.bench_hub [--transactions N] [--rounds N] [--against CHECKOUT] [--table]

Three suppliers: `far` has written N transactions of a row of 100 bytes while its line to the hub was down. It comes
back, and until the hub has all of them `near` commits a row each PAUSE_S. Both write tables of their own. Prints one
JSON line for each checkout: milliseconds from the return of near's commit to its row's being visible at the hub,
median, 90 %, 99 % and worst; and the backlog's transactions a second. `--against` runs the daemons of another checkout
in turns. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import apsw

import replicate
from replicate.bench.latency import spread
from replicate.bench.street import Bench, value, wait_for
from tests.benchmarks import report
from tests.benchmarks.bench_suppliers import SETTINGS, are_level
from tests.benchmarks.street_bench import ROOT, machine, make_database
from tests.harness.checkout import name_of

PAUSE_S: Final = 0.02
LOOK_S: Final = 0.001
VALUE_BYTES: Final = 100
SITES: Final = ("far", "near")
"""Each writes the table of its name."""


def make_star(bench: Bench, directory: Path) -> tuple[Path, Path, Path]:
    """The hub and both sites, level, with lines that run."""
    make_database(directory / "app.db", 0, VALUE_BYTES)
    bench.make_primary(directory / "app.db")
    hub = bench.primary
    for name in SITES:
        bench.run("-i", hub, "partition", "create", name)
        with closing(replicate.connect(hub)) as connection:
            connection.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, value TEXT)")
            connection.commit()
        bench.run("-i", hub, "partition", "assign", name, name)
    bench.run("-i", hub, "instance", "convert", "--role", "supplier")
    far, near = (bench.add_secondary(name) for name in SITES)
    for site in (far, near):
        bench.run("-i", site, "instance", "convert", "--role", "supplier")
        bench.run("-i", site, "peer", "add", hub.name, "127.0.0.1:1")
    for site in (hub, far, near):
        bench.run("-i", site, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
        bench.run("-i", site, "update", "start")
    for site in (far, near):
        for instance, peer in ((hub, site), (site, hub)):
            port = bench.status_file(peer, "receiver")["facts"]["listen"].rpartition(":")[2]
            bench.run("-i", instance, "peer", "add", peer.name, f"127.0.0.1:{port}", "--replace")
            bench.run("-i", instance, "source", "start", "--peer", peer.name)
    for site in (far, near):
        wait_for(partial(are_level, hub, site), f"{site.name} and the hub know each other", look_s=0.2)
        bench.run("-i", hub, "partition", "give", site.name, site.name)
    for site in (far, near):
        wait_for(partial(are_level, hub, site), f"{site.name} and the hub know who writes what", look_s=0.2)
    return hub, far, near


def write_row(connection: Any, table: str, number: int) -> None:
    """One transaction."""
    connection.execute(f"INSERT INTO {table} (id, value) VALUES (?, ?)", (number, value(number, 0, VALUE_BYTES)))
    connection.commit()


def measure(bench: Bench, directory: Path, count: int) -> tuple[list[float], float]:
    """Milliseconds of each of near's, and transactions a second of far's backlog."""
    hub, far, near = make_star(bench, directory)
    bench.run("-i", far, "source", "stop", "--peer", hub.name)
    with closing(replicate.connect(far)) as connection:
        for number in range(1, count + 1):
            write_row(connection, "far", number)
    database = apsw.Connection(str(directory / "app.db"), flags=apsw.SQLITE_OPEN_READONLY)
    database.set_busy_timeout(5000)

    def last(table: str) -> int:
        return int(database.execute(f"SELECT coalesce(max(id), 0) FROM {table}").get)

    taken: list[float] = []
    with closing(database), closing(replicate.connect(near)) as connection:
        begun = time.perf_counter()
        bench.run("-i", far, "source", "start", "--peer", hub.name)
        wait_for(lambda: last("far") > 0, "the hub has applied something", look_s=LOOK_S)
        while last("far") < count or not taken:
            write_row(connection, "near", len(taken) + 1)
            returned = time.perf_counter()
            visible = wait_for(lambda: last("near") > len(taken), "near's is there", look_s=LOOK_S)
            taken.append((visible - returned) * 1e3)
            time.sleep(PAUSE_S)
        return taken, count / (time.perf_counter() - begun)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3, help="of each checkout")
    parser.add_argument("--against", type=Path, help="another checkout, whose daemons are measured in turns with ours")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    codes = [ROOT, *([arguments.against] if arguments.against else [])]
    facts = machine()
    taken: dict[Path, list[float]] = {code: [] for code in codes}
    rates: dict[Path, list[float]] = {code: [] for code in codes}
    for _ in range(arguments.rounds):
        for code in codes:
            with tempfile.TemporaryDirectory(prefix="bench-hub-", dir=arguments.directory) as directory:
                bench = Bench(Path(directory), settings=SETTINGS, secondary_settings=SETTINGS)
                bench.code = code
                try:
                    found, rate = measure(bench, Path(directory), arguments.transactions)
                finally:
                    bench.close()
            taken[code] += found
            rates[code].append(rate)
    line = report.line(
        "hub",
        unit="ms",
        figure={
            name_of(code): {
                "visible": spread(taken[code]),
                "count": len(taken[code]),
                "backlog_per_s": round(statistics.median(rates[code])),
            }
            for code in codes
        },
        settings={"transactions": arguments.transactions, "rounds": arguments.rounds, "pause_s": PAUSE_S},
        facts=facts,
    )
    report.say([line], as_table=arguments.table)


if __name__ == "__main__":
    main()
