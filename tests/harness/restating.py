"""What a filter will do to a stream, without one: frames told in other words on their way into the receive pool.

Guarantees: each frame keeps its number, its origin and its label; which ones are told otherwise is the caller's choice.
Leaves to others: filters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from replicate.door.recovery.opening import make_chain
from replicate.door.snapshot import door_of
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import (
    CHANGES_BEGIN,
    Head,
    changes_of,
    decode_batch,
    pack_changes,
    pack_null,
    pack_restated,
)
from replicate.journal.walk import walk
from replicate.model.transaction import unpack_partitions
from replicate.pool.receive_pool import ReceivePool, RecordKind
from tests.harness.pair import Pair, deliver_large

Words = Callable[[int, Sequence[Any]], Sequence[Any] | None]
"""Number and flat changes of a transaction -> the changes in other words; None: as it is."""


def restate(head: Head, reason: str, changes: Sequence[object], partitions: tuple[int, ...]) -> bytes:
    """The frame that takes the place of the transaction with that head when its changes are those (flat): RESTATED, or
    NULL when there are none, which names the `partitions` that the transaction carried. InternalError as
    `pack_restated`."""
    if not changes:
        return pack_null(head, reason, partitions)
    return pack_restated(head, reason, pack_changes(changes), len(changes))


def deliver_restated(pair: Pair, pool: ReceivePool, words: Words, *, record_bytes: int = 4096) -> None:
    """As `Pair.deliver`, into a pool that has room for all of it."""
    with door_of(pair.primary) as door:
        door.sync_to_end()
    reader = ChainReader(make_chain(pair.primary), pool.last_received_seqno + 1)
    try:
        while (found := reader.read(record_bytes, pair.last_seqno())) is not None:
            if isinstance(found, LargeTransaction):
                assert deliver_large(pool, found)
                continue
            data = b"".join(_told(found.data, words))
            assert pool.offer(data, found.first_seqno, found.last_seqno, found.count, RecordKind.FRAMES)
    finally:
        reader.close()


def _told(data: bytes, words: Words) -> list[bytes]:
    made = []
    bodies = decode_batch(data)[2::3]
    for body, (offset, head) in zip(bodies, walk(data), strict=True):
        frame = data[offset : offset + head.frame_bytes]
        if head.kind in CHANGES_BEGIN and (other := words(head.seqno, changes_of(body))) is not None:
            frame = restate(head, "a filter", other, unpack_partitions([1]))
        made.append(frame)
    return made
