"""What the Receiver Server knows of its source and its receive pool: shared by daemon, connections, seeds and figures.

Guarantees: what outlives a connection stands here, in one place, and the status line and its facts are told from here;
nobody reads the pool while another replaces it; how old our knowledge of the source is counts, not only what it said.
Leaves to others: who may connect (process.py), what happens on a connection (connection.py), from where to ask for the
stream (position.py), how a pool is opened (pool.py).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import trio
from msgspec import Struct

from receiver_server.definitions import definitions_here
from receiver_server.link import ReceiverLink
from receiver_server.patrol import PatrolFound
from receiver_server.pool import find_applied_soon
from receiver_server.position import ReceivedParts, Reference, find_applied, find_reference, find_vector
from receiver_server.returning_primary import Returning
from receiver_server.supplier_sources import SuppliedSource, SuppliedSources
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import counters, facts
from replicate.daemon.index_patrol import IndexPatrol
from replicate.daemon.last_heard import TOLD, Heard
from replicate.daemon.link_driver import Drive
from replicate.daemon.repeated_lines import Repetitions
from replicate.daemon.statistics import Lag, Statistics, short
from replicate.daemon.statistics_lines import configured_period_s
from replicate.errors import ReplicateError, RollbackNeededError
from replicate.filters.switch import FilterSwitch
from replicate.instance.file import read_file
from replicate.instance.instance import FILE_NAME, Instance
from replicate.model.clock_skew import CLOCKS, PeerClock, latest_beyond_ns
from replicate.model.contact import PERIOD_S_MAX, Known, not_told
from replicate.model.contact import known as judge
from replicate.model.transaction import TableDefinition
from replicate.model.vector import Position
from replicate.pool.doorbell import Doorbells
from replicate.pool.receive_pool import ReceivePool, lanes_in
from replicate.roles.restored_supplier import settle, turn_back
from replicate.roles.source_refusal import forget_verdict, note_verdict, verdict_of
from replicate.settings.table import ReceiverConfig
from replicate.wire.message import Heartbeat, Introduction, UpdateState

WAITING: Final = "waiting for a connection"
EMPTIED_S: Final = 30.0
"""So long a pool that is to be divided waits until what is in it is applied."""
EMPTY_LOOK_S: Final = 0.05
"""And how often it is looked whether it is."""


class ServedConnection(Protocol):
    """The connection of the accepted source, as modules that make no connections see it."""

    link: ReceiverLink
    drive: Drive
    gone: trio.Event
    """The connection is closed, and writes into the pool no more."""
    is_streaming: bool
    has_asked: bool
    clock: PeerClock

    @property
    def peer_name(self) -> str:
        """The source's name."""

    @property
    def is_stopped(self) -> bool:
        """The source was told to pause (XOFF)."""

    def brings(self, partitions: tuple[int, ...]) -> bool:
        """Whether changes of these come with its stream."""

    def report(self) -> None:
        """Tell the source how far we are."""

    def end(self, reason: str) -> None:
        """Say bye."""


class UpdateSeen(Struct):
    """What is seen of the Update Process. `region_waits`: a region waits there for its seed."""

    state: UpdateState = UpdateState.NOT_RUNNING
    region_waits: bool = False


