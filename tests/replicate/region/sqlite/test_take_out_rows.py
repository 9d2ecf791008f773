"""region/sqlite/take_out_rows.py: what is taken out of a copy, and that nothing of it is left. The seeds, in
tests/replicate/admin/test_subscriptions.py, use it on real regions."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest

from replicate.errors import InternalError, ReplicateError
from replicate.region.sqlite import take_out_rows
from replicate.region.sqlite.schema import assign_partition, record_definitions
from replicate.region.sqlite.snapshot import copy_pages
from replicate.region.sqlite.take_out_rows import take_out
from tests.harness.instances import make_primary

SCRIPT = """
CREATE TABLE kept (id INTEGER PRIMARY KEY AUTOINCREMENT, v UNIQUE);
CREATE TABLE gone (id INTEGER PRIMARY KEY AUTOINCREMENT, v UNIQUE);
CREATE TABLE child (id INTEGER PRIMARY KEY, parent REFERENCES gone (id) ON DELETE CASCADE);
CREATE TRIGGER at_delete AFTER DELETE ON gone BEGIN INSERT INTO kept (v) VALUES ('by the trigger'); END;
CREATE VIEW both AS SELECT v FROM kept UNION SELECT v FROM gone;
INSERT INTO kept (v) VALUES ('stays'), ('stays, too');
INSERT INTO gone (v) SELECT 'gone-for-good' || value FROM json_each('[1, 2, 3, 4, 5, 6, 7, 8, 9]');
INSERT INTO child VALUES (1, 1), (2, 2);
DELETE FROM gone WHERE id = 3;
DELETE FROM kept WHERE v = 'by the trigger';
"""


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = make_primary(tmp_path / "east", script=SCRIPT)
    connection = apsw.Connection(str(made.region("main").path))
    connection.execute("BEGIN")
    assign_partition(connection, ["gone"], 2, region="main")
    connection.execute("COMMIT")
    copy_pages(connection, tmp_path / "copy.db")
    connection.close()
    return tmp_path / "copy.db"


def objects(connection: apsw.Connection) -> list[tuple[object, ...]]:
    return list(connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY 1, 2"))


def test_nothing_is_left_of_it_and_everything_else_is(copy: Path) -> None:
    before = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    was = objects(before)
    kept = list(before.execute("SELECT * FROM kept"))
    before.close()
    assert b"gone-for-good" in copy.read_bytes()
    assert take_out(copy, lambda number: number != 2) == ["gone"]
    assert sorted(path.name for path in copy.parent.glob("copy.db*")) == ["copy.db"]
    assert b"gone-for-good" not in copy.read_bytes()
    after = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    assert objects(after) == was
    assert after.execute("SELECT count(*) FROM gone").get == 0
    assert list(after.execute("SELECT * FROM kept")) == kept
    assert list(after.execute("SELECT * FROM child")) == [(1, 1), (2, 2)]
    assert list(after.execute("SELECT name FROM sqlite_sequence")) == [("kept",)]
    assert after.pragma("integrity_check") == "ok"
    after.close()


def test_rowids_stay_and_if_they_did_not_it_would_be_refused(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table without a key of its own, with holes, and of one that calls a column rowid."""
    connection = apsw.Connection(str(copy))
    connection.execute("CREATE TABLE loose (a); CREATE TABLE odd (rowid TEXT, a)")
    for table in ("loose", "odd"):
        connection.execute(f"INSERT INTO {table} (a) SELECT value FROM json_each('[1, 2, 3, 4, 5, 6, 7]')")
        connection.execute(f"DELETE FROM {table} WHERE a IN (1, 4, 5)")
    connection.execute("BEGIN")
    record_definitions(connection, region="main")
    connection.execute("COMMIT")
    kept = [list(connection.execute(f"SELECT _rowid_, a FROM {table}")) for table in ("loose", "odd")]
    connection.close()
    shutil.copy(copy, copy.with_name("other.db"))
    take_out(copy, lambda number: number != 2)
    after = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    assert [list(after.execute(f"SELECT _rowid_, a FROM {table}")) for table in ("loose", "odd")] == kept
    after.close()
    real = take_out_rows._check_rowids

    def moved(connection: apsw.Connection, again: Path) -> None:
        other = apsw.Connection(str(again))
        other.execute("UPDATE odd SET _rowid_ = 50 WHERE a = 7")
        other.close()
        real(connection, again)

    monkeypatch.setattr(take_out_rows, "_check_rowids", moved)
    with pytest.raises(InternalError, match="the copy of table odd has other rowids"):
        take_out(copy.with_name("other.db"), lambda number: number != 2)


def test_of_what_is_kept_as_a_whole_no_byte_changes(copy: Path) -> None:
    before = copy.read_bytes()[100:]
    assert take_out(copy, lambda number: number in (1, 2)) == []
    assert copy.read_bytes()[100:] == before


def test_what_is_no_copy_of_a_region(tmp_path: Path) -> None:
    (tmp_path / "copy.db").write_bytes(b"SQLite format 3\0" + bytes(4080))
    with pytest.raises((ReplicateError, apsw.Error)):
        take_out(tmp_path / "copy.db", lambda number: False)
