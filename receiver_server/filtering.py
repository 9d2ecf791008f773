"""The receiver's filter on one connection: between what the link hands on and the receive pool.

Guarantees: whole transactions go through the filter in their order, and into the pool in the same one; when the filter
fails, the connection ends with a BYE, nothing of the transaction that it had is put after what came out, and the next
connection begins with it.
Leaves to others: the filter's process (replicate/filters/child.py), what goes into the pool and how (connection.py).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import trio

from replicate.errors import DamagedError, FilterError
from replicate.filters.child import FilterChild
from replicate.filters.conversation import Conversation, Filtered
from replicate.filters.program import Program, program
from replicate.filters.switch import FilterSwitch
from replicate.journal.record import catalogue_payload, pack_frame
from replicate.model.transaction import Catalogue, Kind, TableDefinition
from replicate.settings.table import ReceiverConfig
from replicate.wire.event import BatchReceived, LargeReceived, PartsReceived

Received = BatchReceived | PartsReceived | LargeReceived


class Filtering:
    """One run of the filter. `run` it once the stream has begun; `take` what comes."""

    def __init__(
        self, switch: FilterSwitch, settings: ReceiverConfig, log: Any, put: Callable[[Filtered], None]
    ) -> None:
        """`put` gets what comes out. FilterError, ConfigurationError: there is no such program."""
        self.switch = switch
        self.program: Program = program(switch.setting, settings.filter_format)
        switch.identity = self.program.identity
        self.here: Mapping[int, TableDefinition] = {}
        """Of this side; known before the stream is asked for."""
        self._settings = settings
        self._log = log
        self._put = put
        self._conversation: Conversation | None = None
        self._waiting: deque[Received] = deque()
        self._waiting_bytes = 0
        self._came = trio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Of frames that are here, and in the pool not yet."""
        given = self._conversation.waiting_bytes if self._conversation is not None else 0
        return self._waiting_bytes + given

    def begin(self, source: Catalogue, seqno: int) -> bytes:
        """The stream begins at `seqno` with the source's catalogue; the CATALOGUE frame of this side."""
        self._conversation = Conversation(
            self.program.name,
            self.program.form,
            source.definitions,
            self.here,
            side="receiver",
            token=lambda: int.from_bytes(os.urandom(8), "big"),
            timeout_s=self._settings.filter_timeout_s,
            now=trio.current_time(),
        )
        here = Catalogue(self.here, source.histories, source.vector, source.chains)
        payload, count = catalogue_payload(here)
        return pack_frame(Kind.CATALOGUE, seqno, 0, 0, 0, 0, 0, payload, count)[0]

    def take(self, event: Received) -> None:
        """What the link hands on next."""
        self._waiting.append(event)
        self._waiting_bytes += _bytes_of(event)
        self._came.set()

    async def run(self) -> FilterError | DamagedError:
        """Until cancelled, or it fails: then the reason."""
        assert self._conversation is not None
        child = FilterChild(self.program, self._conversation, self._come_out, self._log)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child.run)
                nursery.start_soon(self._feed, child)
        except BaseExceptionGroup as group:
            failed = [one for one in group.exceptions if isinstance(one, FilterError | DamagedError)]
            if not failed:
                raise
            return failed[0]
        raise AssertionError("a filter runs until it is cancelled or fails")

    async def _feed(self, child: FilterChild) -> None:
        while True:
            if not self._waiting:
                self._came = trio.Event()
                await self._came.wait()
            event = self._waiting[0]
            match event:
                case BatchReceived(batch):
                    await child.give(batch)
                case PartsReceived(seqno, _, _, _, frames):
                    await child.give_parts(seqno, frames)
                case LargeReceived(seqno, _, _, frame):
                    await child.give_large(seqno, frame)
            self._waiting.popleft()
            self._waiting_bytes -= _bytes_of(event)

    def _come_out(self, made: list[Filtered]) -> None:
        self.switch.passed()
        for one in made:
            self._put(one)


def _bytes_of(event: Received) -> int:
    match event:
        case BatchReceived(batch):
            return len(batch.data)
        case PartsReceived(frames=frames):
            return len(frames)
        case LargeReceived(frame=frame):
            return len(frame)
