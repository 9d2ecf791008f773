"""Rows that are written before and after a schema change in one transaction: the secondary's are the primary's, or the
transaction is refused by name before it is committed."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

import replicate
from replicate.region.sqlite.capture.net import NetChanges
from tests.harness.differential import Plain, Sides, street
from tests.harness.several import Several
from tests.harness.sql_programs import Step

SCRIPT = """
CREATE TABLE key (id INTEGER PRIMARY KEY, a);
CREATE TABLE bare (a, b);
CREATE TABLE text (id TEXT PRIMARY KEY, a);
INSERT INTO key VALUES (1, 'one'), (2, 'two'), (3, 'three');
INSERT INTO bare VALUES ('one', 1), ('two', 2), ('three', 3);
INSERT INTO text VALUES ('1', 'one'), ('2', 'two'), ('3', 'three');
"""
TABLES = ("key", "bare", "text")
WRITES = {
    "insert": "INSERT INTO {0} (rowid, a) VALUES (9, 'nine')",
    "delete new": "DELETE FROM {0} WHERE rowid = 9",
    "move new": "UPDATE {0} SET rowid = 11 WHERE rowid = 9",
    "delete": "DELETE FROM {0} WHERE rowid = 1",
    "insert again": "INSERT OR REPLACE INTO {0} (rowid, a) VALUES (1, 'one')",
    "there": "UPDATE {0} SET a = 'other' WHERE rowid = 1",
    "back": "UPDATE {0} SET a = 'one' WHERE rowid = 1",
}
ADD, DROP = "ALTER TABLE {0} ADD COLUMN v AS (a || 'v')", "ALTER TABLE {0} DROP COLUMN v"
ADD_PLAIN, DROP_PLAIN = "ALTER TABLE {0} ADD COLUMN c DEFAULT 7", "ALTER TABLE {0} DROP COLUMN c"


def execute(sides: Sides, *texts: str) -> None:
    for text in texts:
        sides.step(Step(0, "execute", ((text, ()),)))


def prove(sides: Sides) -> None:
    sides.finish()
    sides.prove()


def pairs(name: str) -> Iterator[tuple[str, str]]:
    for first, second in itertools.product(WRITES.values(), repeat=2):
        yield first.format(name), second.format(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_row_is_written_on_both_sides_of_a_virtual_column(sides: Sides, name: str) -> None:
    """Every pair of writes is exact and none is refused: what the first write made of its row is known."""
    for first, second in pairs(name):
        execute(sides, "BEGIN", first, ADD.format(name), second, "COMMIT", "BEGIN", first, DROP.format(name), second)
        execute(sides, "COMMIT", f"DELETE FROM {name} WHERE rowid > 3")
        execute(sides, f"INSERT OR IGNORE INTO {name} (rowid, a) VALUES (1, 'one'), (2, 'two'), (3, 'three')")
    prove(sides)
    assert sides.refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_back_and_forth_within_one_transaction(sides: Sides, name: str) -> None:
    add, drop = ADD.format(name), DROP.format(name)
    for first, second in pairs(name):
        execute(sides, "BEGIN", add, first, drop, second, add, first, drop, second, "COMMIT")
    prove(sides)
    assert sides.refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_savepoints_around_the_alter(sides: Sides, name: str) -> None:
    """What a ROLLBACK TO takes back counts as not written, on whichever side of the ALTER it was."""
    add, drop = ADD.format(name), DROP.format(name)
    for first, second in pairs(name):
        execute(sides, "BEGIN", first, "SAVEPOINT s", second, add, first, "ROLLBACK TO s", second, add, second)
        execute(sides, "SAVEPOINT s", first, drop, second, "ROLLBACK TO s", second, drop, "RELEASE s", first, "COMMIT")
    prove(sides)
    assert sides.refused == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_the_transaction_made_is_known_whole(sides: Sides, name: str) -> None:
    """Its rows came by the stream, so that columns of every kind may be added before they are written again."""
    made = f"CREATE TABLE m AS SELECT * FROM {name} WHERE 0"
    for first, second in pairs("m"):
        execute(sides, "BEGIN", made, first, ADD.format("m"), second, ADD_PLAIN.format("m"), first, second)
        execute(sides, DROP.format("m"), first, DROP_PLAIN.format("m"), ADD.format("m"), second, "COMMIT")
        execute(sides, "BEGIN", first, "DROP TABLE m", made, second, ADD.format("m"), first, "COMMIT", "DROP TABLE m")
    prove(sides)
    assert sides.refused == 0


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_is_another_one_now_is_refused_before_the_commit(sides: Sides, name: str) -> None:
    """A row that was there before an ALTER with another definition cannot be read as it was then."""
    pair = sides.pair
    before = pair.last_seqno()
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.execute("BEGIN")
    for text in (ADD.format(name), ADD_PLAIN.format(name), WRITES["there"].format(name)):
        connection.execute(text)
    with pytest.raises(replicate.NotSupportedError, match=f"rows of table {name}, which has a VIRTUAL generated"):
        connection.commit()
    connection.rollback()
    assert pair.last_seqno() == before


def test_a_table_that_took_the_name_of_one_made_before_is_not_known(sides: Sides) -> None:
    """`m` was made empty and dropped; what bears its name then has rows that no stream told of."""
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.execute("BEGIN")
    for text in ("CREATE TABLE m (a)", "DROP TABLE m", "ALTER TABLE bare RENAME TO m", ADD.format("m")):
        connection.execute(text)
    connection.execute("UPDATE m SET a = 'other' WHERE rowid = 1")
    with pytest.raises(replicate.NotSupportedError, match="rows of table m"):
        connection.commit()
    connection.rollback()


def test_the_rows_that_a_drop_deletes_first(sides: Sides) -> None:
    """With foreign keys on, DROP TABLE deletes the rows first, and with them those that refer to them."""
    execute(
        sides,
        "PRAGMA foreign_keys = ON",
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, a, v AS (a || 'v'))",
        "CREATE TABLE child (id INTEGER PRIMARY KEY, a REFERENCES parent ON DELETE CASCADE, v AS (a || 'v'))",
        "INSERT INTO parent (id, a) VALUES (1, 'x'), (2, 'y')",
        "INSERT INTO child (id, a) VALUES (1, 1), (2, 2), (3, 1)",
        "BEGIN",
        "UPDATE child SET a = 2 WHERE id = 3",
        "DROP TABLE parent",
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, a, v AS (a || 'w'))",
        "INSERT INTO parent (id, a) VALUES (1, 'z')",
        "COMMIT",
    )
    prove(sides)
    assert sides.refused == 0


def test_a_large_transaction_is_read_again_from_its_spool(sides: Sides) -> None:
    rows = "WITH n(x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < 12000)"
    execute(
        sides,
        "BEGIN",
        f"{rows} INSERT INTO key (id, a) SELECT x + 10, zeroblob(100) FROM n",
        ADD.format("key"),
        "DELETE FROM key WHERE id % 3 = 0",
        "UPDATE key SET a = 'new' WHERE id % 3 = 1",
        "COMMIT",
    )
    prove(sides)
    assert sides.refused == 0


def test_a_failed_statement_whose_rows_could_not_be_captured(sides: Sides) -> None:
    """OR FAIL keeps the rows before the one that fails, and the hook could not give them: nothing is committed."""
    pair = sides.pair
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.execute("CREATE TABLE w (id PRIMARY KEY, a UNIQUE, v AS (a || 'v')) WITHOUT ROWID")
    before = pair.last_seqno()
    connection.execute("BEGIN")
    with pytest.raises(replicate.IntegrityError):
        connection.execute("INSERT OR FAIL INTO w (id, a) VALUES (1, 'x'), (2, 'x')")
    assert connection.execute("SELECT id FROM w").fetchall() == [(1,)]
    with pytest.raises(replicate.NotSupportedError, match="rows of table w cannot be captured"):
        connection.commit()
    connection.rollback()
    assert pair.last_seqno() == before


ALTERED = ("key", "bare", "text", "counted", "kept")
MORE = """
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, a);
CREATE TABLE kept (a, s AS (a || 's') STORED, v AS (a || 'v'));
CREATE TABLE log (id INTEGER PRIMARY KEY, a);
CREATE TRIGGER logged AFTER DELETE ON bare BEGIN INSERT INTO log (a) VALUES (old.a); END;
"""


def transaction(dice: Random, schema: str) -> Iterator[str]:
    """Statements that write a few rows of one table before and after schema changes of every kind."""
    name = schema + dice.choice(ALTERED)
    short = name.removeprefix(schema)
    depth = 0
    yield "BEGIN"
    for _ in range(dice.randint(3, 12)):
        row, other = dice.randint(1, 4), dice.randint(1, 4)
        value = f"'{dice.choice('xyz')}'"
        number = dice.randint(0, 1)
        kind = dice.random()
        if kind < 0.6:
            yield dice.choice(
                (
                    f"INSERT OR {dice.choice(('REPLACE', 'IGNORE', 'FAIL'))} INTO {name} (rowid, a) "
                    f"VALUES ({row}, {value}), ({other}, {value})",
                    f"UPDATE {name} SET a = {value} WHERE rowid = {row}",
                    f"UPDATE OR IGNORE {name} SET rowid = {other} WHERE rowid = {row}",
                    f"DELETE FROM {name} WHERE rowid = {row}",
                )
            )
        elif kind < 0.85:
            yield dice.choice(
                (
                    *(f"ALTER TABLE {name} ADD COLUMN w{number} AS (a || 'w')",) * 4,
                    *(f"ALTER TABLE {name} DROP COLUMN w{number}",) * 3,
                    f"ALTER TABLE {name} ADD COLUMN x{number} DEFAULT 7",
                    f"ALTER TABLE {name} DROP COLUMN x{number}",
                    f"ALTER TABLE {name} RENAME COLUMN a TO b",
                    f"ALTER TABLE {name} RENAME COLUMN b TO a",
                    f"ALTER TABLE {name} RENAME TO other",
                    f"ALTER TABLE {schema}other RENAME TO {short}",
                    f"DROP TABLE {name}",
                    f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, a)",
                    f"CREATE TABLE {name} AS SELECT rowid AS id, a FROM {schema}log",
                    f"CREATE INDEX {schema}i{number} ON {short} (a)",
                    f"DROP INDEX IF EXISTS {schema}i{number}",
                )
            )
        elif depth and kind < 0.95:
            yield f"{dice.choice(('ROLLBACK TO', 'ROLLBACK TO', 'RELEASE'))} s{depth}"
        else:
            depth += 1
            yield f"SAVEPOINT s{depth}"


def run(connection: Any, dice: Random, schemas: tuple[str, ...], transactions: int) -> Counter[str]:
    """Random transactions; each commit is checked (check.py). How they ended."""
    ends: Counter[str] = Counter()
    for _ in range(transactions):
        log = []
        for schema in dice.sample(schemas, dice.randint(1, len(schemas))):
            for text in transaction(dice, schema):
                log.append(text)
                with contextlib.suppress(replicate.Error):
                    connection.execute(text)
        try:
            connection.commit()
            ends["committed"] += 1
        except replicate.InternalError as error:
            raise AssertionError("\n".join([*log, str(error)])) from error
        except replicate.Error as error:
            ends[type(error).__name__] += 1
            connection.rollback()
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_writes_and_alters_in_one_region(plain: Plain, seed: int) -> None:
    with street(plain, SCRIPT + MORE) as sides:
        sides.plain_side = False
        ends = run(sides.calls.connections[2], Random(seed), ("",), 120)  # type: ignore[union-attr]
        assert ends["committed"] > 80
        sides.prove(plain=False)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_writes_and_alters_in_several_regions(several: Several, seed: int) -> None:
    with contextlib.closing(several.attached(isolation_level=None)) as connection:
        for schema in ("main", "two"):
            for text in filter(str.strip, (SCRIPT + MORE.partition("CREATE TRIGGER")[0]).split(";")):
                connection.execute(re.sub(r"(TABLE|INTO) (?=\w)", rf"\1 {schema}.", text))
        ends = run(connection, Random(seed), ("main.", "two."), 120)
        assert ends["committed"] > 60
    several.same()


def test_the_check_finds_what_this_file_is_about(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the boundary is passed over, as it was once. The check refuses the commit, with the table's name."""
    monkeypatch.setattr(NetChanges, "cross", lambda *_: None)
    connection = sides.calls.connections[0]  # type: ignore[union-attr]
    connection.execute("BEGIN")
    for text in (WRITES["insert"], ADD, WRITES["delete new"]):
        connection.execute(text.format("key"))
    with pytest.raises(
        replicate.InternalError,
        match=r"table key is different .*row \(9,\) is missing in the second",
    ):
        connection.commit()
    assert not connection.in_transaction
    connection.execute("BEGIN")
    for text in (WRITES["there"], ADD, WRITES["delete"]):
        connection.execute(text.format("bare"))
    with pytest.raises(replicate.InternalError, match="cannot be applied to the state before"):
        connection.commit()
