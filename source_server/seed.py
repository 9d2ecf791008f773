"""The source's side of a seed: makes the file that the receiver asks for, keeps it until it is safe there, sends it.

Guarantees: the making goes on when a connection is lost, and one that asks again gets the same file; it runs in a
thread and gives way to a stop; a file whose sequence number the journal has gone past is made again. What is read ahead
of the writer is one chunk.
Leaves to others: how a seed is made (replicate/transfer/seed/make.py), the protocol (link.py).
"""

from __future__ import annotations

import os
from typing import Final

import trio

from replicate.daemon.link_driver import Drive
from replicate.daemon.own_introduction import rows_told
from replicate.door.recovery.opening import make_chain
from replicate.errors import DamagedError, JournalIOError, NotFoundError, PoolReplacedError, ReplicateError
from replicate.model.subscription import Rows
from replicate.system.failpoint import hit
from replicate.system.os_errors import io_error
from replicate.transfer.container import SeedHeader
from replicate.transfer.seed.file import read_header
from replicate.transfer.seed.incoming import seed_directory
from replicate.transfer.seed.make import MadeSeed, kept_seed, make_seed
from replicate.transfer.seed.rows import is_cut_as_wanted
from replicate.wire.introduction import refusal
from replicate.wire.message import (
    CHUNK_BYTES,
    RefuseCode,
    SeedRequest,
    SeedRequestPartitions,
    SeedRequestRegions,
    SeedStart,
)
from source_server.consumer_state import ConsumerState
from source_server.link import SourceLink

TELL_S: Final = 1.0
"""How often the receiver is told how far the making is."""


class SeedKeeper:
    """The one seed file of one peer: INSTANCE/seed/PEER.seed. Outlives connections."""

    def __init__(self, consumer: ConsumerState) -> None:
        self.consumer = consumer
        self.path = kept_seed(consumer.instance, consumer.peer_name)
        self._request: SeedRequest | None = None
        self._rows: Rows = {}
        self._asked = trio.Event()
        self._moved = trio.Event()
        self._progress = (0, 0)
        self._failure: ReplicateError | None = None

    async def run(self) -> None:
        """Make what is asked for, one at a time. Raises PoolReplacedError."""
        log = self.consumer.log
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            request = self._request
            if request is None:
                continue
            self._failure = None
            try:
                log.info("seed is being made")
                made = await trio.to_thread.run_sync(self._make, request)
                log.info("seed made", seqno=made.seqno, file_bytes=made.bytes, pages=made.pages)
            except PoolReplacedError:
                raise
            except ReplicateError as error:
                log.error("seed could not be made", error=str(error), code=error.code)
                self._failure = error
            self._request = None
            self._moved.set()
            self._moved = trio.Event()

    def _make(self, request: SeedRequest) -> MadeSeed:
        seed_directory(self.consumer.instance.path)
        self._progress = (0, 0)
        return make_seed(
            self.consumer.instance,
            self.consumer.peer_name,
            self.path,
            request=request.request,
            replace=True,
            progress=self._told,
            regions=request.regions if isinstance(request, SeedRequestRegions) else (),
            partitions=request.partitions if isinstance(request, SeedRequestPartitions) else (),
            rows=self._rows,
        )

    def _told(self, _region: str, done: int, pages: int) -> None:
        """In the thread: a stop of the daemon ends the making here."""
        trio.from_thread.check_cancelled()
        hit("seed.making")
        self._progress = (done, pages)

    async def get(self, request: SeedRequest, link: SourceLink, drive: Drive) -> tuple[SeedHeader, int]:
        """Header and length of the file made for `request`; made now, if it is not there. What `make_seed` raises."""
        rows = rows_told(link.peer.rows) if link.peer is not None else {}
        while True:
            found = await trio.to_thread.run_sync(self._usable, request.request, rows)
            if found is not None:
                return found
            if self._request is None:
                self._request = request
                self._rows = rows
                self._asked.set()
            while self._request is not None:
                link.prepare_seed(*self._progress)
                drive.poke()
                with trio.move_on_after(TELL_S):
                    await self._moved.wait()
            if self._failure is not None:
                raise self._failure

    def _usable(self, request: bytes, rows: Rows) -> tuple[SeedHeader, int] | None:
        """The file, if it was made for this request, without what is not wanted by now, and the journal still goes on
        after it."""
        instance = self.consumer.instance
        try:
            header = read_header(self.path)
            size = os.stat(self.path).st_size
        except (NotFoundError, DamagedError, OSError):
            return None
        is_ours = (header.request, header.primary) == (request, instance.content.uuid) and is_cut_as_wanted(
            header, rows
        )
        return (header, size) if is_ours and header.seqno + 1 >= make_chain(instance).oldest_seqno() else None

    async def drop(self, seed: bytes) -> None:
        """The receiver has it: remove the file."""
        await trio.to_thread.run_sync(self._drop, seed)
        self.consumer.log.info("seed taken over by the peer")

    def _drop(self, seed: bytes) -> None:
        try:
            if read_header(self.path).seed == seed:
                self.path.unlink()
        except (NotFoundError, DamagedError, FileNotFoundError):
            pass


class SeedSending:
    """One answer to one request. `run` it once; `send_next` when the writer is free."""

    def __init__(self, link: SourceLink, drive: Drive, keeper: SeedKeeper, request: SeedRequest) -> None:
        self._link = link
        self._drive = drive
        self._keeper = keeper
        self._request = request
        self._is_whole = not isinstance(request, (SeedRequestRegions, SeedRequestPartitions))
        self._give, self._take = trio.open_memory_channel[tuple[int, bytes]](1)

    async def run(self) -> None:
        """Until the last byte has been given to the link; a failure refuses the peer by name."""
        consumer, link, drive = self._keeper.consumer, self._link, self._drive
        if self._is_whole:
            consumer.tell("making the seed")
        try:
            header, size = await self._keeper.get(self._request, link, drive)
            offset = self._request.offset if self._request.seed == header.seed and self._request.offset <= size else 0
            if drive.closed is not None:
                return
            link.start_seed(SeedStart(header.seed, offset, size, header.seqno))
            consumer.log.info("sending the seed", seqno=header.seqno, from_offset=offset, file_bytes=size)
            if self._is_whole:
                consumer.tell("sending the seed")
            drive.poke()
            await self._fetch(offset, size)
        except PoolReplacedError:
            raise
        except ReplicateError as error:
            if drive.closed is None:
                text = f"{error.what}{f' [{error.where}]' if error.where else ''}. {error.do}".rstrip(" .")
                is_named = error.facts.get("reason") == RefuseCode.PARTITION_REFUSED
                drive.take(link.refuse(error if is_named else refusal(RefuseCode.SEED_FAILED, text)))

    async def _fetch(self, offset: int, size: int) -> None:
        where = str(self._keeper.path)
        try:
            fd = os.open(self._keeper.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise io_error(error, "the seed file could not be opened", where) from error
        try:
            while offset < size:
                data = await trio.to_thread.run_sync(os.pread, fd, CHUNK_BYTES, offset)
                if not data:
                    raise JournalIOError(f"the seed file ends at byte {offset} of {size}", where=where)
                await self._give.send((offset, data))
                self._drive.poke()
                offset += len(data)
        except OSError as error:
            raise io_error(error, "the seed file could not be read", where) from error
        finally:
            os.close(fd)

    def send_next(self) -> None:
        """Give the link what was read, if it may go."""
        if not self._link.can_send_seed:
            return
        try:
            offset, data = self._take.receive_nowait()
        except trio.WouldBlock:
            return
        hit("seed.sending")
        self._link.send_seed(offset, data)
