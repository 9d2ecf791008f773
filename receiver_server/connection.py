"""One connection from a source, from its hello to its last word: what it sends goes into the receive pool.

Guarantees: only the accepted source's verified records enter the pool, in order; a pool that is full for a moment
holds back neither heartbeats nor acknowledgements; a source that comes before the seed is kept, and served when it is
there.
Leaves to others: sockets and the clock (replicate/daemon/link_driver.py), the protocol and flow control (link.py,
flow.py), from where to ask (position.py), what outlives a connection (source_state.py).
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import Final

import trio
from msgspec import Struct

from receiver_server.flow import Flow
from receiver_server.handover import RoleTaker
from receiver_server.link import ReceiverLink, ReceiverProgress
from receiver_server.lost_files import LostSending
from receiver_server.patrol import Verifying
from receiver_server.position import NotRecoveredError, ReceivedParts, Reference
from receiver_server.seed import Seeds
from receiver_server.source_state import SourceState
from receiver_server.supplier_sources import SuppliedSource
from replicate.compare.patrol_found import look_at_patrolled
from replicate.daemon.admission import Guest, Standing
from replicate.daemon.link_driver import Drive
from replicate.daemon.own_introduction import introduction, packed_rows
from replicate.door.partial_journal import mark_partial
from replicate.errors import DamagedError, FilterError, FormatUnknownError, ReplicateError
from replicate.filters.restating import StreamItem, StreamLarge, StreamParts
from replicate.filters.stream import FilteredStream
from replicate.filters.whose_words import Content, mismatch, note_content, read_content, told_by
from replicate.instance.file import InstanceFile
from replicate.journal.record import FrameBatch, check_frame
from replicate.limits import BATCH_BYTES_MAX, PARTITION_STREAM
from replicate.model.clock_skew import PeerClock
from replicate.model.table_wish import has_list
from replicate.model.transaction import Kind
from replicate.pool.receive_pool import UPDATE_SLOT, ReceivePool, RecordKind
from replicate.pool.ring import HEAD_BYTES
from replicate.security.authenticate import Authenticated
from replicate.system.failpoint import hit
from replicate.wire.connection import LinkSettings
from replicate.wire.event import (
    BatchReceived,
    CheckReceived,
    Closed,
    CloseReason,
    Event,
    HandoverSaid,
    HeartbeatReceived,
    LargeReceived,
    LostAcknowledged,
    PartsReceived,
    SeedAnnounced,
    SeedBeingMade,
    SeedComplete,
    SeedReceived,
    SourceIntroduced,
    Started,
)
from replicate.wire.introduction import reason_of, refusal
from replicate.wire.message import BULK_OVERHEAD_BYTES, Introduction, RefuseCode
from replicate.wire.vector_refusals import BY_VECTOR

SEED_LOOK_S: Final = 0.5
"""How often we look whether the seed is there, while a source waits for it."""
RECOVERY_LOOK_S: Final = 0.1
"""And whether the Update Process has recovered the journal."""
SEED_EVENTS_MAX: Final = 64
"""So many words about a seed wait for the disk at most: four windows of whole chunks."""
FILTER_AGAIN_S: Final = 1.0
"""So long a filter that has failed is left alone."""
POUR_LOOK_S: Final = 0.02
"""How often a full pool is tried again. The levels of flow control are there so that this does not happen."""


def diverged(text: str) -> ReplicateError:
    """The refusal of every source while rows here differ, and receiver.on_divergence is `stop`."""
    return refusal(RefuseCode.DIVERGED, f"{text}; the stream stops until it is mended (receiver.on_divergence)")


class _Waiting(Struct, frozen=True):
    """A record that is to go into the pool. `first_part`: of PARTS."""

    data: bytes
    first_seqno: int
    last_seqno: int
    count: int
    kind: RecordKind
    parts: ReceivedParts | None = None


class ReceiverConnection:
    """One connection. `run` it once."""

    def __init__(
        self,
        source: SourceState,
        seeds: Seeds,
        taker: RoleTaker,
        peer: Authenticated,
        where: str,
        hello_by: float,
        guest: Guest,
    ) -> None:
        """Takes over the peer's stream; `where` is its address, `hello_by` (trio's clock) the end of its time to say
        who it is."""
        self.source = source
        self._seeds = seeds
        self._taker = taker
        self.peer = peer
        self.guest = guest
        self.log = source.log.bind(where=where)
        config = source.settings
        settings = LinkSettings(
            heartbeat_period_s=config.heartbeat_period_s,
            dead_after_s=config.dead_after_s,
            hello_timeout_s=max(0.001, hello_by - trio.current_time()),
            proven=peer.names,
        )
        told_by = source.filter.looked_at(config.filter_format)
        with suppress(ReplicateError):  # what needs the file says so
            source.instance.look_again()
        me = introduction(source.instance, config.heartbeat_period_s, told_by, is_seeded=seeds.is_wanted)
        self.link = ReceiverLink(settings, self._new_flow(), me, trio.current_time(), time.time_ns())
        self.drive = Drive(
            self.link,
            peer.stream,
            self._event,
            before_tick=self.report,
            before_read=self._wait_for_room,
            after_read=self._knock,
        )
        self.gone = trio.Event()
        """The connection is closed, and writes into the pool no more."""
        self._lost = LostSending(source, self)
        self._verifying: Verifying | None = None
        self.is_streaming = False
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._waiting_bytes_max = self.link.flow.window_bytes + 3 * BATCH_BYTES_MAX
        self._is_waiting = trio.Event()
        self._filtering: FilteredStream | None = None
        self._is_stopped = False
        self.has_asked = False
        self.clock = PeerClock()
        self._asked_for: tuple[int, ...] | None = None
        """Once it has: the partitions; None: all."""
        self._content: InstanceFile | None = None
        """The instance file, as it was looked at last."""
        self._duplicates = 0
        self._supplied: SuppliedSource | None = None
        """On a supplier, once the stream has begun."""

    @property
    def peer_name(self) -> str:
        """The source's name; "" before it was accepted."""
        return self.link.peer.name if self.link.peer is not None else ""

    async def run(self) -> Closed:
        """Until the link is closed, by whichever side."""
        try:
            closed = await self.drive.run(self._pour_again, self._watch_stop)
            if closed.reason is CloseReason.PEER_REFUSED and closed.error is not None:
                await self.source.keep_verdict(self.peer_name, closed.error)
                await self.source.refused_own(closed.error)
            return closed
        finally:
            if self in self.source.all_connections:
                self.source.left(self)
                self._taker.left()
            self.gone.set()

    # Events.

    def _event(self, event: Event) -> None:
        match event:
            case SourceIntroduced(peer):
                if not self.link.is_closed:  # else its last word came with its hello
                    self._introduced(peer)
            case Started():
                self._started(event)
            case BatchReceived(batch):
                self._came(batch)
            case PartsReceived(seqno, token, first_part, count, frames):
                self._came(StreamParts(seqno, token, first_part, count, frames))
            case LargeReceived(seqno, _, _, frame):
                self._came(StreamLarge(seqno, frame))
            case CheckReceived(check):
                if self._verifying is not None:
                    self._verifying.heard(check)
            case LostAcknowledged(taken):
                self._lost.acknowledged(taken.offset)
            case HeartbeatReceived(heartbeat):
                self.clock.heard(heartbeat.wall_ns, time.monotonic_ns())
                if self._supplied is not None:
                    self._supplied.told(heartbeat.last_seqno, time.monotonic_ns())
                if self.link.peer is not None:
                    self.source.told(heartbeat, self.link.peer.heartbeat_period_ms)
            case HandoverSaid(message):
                self._taker.heard(self, message)
            case SeedBeingMade() | SeedAnnounced() | SeedReceived() | SeedComplete():
                self._seeds.heard(event)
            case Closed():
                self._seeds.closed(self, event)
                self._count_duplicates()
                self._closed(self.peer.judged(event))
            case _:
                pass

    @property
    def is_stopped(self) -> bool:
        """The source was told to pause (XOFF)."""
        return self._is_stopped

    def say(self, event: str, *reason: object, is_warning: bool = False, **fields: object) -> None:
        """A line about this connection: at once for every new reason, then once a period, with a count."""
        write = self.log.warning if is_warning else self.log.info
        self.source.repetitions.line(write, trio.current_time(), event, *reason, **fields)

    def _closed(self, closed: Closed) -> None:
        error, reason, name = closed.error, closed.reason.value, self.peer_name
        if error is not None and closed.reason in (CloseReason.PEER_REFUSED, CloseReason.WE_REFUSED):
            code = reason_of(error)
            self.source.refused[code] += 1
            if closed.reason is CloseReason.PEER_REFUSED:
                self.source.was_refused(name, code)
        if self.is_streaming:
            self.source.statistics.count("cuts", closed.reason is not CloseReason.BYE)
        if self.is_streaming and closed.reason not in (CloseReason.PEER_REFUSED, CloseReason.WE_REFUSED):
            self.source.repetitions.forget()  # the loss of a stream is always worth its lines
        if error is None:
            self.say("connection closed", name, reason, closed.text, source=name, reason=reason, text=closed.text)
        else:
            facts = {"source": name, "reason": reason, "error": str(error), "code": error.code}
            self.say("connection closed", name, reason, reason_of(error), is_warning=True, **facts)

    def _introduced(self, peer: Introduction) -> None:
        source = self.source
        suppliers = source.suppliers
        first = source.active if suppliers is None else suppliers.connections.get(peer.instance)
        if first is not None:
            names = {"source": peer.name, "first": first.peer_name}
            self.say("second source refused", names, is_warning=True, **names)
            error = refusal(
                RefuseCode.SECOND_SOURCE,
                f"{source.instance.name} takes the stream of {first.peer_name} already; {peer.name} is a second source",
                first=first.peer_name,
                second=peer.name,
            )
            self.drive.take(self.link.refuse(error))
            return
        self.link.accept(trio.current_time())
        self.guest.standing = Standing.SERVED
        source.entered(self)
        instance = peer.instance.hex()
        self.say(
            "source introduced", instance, source=peer.name, peer_instance=instance, release=peer.release,
            protocol=str(self.link.protocol),
        )  # fmt: skip
        self.report()
        self.drive.nursery.start_soon(self._call_partitions, peer)
        self.drive.nursery.start_soon(self._ask)

    async def _call_partitions(self, peer: Introduction) -> None:
        """Partitions that have no name here are called as at the source."""
        instance, told = self.source.instance, peer.names
        if not instance.content.partitions.called_otherwise(told):
            return
        try:
            known = await trio.to_thread.run_sync(instance.change_partitions, lambda known: known.calling(told))
        except ReplicateError as error:
            self.log.warning("names of partitions not kept", error=str(error), code=error.code)
            return
        others = {known.name(number): told[number - 2] for number in known.called_otherwise(told)}
        if others:
            self.say("partitions have other names", others, is_warning=True, source=peer.name, here_and_there=others)

    async def _ask(self) -> None:
        """Ask for the stream, as soon as we know from where."""
        source, link = self.source, self.link
        while self.drive.closed is None:
            if source.must_begin_anew:
                await trio.sleep(POUR_LOOK_S)
                continue
            if self._seeds.is_wanted:
                source.instance.look_again()
                if self.link.me.rows != packed_rows(source.instance.content.rows):
                    self.end("which rows are wanted here has changed")
                    return
                await self._seeds.fetch(self)
                continue
            if source.instance.is_supplier:
                await self._ask_by_vector()
                return
            pool = source.pool
            if not pool.is_current():  # a seed has taken it away
                await source.renew_pool()
                continue
            try:
                found = await source.find_reference()
                filtering = None
                if found is not None:
                    filtering = await self._prepare_filter()
                    await trio.to_thread.run_sync(self._check_content)
            except FilterError as error:
                self._filter_failed(error)
                return
            except NotRecoveredError as error:
                self.say("waiting for the recovery", error=str(error))
                source.tell("waiting until the Update Process has recovered the journal")
                await trio.sleep(RECOVERY_LOOK_S)
                continue
            except DamagedError as error:
                if "reason" in error.facts:  # no pool is damaged: rows differ, and the stream is to stop
                    self.drive.take(link.refuse(error))
                    return
                self.log.error("receive pool cannot be used", error=str(error), code=error.code)
                await source.replace_pool()
                continue
            except ReplicateError as error:
                self.drive.take(link.refuse(error))
                return
            if found is None:
                source.tell("waiting for the seed")
                await trio.sleep(SEED_LOOK_S)
                continue
            is_free = not source.must_begin_anew and not self._seeds.is_wanted
            if self.drive.closed is None and pool is source.pool and is_free:
                self._filtering = filtering
                self._send_restart(found)
                return

    async def _ask_by_vector(self) -> None:
        """On a supplier: ask for what its vector does not cover. What is in the pool of this source comes again, and is
        passed over when it is met."""
        source, link = self.source, self.link
        assert link.peer is not None
        try:
            while True:
                pool, began = source.pool, source.pool.restarts
                found = await source.find_vector(link.peer)
                if source.is_pool_outdated:  # now that it is known that it is not gone for good: it may get a lane
                    await source.renew_pool()
                await source.look_whether_restored()  # before the stream that may make it level
                if pool is source.pool and began == pool.restarts and not source.must_begin_anew:
                    break  # from here on nothing is awaited
                await trio.sleep(POUR_LOOK_S)  # somebody may be gone since we looked
            if source.filter.is_on:
                raise refusal(
                    RefuseCode.FILTER_MISMATCH,
                    f"{source.instance.name} has a filter, and a supplier takes all it is sent",
                )
        except ReplicateError as error:
            if reason_of(error) == RefuseCode.RETIRED:
                source.gone(self, link.peer.instance)
            if self.drive.closed is None:
                self.drive.take(link.refuse(error))
            return
        if self.drive.closed is not None:
            return
        if source.instance.content.incarnation != link.me.incarnation:  # a source leaves out what it says it writes
            self.end("another incarnation has begun here")
            return
        self._asked_for, self.has_asked = source.instance.content.choice.asked, True
        link.flow = self._new_flow()  # of a share of the pool, if it was divided since
        self._waiting_bytes_max = link.flow.window_bytes + 3 * BATCH_BYTES_MAX
        self.report()
        hit("receiver.before_restart")
        link.send_restart(BY_VECTOR, found.vector, found.chains)
        self.say("restart sent", by_vector=len(found.chains), last_seqno=found.last_seqno)
        source.tell("waiting for the start")
        self.drive.poke()

    def _send_restart(self, found: Reference) -> None:
        source = self.source
        source.instance.look_again()
        if not self._asks_for_rows():
            self.end("which rows are wanted here has changed")
            return
        self._asked_for = source.instance.content.choice.asked
        self.has_asked = True
        # What a filter, or a choice of partitions, has made of the first parts is told again from its beginning.
        parts = found.parts if self._filtering is None else None
        source.known(found)
        self.report()
        hit("receiver.before_restart")
        self.link.send_restart(
            found.position.last_seqno + 1,
            found.position.vector,
            found.position.chains,
            next_part=parts.next_part if parts is not None else 0,
            token=parts.token if parts is not None else 0,
            # Of one that has none yet: what goes to everybody, and no more.
            partitions=() if self._asked_for is None else self._asked_for or (PARTITION_STREAM,),
            stop_filter=source.settings.stop_source_filter,
        )
        self.say(
            "restart sent",
            next_seqno=found.position.last_seqno + 1,
            next_part=parts.next_part if parts is not None else 0,
            last_applied_seqno=found.applied_seqno,
        )
        source.tell("waiting for the start")
        self.drive.poke()

    def _started(self, event: Started) -> None:
        source, start = self.source, event.start
        if event.discards_parts:
            source.parts = None
        peer = self.link.peer
        if source.suppliers is not None and peer is not None:
            self._supplied = source.suppliers.by[peer.instance]
            self._supplied.begins(start.from_seqno, start.last_seqno)
        is_unbegun = source.instance.content.choice.is_unbegun and self._asks_for_rows()
        if is_unbegun and self._asked_for is not None:  # before anything of them is here
            asked, first = self._asked_for, start.from_seqno
            source.instance.change_subscription(lambda now: now.streaming_from(first, asked))
        if event.catalogue and not self._put_catalogue(event.catalogue, start.from_seqno):
            return
        if self._filtering is not None:
            self.drive.nursery.start_soon(self._filter, self._filtering)
        self.is_streaming = True
        self.say(
            "receiving", source=self.peer_name, from_seqno=start.from_seqno, from_part=start.from_part,
            source_last_seqno=start.last_seqno, **source.instance.content.told_partitions(self._asked_for),
        )  # fmt: skip
        source.context.status(source_host=self.guest.address)
        source.streams(self.peer_name, start.last_seqno)
        if source.instance.is_supplier:
            return
        self.drive.nursery.start_soon(self._patrol)
        self.drive.nursery.start_soon(self._lost.run)
        self.drive.nursery.start_soon(self._seeds.beside, self)

    async def _patrol(self) -> None:
        """Verify what the source tells of ranges, until cancelled."""
        source = self.source
        is_filtered = bool(source.settings.filter)
        self._verifying = Verifying(source.instance, source.found, self.log, self.peer_name, is_filtered=is_filtered)
        await self._verifying.run(lambda: source.applied_seqno, self._differs)

    def _differs(self, text: str) -> None:
        if self.source.settings.on_divergence == "stop" and not self.link.is_closed:
            self.drive.take(self.link.refuse(diverged(text)))

    def _put_catalogue(self, frame: bytes, seqno: int) -> bool:
        """What is in force at the start goes before the first batch. False when it does not verify."""
        try:
            head = check_frame(frame)
            if head.kind != Kind.CATALOGUE or head.frame_bytes != len(frame):
                raise FormatUnknownError("the source's catalogue is no CATALOGUE frame")
            if self._filtering is not None:
                frame = self._filtering.begin(frame, "receiver", trio.current_time())
        except DamagedError as error:
            self.drive.take(self.link.refuse(error))
            return False
        if len(frame) + HEAD_BYTES > min(BATCH_BYTES_MAX, self.source.pool.record_bytes_max):
            # The Update Process has what held before in its own journal, and learns the rest from the stream.
            self.log.info("catalogue left out", catalogue_bytes=len(frame))
            return True
        self._put(_Waiting(frame, seqno, seqno, 1, RecordKind.CATALOGUE))
        return True

    # Through the filter.

    async def _prepare_filter(self) -> FilteredStream | None:
        """The filter of this connection, if it is on. FilterError, NotRecoveredError, and what reading raises."""
        source = self.source
        if not source.filter.is_on:
            return None
        if source.filter.error is not None:
            await trio.sleep(FILTER_AGAIN_S)
        here = await source.find_definitions()
        return FilteredStream(source.filter, source.settings, here, self.log, self._into_pool, self._may_put)

    def _may_put(self) -> bool:
        """What a filter makes may be more than what has arrived: it waits for the pool."""
        return self._waiting_bytes <= self._waiting_bytes_max

    def _check_content(self) -> None:
        """The refusal of a source whose filters are others than those of the source before it; of any, where rows
        differ and the stream is to stop then. In a thread."""
        if self.source.settings.on_divergence == "stop":
            for one in look_at_patrolled(self.source.instance.path).different:
                raise diverged(one.brief)
        peer, directory = self.link.peer, self.source.instance.run_directory
        assert peer is not None
        known = read_content(directory)
        now = Content(peer.instance.hex(), peer.name, told_by(peer.filter, self.link.me.filter))
        if self.source.instance.content.held is not None and not self.link.can_subscribe:
            raise refusal(
                RefuseCode.TOO_OLD,
                f"{peer.name} (release {peer.release}) cannot send the partitions that are here without the others",
            )
        held = self.source.instance.content.held_rows
        if any(map(has_list, held.values())) and not self.link.can_choose_columns:
            raise refusal(
                RefuseCode.TOO_OLD,
                f"{peer.name} (release {peer.release}) cannot send the columns that are here without the others",
            )
        if held and not self.link.can_choose_rows:
            raise refusal(
                RefuseCode.TOO_OLD,
                f"{peer.name} (release {peer.release}) cannot send the rows that are here without the others",
            )
        if reason := mismatch(known, now):
            raise refusal(RefuseCode.FILTER_MISMATCH, reason)
        if now.filter:
            mark_partial(self.source.instance)  # before a transaction comes in other words than its writer's
        note_content(directory, known, now)

    async def _filter(self, filtering: FilteredStream) -> None:
        error = await filtering.run()
        if isinstance(error, FilterError):
            self._filter_failed(error)
        elif not self.link.is_closed:
            self.drive.take(self.link.refuse(error))

    def _filter_failed(self, error: FilterError) -> None:
        """The stream stops here, by name; the source comes again, and begins where nothing has come out."""
        if self.source.filter.failed(error):
            self.log.error("the filter failed", error=str(error), code=error.code)
        self.end(error.what)

    def _came(self, item: StreamItem) -> None:
        if self._filtering is None:
            self._into_pool(item)
        else:
            self._filtering.take(item)

    # Into the pool.

    def _into_pool(self, item: StreamItem) -> None:
        if isinstance(item, FrameBatch):
            self._put(_Waiting(item.data, item.first_seqno, item.last_seqno, item.count, RecordKind.FRAMES))
            if self._supplied is None:
                self.source.lag.observed(item.last_seqno, time.monotonic_ns())  # nobody waits for that
        elif isinstance(item, StreamParts):
            parts = ReceivedParts(item.seqno, item.token, item.first_part + item.count)
            self._put(_Waiting(item.frames, item.seqno, item.seqno, item.count, RecordKind.PARTS, parts))
        else:
            self._put(_Waiting(item.frame, item.seqno, item.seqno, 1, RecordKind.LARGE))

    def _knock(self) -> None:
        """Something has arrived: an Update Process that sleeps gets ready for it while it is verified here."""
        if self.is_streaming:
            self.source.doorbells.ring(self.source.pool, UPDATE_SLOT)

    def _put(self, record: _Waiting) -> None:
        self._waiting.append(record)
        self._waiting_bytes += len(record.data) + BULK_OVERHEAD_BYTES
        self._pour()

    @property
    def _pool(self) -> ReceivePool:
        """Where its records go: on a supplier into its lane, which it has before its stream begins."""
        return self.source.pool_of(self._supplied or self.source.supplied_by(self.link.peer))

    def _pour(self) -> None:
        """Put into the pool what has room there. Nothing is put under an Update Process that asks to begin again."""
        source = self.source
        if source.must_begin_anew:
            return
        pool, waiting = self._pool, self._waiting
        moved: list[_Waiting] = []
        while waiting:
            record = waiting[0]
            hit("receiver.before_offer")
            if not pool.offer(record.data, record.first_seqno, record.last_seqno, record.count, record.kind):
                break
            waiting.popleft()
            if self._supplied is not None and record.kind in (RecordKind.FRAMES, RecordKind.LARGE):
                self._supplied.received(record.last_seqno, pool.written_address, time.monotonic_ns())
            self._waiting_bytes -= len(record.data) + BULK_OVERHEAD_BYTES
            moved.append(record)
        if moved:
            source.doorbells.ring(pool, UPDATE_SLOT)
            hit("receiver.rung")
        for record in moved:
            if record.kind is not RecordKind.CATALOGUE:
                is_whole = record.kind is not RecordKind.PARTS
                source.received(record.last_seqno, record.count if is_whole else 0, len(record.data), record.parts)
        if waiting:
            self._is_waiting.set()
        self.report()

    async def _pour_again(self) -> None:
        while True:
            await self._is_waiting.wait()
            await trio.sleep(POUR_LOOK_S)
            if self._waiting:
                self._pour()
            else:
                self._is_waiting = trio.Event()

    async def _wait_for_room(self) -> None:
        """Hold a peer back that sends beyond its window, through XOFF or in crumbs: what waits here is bounded."""
        while self._is_full and self.drive.closed is None:  # noqa: ASYNC110
            await trio.sleep(POUR_LOOK_S)

    @property
    def _is_full(self) -> bool:
        return self._held_bytes > self._waiting_bytes_max or self._seeds.waiting(self) > SEED_EVENTS_MAX

    @property
    def _held_bytes(self) -> int:
        """What has arrived, and is in the pool not yet."""
        return self._waiting_bytes + (self._filtering.waiting_bytes if self._filtering is not None else 0)

    # Progress.

    def _new_flow(self) -> Flow:
        config = self.source.settings
        return Flow(self.source.pool.size_bytes, config.xoff_percent, config.xon_percent)

    def _is_wanted_otherwise(self) -> bool:
        """Whether the stream should bring other partitions, or one of them from a place that is known."""
        self._content = self.source.instance.content
        choice = self._content.choice
        if not self._asks_for_rows():
            return True
        return choice.asked != self._asked_for or (self.is_streaming and choice.is_unbegun)

    def _asks_for_rows(self) -> bool:
        """Whether our hello has named the rows that are wanted now."""
        return self.link.me.rows == packed_rows(self.source.instance.content.held_rows)

    def brings(self, partitions: tuple[int, ...]) -> bool:
        """Whether changes of these come with its stream."""
        return self._asked_for is None or set(partitions) <= set(self._asked_for)

    def report(self) -> None:
        """Tell the link how far this side is; it decides on XOFF and XON, and acknowledges."""
        link, source = self.link, self.source
        if link.is_closed:
            return
        if self.has_asked:
            source.instance.look_again()
            if source.instance.content is not self._content and self._is_wanted_otherwise():
                self.end("what is wanted here has changed")
                return
        pool = self._pool
        received = link.last_received_seqno
        applied = min(source.applied_seqno, received)
        durable = min(pool.durable_seqno, applied)
        if self._supplied is not None:  # a batch is on the disk before its regions commit
            applied = durable = self._supplied.freed(pool.read_address)
        link.report(
            ReceiverProgress(
                last_applied_seqno=applied,
                last_durable_seqno=durable,
                update_state=int(source.told_update_state),
                receiver_backlog=received - applied,
                fill_fraction=min(1.0, (pool.used_bytes + self._held_bytes) / pool.capacity),
            ),
            trio.current_time(),
        )
        if link.has_bytes_to_send:
            self.drive.poke()
        self._note_flow()
        self._count_duplicates()

    def _note_flow(self) -> None:
        is_stopped = self.link.flow.is_stopped
        if is_stopped == self._is_stopped:
            return
        self._is_stopped = is_stopped
        source = self.source
        source.statistics.count("xoff" if is_stopped else "xon")
        self.log.info(
            "XOFF sent as receive pool is above its level" if is_stopped else "XON sent",
            unprocessed_bytes=self._pool.used_bytes + self._held_bytes,
            pool_bytes=source.pool.size_bytes,
        )

    def _count_duplicates(self) -> None:
        total = self.link.duplicate_transactions
        if total != self._duplicates:
            self.source.statistics.count("duplicates", total - self._duplicates)
            self._duplicates = total

    # Ends.

    async def _watch_stop(self) -> None:
        await self.source.context.stop_requested.wait()
        self.end("the Receiver Server was stopped")

    def end(self, reason: str) -> None:
        """Say bye. What has not reached the pool is asked for again."""
        self.drive.take(self.link.bye(reason))
