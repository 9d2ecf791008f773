"""Catching up: transactions wait in the primary's journal, then the secondary connects; how fast are they applied?

Run: python -m tests.benchmarks.bench_catch_up [--transactions N] [--kind KIND] [--rounds N] [--against CHECKOUT]
     [--peers PEER …] [--own-memory GIB] [--stamps] [--table] …

Real processes, real TCP over loopback, values of 100 bytes. Kinds: insert; update (by key, in random order, of a table
that was seeded); mixed (of ten: five inserts, four updates, one delete); ten (inserts, ten rows a transaction); one
(a single transaction of N rows). The journal is written once, through `replicate.connect()`; every round has a
secondary of its own, seeded before anything was written. `--against` runs the daemons of another checkout in turns
with ours, over the same journal: a checkout whose files have another format ends there, and says so. (Of a work tree in
which others write, measure a copy.)

Prints one JSON line for each kind, or with `--table` a table in the end: transactions a second (rows, for `ten` and
`one`) until applied **and durable**, from the first one applied and from the moment `source start` was called (which
includes the start of two Python processes); CPU microseconds a transaction of each daemon, and apart from it the
seconds that the source's start takes; resident memory of each beyond the mapped pools. Nothing is asserted.

`--peers postgresql gtm` measures logical replication of PostgreSQL (peer_postgresql.py: insert, update, one) and
replication of GT.M (peer_gtm.py: insert, update, mixed, ten) in the same run, in turns with ours. PostgreSQL's figure
begins when the subscription is enabled, and is compared with our `from_start`; GT.M's, from the first applied, with our
`from_first`. `--peers floor` measures what changing the same rows takes SQLite alone, with all else done for nothing
(floor_update.py). `--stamps` adds how long the Update Process makes rows, reads and commits, and what would be its
bound if a commit took no time, since making and reading are one thread's (stamps.py).

What updates in random order cost. Nearly every row of a short batch has a page of its own, which is read, written to
the WAL and copied to the database. SQLite's own share, the same rows in the same batches, sorted, through `executemany`
alone, checkpoints included, on a disk, µs a row (CPU in brackets): in a table of a million 6.1 (4.6) with 43,000 rows a
batch, 3.0 (2.5) with 115,000, 2.0 (1.6) with 230,000; in one of 200,000 1.2, 0.67 and 0.58. So a batch has nearly half
of what the receive pool takes before the source is told to pause, 55 MiB, which are 206,000 such rows: its frames stay
in the pool (update_process/batch/pool_frames.py), its changes wait packed, some twenty bytes each (deferred.py), and
while one is being committed the next one is read, verified, packed and sorted, all of it.

The steps to there, a million updates of a table of a million rows, each in turns with the one before or in the same
hour, thousand a second (µs of CPU of the Update Process): batches of 12 MiB, copied out of the pool, 110 to 116 (7.1 to
7.6); of 32 MiB 169 (5.3), at 91 MiB of memory; of 48 MiB 157, at 135. Left in the pool, the next batch packed beside
the commit: 185 to 219 (4.7 to 5.3) at 53 MiB; windows sorted when they are read, and neighbours compared in place of a
set of all rows: 249 to 270 (4.3). Windows of several kinds packed, too: a million mixed 354 in place of 236 (3.0 in
place of 3.5). What a row takes then, µs: reading 1.0, beside the commit; decoding it and changing it 2.0 to 2.4 (four
tenths Python, three the kernel, two SQLite); the journal 0.2 to 0.5, its flush 0.15; COMMIT and checkpoint 0.93.

Beside GT.M it was 0.40 of it before all that, then 0.86 to 0.91. GT.M's secondary changes pages that stay in shared
memory, keeps no images before, and waits for no disk.

What a mixed transaction costs, µs of CPU, each step alone: copying its record and checking it 0.04, decoding 0.26,
proving that it continues the one before 0.27, packing 0.25, its digest 0.05; arranging the batch 0.19, decoding again
0.33, changing the row 0.63 (SQLite and the binding); journal, flush and COMMIT 0.15 (0.26 of waiting, in which the next
ones are read); the rest, freeing what was decoded, 0.3. With the Source Server's 0.65 and the Receiver Server's 0.33 to
0.44 that is 3.5 to 4.0, of the 4.4 that two processors have for each of 450 thousand a second.

These, and all figures above, are of a CPython that was compiled without profile-guided optimization, as pyenv does it
unless told otherwise. Debian's, which deploy/install gives to the services, does the same work in 0.83 of the CPU time
(2.3 to 2.5 µs in place of 2.8 to 3.0, in turns, alone in one process): 388 thousand a second beside GT.M's 310 (1.25,
five rounds), in an hour in which the other one did 281. Which interpreter it was stands in each line. By samples, half
of the Update Process's time is spent in CPython's objects, which are made, walked and freed, a fifth in the kernel, a
tenth in SQLite and the binding, and 8 % in evaluating Python code.

What a machine's free memory is made of weighs as much as all of that. Where it is a virtual one that gives free memory
back to its host, as this one is, one and the same code does 400 to 650 thousand inserts a second, the first round of a
run nearly always the most, and 2 MiB of frames take 5 ms to write to the journal, of CPU, instead of 0.4. `--own-memory
17` (own_memory.py) holds what both need, for as long as the benchmark runs.

Stamps at each step then showed where a batch of 224,000 updates waited: 0.35 s to decode its rows and change them, then
0.49 s to commit it, beside which the next one was read in 0.2. The committing thread wrote 60 MiB in 240 pieces, and
read them for their digest in as many, and waited after each for the interpreter, 0.5 ms: 0.2 s in all (walk.py,
pool_frames.py: 0.03 now). The source was told to pause just before the next batch was whole; so it was taken for the
last one, and committed with nothing read meanwhile. The binding looks through its 512 kept statements for each row:
0.08 µs (128 now: 0.02). And 180,000 places sorted at once took 15 MiB and 0.25 to 0.37 µs each (order.py, part by part:
2 MiB, 0.2 to 0.24). Together 1.15 times as many updates, 1.2 times as many of a mixed load, in 43 MiB in place of 52
and 57 (five rounds in turns with ea5bb9c, which has none of it). Thousand a second, medians of five rounds, GT.M's,
ours, CPU µs of the Update Process, at abeb0d8:

    insert    809   673 (0.82)   1.28
    update    322   312 (0.97)   3.64
    mixed     544   509 (0.94)   2.05
    ten       983   907 (0.92)   0.89    (rows, three million of them, at 5eec499)

What is left of an update: a batch of 206,000 takes 0.34 to 0.38 s to decode and make, and 0.27 to commit, 0.18 of it
SQLite's COMMIT, which writes and copies some 30,000 pages, nearly all of the table. 450 thousand a second would be 0.46
s for both. GT.M, whose pages stay in memory, and whose journal keeps no images before, does 322 to 326 here, PostgreSQL
69 (4.6 times as many at fe56c74, five rounds; with all starts 3.4 times). Of inserts, in batches of 37,000, each takes
27 ms to decode and make, and 14 to commit, beside which 8 windows are read.

The floor of updates, at a59005d, load 0.5, five rounds in turns (`--own-memory 17 --peers floor gtm postgresql`), in an
hour slower than those above: SQLite alone, its rows ready in the right order, 434 thousand a second (420 to 446), ours
284 (0.65), GT.M 289, PostgreSQL 61 (ours 4.6 times, GT.M 4.7). So 450 is not to be had on that machine around one
connection that makes its checkpoints itself. With these made beside, by another one, SQLite would take 1.5 µs in place
of 2.3, on processors that are busy with the rest: the three daemons take 5.4 µs of CPU an update then, and two
processors that never waited would bear 370 thousand. Stamps at each step, seconds for a batch of 206,000: 0.42 to
decode and make its rows (the floor's 0.30), then 0.05 to 0.08 for the journal, 0.02 for its flush, and COMMIT, of which
0.002 is SQLite's and 0.17 its checkpoint; beside these three the next batch is read, in 0.27, so that neither is waited
for, and the interpreter is never idle: it is the bound. In vain, therefore: a checkpoint after each second batch only
(192 MiB of WAL), 0.93 of the CPU and 1.00 of the number (six rounds). Numbers sorted by numpy would take 0.06 µs in
place of 0.25, and 16 MiB to have it loaded.

Looked through by steps once more, each alone in one process (Zen 4, CPU of a row in µs): reading 0.94 (decoding 0.23,
verifying 0.26, packing 0.39, freeing 0.05), arranging and decoding again 0.59, UPDATE and its binding 1.28, of which
the kernel's pages are 0.48, and 0.1 the binding's look for its statement, whose text it hashes for each row. Sizes,
rows and places looked up once in place of three times, arrays joined rather than extended, and cuts that ask no
function:
0.87 and 0.48; 1.036 times as many updates (five rounds in turns with 7f1174f). In vain: the database mapped, a page
cache of 0.2, 0.5 or 8 MiB, columns of slices, `mmap` in place of its view; 0.03 of 3.5 each, and not worth their
price: SQLite without its mutexes and memory statistics, 8 kept statements in place of 128. Batches that take 2 s in
place of 1 while more waits: 1.03 times as many of a million, since the first ones, of 19,000 and 84,000, take twice as
long a row as those of 206,000; but a process that writes here waits twice as long for the region.

In vain: how long the second batch gets, foretold by pages (from 467e483 on, out, in again, and out for good in
f826a01c, since it brings less than a tenth). CPU of an Update Process a row with it and without it, updates in random
order:
4.9 and 4.7 µs (3 rounds, load 6), 4.5 and 4.7 (6, load 3 to 6), 4.9 and 4.9 (5, load 1.7) of 1,000,000;
4.6 and 4.9 µs (2 rounds, load 6), 4.7 and 5.1 (5, load 3 to 6) of 600,000;
3.9 and 3.7 µs (5 rounds, load 1.7) of 300,000.
With it the second had 206,000 rows in place of 84,000. Four runs in turns with the one before, 3 to 9 rounds each:
from the start 1.01 to 1.05 times as many, 0.93 to 0.98 of the CPU of the Update Process; from the first applied 1.00 to
1.06, as the second batch is read with no commit beside it then. Of 300,000 updates, where the third batch is the
shorter for it, nothing (11 rounds).

Stamps in a quiet hour after that, seconds for a batch of 206,000 (306 thousand a second): 0.385 to make, 0.27 to
commit, beside which the next one is read in 0.22. Of the commit: journal written 0.04, flushed 0.03; the WAL's flush
0.06, its copying 0.075, the database's flush 0.05. With 192 MiB of WAL each second commit took 0.08, the others 0.38,
and 0.95 as many came of it, as reading takes as long beside either. Tried: a thread that has the kernel begin to write
WAL and database (sync_file_range, each 15 ms, by SQLite's own descriptors) while rows are made. The two flushes took
0.01 then, a commit 0.19; but reading was the bound, and rows took 0.40 to make. Updates 1.00 to 1.02, inserts 1.06 (two
runs of 7 rounds), ten rows 1.10 (9 rounds); mixed 0.91 and 0.95, and why is not known: 0.91 in a loud hour with a
thread that woke and asked for nothing, too, and the fsync of a new journal segment, which took 0.29 and 0.09 s once in
place of 0.003, took 0.14 once without any. For the database alone: mixed 1.01, the others in an hour too loud to tell.
For the journal, piece by piece: what its flush saved its writing took longer.

What no arrangement around one process that reads and makes the rows could leave out, in one run (`--stamps --peers
postgresql floor`, five rounds, load 2, at 5643778, an hour in which all were slow): of processor time an update takes
that thread 2.26 µs to make and 1.18 to read, one after the other; beside it its commit takes 1.71, mostly waiting. Had
commits, flushes and checkpoints taken no time at all, that were 291 thousand a second, 5.06 times PostgreSQL's 57; it
did 242 (4.2 times), SQLite alone 363. All three daemons took 5.4 µs, of which two processors bear 368 thousand. So five
times PostgreSQL is where nobody ever waits for a disk: GT.M, in C, has 4.7.

Until 7c0d15e a slice of work, up to two long batches, was over before the first of them was told, and `from_first`
began there; since then it begins after the first batch, which is short, and the ones that follow are all counted.

Tried for it, and not kept: a process that reads the pool ahead on the other processor, and tells the Update Process
rows and places: 1.11 times as quick at the mixed load (five rounds), 1.05 at updates, 0.88 at inserts (three), since
source and receiver want that processor, too (0.51 million for 0.41 with nobody else at work, so it is for machines with
more of them), and 14 MiB more. Windows read without decoding them, a frame's head, kind and row by `unpack_from` at
their places, in a loop: 0.64 µs in place of the 0.59 of decoding and verifying, 0.78 with packing in place of 0.90.
UPDATE … FROM (VALUES …) of 8 to 50 rows in place of `executemany`: 0.69 to 0.81 µs a row beside 0.68. Inserts above all
rows that wait made at once, in place of packing them: nothing, since half of the windows are read beside a commit.
Rows, places and kinds in one float each, to be sorted without a call for each: 0.06 µs less, and 100 lines of bits; by
a list of all rows in place of their array: 0.02 µs, and 1.4 MiB. Reads of 128 KiB in place of 512 from the socket:
nothing. 16 windows read beside a commit in place of 8: nothing, and 10 MiB. A checkpoint each 256 MiB in place of 64:
0.95 of the CPU of updates, and 0.93 of their number. A receive pool of 256 MiB, and batches of 112: no more updates.

Transactions of several updates each still wait decoded, 6 MiB a batch: where values stand in such a frame only decoding
tells.

Within 6 % of what it was, with batches of 6 MiB: a page cache of 16 or 64 MiB, the database mapped, a checkpoint each
256 MiB; checkpoints in a thread and connection of their own take up to a fifth more, since the WAL is hardly ever
copied whole, and grows until somebody waits.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from replicate.bench.catch_up import DAEMONS, KINDS, VALUE_BYTES, catch_up, write
from replicate.instance.instance import Instance
from tests.benchmarks import floor_update, peer_gtm, peer_postgresql, report, stamps
from tests.benchmarks.own_memory import own_memory
from tests.benchmarks.street_bench import ROOT, Bench, machine, make_database
from tests.harness.checkout import name_of

PEERS: Final[dict[str, Any]] = {"postgresql": peer_postgresql, "gtm": peer_gtm, "floor": floor_update}
PEER_KINDS: Final = {
    "postgresql": ("insert", "update", "one"),
    "gtm": ("insert", "update", "mixed", "ten"),
    "floor": ("update",),
}


def middle(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the rounds."""

    def median(numbers: list[float], digits: int) -> float:
        return round(statistics.median(numbers), digits)

    cpu = {name: median([one["cpu_us"][name] for one in rounds], 2) for name in DAEMONS}
    # A backlog that was level before the first look has no rate, which is not a rate of 0.
    since_first = [one["from_first"] for one in rounds if one["from_first"]]
    return {
        "from_first": int(median(since_first, 0)) if since_first else 0,
        "from_start": int(median([one["from_start"] for one in rounds], 0)),
        "all_from_first": [int(one["from_first"]) for one in rounds],
        "cpu_us": cpu,
        "cpu_us_chain": round(sum(cpu.values()), 2),
        "source_start_cpu_s": median([one["source_start_cpu_s"] for one in rounds], 2),
        "memory_mib": {name: median([one["memory_mib"][name] for one in rounds], 1) for name in DAEMONS},
    }


