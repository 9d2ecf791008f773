"""Names as SQLite compares them, A to Z without case and nothing else: savepoints, attached regions, and what an
authorizer makes of both. Each case lost changes, or captured what was not there, before it was a test.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.region.sqlite.sql.names import fold
from tests.harness.differential import Sides
from tests.harness.several import Several
from tests.harness.sql_programs import Step

SCRIPT = "CREATE TABLE t (id INTEGER PRIMARY KEY, v);"


def insert(number: int) -> str:
    return f"INSERT INTO t VALUES ({number}, 'v')"


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "texts",
    [
        ("BEGIN", insert(1), 'SAVEPOINT ""', insert(2), 'ROLLBACK TO ""', insert(3), "COMMIT"),
        ('SAVEPOINT ""', insert(1), 'RELEASE ""'),
        ("BEGIN", "SAVEPOINT Ä", insert(2), "SAVEPOINT ä", insert(3), "ROLLBACK TO Ä", "COMMIT"),
        ("SAVEPOINT Ж", insert(1), "SAVEPOINT ж", insert(2), "RELEASE Ж"),
        ("BEGIN", "SAVEPOINT aÄ", insert(2), "SAVEPOINT b", insert(3), "ROLLBACK TO AÄ", "COMMIT"),
        ("BEGIN", insert(1), "SAVEPOINT a", insert(2), "ROLLBACK TRANSACTION foo TO a", insert(3), "COMMIT"),
        ("BEGIN", insert(1), "SAVEPOINT a", insert(2), "ROLLBACK TRANSACTION TO SAVEPOINT a", insert(3), "COMMIT"),
        ("BEGIN", insert(1), "ROLLBACK TRANSACTION foo", insert(2)),
    ],
)
def test_savepoints_of_any_name(sides: Sides, texts: tuple[str, ...]) -> None:
    for text in texts:
        sides.step(Step(0, "execute", ((text, ()),)))
    sides.finish()
    sides.prove()


def test_folding_is_sqlites_own() -> None:
    connection = apsw.Connection(":memory:")
    for one in ("A", "Z", "Ä", "Ж", "\u212a", "ẞ", "İ", "[", "@"):
        same = connection.execute("SELECT ? LIKE ?", (one, one.lower())).fetchone() == (1,)
        assert (fold(one) == fold(one.lower())) == (same or one == one.lower()), one


@pytest.fixture
def several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Several:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Several.make(tmp_path, ("main", "two", "three"))


def test_regions_under_names_that_only_unicode_takes_for_the_same(several: Several) -> None:
    connection: Any = several.attached()
    connection.execute("DETACH two")
    connection.execute("DETACH three")
    connection.execute('ATTACH ? AS "Ä"', (str(several.path("two")),))
    connection.execute('ATTACH ? AS "ä"', (str(several.path("three")),))
    connection.execute("ATTACH ':memory:' AS \"\u212a\"")
    for schema, number in (("Ä", 1), ("ä", 2)):
        connection.execute(f'CREATE TABLE "{schema}".made_{number} (x)')
        connection.execute(f'INSERT INTO "{schema}".made_{number} VALUES ({number})')
        connection.execute(f'INSERT INTO "{schema}".t VALUES ({number}, 0)')
        connection.execute(f'PRAGMA "{schema}".user_version = {number}')
    connection.commit()
    connection.execute('DETACH "ä"')
    connection.execute('INSERT INTO "Ä".t VALUES (7, 7)')
    connection.commit()
    connection.close()
    several.same()


@pytest.mark.parametrize("file", ["two", ":memory:"])
def test_a_database_without_a_name_is_refused(several: Several, file: str) -> None:
    connection: Any = several.attached()
    connection.execute("DETACH two")
    for name in ("", None):
        with pytest.raises(sqlite3.NotSupportedError, match="without a name"):
            connection.execute("ATTACH ? AS ?", (str(several.path("two")) if file == "two" else file, name))
    connection.execute("INSERT INTO t VALUES (1, 1)")
    connection.commit()
    connection.close()
    several.same()


def test_a_name_that_is_taken_stays_what_it_was(several: Several) -> None:
    connection: Any = several.attached()
    connection.execute("DETACH two")
    connection.execute("CREATE TEMP TABLE a (b)")
    connection.execute("ATTACH ':memory:' AS m")
    connection.execute("CREATE TABLE m.a (b)")
    for taken in ("temp", "m", "M"):
        with pytest.raises(sqlite3.OperationalError, match="already in use"):
            connection.execute("ATTACH ? AS ?", (str(several.path("two")), taken))
    connection.execute("INSERT INTO temp.a VALUES (1)")
    connection.execute("INSERT INTO m.a VALUES (1)")
    connection.execute("INSERT INTO three.t VALUES (1, 1)")
    connection.commit()
    connection.close()
    several.same()


def test_an_authorizer_may_deny_but_not_have_ignored(several: Several) -> None:
    connection: Any = several.attached()
    ignored: set[int] = set()
    connection.set_authorizer(lambda action, *_: apsw.SQLITE_IGNORE if action in ignored else apsw.SQLITE_OK)
    for number, (statement, action) in enumerate(
        (
            ("ROLLBACK TO a0", apsw.SQLITE_SAVEPOINT),
            ("RELEASE a1", apsw.SQLITE_SAVEPOINT),
            ("PRAGMA user_version = 5", apsw.SQLITE_PRAGMA),
        )
    ):
        connection.execute("BEGIN")
        connection.execute(f"SAVEPOINT a{number}")
        connection.execute("INSERT INTO t (v) VALUES (1)")
        ignored.add(action)
        with pytest.raises(sqlite3.DatabaseError, match="authorize"):
            connection.execute(statement)  # asked about once, when it is prepared
        ignored.clear()
        connection.commit()
    ignored.add(apsw.SQLITE_DETACH)
    with pytest.raises(sqlite3.DatabaseError, match="authorize"):
        connection.execute("DETACH two")
    ignored.clear()
    connection.execute("INSERT INTO two.t VALUES (9, 9)")
    connection.commit()
    connection.close()
    several.same()
