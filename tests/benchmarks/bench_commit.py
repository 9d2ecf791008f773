"""What the commit door costs an application: transactions through `replicate.connect()` against plain SQLite.

Run: python -m tests.benchmarks.bench_commit [--case CASE] [--policy POLICY] [--writers N] [--rounds N]
     [--warm N] [--against CHECKOUT] [--peers gtm] [--own-memory GIB] [--table] [--profile] …

Cases: row (INSERT of one row and commit, by one and by four writer processes on one database); insert and update (one
statement of many rows, and commit). Policies: off and interval against plain SQLite with synchronous = NORMAL, durable
against synchronous = FULL; plain SQLite is driven by APSW (the driver that we use) and by the standard library's
sqlite3. All of them take turns, in short rounds of one run, each with writers and a database of its own. `--against`
has the `replicate` of another checkout take its turn too, `--peers gtm` GT.M at single rows under durable: a replicated
instance of its own, whose TCOMMIT waits for the disk. `--peers floor` has the least that a commit of a single row
takes that is journalled as ours is, written in C (floor_commit.c): the bound of this design on that machine.

Prints one JSON line for each case, policy and number of writers, or with `--table` a table in the end: rows a second
of each way (median of the rounds; from the first writer's begin to the last one's end), CPU microseconds a row, and
the ratios (median of the rounds' own ones). Nothing is asserted.

What was tried. CPU µs a row of one statement of 100,000 rows of three columns, minima of 8 rounds in turns (our hooks
and those that pack: 8 to 30 rounds of their own). The machine was shared; CPU time bears that better than wall time.

                                                              INSERT     UPDATE     DELETE
    plain SQLite, by the driver that we use                     0.31       0.11       0.12
    guard triggers, no hook                                     0.59       0.42       0.34
    guard triggers WHEN changes() < 0 AND guard()               0.52       0.37       0.29
    a hook that does nothing, in C / in Python             0.51/0.55  0.20/0.22  0.19/0.20
    a hook in C that takes the row before                          -       0.37       0.34
    ... and what changed                                           -       0.61          -
    a Session, and its changeset                           0.71+0.55  0.44+0.67  0.36+0.19
    temporary triggers that copy rows, and reading these   0.69+0.61  0.51+0.74  0.42+0.62
    RETURNING *, fetched (no image before)                      1.00       0.83       0.80
    a hook that takes the row and packs it, no more             1.19       1.30       0.84
    the same, packing 60 rows at a time                         1.07       1.20       0.70
    our hook                                                    1.31       1.51       1.02
    our hook as a generator (its locals stay)                   1.20       1.45       0.92
    unheard; then rows read back, and packed     0.31 + 0.36 + 0.11          -          -

Guards at rest (0.3 µs a row) and INSERT … SELECT unheard (half of it) were built, attacked and taken back, as both lose
changes. Without triggers SQLite copies the records of INSERT … SELECT as they are, and the hook is given NULL for what
a short record leaves to a column's default. And a DELETE of all rows that is prepared while there is no hook stays
compiled as one that no hook hears, in the driver's cache, for a later run of the same text. A changeset would have
to be translated still, knows no true order and no schema changes, and is wholly in memory. The generator gains a
twentieth; and a signal handler that writes on the same connection would find it running, and its rows would be lost.
SQLite's memory statistics cost 0.2 µs of a row with a hook: they can only be switched off for a whole process, before
anybody's first connection, which is not ours to do in an application. What is left of the goals (INSERT 0.6, UPDATE
0.3) is the price of a driver that calls Python for each row: to have an UPDATE's two images as Python objects costs
five times the UPDATE.

A later run, minima of 10 rounds in turns, INSERT, UPDATE, DELETE: guards without a hook 0.44, 0.32, 0.25; a hook that
does nothing 0.54, 0.43, 0.33; one that takes the rows and their table's name 0.82, 0.86, 0.67; ours 1.32, 1.62, 1.19. A
hook wholly in C (`pack` of a msgpack.Packer whose `default` is an attrgetter of all that is told of the row: no Python
runs) 1.10, 1.18, 0.91, and what it packs would have to be translated still: at most 0.28 of plain at INSERT, and 0.09
at UPDATE. What there was to gain in ours stayed below 3 %: a guard function in C (`bool`) 0.025, INSERT looked for
first and tables without `get` 0.02; packing 60 rows at once 0.02.

Single rows, median CPU µs a commit, 15 rounds in turns: plain 11.7, ours 48.7 (the statement itself 4.3). Without our
row in the region, the second WAL frame, 39.7: the bound, 1.21 times, of every design that does without the ring. With
the WAL's position taken from its index before each COMMIT, and a row in each 256th, 43.8: 1.13 times. From 1.4 times
on it was to be worth a proof of its recovery, so the ring stays. System calls a commit, ours (plain): fcntl 6 (6),
pwrite 5 (2), flock 4 (0), stat 2 (0).

Where they go now: one process, policy off, each part left out in turns, minima of 50 blocks of 150 commits.

    BEGIN IMMEDIATE, INSERT, COMMIT, as plain SQLite has them                           9.6
    guard trigger, hook, packing                                                        2.4
    the slot in the ring: its UPDATE 1.5, the second page in the WAL 3.6                5.1
    flock, four times: region and commit lock                                           3.2
    is the file under the region's path still ours (stat), is the pool (fstat)      2.3 + 1.4
    number, frame, chain hash, check                                                    1.4
    the journal's pwrite                                                                1.2
    the journal pool                                                                    2.5
    PEP 249: a cursor for each execute, its checks and attributes                       6.1
    capture's begin and end, the commit hook, control words, what stands between        4.0
    in all                                                                             39.2

If all Python in it took no time, the kernel, SQLite and the hook's objects would leave about 22: 0.44 of plain. So 0.6
is not to be had with a ring, a lock that dies with its holder and a look at the file. Beside the CPU stand checkpoints,
which COMMIT waits for: 3 to 5 µs a commit less since a writer leaves 16 MiB in the WAL.

The same later, after what stands between was looked through (0.94 of the CPU before, in turns; four writers 0.9; ten
executes in one transaction 0.935, executemany 0.91, a SELECT by key 0.92), in memory, minima of 50 blocks of 150, parts
left out in turns: 30.5 in all, plain 8.4; the slot 3.9, the pool 1.9, flock 2.3, stat 1.8, fstat 1.8 (0.85 by itself: a
system call costs its neighbours their caches), pwrite 0.5, getpid 0.2; by themselves: number, frame, hash and check
1.2, the row's hook 0.7, PEP 249 1.2 (a cursor 0.3, more than half of it APSW's). What is left, 6.5, is Python. A commit
takes 2100 bytecodes in 63 calls, all told, at about 3.5 ns; no function has more than 6 % of them, and a call costs 20
ns, so writing methods out gains little. Not done, below 0.5 % each: words read and written several at once (a word
costs 14 ns, eight by one `unpack_from` 60), tuples without their class, BEGIN and the schema version as one text (0.08
µs), failpoints guarded by a global (0.02 each), SQLite's data version in place of the schema's (0.07 for 0.37 µs, where
nobody else writes). The looks for the region's file and the pool's name were at each commit then, and are half a
millisecond apart now: 1.05 times as many commits a second, of one writer and of four, on a busy machine (1.03 with a
quarter, 1.1 with a whole one, where one that connects for each commit waits for others' looks to run out: 1.22 times
as long). Two pools in use at once would be two ends of one journal; so a process that makes another waits as long
(shared_memory.py). By samples 43 % of it is the kernel's now, 40 % CPython's (its interpreter's loop 24), 10 % SQLite's
and the binding's.

With memory that is this machine's own (`--own-memory 17`), at d057a02 in a quiet hour: 29.1 and 24.7 thousand a second
under interval, 0.34 and 0.35 of plain NORMAL (30 and 36 µs of CPU, plain 9.4 and 11); durable, a WAL that has grown,
8.3 and 11.5 thousand, 0.86 and 1.92 times plain FULL, 0.82 and 1.09 times GT.M. At 9a5a08d in another, three runs: 0.33
and 0.32 to 0.38; 0.85 to 0.87 and 1.51 to 1.76, 0.81 to 0.83 and 0.83 to 1.02 times GT.M. With four writers it is the
hour that decides: they share two processors with the disk's interrupts and with a process that else has this machine.
An executemany takes 1.8 µs a row, of which SQLite with guard and hook takes 1.44, without the hook 0.66.

Connections and cursors without a `__getattr__` of theirs, which keeps CPython 3.11 from specializing attributes: 0 to
2 % (a row that is read: half). SQLite's own look at the file (FCNTL_HAS_MOVED) takes 1.1, our stat 1.7, but compares no
device, and wants ctypes.

Under durable one writer takes 98: to these come 40 in the kernel for the flush, 2 for the durable mark (4 when it was
read each time, 14 of them cold), and what caches that have gone cold while it slept cost. Four writers, a commit of
each in turns: 0.56 flushes, 1.75 sleeps of 17 µs (waking, and two switches), 6 preads of pages that another has
changed; the same code that takes 39 µs in a loop takes 100 and more, and that is how long the region is held. So two
processors bound them at 6 to 8 thousand a second, at 205 to 250 µs: 1.1 to 1.2 times what they did while they spun
(290), not 3 times plain FULL, which does 4 to 6 thousand here. By hand, each writer bound to a processor, a fifth less
CPU. Flushes held back for company: 0.92. Woken under interval too: 0.7, for a writer that goes on at once finds its
caches warm. Asleep without a spin before: the same on an idle machine, a third on a busy one.

One flush, median of 600 in turns, µs (10th percentile): 200 bytes in a zero-written file and fdatasync 167 (95); by
O_DSYNC 160 (92), by pwritev2 with RWF_DSYNC 161 (93), by fsync 170 (98); in a file that is allocated, not written, 140
(85); at the end of a growing one 147 (122); beside two dirty WAL frames of another file 172 (103). A frame of a WAL
that is written over 183 (104), of one that grows 270 (198). So with one writer our flush is worth about 1.1 times plain
FULL's, and what is done beside it takes more than that: 1.3 times is not to be had here.

Since a writer that is alone has the kernel begin to write before COMMIT (SegmentFile.begin_writing), the two overlap. A
frame of 200 bytes, two WAL frames of another file, 20 or 60 µs of work, fdatasync, median of 1000 in turns: 129 and
178 µs became 101 and 140, at the same CPU. A commit of one writer: 1.14 to 1.27 times as many a second on a disk of its
own (four runs of 15 rounds, at real-time priority on a busy machine), as before on a disk that others kept busy. The
same for each of four writers: 0.97, and 0.5 to 0.6 on a busy disk, as the page that they share is then written twice
for each flush; so not where another has written in between. Nor does it help that each of four flushes for itself,
leaving it to the kernel to bring these together: 0.95 and 1.04, on a busy disk 0.6 to 0.8.

On a machine twice as quick as that of these figures, idle (load 0.5, d991413): durable 1.22 and 2.36 times plain FULL
with one and four writers, 7.3 and 9.9 thousand a second; GT.M, taking its turns, 10.1 and 11.8.

Those 1.22 and 2.36 are what five rounds of 250 rows show (measured again: 1.17 and 2.49): the first thousand commits
and a few more, in which plain SQLite's WAL grows, and each commit writes the file's size too (its rounds, one after the
other: 4.2, 5.0, 5.7, then 8.7 to 9.2 thousand a second; ours 4.9, then 6.5 to 7.9). From then on it writes its WAL
over, as a service does that keeps its connections (`--warm 1500` begins there). Medians of 15 to 20 rounds are of that
time: on the same machine, at load 0.4 to 0.6, 0.81 to 0.88 times plain FULL with one writer (seven runs) and 0.73 times
GT.M (10.1 thousand), 1.40 and 1.44 times with four (two runs), and 0.79 times GT.M (10.3). Idle, once more (05a8a5e,
15 rounds): 0.83 and 1.78 times plain FULL, 0.73 and 0.95 times GT.M; 7.4 and 11.0 thousand a second.

Where one writer's durable commit goes then, a stamp at each step, µs, medians of 4000 (in memory, caches warm):

    cursor, region lock, stat, BEGIN, schema, guard map              12.8      (9.9)
    the statement, packing                                            7.2      (4.8)
    commit lock and fstat; number and frame; slot                     8.6      (7.0)
    pwrite                                                            3.1      (2.1)
    begin_writing: 7 to the driver, 10 for its knock at the host     18.2      (0.7)
    COMMIT                                                            9.8      (6.7)    beside the write
    words and pool; both locks given up; sync lock                    8.0      (7.0)    beside the write
    fdatasync                                                        57.8      (0.5)    of which the flush 30
    durable mark, sync lock, end of the transaction                   7.0      (5.1)

By the kernel's tracepoints, which cost 5 % more, the write takes 39 from the driver on, and is done 7 before fdatasync
begins. A flush waits 11 for the kernel thread that hands it over, takes 30, and 22 to 28 pass until we run again: two
processors wake up, of which one has the disk's interrupt, and a virtual machine leaves each by way of its host (bound
to that processor, 25 less in all, plain 18). begin_writing, work, and fdatasync by themselves, less the work: 96 with
none of it, 74 with 10 µs, 66 from 18 on, and not less with more, for then the write is done. COMMIT and what follows it
are 18. So nothing is left to be hidden, and what stands before and after counts in full: 32 and 7, of which plain has
9. The floor, 106 bytes written and flushed and no more: 95 to 103 (10th percentile 78 to 88), as by O_DIRECT and
O_DSYNC. GT.M takes 99, plain 107 to 118; 1.3 times plain would be less than that floor.

In vain, one writer, in turns: the slot written after begin_writing 1.007 (five runs, 0.997 to 1.013), and its failure
would have to be voided; the flush written out in one function 1.005. The flush as asynchronous I/O of the kernel
(io_submit after the append, COMMIT meanwhile) 98 to 110 µs where the same work takes 88 to 103 now, as one more kernel
thread has to wake; O_DIRECT, O_DSYNC and asynchronous 92 beside 92. Who looks at its ring instead of sleeping keeps the
processor from the thread that it waits for (4 ms). With both processors kept awake by idle-priority loops fdatasync
takes 37, but the interrupt then falls into COMMIT: 145 in all (10th percentile 114, else 128). That is not ours to do.

Four writers, each step as above: the region is held for 86 to 92 (mean 105; alone 44, but for begin_writing: 6 preads,
cold caches, 14 yields and 7 switches a commit), 20 to 28 pass until the next one has it, a flush takes 121 to 141, and
the next one begins 61 later, of which the durable mark took 15, as each process had to read what another had written.
It takes 6 since the mark's number stands in the control words: 1.02 to 1.14 times as many commits (four runs of 25
rounds), 0.94 of the CPU. In vain: the next writer woken before COMMIT, to spin until the region is free 1.01 (0.98 to
1.05), before the append 1.01 and with 60 tries 0.99; those who wait for the flush woken before the mark is written
0.98; 4 and 6 tries instead of 20 and 30 before they sleep 0.94; a word that says whether the region is held, looked at
in place of tries that fail (4 of 9 calls of flock a commit) 1.00 (ten runs on a busy machine, 0.90 to 1.13). Runs of
the same code against itself gave 0.98 to 1.01.

The floor, from a59005d on, `--warm 1500 --rounds 15 --own-memory 17 --peers floor gtm`: times plain SQLite by the
driver that we use, one writer and four, the range of five runs under interval and six under durable (three of `door`
with one), in hours of which some were busy. `door` is all that a commit journalled as ours must do, in C, without a
check, an error or a recovery; `ringless` leaves the region unmarked; `company` knows who is still to come.

                       interval, NORMAL                 durable, FULL
    ours               0.30 to 0.33  0.30 to 0.39       0.66 to 0.72  1.32 to 1.73
    floor: door        0.49 to 0.57  0.49 to 0.61       0.93 to 0.97  1.68 to 1.92
    floor: ringless    0.61 to 0.74  0.69 to 0.82       0.92 to 0.96  1.78 to 2.05
    floor: company                                                    1.75 to 2.19
    GT.M                                                1.03 to 1.14  1.77 to 2.47

So with a WAL that has grown, this design has 1.3 and 3 in no language, nor 0.6 by one writer. In the first thousand
commits, while plain SQLite's WAL grows (7ebb30c, no `--warm`, three runs of five rounds), the door in C is 1.26, 1.74
and 1.75 times plain FULL with one writer, 2.33, 2.65 and 2.79 with four (company 2.54, 2.60, 2.87), ours 0.95, 1.06 and
1.20, and 1.89, 1.98 and 2.31: there 1.3 would be to be had, 3 would not. Ours is 0.53 to 0.67 of the floor under
interval (CPU µs a commit 36 beside 23 and plain's 11.5 when idle), 0.71 to 0.87 of it under durable, 0.6 to 0.75 and
0.76 to 0.9 in the first thousand.

In vain: compiled by mypyc (the session, door, journal pool, segments, records, locks, capture and bookkeeping; what an
application may subclass, and the transactions' mixins, it does not take), three runs of each in turns: under interval
1.04 to 1.14 times as many commits, CPU 0.86 to 0.93; durable 0.96 to 1.01, for machine code that has gone cold is not
quicker than bytecode that has. On that machine (Zen 3) a bytecode takes 3.1 ns in a loop of some hundred and 5 to 6 in
one of 1800 and more, as the processor cannot foretell so many jumps: a commit has 2100, and took 67 µs of CPU beside
plain's 14 (0.20 to 0.23 of NORMAL; the door in C 27). Of durable's 190 µs the kernel had 103 (the door in C: 98 of
121), CPython's own code 64, SQLite, the binding and libc 30.

Looked through once more against 8317e6a, in memory, CPU at real-time priority, 6 to 10 writer processes of each in
turns (runs of one against itself differ by half a percent): valgrind counts 180,000 instructions of ours a commit, a
third of them in the interpreter's loop. What shows in no profile by sys.setprofile: the hook that keeps the standard
library's sqlite3 out (dbapi/second_library.py) is called for each flock, 0.2 µs each, 4 % of all instructions. One in C
costs nearly as much (0.17: it is the event itself), flock by ctypes more than both (0.6 beside 0.45); and such a hook
cannot be taken off again. A getpid takes 0.17, the function of the guard 0.05 less in C. In vain: failpoints that run
no Python while nothing is armed (a dict's own __getitem__, 0.35 % of the instructions, no time); SQLite's data version
in place of PRAGMA schema_version, now with its own commits told apart (0.99 to 1.005 for one writer); a statement cache
of 32 in place of 100 (25 ns a statement: APSW looks through it from the front).
"""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.benchmarks import floor_commit, peer_gtm, report
from tests.benchmarks.own_memory import own_memory
from tests.benchmarks.street_bench import ROOT, Bench, machine
from tests.harness.checkout import name_of

