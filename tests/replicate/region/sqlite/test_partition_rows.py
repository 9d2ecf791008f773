"""region/sqlite/partition_rows.py: each shape of table, with its hidden rowids and counters; what has another shape."""

from __future__ import annotations

import os
from pathlib import Path

import apsw
import pytest

from replicate.errors import CopyTooOldError
from replicate.region.protocol import ScrRow
from replicate.region.sqlite.bookkeeping import read_scr, write_scr
from replicate.region.sqlite.open import install, open_region, write_transaction
from replicate.region.sqlite.partition_rows import beside, drop_some, take_checkpoint, take_rows
from replicate.region.sqlite.schema import assign_partition

SHAPES = {
    "plain": "CREATE TABLE plain (id INTEGER PRIMARY KEY, v)",
    "counted": "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v)",
    "hidden": "CREATE TABLE hidden (v, w UNIQUE)",
    "keyed": "CREATE TABLE keyed (k TEXT, l TEXT, v, PRIMARY KEY (k, l)) WITHOUT ROWID",
    "made": "CREATE TABLE made (a, b AS (a || 'x') STORED, c AS (a || 'y'))",
    "named": "CREATE TABLE named (rowid, _rowid_, v)",
    "strict_": "CREATE TABLE strict_ (id INTEGER PRIMARY KEY, v ANY) STRICT",
    "words": "CREATE VIRTUAL TABLE words USING fts5(text)",
    "boxes": "CREATE VIRTUAL TABLE boxes USING rtree(id, x1, x2)",
    "other": "CREATE TABLE other (id INTEGER PRIMARY KEY, v)",
}
FILL = (
    "INSERT INTO plain VALUES (5, 'five'), (7, x'00')",
    "INSERT INTO counted VALUES (90, 1), (91, 2)",
    "DELETE FROM counted WHERE id = 91",
    "INSERT INTO hidden(rowid, v, w) VALUES (17, 1, 'a'), (4, 2, 'b')",
    "INSERT INTO keyed VALUES ('k', 'l', 1), ('k', 'm', 2)",
    "INSERT INTO made (a) VALUES ('one')",
    "INSERT INTO named(oid, rowid, _rowid_, v) VALUES (33, 1, 2, 3)",
    "INSERT INTO strict_ VALUES (1, '1'), (2, 1)",
    "INSERT INTO words VALUES ('some words'), ('more words')",
    "INSERT INTO boxes VALUES (1, 0, 5), (2, 3, 9)",
    "INSERT INTO other VALUES (1, 'of the copy')",
)
SALES = 2


def make(path: Path, *statements: str, shapes: tuple[str, ...] = tuple(SHAPES)) -> apsw.Connection:
    """A region in which all tables but `other` are in sales."""
    plain = apsw.Connection(os.fspath(path))
    for name in shapes:
        plain.execute(SHAPES[name])
    for statement in statements:
        plain.execute(statement)
    plain.close()
    first = open_region(path, plain=True)
    install(first, network=b"n" * 16, instance=b"i" * 16, region=b"r" * 16, name="main", check=False)
    with write_transaction(first, os.fspath(path)):
        tables = [name for (name,) in first.execute("SELECT name FROM main._replicate_table").fetchall()]
        assign_partition(first, [one for one in tables if one != "other"], SALES, region="main")
    first.close()
    return open_region(path, applier=True)


def content(connection: apsw.Connection) -> dict[str, list[tuple[object, ...]]]:
    found = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr) for name in SHAPES}
    found["rowids"] = connection.execute("SELECT rowid, v FROM hidden UNION ALL SELECT oid, v FROM named").fetchall()
    found["counters"] = connection.execute("SELECT * FROM sqlite_sequence ORDER BY 1").fetchall()
    found["found"] = connection.execute("SELECT rowid FROM words WHERE words MATCH 'more'").fetchall()
    found["boxed"] = connection.execute("SELECT id FROM boxes WHERE x1 > 1").fetchall()
    connection.execute("INSERT INTO words (words) VALUES ('integrity-check')")
    return found


def keeps(number: int) -> bool:
    return number == SALES


