"""A scripted run leaves in the primary's journal, on the wire and at the secondary the bytes that 8317e6a leaves.

Features that came later, and that the run does not use, change no byte. The digests were taken by running this file
with the checkout of that commit on the path: `PYTHONPATH=CHECKOUT python -P tests/replicate/door/test_primary_bytes.py
DIR`. The script uses nothing but `replicate.connect` and the command line, which that commit has too. Only uuids,
random tokens and the clock are fixed, and not in the daemons: what these draw or read off the clock is left out
(heartbeats, the proof of the key, the token of a large transaction at the secondary). So is what says more by now, on
purpose: the hellos name the features of both; a seed begins another incarnation of the secondary, which the head of its
segment and the catalogue after it bear; the checkpoint of a partition has no chain.
"""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import random
import socket
import struct
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest

from tests.harness.ports import free_port

DIGESTS = {
    "00000000000000000001.journal": "5caec78a6685a47191b0c20b7b04209d",
    "00000000000000000147.journal": "a2c33e5d372f61ab8c21dcdd223d222d",
    "00000000000000000148.journal": "ca745641df51948655421cd6bf25c520",
    "_replicate_ring": "90e177510e65f9e8067b993955215c59",
    "_replicate_scr": "4f53cda18c2baa0c0354bb5f9a3ecbe5",
    "_replicate_state": "023475fec06542c83367e4a1fd1fb7ca",
    "_replicate_table": "b2e759950c8cd38b238ad98abdebe623",
}
STREET = {
    "START, the catalogue": "e440641f61c1c4b35e3bb39fb61b93ac",
    "transactions": "3bfd892dd176e7afd696edf32ecb4267",
    "secondary: 00000000000000000003.journal": "d9c4e9b47c6c5c1b6857548818f3718f",
    "secondary: its rows": "89ee0c0bca06de2a25ac3344a37091d1",
}
OWN_TABLES = ("_replicate_ring", "_replicate_scr", "_replicate_state", "_replicate_table")
SCHEMA = """
    PRAGMA journal_mode = WAL;
    CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT, size REAL);
    CREATE TABLE hidden (k, v);
    CREATE TABLE keyed (a TEXT, b INT, c BLOB, PRIMARY KEY (a, b)) WITHOUT ROWID;
    CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, t TEXT UNIQUE);
    INSERT INTO item VALUES (1, 'before', 1.5);
"""
SETTINGS = '[journal]\ndurability = "off"\npool_bytes = 1048576\nsegment_bytes = 1048576\n'
SEGMENT_HEAD_BYTES = 4096
START, CATALOGUE_CHUNK, CATALOGUE_END, DATA, PARTS, LARGE = range(4, 10)
"""Types of messages, as they are on the wire."""
DEADLINE_S = 60
MANY = "WITH n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 4000)"


class Clock:
    """The wall clock: it stands still until `pass_by`."""

    def __init__(self) -> None:
        self.now_ns = 1_800_000_000_000_000_000

    def time_ns(self) -> int:
        return self.now_ns

    def pass_by(self) -> None:
        self.now_ns += 700_000


def fix(replace: Callable[[Any, str, Any], None]) -> Clock:
    """Have all that is drawn by chance, or read off the clock, be the same in each run."""
    clock = Clock()
    drawn: dict[str, int] = {}

    def drawn_at(frame: FrameType) -> bytes:
        """By the line that asks, and how often it has: another one that asks in between changes nothing."""
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        drawn[line] = drawn.get(line, 0) + 1
        return hashlib.sha256(f"{line} {drawn[line]}".encode()).digest()

    replace(time, "time_ns", clock.time_ns)
    replace(uuid, "uuid4", lambda: uuid.UUID(bytes=drawn_at(sys._getframe(1))[:16], version=4))
    replace(os, "urandom", lambda count: drawn_at(sys._getframe(1))[:count])
    return clock


