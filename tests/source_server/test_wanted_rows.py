"""source_server/wanted_rows.py, and the Source Server with it: who asks for some rows gets these, or a refusal by
name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from receiver_server.link import ReceiverLink
from replicate.admin import subscriptions
from replicate.daemon.own_introduction import introduction, packed_rows, rows_told
from replicate.errors import PeerRefusedError
from replicate.filters.rows import RowSelection
from replicate.filters.selection import PartitionSelection
from replicate.instance.instance import Instance
from replicate.model.subscription import Rows
from replicate.transfer.seed.rows import definitions_here
from source_server.wanted_rows import with_rows
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async

T = ("main", "account")
SCHEMA = "CREATE TABLE account (id INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, note TEXT, size INTEGER);"


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path, SCHEMA)
    write(made, "INSERT INTO account (owner, size) VALUES ('a', 1), ('b', 5)")
    subscriptions.filter_(made.secondary, "account", "size > 3")
    made.seed()
    return made


def write(pair: Pair, *texts: str) -> int:
    connection = pair.connect()
    for text in texts:
        connection.execute(text)
    connection.commit()
    last = connection.last_seqno
    connection.close()
    assert last is not None
    return last


def asking(pair: Pair, rows: Rows) -> Any:
    return replace(introduction(pair.secondary, 1.0), rows=packed_rows(rows))


def test_who_may_have_them(pair: Pair) -> None:
    """What goes to whom, asked of a primary, of a secondary with some rows, of a supplier, and beside a filter."""
    primary, secondary = pair.primary, pair.secondary
    known = {one.table_id: one for one in definitions_here(secondary)}
    partitions = PartitionSelection(None, known)
    some: Rows = {T: "size > 3"}
    assert rows_told(packed_rows(some)) == some
    for source in (primary, secondary):
        assert isinstance(with_rows(source, asking(pair, some), {}, partitions, is_filtered=False), RowSelection)
    assert with_rows(primary, asking(pair, {}), {}, partitions, is_filtered=True) is partitions
    assert with_rows(primary, asking(pair, {}), {}, None, is_filtered=False) is None
    refusals: list[tuple[Instance, Rows, bool, str]] = [
        (primary, some, True, "has a source.filter, which tells rows in other words"),
        (secondary, {}, False, "has of table main.account where size > 3, no other rows, and west asks for all rows"),
        (secondary, {T: "size > 2"}, False, "west asks for of table main.account where size > 2"),
        (primary, {T: "size >"}, False, "cannot be read"),
        (primary, {T: "COLUMNS (id"}, False, "cannot be read"),
        (secondary, {T: "COLUMNS (id, size)"}, False, "west asks for of table main.account the columns id, size, no"),
    ]
    for source, rows, is_filtered, told in refusals:
        with pytest.raises(PeerRefusedError, match=told) as caught:
            with_rows(source, asking(pair, rows), known, partitions, is_filtered=is_filtered)
        assert caught.value.facts["reason"] == "ROWS_REFUSED"
    content = replace(primary.content, is_supplier=True)
    primary.content = content
    with pytest.raises(PeerRefusedError, match="east is a supplier, which sends all rows"):
        with_rows(primary, asking(pair, some), {}, partitions, is_filtered=False)


def test_who_wants_no_partition_of_the_table_gets_the_rest(pair: Pair) -> None:
    """The relay has some rows of account, which is in sales; the peer wants DEFAULT, where tables may come to."""
    relay = pair.secondary
    (account,) = definitions_here(relay)
    inside = replace(account, partition=2)
    known = {inside.table_id: inside}
    selection = with_rows(relay, asking(pair, {}), known, PartitionSelection((1,), known), is_filtered=False)
    assert isinstance(selection, RowSelection)
    assert not selection.goes_whole(inside)
    assert selection.goes_whole(replace(account, table="other"))
    refusals: list[tuple[Rows, Any, bool, str]] = [
        ({}, PartitionSelection((1, 2), known), False, "west asks for all rows of it"),
        ({T: "size > 2"}, PartitionSelection((1, 2), known), False, "west asks for of table main.account where size >"),
        ({}, None, False, "west asks for all rows of it"),
        ({}, PartitionSelection((1,), known), True, "no other rows, and west has a source.filter"),
    ]
    for rows, partitions, is_filtered, told in refusals:
        with pytest.raises(PeerRefusedError, match=told) as caught:
            with_rows(relay, asking(pair, rows), known, partitions, is_filtered=is_filtered)
        assert caught.value.facts["reason"] == "ROWS_REFUSED"


@pytest.mark.trio
async def test_the_stream_of_some_rows(pair: Pair) -> None:
    """Moves in and out; then the table changes so that the condition says nothing of it, and all stops before that."""
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        texts = (
            "INSERT INTO account (owner, size) VALUES ('c', 2), ('d', 9)",
            "UPDATE account SET size = size + 2",
            "UPDATE account SET size = 0 WHERE owner = 'd'",
        )
        for text in texts:
            last = await trio.to_thread.run_sync(write, pair, text)
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        await trio.to_thread.run_sync(write, pair, "ALTER TABLE account DROP COLUMN size")
        await trio.to_thread.run_sync(write, pair, "INSERT INTO account (owner) VALUES ('e')")
        await wait_until_async(lambda: "has no column size" in str(source.facts.get("last_error")))
        assert "seed --restart" in str(source.facts["last_error"])
        assert receiver.facts.get("last_received_seqno") == last


@pytest.mark.trio
@pytest.mark.parametrize("what", ["rows", "columns"])
async def test_a_source_that_knows_no_rows_or_columns_is_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "columns":
        subscriptions.filter_(pair.secondary, "account", "COLUMNS (id, owner, size)")
        pair.seed(restart=True)
    monkeypatch.setattr(ReceiverLink, f"can_choose_{what}", False)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(
            lambda: f"cannot send the {what} that are here without the others" in str(source.facts.get("last_error"))
        )


@pytest.mark.trio
async def test_another_condition_in_force_is_asked_for_by_another_connection(pair: Pair) -> None:
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
        before = len(source.log.events("peer introduced"))
        subscriptions.filter_(pair.secondary, "account", "size > 4")
        write(pair, "INSERT INTO account (owner, size) VALUES ('x', 4)")
        last = pair.last_seqno()
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
        assert len(source.log.events("peer introduced")) == before  # it is in force with a copy only
        pair.secondary.change_subscription(lambda now: replace(now, held_rows=now.rows))
        pair.write(1)
        await wait_until_async(lambda: len(source.log.events("peer introduced")) > before)
        await wait_until_async(lambda: source.facts.get("state") == "sending")
