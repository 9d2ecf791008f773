"""A seed as it arrives over the link: what was asked for, which byte comes next, and what we have acknowledged of it.

Guarantees: what is handed on is exactly the next bytes of the seed that was announced, each once. A gap, an end that
comes too early, and more than the window holds are refused by name.
Leaves to others: where the bytes go (receiver_server/seed.py), and when a seed may be asked for (the link). Pure.
"""

from __future__ import annotations

from replicate.errors import InternalError, ReplicateError
from replicate.wire.event import Event, SeedAnnounced, SeedBeingMade, SeedComplete, SeedReceived
from replicate.wire.introduction import refusal
from replicate.wire.message import (
    CHUNK_BYTES,
    SEED_WINDOW_BYTES,
    RefuseCode,
    SeedAck,
    SeedChunk,
    SeedDone,
    SeedEnd,
    SeedPreparing,
    SeedRequest,
    SeedStart,
)


class SeedArrival:
    """One connection's. A second seed may be asked for when the first one is there."""

    def __init__(self) -> None:
        self.next_offset = 0
        """The only byte that may come next."""
        self.is_ack_due = False
        """One for all that is written meanwhile: a peer that does not read piles none up."""
        self._acknowledged = 0
        self._request: SeedRequest | None = None
        self._start: SeedStart | None = None

    def asked(self, request: SeedRequest) -> None:
        """This one was asked for just now."""
        self._request, self._start, self.is_ack_due = request, None, False

    def acknowledge(self, offset: int) -> None:
        """Everything before `offset` is written. InternalError above what has come."""
        if offset > self.next_offset:
            raise InternalError(f"byte {offset} of the seed is acknowledged; {self.next_offset} have come")
        self._acknowledged = offset
        self.is_ack_due = True

    def ack(self) -> SeedAck:
        """What is due, and is said now."""
        self.is_ack_due = False
        return SeedAck(self._acknowledged)

    def done(self) -> SeedDone:
        """What says that it is whole and on the disk. After SeedComplete."""
        assert self._start is not None
        return SeedDone(self._start.seed)

    def heard(self, message: SeedPreparing | SeedStart | SeedChunk | SeedEnd, peer: str) -> Event | None:
        """What a message of the source `peer` brings; None: bytes that came twice. GapError,
        ProtocolViolationError."""
        match message:
            case SeedPreparing(done, pages):
                return SeedBeingMade(done, pages)
            case SeedStart():
                return self._announced(message)
            case SeedChunk(offset, data):
                return self._received(offset, data, peer)
            case SeedEnd(file_bytes):
                return self._complete(file_bytes)

    def _announced(self, start: SeedStart) -> Event:
        wanted = self._request
        goes_on = wanted is not None and (start.seed, start.offset) == (wanted.seed, wanted.offset)
        if self._start is not None or start.offset > start.file_bytes or not (goes_on or start.offset == 0):
            raise refusal(RefuseCode.PROTOCOL, f"a seed from byte {start.offset} of {start.file_bytes}")
        self._start, self.next_offset = start, start.offset
        self._acknowledged = start.offset
        return SeedAnnounced(start)

    def _received(self, offset: int, data: bytes, peer: str) -> Event | None:
        end = offset + len(data)
        if self._start is None or offset > self.next_offset or end > self._start.file_bytes:
            raise self._gap(f"bytes {offset} to {end}")
        if end <= self.next_offset:
            return None
        if end > self._acknowledged + SEED_WINDOW_BYTES + CHUNK_BYTES:
            raise refusal(RefuseCode.PROTOCOL, f"{peer} sends a seed beyond its window")
        fresh = SeedReceived(self.next_offset, data[self.next_offset - offset :])
        self.next_offset = end
        return fresh

    def _complete(self, file_bytes: int) -> Event:
        if self._start is None or not self.next_offset == self._start.file_bytes == file_bytes:
            raise self._gap(f"the end after {file_bytes} bytes")
        return SeedComplete(file_bytes)

    def _gap(self, what: str) -> ReplicateError:
        size = self._start.file_bytes if self._start is not None else 0
        return refusal(RefuseCode.GAP, f"{what} of the seed came; next is byte {self.next_offset} of {size}")
