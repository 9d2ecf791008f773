"""One large transaction while its parts arrive: applied in an open transaction, spooled for our own journal.

Guarantees: parts are taken in their order, each verified (CHECK, token, running chain hash) before anything of it is
applied; a change that is cut by the border of two parts is applied once, whole; the commit frame must agree with what
was taken in number of parts, bytes and hash, and continue its origin. At most one part and one change are in memory.
Leaves to others: the receive pool, and how the transaction is committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from replicate.errors import GapError, JournalDamagedError
from replicate.journal.record import UNPACK_ERRORS, large_commit_of, proven_after, read_part, unpacker
from replicate.journal.spool import Spool
from replicate.model.transaction import Op, unpack_partitions
from replicate.model.vector import Position
from update_process.batch.by_partition import row_tables
from update_process.plan import OpenLarge, diverged
from update_process.window.columns import PAYLOAD

_DEFINES: Final = frozenset((int(Op.DEFINE), int(Op.SCHEMA), int(Op.REGION)))


class LargeApply:
    """The large transaction `seqno`. Create it inside the open transaction that its rows go into."""

    def __init__(
        self, seqno: int, spool: Spool, apply_changes: Callable[[list[Any]], None], *, are_counted: bool = False
    ) -> None:
        self.seqno = seqno
        self.spool = spool
        self.defines = False
        self._apply = apply_changes
        self._unpacker: Any = unpacker()
        self._pending: list[Any] = []
        self.rows: Counter[int] | None = Counter() if are_counted else None
        """How many are changed of each table, if `are_counted`."""

    @property
    def where(self) -> OpenLarge:
        """How far it has come."""
        return OpenLarge(self.seqno, self.spool.part_count)

    def abort(self) -> None:
        """Forget the spool; the caller rolls the rows back."""
        self.spool.abort()

    def take(self, data: bytes | memoryview, skip: int = 0) -> int:
        """Apply the part frames in `data` but the first `skip`; returns how many were applied.

        Raises JournalDamagedError, GapError, DivergedError and what applying raises; then the transaction must be
        rolled back and `abort` called.
        """
        offset = taken = 0
        while offset < len(data):
            head, number, piece = read_part(data, offset)
            end = offset + head.frame_bytes
            if skip:
                skip -= 1
            else:
                # The spool checks everything: number, token, origin, length and chain hash.
                self.spool.write_frame(bytes(data[offset:end]))
                self._take_piece(number, piece)
                taken += 1
            offset = end
        return taken

    def _take_piece(self, number: int, piece: memoryview) -> None:
        try:
            self._unpacker.feed(piece)
            self._pending.extend(self._unpacker)
        except UNPACK_ERRORS as error:
            raise JournalDamagedError(
                f"part {number} of transaction {self.seqno} does not decode: {error}", seqno=self.seqno
            ) from error
        whole = len(self._pending) & ~3
        changes, self._pending = self._pending[:whole], self._pending[whole:]
        self.defines = self.defines or not _DEFINES.isdisjoint(changes[0::4])
        self._apply(changes)
        if self.rows is not None:
            self.rows.update(row_tables(changes))

    def finish(self, frame: bytes, body: Sequence[Any], before: Position) -> Position:
        """Check the commit frame against what was taken, sync the spool; the position after it. Raises as `take`."""
        commit = large_commit_of(body)
        if not commit or body[1] != self.seqno:
            raise JournalDamagedError(f"the commit of large transaction {self.seqno} should stand here")
        token, part_count, stream_bytes, last_part_chain, packed = commit
        _, _, _, chain, origin, origin_seqno, _ = body[:PAYLOAD]
        if self._pending or (token, origin) != (self.spool.token, self.spool.origin):
            raise JournalDamagedError(
                f"the commit of large transaction {self.seqno} does not fit its parts",
                do="Start the Update Process again: the parts are sent again",
                seqno=self.seqno,
            )
        last, last_chain = before.chains.get(origin, (0, 0))
        if origin_seqno != last + 1:
            raise GapError(
                f"transaction {self.seqno} is number {origin_seqno} of its origin, but {last + 1} should come next",
                seqno=self.seqno,
                expected=last + 1,
                got=origin_seqno,
            )
        if not proven_after(frame, body[0], chain, last_chain):
            raise diverged(self.seqno, origin, origin_seqno)
        self.spool.finish_received(part_count, stream_bytes, last_part_chain)
        return before.advanced(self.seqno, origin, origin_seqno, chain, unpack_partitions(packed))
