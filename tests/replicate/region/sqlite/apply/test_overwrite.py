"""Changes made over whatever rows are here: what is given back leads from what was here to what is, and back again."""

from __future__ import annotations

import random
from typing import Any

import apsw
import pytest

from replicate.door.recovery.unapply import inverse
from replicate.errors import ConflictError
from replicate.model.transaction import Column, Op, TableDefinition
from replicate.region.sqlite.apply.overwrite import change_of, overwrite
from replicate.region.sqlite.apply.rows import RowApplier

COLUMNS = tuple(Column(name, "", False, "BINARY") for name in ("id", "a", "b", "c"))
TABLE = "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b UNIQUE, c UNIQUE)"


def definition(columns: tuple[Column, ...]) -> TableDefinition:
    typed = (Column("id", "INTEGER", False, "BINARY"), *columns[1:])
    return TableDefinition("main", 1, "main", "t", 1, typed, (0,), False, False, False)


T = definition(COLUMNS)


def opened(*statements: str) -> tuple[apsw.Connection, RowApplier]:
    connection = apsw.Connection(":memory:")
    for statement in (TABLE, *statements):
        connection.execute(statement)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
    return connection, RowApplier(connection, {T.table_id: T}, region="main")


def rows(connection: apsw.Connection) -> list[Any]:
    return connection.execute("SELECT * FROM t ORDER BY id").fetchall()


def insert(*values: Any) -> list[Any]:
    return change_of(Op.INSERT, T.table_id, None, values)


def test_rivals_in_several_indexes_give_way() -> None:
    connection, applier = opened("INSERT INTO t VALUES (1, 'x', 1, 1), (2, 'x', 2, 2), (3, 'x', 3, 3)")
    made = overwrite(applier, insert(9, "new", 1, 2))
    assert made[::4] == [Op.DELETE, Op.DELETE, Op.INSERT]
    assert rows(connection) == [(3, "x", 3, 3), (9, "new", 1, 2)]


def test_the_row_itself_and_a_rival() -> None:
    connection, applier = opened("INSERT INTO t VALUES (1, 'x', 1, 1), (2, 'x', 2, 2)")
    overwrite(applier, change_of(Op.UPDATE, T.table_id, (1, "old", 7, 7), (1, "new", 2, 7)))
    assert rows(connection) == [(1, "new", 2, 7)]


def test_a_row_that_is_there_as_it_should_be_is_nothing_to_do() -> None:
    _, applier = opened("INSERT INTO t VALUES (1, 'x', 1, 1)")
    assert overwrite(applier, insert(1, "x", 1, 1)) == []
    assert overwrite(applier, change_of(Op.DELETE, T.table_id, (2, "x", 2, 2), None)) == []


def test_what_is_unique_by_an_expression_remains_a_conflict() -> None:
    """Which row is in the way cannot be told; the row itself never gives way to its own change."""
    connection, applier = opened(
        "INSERT INTO t VALUES (1, 'x', 1, 1), (2, 'y', 2, 2)", "CREATE UNIQUE INDEX e ON t (upper(a))"
    )
    before = rows(connection)
    for change in (
        insert(3, "X", 3, 3),
        change_of(Op.UPDATE, T.table_id, (2, "y", 2, 2), (2, "X", 2, 2)),
        change_of(Op.UPDATE, T.table_id, (2, "other", 2, 2), (2, "X", 2, 2)),
    ):
        with pytest.raises(ConflictError, match="UNIQUE"):
            overwrite(applier, change)
    assert rows(connection) == before


def test_what_was_made_leads_there_and_back() -> None:
    dice = random.Random(8)

    def image() -> tuple[Any, ...]:
        return (dice.randint(1, 6), dice.choice("xyz"), dice.randint(1, 6), dice.randint(1, 6))

    def change() -> list[Any]:
        op = dice.choice((Op.INSERT, Op.UPDATE, Op.DELETE))
        before, after = image(), image()
        if op == Op.UPDATE:
            return change_of(op, T.table_id, before, after) or change()
        return change_of(op, T.table_id, *((None, after) if op == Op.INSERT else (before, None)))

    for _ in range(300):
        begin = [f"INSERT OR IGNORE INTO t VALUES {image()!r}" for _ in range(4)]
        connection, applier = opened(*begin)
        before = rows(connection)
        wanted = [change() for _ in range(5)]
        made = [element for one in wanted for element in overwrite(applier, one)]
        after = rows(connection)
        other, plain = opened(*begin)
        plain.apply_all(made)  # as redo and a third site do: with every check
        assert rows(other) == after
        plain.apply_all(inverse(made))
        assert rows(other) == before
        last = wanted[-1]
        if last[0] == Op.INSERT:
            assert tuple(last[3]) in after
