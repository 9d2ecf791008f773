"""A primary and a secondary for tests of replays: tables of each kind, scripts as transactions, and their equality.

Guarantees: `assert_equal` looks at rows, numbers, the secondary's journal and the AUTOINCREMENT counters.
Refuses to know: how a replay works.
"""

from __future__ import annotations

from typing import Any

import apsw

from replicate.compare.compare import compare
from replicate.instance.instance import Instance
from replicate.journal.verify import verify_journal
from tests.harness.pair import Pair
from update_process.replay.command import replay

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT NOT NULL UNIQUE, balance INTEGER, note);
CREATE TABLE entry (at TEXT, amount REAL, data BLOB);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE TABLE pair (a TEXT, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
INSERT INTO account VALUES (1, 'one', 1, NULL), (2, 'two', 2, NULL), (3, 'three', 3, NULL);
INSERT INTO counted (v) VALUES ('first');
"""


def run(pair: Pair, *scripts: str) -> int:
    """Each script is one transaction on the primary."""
    connection = pair.connect()
    for script in scripts:
        for statement in script.split(";"):
            connection.execute(statement)
        connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def replayed(pair: Pair, **options: Any) -> Any:
    return replay(pair.secondary, [pair.primary.path], **options)


def assert_equal(pair: Pair) -> None:
    found = compare(pair.primary, pair.secondary, timeout_s=5)
    assert found.equal, found
    assert found.seqno == pair.last_seqno() == pair.last_seqno(pair.secondary)
    assert not verify_journal(pair.secondary).findings
    assert sequences(pair.primary) == sequences(pair.secondary)


def sequences(instance: Instance) -> list[Any]:
    connection = apsw.Connection(str(instance.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return connection.execute("SELECT * FROM sqlite_sequence ORDER BY 1").fetchall()
    finally:
        connection.close()
