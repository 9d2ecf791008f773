"""One large transaction through the whole street: a writer, a reader of the secondary, and everybody's memory.

Guarantees: the writer goes through `replicate.connect` in a process of its own, and so does the reader, with the
standard library's SQLite; `pass_through` returns only when the transaction is applied and the reader has seen it whole,
and raises AssertionError when the reader has seen a part of it. Leaves to others: how many rows, and which bounds hold.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Final

from tests.harness.memory import Memory
from tests.harness.street import Street
from tests.harness.waiting import wait_until

SCHEMA: Final = """
CREATE TABLE told (place TEXT PRIMARY KEY, version INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO told VALUES ('first', 0), ('last', 0);
CREATE TABLE item (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, value TEXT NOT NULL);
CREATE TABLE shown (id INTEGER PRIMARY KEY, version INTEGER NOT NULL, twice AS (version * 2) VIRTUAL);
CREATE TABLE setting (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE audit (what TEXT, at INTEGER);
"""
"""`told` is written at both ends of every transaction, so a part of one cannot look like a whole one."""

_NUMBERS = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?2)"
STATEMENTS: Final = {
    "insert": f"{_NUMBERS} INSERT INTO item SELECT i, ?1, printf('%0*d', ?3, i) FROM n",
    "update": "UPDATE item SET version = ?1 WHERE id <= ?2 AND ?3 > 0",
    "delete": "DELETE FROM item WHERE ?1 > 0 AND id <= ?2 AND ?3 > 0",
    "virtual": f"{_NUMBERS} INSERT INTO shown(id, version) SELECT i, ?1 FROM n WHERE ?3 > 0",
    "virtual update": "UPDATE shown SET version = ?1 WHERE id <= ?2 AND ?3 > 0",
}
"""?1: the transaction's version; ?2: how many rows; ?3: how long a value is."""

_WRITER: Final = """
import sys, replicate
connection = replicate.connect(sys.argv[1], timeout=60)
print("ready", flush=True)
version, rows, width, statement = int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
with connection:
    connection.execute("UPDATE told SET version = ? WHERE place = 'first'", (version,))
    connection.execute(statement, (version, rows, width))
    connection.execute("UPDATE told SET version = ? WHERE place = 'last'", (version,))
print(connection.last_seqno, flush=True)
sys.stdin.read()
"""

_READER: Final = """
import json, sqlite3, sys, time
path, version, table, rows, gone = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5] == "delete"
connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
places = sorted({max(1, rows * part // 7) for part in range(8)})
looks, before = 0, None
print("ready", flush=True)
while True:
    connection.execute("BEGIN")
    first, last = (
        connection.execute("SELECT version FROM told WHERE place = ?", (place,)).fetchone()[0]
        for place in ("first", "last")
    )
    found = [connection.execute(f"SELECT version FROM {table} WHERE id = ?", (at,)).fetchone() for at in places]
    connection.execute("COMMIT")
    looks += 1
    whole = first == last and first in (version - 1, version) and len(set(found)) == 1
    if first == version:
        whole = whole and found[0] == (None if gone else (version,))
    else:
        whole = whole and (before is None or before == found)
    before = found
    if not whole:
        print(json.dumps({"looks": looks, "first": first, "last": last, "found": found}), flush=True)
        sys.exit(1)
    if first == version:
        print(json.dumps({"looks": looks}), flush=True)
        break
    time.sleep(0.002)
"""


@dataclass(frozen=True)
class Passed:
    """What one large transaction took. `peaks_mib`: memory of its own of each process."""

    committed_s: float
    applied_s: float
    looks: int
    peaks_mib: dict[str, float]


def pass_through(street: Street, kind: str, rows: int, version: int, *, timeout_s: float, width: int = 14) -> Passed:
    """Have one transaction of `rows` rows written, sent and applied. `version`: 1, 2, 3 … for one after the other.
    `width`: characters of each value."""
    pids = {
        "source": street.pid(street.primary, "source-secondary"),
        "receiver": street.pid(street.secondary, "receiver"),
        "update": street.pid(street.secondary, "update"),
    }
    table = "shown" if kind.startswith("virtual") else "item"
    region = street.secondary / "regions" / "main.db"
    reader = street.python(_READER, str(region), str(version), table, str(rows), kind)
    writer = street.python(_WRITER, str(street.primary), str(version), str(rows), str(width), STATEMENTS[kind])
    pids["writer"] = writer.pid
    memory = Memory(pids)
    memory.start()
    try:
        assert writer.stdout is not None
        assert reader.stdout is not None
        for process in (reader, writer):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.stderr.read() if process.stderr else ""
        begun = time.monotonic()
        line = writer.stdout.readline()
        assert line, writer.communicate()
        committed_s = time.monotonic() - begun
        wait_until(
            lambda: street.on(street.secondary, "wait", "--seqno", line.strip(), "--timeout", "60", check=False)
            .returncode == 0,
            timeout_s=timeout_s, what="the transaction is applied",
        )  # fmt: skip
        applied_s = time.monotonic() - begun
        said = json.loads(reader.stdout.readline())
        assert set(said) == {"looks"}, f"a part of a transaction was to be seen: {said}"
    finally:
        peaks = memory.stop()
    street.finish([writer, reader])
    return Passed(committed_s, applied_s, said["looks"], peaks)
