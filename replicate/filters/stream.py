"""A server's stream through its filter, on one connection.

Guarantees: what is taken goes through the filter in its order, and out in the same one; when the filter fails, nothing
of the transaction that it had is put out after what came before, and `run` gives the reason.
Leaves to others: the filter's process (filter_process.py), what it is told (conversation.py), and where the stream
comes from.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import trio

from replicate.errors import DamagedError, FilterError
from replicate.filters.restating import StreamItem, StreamParts
from replicate.filters.switch import FilterSwitch
from replicate.journal.record import FrameBatch, catalogue_payload, decode, pack_frame
from replicate.model.transaction import Catalogue, Kind, TableDefinition
from replicate.settings.table import ReceiverConfig, SourceConfig

if TYPE_CHECKING:  # imported where a filter is begun: no start waits for it where there is none
    from replicate.filters.conversation import FilterTalk
    from replicate.filters.filter_process import FilterChild
    from replicate.filters.program import Program


class FilteredStream:
    """One run of a filter. `begin` it where the stream begins, then `run` it, and `take` what comes."""

    def __init__(
        self,
        switch: FilterSwitch,
        settings: ReceiverConfig | SourceConfig,
        here: Mapping[int, TableDefinition],
        log: Any,
        put: Callable[[StreamItem], None],
        may_put: Callable[[], bool] = lambda: True,
    ) -> None:
        """`here`: the definitions of the receiving side, by id. `put` gets what comes out; while it may not, the filter
        waits, and so does what is to go through it. FilterError, ConfigurationError: there is no such program."""
        from replicate.filters.program import program

        self.switch = switch
        self.program: Program = program(switch.setting, settings.filter_format)
        switch.identity = self.program.identity
        self._here = here
        self._timeout_s = settings.filter_timeout_s
        self._log = log
        self._put = put
        self._may_put = may_put
        self._talk: FilterTalk | None = None
        self._waiting: deque[StreamItem] = deque()
        self._waiting_bytes = 0
        self._came = trio.Event()
        self._moved = trio.Event()

    @property
    def waiting_bytes(self) -> int:
        """Of frames that were taken, and have not come out."""
        return self._waiting_bytes + (self._talk.waiting_bytes if self._talk is not None else 0)

    def begin(self, frame: bytes, side: str, now: float) -> bytes:
        """The stream begins with that CATALOGUE frame, on this `side`, `now` by trio's clock; the one of what comes
        out. JournalDamagedError and its kin."""
        from replicate.filters.conversation import FilterTalk

        read = decode(frame)
        (source,) = read.content
        assert isinstance(source, Catalogue)
        self._talk = FilterTalk(
            self.program.name,
            self.program.form,
            source.definitions,
            self._here,
            side=side,
            token=lambda: int.from_bytes(os.urandom(8), "big"),
            timeout_s=self._timeout_s,
            now=now,
        )
        here = Catalogue(self._here, source.histories, source.vector, source.chains)
        payload, count = catalogue_payload(here)
        return pack_frame(Kind.CATALOGUE, read.seqno, 0, 0, 0, 0, 0, payload, count)[0]

    async def room(self, bytes_max: int) -> None:
        """Wait until no more than so much is on its way through."""
        while self.waiting_bytes > bytes_max:
            self._moved = trio.Event()
            await self._moved.wait()

    def take(self, item: StreamItem) -> None:
        """What comes next."""
        self._waiting.append(item)
        self._waiting_bytes += bytes_of(item)
        self._came.set()

    async def run(self) -> FilterError | DamagedError:
        """Until cancelled, or it fails: then the reason."""
        from replicate.filters.filter_process import FilterChild

        assert self._talk is not None
        child = FilterChild(self.program, self._talk, self._come_out, self._may_put, self._log)
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
            await child.give(self._waiting[0])
            self._waiting_bytes -= bytes_of(self._waiting.popleft())
            self._moved.set()

    def _come_out(self, made: list[StreamItem]) -> None:
        self.switch.passed()
        self._moved.set()
        for one in made:
            self._put(one)


def bytes_of(item: StreamItem) -> int:
    """Of the frames in it."""
    if isinstance(item, FrameBatch):
        return len(item.data)
    return len(item.frames if isinstance(item, StreamParts) else item.frame)
