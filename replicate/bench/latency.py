"""Latency: a commit on the primary has returned; when can a reader on the secondary see its row? Otherwise idle.

Guarantees: the reader is plain SQLite in a process of its own, which looks every LOOK_S; writer and reader read one
clock, the machine's monotonic one. Leaves to others: how often it is measured, and beside what.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import replicate
from replicate.bench.street import Bench, value
from replicate.errors import InternalError

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


def latency(bench: Bench, instance: Path, count: int, pause_s: float) -> dict[str, list[float]]:
    """One round with that secondary, which is level: milliseconds of "commit", and from there to "visible"."""
    name = instance.name
    bench.start_receiver(instance)
    bench.run("-i", instance, "update", "start")
    bench.run("-i", bench.primary, "source", "start", "--peer", name)
    connection = replicate.connect(bench.primary)
    last = connection.execute("SELECT coalesce(max(id), 0) FROM item").fetchone()[0]
    path = str(instance / "regions" / "main.db")
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, path, str(last + count), str(LOOK_S)], stdout=subprocess.PIPE, text=True
    )
    if reader.stdout is None:
        raise InternalError("the reader has no output")
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