class SourceState:
    """One source at a time, on a supplier several. Everything runs in the event loop's thread."""

    def __init__(
        self,
        context: DaemonContext,
        instance: Instance,
        pool: ReceivePool,
        returning: Returning,
        switch: FilterSwitch | None = None,
    ) -> None:
        """Takes over `pool`. `switch`: of the daemon's filter, as it was turned before."""
        self.context = context
        self.instance = instance
        self.pool = pool
        self.returning = returning
        pool.memory.note_home(instance.path)
        self.log = context.log
        self.suppliers: SuppliedSources[ServedConnection] | None = SuppliedSources() if instance.is_supplier else None
        """On a supplier: its sources, of which it has several."""
        self.filter = switch or FilterSwitch("receiver", self.settings.filter)
        self.doorbells = Doorbells(instance.run_directory)
        self.statistics = Statistics(
            configured_period_s(self.settings),
            trio.current_time(),
            seqno=pool.last_received_seqno,
            counters=counters("receiver"),
            each=self.settings.statistics_transactions,
        )
        self.lag = Lag()
        self.heard = Heard(trio.current_time(), pool.source_told_ns)
        """When the source's last bytes came; at first, when its last word came to our predecessor."""
        self.repetitions = Repetitions()
        """Of the lines of connections: a source that is refused for days does not fill the disk."""
        self.refused: Counter[str] = Counter()
        """Connections that either side has refused, by reason."""
        self.active: ServedConnection | None = None
        """The connection of the accepted source."""
        self.name = ""
        """Of the source that has streamed last."""
        self.last_seqno: int | None = None
        """The source's newest transaction, as far as we know."""
        self.parts: ReceivedParts | None = None
        """What is in the pool, or taken from it, of the large transaction that is arriving; None: nothing known."""
        self._update = UpdateSeen()
        self.listen = ""
        """Where we wait for the source."""
        self.found = PatrolFound(instance.path, IndexPatrol(instance, self.settings, context.log))
        """What the patrols have found."""
        self.activity = WAITING
        """What the daemon is doing: the first words of its status."""
        self.last_refusal = ""
        self._is_silent = False
        self._applied_seqno = pool.applied_seqno
        self._pool_lock = trio.Lock()

    @property
    def settings(self) -> ReceiverConfig:
        """Of the Receiver Server."""
        return self.context.config.receiver

    def close(self) -> None:
        """Give the pool up; what is in it stays for the Update Process. May be called twice."""
        self.doorbells.close()
        self.pool.close()

    # What a connection asks.

    @property
    def update_state(self) -> UpdateState:
        """How the Update Process was seen last."""
        return self._update.state

    @update_state.setter
    def update_state(self, state: UpdateState) -> None:
        self._update.state = state

    @property
    def is_update_running(self) -> bool:
        """Whether the Update Process was seen alive lately."""
        return self.update_state is UpdateState.RUNNING

    @property
    def told_update_state(self) -> UpdateState:
        """The state of the Update Process, as the source is told of it."""
        return UpdateState.REGION_WAITS if self._update.region_waits and self.is_update_running else self.update_state

    def look_for_waiting(self) -> None:
        """Whether a region waits for its seed, by the instance file of now."""
        self.found.look()
        with suppress(ReplicateError):  # what is wrong with the file, `status` says
            self._update.region_waits = bool(read_file(self.instance.path / FILE_NAME).waiting)

    @property
    def received_seqno(self) -> int:
        """The last transaction received whole; on a supplier, of all its sources together."""
        if self.suppliers is not None:
            return self.suppliers.received_seqno
        return self.pool.last_received_seqno

    @property
    def applied_seqno(self) -> int:
        """The last transaction that is known to be applied; on a supplier, of all its sources together."""
        if self.suppliers is not None:
            return sum(one.applied_seqno for one in self._looked_at(self.suppliers))
        return max(self._applied_seqno, self.pool.applied_seqno)

    @property
    def must_begin_anew(self) -> bool:
        """The Update Process has asked to begin again: nothing may be put into the pool before that is done."""
        return bool(self.pool.restart_requested())

    # What a connection reports.

    def entered(self, connection: ServedConnection) -> None:
        """The source of this connection is accepted."""
        self.active = connection
        self.last_refusal = ""
        if self.suppliers is not None and (peer := connection.link.peer) is not None:
            self.suppliers.entered(peer.instance, peer.name, connection)
        self.tell("waiting for the start")

    def streams(self, name: str, last_seqno: int) -> None:
        """Both sides agree on where it begins: from now on it is the source that we have, until another one is."""
        self.name = name
        self.returning.kept = None
        forget_verdict(self.instance)
        if self.instance.content.fence is not None:
            try:
                self.instance.fence_is_settled()
            except ReplicateError as error:
                self.log.warning("the fence is not taken away yet", error=str(error), code=error.code)
        self.last_seqno = last_seqno
        if last_seqno < self.lag.newest_seqno:
            self.lag = Lag()  # of another history, or of a source that had more: this one will never send that
        self.tell("receiving")

    def left(self, connection: ServedConnection) -> None:
        """An accepted source's connection has ended."""
        self._note_heard()
        self.active = None if self.suppliers is None else self.suppliers.left(connection)
        with suppress(ValueError):  # the pool was to be made again, and could not: it is what is told
            self.tell(WAITING if self.active is None else None)

    def gone(self, connection: ServedConnection, instance: bytes) -> None:
        """The supplier of this connection is gone for good: nobody waits for what it may have yet."""
        if self.suppliers is not None:
            self.suppliers.forget(instance)
            self.active = self.suppliers.left(connection)

    def was_refused(self, name: str, code: str) -> None:
        """The source has refused us: status says why no stream comes, until a source is accepted again."""
        self.last_refusal = f"; {name or 'the source'} refused the stream: {code}"

    async def keep_verdict(self, name: str, error: ReplicateError) -> None:
        """A source of that name has refused us for `error`: what it says we have more is kept for `rollback`."""
        facts = error.facts.get("peer_facts")
        if not isinstance(error, RollbackNeededError) or not isinstance(facts, dict):
            return
        verdict = verdict_of(name, self.instance.content.incarnation, facts)
        if verdict is None or verdict == self.returning.kept:
            return
        try:
            await trio.to_thread.run_sync(note_verdict, self.instance, verdict)
            self.returning.kept = verdict
            self.returning.heard(verdict)
        except ReplicateError as failed:
            self.log.warning("what the source said is not kept", error=str(failed), code=failed.code)

    def told(self, heartbeat: Heartbeat, period_ms: int) -> None:
        """What the source says of itself, as it does every `period_ms`."""
        if self.suppliers is None:
            self.last_seqno = heartbeat.last_seqno
        period_ms = min(period_ms, int(PERIOD_S_MAX * 1000))
        self.pool.note_source(heartbeat.last_seqno, heartbeat.wall_ns, time.monotonic_ns(), period_ms)

    def received(self, last_seqno: int, transactions: int, size: int, parts: ReceivedParts | None) -> None:
        """A record is in the pool."""
        self.statistics.batch(transactions, size)
        self.parts = parts
        if transactions and (self.last_seqno is None or last_seqno > self.last_seqno):
            self.last_seqno = last_seqno

    def known(self, reference: Reference) -> None:
        """From where the stream was asked for."""
        self._applied_seqno = reference.applied_seqno
        if self.pool.applied_seqno > reference.applied_seqno and self.update_state is not UpdateState.RUNNING:
            # The regions were replaced by older ones, and nobody has said so since.
            self.pool.note_applied(reference.applied_seqno, min(self.pool.durable_seqno, reference.applied_seqno))
        if self.pool.last_received_seqno != reference.position.last_seqno:
            parts = reference.parts.next_part if reference.parts is not None else 0
            self.pool.note_received(reference.position.last_seqno, parts)
        self.parts = reference.parts

    async def find_reference(self) -> Reference | None:
        """See position.py."""
        async with self._pool_lock:
            return await trio.to_thread.run_sync(find_reference, self.instance, self.pool, self.parts)

    async def find_definitions(self) -> Mapping[int, TableDefinition]:
        """See definitions.py."""
        async with self._pool_lock:
            return await trio.to_thread.run_sync(definitions_here, self.instance, self.pool)

    async def replace_pool(self) -> None:
        """Make an empty pool after what is applied (a supplier's: after nothing, until its source has said from where);
        the Update Process notices by itself."""
        async with self._pool_lock:
            self._make_pool(await find_applied_soon(self.context, self.instance))

    @property
    def _lanes_wanted(self) -> int:
        """One for each source."""
        return 1 if self.suppliers is None else len(self.suppliers.by)

    @property
    def is_pool_outdated(self) -> bool:
        """Whether somebody has taken the pool away, as a change of the role does; on a supplier, also whether it has no
        lane for a source that has come."""
        lacks_lanes = lanes_in(self.pool.memory.bytes, self._lanes_wanted) > len(self.pool.lanes)
        return lacks_lanes or not self.pool.is_current()

    async def renew_pool(self) -> None:
        """The same where the pool is outdated. Each source that streams is sent away before there is another one, and
        begins again. What is left in the pool is applied first, if that takes no longer than EMPTIED_S. Where one of
        more lanes would not fit beside that which is there, that one stays, and sources share its lanes."""
        async with self._pool_lock:
            if not self.is_pool_outdated:  # another connection was quicker
                return
            if self.pool.is_current():
                if not self.pool.can_be_divided(self.settings.pool_bytes, self._lanes_wanted):
                    self.log.warning("no room to divide the receive pool: sources share it", sources=self._lanes_wanted)
                    return
                why = "each source gets a receive pool of its own"
                self.log.info(why, sources=self._lanes_wanted)
            else:
                why = "the receive pool was removed"
                self.log.warning(why, where=str(self.pool.memory.path))
            applied = await find_applied_soon(self.context, self.instance)
            until_s = trio.current_time() + EMPTIED_S
            while True:
                while any(one.has_asked for one in self.all_connections):
                    await self.disconnect(why)
                if not self._is_emptied_by(until_s):
                    break
                await trio.sleep(EMPTY_LOOK_S)
            if self.context.stop_requested.is_set() and self.pool.is_current():
                return  # what is in it stays for the Update Process, and the next Receiver Server divides it
            self._make_pool(applied)

    def _is_emptied_by(self, until_s: float) -> bool:
        """Whether the Update Process may still apply what is in the pool by then (trio's clock): a source may be lost
        before it has sent that again."""
        is_asked_otherwise = self.must_begin_anew or self.context.stop_requested.is_set()
        is_at_work = self.is_update_running and self.pool.is_current() and not is_asked_otherwise
        return is_at_work and not self.pool.is_empty and trio.current_time() < until_s

    def _make_pool(self, applied: Position | None) -> None:
        self.parts = None
        self._applied_seqno = self._begins_after(applied)
        told, clocks = self.pool.source_note(), self.pool.clocks_note
        # Who has applied from it goes on with the next one, unless somebody has taken it away.
        update = self.pool.update_note if self.pool.is_current() else (0, 0)
        self._drop(self.pool.close)
        self.pool = ReceivePool.create(
            self.instance.content.uuid,
            configured_bytes=self.settings.pool_bytes,
            last_seqno=self._applied_seqno,
            replace=True,
            lanes=self._lanes_wanted,
        )
        self.pool.note_source(*told)
        self.pool.note_clocks(*clocks)
        self.pool.note_update_process(*update)
        self.pool.memory.note_home(self.instance.path)
        self.log.warning("receive pool made again", last_applied_seqno=self._applied_seqno)

    def _drop(self, drop: Callable[[], None]) -> None:
        """Have that drop what is in the pool. What it took from there is told by addresses, so it is noted before."""
        if self.suppliers is not None:
            self._looked_at(self.suppliers)
            self.suppliers.dropped()
        drop()

    async def begin_anew(self) -> None:
        """What was received cannot be used by the Update Process: drop it, and ask again after what is applied."""
        self.log.warning("the Update Process asks to begin again", last_received_seqno=self.pool.last_received_seqno)
        await self.disconnect("the Update Process asked to begin again")
        try:
            async with self._pool_lock:
                applied = await trio.to_thread.run_sync(find_applied, self.instance)
                self._applied_seqno = self._begins_after(applied)
                self.parts = None
                if self.pool.restart_requested():
                    self._drop(partial(self.pool.restart, self._applied_seqno))
        except ReplicateError as error:
            self.log.error("cannot begin again yet", error=str(error), code=error.code)

    def _begins_after(self, applied: Position | None) -> int:
        """A pool counts as its source does; a supplier's source has numbers of its own."""
        return applied.last_seqno if applied is not None and self.suppliers is None else 0

    async def find_vector(self, peer: Introduction) -> Position:
        """See position.py. Also raises the refusal of a supplier that is gone for good."""
        return await trio.to_thread.run_sync(find_vector, self.instance, peer)

    async def refused_own(self, error: ReplicateError) -> None:
        """A source has refused us: we lack something that it has, or no longer holds. Where that is our own, we were
        turned back: we take no writes any more, though perhaps nobody can bring it."""
        facts = error.facts.get("peer_facts")
        if self.suppliers is None or not isinstance(facts, dict):
            return
        origin, held_from = facts.get("origin"), facts.get("held_from")
        if origin != self.instance.content.origin.key or not isinstance(held_from, int):
            return
        try:
            if not await trio.to_thread.run_sync(partial(turn_back, self.instance, origin=origin, other_has=held_from)):
                return
        except ReplicateError as error:
            self.log.error("turned back, and cannot stop its writers yet", error=str(error), code=error.code)
            return
        self.log.error("this supplier was turned back to an older state: it takes no writes until all of it is back")

    def supplied_by(self, peer: Introduction | None) -> SuppliedSource | None:
        """On a supplier: what is known of that source, once it is accepted."""
        return None if self.suppliers is None or peer is None else self.suppliers.by.get(peer.instance)

    def pool_of(self, supplied: SuppliedSource | None) -> ReceivePool:
        """Where records of that source go; None: of the only one."""
        if supplied is None:
            return self.pool
        lanes = self.pool.lanes
        return lanes[supplied.lane % len(lanes)]

    def _looked_at(self, suppliers: SuppliedSources[ServedConnection]) -> list[SuppliedSource]:
        """All of them, as far as they are applied."""
        for one in (found := list(suppliers.by.values())):
            one.freed(self.pool_of(one).read_address)
        return found

    async def look_whether_restored(self) -> None:
        """On a supplier that was restored: whether all have brought back what it had."""
        suppliers = self.suppliers
        if suppliers is None:
            return
        self.instance.look_again()  # another process may have found it out
        if not self.instance.content.is_restoring:
            suppliers.is_restoring = False
            return
        if not suppliers.is_restoring:  # it has just been found out: each has to be level once more
            suppliers.is_restoring = True
            suppliers.forget_levels()
        self._looked_at(suppliers)
        from replicate.status.roles import not_level  # here, as the next: of suppliers that were restored only
        from replicate.transfer.packet.epochs_file import level_by_packets

        try:
            were_level = suppliers.were_level | level_by_packets(self.instance)
            if not were_level:
                return
            lacking = await trio.to_thread.run_sync(not_level, self.instance, were_level)
            if lacking:
                return
            if await trio.to_thread.run_sync(settle, self.instance):
                self.log.info("what this supplier had is back: it takes writes", level=sorted(were_level))
        except ReplicateError as error:
            self.log.error("takes no writes yet", error=str(error), code=error.code)

    async def disconnect(self, reason: str) -> None:
        """End the connections of accepted sources that have asked for the stream already: they come again, and are
        asked then for what is wanted."""
        for one in self.all_connections:
            if one.has_asked:
                one.end(reason)
                await one.gone.wait()

    @property
    def all_connections(self) -> list[ServedConnection]:
        """Of accepted sources: on a supplier several, on a secondary one at most."""
        if self.suppliers is not None:
            return list(self.suppliers.connections.values())
        return [] if self.active is None else [self.active]

    # What is said, and what is known.

    @property
    def _is_paused(self) -> bool:
        """Whether a source was told to pause."""
        return any(one.is_stopped for one in self.all_connections)

    def tell(self, activity: str | None = None) -> None:
        """The status line (None: as it was) and the facts that explain it."""
        self.activity = activity if activity is not None else self.activity
        known = self.known_of_source()
        text = self.activity + (self.last_refusal if self.active is None else "")
        if self.active is None and self.returning.problem:
            text += f"; {self.returning.problem}"
        if known.is_silent:
            text += "; the source is silent"
        if self.filter.error is not None:
            text += f"; {self.filter.error.what}"
        if self.update_state is not UpdateState.RUNNING:
            text += f"; the Update Process is {self.update_state.text}"
        measured = self.measured(known)
        if known.is_known:
            measured["lag_at_least_s"] = None  # the lag itself says more
        told: dict[str, Any] = {TOLD: self.pool.source_told_ns or None}
        if self.suppliers is not None:
            told["suppliers"] = self.suppliers.facts(trio.current_time(), lambda one: one.is_stopped)
        clocks = self._judge_clocks()
        if clocks or CLOCKS in self.context.facts:
            told[CLOCKS] = clocks
        self.context.status(text, **facts("receiver", measured), **self.heard.facts(), **told)
        self._tell_silence(known)

    def _judge_clocks(self) -> dict[str, int]:
        """By how many seconds the clock of each source is ahead of ours, where it is not the same. The Update Process
        is told the latest of them."""
        wall_ns, now_ns = time.time_ns(), time.monotonic_ns()
        clocks = {one.peer_name: one.clock for one in self.all_connections}
        if (beyond_ns := latest_beyond_ns(clocks.values())) is not None:
            self.pool.note_clocks(beyond_ns, now_ns)
        return {name: ahead_s for name, clock in clocks.items() if (ahead_s := clock.ahead_s(wall_ns, now_ns))}

    def measured(self, known: Known) -> dict[str, Any]:
        """The figures of daemon/figures.py, now, in the order of the status."""
        pool, active, statistics = self.pool, self.active, self.statistics
        received, applied, last = self.received_seqno, self.applied_seqno, self.last_seqno
        durable = min(pool.durable_seqno, applied)
        fill, name = pool.fullest, active.peer_name if active is not None else self.name
        if self.suppliers is not None:
            last, durable, name = self.suppliers.last_seqno, applied, self.suppliers.names
        return {
            "state": self.activity,
            "listen": self.listen,
            "is_connected": active is not None,
            "is_streaming": active is not None and active.is_streaming,
            "source": name,
            "source_last_seqno": last,
            "last_received_seqno": received,
            "last_applied_seqno": applied,
            "pool_bytes": pool.memory.bytes,
            "pool_percent": 100 * fill,
            "update_process": self.update_state.text,
            "lag_s": known.lag_s,
            "lag_at_least_s": known.lag_at_least_s,
            "heartbeat_period_s": pool.source_period_s or None,
            # The source's word may be older than what it has sent since.
            "last_written_seqno": None if last is None else max(last, received),
            "last_acknowledged_seqno": durable,
            "source_backlog": None if last is None or not known.is_known else max(0, last - received),
            "receiver_backlog": max(0, received - applied),
            "backlog": known.backlog,
            "connected": active is not None,
            "known": known.is_known,
            "paused": self._is_paused,
            "last_contact_s": self.heard.age_s(),
            "update_running": self.is_update_running,
            "pool_fill": fill,
            "transactions_total": statistics.total("transactions"),
            "bytes_total": statistics.total("bytes"),
            "xoff_total": statistics.total("xoff"),
            "refused_connections": self.refused,
            **self.found.figures(time.time_ns()),
            **self.filter.measured(),
        }

    def metrics(self) -> dict[str, Any]:
        """The figures for Prometheus."""
        return {**self.measured(self.known_of_source()), "partition_here": self.instance.content.partitions_here}

    def why_not_ready(self) -> str:
        """ "" while a source streams to it, and has said lately where it stands; else the state."""
        if self.active is None or not self.active.is_streaming:
            return self.context.text
        is_known = self.known_of_source().is_known
        return "" if is_known else not_told(self.pool.source_told_s(time.monotonic_ns()))

    def known_of_source(self) -> Known:
        """What is known now of how far this secondary lags its source."""
        self._note_heard()
        now_ns = time.monotonic_ns()
        if self.suppliers is not None:
            return self._known_of_suppliers(self.suppliers, now_ns)
        newest = max(self.last_seqno or 0, self.pool.last_received_seqno)
        self.lag.observed(newest, now_ns)
        return judge(
            is_connected=self.active is not None and self.last_seqno is not None,
            told_s=self.pool.source_told_s(now_ns),
            heard_s=self.heard.age_s(),
            period_s=self.pool.source_period_s,
            backlog=max(0, newest - self.applied_seqno),
            lag_s=self.lag.seconds(self.applied_seqno, now_ns),
            is_streaming=self.active is not None and self.active.is_streaming,
        )

    def _known_of_suppliers(self, suppliers: SuppliedSources[ServedConnection], now_ns: int) -> Known:
        """All backlogs together, and the longest lag. Known while each of them is connected that ever was, and none of
        those is silent."""
        backlog = sum(one.backlog for one in self._looked_at(suppliers))
        silent_s = suppliers.silent_s(trio.current_time())
        return judge(
            is_connected=suppliers.are_all_connected,
            told_s=self.pool.source_told_s(now_ns) if silent_s is None else silent_s,
            heard_s=self.heard.age_s() if silent_s is None else silent_s,
            period_s=self.pool.source_period_s if silent_s is None else 0.0,
            backlog=backlog,
            lag_s=suppliers.lag_s(now_ns),
            is_streaming=all(one.is_streaming for one in suppliers.connections.values()),
        )

    def _note_heard(self) -> None:
        if self.suppliers is not None:
            for instance, one in self.suppliers.connections.items():
                period_ms = 0 if one.link.peer is None else one.link.peer.heartbeat_period_ms
                self.suppliers.by[instance].heard(one.link.last_heard, period_ms / 1000)
                self.heard.at(one.link.last_heard)
        elif self.active is not None:
            self.heard.at(self.active.link.last_heard)

    def _tell_silence(self, known: Known) -> None:
        """Once when it begins, and once when it ends, be it with the connection."""
        if known.is_silent == self._is_silent:
            return
        self._is_silent = known.is_silent
        if known.is_silent:
            self.log.warning(
                "the source is silent",
                source=self.name,
                silent_s=round(self.heard.age_s() or 0.0, 3),
                lag_at_least_s=short(known.lag_at_least_s),
                backlog_at_least=known.backlog_at_least,
            )
        else:
            self.log.info("the source is silent no more", source=self.name, connected=self.active is not None)

    def sample(self) -> Known:
        """For the statistics: how bad it is at this moment."""
        known, active = self.known_of_source(), self.active
        self.statistics.sample(
            trio.current_time(),
            peaks={
                "lag_s": known.lag_at_least_s,
                "backlog": known.backlog,
                "backlog_at_least": known.backlog_at_least,
            },
            lasting={
                "cut_s": active is None,
                "silent_s": known.is_silent,
                "paused_s": self._is_paused,
            },
        )
        return known
