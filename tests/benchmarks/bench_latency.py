"""Latency: a commit on the primary has returned; when can a reader on the secondary see its row? Otherwise idle.

Run: python -m tests.benchmarks.bench_latency [--commits N] [--pause SECONDS] [--against CHECKOUT] [--rounds N]
     [--peers PEER …] [--table] …

Real daemons, TCP over loopback, one writer through `replicate.connect()`, one reader: plain SQLite in a process of its
own, which looks every LOOK_S. Both read the machine's monotonic clock. Prints one JSON line: milliseconds from the
return of commit() to the row's being visible (below 0: visible even before), median, 90 %, 99 % and worst; the same of
commit() itself, most of which is the flush of the primary's disk under the default policy; and of a bare fdatasync
there. Nothing is asserted. `--peers` has PostgreSQL and GT.M take their turns (the median of their rounds' figures).

What comes on top of the flushes can be measured on a machine that others use, too: as root under `chrt -f 10`, with
`--directory` in /dev/shm. It repeats within 5 % as long as the load stays as it is.

Where it goes, measured so beside a load of 6 (medians, µs after the return of commit(); marks in a copy of the code,
which cost 30; no flush takes any time there, on the machine's disk the secondary's own adds 200 to 260):

    the source, rung before the primary's flush, is back in its task          80
    ... has the transaction verified from the journal pool                   165
    ... has it as a message 220, has written it to the socket                295
    the receiver knows that bytes are here, and has knocked                  425
    ... has them 470, verified and in the receive pool                       585
    the Update Process, woken at 490, has its local transaction open         645
    ... has decoded and verified what came 775, has applied it               800
    ... has written its checkpoint record                                    855
    ... has written and flushed its journal 890, committed                   920
    the reader has looked                                                    995

That was 1300 in the same hour before a transaction that comes alone had ways of its own (source_server/connection.py,
update_process/window/single_transaction.py). 5 to 7 µs after a ring the process that sleeps has a processor (perf
sched), and no wait is left between the processes; each spends its time in Python and in the kernel with cold caches.
The same four processes as bare loops (a FIFO, a socket, a FIFO, one INSERT, the journal's write and flush, the reader;
nothing verified, no position kept) took 370 to 400 on a machine half as quick; there, with 2 ms between two commits
instead of 20 the whole took three quarters. So what helps is to run through less, before what others wait for.

Compare two checkouts as two streets that run at once, with commits in turns, a second each: rounds one after the other
differ by more than most of what can be gained.

Tried, and within 3 % of what it was: to ring before the bytes are read while the read was trio's own; to look for 0.3
ms before sleeping again; a turn of the source's writer before its reader's next one; huge pages for the heap
(MADV_COLLAPSE: it is not the TLB); to yield the processor after the write. To announce a transaction to the other side
while it is being flushed here made it 3 to 10 % slower, in a copy that wrote marks, too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

from replicate.bench.latency import LOOK_S, flushes, latency, spread
from tests.benchmarks import peer_gtm, peer_postgresql, report
from tests.benchmarks.street_bench import ROOT, Bench, machine, make_database
from tests.harness.checkout import name_of

PEERS: Final[dict[str, Any]] = {"postgresql": peer_postgresql, "gtm": peer_gtm}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=500, help="of each round")
    parser.add_argument("--pause", type=float, default=0.02, help="mean seconds between two commits")
    parser.add_argument("--rounds", type=int, default=3, help="of each checkout")
    parser.add_argument("--against", type=Path, help="another checkout, whose daemons are measured in turns with ours")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    parser.add_argument("--peers", nargs="*", choices=tuple(PEERS), default=[], help="measure these too, in turns")
    report.add_table(parser)
    arguments = parser.parse_args()
    codes = [ROOT, *([arguments.against] if arguments.against else [])]
    facts = machine()
    found: dict[Path, dict[str, list[float]]] = {code: {"visible": [], "commit": []} for code in codes}
    peers: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-latency-", dir=arguments.directory) as directory:
        database = Path(directory) / "app.db"
        make_database(database, 0, 0)
        bench = Bench(Path(directory))
        try:
            bench.make_primary(database)
            for number in range(arguments.rounds * len(codes)):
                bench.code = codes[number % len(codes)]
                instance = bench.add_secondary(f"s{number}")
                for what, taken in latency(bench, instance, arguments.commits, arguments.pause).items():
                    found[bench.code][what] += taken
                if number % len(codes) == 0:
                    for peer in arguments.peers:
                        theirs = PEERS[peer].latency(arguments.commits, arguments.pause)
                        peers.setdefault(peer, []).append(spread(theirs))
        finally:
            bench.close()
        flush = spread(flushes(Path(directory), 200))
    figure = {
        name_of(code): {what: spread(taken) for what, taken in sorted(one.items())} for code, one in found.items()
    }
    line = report.line(
        "latency",
        unit="ms",
        figure=figure,
        settings={
            "commits": arguments.commits,
            "rounds": arguments.rounds,
            "pause_s": arguments.pause,
            "reader_looks_every_s": LOOK_S,
            "both": "defaults",
        },
        facts=facts,
        fdatasync=flush,
        peers={
            peer: {what: round(statistics.median(one[what] for one in rounds), 3) for what in rounds[0]}
            for peer, rounds in peers.items()
        },
    )
    report.say([line], as_table=arguments.table)


if __name__ == "__main__":
    main()
