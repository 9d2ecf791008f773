"""What of a journal's transactions goes into a packet: all of them, or, between suppliers, those that a target lacks.

Guarantees: what goes is byte for byte as its writer wrote it, in the journal's order: what it came to here, where it
was merged, concerns nobody there. Numbers are left out, and nothing stands in their place. Two transactions of one
number are found.
Refuses to know: files, packets. Pure: one for each packet, in order from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from replicate.journal.record import FrameBatch, Head, as_written, as_written_large, read_head
from replicate.journal.walk import walk
from replicate.model.ruv import Forked, lacks
from replicate.model.vector import Chains
from replicate.transfer.packet.rows import UNPROVEN
from replicate.wire.vectors import MERGED_HERE, refused

_MERGED = MERGED_HERE.encode()
"""In every frame of a transaction that was merged."""


class Passing(Protocol):
    """What goes."""

    def frames(self, batch: FrameBatch) -> bytes:
        """Of these transactions; b"" where none does."""

    def large(self, commit_frame: bytes, parts: Callable[[], Iterable[bytes]]) -> bytes | None:
        """In the place of a large transaction, b"": nothing; None: it goes itself. `parts` reads them."""


class Everything:
    """To those who follow this journal."""

    def frames(self, batch: FrameBatch) -> bytes:
        """All."""
        return batch.data

    def large(self, _commit_frame: bytes, _parts: Callable[[], Iterable[bytes]]) -> bytes | None:
        """It goes itself."""
        return None


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

    def large(self, commit_frame: bytes, parts: Callable[[], Iterable[bytes]]) -> bytes | None:
        """Nothing of one that they have; of one that was merged here what its writer wrote. DivergedError."""
        return as_written_large(commit_frame, parts()) if self._is_lacked(read_head(commit_frame)) else b""

    def _is_lacked(self, head: Head) -> bool:
        if lacks(self._known, head.origin, head.origin_seqno):
            return True
        last, chain = self._known[head.origin]
        if last == head.origin_seqno and UNPROVEN not in (chain, head.chain) and chain != head.chain:
            raise refused(Forked(head.origin, last, head.chain, chain), self._names)
        return False
