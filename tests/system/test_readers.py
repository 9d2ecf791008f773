"""Anybody may read the secondary at any moment: every snapshot is a whole-transaction prefix of the primary, and a
later one is never an earlier prefix.

Each transaction of the load has a number, and what it makes of the database follows from the number alone. So a reader
(the standard library's SQLite, in a process of its own) knows for each number what all of the tables hold, and compares
all of it with what it sees in one snapshot: rows of several tables, rows that go, large transactions, and the schema.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.harness.street import Street
from tests.harness.waiting import wait_until

SETTINGS = """
    [journal]
    durability = "interval"
    pool_bytes = 1048576
    [receiver]
    pool_bytes = 4194304
    [update]
    batch_transactions = 50
"""

SCHEMA = """
CREATE TABLE counter (id INTEGER PRIMARY KEY, n INTEGER NOT NULL);
INSERT INTO counter VALUES (1, 0);
CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL);
INSERT INTO account SELECT value, 1000 FROM json_each('[0,1,2,3,4,5,6,7,8,9]');
CREATE TABLE recent (n INTEGER PRIMARY KEY, square TEXT UNIQUE);
CREATE TABLE bulk (n INTEGER, i INTEGER, double AS (i * 2) VIRTUAL);
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE audit (what TEXT, at INTEGER);
CREATE TABLE made_0 (n);
"""

LARGE_EACH = 30
MADE_EACH = 12
BULK_ROWS = 20_000
"""More than a frame takes: such a transaction passes in parts."""

LOAD = """
import sys, replicate
instance, large_each, made_each, bulk_rows = sys.argv[1], *map(int, sys.argv[2:])
connection = replicate.connect(instance, timeout=60, isolation_level=None)
print("ready", flush=True)
while True:
    connection.execute("BEGIN IMMEDIATE")
    n = connection.execute("SELECT n + 1 FROM counter").fetchone()[0]
    connection.execute("UPDATE account SET balance = balance - ? WHERE id = ?", (n, n % 10))
    connection.execute("INSERT INTO recent VALUES (?, ?)", (n, str(n * n)))
    if n % large_each == 0:
        connection.execute("DELETE FROM bulk")
        connection.executemany("INSERT INTO bulk (n, i) VALUES (?, ?)", ((n, i) for i in range(bulk_rows)))
    if n % made_each == 0:
        connection.execute(f"DROP TABLE made_{n - made_each}")
        connection.execute(f"CREATE TABLE made_{n} (n)")
        connection.execute(f"INSERT INTO made_{n} VALUES ({n})")
    connection.execute("UPDATE account SET balance = balance + ? WHERE id = ?", (n, n * 7 % 10))
    connection.execute("DELETE FROM recent WHERE n <= ?", (n - 50,))
    connection.execute("UPDATE counter SET n = ?", (n,))
    connection.execute("COMMIT")
"""

READER = """
import json, os, sqlite3, sys
path, ended = sys.argv[1:3]
large_each, made_each, bulk_rows, fresh = map(int, sys.argv[3:])

def opened():
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None, timeout=30)

def look(connection):
    def rows(sql):
        return connection.execute(sql).fetchall()
    connection.execute("BEGIN")
    made = [name for (name,) in rows("SELECT name FROM sqlite_schema WHERE name LIKE 'made%'")]
    found = {
        "n": rows("SELECT n FROM counter")[0][0],
        "account": rows("SELECT balance FROM account ORDER BY id"),
        "recent": rows("SELECT n, square FROM recent ORDER BY n"),
        "bulk": rows("SELECT count(*), min(n), max(n), sum(double), count(DISTINCT i) FROM bulk"),
        "made": [(name, rows(f"SELECT n FROM {name}")) for name in made],
    }
    connection.execute("COMMIT")
    return found

balances, at = [1000] * 10, 0

def expected(n):
    global at
    while at < n:
        at += 1
        balances[at % 10] -= at
        balances[at * 7 % 10] += at
    large, made = n - n % large_each, n - n % made_each
    bulk = (bulk_rows, large, large, bulk_rows * (bulk_rows - 1), bulk_rows) if large else (0, None, None, None, 0)
    return {
        "n": n,
        "account": [(balance,) for balance in balances],
        "recent": [(m, str(m * m)) for m in range(max(1, n - 49), n + 1)],
        "bulk": [bulk],
        "made": [(f"made_{made}", [(made,)] if made else [])],
    }

connection = opened()
looks, seen = 0, set()
print("ready", flush=True)
while not os.path.exists(ended) or at < int(open(ended).read()):
    if fresh:
        connection.close()
        connection = opened()
    found = look(connection)
    if found["n"] < at:
        sys.exit(f"transaction {at} was there, and then only {found['n']}")
    wanted = expected(found["n"])
    for part in wanted:
        if found[part] != wanted[part]:
            sys.exit(f"as of transaction {found['n']}, {part} should be {wanted[part]}, is {found[part]}")
    looks += 1
    seen.add(at)
print(json.dumps({"looks": looks, "seen": len(seen)}))
"""

COUNTED = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT n FROM counter').fetchone()[0])"

pytestmark = pytest.mark.slow


def begin(street: Street, ended: Path) -> tuple[list[subprocess.Popen[str]], list[subprocess.Popen[str]]]:
    """Two readers of the secondary (one of them opens it again for every look) that end when they have seen the number
    in the file `ended`, and two writers of the load."""
    figures = [str(number) for number in (LARGE_EACH, MADE_EACH, BULK_ROWS)]
    region = str(street.secondary / "regions" / "main.db")
    readers = [street.python(READER, region, str(ended), *figures, fresh) for fresh in ("0", "1")]
    writers = [street.python(LOAD, str(street.primary), *figures) for _ in range(2)]
    for process in (*readers, *writers):
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
    return readers, writers


def test_every_snapshot_is_a_whole_transaction_prefix(street: Street) -> None:
    ended = street.directory / "ended"
    readers, writers = begin(street, ended)
    port = street.port()
    starts = {"update": street.start_update, "receiver": lambda: street.start_receiver(f"127.0.0.1:{port}")}
    for name, start in starts.items():
        before = street.last_seqno(street.secondary)
        wait_until(
            lambda before=before: street.last_seqno(street.secondary) > before + LARGE_EACH,
            timeout_s=180,
            what="it runs",
        )
        street.kill(street.secondary, name)
        start()
    for writer in writers:
        assert writer.poll() is None, writer.communicate()
        writer.kill()
        wait_until(lambda writer=writer: writer.poll() is not None, what="the writer is gone")
    street.prove_equal()
    counted = street.python(COUNTED, str(street.database)).communicate(timeout=120)[0]
    (street.directory / "ended.part").write_text(counted)
    (street.directory / "ended.part").rename(ended)
    for reader in readers:
        output, errors = reader.communicate(timeout=120)
        assert reader.returncode == 0, errors
        said = json.loads(output)
        assert said["looks"] > 20
        assert said["seen"] > 5
    assert int(counted) > 2 * LARGE_EACH
