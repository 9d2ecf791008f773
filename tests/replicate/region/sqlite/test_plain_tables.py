"""region/sqlite/plain_tables.py: of a region's copy the tables of some partitions, plain."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from replicate.region.sqlite.open import install, open_region
from replicate.region.sqlite.plain_tables import PlainTables, make_plain
from replicate.region.sqlite.schema import assign_partition, recorded_definitions

OURS = 2
SCHEMA = """
CREATE TABLE parent (id INTEGER PRIMARY KEY, v);
CREATE TABLE child (id INTEGER PRIMARY KEY AUTOINCREMENT, p REFERENCES parent, q REFERENCES child,
                    twice AS (p * 2), kept AS (p + 1) STORED);
CREATE TABLE pile (v, w);
CREATE TABLE other (id INTEGER PRIMARY KEY, v);
CREATE INDEX child_p ON child (p);
CREATE VIRTUAL TABLE words USING fts5 (text);
CREATE VIRTUAL TABLE seen USING fts5vocab (words, row);
CREATE VIRTUAL TABLE far USING fts5 (text);
CREATE VIRTUAL TABLE seen_far USING fts5vocab (far, row);
CREATE VIEW upon AS SELECT * FROM plain;
CREATE VIEW plain AS SELECT id, p FROM child;
CREATE VIEW joined AS SELECT child.id FROM child JOIN other USING (id);
CREATE VIEW upon_joined AS SELECT * FROM joined;
CREATE TRIGGER fine AFTER UPDATE OF p ON child BEGIN INSERT INTO pile VALUES (new.id, 1); END;
CREATE TRIGGER lost AFTER DELETE ON child BEGIN DELETE FROM other WHERE id = old.id; END;
CREATE TRIGGER asks AFTER INSERT ON pile WHEN EXISTS (SELECT 1 FROM parent) BEGIN SELECT 1; END;
CREATE TRIGGER through INSTEAD OF INSERT ON plain BEGIN INSERT INTO child (p) VALUES (new.p); END;
CREATE TRIGGER through_lost INSTEAD OF UPDATE ON plain BEGIN INSERT INTO other (v) VALUES (new.p); END;
CREATE TRIGGER of_joined INSTEAD OF DELETE ON joined BEGIN SELECT 1; END;
CREATE TRIGGER of_other AFTER DELETE ON other BEGIN SELECT 1; END;
INSERT INTO parent VALUES (1, 'secret of parent'), (2, 'b');
INSERT INTO child (id, p) VALUES (1, 1), (7, 2), (90, 1);
DELETE FROM child WHERE id = 90;
INSERT INTO pile (rowid, v) VALUES (3, 'c'), (5, 'e');
INSERT INTO other VALUES (1, 'secret of other');
INSERT INTO words VALUES ('some words'), ('more words');
INSERT INTO far VALUES ('secret of far');
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """`child`, `pile` and `words` in a partition of ours."""
    path = tmp_path / "region.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    connection_of = open_region(path, plain=True)
    install(connection_of, network=bytes(16), instance=uuid.uuid4().bytes, region=uuid.uuid4().bytes, name="main")
    names = [
        one.table for one in recorded_definitions(connection_of) if one.table.startswith(("child", "pile", "words"))
    ]
    connection_of.execute("BEGIN IMMEDIATE")
    assign_partition(connection_of, names, OURS, region="main")
    connection_of.execute("COMMIT")
    connection_of.close()
    return path


def test_tables_with_all_that_is_theirs_and_nothing_else(copy: Path) -> None:
    made = make_plain(copy, lambda number: number == OURS)
    assert made == PlainTables(
        ("child", "pile", "words"),
        ("asks", "joined", "lost", "of_joined", "of_other", "seen_far", "through_lost", "upon_joined"),
        (("child", "parent"),),
    )
    with closing(sqlite3.connect(copy)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        shadows = {name for name in names if name.startswith("words_")}
        assert names - shadows == {
            *("child", "child_p", "fine", "pile", "plain", "seen", "sqlite_sequence", "through", "upon", "words"),
        }
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert connection.execute("SELECT id, p, twice, kept FROM child").fetchall() == [(1, 1, 2, 2), (7, 2, 4, 3)]
        assert connection.execute("SELECT rowid, v FROM pile").fetchall() == [(3, "c"), (5, "e")]
        assert connection.execute("SELECT rowid FROM words WHERE words MATCH 'more'").fetchall() == [(2,)]
        assert connection.execute("SELECT term FROM seen").fetchall() == [("more",), ("some",), ("words",)]
        connection.execute("INSERT INTO plain (p) VALUES (5)")  # by its trigger, and with the next number
        assert connection.execute("SELECT max(id) FROM child").fetchone() == (91,)
        connection.execute("UPDATE child SET p = 6 WHERE id = 7")
        assert connection.execute("SELECT v, w FROM pile WHERE w").fetchall() == [(7, 1)]
        connection.execute("ALTER TABLE child RENAME TO kid")  # SQLite looks at every view and trigger then
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    data = copy.read_bytes()
    assert b"some words" in data
    assert b"secret" not in data
    assert [one.name for one in copy.parent.iterdir()] == [copy.name]


def test_all_of_it(copy: Path) -> None:
    made = make_plain(copy, lambda _number: True)
    assert made == PlainTables(("child", "far", "other", "parent", "pile", "words"))
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT * FROM other").fetchall() == [(1, "secret of other")]
        assert not connection.execute(
            "SELECT name FROM sqlite_schema WHERE name LIKE '\\_replicate%' ESCAPE '\\'"
        ).fetchall()