def command(*words: str | Path) -> None:
    """A command line, in this process."""
    from replicate.cli.main import run

    code = run(list(map(str, words)))
    assert code == 0, words


def write(primary: Path, clock: Clock) -> None:
    """Some of everything: rows of each kind of table, what is rolled back, schema changes, a large transaction."""
    import replicate

    dice = random.Random(5)

    def text(length: int) -> str:
        return "".join(dice.choice("abcdefghij ") for _ in range(length))

    connection = replicate.connect(primary)

    def commit() -> None:
        connection.commit()
        clock.pass_by()

    def change(kind: int) -> None:
        execute = connection.execute
        if kind < 4:
            row = (dice.randrange(1, 200), text(30), dice.random())
            execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", row)
        elif kind < 6:
            execute("UPDATE item SET name = ?, size = NULL WHERE id % 17 = ?", (text(20), dice.randrange(17)))
        elif kind < 7:
            execute("DELETE FROM item WHERE id = ?", (dice.randrange(1, 200),))
        elif kind < 8:
            execute("INSERT INTO hidden VALUES (?, ?)", (dice.choice([1, 1.5, "x", None, b"\0\1"]), text(10)))
        elif kind < 9:
            row_of_key = (text(5), dice.randrange(50), bytes(dice.randrange(256) for _ in range(20)))
            execute("INSERT OR IGNORE INTO keyed VALUES (?, ?, ?)", row_of_key)
        elif kind < 10:
            execute("INSERT OR IGNORE INTO counted (t) VALUES (?)", (text(3),))
        elif kind < 11:
            execute("SAVEPOINT s")
            execute("UPDATE item SET size = size + 1 WHERE id < 20")
            execute("ROLLBACK TO s")
            execute("RELEASE s")
            execute("INSERT INTO hidden VALUES (1, 'after a savepoint')")
        elif kind < 12:
            rows = [(dice.randrange(1, 200), text(8), 1.0) for _ in range(20)]
            connection.executemany("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", rows)
        else:
            execute("UPDATE hidden SET v = ? WHERE k = 1", (text(6),))

    for number in range(1, 400):
        change(dice.randrange(13))
        if number % 3 == 0:
            commit()
        if number % 100 == 0:
            commit()
            connection.execute(f"CREATE TABLE made{number} (id INTEGER PRIMARY KEY, x)")
            connection.execute(f"INSERT INTO made{number} VALUES (1, 2)")
            commit()
            connection.execute(f"ALTER TABLE made{number} ADD COLUMN y DEFAULT 7")
            commit()
        if number % 150 == 0:
            connection.execute("INSERT INTO item VALUES (99999, 'gone', 1)")
            connection.rollback()
    connection.execute(f"{MANY} INSERT INTO hidden SELECT i, printf('%0200d', i) FROM n")
    commit()
    connection.execute("UPDATE hidden SET v = 'short' WHERE typeof(k) = 'integer' AND k % 3 = 0")
    commit()
    connection.close()


def make_primary(directory: Path) -> Path:
    """A primary, and the database that is its region."""
    primary, database = directory / "primary", directory / "main.db"
    made = apsw.Connection(str(database))
    made.execute(SCHEMA).fetchall()  # all of its statements
    made.close()
    command("instance", "create", primary, "--role", "primary", "--name", "primary")
    (primary / "replicate.toml").write_text(SETTINGS)
    command("-i", primary, "region", "add", database, "--name", "main")
    return primary


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def rows(path: Path, tables: tuple[str, ...]) -> bytes:
    plain = apsw.Connection(str(path))
    found = [plain.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables]
    plain.close()
    return repr(found).encode()


def scripted_run(directory: Path, clock: Clock) -> dict[str, str]:
    """The digest of each segment, and of each of our tables in the region, after the run."""
    primary, database = make_primary(directory), directory / "main.db"
    write(primary, clock)
    found = {one.name: one.read_bytes() for one in sorted((primary / "journal").glob("*.journal"))}
    plain = apsw.Connection(str(database))
    for table in OWN_TABLES:
        found[table] = repr(plain.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()).encode()
    plain.close()
    return {name: digest(content) for name, content in found.items()}


