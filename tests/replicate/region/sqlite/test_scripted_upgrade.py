"""A region that a script changes: all of it, or nothing. (With a journal:
tests/replicate/admin/test_region_upgrade.py.)"""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from replicate.errors import ConflictError, UsageError
from replicate.region.sqlite.bookkeeping import schema_version, stored_schema_version
from replicate.region.sqlite.guards import guard_name
from replicate.region.sqlite.open import install, open_region
from replicate.region.sqlite.schema import recorded_definitions
from replicate.region.sqlite.scripted_upgrade import upgraded_by

REGION = bytes(range(16))


@pytest.fixture
def region(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    plain = apsw.Connection(str(path))
    plain.execute("CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT); INSERT INTO person VALUES (1, 'Ada')")
    plain.close()
    connection = open_region(path, plain=True)
    install(connection, network=bytes(16), instance=bytes(16), region=REGION, name="shop")
    connection.close(True)
    return path


def columns(path: Path) -> dict[str, list[str]]:
    """By table, as they are recorded; and that they are so, guarded, and of the version that is kept."""
    connection = open_region(path, region=REGION)
    try:
        found = recorded_definitions(connection)
        for one in found:
            names = connection.execute("SELECT name FROM pragma_table_info(?)", (one.table,)).fetchall()
            assert [name for (name,) in names] == [column.name for column in one.columns]
            assert connection.execute(
                "SELECT 1 FROM sqlite_schema WHERE name = ?", (guard_name("insert", one.table),)
            ).get
        assert stored_schema_version(connection) == schema_version(connection)
        return {one.table: [column.name for column in one.columns] for one in found}
    finally:
        connection.close(True)


def test_tables_guards_and_what_is_kept_of_them_change_together(region: Path) -> None:
    script = "ALTER TABLE person ADD COLUMN last TEXT; CREATE TABLE more (x); UPDATE person SET last = 'L'"
    with upgraded_by(script, region, region=REGION, name="shop") as definitions:
        assert {one.table: one.version for one in definitions} == {"person": 2, "more": 1}
    assert columns(region) == {"more": ["x"], "person": ["id", "name", "last"]}
    assert not (region.parent / "shop.db-wal").exists() or not (region.parent / "shop.db-wal").stat().st_size


def test_what_fails_within_the_block_leaves_it_as_it_was(region: Path) -> None:
    with pytest.raises(RuntimeError), upgraded_by("CREATE TABLE more (x)", region, region=REGION, name="shop"):
        raise RuntimeError
    assert columns(region) == {"person": ["id", "name"]}


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("COMMIT", UsageError),
        ("ATTACH ':memory:' AS other", UsageError),
        ("PRAGMA foreign_keys = 1", UsageError),
        ("DROP TABLE _replicate_state", UsageError),
        ("CREATE TABLE more (x); nonsense", ConflictError),
        ("INSERT INTO person VALUES (1, 'twice')", ConflictError),
    ],
)
def test_a_script_that_may_not_or_cannot_be_run(region: Path, script: str, error: type[Exception]) -> None:
    with pytest.raises(error), upgraded_by(script, region, region=REGION, name="shop"):
        pass
    assert columns(region) == {"person": ["id", "name"]}
