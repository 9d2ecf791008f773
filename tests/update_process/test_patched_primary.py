"""A primary that was changed journals what our own door refuses: the secondary refuses it too, and applies nothing.

The door and the applier ask the same function (region/sqlite/allowed_definitions.py), and SQLite's authorizer after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import replicate
from replicate.door import primary
from replicate.door.primary import RegionSession
from replicate.errors import NotSupportedError
from replicate.journal.record import pack_elements
from replicate.journal.spool import Spool
from replicate.model.transaction import Op
from replicate.pool import control as word
from replicate.region.sqlite.schema import schema_objects
from tests.harness.instances import captured, session_of
from tests.harness.pair import Pair
from tests.harness.replaying import replayed


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of what was captured would refuse the commit of the patched primary."""
    monkeypatch.setattr(primary, "CHECK_CAPTURE", False)


REFUSED = {
    "CREATE TRIGGER z AFTER INSERT ON account BEGIN DELETE FROM _replicate_ring; END": "_replicate_ring",
    'CREATE TRIGGER z AFTER INSERT ON account BEGIN SELECT * FROM "_Replicate_State"; END': "_replicate_state",
    "CREATE TRIGGER _replicate_guard_insert_z AFTER INSERT ON account BEGIN SELECT 1; END": "_replicate_guard_insert_z",
    "CREATE TABLE z AS SELECT * FROM _replicate_ring": "_replicate_ring|CREATE TABLE AS",
    "CREATE VIEW z AS SELECT * FROM [_replicate_scr]": "_replicate_scr",
    "CREATE VIRTUAL TABLE z USING fts5(record, content='_replicate_ring', content_rowid='slot')": "_replicate_ring",
    'CREATE VIRTUAL TABLE z USING fts4(content="_REPLICATE_ring", record)': "_replicate_ring",
    "CREATE VIRTUAL TABLE z USING fts5vocab(_replicate_z, 'row')": "_replicate_z",
    "CREATE VIRTUAL TABLE z USING dbstat": "module dbstat",
    "CREATE VIRTUAL TABLE z USING csv(filename='/etc/passwd')": "module csv",
    "CREATE TABLE _replicate_z (a)": "_replicate_z",
    "CREATE TABLE z (_replicate_a)": "_replicate_a",
    "CREATE INDEX z ON _replicate_ring (seqno)": "_replicate_ring",
    "CREATE INDEX _replicate_z ON account (note)": "_replicate_z",
    "ALTER TABLE account RENAME TO _replicate_z": "_replicate_z",
    "ALTER TABLE account RENAME COLUMN note TO `_replicate_z`": "_replicate_z",
    "ALTER TABLE _replicate_ring ADD COLUMN z": "_replicate_ring",
    "DROP TABLE _replicate_ring": "_replicate_ring",
    "DROP TRIGGER _replicate_guard_insert_account": "_replicate_guard_insert_account",
    "PRAGMA writable_schema = ON": "writable_schema",
    "PRAGMA schema_version = 7": "schema_version",
    "PRAGMA journal_mode = DELETE": "journal_mode",
    "PRAGMA locking_mode = EXCLUSIVE": "locking_mode",
    "PRAGMA no_such_pragma = 7": "no_such_pragma",
    "VACUUM": "VACUUM",
    "DELETE FROM _replicate_ring": "_replicate_ring|DELETE",
}
"""What our own door refuses, and what both name."""

NEVER_SENT = {
    "INSERT INTO account (id) VALUES (7)": "INSERT is no schema change",
    "CREATE TABLE z (a); DELETE FROM account": "several statements",
    "CREATE TABLE z AS SELECT 1": "a CREATE TABLE AS",
    "CREATE TEMP TABLE z (a)": "a temporary object",
    "CREATE TEMP TRIGGER z AFTER INSERT ON account BEGIN DELETE FROM _replicate_ring; END": "a temporary object",
    "CREATE TABLE temp.z (a)": "a temporary object",
    "CREATE TABLE other.z (a)": "database other",
    "PRAGMA other.user_version = 7": "database other",
    "PRAGMA user_version": "PRAGMA user_version",
    "PRAGMA foreign_keys = ON": "PRAGMA foreign_keys",
    "ATTACH ':memory:' AS other": "ATTACH",
    "DETACH main": "DETACH",
    "COMMIT": "COMMIT",
    "SAVEPOINT z": "SAVEPOINT",
    "SELECT load_extension('z')": "SELECT",
    "CREATE TABLE z (a CHECK (load_extension(a)))": "load_extension",
    "CREATE TABLE z\0 (a)": "a null character",
    "": "no statement",
}
"""What a door runs, but sends in other words or not at all."""


