"""region/sqlite/read_progress.py: a scan is counted to its end, by the pages that it reads, and never beyond that."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.region.sqlite.read_progress import Reading


@pytest.fixture
def connection(tmp_path: Path) -> apsw.Connection:
    path = tmp_path / "x.db"
    with apsw.Connection(str(path)) as made:
        made.execute("PRAGMA page_size = 1024; CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        made.execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000) "
            "INSERT INTO t SELECT i, hex(zeroblob(100)) FROM n"
        )
    return apsw.Connection(str(path))


def test_a_scan_is_told_as_it_goes(connection: apsw.Connection) -> None:
    reading = Reading(connection)
    whole = int(connection.pragma("page_count")) * 1024
    assert (reading.whole_bytes, reading.done_bytes) == (whole, 0)
    told = []
    for count, _ in enumerate(connection.execute("SELECT text FROM t")):
        if count % 500 == 0:
            told.append(reading.done_bytes)
    assert told == sorted(told)
    assert len(set(told)) == 8
    assert told[-1] < reading.done_bytes <= whole
    assert reading.done_bytes > 0.95 * whole


def test_what_was_read_before_does_not_count_and_the_whole_is_not_passed(connection: apsw.Connection) -> None:
    connection.execute("PRAGMA cache_size = 10")
    list(connection.execute("SELECT text FROM t"))
    reading = Reading(connection, passes=2)
    assert reading.done_bytes == 0
    for _ in range(4):  # more often than was said
        list(connection.execute("SELECT text FROM t"))
    assert reading.done_bytes == reading.whole_bytes == 2 * int(connection.pragma("page_count")) * 1024
