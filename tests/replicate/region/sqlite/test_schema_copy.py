"""A database without rows as what makes it: what is told so is made again exactly, and all else has to be seeded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import apsw
import pytest

from replicate.errors import JournalDamagedError, NotSupportedError
from replicate.model.region_record import Making
from replicate.region.sqlite.open import open_region
from replicate.region.sqlite.schema_copy import count_rows, make_at, making_of
from tests.harness.regions import INSTANCE, NETWORK, REGION, make_database, make_region

FACTS: Final[dict[str, Any]] = {
    "network": NETWORK, "instance": INSTANCE, "region": REGION, "name": "t", "added_as": b"x" * 16, "position": (),
    "seqno": 7,
}  # fmt: skip


def making(path: Path, script: str) -> Making:
    make_database(path, script)
    connection = open_region(path, readonly=True, plain=True)
    try:
        return making_of(connection, str(path))
    finally:
        connection.close()


COUNTED: Final = "CREATE TABLE t (i INTEGER PRIMARY KEY AUTOINCREMENT)"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("CREATE TABLE t (a); INSERT INTO t VALUES (NULL)", "its table t has rows"),
        ("CREATE VIRTUAL TABLE f USING fts5 (a)", "the virtual table f .fts5."),
        ("CREATE VIRTUAL TABLE r USING rtree (i, a, b)", "the virtual table r .rtree."),
        ("CREATE TABLE t (a); CREATE INDEX i ON t (a); ANALYZE", "of its own texts: object name reserved"),
        (f"{COUNTED}; DROP TABLE t", "would be another one"),
        (f"{COUNTED}; INSERT INTO sqlite_sequence VALUES ('gone', 5)", "no table's, or no number"),
        (f"{COUNTED}; INSERT INTO sqlite_sequence VALUES ('t', 'x')", "no table's, or no number"),
        (
            "CREATE TABLE t (a); PRAGMA writable_schema = 1; "
            "UPDATE sqlite_schema SET sql = 'create table t (a)'; PRAGMA writable_schema = 0",
            "would be another one",
        ),
    ],
)
def test_what_cannot_be_told_as_a_schema_has_to_be_seeded(tmp_path: Path, script: str, why: str) -> None:
    with pytest.raises(NotSupportedError, match=why):
        making(tmp_path / "t.db", script)


@pytest.mark.parametrize(
    "script",
    [
        "",
        "PRAGMA user_version = 3",
        "CREATE TABLE t (a); CREATE TRIGGER b AFTER INSERT ON t BEGIN SELECT 1; END; "
        "CREATE TRIGGER a AFTER INSERT ON t BEGIN SELECT 2; END",
        "CREATE TABLE p (i INTEGER PRIMARY KEY); CREATE TABLE c (i REFERENCES p (i) ON DELETE CASCADE, CHECK (i > 0))",
        "CREATE VIEW v AS SELECT * FROM nowhere",
        'CREATE TABLE "odd; name" ("a ""b", c DEFAULT \'it\'\'s; so\'); CREATE INDEX "i x" ON "odd; name" (c)',
        "CREATE TABLE t (a); ALTER TABLE t ADD COLUMN b DEFAULT 1; ALTER TABLE t RENAME TO u; "
        "ALTER TABLE u DROP COLUMN a",
        "CREATE TABLE t AS SELECT 1 AS a WHERE 0",
        "PRAGMA journal_mode = wal; CREATE TABLE t (a)",
    ],
)
def test_what_is_told_is_made_again(tmp_path: Path, script: str) -> None:
    told = making(tmp_path / "t.db", script)
    made = tmp_path / "made.db"
    make_at(made, told, **FACTS)
    connection = open_region(made, region=REGION)
    try:
        assert making_of(connection, str(made)) == told
        assert count_rows(connection) == 0
    finally:
        connection.close()


def test_rows_are_counted_in_all_tables_but_ours(tmp_path: Path) -> None:
    make_region(tmp_path / "t.db", "CREATE TABLE a (x); INSERT INTO a VALUES (1), (2); CREATE TABLE b AS SELECT 1")
    connection = open_region(tmp_path / "t.db", region=REGION)
    try:
        assert count_rows(connection) == 3
    finally:
        connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "PRAGMA writable_schema = 1",
        "PRAGMA page_size = 4096; DROP TABLE t",
        "PRAGMA journal_mode = off",
        "pragma writable_schema = 1",
        "ATTACH '/tmp/other.db' AS other",
        "INSERT INTO t VALUES (1)",
        "CREATE VIRTUAL TABLE f USING fts5 (a)",
        "CREATE TABLE _replicate_t (a)",
        "CREATE TEMP TABLE u (a)",
        "CREATE TABLE u AS SELECT load_extension('x')",
        "SELECT load_extension('x')",
    ],
)
def test_another_site_can_make_nothing_but_a_schema(tmp_path: Path, statement: str) -> None:
    with pytest.raises((JournalDamagedError, NotSupportedError)):
        make_at(tmp_path / "t.db", Making(("CREATE TABLE t (a)", statement)), **FACTS)


def test_functions_of_the_application_that_are_not_there_mean_a_seed(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "t.db"))
    connection.create_scalar_function("mine", lambda value: value, 1, deterministic=True)
    connection.execute("CREATE TABLE t (a); CREATE INDEX i ON t (mine(a))")
    connection.close()
    with pytest.raises(NotSupportedError, match="no such function: mine"):
        making(tmp_path / "t.db", "")
