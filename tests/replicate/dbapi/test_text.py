"""TEXT that is not UTF-8: refused by name before anything is committed, whichever way it comes in; what a database held
before it became a region is seeded, compared and read, and stays as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate import connect
from replicate.admin.region_release import release_region
from replicate.admin.regions import add_region
from replicate.compare.compare import compare
from replicate.dbapi import NotSupportedError
from tests.harness.pair import Pair, work_all

SCRIPT = """
CREATE TABLE t (id INTEGER PRIMARY KEY, a, b);
CREATE TABLE n (x TEXT, data BLOB);
CREATE TABLE w (k TEXT PRIMARY KEY, v) WITHOUT ROWID;
CREATE TABLE s (id INTEGER PRIMARY KEY, a, g AS (CAST(a AS TEXT)) STORED);
CREATE TABLE v (id INTEGER PRIMARY KEY, a, g AS (length(a)) VIRTUAL);
CREATE TABLE d (id INTEGER PRIMARY KEY, a DEFAULT (CAST(x'ff' AS TEXT)));
CREATE TABLE fired (x);
CREATE TABLE target (x TEXT);
CREATE TRIGGER fire AFTER INSERT ON fired BEGIN INSERT INTO target VALUES (CAST(new.x AS TEXT)); END;
CREATE VIRTUAL TABLE f USING fts5 (body);
INSERT INTO t VALUES (1, CAST(x'61ff62' AS TEXT), 0), (2, 'two', 0), (3, x'fe', 0);
INSERT INTO n VALUES ('n', x'fefe');
INSERT INTO w VALUES (CAST(x'c3' AS TEXT), 1), ('good', 1);
INSERT INTO v (id, a) VALUES (1, CAST(x'ff' AS TEXT)), (2, 'good');
"""

WAYS = {
    "insert": "INSERT INTO t (a) VALUES (CAST(x'ff' AS TEXT))",
    "update": "UPDATE t SET a = CAST(x'c328' AS TEXT) WHERE id = 2",
    "cast of a column": "UPDATE t SET a = CAST(a AS TEXT) WHERE id = 3",
    "insert select": "INSERT INTO n (x) SELECT CAST(data AS TEXT) FROM n",
    "affinity": "INSERT INTO n (x) SELECT a FROM t WHERE id = 1",
    "concatenation": "INSERT INTO n (x) VALUES (x'e4' || 'b')",
    "part of a text": "INSERT INTO n (x) VALUES (CAST(substr(CAST('ä' AS BLOB), 1, 1) AS TEXT))",
    "surrogate": "INSERT INTO n (x) VALUES (CAST(x'eda080' AS TEXT))",
    "upsert": "INSERT INTO t VALUES (2, 1, 1) ON CONFLICT DO UPDATE SET a = CAST(x'ff' AS TEXT)",
    "replace": "REPLACE INTO t VALUES (2, CAST(x'ff' AS TEXT), 1)",
    "returning": "INSERT INTO t (a) VALUES (CAST(x'ff' AS TEXT)) RETURNING id",
    "key": "INSERT INTO w VALUES (CAST(x'ff' AS TEXT), 1)",
    "key change": "UPDATE w SET k = CAST(x'ff' AS TEXT) WHERE k = 'good'",
    "default": "INSERT INTO d (id) VALUES (1)",
    "trigger": "INSERT INTO fired VALUES (x'ff')",
    "generated, stored": "INSERT INTO s (a) VALUES (x'ff')",
    "beside a virtual column": "INSERT INTO v (a) VALUES (CAST(x'ff' AS TEXT))",
    "full-text index": "INSERT INTO f VALUES (CAST(x'61ff' AS TEXT))",
    "create table as": "CREATE TABLE c AS SELECT CAST(x'ff' AS TEXT) AS x",
    "update of what was there": "UPDATE t SET b = 1 WHERE id = 1",
    "mending what was there": "UPDATE t SET a = CAST(a AS BLOB) WHERE id = 1",
    "delete of what was there": "DELETE FROM t WHERE id = 1",
    "update of a key that was there": "UPDATE w SET v = 2",
    "update beside a virtual column": "UPDATE v SET a = 'mended' WHERE id = 1",
    "delete beside a virtual column": "DELETE FROM v",
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICATE_SHM_DIR", "")
        pair = Pair.create(tmp_path_factory.mktemp("text"), SCRIPT)
        pair.seed()
        yield pair


@pytest.fixture
def pair(shared: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shared.directory / "shm"))
    return shared


@pytest.fixture
def connection(pair: Pair) -> Iterator[Any]:
    made = connect(pair.primary.path)
    yield made
    made.close()


def content(pair: Pair) -> list[Any]:
    """Every row of every table, texts as bytes."""
    reader = apsw.Connection(str(pair.primary.region("main").path), flags=apsw.SQLITE_OPEN_READONLY)
    found: list[Any] = []
    for table, columns in (("t", "id,a,b"), ("n", "x,data"), ("w", "k,v"), ("s", "a"), ("v", "a"), ("d", "a"),
                           ("target", "x"), ("f_content", "c0"), ("sqlite_schema", "sql")):  # fmt: skip
        raw = ", ".join(f"typeof({column}), CAST({column} AS BLOB)" for column in columns.split(","))
        where = " WHERE name NOT GLOB '_replicate*'" if table == "sqlite_schema" else ""
        found += reader.execute(f"SELECT {raw} FROM {table}{where}").fetchall()
    reader.close()
    return found


def perform(connection: Any, text: str) -> None:
    """Run a statement and commit."""
    connection.execute(text)
    connection.commit()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a transaction"])
def test_each_way_in_is_refused_by_name(pair: Pair, connection: Any, way: str, alone: bool) -> None:
    before, seqno = content(pair), pair.last_seqno()
    if alone:
        connection.isolation_level = None
    else:
        connection.execute("INSERT INTO n (x) VALUES ('with it')")
    with pytest.raises(NotSupportedError, match="not UTF-8"):
        perform(connection, WAYS[way])
    assert connection.in_transaction is not alone
    if not alone:
        if way != "create table as":  # a schema change that is refused leaves the transaction as it was
            with pytest.raises(NotSupportedError, match="not UTF-8"):
                connection.commit()
        connection.rollback()
    assert (content(pair), pair.last_seqno()) == (before, seqno)
    connection.execute("UPDATE d SET a = 1")  # and the connection goes on
    connection.commit()


@pytest.mark.parametrize("way", ["insert", "beside a virtual column", "update of what was there"])
def test_what_a_savepoint_takes_back_is_forgiven(pair: Pair, connection: Any, way: str) -> None:
    before = pair.last_seqno()
    connection.execute("INSERT INTO n (x) VALUES ('kept')")
    connection.execute("SAVEPOINT one")
    try:
        connection.execute(WAYS[way])
    except NotSupportedError as error:
        assert "not UTF-8" in str(error)  # noqa: PT017 (a virtual column's row is looked at later)
    connection.execute("ROLLBACK TO one")
    connection.commit()
    assert pair.last_seqno() == before + 1


def test_a_text_that_python_cannot_encode_is_refused_as_by_sqlite3(connection: Any) -> None:
    plain = sqlite3.connect(":memory:")
    plain.execute("CREATE TABLE n (x)")
    for one in (plain, connection):
        with pytest.raises(UnicodeEncodeError):
            one.execute("INSERT INTO n (x) VALUES (?)", ("\udc80",))
        with pytest.raises(UnicodeEncodeError):
            one.execute("INSERT INTO n (x) VALUES ('\udc80')")
    plain.close()


def test_what_was_there_is_seeded_and_compared(pair: Pair, connection: Any) -> None:
    connection.execute("UPDATE t SET b = b + 1 WHERE id <> 1")
    connection.execute("DELETE FROM w WHERE k = 'good'")
    connection.commit()
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
        assert applier.applied_seqno == pair.last_seqno()
    assert compare(pair.primary, pair.secondary, timeout_s=5).equal
    with pytest.raises(sqlite3.OperationalError, match="Could not decode to UTF-8"):
        connection.execute("SELECT a FROM t WHERE id = 1").fetchall()
    assert connection.execute("SELECT CAST(a AS BLOB) FROM t WHERE id = 1").fetchall() == [(b"a\xffb",)]
    # One byte is changed on the secondary, in the text that cannot be decoded.
    other = apsw.Connection(str(pair.secondary.region("main").path))
    other.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    other.execute("UPDATE t SET a = CAST(x'61fe62' AS TEXT) WHERE id = 1")
    found = compare(pair.primary, pair.secondary, timeout_s=5)
    other.execute("UPDATE t SET a = CAST(x'61ff62' AS TEXT) WHERE id = 1")
    other.close()
    assert not found.equal
    tables = found.regions[0].comparison.tables
    different = [table for table in tables if table.differences]
    assert [(table.table, table.differences[0].key) for table in different] == [("t", (1,))]
    (column,) = different[0].differences[0].columns
    assert (column.first, column.second) == (b"a\xffb", b"a\xfeb")


def test_the_way_that_the_error_names_mends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path, SCRIPT)
    release_region(pair.primary, "main", timeout_s=5)
    plain = sqlite3.connect(tmp_path / "app.db")
    plain.execute("UPDATE t SET a = CAST(a AS BLOB) WHERE typeof(a) = 'text'")
    plain.commit()
    plain.close()
    add_region(pair.primary, tmp_path / "app.db")
    pair.seed()
    with connect(pair.primary.path) as connection:
        connection.execute("UPDATE t SET b = 7 WHERE id = 1")
    connection.close()
    with pair.receive_pool() as pool, pair.applier(pool) as applier:
        pair.deliver(pool)
        work_all(applier)
    assert compare(pair.primary, pair.secondary, timeout_s=5).equal
    assert pair.rows("t")[0] == (1, 1, b"a\xffb", 7)
