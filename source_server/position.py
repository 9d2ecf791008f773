"""The consumer's position as it is stored: what may be pruned depends on it.

Guarantees: what others (a seed, a pruner at the cap) have written since is never undone; nothing is stored of a journal
that was begun again since; a peer that was unregistered is not brought back.
Leaves to others: connections, and how far the consumer says it is (consumer_state.py).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.errors import BusyError, DiskFullError, ReplicateError
from replicate.instance.consumer_positions import positions_locked
from replicate.instance.consumers import Consumer, read_consumer, told_seqno, write_consumer
from replicate.instance.instance import Instance


class ConsumerPosition:
    """How far the consumer is, as far as we know, and what of that is stored."""

    def __init__(self, instance: Instance, door: Door, peer_name: str, log: Any) -> None:
        self.record = Consumer(peer_name)
        """What we know."""
        self._instance = instance
        self._door = door
        self._peer_name = peer_name
        self._log = log
        self._stored: Consumer | None = None
        self._is_removed = False
        self._is_unstored = False
        self._lock = trio.Lock()

    @property
    def acknowledged_seqno(self) -> int:
        """The last transaction that is durable there."""
        return self.record.acknowledged_seqno

    @property
    def told_seqno(self) -> int:
        """The same by its own word, which a seed on its way to it is not."""
        try:
            return told_seqno(self._instance.consumers_directory, self.record)
        except ReplicateError:  # `status` tells what is wrong with the file
            return 0

    def acknowledged(self, seqno: int) -> None:
        """The consumer says that all up to there is durable; less than it said before changes nothing."""
        if seqno > self.record.acknowledged_seqno:
            self.record = replace(self.record, acknowledged_seqno=seqno, acknowledged_wall_ns=time.time_ns())

    def went_back(self, seqno: int) -> None:
        """It has nothing after there, whatever it said before (it may have been restored)."""
        if seqno < self.record.acknowledged_seqno:
            self.record = replace(self.record, acknowledged_seqno=seqno)

    def met(self, uuid: str) -> None:
        """The consumer is this instance (hexadecimal)."""
        self.record = replace(self.record, uuid=uuid)

    @property
    def has_moved(self) -> bool:
        """Whether there is anything to store."""
        return self.record != (self._stored or Consumer(self._peer_name))

    def load(self) -> None:
        """Take what is stored, when somebody else has written it."""
        found = read_consumer(self._instance.consumers_directory, self._peer_name)
        if found != self._stored:
            self._stored = found
            self.record = found if found is not None else Consumer(self._peer_name)
            self._is_removed = False

    async def store(self) -> None:
        """Write the consumer's position when it has moved; what somebody else has written meanwhile counts instead.
        PoolReplacedError."""
        async with self._lock:
            await trio.to_thread.run_sync(self._store_checked)

    def _store_checked(self) -> None:
        directory = self._instance.consumers_directory
        with positions_locked(directory):
            # What the peer has said of a journal that a seed has begun again since must not come back.
            self._door.pool.check_current()
            self._store_alone(directory)

    def _store_alone(self, directory: Path) -> None:
        wanted = self.record
        found = read_consumer(directory, self._peer_name)
        self._is_removed |= found is None and self._stored is not None
        if self._is_removed:
            return  # the peer was unregistered: we must not bring it back
        if found is not None and found != self._stored:
            self._stored = found
            if not found.needs_seed:
                self.record = found
                return
        if wanted == self._stored:
            return
        if found is not None and found.needs_seed:
            # Given up at the journal's cap: it counts again once it needs nothing that is gone.
            is_served = wanted.acknowledged_seqno + 1 >= make_chain(self._instance).oldest_seqno()
            wanted = replace(wanted, needs_seed=not is_served)
        write_consumer(directory, wanted)
        self._stored = wanted
        if self.record.acknowledged_seqno == wanted.acknowledged_seqno:
            self.record = wanted

    async def keep_stored(self) -> None:
        """Store the consumer's position; on a full disk not now: an older one keeps more of the journal, no more, and
        an end of replication would free nothing."""
        try:
            await self.store()
        except (DiskFullError, BusyError) as error:
            if not self._is_unstored:
                self._log.error("consumer's position not stored", error=str(error), code=error.code)
            self._is_unstored = True
        else:
            self._is_unstored = False
