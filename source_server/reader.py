"""Where the next transactions come from: the journal pool, or the journal files when the pool has been overrun.

Guarantees: what `poll` and `read` give is every transaction from `next_seqno` on, once each, without a gap; a switch
between pool and files is invisible in it, and counted.
Leaves to others: who it is for, sockets, time, durability. `poll` never touches the disk; `read` does: use a thread.

Coming back from the files is the delicate part (measured: bounding it by the seqno word lost a record in three of four
runs). The pool's write address is noted *before* the files are read; every record after that address is newer than
what the files were read to, or known and dropped; and if the first one there is not the next number, the pool reader
itself says which numbers are missing (InFiles).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.errors import InternalError
from replicate.journal.reader import ChainReader, LargeTransaction, SparseIndex
from replicate.journal.record import FrameBatch
from replicate.pool import control as word
from replicate.pool.journal_pool import InFiles, PoolReader

POOL: Final = "pool"
FILES: Final = "files"
_TURNS_MAX: Final = 1000


def _nobody(_place: str, _next_seqno: int) -> None:
    pass


class StreamReader:
    """One reader of one instance's stream, for one thread at a time. `on_switch` gets the new place ("pool", "files")
    and the next seqno; a place counts when transactions came from it, or when the pool has been read to its end."""

    def __init__(
        self,
        door: Door,
        next_seqno: int,
        on_switch: Callable[[str, int], None] = _nobody,
        *,
        place: str = FILES,
        index: SparseIndex | None = None,
    ) -> None:
        """Begins with the files: only they are sure to have what was committed before. `place`: where the reader
        before this one was; to go on there is no switch. `index`: see ChainReader."""
        self._words = door.words
        self._files = ChainReader(make_chain(door.instance), next_seqno, index)
        self._pool = PoolReader(door.pool, next_seqno)
        self._on_switch = on_switch
        self.place = place
        self.next_seqno = next_seqno
        self.transactions_from_pool = 0
        self.transactions_from_files = 0
        self.switches = 0
        self._return_address: int | None = None
        self._files_last_seqno: int | None = None
        self._go_to_files()

    def close(self) -> None:
        """Close the journal files, and let go of the pool's memory. May be called twice."""
        self._files.close()
        self._pool.close()

    @property
    def has_news(self) -> bool:
        """Something new was published, or must come from the files: the next look will not be in vain."""
        return self.needs_files or self._words[word.LAST_PUBLISHED_SEQNO] >= self.next_seqno

    @property
    def needs_files(self) -> bool:
        """The next transactions must come from the files: call `read`, not `poll`."""
        return self._files_last_seqno is not None

    def poll(self, max_bytes: int) -> FrameBatch | None:
        """The next transactions from the pool; None when there is nothing new there, or when `needs_files`.

        Raises PoolReplacedError; nothing was skipped then.
        """
        if self.needs_files:
            return None
        found = self._pool.poll(max_bytes)
        if isinstance(found, FrameBatch):
            self._moved(POOL, found)
            return found
        if isinstance(found, InFiles):
            self._return_address = None
            self._files_last_seqno = found.last_seqno
            self._files.seek(self.next_seqno)
        elif found is None:
            self._at(POOL)
        else:
            self._go_to_files()
        return None

    def read(self, max_bytes: int) -> FrameBatch | LargeTransaction | None:
        """The next whole transactions, `max_bytes` of them at most but at least one; None when there is nothing new.

        Raises JournalMissingError (pruned), JournalDamagedError, GapError, PoolReplacedError; nothing was skipped then.
        """
        for _ in range(_TURNS_MAX):
            if self._files_last_seqno is not None:
                taken = self._files.read(max_bytes, self._files_last_seqno)
                if taken is not None:
                    self._moved(FILES, taken)
                    return taken
                self._return_to_pool()
            found = self.poll(max_bytes)
            if found is not None or not self.needs_files:
                return found
        raise InternalError("the journal pool and the journal files send each other round in a circle")

    def _go_to_files(self) -> None:
        """Read the files up to what is committed now, then go on after what the pool holds now."""
        self._return_address = self._pool.note_written()
        self._files_last_seqno = self._words[word.LAST_SEQNO]
        self._files.seek(self.next_seqno)

    def _return_to_pool(self) -> None:
        self._files_last_seqno = None
        if self._return_address is None:
            self._pool.advance(self.next_seqno)
        else:
            self._pool.resume(self._return_address, self.next_seqno)

    def _at(self, place: str) -> None:
        if place != self.place:
            self.place = place
            self.switches += 1
            self._on_switch(place, self.next_seqno)

    def _moved(self, place: str, taken: FrameBatch | LargeTransaction) -> None:
        self._at(place)
        count, last = (taken.count, taken.last_seqno) if isinstance(taken, FrameBatch) else (1, taken.seqno)
        self.next_seqno = last + 1
        if place == POOL:
            self.transactions_from_pool += count
        else:
            self.transactions_from_files += count
