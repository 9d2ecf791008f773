"""What of a supplier's journal a consumer lacks, on its way there: the rest goes as NULL records of its number.

So the stream has every number once, and its receiver counts as ever; a transaction that the consumer has (it came
another way, or is its own) costs it a head.

Guarantees: what the consumer lacks goes byte for byte as its writer wrote it, in its order; what it came to here, where
it was merged, concerns nobody there. DivergedError where the last transaction that it
has of an origin is another one here.
Leaves to others: sockets, how a journal is read. One for each stream, in order from its beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicate.errors import ReplicateError
from replicate.journal.frame import FRAME_PREFIX_BYTES, LABEL_OFFSET, OF_ORIGIN
from replicate.journal.merged_large import as_its_writer_wrote
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, Head, as_written, null_maker, read_head
from replicate.model.ruv import Forked, lacks
from replicate.model.transaction import Kind
from replicate.model.vector import U64_MAX, Chains
from replicate.wire.vector_refusals import KNOWN_THERE, MERGED_HERE, refused

_MERGED = MERGED_HERE.encode()
"""In every frame of a transaction that was merged."""
_nulls = null_maker(KNOWN_THERE)
_MARKER = b"\xce"
"""Before an origin's key in a frame's head."""


class Unseen:
    """`known`: the consumer's vector at the start. `skipped`: transactions of which nothing went, so far."""

    def __init__(self, known: Chains, here: Chains, own: int, names: Mapping[int, str]) -> None:
        """`here`: our own vector just before the stream's first transaction. `own`: the key of the origin that the
        consumer writes now, all of which it has. `names`: of the instances, by their origins' keys."""
        self._known = {origin: place for origin, place in known.items() if lacks(here, origin, place[0])}
        """Of the others nothing comes that it has: a journal has each of them once, in its order."""
        self._own = own
        self._lasts = {origin: last for origin, (last, _) in self._known.items()} | {own: U64_MAX + 1}
        self._markers = [_MARKER + origin.to_bytes(4, "big") for origin in {own, *self._known}]
        self._names = names
        self.skipped = 0

    def take(self, batch: FrameBatch) -> FrameBatch:
        """The batch as it goes; the same one when all of it does."""
        data = batch.data
        if not any(marker in data for marker in self._markers) and _MERGED not in data:
            return batch  # nearly always: no frame is of such an origin, nor looks as if
        pieces, begins = list[bytes](), list[int]()
        kept, offset, size = 0, 0, len(data)
        unpack, last_of = OF_ORIGIN.unpack_from, self._lasts.get
        while offset < size:  # for each frame of what two have written at once: everything else is done for a run
            length, _, origin, origin_seqno = unpack(data, offset)
            end = offset + FRAME_PREFIX_BYTES + length
            if origin_seqno < last_of(origin, -1):
                begins.append(offset)
                offset = end
                continue
            if begins:
                pieces += [data[kept : begins[0]], self._heads(data, begins)]
                kept, begins = offset, []
            if origin_seqno == last_of(origin) or data[offset + LABEL_OFFSET - 1] == Kind.RESTATED:
                placed = self._in_place_of(data[offset:end])
                if placed is not None:
                    pieces += [data[kept:offset], placed]
                    kept = end
            offset = end
        if begins:
            pieces += [data[kept : begins[0]], self._heads(data, begins)]
            kept = offset
        if not pieces:
            return batch
        pieces.append(data[kept:])
        return FrameBatch(batch.first_seqno, batch.last_seqno, batch.count, b"".join(pieces))

    def _heads(self, data: bytes, begins: Sequence[int]) -> bytes:
        self.skipped += len(begins)
        return _nulls(data, begins)

    def _in_place_of(self, frame: bytes) -> bytes | None:
        """What goes in its place; None: it goes itself."""
        return as_written(frame) if self._is_lacking(read_head(frame)) else self._heads(frame, [0])

    def takes_large(self, found: LargeTransaction) -> FrameBatch | LargeTransaction:
        """What goes in the place of a large transaction: nothing of one that the consumer has, of one that was merged
        here what its writer wrote, else itself. Raises what reading its parts raises."""
        head = read_head(found.commit_frame)
        if self._is_lacking(head):
            return as_its_writer_wrote(found) or found
        return FrameBatch(head.seqno, head.seqno, 1, self._heads(found.commit_frame, [0]))

    def _is_lacking(self, head: Head) -> bool:
        if head.origin == self._own:
            return False
        if lacks(self._known, head.origin, head.origin_seqno):
            return True
        last, chain = self._known[head.origin]
        if last == head.origin_seqno and chain != head.chain:
            raise self._forked(head, chain)
        return False

    def _forked(self, head: Head, chain: int) -> ReplicateError:
        return refused(Forked(head.origin, head.origin_seqno, head.chain, chain), self._names)
