"""RETURNING of many rows: they go to disk beyond a few MiB, and come back as they were, also after the commit."""

from __future__ import annotations

import errno
import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replicate.dbapi import returned_rows as dbapi_returned
from replicate.dbapi.returned_rows import MEMORY_BYTES, ReturnedRows, keep_rows
from replicate.limits import MIB
from tests.harness.fake_door import make_region

ROWS = 1000
VALUES: tuple[Any, ...] = (None, 2**63 - 1, -(2**63), 0.5, float("inf"), -0.0, "ä\0b", "", b"", b"\xff" * 50, "x" * 300)


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(dbapi_returned, "MEMORY_BYTES", 3000)
    monkeypatch.setattr(dbapi_returned, "CHUNK_BYTES", 1000)
    made = make_region(tmp_path / "app.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, a)").connect()
    yield made
    made.close()


def fail(*arguments: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, "no space left")


class FullSoon:
    """os.pwrite of a disk that takes two writes, half of a third one, and no more."""

    def __init__(self) -> None:
        self.calls = 0
        self._write = os.pwrite

    def __call__(self, fd: int, data: bytes, at: int) -> int:
        self.calls += 1
        if self.calls > 3:
            fail()
        return self._write(fd, data[: len(data) // 2] if self.calls == 3 else data, at)


@pytest.mark.parametrize("disk", ["has room", "has none", "is full soon"])
def test_many_rows_come_back_as_they_were(connection: Any, monkeypatch: pytest.MonkeyPatch, disk: str) -> None:
    full = FullSoon()
    if disk == "has none":
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    elif disk == "is full soon":
        monkeypatch.setattr(os, "pwrite", full)
    rows = [(number, VALUES[number % len(VALUES)]) for number in range(ROWS)]
    values = ", ".join("(?, ?)" for _ in rows)
    cursor = connection.execute(
        f"INSERT INTO t VALUES {values} RETURNING id, a", [value for row in rows for value in row]
    )
    assert cursor.rowcount == ROWS
    monkeypatch.undo()
    connection.commit()
    found = [cursor.fetchone(), *cursor.fetchmany(5), *cursor.fetchall()]
    assert [repr(row) for row in found] == [repr(row) for row in rows]  # repr tells 0.0 and -0.0 apart
    assert (full.calls > 3) is (disk == "is full soon")


def test_what_is_not_fetched_gives_its_file_back(connection: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    cursor = connection.execute(
        "WITH RECURSIVE n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 500) "
        "INSERT INTO t SELECT x, x FROM n RETURNING a"
    )
    assert cursor.fetchone() == (1,)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    cursor.execute("SELECT 1")
    assert len(os.listdir("/proc/self/fd")) == before
    assert connection.executemany("INSERT INTO t (a) VALUES (?) RETURNING id", [(1,), (2,)]).rowcount == 0


def test_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        kept = keep_rows((number, f"a text {number}" + "-" * 400) for number in range(40_000))
        count = sum(1 for _ in kept)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(kept, ReturnedRows)
    assert count == 40_000
    assert peak < MEMORY_BYTES + 4 * MIB  # the rows are 20 MB
    assert keep_rows(iter([(1,)])) == [(1,)]
    assert keep_rows(iter(())) == []
