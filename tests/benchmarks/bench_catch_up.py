"""Catching up: transactions wait in the primary's journal, then the secondary connects; how fast are they applied?

Run: python -m tests.benchmarks.bench_catch_up [--transactions N] [--kind KIND] [--rounds N] [--against CHECKOUT] …

Real processes, real TCP over loopback, values of 100 bytes. Kinds: insert; update (by key, in random order, of a table
that was seeded); mixed (of ten: five inserts, four updates, one delete); ten (inserts, ten rows a transaction); one
(a single transaction of N rows). The journal is written once, through `replicate.connect()`; every round has a
secondary of its own, seeded before anything was written. `--against` runs the daemons of another checkout in turns
with ours, over the same journal: a checkout whose files have another format ends there, and says so. (Of a work tree in
which others write, measure a copy.)

Prints one JSON line for each kind: transactions a second (rows, for `ten` and `one`) until applied **and durable**,
from the first one applied and from the moment `source start` was called (which includes the start of two Python
processes); CPU microseconds a transaction of each daemon (the source's own start included); resident memory of each
beyond the mapped pools. Nothing is asserted.

`--peers postgresql` measures logical replication of PostgreSQL (peer_postgresql.py) in the same run, in turns with
ours, for the kinds insert, update and one; its figure begins when the subscription is enabled, and is compared with
our `from_start`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import replicate
from replicate.errors import NotFoundError, TryAgainError
from replicate.instance import Instance
from replicate.pool.receive_pool import ReceivePool
from tests.benchmarks import peer_postgresql
from tests.benchmarks.street_bench import ROOT, Bench, commit_of, machine, make_database, value, wait_for

KINDS: Final = ("insert", "update", "mixed", "ten", "one")
VALUE_BYTES: Final = 100
PEER_KINDS: Final = ("insert", "update", "one")
DAEMONS: Final = ("source", "receiver", "update")
WATCH_S: Final = 0.02
"""How often the daemons' memory is looked at."""


