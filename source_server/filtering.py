"""The source's filter on one connection: between what is read and what is sent.

Guarantees: what comes out is sent in its order, and what was read for it waits while the filter, or the line, has
enough to do. When the filter fails, the connection ends with a BYE, and the next one begins with its transaction.
Leaves to others: the filter itself (replicate/filters), how transactions are read and sent (connection.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from replicate.errors import ConfigurationError, DamagedError, FilterError, ReplicateError
from replicate.filters.restating import StreamItem
from replicate.filters.stream import FilteredStream, bytes_of
from replicate.filters.switch import FilterSwitch
from replicate.filters.whose_words import read_content
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.record import decode
from replicate.limits import MIB
from replicate.model.transaction import Catalogue, TableDefinition
from replicate.region.sqlite.script_tables import scripted_definitions
from replicate.settings.table import SourceConfig

WAITING_BYTES_MAX: Final = 2 * MIB
"""So much is between what is read and what is sent, and a batch more."""
EARLIER: Final = "an earlier filter"


class SourceFiltering:
    """One run. `begin` where the stream begins, `run` it, and `take` what is read."""

    def __init__(
        self,
        switch: FilterSwitch,
        settings: SourceConfig,
        instance: Instance,
        log: Any,
        offer: Callable[[StreamItem], Awaitable[None]],
    ) -> None:
        """`offer` sends, and waits until it may."""
        self._switch = switch
        self._settings = settings
        self._instance = instance
        self._log = log
        self._offer = offer
        self._stream: FilteredStream | None = None
        self._out: deque[StreamItem] = deque()
        self._out_bytes = 0
        self._came_out = trio.Event()
        self._has_room = trio.Event()

    def begin(self, catalogue: bytes, now: float) -> bytes:
        """The stream begins with that CATALOGUE frame, `now` by trio's clock; the one of what comes out.
        FilterError, ConfigurationError. Blocks on the disk, and on a script of SQL."""
        (known,) = decode(catalogue).content
        assert isinstance(known, Catalogue)
        there = definitions_there(known.newest().definitions, self._settings.filter_schema, self._instance)
        self._stream = FilteredStream(
            self._switch, self._settings, there, self._log, self._put, lambda: self._out_bytes <= WAITING_BYTES_MAX
        )
        return self._stream.begin(catalogue, "source", now)

    async def run(self) -> FilterError | DamagedError:
        """Until cancelled, or the filter fails: then the reason."""
        assert self._stream is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send)
            failed = await self._stream.run()
            nursery.cancel_scope.cancel()
        return failed

    async def take(self, item: StreamItem) -> None:
        """What was read next."""
        stream = self._stream
        assert stream is not None
        await stream.room(WAITING_BYTES_MAX)
        while self._out_bytes > WAITING_BYTES_MAX:
            self._has_room = trio.Event()
            await self._has_room.wait()
        stream.take(item)
        await trio.lowlevel.checkpoint()

    def _put(self, item: StreamItem) -> None:
        self._out.append(item)
        self._out_bytes += bytes_of(item)
        self._came_out.set()

    async def _send(self) -> None:
        while True:
            if not self._out:
                self._came_out = trio.Event()
                await self._came_out.wait()
                continue
            await self._offer(self._out[0])
            self._out_bytes -= bytes_of(self._out.popleft())
            self._has_room.set()


def filter_here(instance: Instance) -> str:
    """The filter that what is here came through, as a peer that it is sent to is told; "" for none. Of one that is not
    known any more, since the stream comes without it or the file is lost, the journal's newest segment tells. Blocks
    on the disk, for two small reads."""
    held, content = read_content(instance.run_directory), instance.content
    if held is not None and held.filter:
        return held.filter
    if content.role == "secondary" and not content.is_partial:
        with suppress(ReplicateError):  # reading the journal says what is wrong with it
            if Chain(instance.journal_directory).last_segment().header.is_partial:
                return EARLIER
    return ""


def definitions_there(
    ours: Mapping[int, TableDefinition], setting: str, instance: Instance
) -> Mapping[int, TableDefinition]:
    """What the peer has: our tables, or where source.filter_schema names a script for a region, those that it makes.

    ConfigurationError for a region that is none, or a script that cannot be run."""
    made = dict(ours)
    for region, path in _scripts(setting, instance):
        made = {key: one for key, one in made.items() if one.region != region}
        made |= {one.table_id: one for one in scripted_definitions(instance.path / path, region=region)}
    return made


def _scripts(setting: str, instance: Instance) -> list[tuple[str, Path]]:
    """FILE of the only region, or REGION=FILE, …"""
    regions = [entry.name for entry in instance.regions]
    found = []
    for part in filter(None, map(str.strip, setting.split(","))):
        region, is_named, path = part.partition("=")
        if not is_named:
            region, path = (regions[0] if len(regions) == 1 else ""), part
        if region not in regions:
            raise ConfigurationError(
                f"{part!r} names no region; there are {', '.join(regions)}",
                where="source.filter_schema",
                do="Give REGION=FILE for each region that differs there",
            )
        found.append((region, Path(path)))
    return found
