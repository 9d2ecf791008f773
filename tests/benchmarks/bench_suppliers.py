"""What several suppliers cost: a backlog of inserts, caught up by a secondary, by a supplier of which the other writes
alone, and by two suppliers that have both written while their line was down: each its own table; both one table, other
rows; both one table, the same rows.

Run: python -m tests.benchmarks.bench_suppliers [--transactions N] [--rounds N] [--cases CASE…] [--peers postgresql]
     [--two-regions] [--table]

Real processes, real TCP over loopback, values of 100 bytes. `secondary` is one primary and its secondary, and is what
the others are compared with. In each round every case has its turn, on a street of its own.

Prints a JSON line for each case, or with `--table` a table: transactions a second until all are applied, of both sites
together where both have written; from the first one applied (on each site), and from the start of the Source Servers;
and CPU of the Update Processes. `--cases` names some of them. Each ratio is of two figures of one kind. A supplier of
which the other one writes takes a backlog in few batches: compare it from the start, with a backlog beside which
starting counts little. `--two-regions` has each case of suppliers take another turn in which they have two regions:
half of the transactions change a row in the second one. Nothing is asserted. `--peers postgresql` has two nodes of
PostgreSQL that both write take their turns (peer_pglogical.py); their figures are from the start, and so is that ratio.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import replicate
from replicate.bench.catch_up import VALUE_BYTES, catch_up
from replicate.bench.street import Bench, attach, value, wait_for
from replicate.compare.ruv import compare_ruvs, ruv_of
from replicate.instance.instance import Instance
from tests.benchmarks import peer_pglogical, report
from tests.benchmarks.street_bench import machine, make_database

LOOK_S: Final = 0.01
SETTINGS: Final = '[journal]\ndurability = "off"\n'
CASES: Final = ("secondary", "one writes", "both write", "one table", "same rows")
TWO: Final = ", two regions"
"""What the name of a case ends with."""
STOCK: Final = "stock"
"""The second region."""


class Rates(NamedTuple):
    """Transactions a second. `from_first`: from the first one that was seen to be applied; 0 where all were by then, as
    where one batch has them all. `update_cpu_us`: of the Update Processes, a transaction."""

    from_first: float
    from_start: float
    update_cpu_us: float


def write(instance: Path, table: str, count: int, first: int = 1, *, in_both: bool = False) -> int:
    """One row a transaction, from the key `first` on; the last number. `in_both`: in the second region by turns."""
    with closing(replicate.connect(instance)) as connection:
        if in_both:
            connection.attach(STOCK)
        for number in range(first, first + count):
            place = f"{STOCK}.{table}" if in_both and number % 2 else table
            connection.execute(
                f"INSERT INTO {place} (id, value) VALUES (?, ?)", (number, value(number, 0, VALUE_BYTES))
            )
            connection.commit()
        return int(connection.last_seqno or 0)


def suppliers(bench: Bench, directory: Path, *, two_regions: bool) -> tuple[Path, Path]:
    """Both, level, the second one the writer of its own table, or tables."""
    make_database(directory / "app.db", 0, VALUE_BYTES)
    bench.make_primary(directory / "app.db")
    first = bench.primary
    if two_regions:
        make_database(directory / f"{STOCK}.db", 0, VALUE_BYTES)
        bench.run("-i", first, "region", "add", directory / f"{STOCK}.db", "--name", STOCK)
    bench.run("-i", first, "partition", "create", "other")
    for region in ("main", STOCK)[: 1 + two_regions]:
        with closing(replicate.connect(first, region)) as connection:
            connection.execute("CREATE TABLE other (id INTEGER PRIMARY KEY, value TEXT)")
            connection.commit()
        bench.run("-i", first, "partition", "assign", "other", f"{region}.other")
    bench.run("-i", first, "instance", "convert", "--role", "supplier")
    second = bench.add_secondary("second")
    bench.run("-i", second, "instance", "convert", "--role", "supplier")
    bench.run("-i", second, "peer", "add", first.name, "127.0.0.1:1")
    return first, second


def receive(bench: Bench, first: Path, second: Path) -> None:
    """Start what takes the streams, on both sites."""
    for instance, peer in ((first, second), (second, first)):
        bench.run("-i", instance, "receiver", "start", "--no-update", "--listen", "127.0.0.1:0")
        port = bench.status_file(instance, "receiver")["facts"]["listen"].rpartition(":")[2]
        bench.run("-i", peer, "peer", "add", instance.name, f"127.0.0.1:{port}", "--replace")
        bench.run("-i", instance, "update", "start")


def send(bench: Bench, first: Path, second: Path) -> None:
    """Let the streams go."""
    with ThreadPoolExecutor(2) as beside:
        for instance, peer in ((first, second), (second, first)):
            beside.submit(bench.run, "-i", instance, "source", "start", "--peer", peer.name)


def cut(bench: Bench, first: Path, second: Path) -> None:
    """Stop them."""
    for instance, peer in ((first, second), (second, first)):
        bench.run("-i", instance, "source", "stop", "--peer", peer.name)
        bench.run("-i", instance, "receiver", "stop")
        bench.run("-i", instance, "update", "stop")


def are_level(first: Path, second: Path) -> bool:
    """Whether neither has anything to send."""
    both = compare_ruvs(ruv_of(Instance.open(first)), ruv_of(Instance.open(second)))
    return all(one.ours == one.theirs for one in both.origins)


def measure_case(named: str, count: int, directory: str | None) -> Rates:
    """What a case gives."""
    case, two_regions = named.removesuffix(TWO), named.endswith(TWO)
    with tempfile.TemporaryDirectory(prefix="bench-suppliers-", dir=directory) as name:
        bench = Bench(Path(name), settings=SETTINGS, secondary_settings=SETTINGS)
        try:
            if case == "secondary":
                make_database(Path(name) / "app.db", 0, VALUE_BYTES)
                bench.make_primary(Path(name) / "app.db")
                second = bench.add_secondary("second")
                return _alone(bench, second, count)
            first, second = suppliers(bench, Path(name), two_regions=two_regions)
            if case == "one writes":
                return _alone(bench, second, count, in_both=two_regions)
            return _both_write(bench, first, second, count, case, in_both=two_regions)
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            bench.close()


def _alone(bench: Bench, second: Path, count: int, *, in_both: bool = False) -> Rates:
    done = catch_up(bench, second, write(bench.primary, "item", count, in_both=in_both), count)
    return Rates(float(done["from_first"]), float(done["from_start"]), float(done["cpu_us"]["update"]))


def _both_write(bench: Bench, first: Path, second: Path, count: int, case: str, *, in_both: bool) -> Rates:
    """Both have written while they were cut: of both sites together, from the moment on when each has applied one. (The
    streams do not begin together: until then one site applies beside the other's start.)"""
    receive(bench, first, second)
    send(bench, first, second)
    wait_for(partial(are_level, first, second), "both know each other", look_s=0.2)
    if case == "both write":
        bench.run("-i", first, "partition", "give", "other", second.name)
    else:
        bench.run("-i", first, "partition", "share", "DEFAULT", second.name, "--keys-chosen")
    wait_for(partial(are_level, first, second), "both know who writes what", look_s=0.2)
    cut(bench, first, second)
    here = write(first, "item", count, in_both=in_both)
    if case == "both write":
        there = write(second, "other", count, in_both=in_both)
    else:
        there = write(second, "item", count, 1 if case == "same rows" else count + 1, in_both=in_both)
    receive(bench, first, second)
    pids = {instance: bench.pid(instance, "update") for instance in (first, second)}
    before_s = sum(bench.cost(instance, "update", pid).cpu_s for instance, pid in pids.items())
    with closing(attach(first)) as one, closing(attach(second)) as other, ThreadPoolExecutor(1) as beside:
        wanted = here + there + 2 * count
        begun, starting = time.perf_counter(), beside.submit(send, bench, first, second)
        wait_for(lambda: one.applied_seqno > here, "the first has applied something", look_s=LOOK_S)
        wait_for(lambda: other.applied_seqno > there, "and the second", look_s=LOOK_S)
        since, applied = time.perf_counter(), one.applied_seqno + other.applied_seqno
        ended = wait_for(lambda: one.applied_seqno + other.applied_seqno >= wanted, "both have all", look_s=LOOK_S)
        starting.result()
    used_s = sum(bench.cost(instance, "update", pid).cpu_s for instance, pid in pids.items()) - before_s
    cut(bench, first, second)
    from_first = (wanted - applied) / (ended - since) if applied < wanted else 0.0
    return Rates(from_first, 2 * count / (ended - begun), used_s / (2 * count) * 1e6)


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A line for each case."""
    facts, ends = machine(), ("", TWO) if arguments.two_regions else ("",)
    cases = (CASES[0], *(f"{case}{end}" for case in arguments.cases for end in ends))
    found: dict[str, list[Rates]] = {case: [] for case in cases}
    theirs: dict[str, list[float]] = {case: [] for case in arguments.cases if arguments.peers}
    for _ in range(arguments.rounds):
        for case in cases:
            found[case].append(measure_case(case, arguments.transactions, arguments.directory))
            if case in theirs:
                theirs[case].append(peer_pglogical.catch_up(case, arguments.transactions, VALUE_BYTES))
    middle = {case: Rates(*map(statistics.median, zip(*rates, strict=True))) for case, rates in found.items()}
    peer = {case: statistics.median(rates) for case, rates in theirs.items()}
    return [
        report.line(
            "suppliers",
            unit="transactions/s",
            figure={what: round(rate, 1) for what, rate in middle[case]._asdict().items()},
            settings={"count": arguments.transactions, "rounds": arguments.rounds},
            facts=facts,
            case=case,
            ratio_to_secondary=_ratio(middle[case], middle[CASES[0]]),
            **(
                {"ratio_to_one_region": _ratio(middle[case], middle[case.removesuffix(TWO)])}
                if case.endswith(TWO)
                else {}
            ),
            **(_beside(middle[case].from_start, peer[case]) if case in peer else {}),
        )
        for case in cases
    ]


def _ratio(ours: Rates, base: Rates) -> dict[str, float]:
    pairs = zip(ours._asdict().items(), base, strict=True)
    return {what: round(figure / one, 2) for (what, figure), one in pairs if figure and one}


def _beside(ours: float, theirs: float) -> dict[str, Any]:
    return {
        "postgresql": {"from_start": round(theirs, 1)},
        "ratio_to_postgresql": round(ours / theirs, 2),
        "postgresql_settings": peer_pglogical.SETTINGS,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="*", choices=CASES[1:], default=CASES[1:], help="beside a secondary")
    parser.add_argument("--peers", nargs="*", choices=("postgresql",), default=[], help="measure it too, in turns")
    parser.add_argument("--two-regions", action="store_true", help="measure each case with two regions, too")
    report.add_table(parser)
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    arguments = parser.parse_args()
    report.say(measure(arguments), as_table=arguments.table)


if __name__ == "__main__":
    main()
