"""How many transactions a second `replicate audit` reads, by what is asked for.

Run: python -m tests.benchmarks.bench_audit [--transactions N] [--rounds N] [--table] [--directory DIR]

One journal of N transactions of one row each (three tables; inserts and updates in turn), made beforehand, in the page
cache. Asked are: counts by table and operation (no frame is decoded), counts by hour and origin, a table's changes, the
changes of one row, one row's history (backwards), a time of a hundredth, everything decoded, and everything as JSON
Lines (of those of the last tenth). The work of one process; start and the look at the journal's end are in the time.
A smaller N has as many segments, and the same figures within their noise: 100,000 take a minute.

Prints one JSON line for each: transactions read a second, the best of the rounds, and the CPU time of each in µs.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack

from replicate.audit.count import Counts
from replicate.audit.query import Query, find
from replicate.audit.row import row_history
from replicate.audit.selection import row_named
from replicate.audit.show import document, told
from replicate.journal.chain import Chain
from replicate.model.transaction import Op, mask_of
from tests.benchmarks import report
from tests.benchmarks.street_bench import machine
from tests.harness.journals import ToyJournal, define_payload, insert_payload, make_definition

SEGMENT_TRANSACTIONS = 250_000
SEGMENTS = 4
"""At least; the newest one holds nothing yet."""
JSON_PART = 10
AS_JSON = "as JSON Lines"
TABLES = ("customer", "purchase", "event")


def make_journal(directory: Path, count: int, segment_transactions: int = SEGMENT_TRANSACTIONS) -> Chain:
    """`count` transactions after those that define the tables; a row has about 110 bytes."""
    toy = ToyJournal(directory)
    definitions = [make_definition(name) for name in TABLES]
    for definition in definitions:
        toy.append(toy.maker.transaction(payload=define_payload(definition)))
        toy.catalogue = toy.catalogue.with_definition(definition)
    frames = []
    for number in range(count):
        ident = definitions[number % len(TABLES)].table_id
        if number % 2:
            payload = insert_payload([number, f"name {number}", "x" * 90], ident)
        else:
            values = ["b", number, f"name {number}", "x" * 90]
            payload = b"".join(map(msgpack.packb, (int(Op.UPDATE), ident, mask_of((1,), 3), values))), 4
        frames.append(toy.maker.transaction(payload=payload))
        if len(frames) == 1000 or number == count - 1:
            toy.append(b"".join(frames))
            frames.clear()
        if number % segment_transactions == segment_transactions - 1:
            toy.append(b"".join(frames))
            frames.clear()
            toy.switch()
    toy.sidecar.write(toy.last_seqno)
    toy.close()
    return toy.chain


def _count(chain: Chain, by: tuple[str, ...]) -> None:
    counts = Counts(by)
    counts.add(find(chain, Query()).frames())
    assert list(counts.rows())


def _read(chain: Chain, query: Query) -> None:
    for _ in find(chain, query):
        pass


def _row(chain: Chain) -> None:
    found = find(chain, Query(tables=("customer",), ops=("insert", "update", "delete")))
    (name,) = found.selection.tables
    assert len(list(row_history(found, *row_named(["303"], found.known().in_force()[name])))) == 1


def _json(chain: Chain, count: int) -> None:
    for one in told(find(chain, Query(last_count=count)), parts=True):
        json.dumps(document(one))


def questions(count: int) -> dict[str, Callable[[Chain], None]]:
    """What is asked, by its name."""
    middle = count // 2
    return {
        "count by table, op": lambda chain: _count(chain, ("table", "op")),
        "count by hour, origin": lambda chain: _count(chain, ("hour", "origin")),
        "a table of three": lambda chain: _read(chain, Query(tables=("purchase",))),
        "one key": lambda chain: _read(chain, Query(tables=("purchase",), key=(str(middle),))),
        "a hundredth of the time": lambda chain: _read(
            chain, Query(first_csn=middle << 16, last_csn=middle + count // 100 << 16)
        ),
        "an operation that there is not": lambda chain: _read(chain, Query(ops=("delete",))),
        "a row's history": _row,
        "everything": lambda chain: _read(chain, Query()),
        AS_JSON: lambda chain: _json(chain, count // JSON_PART),
    }


def measure(arguments: argparse.Namespace) -> Iterator[report.Line]:
    """A line for each question."""
    facts = machine()
    gc.set_threshold(200_000, 50, 100)  # as the command does
    with tempfile.TemporaryDirectory(prefix="bench-audit-", dir=arguments.directory) as name:
        count = arguments.transactions
        chain = make_journal(Path(name) / "journal", count, min(SEGMENT_TRANSACTIONS, max(1, count // SEGMENTS)))
        for what, ask in questions(count).items():
            read = count // JSON_PART if what == AS_JSON else count
            rates, cpus = [], []
            for _ in range(arguments.rounds):
                begin, cpu = time.perf_counter(), time.process_time()
                ask(chain)
                rates.append(read / (time.perf_counter() - begin))
                cpus.append((time.process_time() - cpu) / read * 1e6)
            figure = {"per_s": round(max(rates)), "cpu_us": round(min(cpus), 3)}
            settings = {"transactions": count, "rounds": arguments.rounds}
            yield report.line(
                "audit", unit=report.IN_THE_NAMES, figure=figure, settings=settings, facts=facts, what=what
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to make the journal (default: the temporary directory)")
    report.add_table(parser)
    arguments = parser.parse_args()
    report.say(measure(arguments), as_table=arguments.table)


if __name__ == "__main__":
    main()
