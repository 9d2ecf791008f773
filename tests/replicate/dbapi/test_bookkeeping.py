"""Our bookkeeping is not the application's: what would change it is refused by name, on a real primary."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import replicate
from replicate import dbapi
from replicate.errors import NotSupportedError as NotReplicable
from replicate.instance.instance import Instance
from tests.harness.instances import check, make_primary

SCRIPT = """
CREATE TABLE t(id INTEGER PRIMARY KEY, v);
CREATE TABLE trapped(x);
CREATE TRIGGER trap AFTER INSERT ON trapped BEGIN DELETE FROM _replicate_ring; END;
CREATE VIEW window AS SELECT 1 AS x;
CREATE TRIGGER sash INSTEAD OF INSERT ON window BEGIN UPDATE _replicate_state SET value = 0; END;
"""


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return make_primary(tmp_path / "alpha", script=SCRIPT)


@pytest.fixture
def connection(instance: Instance) -> Iterator[Any]:
    made = replicate.connect(instance.path)
    yield made
    made.close()


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM _replicate_ring",
        'DELETE FROM main."_Replicate_Ring" WHERE slot = 1',
        "UPDATE _replicate_scr SET seqno = 1",
        "INSERT INTO _replicate_state VALUES ('schema_version', 1)",
        "REPLACE INTO '_replicate_region' (id) VALUES (1)",
        "WITH x AS (SELECT 1) DELETE FROM _replicate_table",
        "INSERT INTO trapped VALUES (1)",
        "INSERT INTO window VALUES (1)",
        "CREATE TRIGGER z AFTER UPDATE ON _replicate_ring BEGIN DELETE FROM t; END",
        "CREATE TEMP TRIGGER z AFTER UPDATE ON _replicate_ring BEGIN DELETE FROM t; END",
        "CREATE TEMP TABLE _replicate_ring (slot, seqno, record)",
        "CREATE TEMP VIEW _replicate_state AS SELECT 1",
        "CREATE INDEX z ON _replicate_ring (seqno)",
        "ALTER TABLE _replicate_ring ADD COLUMN z",
        "ALTER TABLE _replicate_ring RENAME TO z",
        "DROP TABLE _replicate_ring",
        "DROP TRIGGER _replicate_guard_insert_t",
    ],
)
@pytest.mark.parametrize("way", ["execute", "executemany", "executescript", "autocommit", "within"])
def test_what_would_change_our_tables_is_refused_by_name(
    instance: Instance, connection: Any, text: str, way: str
) -> None:
    before = connection.execute("SELECT * FROM _replicate_state").fetchall()
    if way == "autocommit":
        connection.isolation_level = None
    if way == "within":
        connection.execute("INSERT INTO t VALUES (1, 'x')")
    run = getattr(connection, way if way.startswith("execute") else "execute")
    arguments = (text, [(), ()]) if way == "executemany" else (text,)
    with pytest.raises(replicate.NotSupportedError, match=r"(?i)_replicate_\w+ belongs to replication") as caught:
        run(*arguments)
    assert isinstance(caught.value, NotReplicable)
    assert connection.in_transaction is (way == "within")
    connection.commit()
    connection.isolation_level = ""
    assert connection.execute("SELECT * FROM _replicate_state").fetchall() == before
    with connection:
        connection.execute("INSERT INTO t VALUES (2, 'y')")
    assert list(check(instance).rows["main"]) == ([1, 2] if way == "within" else [2])


def test_a_statement_of_ours_in_the_cache_does_not_open_the_door(connection: Any) -> None:
    """The door has prepared the very same texts; an application's must be asked about all the same."""
    with connection:
        connection.execute("CREATE TABLE more (x)")
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    connection.commit()
    known = [entry["query"] for entry in connection._state.apsw.cache_stats(True)["entries"]]
    ours = [text for text in known if "_replicate_" in text and text.startswith(("UPDATE", "INSERT"))]
    assert len(ours) >= 4
    for text in ours:
        with pytest.raises(replicate.NotSupportedError, match="belongs to replication"):
            connection.execute(text, (1,) * text.count("?"))
    assert not connection.in_transaction


def test_the_applications_own_authorizer_is_asked_besides(connection: Any) -> None:
    asked: list[tuple[Any, ...]] = []
    connection.set_authorizer(lambda *arguments: asked.append(arguments) or dbapi.SQLITE_OK)
    with pytest.raises(replicate.NotSupportedError):
        connection.execute("DELETE FROM _replicate_ring")
    connection.execute("INSERT INTO t VALUES (1, 'x')")
    assert (dbapi.SQLITE_INSERT, "t", None, "main", None) in asked
    assert not [one for one in asked if one[0] == dbapi.SQLITE_DELETE and one[1] == "_replicate_ring"]
    connection.set_authorizer(None)
    with pytest.raises(replicate.NotSupportedError):
        connection.execute("DELETE FROM _replicate_scr")
    connection.commit()


def test_tables_with_guards_are_altered_renamed_and_dropped_as_before(instance: Instance, connection: Any) -> None:
    connection.executescript("ALTER TABLE t ADD COLUMN w; ALTER TABLE t RENAME TO s; ALTER TABLE s RENAME TO t;")
    connection.executescript("CREATE TABLE gone (x); INSERT INTO gone VALUES ('_replicate_ring'); DROP TABLE gone;")
    connection.execute(f"VACUUM INTO '{instance.path.parent / 'copy.db'}'")
    assert (instance.path.parent / "copy.db").stat().st_size > 0
