"""Other clients: their writes of rows are refused on both sides; what no trigger can refuse (schema changes, dropped
guards) stops the region before the next commit or apply, by name and with the command that mends it, and that command
mends it. And a migration as ORMs do it, through our connection.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from replicate.daemon.lock_file import LockFile
from tests.harness.street import Street
from tests.harness.waiting import wait_until

STRANGER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    try:
        connection.execute(statement)
        print("done")
    except sqlite3.Error as error:
        print(error)
"""
ROWS = (
    "INSERT INTO account (owner) VALUES ('stranger')",
    "UPDATE account SET balance = 0",
    "DELETE FROM account",
    "INSERT INTO setting VALUES ('a', 1) ON CONFLICT DO UPDATE SET value = 2",
    "REPLACE INTO setting VALUES ('a', 1)",
)
CHANGES = (
    "DROP TRIGGER _replicate_guard_update_account",
    "CREATE INDEX foreign_made ON loose (a)",
    "ALTER TABLE loose ADD COLUMN c",
    "DROP TABLE loose",
)

# Django's and Alembic's way with a table that is to be changed: copy, drop, rename.
MIGRATION = (
    "PRAGMA foreign_keys = OFF",
    "BEGIN",
    'CREATE TABLE "new__account" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "owner" varchar(20) NOT NULL, '
    '"balance" bigint NOT NULL DEFAULT 0, "note" text NULL, "photo" blob NULL, "active" bool NOT NULL)',
    'INSERT INTO "new__account" ("id", "owner", "balance", "note", "photo", "active") '
    'SELECT "id", "owner", coalesce("balance", 0), "note", "photo", 1 FROM "account"',
    'DROP TABLE "account"',
    'ALTER TABLE "new__account" RENAME TO "account"',
    'CREATE INDEX "account_owner_active" ON "account" ("owner", "active")',
    'UPDATE "account" SET "active" = 0 WHERE "id" = 1',
    "PRAGMA foreign_key_check",
    "COMMIT",
    "PRAGMA foreign_keys = ON",
)
MIGRATOR = """
import sys, replicate
connection = replicate.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    connection.execute(statement).fetchall()
connection.close()
"""

SETTINGS = '[journal]\ndurability = "interval"\n'

pytestmark = pytest.mark.slow


@pytest.fixture
def street(shared_street: Street) -> Street:
    return shared_street


def stranger(street: Street, region: Path, *statements: str) -> list[str]:
    """What another client is told, statement by statement."""
    output, errors = street.python(STRANGER, str(region), *statements).communicate(timeout=120)
    assert not errors
    return output.splitlines()


def test_rows_of_other_clients_are_refused_on_both_sides(street: Street) -> None:
    for region in (street.database, street.secondary / "regions" / "main.db"):
        for said in stranger(street, region, *ROWS):
            assert said == "no such function: replicate_connect_is_required"
    street.write("INSERT INTO loose VALUES (1, 2)")
    street.prove_equal()


def has_stopped_again(street: Street, before: int) -> bool:
    """Another process than that one: until it says anything, the status file is of the one before."""
    now = street.daemon(street.secondary, "update")
    is_gone = LockFile(street.secondary, "update").probe() is None
    return is_gone and now["pid"] != before and now["exit_code"] == 65


@pytest.mark.parametrize("change", CHANGES)
def test_a_schema_change_on_the_secondary_stops_it_before_the_next_apply(street: Street, change: str) -> None:
    seqno = street.write("INSERT INTO loose VALUES (1, 2)")
    street.on(street.secondary, "wait", "--seqno", str(seqno), "--timeout", "120")
    assert stranger(street, street.secondary / "regions" / "main.db", change) == ["done"]
    # Nothing that the change touches: it is found all the same.
    street.write("INSERT OR REPLACE INTO setting VALUES ('after', 1)")
    wait_until(lambda: street.daemon(street.secondary, "update")["exit_code"], what="it stops")
    failed = street.daemon(street.secondary, "update")
    assert failed["exit_code"] == 65
    for said in (
        "SCHEMA_CHANGED",
        "another client changed the schema",
        "regions/main.db",
        f"replicate -i {street.secondary} seed --restart",
    ):
        assert said in failed["error"]
    assert street.last_seqno(street.secondary) == seqno
    status = street.on(street.secondary, "status", check=False)
    assert status.returncode == 1
    assert "--restart" in status.stdout
    # Starting it again skips nothing; the command that it names mends it.
    street.on(street.secondary, "update", "start", check=False)
    wait_until(lambda: has_stopped_again(street, failed["pid"]), what="it stops again")
    assert street.last_seqno(street.secondary) == seqno
    street.on(street.secondary, "seed", "--from", street.primary, "--restart")
    street.start_update()
    street.prove_equal()


@pytest.mark.parametrize("change", CHANGES[:2])
def test_a_schema_change_on_the_primary_is_found_before_the_next_commit(street: Street, change: str) -> None:
    seqno = street.write("INSERT INTO loose VALUES (1, 2)")
    assert stranger(street, street.database, change) == ["done"]
    writer = street.python(MIGRATOR, str(street.primary), "INSERT INTO setting VALUES ('refused', 1)")
    said = writer.communicate(timeout=120)[1]
    way_out = f"replicate -i {street.primary} region release main"
    for words in ("SCHEMA_CHANGED", "another client changed the schema of region main, or ran VACUUM", way_out):
        assert words in said
    assert street.last_seqno(street.primary) == seqno
    street.on(street.secondary, "wait", "--seqno", str(seqno))  # else the stop may come before the stream has begun
    street.on(street.primary, "source", "stop")
    street.on(street.primary, "region", "release", "main")
    street.on(street.primary, "region", "add", street.database, "--yes")
    street.on(street.secondary, "update", "stop")
    street.start_source()
    street.on(street.secondary, "seed", "--from", street.primary, "--restart")
    street.start_update()
    street.write("INSERT OR REPLACE INTO setting VALUES ('passes', 1)")
    street.prove_equal()


def test_a_migration_that_copies_drops_and_renames(street: Street) -> None:
    street.write("INSERT INTO entry (account, amount) VALUES (1, 0.5)", "INSERT INTO account (owner) VALUES ('second')")
    street.finish([street.python(MIGRATOR, str(street.primary), *MIGRATION)])
    street.write("UPDATE account SET balance = balance + 1", "INSERT INTO account (owner, active) VALUES ('third', 1)")
    street.prove_equal()
    for region in (street.database, street.secondary / "regions" / "main.db"):
        assert stranger(street, region, "DELETE FROM account") == ["no such function: replicate_connect_is_required"]
