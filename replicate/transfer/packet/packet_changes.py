"""What of a journal's transactions goes into a packet: all of them, the changes of some partitions, or, between
suppliers, those that a target lacks.

Guarantees: what goes as a whole is byte for byte as its writer wrote it, in the journal's order: what it came to here,
where it was merged, concerns nobody there. Of partitions each number goes once (filters/selection.py). Between
suppliers numbers are left out, and nothing stands in their place; two transactions of one number are found.
Leaves to others: files, packets. Pure: one for each packet, in order from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from msgspec import Struct

from replicate.filters.restating import StreamItem
from replicate.filters.selection import PartitionSelection
from replicate.journal.record import FrameBatch, Head, as_written, as_written_large, read_head
from replicate.journal.walk import walk
from replicate.model.ruv import Forked, lacks
from replicate.model.vector import Chains
from replicate.transfer.packet.supplier_rows import UNPROVEN
from replicate.wire.vector_refusals import MERGED_HERE, refused

_MERGED = MERGED_HERE.encode()
"""In every frame of a transaction that was merged."""


class LargeHere(Protocol):
    """A large transaction (journal/reader.py)."""

    @property
    def seqno(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def partitions(self) -> tuple[int, ...]: ...
    @property
    def commit_frame(self) -> bytes: ...
    def parts(self) -> Iterator[bytes]: ...


class Passing(Protocol):
    """What goes."""

    def frames(self, batch: FrameBatch) -> bytes:
        """Of these transactions; b"" where none does."""

    def large(self, found: LargeHere) -> bytes | LargeTold | None:
        """In the place of a large transaction, b"": nothing; None: it goes itself. Where that is large, too, the frame
        that commits it (journal/merged_large.py)."""


class LargeTold(Struct, frozen=True):
    """A large transaction in other words that is large itself: `items` are its parts, and the frame that commits them,
    made while they are asked for. `token`: of the parts; the same words of it always have the same. Who has these
    parts already calls `learn` instead."""

    token: int
    items: Iterator[StreamItem]
    learn: Callable[[], None]


class Everything:
    """To those who follow this journal."""

    def frames(self, batch: FrameBatch) -> bytes:
        """All."""
        return batch.data

    def large(self, _found: LargeHere) -> bytes | LargeTold | None:
        """It goes itself."""
        return None


class Chosen:
    """To one that has some partitions, or may have them."""

    def __init__(self, selection: PartitionSelection) -> None:
        self._selection = selection

    def frames(self, batch: FrameBatch) -> bytes:
        """What goes of them. JournalDamagedError."""
        return self._selection.take(batch).data

    def large(self, found: LargeHere) -> bytes | LargeTold | None:
        """What is left of one. JournalDamagedError."""
        if self._selection.takes_whole(found.commit_frame, found.partitions):
            self._selection.learn_large(found.parts)
            return None
        if self._selection.wants_all_of(found.parts()):  # one that was told again before, of these partitions
            return None
        token = found.token ^ self._selection.label  # whose parts are put together must be the same
        items = self._selection.large(found.commit_frame, found.parts(), token)
        first = next(items)
        if isinstance(first, FrameBatch):
            return first.data
        return LargeTold(token, chain((first,), items), lambda: self._selection.learn_large(found.parts))


class Lacked:
    """To suppliers that have what `known` says. `names`: of the instances, by their origins' keys."""

    def __init__(self, known: Chains, names: Mapping[int, str]) -> None:
        self._known = known
        self._names = names

    def frames(self, batch: FrameBatch) -> bytes:
        """Those that they lack. DivergedError where the last one that they have of an origin is another one here."""
        data, pieces, run = batch.data, list[bytes](), -1
        may_be_merged = _MERGED in data
        for offset, head in walk(data):
            end = offset + head.frame_bytes
            if self._is_lacked(head):
                written = as_written(data[offset:end]) if may_be_merged else None
                if written is None:
                    run = offset if run < 0 else run
                    continue
                pieces += [data[run:offset], written] if run >= 0 else [written]
            elif run >= 0:
                pieces.append(data[run:offset])
            run = -1
        if run >= 0:
            pieces.append(data[run:])
        return b"".join(pieces)

    def large(self, found: LargeHere) -> bytes | LargeTold | None:
        """Nothing of one that they have; of one that was merged here what its writer wrote. DivergedError."""
        is_lacked = self._is_lacked(read_head(found.commit_frame))
        return as_written_large(found.commit_frame, found.parts()) if is_lacked else b""

    def _is_lacked(self, head: Head) -> bool:
        if lacks(self._known, head.origin, head.origin_seqno):
            return True
        last, known = self._known[head.origin]
        if last == head.origin_seqno and UNPROVEN not in (known, head.chain) and known != head.chain:
            raise refused(Forked(head.origin, last, head.chain, known), self._names)
        return False
