"""Rows against those that their foreign keys name: what SQLite's own check of a whole table finds, in parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from replicate.region.sqlite.indexes import (
    PARENTS,
    Key,
    Walked,
    WithoutParent,
    has_parents,
    packed_entry,
    unpacked_entry,
    walk,
)

SCHEMA = """
CREATE TABLE number (id INTEGER PRIMARY KEY);
CREATE TABLE word (w TEXT COLLATE NOCASE PRIMARY KEY, x TEXT COLLATE RTRIM UNIQUE);
CREATE TABLE any (v UNIQUE);
CREATE TABLE both (a TEXT, b INTEGER, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE "odd "" name" ("a b" PRIMARY KEY);
CREATE TABLE child (
    id INTEGER PRIMARY KEY, n TEXT REFERENCES number, w INTEGER REFERENCES word, x REFERENCES word (x),
    v TEXT REFERENCES any (v), a REFERENCES "odd "" name", up INTEGER REFERENCES child (id)
);
CREATE TABLE of_both (p TEXT, q, r, PRIMARY KEY (p, q), FOREIGN KEY (r, q) REFERENCES both) WITHOUT ROWID;
CREATE TABLE free (x);
"""
VALUES = (None, 1, 2, "1", "01", "a", "A", "a ", b"a", 1.0, 2.5, "2.5", "")


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(str(tmp_path / "some.db"))) as made:
        made.execute(SCHEMA)
        made.execute("INSERT INTO number VALUES (1), (7)")
        made.execute("INSERT INTO word VALUES ('a', 'a'), ('01', '01'), ('2.5', 'b')")
        made.execute("INSERT INTO any VALUES (1), ('a'), (2.5), (x'61')")
        made.execute("INSERT INTO both VALUES ('a', 1), ('b', 2), ('1', 1)")
        made.execute('INSERT INTO "odd "" name" VALUES (1), (\'a\')')
        for at, value in enumerate(VALUES, 1):
            rows = (at, value, value, value, value, value, at + 1 if at % 2 else None)
            made.execute("INSERT INTO child VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
            made.execute("INSERT INTO of_both VALUES (?, ?, ?)", (f"p{at}", at % 3, value))
        yield made


def rounds(connection: apsw.Connection, table: str, limit: int) -> list[Walked]:
    """All parts of a table."""
    found: list[Walked] = []
    after: Key | None = None
    while True:
        part = walk(connection, table, PARENTS, after, limit=limit)
        found.append(part)
        if part.upto is None:
            return found
        after = unpacked_entry(packed_entry(part.upto))


def counted(parts: list[Walked]) -> dict[str, int]:
    """By the table that is named."""
    found: dict[str, int] = {}
    for one in (one for part in parts for one in part.without_parent):
        found[one.parent] = found.get(one.parent, 0) + one.count
    return found


def checked(connection: apsw.Connection, table: str) -> dict[str, int]:
    """What SQLite says."""
    found: dict[str, int] = {}
    for _, _, parent, _ in connection.execute(f"PRAGMA main.foreign_key_check({table})"):
        found[parent] = found.get(parent, 0) + 1
    return found


@pytest.mark.parametrize("limit", [1, 3, 1000])
@pytest.mark.parametrize("table", ["child", "of_both"])
def test_it_finds_what_sqlite_finds(connection: apsw.Connection, table: str, limit: int) -> None:
    """Whatever the types and collations on both sides are, keys of several columns, a table that names itself."""
    parts = rounds(connection, table, limit)
    wanted = checked(connection, table)
    assert counted(parts) == wanted
    assert len(wanted) == {"child": 5, "of_both": 1}[table]
    assert all(0 < number < 2 * len(VALUES) for number in wanted.values())
    assert sum(part.count for part in parts) == len(VALUES)
    assert not any(part.wrong or part.left_out for part in parts)


def test_the_first_row_of_a_part_is_named(connection: apsw.Connection) -> None:
    connection.execute("DELETE FROM of_both; DELETE FROM child")
    connection.execute("INSERT INTO of_both VALUES ('p', 1, 'a'), ('q', 9, 'a'), ('r', 8, 'a')")
    assert rounds(connection, "of_both", 10)[0].without_parent == [WithoutParent("both", 2, ("q", 9))]


def test_only_a_table_with_a_foreign_key_is_looked_at(connection: apsw.Connection) -> None:
    assert [table for table in ("number", "child", "of_both", "free") if has_parents(connection, table)] == [
        "child",
        "of_both",
    ]
    assert walk(connection, "free", PARENTS, None, limit=10).count == 0
    assert walk(connection, "gone", PARENTS, None, limit=10).count == 0


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("REFERENCES nowhere (id)", "foreign key to nowhere: no such table: main.nowhere"),
        ("REFERENCES number (other)", "foreign key to number: no such column: p.other"),
        ("REFERENCES free (x)", "foreign key to free: no index finds its rows"),
        ("REFERENCES any", "foreign key to any: no such column: p.column 1 of its primary key"),
    ],
)
def test_a_key_that_names_nothing_is_left_out_by_name_and_the_others_are_looked_at(
    connection: apsw.Connection, key: str, why: str
) -> None:
    connection.execute(f"CREATE TABLE some (id INTEGER PRIMARY KEY, a {key}, b REFERENCES number)")
    connection.execute("INSERT INTO some VALUES (1, 1, 1), (2, 1, 2)")
    (part,) = rounds(connection, "some", 10)
    assert part.left_out == {PARENTS: why}
    assert part.without_parent == [WithoutParent("number", 1, (2,))]


def test_many_rows_are_looked_up_by_the_parents_index(connection: apsw.Connection) -> None:
    """Not by a walk through the parent for each: that would take some 10**8 steps here."""
    connection.execute("DELETE FROM child; DELETE FROM of_both; DELETE FROM both")
    numbers = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 10000) SELECT"
    connection.execute(f"INSERT INTO both {numbers} 'k' || i, i FROM n")
    connection.execute(f"INSERT INTO of_both {numbers} 'p' || i, i, 'k' || i FROM n")
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(count, 1000)
    assert counted(rounds(connection, "of_both", 1000)) == {}
    assert steps < 2000
