"""What packets between suppliers bring, unpacked, as the applier of the Update Process takes it: in the place of the
receive pool (supplied_transactions.py).

Guarantees: records come in the order of the packets, each as a Source Server would have sent it, but that nothing
stands in the place of what was left out; at most one batch of them is in memory. A segment that is none, of another
network or cut short is refused by name.
Leaves to others: whether all that comes before is here (transfer/packet/vector_order.py), and every frame's check
(window/lacking.py, large_transaction.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Final

from replicate.errors import JournalDamagedError
from replicate.journal.frame import FRAME_HEAD_BYTES
from replicate.journal.reader import large_transaction
from replicate.journal.record import Head, read_head
from replicate.journal.segment import SegmentFile, open_segment
from replicate.limits import FRAME_BYTES_MAX, MIB
from replicate.pool.receive_pool import ReceivedRecord, RecordKind

RECORD_BYTES: Final = 256 * 1024
"""Of frames in one record, about."""
CAPACITY_BYTES: Final = 64 * MIB
"""So much a pool would hold: a batch takes a share of that."""


class PacketFeed:
    """The segments at `paths`, in this order. Its addresses count records."""

    def __init__(self, paths: Sequence[Path], network: bytes) -> None:
        self.capacity = CAPACITY_BYTES
        self.read_address = 0
        self._records = _records(paths, network)
        self._ahead: deque[ReceivedRecord] = deque()

    def close(self) -> None:
        """Let go of the segment that is open. May be called twice."""
        self._records.close()

    @property
    def lanes(self) -> tuple[PacketFeed]:
        """This one alone: packets come one after the other."""
        return (self,)

    @property
    def written_address(self) -> int:
        """Up to where records were looked at."""
        return self.read_address + len(self._ahead)

    def peek(self, _address: int | None = None) -> Iterator[ReceivedRecord]:
        """The records that are not freed."""
        yield from tuple(self._ahead)
        for record in self._records:
            self._ahead.append(record)
            yield record

    def free(self, upto_address: int) -> None:
        """Those before that address are applied."""
        while self._ahead and self._ahead[0].next_address <= upto_address:
            self._ahead.popleft()
        self.read_address = upto_address

    def note_applied(self, _applied_seqno: int, _durable_seqno: int) -> None:
        """Nobody asks."""

    # A packet cannot be asked to begin again.

    def restart_requested(self) -> int:
        """Never."""
        return 0

    def request_restart(self) -> int:
        """It is in vain: what drives the applier ends by that."""
        return 1

    def restart_done(self, _number: int) -> bool:
        """Never."""
        return False


def _records(paths: Sequence[Path], network: bytes) -> Generator[ReceivedRecord]:
    address = 0
    for path in paths:
        with open_segment(path, network=network) as segment:
            for kind, first, last, count, data in records_of(segment):
                yield ReceivedRecord(kind, first, last, count, data, address, address + 1)
                address += 1


FeedRecord = tuple[RecordKind, int, int, int, bytes]
"""Kind, first and last number, count, bytes."""


def records_of(segment: SegmentFile) -> Iterator[FeedRecord]:
    """What a Source Server would have sent of it. JournalDamagedError."""
    first = segment.header.first_seqno
    if segment.header.adopted:
        large = large_transaction(segment)
        for part in large.parts():
            yield RecordKind.PARTS, first, first, 1, part
        yield RecordKind.LARGE, first, first, 1, large.commit_frame
        return
    yield RecordKind.CATALOGUE, first, first, 1, segment.read_frame(segment.header.catalogue_offset)
    _, offset = segment.read_catalogue()
    while data := segment.read_some(RECORD_BYTES, offset):
        heads, end = _whole(data)
        if not heads:  # one that is larger than that
            data = segment.read_some(FRAME_BYTES_MAX, offset)
            heads, end = _whole(data)
        if not heads:
            raise JournalDamagedError("what was unpacked ends inside a frame", where=f"{segment.path}, offset {offset}")
        yield RecordKind.FRAMES, heads[0].seqno, heads[-1].seqno, len(heads), data[:end]
        offset += end


def _whole(data: bytes) -> tuple[list[Head], int]:
    """The heads of the whole frames that it begins with, and where they end."""
    heads, offset = list[Head](), 0
    while offset + FRAME_HEAD_BYTES <= len(data):
        head = read_head(data, offset)
        if offset + head.frame_bytes > len(data):
            break
        heads.append(head)
        offset += head.frame_bytes
    return heads, offset
