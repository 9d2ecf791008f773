"""The journal pool (being written; the interface below is fixed)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from replicate.journal.record import FrameBatch
from replicate.pool.shared_memory import SharedMemory


class Lapped(Enum):
    """The reader was overtaken: a normal result. Read the journal files, then `resume`."""

    LAPPED = "lapped"


LAPPED = Lapped.LAPPED


@dataclass(frozen=True, slots=True)
class InFiles:
    """These transactions are not in the pool (too large for it): read them from the journal, then `advance`."""

    first_seqno: int
    last_seqno: int


class JournalPool:
    """One per process and instance. `words` are the control words (control.py)."""

    memory: SharedMemory
    words: memoryview

    @classmethod
    def create(cls, instance: bytes, *, configured_bytes: int, last_seqno: int, replace: bool = False) -> JournalPool:
        """Under the commit lock. State BUILDING: the door fills the commit words, then calls `mark_ready()`."""
        ...

    @classmethod
    def attach(cls, instance: bytes, *, owner_uid: int | None = None) -> JournalPool: ...

    def mark_ready(self) -> None: ...

    def is_current(self) -> bool:
        """One fstat: call it under the commit lock before trusting any word."""
        ...

    def repair(self) -> int:
        """Under the commit lock: finish or void what a killed publisher left; returns LAST_PUBLISHED_SEQNO."""
        ...

    def publish(self, data: bytes, first_seqno: int, last_seqno: int, count: int) -> None:
        """Under the commit lock. Repairs by itself; numbers left out since the last publish become an in-files record."""
        ...

    def publish_in_files(self, first_seqno: int, last_seqno: int) -> None: ...

    def sleeping(self) -> int:
        """Bit mask of the slots that want their doorbell rung (0: none), see doorbell.Doorbells.ring."""
        ...

    def close(self) -> None: ...


class PoolReader:
    """No lock. Yields every transaction from `next_seqno` on, without gap or repetition, or says where to read it."""

    next_seqno: int

    def __init__(self, pool: JournalPool, next_seqno: int) -> None: ...

    def poll(self, max_bytes: int) -> FrameBatch | InFiles | Lapped | None: ...

    def note_written(self) -> int: ...

    def resume(self, address: int, next_seqno: int) -> None: ...

    def advance(self, next_seqno: int) -> None: ...
