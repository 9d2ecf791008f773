"""One large transaction through the whole street: how long, and how much memory each process takes.

Run: python -m tests.benchmarks.bench_large [--rows N] [--kind KIND …] [--directory DIR]

Real processes, real TCP over loopback, the default settings. Kinds: insert (INSERT … SELECT), update and delete (one
statement each over all rows), virtual and virtual update (of a table with a VIRTUAL generated column, whose net change
is told); each is one transaction of N rows, one after the other over the same tables. A reader looks at the secondary
all the time, and must see all of a transaction or nothing of it.

Prints one JSON line for each: seconds until committed and until applied, memory of each process's own (RssAnon: beyond
the mapped pools and files), MiB. Fails when a bound is broken: 150 MiB for the writer, 60 for each daemon.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.street_bench import machine
from tests.harness.large_street import SCHEMA, STATEMENTS, pass_through
from tests.harness.street import Street

WRITER_MIB_MAX = 150.0
DAEMON_MIB_MAX = 60.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kind", choices=tuple(STATEMENTS), nargs="+", default=["insert"])
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds that each transaction may take")
    arguments = parser.parse_args()
    facts = machine()
    broken = False
    with tempfile.TemporaryDirectory(prefix="bench-large-", dir=arguments.directory) as name:
        street = Street(Path(name), schema=SCHEMA).build()
        try:
            street.start()
            for place, kind in enumerate(arguments.kind):
                passed = pass_through(street, kind, arguments.rows, place + 1, timeout_s=arguments.timeout)
                peaks = {process: round(peak, 1) for process, peak in passed.peaks_mib.items()}
                broken = broken or any(
                    peak > (WRITER_MIB_MAX if process == "writer" else DAEMON_MIB_MAX)
                    for process, peak in peaks.items()
                )
                figure = {
                    "committed_s": round(passed.committed_s, 1),
                    "applied_s": round(passed.applied_s, 1),
                    "memory_mib": peaks,
                    "looks": passed.looks,
                }
                print(
                    json.dumps({"benchmark": "large", "kind": kind, "rows": arguments.rows, **figure, **facts}),
                    flush=True,
                )
        finally:
            street.close()
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