class Tap:
    """Passes one connection on to `port`, and keeps what the one who called has said."""

    def __init__(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._to = port
        self.port: int = self._listener.getsockname()[1]
        self.said = bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        caller, _ = self._listener.accept()
        self._listener.close()
        called = socket.create_connection(("127.0.0.1", self._to))
        threading.Thread(target=self._pass, args=(called, caller, bytearray()), daemon=True).start()
        self._pass(caller, called, self.said)

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket, kept: bytearray) -> None:
        while data := one.recv(65536):
            kept += data
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)

    def messages(self) -> Iterator[tuple[int, bytes]]:
        """Type and body of each."""
        at = 0
        while at < len(self.said):
            length, _, kind = struct.unpack_from(">IIB", self.said, at)
            yield kind, bytes(self.said[at + 9 : at + 9 + length])
            at += 9 + length


def after_the_catalogue(segment: bytes) -> bytes:
    """The frames of transactions of a segment: what comes after its head, and after the catalogue."""
    length = int.from_bytes(segment[SEGMENT_HEAD_BYTES + 1 :][:4], "big")
    return segment[SEGMENT_HEAD_BYTES + 10 + length :]


def street_run(directory: Path, clock: Clock) -> dict[str, str]:
    """What goes over the wire when a secondary, seeded before the script, takes it all at once; and what it holds."""
    port = free_port()
    primary, secondary, tap = make_primary(directory), directory / "secondary", Tap(port)
    command("-i", primary, "peer", "add", "secondary", f"127.0.0.1:{tap.port}")
    network = json.loads((primary / "instance.json").read_text())["network"]
    command("instance", "create", secondary, "--role", "secondary", "--name", "secondary", "--network", network)
    (secondary / "replicate.toml").write_text(f'{SETTINGS}[receiver]\nlisten = "127.0.0.1:{port}"\n')
    command("-i", secondary, "seed", "--from", primary)
    write(primary, clock)
    tables = ("item", "hidden", "keyed", "counted", "made100", "made200", "made300", "sqlite_sequence")
    expected = rows(directory / "main.db", tables)
    (copy,) = (secondary / "regions").glob("*.db")
    daemons = ((secondary, "update"), (secondary, "receiver"), (primary, "source"))
    try:
        for instance, daemon in daemons:
            command("-i", instance, daemon, "start")
        command("-i", secondary, "wait", "--seqno", "148", "--timeout", str(DEADLINE_S))
    finally:
        for instance, daemon in reversed(daemons):
            command("-i", instance, daemon, "stop")
    assert rows(copy, tables) == expected
    said = list(tap.messages())
    beginning = b"".join(body for kind, body in said if kind in (START, CATALOGUE_CHUNK, CATALOGUE_END))
    segments = sorted((secondary / "journal").glob("*.journal"))
    return {
        "START, the catalogue": digest(beginning),
        "transactions": digest(b"".join(body for kind, body in said if kind in (DATA, PARTS, LARGE))),
        f"secondary: {segments[0].name}": digest(after_the_catalogue(segments[0].read_bytes())),
        "secondary: its rows": digest(expected),
    }


def test_a_scripted_run_leaves_the_bytes_that_it_always_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    assert scripted_run(tmp_path, fix(monkeypatch.setattr)) == DIGESTS


@pytest.mark.slow
def test_the_wire_and_the_secondary_have_the_bytes_that_they_always_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path))
    assert street_run(tmp_path, fix(monkeypatch.setattr)) == STREET


def main() -> None:
    for name, run in (("primary", scripted_run), ("street", street_run)):
        directory = Path(sys.argv[1], name)
        directory.mkdir()
        os.environ["REPLICATE_SHM_DIR"] = str(directory)
        print(run(directory, fix(setattr)))


if __name__ == "__main__":
    main()
