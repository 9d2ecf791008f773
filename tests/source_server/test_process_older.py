"""A release that speaks 1.1, before partitions, on either side: what it does not know is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from replicate.admin import partitions, subscriptions
from replicate.wire.features import Protocol
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio

SCHEMA = "CREATE TABLE a (id INTEGER PRIMARY KEY, v); CREATE TABLE b (id INTEGER PRIMARY KEY, v);"
OLDER = Protocol(1, 1)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", "")
    made = Pair.create(tmp_path, SCHEMA)
    partitions.create(made.primary, "sales")
    partitions.assign(made.primary, "sales", ["a"])
    return made


def write(pair: Pair, *tables: str) -> int:
    """One row in each, in one transaction; its number."""
    connection = pair.connect()
    for table in tables:
        connection.execute(f"INSERT INTO {table} (v) VALUES (1)")
    connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


async def test_an_older_secondary_gets_all_up_to_what_it_does_not_know(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.seed()
    async with servers() as running:
        with monkeypatch.context() as older:
            older.setattr("receiver_server.link.PROTOCOL", OLDER)
            receiver = await running.receiver(pair.secondary)
            point(pair.primary, "west", receiver)
            source = running.source(pair.primary)
            await trio.to_thread.run_sync(write, pair, "a")
            last = await trio.to_thread.run_sync(write, pair, "b")
            await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
            over_both = await trio.to_thread.run_sync(write, pair, "a", "b")
            told = f"transaction {over_both} is over several partitions, which west"
            await wait_until_async(lambda: told in str(source.facts.get("last_error")))
            assert "Upgrade the older side first; nothing is lost until then" in str(source.facts["last_error"])
            assert receiver.facts.get("last_received_seqno") == last
        # It is upgraded, and nothing was lost.
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == over_both)


async def test_an_older_source_is_refused_where_some_partitions_are_here(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriptions.set_(pair.secondary, ["2"])
    pair.seed()
    async with servers() as running:
        with monkeypatch.context() as older:
            older.setattr("source_server.link.PROTOCOL", OLDER)
            receiver = await running.receiver(pair.secondary)
            point(pair.primary, "west", receiver)
            source = running.source(pair.primary)
            last = await trio.to_thread.run_sync(write, pair, "b")
            told = "cannot send the partitions that are here without the others"
            await wait_until_async(lambda: told in str(source.facts.get("last_error")))
            assert receiver.facts.get("last_received_seqno") != last
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
