"""The names of partitions come with the source's hello."""

from __future__ import annotations

import pytest
import trio

from replicate.admin import partitions
from replicate.errors import JournalIOError
from replicate.instance.instance import Instance
from tests.harness.pair import Pair
from tests.harness.servers import point, servers
from tests.harness.waiting import wait_until_async

pytestmark = pytest.mark.trio


async def names(instance: Instance, expected: dict[int, str]) -> None:
    await wait_until_async(lambda: instance.partitions_now().names == expected)


async def test_what_has_no_name_here_is_called_as_at_the_source(pair: Pair) -> None:
    partitions.create(pair.primary, "sales")
    partitions.create(pair.primary, "stock")
    partitions.create(pair.secondary, "mine", 3)
    here = Instance.open(pair.secondary.path)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        await names(here, {1: "DEFAULT", 2: "sales", 3: "mine"})
        await wait_until_async(lambda: bool(receiver.log.events("partitions have other names")))
        (told,) = receiver.log.events("partitions have other names")
        assert told["here_and_there"] == {"mine": "stock"}
        partitions.create(pair.primary, "more")  # the source begins again before the next transaction
        await trio.to_thread.run_sync(lambda: pair.write(1))
        await names(here, {1: "DEFAULT", 2: "sales", 3: "mine", 4: "more"})


async def test_names_that_cannot_be_kept_stop_no_stream(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise JournalIOError("no space left on device")

    partitions.create(pair.primary, "sales")
    monkeypatch.setattr(Instance, "change_partitions", full)
    async with servers() as running:
        receiver = await running.receiver(pair.secondary)
        point(pair.primary, "west", receiver)
        running.source(pair.primary)
        await wait_until_async(lambda: bool(receiver.log.events("names of partitions not kept")))
        last = pair.last_seqno()
        await wait_until_async(lambda: receiver.facts.get("last_received_seqno") == last)
