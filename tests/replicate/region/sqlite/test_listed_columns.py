"""region/sqlite/listed_columns.py: what comes to such a table is blank, wherever its statement is run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.admin import subscriptions
from replicate.region.sqlite.listed_columns import (
    ListedTable,
    blank_new_columns,
    listed_tables,
    note_listed,
    take_notes,
)
from tests.harness.pair import Pair

SCHEMA = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b); CREATE TABLE u (id INTEGER PRIMARY KEY, a)"


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    made.execute(f"{SCHEMA}; CREATE TABLE _replicate_state (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    made.execute("CREATE TABLE _replicate_table (name, version, partition, definition)")
    made.execute("INSERT INTO t VALUES (1, 'a', 'b'), (2, 'a', 'b'); INSERT INTO u VALUES (1, 'a')")
    return made


def test_what_is_new_is_blank_and_nothing_else(connection: apsw.Connection) -> None:
    assert listed_tables(connection) == {}
    blank_new_columns(connection, {})
    note_listed(connection, "t", ("ID", "a"))
    before = listed_tables(connection)
    assert before == {"t": ListedTable(frozenset(("id", "a")), frozenset(("id", "a", "b")))}
    connection.execute("ALTER TABLE t ADD COLUMN c TEXT NOT NULL DEFAULT 'all'; ALTER TABLE t ADD COLUMN d DEFAULT 7")
    connection.execute("ALTER TABLE u ADD COLUMN c DEFAULT 7")
    blank_new_columns(connection, before)
    assert connection.execute("SELECT * FROM t").fetchall() == [(1, "a", "b", "", None), (2, "a", "b", "", None)]
    assert connection.execute("SELECT * FROM u").fetchall() == [(1, "a", 7)]
    before = listed_tables(connection)
    connection.execute("DROP TABLE t")
    blank_new_columns(connection, before)
    assert listed_tables(connection) == {}


@pytest.mark.parametrize("there", [None, ("id",)])
def test_notes_of_a_copy_take_the_place_of_those_here(connection: apsw.Connection, there: Any) -> None:
    connection.execute("ATTACH ':memory:' AS side; CREATE TABLE side._replicate_state (key PRIMARY KEY, value)")
    note_listed(connection, "t", ("id", "a"))
    note_listed(connection, "u", ("id",))
    if there:
        connection.execute("INSERT INTO side._replicate_state SELECT key, x'91a26964' FROM main._replicate_state")
    take_notes(connection, ["t"], "side")
    found = {table: one.listed for table, one in listed_tables(connection).items()}
    assert found == {"u": frozenset(("id",)), **({"t": frozenset(("id",))} if there else {})}
    take_notes(connection, ["t", "u"], "")
    assert listed_tables(connection) == {}


@pytest.mark.parametrize("columns", ["id, a", "id, a, b"])
def test_a_new_column_with_a_default_on_a_secondary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """Also where all columns were listed that there were; and rows that change after that fit."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, SCHEMA)
    subscriptions.filter_(pair.secondary, "t", f"COLUMNS ({columns})")
    with closing(pair.connect()) as connection:
        connection.execute("INSERT INTO t VALUES (1, 'a', 'b'), (2, 'a', 'b')")
        connection.commit()
        pair.seed()
        connection.execute("ALTER TABLE t ADD COLUMN c REAL NOT NULL DEFAULT 7")
        connection.commit()
        connection.execute("INSERT INTO t VALUES (3, 'a', 'b', 8)")
        connection.execute("UPDATE t SET a = 'z' WHERE id > 1")
        connection.commit()
    pair.catch_up()
    b = "b" if "b" in columns else None
    (entry,) = pair.secondary.regions
    with closing(apsw.Connection(str(entry.path), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
        assert reader.execute("SELECT * FROM t").fetchall() == [(1, "a", b, 0.0), (2, "z", b, 0.0), (3, "z", b, 0.0)]
