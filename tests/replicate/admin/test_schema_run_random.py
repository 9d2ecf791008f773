"""admin/schema_run.py: an operator who makes each change only when the secondary has stopped for it."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest

import replicate
from replicate.admin import partitions, subscriptions
from replicate.admin.schema_run import run_schema
from replicate.compare.compare import compare
from replicate.dbapi import Connection
from replicate.errors import ConflictError
from replicate.model.elements import DEFINITION
from replicate.region.sqlite.digest import TableVerdict
from replicate.region.sqlite.sql.elements import element_of_text
from tests.harness.pair import Pair

SCHEMA = "CREATE TABLE t0 (id INTEGER PRIMARY KEY, a, b);CREATE TABLE t1 (a, b);CREATE TABLE t2 (a PRIMARY KEY, b)"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, SCHEMA)
    for instance in (made.primary, made.secondary):
        partitions.create(instance, "defs")
        partitions.place_element(instance, DEFINITION, "defs")
    subscriptions.set_(made.secondary, ["DEFAULT"])
    made.seed()
    return made


def tables_of(connection: Connection) -> list[str]:
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return sorted(name for name in names if name[0] in "tun" and name[1:].isdigit())


def columns_of(connection: Connection, table: str) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def a_change(random: Random, connection: Connection, number: int) -> str:
    tables = tables_of(connection)
    table = random.choice(tables)
    column = random.choice(columns_of(connection, table))
    texts = [
        f"ALTER TABLE {table} ADD COLUMN c{number} DEFAULT {number}",
        f"ALTER TABLE {table} ADD COLUMN c{number} TEXT NOT NULL DEFAULT 'x' COLLATE NOCASE",
        f"ALTER TABLE {table} RENAME COLUMN {column} TO r{number}",
        f"ALTER TABLE {table} DROP COLUMN {column}",
        f"ALTER TABLE {table} RENAME TO n{number}",
        f"CREATE TABLE u{number} (id INTEGER PRIMARY KEY AUTOINCREMENT, a, b)",
        f"CREATE TABLE u{number} (a, b, PRIMARY KEY (b)) WITHOUT ROWID",
        f"CREATE INDEX i{number} ON {table} ({column})",
        f"CREATE VIEW v{number} AS SELECT * FROM {table}",
        f"CREATE TRIGGER g{number} AFTER DELETE ON {table} BEGIN DELETE FROM {random.choice(tables)}; END",
    ]
    return random.choice([*texts, *([f"DROP TABLE {table}"] if len(tables) > 2 else [])])


def change(random: Random, connection: Connection, number: int) -> list[str]:
    """One schema change, and then rows of every table; the change, if the secondary does not hear of it."""
    text = a_change(random, connection, number)
    try:
        connection.execute(text)
    except replicate.Error:  # SQLite has a reason: a key, the last column, a view that names it
        connection.rollback()
        return []
    connection.commit()
    for table in tables_of(connection):
        values = ", ".join(str(random.randrange(1 << 40)) for _ in columns_of(connection, table))
        connection.execute(f"INSERT OR IGNORE INTO {table} VALUES ({values})")
        if random.random() < 0.3:
            with suppress(replicate.Error):  # a trigger names a table that is not there any more
                connection.execute(f"DELETE FROM {table} WHERE 1 = {random.randrange(2)}")
    connection.commit()
    return [text]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_who_follows_by_hand_has_every_row(pair: Pair, seed: int) -> None:
    random, number, stopped = Random(seed), 0, 0
    texts: list[str] = []
    for _ in range(6):
        with closing(pair.connect()) as connection:
            for _ in range(random.randrange(1, 5)):
                number += 1
                made = change(random, connection, number)
                texts += [one for one in made if element_of_text(one) == DEFINITION]
            wanted = tables_of(connection)
        while True:
            try:
                pair.catch_up()
                break
            except ConflictError:
                run_schema(pair.secondary, texts.pop(0), where="there")
                stopped += 1
        found = compare(pair.primary, pair.secondary, timeout_s=60)
        assert found.equal, found
        (region,) = found.regions
        assert region.comparison is not None
        status = {one.table: one.status for one in region.comparison.tables}
        assert {status[table] for table in wanted} == {TableVerdict.EQUAL}
    assert stopped
