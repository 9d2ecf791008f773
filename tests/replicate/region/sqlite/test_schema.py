"""Definitions read from a schema, their versions, and the guards that follow it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from replicate.errors import ConflictError, NotSupportedError
from replicate.model.transaction import Column, TableDefinition
from replicate.region.sqlite import guards, schema
from replicate.region.sqlite.open import open_region
from tests.harness.regions import make_region


def define(script: str, table: str = "t") -> TableDefinition:
    connection = apsw.Connection(":memory:")
    try:
        connection.execute(script)
        return schema.read_definition(connection, table, region="main")
    finally:
        connection.close()


@pytest.fixture
def region(tmp_path: Path) -> Iterator[apsw.Connection]:
    make_region(tmp_path / "r.db", "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); CREATE TABLE u (x)")
    connection = open_region(tmp_path / "r.db")
    yield connection
    connection.close()


@pytest.mark.parametrize(
    ("script", "rowid", "key"),
    [
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b)", False, (0,)),
        ("CREATE TABLE t (b, a integer, PRIMARY KEY (a))", False, (1,)),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY DESC, b)", True, (0,)),
        ("CREATE TABLE t (a INT PRIMARY KEY, b)", True, (0,)),
        ("CREATE TABLE t (a, b)", True, (0,)),
        ("CREATE TABLE t (a TEXT PRIMARY KEY, b)", True, (0,)),
        ("CREATE TABLE t (a, b, c, PRIMARY KEY (c, a)) WITHOUT ROWID", False, (2, 0)),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b) WITHOUT ROWID", False, (0,)),
        ("CREATE TABLE t (g AS (a + 1), a INTEGER, PRIMARY KEY (a))", False, (0,)),
        ("CREATE TABLE t (rowid, oid)", True, (0,)),
    ],
)
def test_keys_and_hidden_rowids(script: str, rowid: bool, key: tuple[int, ...]) -> None:
    found = define(script)
    assert (found.rowid, found.key) == (rowid, key)


def test_columns_as_declared() -> None:
    found = define(
        "CREATE TABLE T (a INT NOT NULL, b TEXT COLLATE nocase, v INT AS (a), c BLOB, s INT AS (a) STORED, d ANY)STRICT"
    )
    assert found.table == "T"
    assert found.strict
    assert found.columns == (
        Column("a", "INT", True, "BINARY"),
        Column("b", "TEXT", False, "NOCASE"),
        Column("c", "BLOB", False, "BINARY"),
        Column("d", "ANY", False, "BINARY"),
    )


def test_no_ordinary_table() -> None:
    for table in ("v", "none", "sqlite_sequence"):
        with pytest.raises(NotSupportedError, match=f"{table} is no ordinary table"):
            define("CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT); CREATE VIEW v AS SELECT 1", table)


def test_versions_rise_with_each_change_and_never_come_back(region: apsw.Connection) -> None:
    def record() -> dict[str, int]:
        return {d.table: d.version for d in schema.record_definitions(region, region="main").changed}

    def versions_left() -> list[tuple[str, int]]:
        """Of the tables that are gone."""
        return list(region.execute("SELECT name, version FROM _replicate_table WHERE definition = x''"))

    assert record() == {}
    region.execute("ALTER TABLE t ADD c REAL; CREATE TABLE w (k PRIMARY KEY) WITHOUT ROWID")
    assert record() == {"t": 2, "w": 1}
    assert schema.recorded_definitions(region) == schema.read_definitions(region, region="main")
    region.execute("CREATE INDEX i ON t (c)")
    assert record() == {}
    region.execute("ALTER TABLE t RENAME c TO d")
    assert record() == {"t": 3}
    region.execute("DROP TABLE w")
    assert record() == {}
    assert versions_left() == [("w", 1)]
    region.execute("CREATE TABLE w (k PRIMARY KEY) WITHOUT ROWID")
    assert record() == {"w": 2}
    region.execute("ALTER TABLE u RENAME TO x")
    assert record() == {"x": 1}
    assert versions_left() == [("u", 1)]


def test_a_table_that_is_by_key_stays_so_whatever_becomes_of_it(region: apsw.Connection) -> None:
    region.execute("CREATE TABLE k (a TEXT PRIMARY KEY, b); CREATE TABLE plain (a, b); CREATE TABLE d (i INTEGER "
                   "PRIMARY KEY DESC)")  # fmt: skip
    schema.record_definitions(region, region="main")
    before = region.pragma("schema_version")
    (changed,) = schema.tell_by_key(region, {"k", "plain", "d", "t"})
    assert (changed.table, changed.version, changed.key, changed.rowid, changed.is_by_key) == (
        "k",
        2,
        (0,),
        False,
        True,
    )
    assert region.pragma("schema_version") > before, "open connections read their tables again"
    assert schema.tell_by_key(region, {"k"}) == ()
    assert schema.record_definitions(region, region="main").changed == ()
    region.execute("ALTER TABLE k ADD c")
    (changed,) = schema.record_definitions(region, region="main").changed
    assert (changed.version, changed.is_by_key, len(changed.columns)) == (3, True, 3)
    schema.check_definition(region, changed)
    region.execute("ALTER TABLE k RENAME TO other")
    (changed,) = schema.record_definitions(region, region="main").changed
    assert (changed.table, changed.is_by_key) == ("other", True)
    assert schema.read_definition(region, "other", region="main").is_by_key
    region.execute("DROP TABLE other")
    schema.record_definitions(region, region="main")
    region.execute("CREATE TABLE other (a TEXT PRIMARY KEY)")
    (changed,) = schema.record_definitions(region, region="main").changed
    assert changed.rowid, "that is another table"


def test_a_copy_in_which_nothing_is_recorded_is_read_as_the_region_is(region: apsw.Connection) -> None:
    region.execute("CREATE TABLE k (a TEXT PRIMARY KEY, b)")
    schema.record_definitions(region, region="main")
    schema.tell_by_key(region, {"k"})
    copy = apsw.Connection(":memory:")
    copy.execute("CREATE TABLE k (a TEXT PRIMARY KEY, b); CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
    for pair in ((region, copy), (copy, region)):
        one, other = schema.read_alike(*pair, "k")
        assert schema.definition_difference(one, other) is None
        assert one.is_by_key


def test_a_difference_is_named() -> None:
    one = define("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)")
    for script, message in (
        ("CREATE TABLE t (a INTEGER PRIMARY KEY)", "1 columns instead of 2"),
        (
            "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT COLLATE NOCASE NOT NULL)",
            'column 2 is "b" TEXT NOT NULL COLLATE',
        ),
        ("CREATE TABLE t (b TEXT, a INTEGER PRIMARY KEY)", 'column 1 is "b" TEXT instead of "a" INTEGER'),
        ("CREATE TABLE t (a INTEGER, b TEXT)", "rowid|key"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT) STRICT", "strict is True instead of False"),
    ):
        difference = schema.definition_difference(one, define(script))
        assert difference is not None
        assert any(part in difference for part in message.split("|"))
    assert schema.definition_difference(one, one) is None
    assert schema.column_differences(one, one) == []
    other = define("CREATE TABLE t (a INTEGER PRIMARY KEY NOT NULL, c TEXT COLLATE NOCASE)")
    assert schema.column_differences(one, other) == [
        'it lacks "b" TEXT',
        'it has "c" TEXT COLLATE NOCASE besides',
        'it has "a" INTEGER NOT NULL instead of "a" INTEGER',
    ]


def test_a_local_table_is_checked_against_the_streams_definition(region: apsw.Connection) -> None:
    (t, u) = schema.read_definitions(region, region="main")
    schema.check_definition(region, t)
    region.execute("ALTER TABLE t ADD c; DROP TABLE u")
    with pytest.raises(ConflictError, match="3 columns instead of 2"):
        schema.check_definition(region, t, seqno=9)
    with pytest.raises(ConflictError, match="no such table"):
        schema.check_definition(region, u)


def test_sequences(region: apsw.Connection) -> None:
    assert schema.sequence_value(region, "t") is None
    region.execute("CREATE TABLE n (i INTEGER PRIMARY KEY AUTOINCREMENT, v); INSERT INTO n VALUES (41, 1)")
    assert schema.is_autoincrement(region, "n")
    assert not schema.is_autoincrement(region, "t")
    assert not schema.is_autoincrement(region, "u")
    assert schema.sequence_value(region, "n") == 41
    assert schema.sequence_value(region, "t") is None


def test_guards_follow_created_and_renamed_tables(region: apsw.Connection) -> None:
    def install() -> list[str]:
        return guards.install_guards(region, schema.user_tables(region))

    assert install() == []
    region.execute('ALTER TABLE t RENAME TO "new \'n""ame"; CREATE TABLE w (a PRIMARY KEY) WITHOUT ROWID')
    assert install() == ["new 'n\"ame", "w"]
    assert install() == []
    names = {n for (n,) in region.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'")}
    assert names == {
        guards.guard_name(operation, table)
        for operation in ("insert", "update", "delete")
        for table in ("new 'n\"ame", "u", "w")
    }
    region.execute("INSERT INTO w VALUES (1)")
    guards.remove_guards(region)
    assert region.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").get == 0


def test_a_wide_and_an_oddly_named_table_can_be_guarded(tmp_path: Path) -> None:
    columns = ", ".join(f"c{n}" for n in range(1999))
    make_region(tmp_path / "wide.db", f'CREATE TABLE wide ({columns}); CREATE TABLE "sel\'ect" ("from""", "a.b")')
    connection = open_region(tmp_path / "wide.db")
    connection.execute('INSERT INTO "sel\'ect" VALUES (1, 2)')
    connection.close()
