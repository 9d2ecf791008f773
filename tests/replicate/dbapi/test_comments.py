"""Comments in the log: in their transaction and place, on both sites, after a power loss, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import replicate
from replicate.audit.changes import records_of
from replicate.audit.query import Query
from replicate.audit.sources import find_in_instance
from replicate.compare.compare import compare
from replicate.instance.instance import Instance
from replicate.limits import LOG_COMMENT_BYTES_MAX
from replicate.region.sqlite.sql.statements import Verb, classify
from tests.harness import instances
from tests.harness.pair import Pair


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return instances.make_primary(tmp_path / "alpha")


@pytest.fixture
def connection(primary: Instance) -> Iterator[Any]:
    with closing(replicate.connect(str(primary.path))) as opened:
        yield opened


def told(instance: Instance, first: int = 3) -> list[list[str]]:
    """Of each transaction its changes: the operation, or the comment."""
    found = find_in_instance(instance, Query(first))
    return [[one.text or one.op for one in records_of(match)] for match in found]


def test_in_the_open_transaction_or_in_one_of_its_own(primary: Instance, connection: Any) -> None:
    connection.log_comment("own")
    assert not connection.in_transaction
    with connection:
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        connection.log_comment("between")
        connection.execute("DELETE FROM t")
    assert connection.execute("SELECT replicate_log_comment('in ' || 'SQL')").fetchall() == [(None,)]
    connection.execute("BEGIN")  # a reader becomes a writer
    connection.execute("SELECT Replicate_Log_Comment (?)", ("é😀",))
    connection.execute("INSERT INTO t VALUES (2, 'x')")
    connection.commit()
    assert told(primary) == [["own"], ["insert", "between", "delete"], ["in SQL"], ["é😀", "insert"]]
    assert connection.last_seqno == 6


def test_what_is_rolled_back_has_never_been_said(primary: Instance, connection: Any) -> None:
    connection.execute("BEGIN")
    connection.log_comment("gone")
    connection.rollback()
    connection.execute("BEGIN")
    connection.execute("SAVEPOINT a")
    connection.log_comment("gone")
    connection.execute("ROLLBACK TO a")
    connection.log_comment("kept")
    with pytest.raises(replicate.OperationalError):
        connection.execute("SELECT replicate_log_comment(5)")
    connection.commit()
    assert told(primary) == [["kept"]]
    connection.execute("BEGIN")
    with pytest.raises(replicate.OperationalError):
        connection.execute("SELECT replicate_log_comment('gone'), replicate_log_comment(5)")
    with pytest.raises(replicate.Error, match="Roll back"):
        connection.commit()  # whether the first one was said nobody knows
    connection.rollback()
    assert told(primary) == [["kept"]]


def test_a_comment_is_64_kib_at_most(primary: Instance, connection: Any) -> None:
    for text in ("", "é" * (LOG_COMMENT_BYTES_MAX // 2), "a\0b\n"):
        connection.log_comment(text)
    for text, why in (("é" * (LOG_COMMENT_BYTES_MAX // 2) + "x", "65537 bytes"), ("\ud800", "UTF-8")):
        with pytest.raises(replicate.OperationalError, match=why):
            connection.log_comment(text)
    with pytest.raises(TypeError):
        connection.log_comment(b"bytes")
    assert not connection.in_transaction
    assert [len(one[0]) for one in told(primary)] == [len("comment"), LOG_COMMENT_BYTES_MAX // 2, 4]


def test_what_came_before_it_stands_before_it(primary: Instance, connection: Any) -> None:
    """Also what no hook has told of yet: a BLOB that was written in place."""
    with connection:
        connection.execute("INSERT INTO t VALUES (1, zeroblob(5))")
    connection.execute("BEGIN IMMEDIATE")
    with connection.blobopen("t", "v", 1) as blob:
        blob.write(b"x")
    connection.log_comment("after")
    connection.execute("DELETE FROM t")
    connection.commit()
    assert told(primary)[-1] == ["update", "after", "delete"]


def test_as_many_as_make_a_large_transaction(primary: Instance, connection: Any) -> None:
    with connection:
        connection.execute("INSERT INTO t VALUES (1, 'x')")
        for number in range(12):
            connection.log_comment(str(number) + "x" * 60_000)
    (changes,) = told(primary)
    assert changes[0] == "insert"
    assert [one[:1] for one in changes[1:11]] == [str(number) for number in range(10)]
    (match,) = find_in_instance(primary, Query(comment="11x"))
    assert match.large is not None


def test_only_a_call_makes_a_select_a_writer() -> None:
    for text in ("SELECT replicate_log_comment('x')", "VALUES (replicate_log_comment ('x'))"):
        assert classify(text).verb is Verb.WRITE
    assert classify("WITH a AS (SELECT 1) SELECT replicate_log_comment(*) FROM a").verb is Verb.WRITE
    for text in ("SELECT 'replicate_log_comment(1)'", "EXPLAIN SELECT replicate_log_comment('x')", "SELECT 1"):
        assert classify(text).verb is Verb.READ


def test_a_statement_that_was_taken_for_a_reader_is_refused(connection: Any) -> None:
    connection.execute("CREATE VIEW v AS SELECT replicate_log_comment('x')")
    with pytest.raises(replicate.Error, match="by a statement that only reads"):
        connection.execute("SELECT * FROM v").fetchall()


def test_after_a_power_loss_it_is_there_and_numbers_go_on(primary: Instance, tmp_path: Path) -> None:
    entry = primary.regions[0]
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.execute("INSERT INTO t VALUES (1, 'x')")
    instances.save_region(entry.path, tmp_path / "aside")
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.execute("INSERT INTO t VALUES (2, 'y')")
        connection.log_comment("last")
    instances.restore_region(entry.path, tmp_path / "aside")
    instances.lose_pool(primary)
    with closing(replicate.connect(str(primary.path))) as connection, connection:
        connection.execute("INSERT INTO t VALUES (3, 'z')")
    assert told(primary) == [["insert"], ["insert"], ["last"], ["insert"]]
    assert instances.check(primary).last_seqno == 6


def test_it_is_replicated_and_a_secondary_writes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    pair = Pair.create(tmp_path)
    pair.seed()
    with closing(pair.connect()) as connection:
        connection.log_comment("before")
        with connection:
            connection.execute("INSERT INTO account (owner) VALUES ('o')")
            connection.log_comment("with a row")
    first = pair.last_seqno() - 1
    pair.catch_up()
    assert told(pair.secondary, first) == [["before"], ["insert", "with a row"]]
    assert told(pair.primary, first) == told(pair.secondary, first)
    assert compare(pair.primary, pair.secondary, timeout_s=60.0).equal
    with closing(replicate.connect(pair.secondary.path)) as connection:
        for ask in (
            lambda: connection.log_comment("x"),
            lambda: connection.execute("SELECT replicate_log_comment('x')"),
        ):
            with pytest.raises(replicate.OperationalError, match="readonly"):
                ask()
