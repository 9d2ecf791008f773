"""What waits to be told of (rows of a table with a generated column, BLOBs written in place) and an `interrupt`: until
the interrupted SELECT has ended nothing can be read, and no statement runs.

Guarantees: nothing is lost by it, neither here nor on the secondary, and no transaction stays open that sqlite3 ends.
Leaves to others: interrupts of a statement by itself (test_as_sqlite3_found.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest

from replicate.region.sqlite.capture.capture import Capture
from tests.harness.differential import Sides
from tests.replicate.dbapi.test_as_sqlite3 import same
from tests.replicate.dbapi.test_as_sqlite3_found import told

SCRIPT = """
    CREATE TABLE net (id INTEGER PRIMARY KEY, a UNIQUE ON CONFLICT FAIL, twice AS (a * 2));
    CREATE VIRTUAL TABLE words USING fts5 (word);
    CREATE TABLE other (id INTEGER PRIMARY KEY, data BLOB);
    INSERT INTO net (id, a) VALUES (1, 1), (2, 2), (3, 3);
    INSERT INTO other VALUES (1, zeroblob(4));
"""
TABLES = ("net", "other", "words")
INTERRUPTED = "OperationalError: interrupted"


def interrupted(connection: Any, *actions: Callable[[], Any]) -> list[str]:
    """What these raise while a SELECT is open that was interrupted."""
    cursor = connection.cursor()
    cursor.execute("SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3").fetchone()
    connection.interrupt()
    found = [told(action) for action in actions]
    return [*found, told(cursor.fetchall)]


@pytest.mark.parametrize("isolation_level", [None, ""])
def test_rows_of_a_generated_column_wait(sides: Sides, isolation_level: str | None) -> None:
    def program(connection: Any) -> Any:
        connection.isolation_level = isolation_level
        connection.commit()
        connection.execute("BEGIN")
        connection.execute("UPDATE net SET a = 20 WHERE id = 2")
        connection.execute("DELETE FROM net WHERE id = 3")
        found = interrupted(
            connection,
            lambda: connection.execute("DELETE FROM other WHERE id = 9"),
            lambda: connection.execute("SAVEPOINT s"),
            lambda: connection.execute("CREATE TABLE later (x)"),
        )
        connection.execute("INSERT INTO net (id, a) VALUES (4, 4)")
        connection.commit()
        return found, connection.in_transaction

    assert same(sides, program, SCRIPT, TABLES) == ([INTERRUPTED] * 4, False)


def test_writes_to_a_blob_wait(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        connection.execute("BEGIN")
        with connection.blobopen("other", "data", 1) as blob:
            blob.write(b"\x01\x02")
        found = interrupted(connection, lambda: connection.execute("SAVEPOINT s"))
        connection.commit()
        return found, connection.in_transaction

    assert same(sides, program, SCRIPT, TABLES) == ([INTERRUPTED] * 2, False)


def test_a_commit_waits(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        connection.execute("BEGIN")
        connection.execute("UPDATE net SET a = 20 WHERE id = 2")
        found = interrupted(connection, connection.commit), connection.in_transaction
        connection.commit()
        return found, connection.in_transaction

    assert same(sides, program, SCRIPT, TABLES) == (([INTERRUPTED] * 2, True), False)


def test_no_transaction_stays_open_after_a_statement_of_its_own(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        connection.isolation_level = None
        connection.commit()
        found = interrupted(
            connection,
            lambda: connection.execute("UPDATE net SET a = a + 10"),
            lambda: connection.execute("INSERT INTO words VALUES ('one')"),
            lambda: connection.execute("CREATE TABLE later (x)"),
        )
        return found, connection.in_transaction

    assert same(sides, program, SCRIPT, TABLES) == ([INTERRUPTED] * 4, False)


def test_what_was_told_before_the_interrupt_is_told_once(sides: Sides) -> None:
    def program(connection: Any) -> Any:
        connection.execute("BEGIN")
        connection.execute("UPDATE net SET a = 20 WHERE id = 2")
        connection.execute("SAVEPOINT s")  # tells of it
        connection.execute("UPDATE net SET a = 21 WHERE id = 2")
        connection.execute("UPDATE net SET a = 30 WHERE id = 3")
        found = interrupted(connection, lambda: connection.execute("SAVEPOINT t"))
        connection.execute("ROLLBACK TO s")
        connection.execute("UPDATE net SET a = 11 WHERE id = 1")
        connection.commit()
        return found

    assert same(sides, program, SCRIPT, TABLES) == [INTERRUPTED] * 2


def test_an_interrupt_after_a_failed_statement_of_its_own_ends_its_transaction(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.isolation_level = None
    calls: list[Capture] = []

    def settle(self: Capture) -> None:
        calls.append(self)
        if len(calls) > 1:  # the first is in front of the statement
            raise apsw.InterruptError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(Capture, "settle", settle)
        assert told(lambda: connection.execute("INSERT INTO other VALUES (1, NULL)")).startswith("IntegrityError")
        assert len(calls) == 2
        assert not connection.in_transaction
    connection.execute("INSERT INTO other VALUES (2, NULL)")
    sides.prove(plain=False)
