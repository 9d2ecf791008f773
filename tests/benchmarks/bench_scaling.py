"""Scaling: what costs more when the journal is long, rows are wide, tables or secondaries are many.

Run: python -m tests.benchmarks.bench_scaling [--part PART] [--transactions N] [--backlog N] [--rounds N]
     [--own-memory GIB] [--table] …

Parts: journal (start, resynchronization and status beside a journal of 1,000 transactions and one of N, 20 million if
nothing else is said: frames of comments, which our own commit door appends, many at a time); width (values of 10 bytes
to 1 MiB); tables (1 to 1000, the same backlog spread over them); secondaries (1 to 4, all catching up at once).

Each backlog is written once, and caught up with by other secondaries in each round; figures are medians of the rounds.

Prints one JSON line for each part. Seconds of `journal` are those of the whole command as an operator waits for it:
`recover` is the first start after the machine's (nothing in shared memory), `start` that of a Source Server beside a
secondary that is level, `resync` until it streams, `status` one look; `command` is one that does nothing, which each of
them includes. Elsewhere rows and MB of values a second from the first one applied, or where it was over before anybody
saw that one, from the start of the Source Server on (`since`). Nothing is asserted.

The longest way of a resynchronization leads through a newest segment that is full of the shortest frames. Through
650,000 of them the source's answer and its first read take 0.15 s of CPU (0.63 s when each was verified, and the place
looked for twice). A Source Server's imports take 0.5 s of CPU, those of the command that starts it 0.17.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import apsw

import replicate
from replicate.bench.catch_up import catch_up, write
from replicate.bench.street import Bench, attach, machine, make_database, wait_for
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import InternalError
from replicate.instance.instance import Instance
from replicate.journal.record import FrameBatch, pack_elements, pack_frame, read_head
from replicate.model.transaction import Kind, Op
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivePool
from tests.benchmarks import report
from tests.benchmarks.bench_catch_up import forget, middle
from tests.benchmarks.own_memory import own_memory

PARTS: Final = ("journal", "width", "tables", "secondaries")
SHORT: Final = 1_000
AT_ONCE: Final = 20_000
"""Frames appended together when a journal is lengthened."""
WIDTHS: Final = (10, 100, 1_000, 10_000, 100_000, 1 << 20)
WIDTH_BYTES_MAX: Final = 512 << 20
"""Of one backlog of wide rows."""
TABLES: Final = (1, 10, 100, 1000)
SECONDARIES: Final = (1, 2, 4)


def lengthen(instance: Path, count: int) -> int:
    """Append `count` transactions to a primary's journal that change no row; its last seqno."""
    door = open_door(Instance.open(instance))
    payload, elements = pack_elements(int(Op.COMMENT), 0, 0, ["bench"])
    try:
        words = door.words
        while count:
            number = min(count, AT_ONCE)
            with door.locked():
                first = words[word.LAST_SEQNO] + 1
                chain, origin, csn = words[word.OWN_CHAIN], words[word.OWN_ORIGIN], words[word.LAST_CSN]
                origin_seqno, mark = words[word.OWN_ORIGIN_SEQNO], words[word.LAST_DURABLE_SEQNO]
                frames = []
                for place in range(number):
                    frame, chain = pack_frame(
                        Kind.TRANSACTION, first + place, mark, chain, origin, origin_seqno + place + 1,
                        csn + place + 1, payload, elements,
                    )  # fmt: skip
                    frames.append(frame)
                data, last = b"".join(frames), first + number - 1
                door.append(data, first, 0)
                door.finish_batch(FrameBatch(first, last, number, data), read_head(frames[-1]))
            count -= number
        door.sync_to_end()
        return int(words[word.LAST_SEQNO])
    finally:
        close_door(door)


def seconds_of(call: Any, *words: Any) -> float:
    """How long a call takes."""
    begun = time.perf_counter()
    call(*words)
    return time.perf_counter() - begun