def in_turn(codes: list[Path], place: int) -> Path:
    """Whose turn it is. The order is turned round in each second round: what depends on the place within a round, such
    as memory that the one before has just given back, is nobody's."""
    number, turn = divmod(place, len(codes))
    return codes[turn] if number % 2 == 0 else codes[-1 - turn]


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
            last_seqno, _ = write(bench.primary, kind, count)
            wrote_s = time.perf_counter() - begun
            found: dict[Path, list[dict[str, Any]]] = {code: [] for code in codes}
            steps: dict[Path, list[dict[str, float]]] = {code: [] for code in codes}
            peers: dict[str, list[dict[str, float]]] = {}
            for place, secondary in enumerate(secondaries):
                bench.code = in_turn(codes, place)
                with ExitStack() as stack:
                    if arguments.stamps:
                        stack.enter_context(stamps.stamped(bench, directory / "stamps.json"))
                    found[bench.code].append(catch_up(bench, secondary, last_seqno, count))
                if arguments.stamps:
                    steps[bench.code].append(stamps.told(directory / "stamps.json"))
                if place % len(codes) == 0:
                    measure_peers(arguments.peers, kind, count, peers)
                if arguments.compare:
                    bench.run("-i", bench.primary, "compare", "--with", secondary)
                forget(bench, secondary)
        except BaseException:
            print(bench.complaints(), file=sys.stderr)
            raise
        finally:
            bench.close()
    figure = {name_of(code): middle(rounds) for code, rounds in found.items()}
    for code, rounds in steps.items():
        if rounds:
            figure[name_of(code)]["stamps"] = stamps.middle(rounds)
    ours = figure[name_of(codes[0])]
    compared: dict[str, Any] = {}
    for peer, rounds in peers.items():
        what = "from_start" if peer == "postgresql" else "from_first"
        theirs = statistics.median(one[what] for one in rounds)
        compared[peer] = {what: int(theirs), "all": [int(one[what]) for one in rounds]}
        if ours[what]:  # a backlog so short that it was level at the first look has no `from_first`
            compared[f"ratio_to_{peer}"] = round(ours[what] / theirs, 2)
        compared[f"{peer}_settings"] = PEERS[peer].SETTINGS
    return report.line(
        "catch_up",
        unit="rows/s" if kind in ("ten", "one") else "transactions/s",
        figure=figure,
        settings={
            "count": count,
            "rounds": arguments.rounds,
            "value_bytes": VALUE_BYTES,
            "primary": "journal.durability=off",
            "secondary": arguments.settings,
            "own_memory_gib": arguments.own_memory,
        },
        facts=facts,
        kind=kind,
        **compared,
        written_per_s=int(count / wrote_s),
    )


