"""The consumer's position that a Source Server stores, while a seed begins the journal of its instance (a relay) again.

Guarantees: what a seed does is done in its order: it retires the pool, then lowers the positions.
Leaves to others: what is said on a connection (test_process.py has those), and the rest of a seed.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from msgspec.structs import replace

from replicate.compare.last_compare import look_at_compared, note_compared
from replicate.daemon.daemon import DaemonContext
from replicate.door.pruning import _Pruning
from replicate.door.recovery.opening import close_door, lower_consumers, make_chain, open_door
from replicate.errors import PoolReplacedError
from replicate.instance.consumers import Consumer, read_consumer, read_hold, write_consumer, write_hold
from replicate.pool.shared_memory import PoolKind, retire
from replicate.wire.event import Acknowledged
from replicate.wire.message import HeartbeatReply
from source_server import position
from source_server.consumer_state import ConsumerState
from tests.harness.pair import Pair
from tests.harness.servers import ListLog
from tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.trio

OLD, LOWER = 500, 2


def seed_begins_again(pair: Pair) -> None:
    retire(PoolKind.JOURNAL, pair.primary.content.uuid)
    lower_consumers(pair.primary, LOWER)


def stored(pair: Pair) -> int:
    found = read_consumer(pair.primary.consumers_directory, "west")
    assert found is not None
    return found.acknowledged_seqno


def says(source: ConsumerState, seqno: int) -> None:
    reply = HeartbeatReply(1, 1, seqno, seqno, seqno, 1, 0, 0, 0)
    source.acknowledged(Acknowledged(reply, None))


@pytest.fixture
async def source(pair: Pair) -> AsyncIterator[ConsumerState]:
    write_consumer(pair.primary.consumers_directory, Consumer("west", OLD, "ab" * 16))
    log = ListLog()
    context = DaemonContext("source-west", pair.primary.path, log=cast(Any, log))
    door = open_door(pair.primary)
    made = ConsumerState(context, pair.primary, door, "west")
    made.position.load()
    yield made
    close_door(door)


async def test_what_was_said_of_the_old_journal_is_not_stored_after_a_seed(pair: Pair, source: ConsumerState) -> None:
    """A source that is told to pause looks at the pool no more, and hears its peer all the same."""
    seed_begins_again(pair)
    for seqno in (OLD + 1, OLD + 2):
        says(source, seqno)
        with pytest.raises(PoolReplacedError):
            await source.position.store()
        assert stored(pair) == LOWER


async def test_a_seed_between_its_look_and_its_writing_is_not_undone(
    pair: Pair, source: ConsumerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seeds = position.read_consumer, []
    asked = threading.Event()

    def lower() -> None:
        retire(PoolKind.JOURNAL, pair.primary.content.uuid)
        with monkeypatch.context() as patch:
            patch.setattr("replicate.system.locks.time.sleep", lambda _s: asked.set())  # it waits for somebody
            lower_consumers(pair.primary, LOWER)
        asked.set()

    def read(directory: Path, name: str) -> Consumer | None:
        found = real(directory, name)
        seeds.append(threading.Thread(target=lower))
        seeds[-1].start()
        assert asked.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(position, "read_consumer", read)
    says(source, OLD + 1)
    await source.position.store()
    (seed,) = seeds
    await trio.to_thread.run_sync(seed.join)
    assert stored(pair) == LOWER


async def test_a_drop_at_the_cap_between_its_look_and_its_writing_is_not_undone(
    pair: Pair, source: ConsumerState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal that the peer needs is gone then: it must not be taken for one that only lags."""
    real, drops = position.read_consumer, []
    asked = threading.Event()
    made = _Pruning(source.door, pair.primary.content, make_chain(pair.primary))
    made._settings = replace(made._settings, cap_policy="drop-consumer", cap_bytes=1)
    monkeypatch.setattr(made, "_below", lambda _consumers: 2 * OLD)
    monkeypatch.setattr(made, "_note_idle", lambda *_, **__: True)
    monkeypatch.setattr(made, "_remove", lambda _below: [])

    def drop() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("replicate.system.locks.time.sleep", lambda _s: asked.set())
            made.run(lambda _consumer: None)
        asked.set()

    def read(directory: Path, name: str) -> Consumer | None:
        found = real(directory, name)
        if not drops:
            drops.append(threading.Thread(target=drop))
            drops[0].start()
            assert asked.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(position, "read_consumer", read)
    says(source, OLD + 1)
    await source.position.store()
    await trio.to_thread.run_sync(drops[0].join)
    found = read_consumer(pair.primary.consumers_directory, "west")
    assert found is not None
    assert found.needs_seed


@pytest.mark.parametrize(("begins_at", "is_void"), [(OLD, False), (OLD + 1, True), (OLD + 2, False)])
async def test_what_was_compared_is_void_where_the_peer_begins_after_its_seed(
    pair: Pair, source: ConsumerState, begins_at: int, is_void: bool
) -> None:
    note_compared(pair.primary, "west", 7, ["main.account"])
    write_hold(pair.primary.consumers_directory, "west", OLD)
    await source.begins_at(begins_at)
    assert (look_at_compared(pair.primary.path).found == {}) is is_void
    assert (read_hold(pair.primary.consumers_directory, "west") is None) is is_void


async def test_a_seed_on_its_way_is_not_told_as_acknowledged(pair: Pair, source: ConsumerState) -> None:
    directory = pair.primary.consumers_directory
    write_hold(directory, "west", OLD)
    source.position.load()
    found = source.measured()
    assert (found["last_acknowledged_seqno"], found["unacknowledged"]) == (0, found["last_written_seqno"])
    says(source, OLD + 1)
    assert source.measured()["last_acknowledged_seqno"] == OLD + 1, "its own word"
