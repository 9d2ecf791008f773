"""What a Receiver Server tells its source of its progress: received, applied and durable are three numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from replicate.door.recovery.opening import close_door, open_door
from replicate.pool.receive_pool import ReceivePool
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = Pair.create(tmp_path)
    door = open_door(made.primary)
    yield made
    close_door(door)


async def test_what_is_received_applied_and_durable_is_told_apart(pair: Pair) -> None:
    """The primary prunes by the durable number, and `status` calls the applied one: neither may run ahead."""
    seeded = pair.seed()

    def write() -> int:
        connection = pair.connect()
        for number in range(10):
            connection.execute("INSERT INTO account VALUES (?, 'a', 1, 1)", (number,))
            connection.commit()
        connection.close()
        return pair.last_seqno()

    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        source = running.source(pair.primary)
        last = await trio.to_thread.run_sync(write)

        def told() -> tuple[int, int, int]:
            facts = source.facts
            return tuple(  # type: ignore[return-value]
                facts.get(f"last_{what}_seqno", 0) for what in ("received", "applied", "acknowledged")
            )

        # No Update Process: what it would note, we note.
        await wait_until_async(lambda: told() == (last, seeded, seeded), what="received only")
        pool = ReceivePool.attach(pair.secondary.content.uuid)
        pool.note_applied(last - 3, last - 5)
        await wait_until_async(lambda: told() == (last, last - 3, last - 5), what="applied and durable")
        pool.note_applied(last, last)
        await wait_until_async(lambda: told() == (last, last, last), what="all of it")
        pool.close()
