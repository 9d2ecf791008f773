"""A change of the schema where several write: what it must not do, and what it leaves."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.errors import NotSupportedError, ReplicateError, UsageError
from replicate.roles.schema_fence import fences
from tests.harness.fences import CHANGE, change
from tests.harness.suppliers import Suppliers, run, shared


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Suppliers:
    """All write ta, with n as a sum."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    return shared(tmp_path, 3, sums=["ta.n"])


def stamped(made: Suppliers, site: str) -> int:
    """Rows of which it is remembered who wrote them."""
    connection = apsw.Connection(str(made.by[site].regions[0].path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return int(connection.execute("SELECT count(*) FROM _replicate_version").get)
    finally:
        connection.close()


def test_who_wrote_which_row_is_forgotten(three: Suppliers) -> None:
    """Of rows that are as they were before: their stamps would be of columns that are others now."""
    run(three, "a", "INSERT INTO ta VALUES (1, 'old', 0), (2, 'old', 0)")
    three.level()
    for name in three.names:
        run(three, name, f"UPDATE ta SET v = 'of {name}', n = n + 1", "DELETE FROM ta WHERE id = 2")
    three.level()
    assert all(stamped(three, name) for name in three.names)
    change(three, f"{CHANGE}; ALTER TABLE ta DROP COLUMN v")
    three.level()
    assert [stamped(three, name) for name in three.names] == [0, 0, 0]
    for name in three.names:
        run(three, name, f"UPDATE ta SET more = 'of {name}', n = n + 1")
    three.level()
    three.assert_converged()
    assert three.rows("a")["ta"] == [(1, 6, "of c")]


def test_a_table_that_is_made_is_told_by_key(three: Suppliers) -> None:
    """Under one key two sites make one row, whatever hidden rowid each gives it."""
    change(three, "CREATE TABLE later (id TEXT PRIMARY KEY, v, w)")
    three.level()
    run(three, "a", "INSERT INTO later VALUES ('first', 1, 1), ('k', 1, 1)")
    run(three, "b", "INSERT INTO later VALUES ('k', 2, 2)")
    three.level()
    three.assert_converged()
    assert len(three.rows("a")["later"]) == 2


def test_counted_keys_of_a_table_that_is_made_under_a_fence(three: Suppliers) -> None:
    change(three, "CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v)", site="b")
    three.level()
    for name in three.names:
        run(three, name, "INSERT INTO counted (v) VALUES (1)")
    three.level()
    three.assert_converged_but_for("sqlite_sequence")
    assert len(three.rows("a")["counted"]) == 3


REFUSED: list[tuple[str, type[ReplicateError], str]] = [
    ("ALTER TABLE absent ADD COLUMN x", UsageError, "the statement fails: no such table: absent"),
    ("INSERT INTO ta VALUES (1, 2, 3)", UsageError, "INSERT is no schema change of a region"),
    ("", UsageError, "no statement stands there"),
    ("CREATE TABLE bare (v)", NotSupportedError, "table bare could not be written by several suppliers: its rows"),
    ("CREATE TABLE bare (id INTEGER PRIMARY KEY)", NotSupportedError, "SQLite gives its rows the next free key"),
    ("ALTER TABLE ta RENAME TO renamed", NotSupportedError, r"ta\.n is a sum: its table has another name"),
    ("CREATE UNIQUE INDEX u ON ta (n)", NotSupportedError, r"ta\.n is a sum: a unique index reads it"),
]


@pytest.mark.parametrize(("text", "error", "told"), REFUSED)
def test_what_cannot_be_is_refused_and_all_write_on(
    three: Suppliers, text: str, error: type[ReplicateError], told: str
) -> None:
    with pytest.raises(error, match=told):
        change(three, text)
    assert fences(three.by["a"]) == [], "nobody stands aside for it"
    three.level()
    run(three, "b", "INSERT INTO ta VALUES (1, 'of b', 0)")
    three.level()
    three.assert_converged()
