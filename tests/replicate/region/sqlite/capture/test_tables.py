"""How rows are captured: the images that the hook's rows make, and which tables are captured in another way now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import apsw
import msgpack
import pytest

from replicate.errors import NotSupportedError
from replicate.model.transaction import Op
from replicate.region.sqlite.capture.tables import TableMap, read_table_map, recaptured, with_zeros
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema import read_definitions
from tests.harness.regions import make_region

SCRIPT = """
CREATE TABLE plain (id INTEGER PRIMARY KEY, a);
CREATE TABLE hidden (a, b);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, a);
CREATE TABLE stored (id INTEGER PRIMARY KEY, g AS (a + 1) STORED, a);
CREATE TABLE worked (id INTEGER PRIMARY KEY, g AS (a + 1) VIRTUAL, a);
CREATE TABLE without (k TEXT PRIMARY KEY, g AS (k || 'x') VIRTUAL) WITHOUT ROWID;
"""


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[apsw.Connection]:
    make_region(tmp_path / "main.db", SCRIPT)
    made = open_region(tmp_path / "main.db")
    yield made
    made.close()


def table_map(connection: apsw.Connection) -> TableMap:
    return read_table_map(connection, read_definitions(connection, region="main"))


def test_what_is_known_of_each_table(connection: apsw.Connection) -> None:
    found = table_map(connection)
    facts = {name: (one.plain, one.kept, one.counts, one.net) for name, one in found.tables.items()}
    assert facts == {
        "plain": (True, None, False, False),
        "hidden": (False, None, False, False),
        "counted": (True, None, True, False),
        "stored": (False, (0, 2), False, False),
        "worked": (False, (0, 2), False, True),
        "without": (False, (0,), False, True),
    }
    assert [name for name, one in found.tables.items() if one.refusal is not None] == ["without"]
    assert (found.autoincrement, found.triggers_count, found.virtual, found.partitioned) == (True, False, False, False)


def test_a_trigger_of_the_application_may_count(connection: apsw.Connection) -> None:
    connection.execute("CREATE TRIGGER x AFTER DELETE ON plain BEGIN DELETE FROM hidden; END")
    assert not table_map(connection).triggers_count
    connection.execute("CREATE TRIGGER y AFTER DELETE ON plain BEGIN INSERT INTO counted (a) VALUES (1); END")
    assert table_map(connection).triggers_count
    connection.execute("CREATE VIRTUAL TABLE words USING fts5 (text)")
    assert table_map(connection).virtual


def test_images(connection: apsw.Connection) -> None:
    """Each row of the database, and what the hook would give of it: all stored columns, generated ones among them."""
    tables = table_map(connection).tables
    assert tables["plain"].image(1, (1, "x")) == [1, "x"]
    assert tables["hidden"].image(7, ("x", None)) == [7, "x", None]
    assert tables["stored"].image(3, (3, 6, 5)) == [3, 5]


def test_a_change_of_the_hidden_rowid_is_told_and_else_it_is_not(connection: apsw.Connection) -> None:
    seen = []

    def hook(update: apsw.PreUpdate) -> None:
        if update.op == "UPDATE":
            seen.append(table_map(connection).tables["hidden"].images(update, update.old, update.update))

    connection.execute("INSERT INTO hidden VALUES ('x', 1)")
    connection.preupdate_hook(hook)
    connection.execute("UPDATE hidden SET b = 2; UPDATE hidden SET rowid = 9")
    assert seen == [
        ([1, "x", 1], [apsw.no_change, apsw.no_change, 2]),
        ([1, "x", 2], [9, apsw.no_change, apsw.no_change]),
    ]


def test_minus_zero_is_another_value_than_zero(connection: apsw.Connection) -> None:
    seen = []

    def hook(update: apsw.PreUpdate) -> None:
        if update.op == "UPDATE":
            assert update.old is not None
            assert update.update is not None
            seen.append([repr(one) for one in with_zeros(update, update.old, update.update)])

    connection.execute("INSERT INTO hidden VALUES (0.0, 0.0)")
    connection.preupdate_hook(hook)
    connection.execute("UPDATE hidden SET a = -0.0, b = 0.0; UPDATE hidden SET a = 0.0")
    same = repr(apsw.no_change)
    assert seen == [["-0.0", same], ["0.0", same]]


def test_the_prefixes_are_the_beginnings_of_changes(connection: apsw.Connection) -> None:
    one = table_map(connection).tables["plain"]
    number = one.definition.table_id
    assert one.insert_prefix == b"".join(map(msgpack.packb, (int(Op.INSERT), number, 0)))
    assert one.delete_prefix == b"".join(map(msgpack.packb, (int(Op.DELETE), number, 0)))
    assert one.update_head == b"".join(map(msgpack.packb, (int(Op.UPDATE), number)))


def test_what_is_captured_in_another_way(connection: apsw.Connection) -> None:
    before = table_map(connection)
    assert recaptured(before, table_map(connection)) == []
    connection.execute("CREATE INDEX i ON plain (a); DROP TABLE hidden; ALTER TABLE stored ADD c; CREATE TABLE new (a)")
    assert sorted(recaptured(before, table_map(connection))) == ["hidden", "new", "stored"]
    assert sorted(recaptured(table_map(connection), before)) == ["hidden", "new", "stored"]


def test_a_key_that_is_null_names_no_row(connection: apsw.Connection) -> None:
    connection.execute("CREATE TABLE keyed (a TEXT, b TEXT NOT NULL, c, PRIMARY KEY (a, b))")
    (made,) = [one for one in read_definitions(connection, region="main") if one.table == "keyed"]
    shared = type(made)(made.region, made.partition, made.owner, made.table, made.version, made.columns, (0, 1),
                        False, made.strict, made.without_rowid)  # fmt: skip
    assert shared.is_by_key
    table = read_table_map(connection, [shared]).tables["keyed"]
    assert table.nullable == (0,)
    assert table.image(1, ("k", "l", None)) == ["k", "l", None]
    with pytest.raises(NotSupportedError, match="has no key: a is NULL"):
        table.image(1, (None, "l", 5))