def journal(directory: Path, count: int, rounds: int) -> dict[str, Any]:
    """Start, resynchronization and status, with so many transactions in the journal."""
    database = directory / "app.db"
    make_database(database, 10, 100)
    bench = Bench(directory)
    found: dict[str, list[float]] = {"command": [], "recover": [], "start": [], "resync": [], "status": []}
    try:
        bench.make_primary(database)
        kept = bench.add_secondary("keeps")  # it never comes again, and keeps the journal from being pruned
        lengthen(bench.primary, count)
        open_once(bench.primary, -1)  # a region that was never written to would be looked for in all of it
        last = lengthen(bench.primary, 1)
        level = bench.add_secondary("level")
        for number in range(rounds):
            for file in bench.shared_memory.iterdir():
                file.unlink()  # as a start of the machine does
            found["command"].append(seconds_of(bench.run, "-i", bench.primary, "config", "show"))
            found["recover"].append(seconds_of(open_once, bench.primary, number))
            bench.start_receiver(level)
            bench.run("-i", level, "update", "start")
            begun = time.perf_counter()
            found["start"].append(seconds_of(bench.run, "-i", bench.primary, "source", "start", "--peer", "level"))
            pool = attach(level)
            until_applied(pool, last + number + 1)
            pool.close()
            found["resync"].append(time.perf_counter() - begun)
            found["status"].append(seconds_of(status, bench))
            bench.run("-i", bench.primary, "source", "stop", "--peer", "level")
            bench.run("-i", level, "receiver", "stop")
            bench.run("-i", level, "update", "stop")
        size = sum(file.stat().st_size for file in (bench.primary / "journal").iterdir())
    except BaseException:
        print(bench.complaints(), file=sys.stderr)
        raise
    finally:
        bench.close()
    assert kept.exists()
    return {"journal_mb": size // 1_000_000} | {
        what: round(statistics.median(taken), 3) for what, taken in found.items()
    }


def open_once(primary: Path, number: int) -> None:
    """Recovery, and one commit after it, in this process (which has imported everything)."""
    connection = replicate.connect(primary)
    connection.execute("INSERT INTO item VALUES (?, 'x')", (1_000_000 + number,))
    connection.commit()
    connection.close()


def until_applied(pool: ReceivePool, seqno: int) -> None:
    """The Update Process has applied it."""
    wait_for(lambda: pool.applied_seqno >= seqno, f"transaction {seqno} is applied", timeout_s=120)


def status(bench: Bench) -> None:
    """One look; findings (the peer that never comes) are no failure."""
    try:
        bench.run("-i", bench.primary, "status")
    except InternalError as error:
        if "PEER_NOT_CONNECTED" not in str(error) and "DAEMON_STOPPED" not in str(error):
            raise


def one_street(directory: Path, database: Path, secondaries: int = 1) -> tuple[Bench, list[Path]]:
    """A primary over `database`, and secondaries that are down."""
    bench = Bench(directory, settings='[journal]\ndurability = "off"\n')
    try:
        bench.make_primary(database)
        return bench, [bench.add_secondary(f"s{number}") for number in range(secondaries)]
    except BaseException:
        bench.close()
        raise


def rounds_of(bench: Bench, places: list[Path], last: int, count: int, size: int) -> dict[str, Any]:
    """A round with each secondary: rows and MB of values of `size` bytes a second, and what they cost."""
    found = []
    for place in places:
        found.append(catch_up(bench, place, last, count))
        forget(bench, place)
    one = middle(found)
    rate = one["from_first"] or one["from_start"]
    return {
        "rows": count,
        "rows_per_s": rate,
        "since": "first applied" if one["from_first"] else "start of the Source Server",
        "mb_per_s": round(rate * size / 1e6, 1),
        "cpu_us_update": one["cpu_us"]["update"],
        "memory_mib": max(one["memory_mib"].values()),
    }


