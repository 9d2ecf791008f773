"""One connection to the secondary, from the hello to the last word.

Guarantees: nothing is sent that is not durable here, so a crash of this host cannot leave the secondary ahead of it;
the next transactions are fetched ahead of the writer, in a thread where that means the disk, so that neither a slow
disk nor a hanging sync delays a heartbeat.
Leaves to others: sockets and the clock (replicate/daemon/link_driver.py), the protocol (link.py), what outlives a
connection (consumer_state.py), where transactions come from (reader.py).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator
from contextlib import closing
from functools import partial
from operator import ne
from typing import TYPE_CHECKING, Any, Final

import trio
import trio.lowlevel
from msgspec import Struct
from msgspec.structs import replace

from replicate.daemon.link_driver import Drive
from replicate.daemon.own_introduction import introduction
from replicate.errors import (
    DamagedError,
    FilterError,
    JournalIOError,
    JournalMissingError,
    PeerUnreachableError,
    PoolReplacedError,
    ReplicateError,
)
from replicate.filters.restating import StreamItem, StreamLarge, StreamParts
from replicate.filters.selection import PartitionSelection
from replicate.filters.switch import OFF
from replicate.filters.whose_words import told_by
from replicate.instance.file import InstanceFile
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, decode_batch, large_commit_of, read_head
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.elements import DEFINITION, left_out, misfit
from replicate.model.moment import wall_ns
from replicate.model.writers import SUPPLIER
from replicate.pool import control as word
from replicate.pool.doorbell import Doorbell
from replicate.security.authenticate import Authenticated
from replicate.system.failpoint import hit
from replicate.wire.connection import LinkSettings
from replicate.wire.event import (
    Acknowledged,
    Closed,
    Connected,
    Event,
    HandoverSaid,
    LostOffered,
    LostReceived,
    RestartRequested,
    SeedRequested,
    SeedTaken,
    SendingResumed,
    SendingStopped,
)
from replicate.wire.introduction import refusal
from replicate.wire.message import Handover, HandoverAsk, Introduction, RefuseCode, Restart
from replicate.wire.state import State
from replicate.wire.vector_refusals import BY_VECTOR
from source_server.consumer_state import PAUSED, ConsumerState
from source_server.filtering import SourceFiltering, filter_here
from source_server.handover import RoleGiver
from source_server.link import SourceLink, SourceProgress
from source_server.lost_files import LostTaking
from source_server.patrol import Patrol
from source_server.reader import POOL, StreamReader
from source_server.restart import Agreed, agree, agree_by_vector
from source_server.seed import SeedKeeper, SeedSending
from source_server.unseen_transactions import Unseen
from source_server.wanted_rows import with_rows

if TYPE_CHECKING:
    from source_server.wanted_rows import Selection

LAST_WORD_S: Final = 3.0
"""So long a stop waits for the peer's word that what it has received is durable there: it comes once a second."""
STATE_S: Final = 1.2
"""So old what a peer has said of its Update Process may be: one that was just started is not known of."""

FLUSHED_S: Final = 0.02
"""So long we leave the flush of a transaction to the process that has committed it."""


class LargePiece(Struct, frozen=True):
    """Some parts of a large transaction; or its commit frame (`count` 0, `first_part` = number of parts)."""

    seqno: int
    token: int
    first_part: int
    count: int
    data: bytes


