"""The differences from plain SQLite that application.md lists under "What differs from sqlite3", each as it stands."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

import replicate
from replicate.admin.regions import add_region
from replicate.instance.instance import Instance

SCHEMA = """
CREATE TABLE s (a INTEGER PRIMARY KEY, b INTEGER) STRICT;
CREATE TABLE parent (a INTEGER, b);
CREATE TABLE child (a INTEGER REFERENCES parent (a));
"""


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[apsw.Connection]:
    made = apsw.Connection(str(tmp_path / "plain.db"))
    made.execute(SCHEMA)
    yield made
    made.close()


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[replicate.Connection]:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(shm))
    database = apsw.Connection(str(tmp_path / "ours.db"))
    database.execute(SCHEMA)
    database.close()
    instance = Instance.create(tmp_path / "east", role="primary")
    add_region(instance, tmp_path / "ours.db")
    made = replicate.connect(str(instance.path))
    yield made
    made.close()


@pytest.mark.parametrize("policy", ["IGNORE", "FAIL"])
def test_strict(plain: apsw.Connection, ours: replicate.Connection, policy: str) -> None:
    statement = f"INSERT OR {policy} INTO s VALUES (1, 1), (2, 'x'), (3, 3)"
    with pytest.raises(apsw.ConstraintError, match="cannot store TEXT"):
        plain.execute(statement)
    with pytest.raises(replicate.IntegrityError, match="cannot store TEXT"):
        ours.execute(statement)
    assert plain.execute("SELECT a FROM s").fetchall() == []
    assert ours.execute("SELECT a FROM s").fetchall() == []


def test_mismatch(plain: apsw.Connection, ours: replicate.Connection) -> None:
    for connection in (plain, ours):
        connection.execute("PRAGMA foreign_keys = ON")
        for statement in ("INSERT INTO child VALUES (1)", "DELETE FROM parent"):
            with pytest.raises((apsw.SQLError, replicate.OperationalError), match="foreign key mismatch"):
                connection.execute(statement)
    plain.execute("INSERT INTO parent VALUES (1, 1)")
    with pytest.raises(replicate.OperationalError, match="foreign key mismatch"):
        ours.execute("INSERT INTO parent VALUES (1, 1)")


def test_changes_after_a_commit(ours: replicate.Connection) -> None:
    before = ours.total_changes
    cursor = ours.execute("INSERT INTO s VALUES (1, 1), (2, 2)")
    assert ours.execute("SELECT changes()").fetchone() == (2,)
    ours.commit()
    assert ours.execute("SELECT changes()").fetchone() == (1,)
    assert (cursor.rowcount, ours.total_changes - before) == (2, 2)


def test_last_insert_rowid_within_an_insert(plain: apsw.Connection, ours: replicate.Connection) -> None:
    found = []
    for connection in (plain, ours):
        connection.execute("INSERT INTO s VALUES (10, 0)")
        connection.execute("INSERT INTO s SELECT k.column1, last_insert_rowid() FROM (VALUES (1), (2)) AS k")
        found.append(connection.execute("SELECT b FROM s WHERE a < 10 ORDER BY a").fetchall())
    assert found == [[(10,), (1,)], [(10,), (10,)]]


def test_a_statement_whose_triggers_nest_too_deep_is_taken_back_whole(
    plain: apsw.Connection, ours: replicate.Connection
) -> None:
    """Found by the differential test: without guards SQLite sees nothing in this DELETE that could fail half way, so it
    keeps no way back for it; and then it does fail."""
    left = []
    for connection in (plain, ours):
        connection.execute("PRAGMA recursive_triggers = ON")
        connection.execute("CREATE TABLE t (b, d)")
        connection.execute("CREATE TRIGGER g BEFORE DELETE ON t BEGIN DELETE FROM t WHERE b IS old.d; END")
        connection.execute("INSERT INTO t VALUES (-1, -7), (1, 5), (7, 7)")  # the last one asks for itself
        if connection is ours:
            ours.commit()
        else:
            plain.execute("BEGIN")  # as ours does; alone, the statement would be a transaction, and roll back
        with pytest.raises((apsw.SQLError, replicate.OperationalError), match="triggers nested too deep"):
            connection.execute("DELETE FROM t")
        left.append(connection.execute("SELECT b FROM t").fetchall())
    assert left == [[(7,)], [(-1,), (1,), (7,)]]


def test_a_failed_drop_of_a_column_leaves_triggers_as_they_were(
    plain: apsw.Connection, ours: replicate.Connection
) -> None:
    """Found by the differential test (seed 105-plain-2-6), on its plain side."""
    for connection in (plain, ours):
        connection.execute("CREATE TABLE t (a, b)")
        connection.execute("CREATE TRIGGER g AFTER DELETE ON parent BEGIN UPDATE t SET b = 1 WHERE b > 1; END")
        connection.execute("CREATE TRIGGER h AFTER UPDATE ON parent BEGIN DELETE FROM parent WHERE a = new.a; END")
        if connection is ours:
            ours.commit()
        connection.execute("BEGIN")
        with pytest.raises((apsw.SQLError, replicate.OperationalError), match="error in trigger g"):
            connection.execute("ALTER TABLE t DROP COLUMN b")
    with pytest.raises(apsw.SQLError, match="no such column: b"):
        plain.execute("UPDATE parent SET b = 1")
    ours.execute("UPDATE parent SET b = 1")


def test_what_an_authorizer_ignored_comes_back_when_it_is_taken_off(ours: replicate.Connection) -> None:
    def ignore(action: int, table: str | None, column: str | None, *_: object) -> int:
        return apsw.SQLITE_IGNORE if action == apsw.SQLITE_READ and column == "b" else apsw.SQLITE_OK

    ours.execute("INSERT INTO s VALUES (1, 7)")
    found = []
    for authorizer in (ignore, None, ignore, None):
        ours.set_authorizer(authorizer)
        found.append(ours.execute("SELECT b FROM s").fetchone()[0])
    assert found == [None, 7, None, 7]


def test_what_fails_with_the_last_row_of_returning(plain: apsw.Connection, ours: replicate.Connection) -> None:
    for connection in (plain, ours):
        connection.execute("CREATE TABLE later (a REFERENCES s (a) DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("PRAGMA foreign_keys = ON")
    ours.isolation_level = None
    before = ours.last_seqno
    cursor = plain.execute("INSERT INTO later VALUES (5) RETURNING a")
    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        cursor.fetchall()
    with pytest.raises(replicate.IntegrityError, match="FOREIGN KEY"):
        ours.execute("INSERT INTO later VALUES (5) RETURNING a")
    assert (ours.last_seqno, ours.execute("SELECT * FROM later").fetchall()) == (before, [])


def test_a_page_size_changes_nothing_in_a_file_that_has_pages(ours: replicate.Connection) -> None:
    """Programs say it with each connection; sqlite3 takes it and does nothing."""
    size = ours.execute("PRAGMA page_size").fetchone()
    before = ours.last_seqno
    assert ours.execute("PRAGMA page_size = 8192").fetchall() == []
    ours.execute("INSERT INTO s VALUES (1, 1)")
    ours.commit()
    assert ours.execute("PRAGMA page_size").fetchone() == size != (8192,)
    assert ours.last_seqno > before


def test_auto_vacuum_as_it_is_already_is_no_change(ours: replicate.Connection) -> None:
    """Programs say it with each connection."""
    ours.set_authorizer(lambda *asked: sqlite3.SQLITE_DENY if asked[1] == "auto_vacuum" and not asked[2] else 0)
    before = ours.last_seqno
    for text in ("PRAGMA auto_vacuum = 0", "PRAGMA main.auto_vacuum = NONE"):
        assert ours.execute(text).fetchall() == []
        assert not ours.in_transaction
    for text in ("PRAGMA auto_vacuum = FULL", "PRAGMA auto_vacuum = 2"):
        with pytest.raises(replicate.NotSupportedError, match="auto_vacuum"):
            ours.execute(text)
    ours.set_authorizer(None)
    assert ours.execute("PRAGMA auto_vacuum").fetchone() == (0,)
    assert ours.last_seqno == before