def forget(bench: Bench, secondary: Path) -> None:
    """Remove a secondary whose daemons are stopped: the memory that its files and its pool take is the next one's."""
    uuid = Instance.open(secondary).content.uuid.hex()
    for file in bench.shared_memory.iterdir():
        if uuid in file.name:
            file.unlink()
    shutil.rmtree(secondary)


def measure_peers(peers: list[str], kind: str, count: int, found: dict[str, list[dict[str, float]]]) -> None:
    """One round of each peer that has this kind."""
    for peer in peers:
        if kind in PEER_KINDS[peer]:
            found.setdefault(peer, []).append(PEERS[peer].catch_up(kind, count, VALUE_BYTES))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000, help="rows, where a transaction has several")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="insert")
    parser.add_argument("--rounds", type=int, default=5, help="of each checkout")
    parser.add_argument("--against", type=Path, help="another checkout, whose daemons are measured in turns with ours")
    parser.add_argument("--only-against", action="store_true", help="measure that one only")
    parser.add_argument("--peers", nargs="*", choices=tuple(PEERS), default=[], help="measure these too, in turns")
    parser.add_argument("--settings", default="", help="replicate.toml of the secondaries")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    parser.add_argument("--own-memory", type=float, default=0.0, metavar="GIB", help="see own_memory.py")
    parser.add_argument("--stamps", action="store_true", help="what an Update Process does how long, and its bound")
    report.add_table(parser)
    parser.add_argument("--compare", action="store_true", help="after each round, compare the two databases")
    arguments = parser.parse_args()
    with own_memory(arguments.own_memory):
        kinds = KINDS if arguments.kind == "all" else (arguments.kind,)
        report.say((measure(kind, arguments) for kind in kinds), as_table=arguments.table)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(ROOT))
    main()
