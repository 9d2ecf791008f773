"""`replicate bench`: commit cost, catch-up and latency of this host, on two throw-away instances.

Guarantees: everything is made below one new directory of the disk that is asked about, and is gone when `run_bench`
returns or raises, daemons and shared memory included; measuring takes about the time that was given, and setting up
some ten seconds more. Leaves to others: how figures are shown.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from replicate import __version__
from replicate.bench.catch_up import VALUE_BYTES, catch_up, write
from replicate.bench.commits import SYNCHRONOUS, commit_cost
from replicate.bench.latency import flushes, latency, spread
from replicate.bench.street import Bench, machine, make_database

ROUNDS: Final = 3
PAUSE_S: Final = 0.02
"""Mean time between two commits whose latency is taken."""
TRANSACTIONS_MAX: Final = 1_000_000


class BenchFigure(Struct, frozen=True):
    """One measured number. `what` is stable; `beside`: what it is to be read beside, or ""."""

    what: str
    figure: float
    unit: str
    beside: str = ""


class Result(Struct, frozen=True):
    """What one run has found."""

    benchmark: str
    version: str
    figures: list[BenchFigure]
    settings: dict[str, Any]
    machine: dict[str, Any]
    took_s: float


def run_bench(directory: Path, *, seconds: float, told: Callable[[str], None] = lambda _: None) -> Result:
    """Measure on the file system of `directory`, which must be there; `told` hears what is being done.

    Raises OSError where nothing can be written, InternalError with the words of a command that fails.
    """
    begun = time.monotonic()
    facts = machine()
    figures: list[BenchFigure] = []
    with tempfile.TemporaryDirectory(prefix="replicate-bench-", dir=directory) as name:
        below = Path(name)
        for policy in SYNCHRONOUS:
            figures += _commits(below / policy, policy, seconds / 5, told)
        figures += _street(below / "street", seconds * 3 / 5, told)
    settings = {"value_bytes": VALUE_BYTES, "seconds": seconds, "directory": str(directory)}
    return Result("host", __version__, figures, settings, facts, round(time.monotonic() - begun, 1))


def _commits(directory: Path, policy: str, seconds: float, told: Callable[[str], None]) -> list[BenchFigure]:
    told(f"commit cost, journal.durability = {policy}")
    directory.mkdir()
    database = directory / "app.db"
    make_database(database, 0, 0)
    bench = Bench(directory, settings=f'[journal]\ndurability = "{policy}"\n')
    try:
        bench.make_primary(database)
        ours, plain, ratio = commit_cost(bench.primary, directory, policy, rounds=ROUNDS, round_s=seconds / ROUNDS / 2)
    finally:
        bench.close()
    beside = f"plain SQLite, synchronous = {SYNCHRONOUS[policy]}: {plain:,.0f}"
    return [
        BenchFigure(f"commit.{policy}", round(ours), "transactions/s", beside),
        BenchFigure(f"commit.{policy}.ratio", round(ratio, 2), "of plain SQLite"),
    ]


def _street(directory: Path, seconds: float, told: Callable[[str], None]) -> list[BenchFigure]:
    directory.mkdir()
    database = directory / "app.db"
    make_database(database, 0, 0)
    bench = Bench(directory, settings='[journal]\ndurability = "interval"\n')
    try:
        told("catch-up: the backlog is written")
        bench.make_primary(database)
        secondary = bench.add_secondary("secondary")
        last, rows = write(bench.primary, "insert", TRANSACTIONS_MAX, until_s=time.monotonic() + seconds / 3)
        told(f"catch-up: {rows:,} transactions wait")
        done = catch_up(bench, secondary, last, rows)
        told("latency")
        (bench.primary / "replicate.toml").write_text("")  # the default: durable
        found = latency(bench, secondary, max(50, int(seconds / 3 / PAUSE_S)), PAUSE_S)
        flush = spread(flushes(directory, 100))
    finally:
        bench.close()
    rate = done["from_first"] or done["from_start"]
    since = "first applied" if done["from_first"] else "start of the Source Server"
    cpu = sum(done["cpu_us"].values())
    visible, commit = spread(found["visible"]), spread(found["commit"])
    return [
        BenchFigure("catch_up", round(rate), "transactions/s", f"{rows:,} waited, from the {since}"),
        BenchFigure("catch_up.cpu", round(cpu, 2), "µs/transaction", "all three daemons, their start included"),
        BenchFigure("latency.median", visible["median"], "ms", "from the commit's return to a reader on the secondary"),
        BenchFigure("latency.p99", visible["p99"], "ms"),
        BenchFigure("commit.latency.median", commit["median"], "ms", f"a bare fdatasync: {flush['median']} ms"),
    ]
