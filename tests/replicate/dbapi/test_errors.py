"""dbapi/errors.py: SQLite's own errors as sqlite3 raises them, beside it; ours as themselves and PEP 249's."""

from __future__ import annotations

import inspect
import sqlite3

import apsw
import pytest

from replicate import errors
from replicate.dbapi.errors import error_name, from_apsw, from_replicate, surface, surfaced

SCHEMA = "CREATE TABLE t (a INTEGER PRIMARY KEY, b UNIQUE NOT NULL, CHECK (b <> 3)); INSERT INTO t VALUES (1, 1)"
OURS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ReplicateError) and kind is not errors.ReplicateError
]  # fmt: skip


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC", "SELECT nothing", "INSERT INTO t VALUES (1, 2)", "INSERT INTO t VALUES (2, 1)",
        "INSERT INTO t VALUES (2, NULL)", "INSERT INTO t VALUES (2, 3)", "INSERT INTO t VALUES ('x', 4)",
        "SELECT abs(-9223372036854775808)", "SELECT zeroblob(9999999999)", "DROP TABLE nowhere",
        "SELECT json('{')", "ROLLBACK", "RELEASE s",
    ],
)  # fmt: skip
def test_the_class_the_code_and_the_text_are_sqlite3s(sql: str) -> None:
    theirs = sqlite3.connect(":memory:", isolation_level=None)
    theirs.executescript(SCHEMA)
    mine = apsw.Connection("")
    mine.execute(SCHEMA)
    with pytest.raises(sqlite3.Error) as expected:
        theirs.execute(sql).fetchall()
    with pytest.raises(apsw.Error) as caught:
        mine.execute(sql).fetchall()
    found = from_apsw(caught.value)
    assert type(found) is type(expected.value)
    assert isinstance(found, sqlite3.Error)
    assert (found.sqlite_errorcode, found.sqlite_errorname) == (
        expected.value.sqlite_errorcode,
        expected.value.sqlite_errorname,
    )


@pytest.mark.parametrize("kind", OURS)
def test_each_of_ours_is_both_and_says_all_that_it_said(kind: type[errors.ReplicateError]) -> None:
    error = kind("what happened", where="/there", do="Do this")
    found = from_replicate(error)
    assert isinstance(found, kind)
    assert isinstance(found, sqlite3.Error)
    assert (found.code, found.what, found.where, found.do) == (error.code, "what happened", "/there", "Do this")
    assert str(found).startswith(str(error))
    assert found.sqlite_errorname == error_name(found.sqlite_errorcode) != "unknown"
    assert from_replicate(found) is found
    assert type(from_replicate(error)) is type(found), "made once"


def test_what_applications_look_for_in_the_text_is_there() -> None:
    for kind, text in (
        (errors.BusyError, "database is locked"),
        (errors.DiskFullError, "database or disk is full"),
        (errors.NotPrimaryError, "attempt to write a readonly database"),
    ):
        assert text in str(from_replicate(kind("x")))


def test_memory_misuse_and_what_is_nobodys() -> None:
    assert isinstance(surface(apsw.NoMemError("x")), MemoryError | sqlite3.OperationalError)
    assert type(surface(apsw.CursorClosedError("x"))) is sqlite3.ProgrammingError
    other = ValueError("x")
    assert surface(other) is other

    def fail() -> None:
        raise other

    with pytest.raises(ValueError, match="x") as caught:
        surfaced(fail)
    assert caught.value is other