CASES: Final = ("row", "insert", "update")
POLICIES: Final = {"off": "NORMAL", "interval": "NORMAL", "durable": "FULL"}
"""And what each is measured against."""
SCHEMA: Final = (
    "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, amount REAL)",
    "CREATE TABLE bulk (id INTEGER PRIMARY KEY, name TEXT, amount REAL)",
)
FULL_SHARE: Final = 8
"""A round of a way that waits for the disk at each commit is so many times shorter."""
_WORKER: Final = Path(__file__).with_name("commit_worker.py")


class Measured(NamedTuple):
    """One round of one way."""

    rows_per_s: float
    cpu_us: float


class Way:
    """One way of writing, with a database and any number of writer processes of its own."""

    def __init__(self, name: str, *, waits: bool) -> None:
        self.name = name
        self.waits = waits
        self.rounds: list[Measured] = []
        self._writers: list[subprocess.Popen[str]] = []

    def start(self, words: list[str | Path], environment: dict[str, str], writers: int) -> None:
        """Start writers of ours; they have connected when this returns."""
        self.serve([sys.executable, "-P", str(_WORKER), *map(str, words)], environment, writers)

    def serve(self, command: list[str], environment: dict[str, str], writers: int) -> None:
        """Start processes that serve as commit_worker.py does; they have connected when this returns."""
        for _ in range(writers):
            self._writers.append(
                subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            self._answer(self._writers[-1])

    def run(self, what: str, count: int) -> Measured:
        """Have all writers together write `count` rows."""
        each = count // len(self._writers)
        for writer in self._writers:
            assert writer.stdin is not None
            writer.stdin.write(f"{what} {each}\n")
            writer.stdin.flush()
        told = [self._answer(writer) for writer in self._writers]
        rows = each * len(told)
        wall_s = max(one["ended"] for one in told) - min(one["begun"] for one in told)
        return Measured(rows / wall_s, sum(one["cpu_s"] for one in told) / rows * 1e6)

    def close(self) -> None:
        """End the writers."""
        for writer in self._writers:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.close()
            writer.wait(60)
            writer.stdout.close()

    def _answer(self, writer: subprocess.Popen[str]) -> Any:
        assert writer.stdout is not None
        line = writer.stdout.readline()
        if not line:
            raise RuntimeError(f"a writer of {self.name} has ended, exit code {writer.wait(60)}; it said why above")
        return json.loads(line)


def make_database(path: Path) -> Path:
    """The tables, in WAL mode."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement in SCHEMA:
        connection.execute(statement)
    connection.close()
    return path


def plain(directory: Path, driver: str, synchronous: str, writers: int) -> Way:
    """Plain SQLite."""
    way = Way(driver, waits=synchronous == "FULL")
    way.start([driver, make_database(directory / f"{driver}.db"), synchronous], dict(os.environ), writers)
    return way


def through_the_door(directory: Path, code: Path, policy: str, writers: int) -> tuple[Way, Bench]:
    """`replicate.connect()` of the checkout `code`, to a primary of its own."""
    directory.mkdir()
    bench = Bench(directory, settings=f'[journal]\ndurability = "{policy}"\n')
    bench.code = code
    try:
        bench.make_primary(make_database(directory / "region.db"))
        name = name_of(code) if code == ROOT else f"before: {name_of(code)}"
        way = Way(name, waits=policy == "durable")
        way.start(["replicate", bench.primary, "-"], {**os.environ, "PYTHONPATH": str(code)}, writers)
    except BaseException:
        bench.close()
        raise
    return way, bench


def gtm(directory: Path, writers: int) -> tuple[Way, peer_gtm.Writers]:
    """GT.M, replicated, each transaction durable."""
    peer = peer_gtm.Writers(directory)
    try:
        way = Way("gtm", waits=True)
        way.serve(peer.command, peer.environment, writers)
    except BaseException:
        peer.close()
        raise
    return way, peer


def floor(directory: Path, shared: Path, synchronous: str, writers: int) -> list[Way]:
    """The least that a commit takes, plain and journalled, in C. `shared`: a directory of shared memory."""
    program, made = floor_commit.compiled(directory), []
    for mode in ("plain", "door", "ringless", *(("company",) if synchronous == "FULL" and writers > 1 else ())):
        way = Way(f"floor: {mode}", waits=synchronous == "FULL")
        database = make_database(directory / f"floor-{mode}.db")
        words: list[str | Path] = [program, mode, database, synchronous, str(writers), shared / mode]
        way.serve(list(map(str, words)), dict(os.environ), writers)
        made.append(way)
    return made


def play(ways: list[Way], case: str, arguments: argparse.Namespace) -> int:
    """All rounds; the number of rows in each."""
    rows = arguments.transactions if case == "row" else arguments.rows
    if case == "row" and ways[0].waits:
        rows //= FULL_SHARE
    if case == "row" and arguments.warm:
        for way in ways:
            way.run(case, arguments.warm)
    for number in range(arguments.rounds + 1):
        # Who comes first does so in other rounds last: after a way that leaves much for the disk to do, one is slower
        # (measured: 0.85).
        at = number % len(ways)
        for way in ways[at:] + ways[:at]:
            if case == "update" and not number:
                way.run("insert", rows)
            found = way.run(case, rows)
            if case == "insert":
                way.run("empty", rows)
            if number:  # the first one warms up
                way.rounds.append(found)
    return rows


@contextmanager
def prepared(case: str, policy: str, writers: int, arguments: argparse.Namespace) -> Iterator[list[Way]]:
    """All ways, ours first, their writers waiting; gone in the end with whatever they made."""
    codes = [ROOT, *([arguments.against.resolve()] if arguments.against else [])]
    ways: list[Way] = []
    benches = ExitStack()
    with tempfile.TemporaryDirectory(prefix="bench-commit-", dir=arguments.directory) as name:
        directory = Path(name)
        try:
            for place, code in enumerate(codes):
                way, bench = through_the_door(directory / f"door{place}", code, policy, writers)
                ways.append(way)
                benches.callback(bench.close)
            ways += [plain(directory, driver, POLICIES[policy], writers) for driver in ("apsw", "sqlite3")]
            if "gtm" in arguments.peers and (case, policy) == ("row", "durable"):
                way, peer = gtm(directory, writers)
                ways.append(way)
                benches.callback(peer.close)
            if "floor" in arguments.peers and case == "row":
                shared = benches.enter_context(tempfile.TemporaryDirectory(prefix="bench-floor-", dir="/dev/shm"))
                ways += floor(directory, Path(shared), POLICIES[policy], writers)
            yield ways
        finally:
            for way in ways:
                way.close()
            benches.close()


def profile(case: str, policy: str, writers: int, arguments: argparse.Namespace) -> None:
    """Where the time of a commit of a single row goes; the writer prints it."""
    with prepared(case, policy, writers, arguments) as ways:
        ways[0].run("row", 500)
        ways[0].run("profile", arguments.transactions)


def measure(case: str, policy: str, writers: int, arguments: argparse.Namespace) -> report.Line:
    """One line of the table."""
    facts = machine()
    with prepared(case, policy, writers, arguments) as ways:
        rows = play(ways, case, arguments)
    return report.line(
        "commit",
        unit="rows/s",
        figure={way.name: int(statistics.median(one.rows_per_s for one in way.rounds)) for way in ways},
        settings={
            "rows_a_round": rows,
            "rounds": arguments.rounds,
            "warm": arguments.warm,
            "own_memory_gib": arguments.own_memory,
        },
        facts=facts,
        case=case,
        policy=policy,
        against=f"synchronous = {POLICIES[policy]}",
        writers=writers,
        ratio={way.name: ratio(ways[0], way) for way in ways[1:]},
        **floor_ratios({way.name: way for way in ways}),
        cpu_us={way.name: round(statistics.median(one.cpu_us for one in way.rounds), 2) for way in ways},
    )


def ratio(one: Way, other: Way) -> float:
    """How many times as many rows a second `one` writes, median of the rounds."""
    return round(
        statistics.median(a.rows_per_s / b.rows_per_s for a, b in zip(one.rounds, other.rounds, strict=True)), 3
    )


def floor_ratios(ways: dict[str, Way]) -> dict[str, dict[str, float]]:
    """What a journalled commit in C makes of a plain one: in C, too, and by the driver that we use."""
    doors = [name for name in ways if name.startswith("floor: ") and name != "floor: plain"]
    return {f"{name}, to": {than: ratio(ways[name], ways[than]) for than in ("floor: plain", "apsw")} for name in doors}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=(*CASES, "all"), default="all")
    parser.add_argument("--policy", choices=(*POLICIES, "all"), default="all")
    parser.add_argument("--writers", type=int, help="only so many writers (default: one, and for row also four)")
    parser.add_argument("--transactions", type=int, default=2000, help="single-row ones of each round, all writers")
    parser.add_argument("--rows", type=int, default=50_000, help="of each bulk statement")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--warm", type=int, default=0, help="single rows that each way writes before the first round")
    parser.add_argument("--against", type=Path, help="another checkout, measured in turns with ours")
    parser.add_argument("--directory", help="where to make the databases (default: the temporary directory)")
    parser.add_argument(
        "--peers", nargs="*", choices=("gtm", "floor"), default=[], help="for `row`; gtm under `durable`"
    )
    report.add_table(parser)
    parser.add_argument("--profile", action="store_true", help="profile the door instead, with one writer")
    parser.add_argument("--own-memory", type=float, default=0.0, metavar="GIB", help="see own_memory.py")
    arguments = parser.parse_args()
    cases = CASES if arguments.case == "all" else (arguments.case,)
    policies = POLICIES if arguments.policy == "all" else (arguments.policy,)
    wanted = [
        (case, policy, writers)
        for case in cases
        for policy in policies
        for writers in ((arguments.writers,) if arguments.writers else (1, 4) if case == "row" else (1,))
    ]
    with own_memory(arguments.own_memory):
        if arguments.profile:
            for one in wanted:
                profile(*one, arguments)
        else:
            report.say((measure(*one, arguments) for one in wanted), as_table=arguments.table)


if __name__ == "__main__":
    sys.path.insert(0, os.fspath(ROOT))
    main()
