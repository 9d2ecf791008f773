"""Latency: a commit on the primary has returned; when can a reader on the secondary see its row? Otherwise idle.

Run: python -m tests.benchmarks.bench_latency [--commits N] [--pause SECONDS] [--against CHECKOUT] [--rounds N]

Real daemons, TCP over loopback, one writer through `replicate.connect()`, one reader: plain SQLite in a process of its
own, which looks every LOOK_S. Both read the machine's monotonic clock. Prints one JSON line: milliseconds from the
return of commit() to the row's being visible (below 0: visible even before), median, 90 %, 99 % and worst; the same of
commit() itself, most of which is the flush of the primary's disk under the default policy; and of a bare fdatasync
there. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import replicate
from tests.benchmarks.street_bench import ROOT, Bench, commit_of, machine, make_database, value

LOOK_S: Final = 0.0001

READER: Final = """
import sqlite3, sys, time
path, last, look_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
seen, times = 0, []
print("ready", flush=True)
while seen < last:
    found = connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()[0]
    if found > seen:
        now = time.monotonic_ns()
        times += [(number, now) for number in range(seen + 1, found + 1)]
        seen = found
    else:
        time.sleep(look_s)
for number, at in times:
    print(number, at)
"""


def spread(milliseconds: list[float]) -> dict[str, float]:
    """Median, 90 %, 99 %, worst."""
    ordered = sorted(milliseconds)

    def at(part: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)

    return {"median": at(0.5), "p90": at(0.9), "p99": at(0.99), "worst": at(1.0)}


def flushes(directory: Path, count: int) -> list[float]:
    """Milliseconds of a small overwrite and its fdatasync."""
    taken = []
    fd = os.open(directory / "flush", os.O_RDWR | os.O_CREAT, 0o600)
    os.pwrite(fd, bytes(1 << 20), 0)
    os.fsync(fd)
    for number in range(count):
        begun = time.perf_counter()
        os.pwrite(fd, b"x" * 300, number * 300)
        os.fdatasync(fd)
        taken.append((time.perf_counter() - begun) * 1e3)
        time.sleep(0.005)
    os.close(fd)
    return taken


def run(bench: Bench, name: str, count: int, pause_s: float) -> dict[str, Any]:
    """One round with a secondary of its own."""
    instance = bench.add_secondary(name)
    bench.start_receiver(instance)
    bench.run("-i", instance, "update", "start")
    bench.run("-i", bench.primary, "source", "start", "--peer", name)
    connection = replicate.connect(bench.primary)
    last = connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()[0]
    path = str(instance / "regions" / "main.db")
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, path, str(last + count), str(LOOK_S)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    try:
        reader.stdout.readline()
        dice = random.Random(3)
        time.sleep(2.0)  # the stream runs, nothing is left to do
        returned, took = {}, []
        for number in range(last + 1, last + count + 1):
            begun = time.monotonic_ns()
            connection.execute("INSERT INTO item VALUES (?, ?)", (number, value(number, 0, 100)))
            connection.commit()
            returned[number] = time.monotonic_ns()
            took.append((returned[number] - begun) / 1e6)
            time.sleep(pause_s * (0.5 + dice.random()))
        connection.close()
        lines = reader.communicate(timeout=60)[0].splitlines()
    finally:
        reader.kill()
        reader.wait()
    visible = {int(number): int(at) for number, at in (line.split() for line in lines)}
    late = [(at - returned[number]) / 1e6 for number, at in visible.items() if number in returned]
    bench.run("-i", bench.primary, "source", "stop", "--peer", name)
    bench.run("-i", instance, "receiver", "stop")
    bench.run("-i", instance, "update", "stop")
    return {"visible": late, "commit": took}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=500, help="of each round")
    parser.add_argument("--pause", type=float, default=0.02, help="mean seconds between two commits")
    parser.add_argument("--rounds", type=int, default=3, help="of each checkout")
    parser.add_argument("--against", type=Path, help="another checkout, whose daemons are measured in turns with ours")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    arguments = parser.parse_args()
    codes = [ROOT, *([arguments.against] if arguments.against else [])]
    facts = machine()
    found: dict[Path, dict[str, list[float]]] = {code: {"visible": [], "commit": []} for code in codes}
    with tempfile.TemporaryDirectory(prefix="bench-latency-", dir=arguments.directory) as directory:
        database = Path(directory) / "app.db"
        make_database(database, 0, 0)
        bench = Bench(Path(directory))
        try:
            bench.make_primary(database)
            for number in range(arguments.rounds * len(codes)):
                bench.code = codes[number % len(codes)]
                for what, taken in run(bench, f"s{number}", arguments.commits, arguments.pause).items():
                    found[bench.code][what] += taken
        finally:
            bench.close()
        flush = spread(flushes(Path(directory), 200))
    figure = {
        commit_of(code): {what: spread(taken) for what, taken in sorted(one.items())} for code, one in found.items()
    }
    line = {
        "benchmark": "latency",
        "unit": "ms",
        "figure": figure,
        "fdatasync": flush,
        "commits": arguments.commits,
        "rounds": arguments.rounds,
        "pause_s": arguments.pause,
        "reader_looks_every_s": LOOK_S,
        "settings": "defaults",
        **facts,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
