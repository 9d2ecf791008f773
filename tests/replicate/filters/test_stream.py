"""A stream through a filter: catalogue, order, room, and the reason when it fails."""

from __future__ import annotations

import pytest
import trio

from replicate.errors import FilterError
from replicate.filters.restating import StreamItem
from replicate.filters.stream import FilteredStream, bytes_of
from replicate.filters.switch import FilterSwitch
from replicate.journal.record import FrameBatch, catalogue_payload, decode, pack_frame
from replicate.model.transaction import Catalogue, Kind
from replicate.settings.table import ReceiverConfig
from tests.harness.frames import Writer
from tests.harness.servers import ListLog
from tests.harness.talking import PERSON, SPLIT, known


def stream(command: str, out: list[StreamItem]) -> FilteredStream:
    switch = FilterSwitch("receiver", command)
    return FilteredStream(switch, ReceiverConfig(), known(SPLIT), ListLog(), out.append)


def catalogue(seqno: int) -> bytes:
    payload, count = catalogue_payload(Catalogue(known(PERSON)))
    return pack_frame(Kind.CATALOGUE, seqno, 0, 0, 0, 0, 0, payload, count)[0]


def test_a_program_that_is_not_there_is_no_stream() -> None:
    with pytest.raises(FilterError, match="is not there"):
        stream("/no/such/program", [])


@pytest.mark.trio
async def test_the_catalogue_is_that_of_the_receiving_side_and_a_failure_has_its_reason() -> None:
    out: list[StreamItem] = []
    made = stream("cat", out)
    assert made.switch.identity.startswith("cat ")
    frame = decode(made.begin(catalogue(5), "receiver", trio.current_time()))
    assert (frame.kind, frame.seqno, frame.content) == (Kind.CATALOGUE, 5, (Catalogue(known(SPLIT)),))
    writer = Writer(seqno=4)
    batch = FrameBatch(5, 5, 1, writer.insert(PERSON.table_id, 1, "Ada", None))
    made.take(batch)
    assert made.waiting_bytes == bytes_of(batch) == len(batch.data)
    with trio.fail_after(60):
        failed = await made.run()
    assert isinstance(failed, FilterError)
    assert "transaction 5: the after-image of shop.person lacks the column first" in str(failed)
    assert out == []


@pytest.mark.trio
async def test_one_waits_for_room_and_gets_it() -> None:
    out: list[StreamItem] = []
    made = stream("cat", out)
    made.begin(catalogue(1), "receiver", trio.current_time())
    writer = Writer()
    for _ in range(10):
        null = writer.frame(["why", [1]], 2)
        made.take(FrameBatch(writer.seqno, writer.seqno, 1, null))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            await made.room(0)
            nursery.cancel_scope.cancel()
    assert sum(item.count for item in out if isinstance(item, FrameBatch)) == 10
