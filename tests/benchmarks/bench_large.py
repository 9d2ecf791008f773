"""One large transaction through the whole street: how long, and how much memory each process takes.

Run: python -m tests.benchmarks.bench_large [--rows N] [--kind KIND …] [--table] [--directory DIR]

Real processes, real TCP over loopback, the default settings. Kinds: insert (INSERT … SELECT), update and delete (one
statement each over all rows), virtual and virtual update (of a table with a VIRTUAL generated column, whose net change
is told); each is one transaction of N rows, one after the other over the same tables. A reader looks at the secondary
all the time, and must see all of a transaction or nothing of it.

Prints one JSON line for each: seconds until committed and until applied, memory of each process's own (RssAnon: beyond
the mapped pools and files), MiB. Fails when a bound is broken: 150 MiB for the writer, 60 for each daemon.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import report
from tests.benchmarks.street_bench import machine
from tests.harness.large_street import SCHEMA, STATEMENTS, pass_through
from tests.harness.street import Street

WRITER_MIB_MAX = 150.0
DAEMON_MIB_MAX = 60.0


def measure(arguments: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each kind."""
    facts = machine()
    with tempfile.TemporaryDirectory(prefix="bench-large-", dir=arguments.directory) as name:
        street = Street(Path(name), schema=SCHEMA).build()
        try:
            street.start()
            for place, kind in enumerate(arguments.kind):
                passed = pass_through(street, kind, arguments.rows, place + 1, timeout_s=arguments.timeout)
                figure = {
                    "committed_s": round(passed.committed_s, 3),
                    "applied_s": round(passed.applied_s, 3),
                    "memory_mib": {process: round(peak, 1) for process, peak in passed.peaks_mib.items()},
                    "looks": passed.looks,
                }
                settings = {"rows": arguments.rows}
                yield report.line(
                    "large", unit=report.IN_THE_NAMES, figure=figure, settings=settings, facts=facts, kind=kind
                )
        finally:
            street.close()


def beyond(line: report.Line) -> list[str]:
    """Whose memory breaks its bound."""
    return [
        f"{process}: {peak} MiB"
        for process, peak in line["figure"]["memory_mib"].items()
        if peak > (WRITER_MIB_MAX if process == "writer" else DAEMON_MIB_MAX)
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kind", choices=tuple(STATEMENTS), nargs="+", default=["insert"])
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that each transaction may take")
    report.add_table(parser)
    arguments = parser.parse_args()
    broken: list[str] = []

    def judged() -> Iterator[report.Line]:
        for line in measure(arguments):
            broken.extend(beyond(line))
            yield line

    report.say(judged(), as_table=arguments.table)
    if broken:
        sys.exit(f"beyond the bound of its memory: {', '.join(broken)}")


if __name__ == "__main__":
    main()