def width(directory: Path, size: int, backlog: int, rounds: int) -> dict[str, Any]:
    """Values of `size` bytes."""
    count = max(20, min(backlog, WIDTH_BYTES_MAX // size))
    database = directory / "app.db"
    make_database(database, 0, 0)
    bench, places = one_street(directory, database, rounds)
    try:
        connection = replicate.connect(bench.primary)
        for number in range(count):
            connection.execute("INSERT INTO item VALUES (?, ?)", (number, "v" * size))
            connection.commit()
        last = connection.last_seqno
        connection.close()
        return rounds_of(bench, places, last or 0, count, size)
    finally:
        bench.close()


def tables(directory: Path, many: int, backlog: int, rounds: int) -> dict[str, Any]:
    """The backlog spread over so many tables, one after the other."""
    database = directory / "app.db"
    plain = apsw.Connection(str(database))
    with plain:
        for number in range(many):
            plain.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
    plain.close()
    bench, places = one_street(directory, database, rounds)
    try:
        connection = replicate.connect(bench.primary)
        for number in range(backlog):
            connection.execute(f"INSERT INTO t{number % many} VALUES (?, ?)", (number, "v" * 100))
            connection.commit()
        last = connection.last_seqno
        connection.close()
        return rounds_of(bench, places, last or 0, backlog, 100)
    finally:
        bench.close()


def secondaries(directory: Path, many: int, backlog: int, rounds: int) -> dict[str, Any]:
    """So many secondaries, from the start of the first Source Server until the last one is level and durable."""
    database = directory / "app.db"
    make_database(database, 0, 0)
    bench, places = one_street(directory, database, many * rounds)
    try:
        last, count = write(bench.primary, "insert", backlog)
        taken = [level_s(bench, places[at : at + many], last) for at in range(0, len(places), many)]
        seconds = statistics.median(taken)
        return {"rows_per_s_each": int(count / seconds), "rows_per_s_all": int(many * count / seconds)}
    finally:
        bench.close()


def level_s(bench: Bench, places: list[Path], last: int) -> float:
    """One round: the seconds until all of these secondaries are level."""
    pools = []
    for place in places:
        bench.start_receiver(place)
        bench.run("-i", place, "update", "start")
        pools.append(attach(place))
    begun = time.perf_counter()
    for place in places:
        bench.run("-i", bench.primary, "source", "start", "--peer", place.name)
    ended = wait_for(lambda: all(pool.durable_seqno >= last for pool in pools), "all are level")
    for pool in pools:
        pool.close()
    for place in places:
        bench.run("-i", bench.primary, "source", "stop", "--peer", place.name)
        bench.run("-i", place, "receiver", "stop")
        bench.run("-i", place, "update", "stop")
        forget(bench, place)
    return ended - begun


def measure(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One part."""
    facts = machine()
    figure: dict[str, Any] = {}
    rounds, backlog = arguments.rounds, arguments.backlog
    calls: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
        "journal": (journal, (SHORT, arguments.transactions), (rounds,)),
        "width": (width, WIDTHS, (backlog, rounds)),
        "tables": (tables, TABLES, (backlog, rounds)),
        "secondaries": (secondaries, SECONDARIES, (backlog, rounds)),
    }
    call, sizes, words = calls[part]
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="bench-scaling-", dir=arguments.directory) as name:
            figure[str(size)] = call(Path(name), size, *words)
    return report.line(
        "scaling",
        unit="s" if part == "journal" else report.IN_THE_NAMES,
        figure=figure,
        settings={"backlog": backlog, "rounds": rounds, "own_memory_gib": arguments.own_memory},
        facts=facts,
        part=part,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=(*PARTS, "all"), default="all")
    parser.add_argument("--transactions", type=int, default=20_000_000, help="of the long journal")
    parser.add_argument("--backlog", type=int, default=500_000, help="rows, elsewhere")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--own-memory", type=float, default=0.0, metavar="GIB", help="see own_memory.py")
    parser.add_argument("--directory", help="where to make the instances (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    with own_memory(arguments.own_memory):
        parts = PARTS if arguments.part == "all" else (arguments.part,)
        report.say((measure(part, arguments) for part in parts), as_table=arguments.table)


if __name__ == "__main__":
    main()
