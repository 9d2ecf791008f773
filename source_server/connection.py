"""One connection to the secondary, from the hello to the last word.

Guarantees: nothing is sent that is not durable here, so a crash of this host can not leave the secondary ahead of it;
the next transactions are fetched ahead of the writer, in a thread where that means the disk, so that neither a slow
disk nor a hanging sync delays a heartbeat.
Refuses to know: sockets and the clock (replicate/daemon/drive.py), the protocol (link.py), what happens between
connections.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
import trio.lowlevel

from replicate.daemon.drive import Drive
from replicate.daemon.introduce import introduction
from replicate.door.door import CSN_COUNTER_BITS
from replicate.errors import DamagedError, JournalIOError, JournalMissingError, PoolReplacedError, ReplicateError
from replicate.failpoint import hit
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, read_head
from replicate.pool import control as word
from replicate.security.authenticate import Authenticated
from replicate.wire.connection import LinkSettings
from replicate.wire.event import (
    Acknowledged,
    Closed,
    Connected,
    Event,
    RestartRequested,
    SeedRequested,
    SeedTaken,
    SendingResumed,
    SendingStopped,
)
from replicate.wire.message import Introduction, Restart
from source_server.link import SourceLink, SourceProgress
from source_server.reader import POOL, JournalReader
from source_server.restart import Agreed, agree
from source_server.seed import SeedSending

if TYPE_CHECKING:
    from source_server.server import Source

FRAME_PROGRESS_S_MAX: Final = 20.0
IDLE_S: Final = 0.5
"""Longest sleep on the doorbell before the pool is looked at anew, whoever forgot to ring."""

FLUSHED_S: Final = 0.02
"""So long we leave the flush of a transaction to whoever has committed it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some parts of a large transaction; or its commit frame (`count` 0, `first_part` = number of parts)."""

    seqno: int
    token: int
    first_part: int
    count: int
    data: bytes


class Connection:
    """One connection. `run` it once."""

    def __init__(self, source: Source, peer: Authenticated, hello_by: float) -> None:
        """Takes over the peer's stream. `hello_by` (trio's clock): when the peer's hello must be here."""
        self.source = source
        config = source.settings
        settings = LinkSettings(
            heartbeat_period_s=config.heartbeat_period_s,
            dead_after_s=config.dead_after_s,
            hello_timeout_s=max(0.001, hello_by - trio.current_time()),
            frame_progress_s=min(FRAME_PROGRESS_S_MAX, config.dead_after_s),
            expected_peer=source.peer_name,
            proven=peer.names,
            compression=config.compression,
        )
        me = introduction(source.instance, config.heartbeat_period_s)
        self.link = SourceLink(settings, me, trio.current_time(), time.time_ns())
        self.drive = Drive(
            self.link, peer.stream, self._event, before_write=self._send_next, before_tick=self._report_progress
        )
        self._streaming = trio.Event()
        self._agreed: Agreed | None = None
        self._seed: SeedSending | None = None
        self._counted = (0, 0, 0)
        # Rendezvous: one batch waits here while the one before it is on its way.
        self._give, self._take = trio.open_memory_channel[FrameBatch | Piece](1)
        self._offered = 0
        """How many wait there, or before it."""

    @property
    def has_streamed(self) -> bool:
        """The stream was agreed upon."""
        return self._streaming.is_set()

    async def run(self) -> Closed:
        """Until the link is closed, by whichever side."""
        return await self.drive.run(self._stream, self._watch_stop)

    # Events.

    def _event(self, event: Event) -> None:
        source = self.source
        match event:
            case Connected(peer):
                self._connected(peer)
            case RestartRequested(restart):
                source.tell("searching for restart")
                self.drive.nursery.start_soon(self._agree, restart)
            case SeedRequested(request):
                self._seed = SeedSending(self, source.seeds, request)
                self.drive.nursery.start_soon(self._seed.run)
            case SeedTaken(seed):
                self.drive.nursery.start_soon(source.seeds.drop, seed)
            case SendingStopped(reason, free_bytes):
                source.log.info("XOFF received", reason=reason, free_bytes=free_bytes)
                source.statistics.count("xoff")
                source.tell("waiting for XON")
            case SendingResumed(free_bytes):
                source.log.info("XON received", free_bytes=free_bytes)
                source.tell("sending")
            case Acknowledged():
                source.acknowledged(event)
            case _:
                pass

    def _connected(self, peer: Introduction) -> None:
        source = self.source
        instance = peer.instance.hex()
        protocol = str(self.link.protocol)
        source.say("peer introduced", instance, peer_instance=instance, release=peer.release, protocol=protocol)
        source.tell("waiting for restart")
        try:
            source.met(peer.instance)
        except ReplicateError as error:
            self.drive.take(self.link.refuse(error))

    async def _agree(self, restart: Restart) -> None:
        source = self.source
        try:
            agreed = await trio.to_thread.run_sync(agree, source.door, restart)
        except PoolReplacedError:
            raise
        except ReplicateError as error:
            self._failed(error)
            return
        if self.drive.closed is not None:
            return
        await source.begins_at(agreed.from_seqno)
        hit("source.begun")
        if self.drive.closed is not None:
            return
        self._report_progress()
        self.link.start(agreed.from_seqno, agreed.from_part, agreed.catalogue)
        self._agreed = agreed
        source.last_sent_seqno = agreed.from_seqno - 1
        source.say("streaming", from_seqno=agreed.from_seqno, from_part=agreed.from_part)
        source.tell("sending", last_error=None)
        self._streaming.set()
        self.drive.poke()

    def _failed(self, error: ReplicateError) -> None:
        """Tell the peer. What is wrong with our own journal or disk ends the daemon; a refusal, and what was pruned, do
        not."""
        is_refusal = "reason" in error.facts
        is_ours = isinstance(error, DamagedError | JournalIOError) and not isinstance(error, JournalMissingError)
        if is_ours and not is_refusal:
            self.source.failure = error
        if self.drive.closed is None:
            self.drive.take(self.link.refuse(error))

    # Sending.

    def _report_progress(self) -> None:
        words = self.source.words
        self.link.report(
            SourceProgress(words[word.LAST_SEQNO], words[word.LAST_DURABLE_SEQNO], words[word.LAST_COMMIT_WALL_NS])
        )

    def _send_next(self) -> None:
        """The writer is free: give the link what was fetched, if it may go."""
        if self._seed is not None:
            self._seed.send_next()
        if not self.link.can_send_bulk:
            return
        try:
            item = self._take.receive_nowait()
        except trio.WouldBlock:
            return
        self._offered -= 1
        if self._send(item):
            self._note_sent(item)

    def _send(self, item: FrameBatch | Piece) -> bool:
        """Give it to the link; False when the connection is at its end because it does not follow."""
        link = self.link
        hit("source.before_send")
        try:
            if isinstance(item, FrameBatch):
                link.send_batch(item)
            elif item.count:
                link.send_parts(item.seqno, item.token, item.first_part, item.count, item.data)
            else:
                link.send_large(item.seqno, item.token, item.first_part, item.data)
        except DamagedError as error:  # GapError: nothing of it has left
            self.drive.take(link.refuse(error))
            return False
        return True

    def _note_sent(self, item: FrameBatch | Piece) -> None:
        """What need not be known before it leaves."""
        source = self.source
        transactions = item.count
        if isinstance(item, FrameBatch):
            source.saw(item.first_seqno, (read_head(item.data).csn >> CSN_COUNTER_BITS) * 1000)
        else:
            transactions = 0 if item.count else 1
        source.statistics.batch(transactions, len(item.data))
        source.last_sent_seqno = self.link.last_sent_seqno
        hit("source.sent")

    # Fetching.

    async def _stream(self) -> None:
        await self._streaming.wait()
        agreed = self._agreed
        assert agreed is not None
        with closing(self._reader(agreed)) as reader:
            try:
                await self._fetch(reader, agreed)
            except PoolReplacedError:
                raise
            except ReplicateError as error:
                self._failed(error)

    def _reader(self, agreed: Agreed) -> JournalReader:
        source = self.source
        return JournalReader(source.door, agreed.from_seqno, self._switched, place=source.place, index=agreed.index)

    async def _fetch(self, reader: JournalReader, agreed: Agreed) -> None:
        source = self.source
        limit = source.settings.batch_bytes
        while True:
            found: FrameBatch | LargeTransaction | None
            if reader.needs_files:
                found = await trio.to_thread.run_sync(reader.read, limit)
            else:
                found = reader.poll(limit)
            self._count(reader)
            if found is None:
                await source.doorbell.wait(lambda: reader.has_news, IDLE_S)
                continue
            last = found.last_seqno if isinstance(found, FrameBatch) else found.seqno
            if source.words[word.LAST_DURABLE_SEQNO] < last:
                await self._wait_durable(last)
            if isinstance(found, FrameBatch):
                await self._offer(found)
            else:
                from_part = agreed.from_part if found.seqno == agreed.from_seqno else 0
                with closing(_pieces(found, from_part, limit)) as pieces:
                    while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
                        await self._offer(piece)

    async def _wait_durable(self, seqno: int) -> None:
        """Until it is on our disk. Where committers flush, the one who does rings, and nothing else is quicker; where
        they do not, or whoever should has died, we flush."""
        source, words = self.source, self.source.words
        if source.committers_flush and await source.doorbell.wait(
            lambda: words[word.LAST_DURABLE_SEQNO] >= seqno, FLUSHED_S
        ):
            return
        await trio.to_thread.run_sync(source.door.wait_durable, seqno, abandon_on_cancel=True)

    async def _offer(self, item: FrameBatch | Piece) -> None:
        if not self._offered and self.drive.is_free and self.link.can_send_bulk:
            if self._send(item):
                self.drive.write_now()
                self._note_sent(item)
            await trio.sleep(0)  # noqa: ASYNC115 (which simulations know; others have their turns, however quick the socket)
            return
        self._offered += 1
        self.drive.poke()  # early, so that the writer's turn comes while `send` gives up ours
        await self._give.send(item)
        self.drive.poke()

    def _switched(self, place: str, next_seqno: int) -> None:
        """May be called in a thread: logs, nothing else."""
        text = (
            "now reading from the journal pool"
            if place == POOL
            else "now reading from journal files; journal pool does not contain the next transaction"
        )
        self.source.log.info(text, next_seqno=next_seqno)

    def _count(self, reader: JournalReader) -> None:
        self.source.place = reader.place
        now = (reader.transactions_from_pool, reader.transactions_from_files, reader.switches)
        if now != self._counted:
            was, self._counted = self._counted, now
            self.source.from_pool += now[0] - was[0]
            self.source.from_files += now[1] - was[1]
            self.source.switches += now[2] - was[2]

    # The stop.

    async def _watch_stop(self) -> None:
        """Drain: what was committed when the stop was asked for is still sent, as long as the peer takes it."""
        source = self.source
        await source.context.stop_requested.wait()
        last = source.words[word.LAST_SEQNO]
        if self._streaming.is_set():
            source.tell("stopping: sending what is left")
        while self._streaming.is_set() and source.last_received_seqno < last:
            await source.progressed.wait()
        self.drive.take(self.link.bye("the Source Server was stopped"))


def _pieces(large: LargeTransaction, first_part: int, limit: int) -> Generator[Piece]:
    """The parts of a large transaction from `first_part` on, as many together as fit `limit` bytes; its commit frame
    last."""
    waiting: list[bytes] = []
    size, number = 0, first_part
    for frame in large.parts(first_part):
        if waiting and size + len(frame) > limit:
            yield Piece(large.seqno, large.token, number, len(waiting), b"".join(waiting))
            number += len(waiting)
            waiting, size = [], 0
        waiting.append(frame)
        size += len(frame)
    if waiting:
        yield Piece(large.seqno, large.token, number, len(waiting), b"".join(waiting))
        number += len(waiting)
    yield Piece(large.seqno, large.token, number, 0, large.commit_frame)
