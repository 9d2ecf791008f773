"""A secondary whose schema is another one than its primary's, beyond a filter that speaks it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from replicate.admin.region_upgrade import upgrade_region
from replicate.audit.verify import verify_journal
from replicate.daemon.lock_file import LockFile
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import AlreadyRunningError, ConflictError, NotFoundError, PermissionRefusedError, UsageError
from tests.harness.filtered import applied
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from update_process.process import finish_received
from update_process.process import serve as serve_update

SCHEMA = "CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT NOT NULL); CREATE TABLE other (a);"
SCRIPT = """
ALTER TABLE person ADD COLUMN first TEXT NOT NULL DEFAULT '';
ALTER TABLE person ADD COLUMN last TEXT NOT NULL DEFAULT '';
UPDATE person SET first = substr(name, 1, instr(name, ' ') - 1), last = substr(name, instr(name, ' ') + 1);
ALTER TABLE person DROP COLUMN name;
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    door = open_door(made.primary)
    execute(made, "INSERT INTO person(name) VALUES ('Ada Lovelace'), ('Grace Hopper')")
    made.seed()
    yield made
    close_door(door)


def execute(pair: Pair, *statements: str) -> int:
    """One transaction of the primary."""
    connection = pair.connect()
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def upgrade(pair: Pair, script: str = SCRIPT) -> tuple[int, tuple[str, ...]]:
    made = upgrade_region(
        pair.secondary, "main", script, timeout_s=60, finish=lambda: finish_received(pair.secondary, timeout_s=60)
    )
    return made.seqno, made.tables


NAMES = [(1, 1, "Ada", "Lovelace"), (2, 2, "Grace", "Hopper")]


@pytest.mark.trio
async def test_the_stream_goes_on_in_the_words_of_the_new_schema(pair: Pair) -> None:
    with pair.receive_pool() as pool:
        last = execute(pair, "INSERT INTO person(name) VALUES ('Edsger Dijkstra')")
        assert pair.deliver(pool) == last
    assert upgrade(pair) == (last, ("person",))
    assert pair.rows("person") == [*NAMES, (3, 3, "Edsger", "Dijkstra")]
    execute(pair, "UPDATE person SET name = 'Ada King' WHERE id = 1", "INSERT INTO other VALUES (1)")
    execute(pair, "DELETE FROM person WHERE id = 2")
    async with servers() as running:
        receiver = await running.receiver(pair.secondary, receiver__filter="tests.harness.filters:two_names")
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        last = await trio.to_thread.run_sync(
            lambda: execute(pair, "INSERT INTO person(name) VALUES ('Barbara Liskov')")
        )
        await applied(update, last)
    assert pair.rows("person") == [(1, 1, "Ada", "King"), (3, 3, "Edsger", "Dijkstra"), (4, 4, "Barbara", "Liskov")]
    assert pair.rows("other") == [(1, 1)]
    assert pair.last_seqno(pair.secondary) == last


@pytest.mark.trio
async def test_a_source_speaks_the_schema_of_its_peer(pair: Pair) -> None:
    """As after a switchover: the primary is newer, and what it sends is told in the older schema."""
    (pair.primary.path / "there.sql").write_text(
        "CREATE TABLE person (id INTEGER PRIMARY KEY, first TEXT NOT NULL DEFAULT '', last TEXT NOT NULL DEFAULT '');"
        "CREATE TABLE other (a);"
    )
    upgrade(pair)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        update = running.start("update", pair.secondary, serve_update)
        point(pair.primary, "west", receiver)
        running.source(
            pair.primary, source__filter="tests.harness.filters:two_names", source__filter_schema="there.sql"
        )
        last = await trio.to_thread.run_sync(
            lambda: execute(pair, "INSERT INTO person(name) VALUES ('Barbara Liskov')", "INSERT INTO other VALUES (1)")
        )
        await applied(update, last)
    assert pair.rows("person") == [*NAMES, (3, 3, "Barbara", "Liskov")]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("ALTER TABLE nobody ADD COLUMN a", ConflictError),
        ("ALTER TABLE person ADD COLUMN a; COMMIT", UsageError),
        ("DELETE FROM _replicate_state", UsageError),
        ("PRAGMA writable_schema = 1", UsageError),
        ("ALTER TABLE person ADD", ConflictError),
    ],
)
def test_a_script_that_cannot_be_run_changes_nothing(pair: Pair, script: str, error: type[Exception]) -> None:
    before = pair.rows("person")
    with pytest.raises(error):
        upgrade(pair, script)
    assert pair.rows("person") == before
    last = execute(pair, "INSERT INTO person(name) VALUES ('Barbara Liskov')")
    pair.catch_up()
    assert pair.last_seqno(pair.secondary) == last


def test_only_a_secondary_whose_daemons_are_down_has_its_region_upgraded(pair: Pair) -> None:
    with pytest.raises(PermissionRefusedError, match="is primary"):
        upgrade_region(pair.primary, "main", SCRIPT, timeout_s=1, finish=lambda: None)
    with pytest.raises(NotFoundError):
        upgrade_region(pair.secondary, "two", SCRIPT, timeout_s=1, finish=lambda: None)
    held = LockFile(pair.secondary.path, "receiver").acquire()
    with pytest.raises(AlreadyRunningError):
        upgrade(pair)
    os.close(held)
    assert upgrade(pair)[1] == ("person",)
    assert verify_journal(pair.secondary).findings == ()
