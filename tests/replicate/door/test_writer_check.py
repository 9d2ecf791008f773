"""A commit on a supplier changes only what this supplier writes; sessions learn at once when that changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.admin import partitions
from replicate.dbapi import Connection, OperationalError
from replicate.errors import NotWriterError
from replicate.roles.partition_writers import give, share
from tests.harness.suppliers import Suppliers


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return Suppliers.create(tmp_path)


def insert(connection: Connection, table: str, count: int = 1, size: int = 1) -> None:
    connection.executemany(f"INSERT INTO {table} (v) VALUES (?)", [("x" * size,)] * count)
    connection.commit()


def test_one_transaction_of_both_is_refused_as_a_whole(two: Suppliers) -> None:
    connection = two.connect("a")
    connection.execute("INSERT INTO ta (v) VALUES (1)")
    with pytest.raises(OperationalError, match="partition Pb is written by b, not by a"):
        insert(connection, "tb")
    assert connection.execute("SELECT (SELECT count(*) FROM ta), (SELECT count(*) FROM tb)").fetchone() == (0, 0)
    insert(connection, "ta")
    connection.close()


def test_a_large_one_is_refused_too_and_leaves_nothing(two: Suppliers) -> None:
    connection = two.connect("a")
    with pytest.raises(OperationalError, match="written by b"):
        insert(connection, "tb", 2000, 1000)
    connection.close()
    assert not list(two.by["a"].journal_directory.glob("*.spool"))


def test_a_trigger_that_writes_elsewhere_is_noticed(two: Suppliers) -> None:
    give(two.by["b"], "2", "a", timeout_s=30)
    two.level()
    connection = two.connect("a")
    connection.execute("CREATE TRIGGER t AFTER INSERT ON ta BEGIN INSERT INTO tb (v) VALUES (new.v); END")
    connection.close()
    give(two.by["a"], "2", "b", timeout_s=30)
    two.level()
    connection = two.connect("a")
    with pytest.raises(OperationalError, match="written by b"):
        insert(connection, "ta")
    connection.close()


def test_comments_are_everybodys(two: Suppliers) -> None:
    for name in two.names:
        connection = two.connect(name)
        connection.log_comment("a word")
        connection.commit()
        connection.close()
    two.level()
    two.assert_converged()


def test_a_connection_that_is_open_learns_of_each_change_of_the_writer(two: Suppliers) -> None:
    ours, theirs = two.connect("a"), two.connect("b")
    insert(theirs, "tb")
    give(two.by["b"], "2", "a", timeout_s=30)
    with pytest.raises(OperationalError, match="written by a"):
        insert(theirs, "tb")
    with pytest.raises(OperationalError, match="written by b"):
        insert(ours, "tb")
    two.carry("b", "a")
    insert(ours, "tb")
    for connection in (ours, theirs):
        connection.close()
    two.level()
    two.assert_converged()


def test_a_table_that_leaves_what_several_write_names_who_has_to_leave_first(two: Suppliers) -> None:
    partitions.create(two.by["a"], "apart")
    share(two.by["a"], "DEFAULT", "b", keys_chosen=True, timeout_s=30)
    with pytest.raises(NotWriterError, match="which b writes, too") as caught:
        partitions.assign(two.by["a"], "apart", ["ta"])
    assert "replicate -i b partition leave DEFAULT; then" in caught.value.do
