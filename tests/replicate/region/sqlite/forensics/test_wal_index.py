"""wal_index.py, and the finding that follows: a long reader that pins the WAL is named, a busy moment is not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from replicate.region.sqlite.forensics import wal_index
from replicate.region.sqlite.forensics.wal_index import Reader, WalState, find_hindrances, read_wal_state
from replicate.status.collect import collect
from tests.harness.pair import Pair

PINNED_BYTES = 16 * 1024 * 1024
"""In this file: what is written in a moment."""


@pytest.fixture(autouse=True)
def small_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_index, "PINNED_BYTES", PINNED_BYTES)


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
print("reads", flush=True)
sys.stdin.readline()
"""


@contextmanager
def reader(path: Path) -> Iterator[int]:
    """Another process that holds a snapshot of the database; its process id."""
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reads\n"
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(str(tmp_path / "a.db"))
    connection.pragma("journal_mode", "wal")
    connection.wal_autocheckpoint(0)
    connection.execute("CREATE TABLE t (x)")
    yield connection
    connection.close()


def write(connection: apsw.Connection, size: int) -> None:
    connection.execute("INSERT INTO t VALUES (zeroblob(?))", (size,))


def test_frames_and_checkpoint_are_those_that_sqlite_tells(database: apsw.Connection, tmp_path: Path) -> None:
    write(database, 100_000)
    state = read_wal_state(tmp_path / "a.db")
    assert state is not None
    assert (state.page_bytes, state.backfilled, state.readers) == (database.pragma("page_size"), 0, ())
    assert 32 + state.pending_bytes == os.stat(tmp_path / "a.db-wal").st_size
    frames, checkpointed = database.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    state = read_wal_state(tmp_path / "a.db")
    assert state is not None
    assert (state.frames, state.backfilled, state.pending_bytes) == (frames, checkpointed, 0)


def test_a_reader_is_found_with_its_process(database: apsw.Connection, tmp_path: Path) -> None:
    write(database, 1000)
    before = read_wal_state(tmp_path / "a.db")
    assert before is not None
    with reader(tmp_path / "a.db") as pid:
        write(database, 100_000)
        state = read_wal_state(tmp_path / "a.db")
        assert state is not None
        (found,) = state.readers
        assert (found.pid, found.mark) == (pid, before.frames)
        assert f"process {pid} (python" in found.text
        assert find_hindrances(tmp_path / "a.db")[1] == ()  # little was written since it began


def test_looking_drops_no_lock(database: apsw.Connection, tmp_path: Path) -> None:
    """To open and close the -shm file would: then another process could write in the middle of our transaction."""
    database.execute("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)")
    assert read_wal_state(tmp_path / "a.db") is not None
    other = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('INSERT INTO t VALUES (2)').connection"
        ".commit()"
    )
    done = subprocess.run([sys.executable, "-c", other, str(tmp_path / "a.db")], capture_output=True, text=True)
    assert "database is locked" in done.stderr
    database.execute("COMMIT")


def test_nothing_is_told_without_a_connection_here(tmp_path: Path) -> None:
    assert read_wal_state(tmp_path / "none.db") is None
    (tmp_path / "none.db-shm").write_bytes(bytes(32768))
    assert find_hindrances(tmp_path / "none.db") == (None, ())


@pytest.mark.parametrize("kind", ["reader", "reader of the database alone"])
def test_a_long_reader_is_a_finding_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(wal_index, "LOOK_AGAIN_S", 0.01)
    pair = Pair.create(tmp_path)
    (entry,) = pair.primary.regions
    with pair.connect() as connection:
        connection.execute("INSERT INTO entry VALUES ('a', 1.0, NULL)")
        connection.commit()
        if kind != "reader":
            other = apsw.Connection(str(entry.path))
            other.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            other.close()
        with reader(entry.path) as pid:
            connection.execute("INSERT INTO entry VALUES ('b', 1.0, zeroblob(?))", (PINNED_BYTES + 1_000_000,))
            connection.commit()
            status = collect(pair.primary)
            (found,) = [finding for finding in status.findings if finding.code == "WAL_PINNED"]
            assert (found.severity, found.subject) == ("warning", "main")
            assert f"process {pid} (python" in found.text
            assert found.do.endswith(f"kill {pid}")
            (region,) = status.regions
            assert PINNED_BYTES < region.wal_pending_bytes < region.wal_bytes
        connection.execute("INSERT INTO entry VALUES ('c', 1.0, NULL)")
        connection.commit()  # its automatic checkpoint goes through now
        status = collect(pair.primary)
        assert "WAL_PINNED" not in {finding.code for finding in status.findings}
        assert status.regions[0].wal_pending_bytes < PINNED_BYTES
    connection.close()


def test_a_reader_that_moves_on_is_none() -> None:
    old, new = Reader(1, 7, 10), Reader(1, 7, 5000)
    assert WalState(9000, 10, 4096, (old,)).hindrances() == (old,)
    assert WalState(9000, 10, 4096, (new,)).hindrances() == ()
    assert WalState(9000, 8990, 4096, (old,)).hindrances() == ()  # nothing much is left to do
    assert Reader(1, 0, 10).text == "a process"


def test_a_region_that_is_locked_as_a_whole_is_busy_and_no_fault(tmp_path: Path) -> None:
    pair = Pair.create(tmp_path)
    (entry,) = pair.primary.regions
    script = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA locking_mode = EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
"""
    command = [sys.executable, "-c", script, str(entry.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        status = collect(pair.primary)
        process.kill()
    (found,) = [finding for finding in status.findings if finding.subject == "main"]
    assert (found.code, found.severity) == ("REGION_BUSY", "info")
    assert not any(finding.is_wrong for finding in status.findings if finding.subject == "main")