def statements(kind: str, count: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The rows to write, in order; the same for the same arguments."""
    dice = random.Random(6)
    insert = "INSERT INTO item (id, value) VALUES (?, ?)"
    if kind == "update":
        keys = list(range(1, count + 1))
        dice.shuffle(keys)
        for number in keys:
            yield "UPDATE item SET value = ? WHERE id = ?", (value(number, 1, VALUE_BYTES), number)
        return
    if kind != "mixed":
        for number in range(1, count + 1):
            yield insert, (number, value(number, 0, VALUE_BYTES))
        return
    last, deleted = 0, 0
    for step in range(count):
        place = step % 10
        if place % 2 == 0:
            last += 1
            yield insert, (last, value(last, 0, VALUE_BYTES))
        elif place == 9:
            deleted += 1
            yield "DELETE FROM item WHERE id = ?", (deleted,)
        else:
            number = dice.randint(deleted + 1, last)
            yield "UPDATE item SET value = ? WHERE id = ?", (value(number, step, VALUE_BYTES), number)


def write(instance: Path, kind: str, count: int) -> int:
    """Commit the backlog; the primary's last seqno."""
    each = {"ten": 10, "one": count}.get(kind, 1)
    connection = replicate.connect(instance)
    waiting = 0
    for sql, parameters in statements(kind, count):
        connection.execute(sql, parameters)
        waiting += 1
        if waiting == each:
            connection.commit()
            waiting = 0
    connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return int(last)


def attach(instance: Path) -> ReceivePool:
    """The receive pool of a Receiver Server that has just been started."""
    uuid = Instance.open(instance).content.uuid
    while True:
        try:
            return ReceivePool.attach(uuid)
        except (NotFoundError, TryAgainError):
            time.sleep(0.01)


def catch_up(bench: Bench, instance: Path, last_seqno: int, count: int) -> dict[str, Any]:
    """One round: start the three daemons, wait until everything is applied and durable, stop them."""
    bench.start_receiver(instance)
    bench.run("-i", instance, "update", "start")
    pool = attach(instance)
    first_seqno = pool.applied_seqno
    at = {"receiver": instance, "update": instance}
    before = {name: bench.cost(place, name, bench.pid(place, name)).cpu_s for name, place in at.items()}
    begun = time.perf_counter()
    bench.run("-i", bench.primary, "source", "start", "--peer", instance.name)
    places = {"source": (bench.primary, f"source-{instance.name}")}
    places |= {name: (place, name) for name, place in at.items()}
    pids = {name: bench.pid(*place) for name, place in places.items()}
    most = dict.fromkeys(DAEMONS, 0)
    looked = first = 0.0
    applied_then = first_seqno
    backlog_before = last_seqno - first_seqno

    def reached() -> bool:
        nonlocal looked, first, applied_then
        now = time.perf_counter()
        if not first and pool.applied_seqno > first_seqno:
            first, applied_then = now, pool.applied_seqno
        if now > looked + WATCH_S:
            looked = now
            for name, pid in pids.items():
                most[name] = max(most[name], bench.cost(*places[name], pid).anonymous_bytes)
        return pool.durable_seqno >= last_seqno

    ended = wait_for(reached, f"{instance.name} has applied {last_seqno}")
    cpu = {name: bench.cost(*places[name], pid).cpu_s - before.get(name, 0.0) for name, pid in pids.items()}
    pool.close()
    bench.run("-i", bench.primary, "source", "stop", "--peer", instance.name)
    bench.run("-i", instance, "receiver", "stop")
    bench.run("-i", instance, "update", "stop")
    # Of a single transaction there is no first one before the last.
    since_first = (last_seqno - applied_then) / (ended - first) if last_seqno > applied_then else 0.0
    return {
        "from_first": since_first * count / backlog_before,
        "from_start": count / (ended - begun),
        "cpu_us": {name: seconds / count * 1e6 for name, seconds in cpu.items()},
        "memory_mib": {name: size / 2**20 for name, size in most.items()},
    }


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rounds."""

    def median(numbers: list[float], digits: int) -> float:
        return round(statistics.median(numbers), digits)

    cpu = {name: median([one["cpu_us"][name] for one in rounds], 2) for name in DAEMONS}
    return {
        "from_first": int(median([one["from_first"] for one in rounds], 0)),
        "from_start": int(median([one["from_start"] for one in rounds], 0)),
        "all_from_first": [int(one["from_first"]) for one in rounds],
        "cpu_us": cpu,
        "cpu_us_chain": round(sum(cpu.values()), 2),
        "memory_mib": {name: median([one["memory_mib"][name] for one in rounds], 1) for name in DAEMONS},
    }


def measure(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds of one kind, each checkout in its turn."""
    count = arguments.transactions
    codes = [ROOT, *([arguments.against] if arguments.against else [])]
    if arguments.only_against:
        codes = [arguments.against]
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="bench-catch-up-", dir=arguments.directory) as name:
        directory = Path(name)
        database = directory / "app.db"
        make_database(database, count if kind == "update" else 0, VALUE_BYTES)
        bench = Bench(directory, settings='[journal]\ndurability = "off"\n', secondary_settings=arguments.settings)
        try:
            bench.make_primary(database)
            secondaries = [bench.add_secondary(f"s{number}") for number in range(arguments.rounds * len(codes))]
            begun = time.perf_counter()
            last_seqno = write(bench.primary, kind, count)
            wrote_s = time.perf_counter() - begun
            found: dict[Path, list[dict[str, Any]]] = {code: [] for code in codes}
            peers: list[float] = []
            for place, secondary in enumerate(secondaries):
                bench.code = codes[place % len(codes)]
                found[bench.code].append(catch_up(bench, secondary, last_seqno, count))
                if "postgresql" in arguments.peers and kind in PEER_KINDS and place % len(codes) == 0:
                    peers.append(peer_postgresql.catch_up(kind, count, VALUE_BYTES)["from_start"])
                if arguments.compare:
                    bench.run("-i", bench.primary, "compare", "--with", secondary)
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            bench.close()
    figure = {commit_of(code): middle(rounds) for code, rounds in found.items()}
    compared: dict[str, Any] = {}
    if peers:
        ours = figure[commit_of(codes[0])]["from_start"]
        theirs = statistics.median(peers)
        compared = {"postgresql": {"from_start": int(theirs), "all": [int(one) for one in peers]}}
        compared |= {"ratio_to_postgresql": round(ours / theirs, 2), "postgresql_settings": peer_postgresql.SETTINGS}
    return {
        "benchmark": "catch_up",
        "kind": kind,
        **compared,
        "unit": "rows/s" if kind in ("ten", "one") else "transactions/s",
        "figure": figure,
        "count": count,
        "rounds": arguments.rounds,
        "written_per_s": int(count / wrote_s),
        "settings": {"value_bytes": VALUE_BYTES, "primary": "journal.durability=off", "secondary": arguments.settings},
        **facts,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000, help="rows, where a transaction has several")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="insert")
    parser.add_argument("--rounds", type=int, default=5, help="of each checkout")
    parser.add_argument("--against", type=Path, help="another checkout, whose daemons are measured in turns with ours")
    parser.add_argument("--only-against", action="store_true", help="measure that one only")
    parser.add_argument("--peers", nargs="*", choices=("postgresql",), default=[], help="measure these too, in turns")
    parser.add_argument("--settings", default="", help="replicate.toml of the secondaries")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    parser.add_argument("--compare", action="store_true", help="after each round, compare the two databases")
    arguments = parser.parse_args()
    for kind in KINDS if arguments.kind == "all" else (arguments.kind,):
        print(json.dumps(measure(kind, arguments)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(ROOT))
    main()
