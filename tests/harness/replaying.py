"""A primary and a secondary for tests of replays: tables of each kind, scripts as transactions, and their equality.

Guarantees: `assert_equal` looks at rows, numbers, the secondary's journal and the AUTOINCREMENT counters.
`archive_segments` makes what `replicate archive` makes, but for the rows, which only Spark reads.
Leaves to others: how a replay works.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import apsw

from replicate.audit.verify import verify_journal
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import read_head
from replicate.journal.walk import walk
from tests.harness.pair import Pair
from tests.harness.pair import assert_equal as pair_equal
from update_process.replay.archive.files import LocalFiles, pack_file
from update_process.replay.archive.manifest import Range, SegmentCopy, write_range
from update_process.replay.backlog import Journals
from update_process.replay.command import replay

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE, balance INTEGER, note);
CREATE TABLE entry (at TEXT, amount REAL, data BLOB);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE pair (a TEXT, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
INSERT INTO account VALUES (1, 'one', 1, NULL), (2, 'two', 2, NULL), (3, 'three', 3, NULL);
INSERT INTO counted (v) VALUES ('first');
"""
MIXED = (
    "UPDATE account SET balance = balance + 1",
    "INSERT INTO account VALUES (4, 'four', 4, 'new'); DELETE FROM account WHERE id = 3",
    "INSERT INTO entry VALUES ('a', 1.5, x'00'); INSERT INTO entry VALUES ('a', 1.5, x'00')",
    "DELETE FROM entry WHERE rowid = 1",
    "INSERT INTO counted (v) VALUES (1); INSERT INTO counted (v) VALUES (2)",
    "DELETE FROM counted WHERE v = 2",
    "INSERT INTO pair VALUES ('x', 1, 1); INSERT INTO pair VALUES ('x', 2.5, NULL)",
    "UPDATE pair SET a = 'y' WHERE b = 1; UPDATE account SET id = 40 WHERE id = 4",
    "INSERT INTO account VALUES (50, 'passing', 0, NULL)",
    "DELETE FROM account WHERE id = 50",
)
"""A transaction each: many that collapse, rows that come and go, keys of each kind."""


def replayed(pair: Pair, **options: Any) -> Any:
    return replay(pair.secondary, [pair.primary.path], **options)


def assert_equal(pair: Pair) -> None:
    pair_equal(pair)
    assert pair.last_seqno() == pair.last_seqno(pair.secondary)
    assert not verify_journal(pair.secondary).findings
    assert sequences(pair.primary) == sequences(pair.secondary)


def sequences(instance: Instance) -> list[Any]:
    connection = apsw.Connection(str(instance.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute("SELECT * FROM sqlite_sequence ORDER BY 1").fetchall()
    finally:
        connection.close()


def csns(instance: Instance) -> dict[int, int]:
    """The csn of every transaction in an instance's journal."""
    journals = Journals([instance.path], instance.content.network)
    made: dict[int, int] = {}
    for found in journals.read(journals.oldest_seqno(), journals.last_seqno):
        if isinstance(found, LargeTransaction):
            heads = [read_head(found.commit_frame)]
        else:
            heads = [head for _, head in walk(found.data)]
        made.update((head.seqno, head.csn) for head in heads)
    return made


def archive_segments(instance: Instance, directory: Path, *, range_segments: int = 2) -> Path:
    """An archive of the sealed segments of an instance's journal."""
    files, chain, known = LocalFiles(directory), Chain(instance.journal_directory), csns(instance)
    numbers = chain.first_seqnos()
    bounds = [(first, following - 1) for first, following in pairwise(numbers)]
    for at in range(0, len(bounds), range_segments):
        taken = bounds[at : at + range_segments]
        first, last = taken[0][0], taken[-1][1]
        copies = []
        for low, high in taken:
            source = Path(chain.path_of(low))
            packed = directory / "segments" / f"{first:020d}-{last:020d}" / f"{source.name}.zst"
            packed.parent.mkdir(parents=True, exist_ok=True)
            copies.append(SegmentCopy(source.name, low, high, *pack_file(source, packed)))
        content = instance.content
        csn = max(known[seqno] for seqno in range(first, last + 1))
        made = Range(
            content.network.hex(), content.uuid.hex(), first, last, last - first + 1, 0, csn, {}, tuple(copies)
        )
        write_range(files, made)
    return directory
