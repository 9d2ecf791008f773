"""Flat out through a filter: batches of single-row transactions go in, what comes out is counted; nothing else runs.

Run: python -m tests.benchmarks.bench_filter [--transactions N] [--rounds N]

Each filter in its turn: `cat`, a Python program that reads and writes each line, the chapter's kind of program that
changes each row, and functions that do the same. Transactions insert or update one row of three columns, and come in
batches as a Source Server sends them. (Without a filter nothing of this runs: the batches pass as they are.)

Prints a JSON line for each filter: transactions a second, the median of the rounds, and CPU microseconds a transaction
of this process, which is the server's part. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from replicate.filters.restating import StreamItem
from replicate.filters.stream import FilteredStream
from replicate.filters.switch import FilterSwitch
from replicate.journal.record import FrameBatch, catalogue_payload, pack_frame
from replicate.model.transaction import Catalogue, Kind
from replicate.settings.table import ReceiverConfig
from tests.benchmarks import report
from tests.benchmarks.street_bench import machine
from tests.harness.frames import Writer
from tests.harness.servers import ListLog
from tests.harness.talking import INSERT, PERSON, UPDATE, known

BATCH: Final = 2000
ECHO: Final = """
import sys
read, write = sys.stdin.buffer, sys.stdout.buffer
for line in read:
    write.write(line)
    if line.startswith((b'{"end"', b'{"hello"')):
        write.flush()
"""
CHANGED: Final = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    if "after" in event:
        event["after"]["name"] = event["after"]["name"].upper()
    print(json.dumps(event), flush="end" in event or "hello" in event)
"""


def batches(count: int) -> list[FrameBatch]:
    """So many transactions of one row."""
    writer = Writer()
    made = []
    for first in range(1, count + 1, BATCH):
        frames = [
            writer.frame([INSERT, PERSON.table_id, 0, [seqno, f"person {seqno}", 1.5]])
            if seqno % 2
            else writer.frame([UPDATE, PERSON.table_id, 2, [f"Person {seqno}", seqno, f"person {seqno}", 1.5]])
            for seqno in range(first, min(first + BATCH, count + 1))
        ]
        made.append(FrameBatch(first, first + len(frames) - 1, len(frames), b"".join(frames)))
    return made


async def through(command: str, given: list[FrameBatch], count: int) -> tuple[float, float]:
    """Transactions a second from the first that is given to the last that comes out, and our CPU for each."""
    done = trio.Event()
    out = 0

    def came(item: StreamItem) -> None:
        nonlocal out
        out += item.count if isinstance(item, FrameBatch) else 0
        if out >= count:
            done.set()

    payload, elements = catalogue_payload(Catalogue(known(PERSON)))
    stream = FilteredStream(FilterSwitch("receiver", command), ReceiverConfig(), known(PERSON), ListLog(), came)
    stream.begin(pack_frame(Kind.CATALOGUE, 1, 0, 0, 0, 0, 0, payload, elements)[0], "receiver", trio.current_time())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run)
        for item in given[:1]:
            stream.take(item)
        await stream.room(0)  # the program is there
        begun, used = time.perf_counter(), time.process_time()
        for item in given[1:]:
            await stream.room(4 << 20)
            stream.take(item)
        await done.wait()
        timed, cpu = time.perf_counter() - begun, time.process_time() - used
        nursery.cancel_scope.cancel()
    timed_count = count - given[0].count
    return timed_count / timed, cpu / timed_count * 1e6


def measure(arguments: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each filter."""
    given = batches(arguments.transactions)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        for name, text in {"echo.py": ECHO, "changed.py": CHANGED}.items():
            (Path(directory) / name).write_text(text)
        filters = {
            "cat": "cat",
            "program, same": shlex.join([sys.executable, f"{directory}/echo.py"]),
            "program, changed": shlex.join([sys.executable, f"{directory}/changed.py"]),
            "function, same": "tests.harness.filters:same",
            "function, changed": "tests.harness.filters:loud_names",
        }
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(arguments.rounds):
            for name, command in filters.items():
                found.setdefault(name, []).append(trio.run(through, command, given, arguments.transactions))
    facts = machine()
    for what, rounds in found.items():
        rate, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        figure = {"per_s": round(rate), "server_cpu_us": round(cpu, 2)}
        settings = {"transactions": arguments.transactions, "rounds": arguments.rounds}
        yield report.line("filter", unit=report.IN_THE_NAMES, figure=figure, settings=settings, facts=facts, what=what)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the programs are written (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    report.say(measure(arguments), as_table=arguments.table)


if __name__ == "__main__":
    main()
