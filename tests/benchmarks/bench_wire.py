"""Flat out on the wire: source to receiver with nobody applying, as a fraction of what bare bytes reach.

Run: python -m tests.benchmarks.bench_wire [--transactions N] [--rounds N] [--own-memory GIB] [--table] …

A backlog waits in the primary's journal files; the Receiver Server puts what comes into a receive pool that has room
for all of it, and no Update Process runs. In turns with that, as many bytes go from one process to another through a
loopback socket, in pieces of the source's batches. Ours with and without compression (`source.compression`).

Prints one JSON line: transactions and MB of journal frames a second (from the first received), CPU microseconds a
transaction of either daemon (the source's start included), the ratio to bare bytes. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from replicate.bench.catch_up import VALUE_BYTES, write
from replicate.bench.street import Bench, attach, machine, make_database, wait_for
from tests.benchmarks import report
from tests.benchmarks.own_memory import own_memory

COMPRESSIONS: Final = ("none", "zstd")
PIECE_BYTES: Final = 512 * 1024

TAKER: Final = """
import socket, sys
taken, buffer = 0, bytearray(1 << 20)
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as one:
    while count := one.recv_into(buffer):
        taken += count
    one.sendall(b"%d" % taken)
"""


def bare(size: int) -> float:
    """MB a second of bare bytes between two processes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        taker = subprocess.Popen([sys.executable, "-c", TAKER, str(listener.getsockname()[1])])
        connection, _ = listener.accept()
        with connection:
            piece = bytes(PIECE_BYTES)
            begun = time.perf_counter()
            for _ in range(size // PIECE_BYTES):
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            taken = int(connection.recv(64))
            seconds = time.perf_counter() - begun
    taker.wait()
    return taken / seconds / 1e6


def ours(bench: Bench, secondary: Path, last: int, compression: str) -> dict[str, float]:
    """One round: start the source, wait until everything is received, stop both servers."""
    bench.start_receiver(secondary)
    pool = attach(secondary)
    first = pool.last_received_seqno
    pid = bench.pid(secondary, "receiver")
    before = bench.cost(secondary, "receiver", pid).cpu_s
    words = ["source", "start", "--peer", secondary.name, "--set", f"source.compression={compression}"]
    since = 0.0
    at = (first, 0)

    def received() -> bool:
        nonlocal since, at
        if not since and pool.last_received_seqno > first:
            since, at = time.perf_counter(), (pool.last_received_seqno, pool.used_bytes)
        return pool.last_received_seqno >= last

    with ThreadPoolExecutor(1) as beside:  # hundreds of thousands are there before this returns
        start = beside.submit(bench.run, "-i", bench.primary, *words)
        ended = wait_for(received, f"{last} transactions have been received")
        start.result()
    source = bench.pid(bench.primary, f"source-{secondary.name}")
    passed, size = last - at[0], pool.used_bytes - at[1]
    cpu = {
        "source": bench.cost(bench.primary, f"source-{secondary.name}", source).cpu_s,
        "receiver": bench.cost(secondary, "receiver", pid).cpu_s - before,
    }
    pool.close()
    bench.run("-i", bench.primary, "source", "stop", "--peer", secondary.name)
    bench.run("-i", secondary, "receiver", "stop")
    if passed < (last - first) // 2:
        raise RuntimeError(f"{last - at[0]} of {last - first} were left at the first look: take more --transactions")
    seconds = ended - since
    found = {"transactions_per_s": passed / seconds, "mb_per_s": size / seconds / 1e6}
    return found | {f"cpu_us_{daemon}": spent / (last - first) * 1e6 for daemon, spent in cpu.items()}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """All rounds."""
    facts = machine()
    count = arguments.transactions
    pool_bytes = max(64 << 20, count * 200 * 5 // 4)  # XOFF comes at 90 %
    with tempfile.TemporaryDirectory(prefix="bench-wire-", dir=arguments.directory) as name:
        database = Path(name) / "app.db"
        make_database(database, 0, 0)
        bench = Bench(
            Path(name), settings='[journal]\ndurability = "off"\n',
            secondary_settings=f"[receiver]\npool_bytes = {pool_bytes}\n",
        )  # fmt: skip
        found: dict[str, list[dict[str, float]]] = {one: [] for one in COMPRESSIONS}
        plain: list[float] = []
        try:
            bench.make_primary(database)
            names = [(one, f"{one}{number}") for number in range(arguments.rounds) for one in COMPRESSIONS]
            secondaries = [(one, bench.add_secondary(name)) for one, name in names]
            last, _ = write(bench.primary, "insert", count)
            for compression, secondary in secondaries:
                plain.append(bare(count * 200))
                found[compression].append(ours(bench, secondary, last, compression))
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            bench.close()
    figure: dict[str, Any] = {
        compression: {what: round(statistics.median(one[what] for one in rounds), 2) for what in rounds[0]}
        for compression, rounds in found.items()
    }
    figure["bare_mb_per_s"] = round(statistics.median(plain))
    figure["ratio"] = {
        compression: round(figure[compression]["mb_per_s"] / figure["bare_mb_per_s"], 3) for compression in COMPRESSIONS
    }
    return report.line(
        "wire",
        unit=report.IN_THE_NAMES,
        figure=figure,
        settings={
            "transactions": count,
            "rounds": arguments.rounds,
            "value_bytes": VALUE_BYTES,
            "pool_bytes": pool_bytes,
            "own_memory_gib": arguments.own_memory,
        },
        facts=facts,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    parser.add_argument("--own-memory", type=float, default=0.0, metavar="GIB", help="see own_memory.py")
    report.add_table(parser)
    arguments = parser.parse_args()
    with own_memory(arguments.own_memory):
        report.say([measure(arguments)], as_table=arguments.table)


if __name__ == "__main__":
    main()
