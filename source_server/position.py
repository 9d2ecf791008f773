"""What the Source Server knows of its consumer's position, as it is stored: what may be pruned hangs on it.

Guarantees: what others (a seed, a pruner at the cap) have written since is never undone; nothing is stored of a journal
that has been begun anew; a peer that was unregistered is not brought back.
Refuses to know: connections, and how far the consumer says it is (source_server/server.py).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import trio

from replicate.consumer_positions import positions_locked
from replicate.daemon.daemon import DaemonContext
from replicate.door.door import Door
from replicate.door.opening import make_chain
from replicate.errors import BusyError, DiskFullError
from replicate.instance.consumers import Consumer, read_consumer, write_consumer
from replicate.instance.instance import Instance


class ConsumerPosition:
    """`consumer`: how far it is, as far as we know."""

    def __init__(self, context: DaemonContext, instance: Instance, door: Door, peer_name: str) -> None:
        self.context = context
        self.instance = instance
        self.door = door
        self.peer_name = peer_name
        self.log = context.log.bind(peer=peer_name)
        self.consumer = Consumer(peer_name)
        self._stored: Consumer | None = None
        self._is_removed = False
        self._is_unstored = False
        self._consumer_lock = trio.Lock()

    @property
    def has_moved(self) -> bool:
        """Whether there is anything to store."""
        return self.consumer != (self._stored or Consumer(self.peer_name))

    def load_consumer(self) -> None:
        """Take what is stored, when somebody else has written it."""
        found = read_consumer(self.instance.consumers_directory, self.peer_name)
        if found != self._stored:
            self._stored = found
            self.consumer = found if found is not None else Consumer(self.peer_name)
            self._is_removed = False

    async def store_consumer(self) -> None:
        """Write the consumer's position when it has moved; what somebody else has written meanwhile counts instead.
        PoolReplacedError."""
        async with self._consumer_lock:
            await trio.to_thread.run_sync(self._store_consumer)

    def _store_consumer(self) -> None:
        directory = self.instance.consumers_directory
        with positions_locked(directory):
            # What the peer has said of a journal that a seed has begun anew since must not come back.
            self.door.pool.check_current()
            self._store_alone(directory)

    def _store_alone(self, directory: Path) -> None:
        wanted = self.consumer
        found = read_consumer(directory, self.peer_name)
        self._is_removed |= found is None and self._stored is not None
        if self._is_removed:
            return  # the peer was unregistered: we must not bring it back
        if found is not None and found != self._stored:
            self._stored = found
            if not found.needs_seed:
                self.consumer = found
                return
        if wanted == self._stored:
            return
        if found is not None and found.needs_seed:
            # Given up at the journal's cap: it counts again once it needs nothing that is gone.
            is_served = wanted.acknowledged_seqno + 1 >= make_chain(self.instance).oldest_seqno()
            wanted = replace(wanted, needs_seed=not is_served)
        write_consumer(directory, wanted)
        self._stored = wanted
        if self.consumer.acknowledged_seqno == wanted.acknowledged_seqno:
            self.consumer = wanted

    async def keep_stored(self) -> None:
        """Store the consumer's position; on a full disk not now: an older one keeps more of the journal, no more, and
        an end of replication would free nothing."""
        try:
            await self.store_consumer()
        except (DiskFullError, BusyError) as error:
            if not self._is_unstored:
                self.log.error("consumer's position not stored", error=str(error), code=error.code)
            self._is_unstored = True
        else:
            self._is_unstored = False
