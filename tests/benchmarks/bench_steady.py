"""Steady state: writers at full speed; does the backlog grow, what do daemons cost in time and memory?

Run: python -m tests.benchmarks.bench_steady [--seconds N] [--writers N] [--policy POLICY] [--down TRANSACTIONS]
     [--table] …

Real daemons over loopback TCP. Writers are processes of their own with single-row transactions of 100 bytes (or, with
`--values`, others). Four times a second the backlog (committed and not applied) is looked at. With `--down` the
secondary is down first, for so many transactions, and the figures are those of the time until it is level.

Prints one JSON line: transactions committed a second; the backlog's median in the first and the last third, its most,
and the seconds until it is gone once the writers stop; CPU microseconds a transaction of the writers and of each
daemon; the most resident memory of each daemon beyond the mapped pools, in MiB. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from replicate.bench.catch_up import DAEMONS, write
from replicate.bench.street import Bench, attach, machine, make_database, wait_for
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.pool.journal_pool import JournalPool
from tests.benchmarks import report
from tests.benchmarks.street_bench import ROOT

LOOK_S: Final = 0.25

WRITER: Final = """
import sys, time
import replicate
instance, first, seconds, size = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
connection = replicate.connect(instance, timeout=120)
print("ready", flush=True)
sys.stdin.readline()
until, number, value = time.monotonic() + seconds, first, "v" * (size - 13)
while time.monotonic() < until:
    for number in range(number, number + 20):
        connection.execute("INSERT INTO item VALUES (?, ?)", (number, f"{number:012d}.{value}"))
        connection.commit()
    number += 1
connection.close()
print(number - first, time.process_time(), flush=True)
"""


def start_writers(primary: Path, writers: int, seconds: float, size: int) -> list[subprocess.Popen[str]]:
    """Writer processes that have connected and wait for a line."""
    found = []
    for number in range(1, writers + 1):
        words = [primary, number * 1_000_000_000, seconds, size]
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", WRITER, *map(str, words)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        )
        output = found[-1].stdout
        assert output is not None
        output.readline()
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One run."""
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="bench-steady-", dir=arguments.directory) as name:
        database = Path(name) / "app.db"
        make_database(database, 0, 0)
        bench = Bench(Path(name), settings=f'[journal]\ndurability = "{arguments.policy}"\n')
        writers: list[subprocess.Popen[str]] = []
        try:
            bench.make_primary(database)
            secondary = bench.add_secondary("secondary")
            down_s = 0.0
            if arguments.down:
                write(bench.primary, "insert", arguments.down)
            bench.start_receiver(secondary)
            bench.run("-i", secondary, "update", "start")
            writers = start_writers(bench.primary, arguments.writers, arguments.seconds, arguments.values)
            begun = time.perf_counter()
            bench.run("-i", bench.primary, "source", "start", "--peer", "secondary")
            found = watch(bench, secondary, writers, arguments.seconds)
            down_s = time.perf_counter() - begun
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            for writer in writers:
                writer.kill()
                writer.wait()
            bench.close()
    return report.line(
        "steady",
        unit=report.IN_THE_NAMES,
        figure=found,
        settings={name: getattr(arguments, name) for name in ("seconds", "writers", "policy", "down", "values")},
        facts=facts,
        took_s=round(down_s, 1),
    )


def watch(bench: Bench, secondary: Path, writers: list[subprocess.Popen[str]], seconds: float) -> dict[str, Any]:
    """Let the writers go, and look until they have ended and the secondary is level."""
    pool = attach(secondary)
    words = JournalPool.attach(Instance.open(bench.primary).content.uuid)
    places = {
        "source": (bench.primary, "source-secondary"), "receiver": (secondary, "receiver"),
        "update": (secondary, "update"),
    }  # fmt: skip
    pids = {daemon: bench.pid(*place) for daemon, place in places.items()}
    before = {daemon: bench.cost(*places[daemon], pid).cpu_s for daemon, pid in pids.items()}
    most = dict.fromkeys(DAEMONS, 0)
    first_seqno, applied = words.words[word.LAST_SEQNO], pool.applied_seqno
    backlogs: list[int] = []
    begun = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()

    def look() -> int:
        for daemon, pid in pids.items():
            most[daemon] = max(most[daemon], bench.cost(*places[daemon], pid).anonymous_bytes)
        return int(words.words[word.LAST_SEQNO] - pool.applied_seqno)

    while any(writer.poll() is None for writer in writers):
        backlogs.append(look())
        time.sleep(LOOK_S)
    stopped = time.perf_counter()
    level = wait_for(lambda: look() <= 0, "the secondary is level")
    last_seqno = words.words[word.LAST_SEQNO]
    passed = max(1, last_seqno - applied)
    said = [writer.communicate()[0].split() for writer in writers]
    cpu = {daemon: bench.cost(*places[daemon], pid).cpu_s - before[daemon] for daemon, pid in pids.items()}
    third = max(1, len(backlogs) // 3)
    pool.close()
    words.close()
    return {
        "committed_per_s": int((last_seqno - first_seqno) / (stopped - begun)),
        "backlog_first_third": int(statistics.median(backlogs[:third])),
        "backlog_last_third": int(statistics.median(backlogs[-third:])),
        "backlog_most": max(backlogs),
        "level_after_s": round(level - stopped, 3),
        "cpu_us_writer": round(sum(float(cpu_s) for _, cpu_s in said) / sum(int(count) for count, _ in said) * 1e6, 2),
        "cpu_us": {daemon: round(spent / passed * 1e6, 2) for daemon, spent in cpu.items()},
        "memory_mib": {daemon: round(size / 2**20, 1) for daemon, size in most.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--writers", type=int, default=2)
    parser.add_argument("--policy", choices=("off", "interval", "durable"), default="interval")
    parser.add_argument("--values", type=int, default=100, help="bytes of a value")
    parser.add_argument("--down", type=int, default=0, help="transactions for which the secondary is down before")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    report.say([measure(arguments)], as_table=arguments.table)


if __name__ == "__main__":
    main()