class SourceConnection:
    """One connection. `run` it once."""

    def __init__(
        self,
        consumer: ConsumerState,
        seeds: SeedKeeper,
        giver: RoleGiver,
        doorbell: Doorbell,
        peer: Authenticated,
        hello_by: float,
    ) -> None:
        """Takes over the peer's stream. Committers ring the `doorbell`. `hello_by` (trio's clock): when the peer's
        hello must be here."""
        self.consumer = consumer
        self.failure: ReplicateError | None = None
        """What ends the daemon: damage in our own journal, a failed disk."""
        self.filter_failure: FilterError | None = None
        """Of the filter, which has ended the connection."""
        self._seeds = seeds
        self._giver = giver
        self._doorbell = doorbell
        self._committers_flush = consumer.context.config.journal.durability == "durable"
        """A process that commits flushes, and rings when that is done."""
        config = consumer.settings
        settings = LinkSettings(
            heartbeat_period_s=config.heartbeat_period_s,
            dead_after_s=config.dead_after_s,
            hello_timeout_s=max(0.001, hello_by - trio.current_time()),
            expected_peer=consumer.peer_name,
            proven=peer.names,
            compression=config.compression,
        )
        filters = told_by(filter_here(consumer.instance), consumer.filter.looked_at(config.filter_format))
        me = introduction(consumer.instance, config.heartbeat_period_s, filters, consumer.takeovers, is_source=True)
        self.link = SourceLink(settings, me, trio.current_time(), time.time_ns())
        self.drive = Drive(
            self.link, peer.stream, self._event, before_write=self._send_next, before_tick=self._report_progress
        )
        self._lost = LostTaking(consumer, self.link, self.drive)
        self._streaming = trio.Event()
        self._agreed: Agreed | None = None
        self._filtering: SourceFiltering | None = None
        self._selection: Selection | None = None
        self._content: InstanceFile | None = consumer.instance.content
        """The instance file, as it was read last; None: what was done by it is to be looked at again."""
        self._choice, self._names = self._chosen_by(), consumer.instance.content.partitions.names
        """What of it the stream was begun by, and what it called the partitions when the hello was made."""
        self._seed: SeedSending | None = None
        self._is_seeds_turn = False
        self._counted = (0, 0, 0)
        # Rendezvous: one batch waits here while the one before it is on its way.
        self._give, self._take = trio.open_memory_channel[FrameBatch | LargePiece](1)
        self._offered = 0
        """How many wait there, or before it."""

    @property
    def has_streamed(self) -> bool:
        """The stream was agreed upon."""
        return self._streaming.is_set()

    async def run(self) -> Closed:
        """Until the link is closed, by whichever side."""
        try:
            return await self.drive.run(self._doorbell.keep_looking, self._stream, self._watch_stop, self._watch_mode)
        finally:
            self._giver.left()

    @property
    def can_exchange_roles(self) -> bool:
        """The stream runs, and the peer knows how."""
        return self.link.can_exchange_roles

    def say_handover(self, message: HandoverAsk | Handover) -> None:
        """Say something about an exchange of roles, now."""
        self.link.say_handover(message)
        self.drive.poke()

    # Events.

    def _event(self, event: Event) -> None:
        consumer = self.consumer
        match event:
            case Connected(peer):
                self._connected(peer)
            case RestartRequested(restart):
                consumer.tell("searching for restart")
                self.drive.nursery.start_soon(self._agree, restart)
            case SeedRequested(request):
                self._seed = SeedSending(self.link, self.drive, self._seeds, request)
                self.drive.nursery.start_soon(self._seed.run)
            case HandoverSaid(message):
                self._giver.heard(message)
            case SeedTaken(seed):
                self._seed = None
                self.drive.nursery.start_soon(self._seeds.drop, seed)
                if self.link.state is State.WAITING_FOR_RESTART:
                    consumer.tell("waiting for restart")
            case LostOffered() | LostReceived():
                self.drive.nursery.start_soon(self._lost.heard, event)
            case SendingStopped(reason, free_bytes):
                # A peer may pause us again and again, and say what it likes.
                consumer.say("XOFF received", text=reason, free_bytes=free_bytes)
                consumer.statistics.count("xoff")
                consumer.tell(PAUSED)
            case SendingResumed(free_bytes):
                consumer.say("XON received", free_bytes=free_bytes)
                consumer.tell("sending")
            case Acknowledged():
                consumer.acknowledged(event)
            case _:
                pass

    def _connected(self, peer: Introduction) -> None:
        consumer = self.consumer
        instance = peer.instance.hex()
        protocol = str(self.link.protocol)
        filters: dict[str, Any] = {"filter": peer.filter} if peer.filter else {}
        consumer.say(
            "peer introduced", instance, peer_instance=instance, release=peer.release, protocol=protocol, **filters
        )
        failed = str(consumer.context.facts.get("last_error") or "")
        # It is reached now. What it has refused stands until the stream begins: it may refuse that again.
        is_over = failed.startswith(f"{PeerUnreachableError.code}: ")
        consumer.tell("waiting for restart", **({"last_error": None} if is_over else {}))
        try:
            consumer.met(peer.instance)
        except ReplicateError as error:
            self.drive.take(self.link.refuse(error))

    async def _agree(self, restart: Restart) -> None:
        consumer = self.consumer
        if restart.stop_filter and consumer.filter.is_on:
            consumer.filter.obey(OFF)
            consumer.log.warning("the peer has asked for the stream without the filter", filter=consumer.filter.told)
        try:
            if restart.next_seqno == BY_VECTOR:
                agreed = await self._agree_by_vector(restart)
            else:
                agreed = await trio.to_thread.run_sync(agree, consumer.door, restart)
            agreed = self._select(agreed, restart)
            if consumer.filter.is_on:
                agreed = await self._through_filter(agreed)
        except PoolReplacedError:
            raise
        except FilterError as error:
            self._filter_failed(error)
            return
        except ReplicateError as error:
            self._failed(error)
            return
        if self.drive.closed is not None:
            return
        await consumer.begins_at(agreed.from_seqno)
        hit("source.begun")
        if self.drive.closed is not None:
            return
        self._report_progress()
        self.link.start(agreed.from_seqno, agreed.from_part, agreed.catalogue)
        self._agreed = agreed
        consumer.progress.last_sent_seqno = agreed.from_seqno - 1
        some = consumer.instance.content.told_partitions(restart.partitions)
        consumer.say("streaming", from_seqno=agreed.from_seqno, from_part=agreed.from_part, **some)
        consumer.tell("sending", last_error=None)
        if self._filtering is not None:
            self.drive.nursery.start_soon(self._filter, self._filtering)
        self._streaming.set()
        if agreed.unseen is None:  # a supplier has what is its own, too, at the same place of our journal
            goes = None if self._selection is None else self._selection.goes_whole
            self.drive.nursery.start_soon(Patrol(consumer, self.link, self.drive, goes).run)
        self.drive.poke()
        self._giver.streams(self)

    async def _agree_by_vector(self, restart: Restart) -> Agreed:
        """With another supplier. Raises the refusal."""
        peer, consumer = self.link.peer, self.consumer
        assert peer is not None
        if not consumer.instance.is_supplier or peer.role != SUPPLIER:
            raise refusal(RefuseCode.WRONG_ROLE, f"{peer.name} is {peer.role}, and asks for a stream by its vector")
        if consumer.filter.is_on:
            raise refusal(
                RefuseCode.FILTER_MISMATCH,
                f"{consumer.instance.name} has a filter, and suppliers send all that they have",
            )
        return await trio.to_thread.run_sync(agree_by_vector, consumer.door, restart, peer)

    def _select(self, agreed: Agreed, restart: Restart) -> Agreed:
        """The same start, of what the peer wants and may have."""
        instance = self.consumer.instance
        known = instance.partitions_now()
        self._content, self._choice = None, self._chosen_by()
        held = instance.content.holds
        if lacks := [one for one in restart.partitions if one == PARTITION_NONE or not held(one)]:
            raise refusal(
                RefuseCode.PARTITION_REFUSED,
                f"{instance.name} {instance.told_held or 'has nothing of that'}, not partition "
                f"{', '.join(map(known.name, lacks))}",
            )
        if late := instance.content.choice.lacking_below(restart.partitions, restart.next_seqno):
            raise refusal(
                RefuseCode.PARTITION_REFUSED,
                f"{instance.name} has partition {', '.join(map(known.name, late))} in its journal from transaction "
                f"{max(instance.content.streamed[one] for one in late)} on, and not from {restart.next_seqno}: there, "
                "remove it, add it and load it again",
            )
        peer = instance.peer(self.consumer.peer_name)
        more = [number for number in restart.partitions if not peer.may_have(number)]
        if more or (peer.partitions is not None and not restart.partitions):
            may = ", ".join(map(known.name, peer.partitions or ()))
            raise refusal(
                RefuseCode.PARTITION_REFUSED,
                f"{peer.name} may have partition {may} of {instance.name}, and asks for "
                + (", ".join(map(known.name, more)) or "all"),
            )
        if instance.content.held is not None and not restart.partitions:
            raise refusal(
                RefuseCode.PARTITION_REFUSED,
                f"{instance.name} {instance.told_held}, and cannot send all of them",
            )
        wants = (PARTITION_STREAM, *restart.partitions).__contains__
        self.consumer.reading.wants = wants if restart.partitions else partial(ne, PARTITION_NONE)
        if restart.partitions and (element := misfit(known.elements, wants)):
            raise refusal(
                RefuseCode.PARTITION_REFUSED,
                f"{peer.name} asks for {element} (partition {known.name(known.place_of(element))}), and not for "
                f"DEFINITION (partition {known.name(known.place_of(DEFINITION))}), without which it makes no sense",
            )
        if restart.partitions and left_out(known.elements, wants) and not self.link.can_leave_out_elements:
            raise refusal(
                RefuseCode.TOO_OLD,
                f"{peer.name} does not ask for {left_out(known.elements, wants)[0]}, and its release knows no "
                "definitions without that",
            )
        definitions = agreed.known.newest().definitions
        # An instance that was made primary has never put a table there itself.
        keeps_back = known.keeps_back or any(one.partition == PARTITION_NONE for one in definitions.values())
        chosen = restart.partitions or keeps_back
        partitions = PartitionSelection(restart.partitions or None, definitions) if chosen else None
        assert self.link.peer is not None
        is_filtered = self.consumer.filter.is_on
        self._selection = with_rows(instance, self.link.peer, definitions, partitions, is_filtered=is_filtered)
        if self._selection is None:
            return agreed
        self.consumer.reading.kept_back.begin(partitions)
        # What goes of the first parts of a large transaction is told again from its beginning.
        return replace(agreed, from_part=0)

    def _chosen_by(self) -> tuple[object, ...]:
        """What decides what goes: the partitions that there are, what is held here, what the peer may have."""
        content, name = self.consumer.instance.content, self.consumer.peer_name
        bound = next((one.partitions for one in content.peers if one.name == name), None)
        return content.partitions, content.held_from, bound

    def _is_chosen_otherwise(self) -> bool:
        """Whether that, or a partition's name, is not so any more, now that something of the instance is not."""
        self._content = self.consumer.instance.content
        return self._chosen_by() != self._choice or self._content.partitions.names != self._names

    async def _through_filter(self, agreed: Agreed) -> Agreed:
        """The same start, of what the filter makes. FilterError, ConfigurationError."""
        consumer = self.consumer
        self._filtering = SourceFiltering(
            consumer.filter, consumer.settings, consumer.instance, consumer.log, self._offer_item
        )
        catalogue = await trio.to_thread.run_sync(self._filtering.begin, agreed.catalogue, trio.current_time())
        # What the filter has made of the first parts is told again from its beginning.
        return replace(agreed, catalogue=catalogue, from_part=0)

    async def _filter(self, filtering: SourceFiltering) -> None:
        error = await filtering.run()
        if isinstance(error, FilterError):
            self._filter_failed(error)
        else:
            self._failed(error)

    def _filter_failed(self, error: FilterError) -> None:
        """The stream stops here, by name; the next connection begins where nothing has come out."""
        self.filter_failure = error
        if self.consumer.filter.failed(error):
            self.consumer.log.error("the filter failed", error=str(error), code=error.code)
        self.drive.take(self.link.bye(error.what))

    async def _offer_item(self, item: StreamItem) -> None:
        if isinstance(item, FrameBatch):
            await self._offer(item)
        elif isinstance(item, StreamParts):
            await self._offer(LargePiece(item.seqno, item.token, item.first_part, item.count, item.frames))
        else:
            token, part_count, *_ = large_commit_of(decode_batch(item.frame, count=1)[2])
            await self._offer(LargePiece(item.seqno, token, part_count, 0, item.frame))

    def _failed(self, error: ReplicateError) -> None:
        """Tell the peer. What is wrong with our own journal or disk ends the daemon; a refusal, and what was pruned, do
        not."""
        is_refusal = "reason" in error.facts
        is_ours = isinstance(error, DamagedError | JournalIOError) and not isinstance(error, JournalMissingError)
        if is_ours and not is_refusal:
            self.failure = error
        if self.drive.closed is None:
            self.drive.take(self.link.refuse(error))

    # Sending.

    def _report_progress(self) -> None:
        words = self.consumer.words
        self.link.report(
            SourceProgress(words[word.LAST_SEQNO], words[word.LAST_DURABLE_SEQNO], words[word.LAST_COMMIT_WALL_NS])
        )

    def _send_next(self) -> None:
        """The writer is free: give the link what was fetched, if it may go."""
        # A seed of regions and the stream take turns.
        self._is_seeds_turn = not self._is_seeds_turn
        if self._seed is not None and (self._is_seeds_turn or not self._offered):
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

    def _send(self, item: FrameBatch | LargePiece) -> bool:
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

    def _note_sent(self, item: FrameBatch | LargePiece) -> None:
        """What need not be known before it leaves."""
        consumer = self.consumer
        transactions = item.count
        if isinstance(item, FrameBatch):
            consumer.saw(item.first_seqno, wall_ns(read_head(item.data).csn))
        else:
            transactions = 0 if item.count else 1
        consumer.statistics.batch(transactions, len(item.data))
        consumer.progress.last_sent_seqno = self.link.last_sent_seqno
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

    def _reader(self, agreed: Agreed) -> StreamReader:
        consumer = self.consumer
        return StreamReader(
            consumer.door, agreed.from_seqno, self._switched, place=consumer.reading.place, index=agreed.index
        )

    async def _fetch(self, reader: StreamReader, agreed: Agreed) -> None:
        consumer = self.consumer
        limit = consumer.settings.batch_bytes
        # Asked once, not of each transaction: each call counts where one comes alone (bench_latency).
        knows_all_kinds, instance = self.link.knows_all_kinds, consumer.instance
        pass_on = self._offer if self._filtering is None else partial(self._pass_on, self._filtering)
        while True:
            found: FrameBatch | LargeTransaction | None
            if reader.needs_files:
                found = await trio.to_thread.run_sync(reader.read, limit)
            else:
                found = reader.poll(limit)
            self._count(reader)
            if found is None:
                await self._doorbell.sleep(lambda: reader.has_news)
                continue
            instance.look_again()
            if instance.content is not self._content and self._is_chosen_otherwise():
                self.begin_again("which partitions go to this peer has changed")
                return
            last = found.last_seqno if isinstance(found, FrameBatch) else found.seqno
            if consumer.words[word.LAST_DURABLE_SEQNO] < last:
                await self._wait_durable(last)
            selection, unseen = self._selection, agreed.unseen
            if unseen is not None:
                found = self._unseen(unseen, found)
            if isinstance(found, FrameBatch):
                if selection is not None:
                    found = self._selected(selection, found)
                if not knows_all_kinds:
                    self.link.check_known(found.data)
                await pass_on(found)
                if selection is not None:
                    selection.check()
                continue
            if selection is not None:
                if not selection.takes_whole(found.commit_frame, found.partitions):
                    await self._pass_selected(selection, found)
                    continue
                await trio.to_thread.run_sync(selection.learn_large, found.parts)
                self._count_large(found)
            self.link.check_known(found.commit_frame)
            from_part = agreed.from_part if found.seqno == agreed.from_seqno else 0
            with closing(_pieces(found, from_part, limit)) as pieces:
                while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
                    await pass_on(piece)

    @staticmethod
    def _unseen(unseen: Unseen, found: FrameBatch | LargeTransaction) -> FrameBatch | LargeTransaction:
        """What of it the other supplier lacks."""
        if isinstance(found, FrameBatch):
            return unseen.take(found)
        return unseen.takes_large(found)

    def _selected(self, selection: Selection, batch: FrameBatch) -> FrameBatch:
        """What of it goes."""
        before = selection.kept_back
        made = selection.take(batch)
        self.consumer.reading.kept_back.note(selection.kept_back - before, len(batch.data) - len(made.data))
        return made

    def _count_large(self, large: LargeTransaction) -> None:
        partitions = self.consumer.reading.kept_back.partitions
        if partitions is not None:
            partitions.count(large.partitions, large.payload_bytes)

    async def _pass_selected(self, selection: Selection, large: LargeTransaction) -> None:
        """What goes of a large transaction."""
        before = selection.kept_back
        self._count_large(large)
        with closing(selection.large(large.commit_frame, large.parts(), secrets.randbits(64))) as items:
            while (item := await trio.to_thread.run_sync(next, items, None)) is not None:
                if not isinstance(item, StreamParts):
                    self.link.check_known(item.data if isinstance(item, FrameBatch) else item.frame)
                if self._filtering is None:
                    await self._offer_item(item)
                else:
                    await self._filtering.take(item)
        self.consumer.reading.kept_back.note(selection.kept_back - before, 0)

    @staticmethod
    async def _pass_on(filtering: SourceFiltering, item: FrameBatch | LargePiece) -> None:
        if isinstance(item, FrameBatch):
            await filtering.take(item)
        elif item.count:
            await filtering.take(StreamParts(item.seqno, item.token, item.first_part, item.count, item.data))
        else:
            await filtering.take(StreamLarge(item.seqno, item.data))

    async def _wait_durable(self, seqno: int) -> None:
        """Until it is on our disk. Where committers flush, the one that does rings, and nothing else is quicker; where
        they do not, or the one that should has died, we flush."""
        consumer, words = self.consumer, self.consumer.words
        if self._committers_flush and await self._doorbell.wait(
            lambda: words[word.LAST_DURABLE_SEQNO] >= seqno, FLUSHED_S
        ):
            return
        await trio.to_thread.run_sync(consumer.door.wait_durable, seqno, abandon_on_cancel=True)

    async def _offer(self, item: FrameBatch | LargePiece) -> None:
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
        self.consumer.log.info(text, next_seqno=next_seqno)

    def _count(self, reader: StreamReader) -> None:
        self.consumer.reading.place = reader.place
        now = (reader.transactions_from_pool, reader.transactions_from_files, reader.switches)
        if now != self._counted:
            was, self._counted = self._counted, now
            reading = self.consumer.reading
            reading.from_pool += now[0] - was[0]
            reading.from_files += now[1] - was[1]
            reading.switches += now[2] - was[2]

    # The stop.

    async def _watch_stop(self) -> None:
        """Drain: what was committed when the stop was asked for is still sent, as long as the peer takes it. Where it
        applies what it takes, its word that all is durable is waited for: a release of our region goes by that."""
        consumer = self.consumer
        await consumer.context.stop_requested.wait()
        last = consumer.words[word.LAST_SEQNO]
        if self._streaming.is_set():
            consumer.tell("stopping: sending what is left")
        while self._streaming.is_set() and consumer.progress.last_received_seqno < last:
            await consumer.progressed.wait()
        known_s = trio.current_time() + STATE_S
        with trio.move_on_after(LAST_WORD_S):
            while self._streaming.is_set() and consumer.position.acknowledged_seqno < last:
                with trio.CancelScope() if consumer.progress.is_applied_there else trio.move_on_at(known_s) as scope:
                    await consumer.progressed.wait()
                if scope.cancelled_caught:
                    break
        self.drive.take(self.link.bye("the Source Server was stopped"))

    def begin_again(self, reason: str) -> None:
        """Say bye: the next connection begins at the border of two transactions."""
        self.drive.take(self.link.bye(reason))

    async def _watch_mode(self) -> None:
        """What was committed since stays here: writers go on, and nobody knows for how long."""
        await self.consumer.mode.until_passive()
        self.drive.take(self.link.bye("the Source Server was deactivated"))


def _pieces(large: LargeTransaction, first_part: int, limit: int) -> Generator[LargePiece]:
    """The parts of a large transaction from `first_part` on, as many together as fit `limit` bytes; its commit frame
    last."""
    waiting: list[bytes] = []
    size, number = 0, first_part
    for frame in large.parts(first_part):
        if waiting and size + len(frame) > limit:
            yield LargePiece(large.seqno, large.token, number, len(waiting), b"".join(waiting))
            number += len(waiting)
            waiting, size = [], 0
        waiting.append(frame)
        size += len(frame)
    if waiting:
        yield LargePiece(large.seqno, large.token, number, len(waiting), b"".join(waiting))
        number += len(waiting)
    yield LargePiece(large.seqno, large.token, number, 0, large.commit_frame)
