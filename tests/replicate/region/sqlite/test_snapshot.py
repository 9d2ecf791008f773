"""A region at one moment: what is read, and copied, is of it, whatever is written meanwhile."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.errors import AlreadyExistsError, RegionDamagedError
from replicate.region.sqlite import snapshot
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.snapshot import OpenRegions, copy_pages, reading, size_of, table_with_rows
from tests.harness.regions import REGION, make_database, make_region

SCRIPT = "CREATE TABLE t (a); CREATE TABLE u (a); CREATE VIRTUAL TABLE words USING fts5 (text)"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    make_region(tmp_path / "main.db", SCRIPT)
    return tmp_path / "main.db"


@pytest.fixture
def writer(path: Path) -> Iterator[apsw.Connection]:
    made = open_region(path)
    yield made
    made.close()


def rows(connection: apsw.Connection) -> list[tuple[int, str]]:
    return list(connection.execute("SELECT rowid, a FROM t"))


def test_all_that_is_read_is_of_one_moment(path: Path, writer: apsw.Connection, tmp_path: Path) -> None:
    """Pages that are written, and checkpointed, after it began are in no copy; hidden rowids stay."""
    writer.execute("INSERT INTO t (rowid, a) VALUES (7, 'before')")
    with closing(OpenRegions.open({"main": (path, REGION)})) as opened:
        opened.begin()
        source = opened.connections["main"]
        writer.execute("UPDATE t SET a = 'after'; INSERT INTO u VALUES (1); PRAGMA wal_checkpoint")
        assert rows(source) == [(7, "before")]
        told = list[tuple[int, int]]()
        pages = copy_pages(source, tmp_path / "copy.db", lambda *both: told.append(both))
        assert (size_of(source)[1], told[-1]) == (pages, (pages, pages))
        opened.end()
        opened.begin()
        assert rows(source) == [(7, "after")]
    with closing(apsw.Connection(str(tmp_path / "copy.db"))) as copy:
        assert (rows(copy), list(copy.execute("SELECT * FROM u"))) == ([(7, "before")], [])
    assert stat.S_IMODE(os.stat(tmp_path / "copy.db").st_mode) == 0o600


def test_a_copy_that_is_given_up_leaves_nothing(
    path: Path, writer: apsw.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "PAGES_PER_STEP", 1)
    before = sorted(tmp_path.iterdir())

    def stop(done: int, _whole: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), reading(path) as source:
        copy_pages(source, tmp_path / "copy.db", stop)
    assert sorted(tmp_path.iterdir()) == before


def test_what_is_there_is_not_written_over(path: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_text("mine")
    with pytest.raises(AlreadyExistsError), reading(path) as source:
        copy_pages(source, tmp_path / "copy.db")
    assert (tmp_path / "copy.db").read_text() == "mine"


def test_of_several_none_stays_open_when_one_is_damaged(path: Path, tmp_path: Path) -> None:
    make_region(tmp_path / "other.db", "CREATE TABLE t (a)")
    with (tmp_path / "other.db").open("r+b") as file:
        file.write(b"no database at all, of no kind")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(RegionDamagedError):
        with closing(OpenRegions.open({"main": (path, REGION), "other": (tmp_path / "other.db", REGION)})) as opened:
            opened.begin()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_table_that_has_rows(path: Path, writer: apsw.Connection, tmp_path: Path) -> None:
    """The shadows of a full-text index have rows from the beginning, and are nobody's."""
    assert table_with_rows(writer) == ""
    writer.execute("INSERT INTO words VALUES ('hello')")
    assert table_with_rows(writer) == "words"
    writer.execute("INSERT INTO u VALUES (1)")
    assert table_with_rows(writer) == "u"
    writer.execute("DELETE FROM words; DELETE FROM u")
    assert table_with_rows(writer) == ""
    make_database(tmp_path / "plain.db", "CREATE TABLE t (a); INSERT INTO t VALUES (1)")
    with closing(apsw.Connection(str(tmp_path / "plain.db"))) as plain:
        assert table_with_rows(plain) == ""