def test_each_shape_of_table(tmp_path: Path) -> None:
    make(tmp_path / "copy.db", *FILL).close()
    old = (
        "INSERT INTO plain VALUES (5, 'old')",
        "INSERT INTO counted VALUES (500, 1)",
        "INSERT INTO hidden VALUES (9, 'a')",
        "INSERT INTO words VALUES ('old words')",
        "INSERT INTO other VALUES (8, 'stays')",
    )
    here = make(tmp_path / "here.db", *old)
    told: list[tuple[str, int, int]] = []
    with beside(here, tmp_path / "copy.db"):
        here.execute("BEGIN IMMEDIATE")
        count = take_rows(here, keeps, lambda *one: told.append(one), has_copy=True)
        here.execute("COMMIT")
    assert count == len(told) == 15  # with those in which FTS and R*Tree keep theirs
    copy = open_region(tmp_path / "copy.db", applier=True)
    ours, theirs = content(here), content(copy)
    assert ours.pop("other") == [(8, "stays")]
    assert theirs.pop("other") == [(1, "of the copy")]
    assert ours == theirs
    assert ours["counters"] == [("counted", 91)]
    assert here.execute("PRAGMA integrity_check").get == "ok"
    copy.close()
    here.close()


def test_a_copy_with_other_tables_or_none(tmp_path: Path) -> None:
    here = make(tmp_path / "here.db", *FILL[:2], shapes=("plain", "counted", "other"))
    make(tmp_path / "copy.db", FILL[0], shapes=("plain", "other")).close()
    before = here.execute("SELECT * FROM plain").fetchall()
    with beside(here, tmp_path / "copy.db"), pytest.raises(CopyTooOldError, match="table counted of the copy"):
        take_rows(here, keeps, lambda *_: None, has_copy=True)
    with pytest.raises(CopyTooOldError, match="table counted of the copy"):
        take_rows(here, keeps, lambda *_: None, has_copy=False)
    assert here.execute("SELECT * FROM plain").fetchall() == before
    here.close()


def test_where_no_table_is_of_them_no_copy_is_needed(tmp_path: Path) -> None:
    here = make(tmp_path / "here.db", FILL[-1], shapes=("other",))
    assert take_rows(here, keeps, lambda *_: None, has_copy=False) == 0
    here.close()


def test_checkpoint_records_of_them_alone(tmp_path: Path) -> None:
    here = make(tmp_path / "here.db", shapes=("other",))
    write_scr(here, [ScrRow(7, 0, 9, 1, 1, 9), ScrRow(7, 1, 9, 0, 0, 9), ScrRow(7, SALES, 8, 0, 0, 8)])
    write_scr(here, [ScrRow(6, SALES, 3, 0, 0, 3)])
    take_checkpoint(here, keeps, [ScrRow(7, 0, 4, 1, 1, 4), ScrRow(7, SALES, 5, 0, 0, 5)])
    assert [(one.origin, one.partition, one.origin_seqno) for one in read_scr(here)] == [
        (7, 0, 9),
        (7, 1, 9),
        (7, 2, 5),
    ]
    here.close()


def test_what_a_virtual_table_of_another_partition_keeps_stays(tmp_path: Path) -> None:
    """Also where its name begins as the one whose rows go."""
    path = tmp_path / "here.db"
    plain = apsw.Connection(os.fspath(path))
    for name in ("w", "w_more"):
        plain.execute(f"CREATE VIRTUAL TABLE {name} USING fts5(text)")
        plain.execute(f"INSERT INTO {name} VALUES ('some words')")
    plain.close()
    first = open_region(path, plain=True)
    install(first, network=b"n" * 16, instance=b"i" * 16, region=b"r" * 16, name="main", check=False)
    with write_transaction(first, os.fspath(path)):
        tables = [name for (name,) in first.execute("SELECT name FROM main._replicate_table").fetchall()]
        gone = [one for one in tables if one.startswith("w_") and not one.startswith("w_more_")]
        assert len(assign_partition(first, gone, SALES, region="main")) == 5
    first.close()
    here = open_region(path, applier=True)
    while drop_some(here, keeps, 100):
        pass
    found = [here.execute(f"SELECT count(*) FROM {name} WHERE {name} MATCH 'some'").get for name in ("w", "w_more")]
    assert found == [0, 1]
    here.close()


def test_rows_are_deleted_in_steps(tmp_path: Path) -> None:
    here = make(tmp_path / "here.db", *FILL)
    steps = []
    while count := drop_some(here, keeps, 3):
        steps.append(count)
    assert max(steps[:-1]) == 3  # what virtual tables keep goes at the end, as a whole
    assert len(steps) > 3
    found = content(here)
    assert found.pop("other") == [(1, "of the copy")]
    assert not any(found.values())
    here.execute("INSERT INTO words VALUES ('more words')")
    assert content(here)["found"] == [(1,)]
    assert here.execute("PRAGMA integrity_check").get == "ok"
    here.close()
