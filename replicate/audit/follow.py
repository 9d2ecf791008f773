"""New transactions of a live instance as they come.

Guarantees: each transaction that is asked for is given once, in order, across new segments, pruning and a journal pool
that is made again. It takes no lock and no reader's slot: it looks at one word in shared memory, and at the files.
Leaves to others: how long to wait between two looks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from replicate.audit.query import Query, known_at_end
from replicate.audit.read import Match, StretchReader
from replicate.errors import GapError, NotFoundError, PoolReplacedError, TryAgainError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.pool import control as word
from replicate.pool.shared_memory import PoolKind, SharedMemory


class Follower:
    """A place in an instance's journal that moves on. `close` it."""

    def __init__(self, instance: Instance, query: Query) -> None:
        """Begins after the last transaction, or with `query.first_seqno`. NotFoundError or UsageError for a name;
        JournalDamagedError and its kin."""
        self._instance = instance
        self._chain = Chain(
            instance.journal_directory, network=instance.content.network, instance=instance.content.uuid
        )
        self._seen: tuple[str, int, int] | None = None
        self._last_seqno = 0
        selection = query.selection(lambda: known_at_end(self._chain))
        first = query.first_seqno or self._bound() + 1
        self._reader = StretchReader(self._chain, first, selection)

    def close(self) -> None:
        """Let go of the files."""
        self._reader.close()

    @property
    def next_seqno(self) -> int:
        """The first transaction not yet looked at."""
        return self._reader.next_seqno

    def new(self) -> Iterator[Match]:
        """What has come since. GapError where transactions that were given are there no more (a rollback);
        JournalMissingError where some were pruned unseen; JournalDamagedError and its kin."""
        last = self._bound()
        if last < self._reader.next_seqno - 1 and self._reader.next_seqno > 1:
            raise GapError(
                f"the journal ends with transaction {last}, {self._reader.next_seqno - 1} was there before",
                where=self._chain.directory,
                do="Transactions were rolled back: look at `replicate -i INSTANCE lost list`, then follow again",
            )
        yield from self._reader.matches(last)

    def _bound(self) -> int:
        """The last transaction that is whole: as shared memory says, or else the newest segment."""
        instance = self._instance
        try:
            owner = os.stat(instance.path).st_uid
            memory = SharedMemory.attach(PoolKind.JOURNAL, instance.content.uuid, owner_uid=owner)
        except (NotFoundError, TryAgainError, PoolReplacedError):
            return self._end_of_files()
        try:
            return int(memory.words[word.LAST_SEQNO])
        finally:
            memory.close()

    def _end_of_files(self) -> int:
        """Nobody has opened the instance since the machine started: the newest segment is read once for each change."""
        newest = self._chain.last_segment()
        found = os.stat(newest.path)
        seen = (newest.path, found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            self._last_seqno = self._chain.scan_last()[1].last_seqno
            self._seen = seen
        return self._last_seqno