def journal(pair: Pair, text: str) -> int:
    """A row, and after it a transaction that holds nothing but this text, as a primary without any check writes it."""
    last = pair.write(1)
    with session_of(pair.primary) as primary:
        primary.begin(timeout_s=60.0)
        primary.commit(captured(*pack_elements(int(Op.SCHEMA), 0, "main", [text]), schema=True))
    return last


def journal_large(pair: Pair, text: str) -> int:
    """The same, as a large transaction."""
    last = pair.write(1)
    with session_of(pair.primary) as primary:
        primary.begin(timeout_s=60.0)
        spool = spool_of(primary)
        payload, count = pack_elements(int(Op.SCHEMA), 0, "main", [text])
        spool.write(payload)
        primary.commit(captured(b"", count, spool=spool, schema=True))
    return last


def spool_of(session: RegionSession) -> Spool:
    door = session.door
    return Spool.create(door.instance.journal_directory, door.words[word.OWN_ORIGIN])


def stands(pair: Pair) -> tuple[Any, ...]:
    """All that a schema change may change of the secondary."""
    path = pair.secondary.region("main").path
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        pragmas = [connection.pragma(name) for name in ("user_version", "application_id", "journal_mode")]
        ours = connection.execute("SELECT name FROM sqlite_schema WHERE name GLOB '_replicate_*'").fetchall()
        return (*pragmas, dict(schema_objects(connection)), ours)


def test_the_door_refuses_it(pair: Pair) -> None:
    with closing(pair.connect()) as connection:
        for text, named in REFUSED.items():
            with pytest.raises(replicate.NotSupportedError, match=f"(?i){named}"):
                connection.execute(text)
            connection.rollback()


def test_the_applier_refuses_it(pair: Pair) -> None:
    """Before it is run: within one transaction all stays as it was."""
    with pair.session() as primary:
        (rows,) = primary.rows.values()
        primary.begin()
        before = dict(schema_objects(rows._connection)), rows._connection.total_changes()
        for text, named in (REFUSED | NEVER_SENT).items():
            with pytest.raises(NotSupportedError, match=f"(?i){named}") as caught:
                rows.apply(Op.SCHEMA, 0, "main", [text])
            assert "journal show" in caught.value.do
            assert (dict(schema_objects(rows._connection)), rows._connection.total_changes()) == before
        primary.rollback()


@pytest.mark.parametrize("way", [journal, journal_large])
@pytest.mark.parametrize("text", list(REFUSED)[:6:3])
def test_the_stream_stops_by_name_and_nothing_is_applied(
    pair: Pair, text: str, way: Callable[[Pair, str], int]
) -> None:
    before, last = stands(pair), way(pair, text)
    for _ in range(2):  # it stays refused, no matter who starts it again
        with pair.receive_pool() as pool, pair.applier(pool) as applier:
            pair.deliver(pool)
            with pytest.raises(NotSupportedError, match=REFUSED[text]):
                applier.work(60.0)
        assert pair.last_seqno(pair.secondary) == last, "what came before it is applied"
        assert stands(pair) == before


def test_a_replay_stops_by_name_and_nothing_is_applied(pair: Pair) -> None:
    text = next(iter(REFUSED))
    before, last = stands(pair), journal(pair, text)
    with pytest.raises(NotSupportedError, match=REFUSED[text]):
        replayed(pair)
    assert pair.last_seqno(pair.secondary) == last
    assert stands(pair) == before


def test_what_came_of_a_create_table_as_is_looked_at_before_it_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns are named by what it selects from, here a table that was there before it was a region's."""
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    pair = Pair.create(tmp_path, "CREATE TABLE old (_replicate_x)")
    with closing(pair.connect()) as connection:
        with pytest.raises(replicate.NotSupportedError, match="_replicate_x"):
            connection.execute("CREATE TABLE z AS SELECT * FROM old")
        connection.rollback()
        connection.execute("CREATE TABLE z AS SELECT 1 AS x FROM old")
        connection.commit()
