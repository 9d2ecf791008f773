"""The Receiver Server: waits for the source, and puts what it sends into the receive pool.

Guarantees: one source at a time, a second is refused by name and the first does not notice; nothing enters the pool
that the link has not verified; the pool outlives connections and this daemon, so what has arrived is not asked for
again; a source is told what is applied and durable within a second. The Update Process is watched, and its absence is
said repeatedly; it is never started.
Refuses to know: what happens on a connection (connection.py), what is in a transaction, how it is applied.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final

import trio

from receiver_server.connection import Connection
from receiver_server.figures import figures, why_not_ready
from receiver_server.gate import Gate
from receiver_server.position import Parts, Reference, find_applied, find_reference
from receiver_server.seed import Seeds
from replicate.config import Address, parse_address
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.repetition import Repetitions
from replicate.errors import (
    BusyError,
    DamagedError,
    FormatUnknownError,
    NotFoundError,
    PermissionRefusedError,
    PoolReplacedError,
    ReplicateError,
    TryAgainError,
    WrongInstanceError,
)
from replicate.instance.instance import Instance
from replicate.listening import listen
from replicate.metrics.gauges import no_figures
from replicate.metrics.statistics import Lag, Statistics
from replicate.pool.doorbell import Doorbells
from replicate.pool.receive_pool import ReceivePool
from replicate.security.authenticate import LISTEN, Authenticated, Authenticator
from replicate.vector import Position
from replicate.wire.message import Heartbeat, UpdateState

LOOK_S: Final = 0.25
"""How often the Update Process's words are looked at; the link tells the source at most once a second."""
POOL_LOOK_S: Final = 5.0
REGION_BUSY_S: Final = 30.0
"""A WAL of 64 MiB is recovered in less than a second, and checkpointed within some, by a slow disk."""
BUSY_LOOK_S: Final = 1.0
ALARM_PERIOD_S: Final = 10.0
UPDATE_DEAD_AFTER_S: Final = 5.0
WAITING: Final = "waiting for a connection"
_UNUSABLE: Final = (PoolReplacedError, TryAgainError, DamagedError, FormatUnknownError, WrongInstanceError)


async def serve(context: DaemonContext) -> None:
    """Run until the stop is requested. Raises what opening the instance and listening raise."""
    instance = Instance.open(context.instance_path)
    if instance.role != "secondary":
        raise PermissionRefusedError(
            f"instance {instance.name} is {instance.role}: only a secondary receives",
            where=str(instance.path),
            do="Run the Receiver Server on the secondary",
        )
    wanted = parse_address(context.config.receiver.listen, where=LISTEN)
    authenticator = Authenticator(instance, context.config, context.log)
    authenticator.check(wanted, where=LISTEN, is_receiver=True)
    listeners, address = await listen(context.config.receiver.listen, where=LISTEN)
    try:
        with closing(authenticator):
            pool = await _open_pool(context, instance)
            with closing(Receiver(context, instance, pool, authenticator, authenticator.needs_tls(wanted))) as receiver:
                await receiver.run(listeners, address)
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


async def _open_pool(context: DaemonContext, instance: Instance) -> ReceivePool:
    """The pool that is there, with all that has arrived; a new one when there is none, or none that can be used."""
    try:
        pool = ReceivePool.open_producer(instance.content.uuid)
    except NotFoundError:
        replace = False
    except _UNUSABLE as error:
        context.log.warning("receive pool made anew", error=str(error), code=error.code)
        replace = True
    else:
        context.log.info("receive pool found", pool_bytes=pool.memory.bytes, used_bytes=pool.used_bytes)
        return pool
    applied = await _find_applied(context, instance)
    return ReceivePool.create(
        instance.content.uuid,
        configured_bytes=context.config.receiver.pool_bytes,
        last_seqno=applied.last_seqno if applied is not None else 0,
        replace=replace,
    )


async def _find_applied(context: DaemonContext, instance: Instance) -> Position | None:
    """What is applied, as soon as a region can be read: who opens it first after a crash, or closes it last, keeps
    readers out while it goes through the WAL. BusyError when that takes longer than REGION_BUSY_S."""
    limit_s = trio.current_time() + REGION_BUSY_S
    while True:
        try:
            return await trio.to_thread.run_sync(find_applied, instance)
        except BusyError as error:
            if trio.current_time() >= limit_s:
                raise
            context.status("waiting for a region that another process keeps to itself")
            context.log.warning("a region can not be read yet", error=str(error), code=error.code)
        await trio.sleep(BUSY_LOOK_S)


class Receiver:
    """The daemon between connections."""

    def __init__(
        self, context: DaemonContext, instance: Instance, pool: ReceivePool, authenticator: Authenticator, is_tls: bool
    ) -> None:
        """Takes over `pool`. `is_tls`: whether connections speak TLS."""
        self.context = context
        self.instance = instance
        self.pool = pool
        pool.memory.note_home(instance.path)
        self.log = context.log
        self.settings = context.config.receiver
        self.doorbells = Doorbells(instance.run_directory)
        self.statistics = Statistics(
            self.settings.statistics_period_s, trio.current_time(), seqno=pool.last_received_seqno
        )
        for name in ("xoff", "xon", "duplicates"):
            self.statistics.count(name, 0)
        self.lag = Lag()
        self.repetitions = Repetitions()
        """Of the lines of connections: a source that is refused for days does not fill the disk."""
        self.seeds = Seeds(self)
        self.active: Connection | None = None
        """The connection of the accepted source."""
        self.parts: Parts | None = None
        """What is in the pool, or taken from it, of the large transaction that is arriving; None: nothing known."""
        self.update_state = UpdateState.NOT_RUNNING
        self.source_last_seqno: int | None = None
        self.last_contact_s: float | None = None
        """On trio's clock: when the source was last heard of."""
        self.refused: Counter[str] = Counter()
        """Connections that either side has refused, by reason."""
        self.source_name = ""
        self._listen = ""
        self._state = WAITING
        self._gate = Gate(self.settings.connections_max, self.settings.connections_per_address_max)
        self.authenticator = authenticator
        self._is_tls = is_tls
        self._unheard: set[trio.CancelScope] = set()
        self._last_refusal = ""
        self._applied_seqno = pool.applied_seqno
        self._started_s = trio.current_time()
        self._next_alarm_s = self._started_s + UPDATE_DEAD_AFTER_S
        self._next_pool_look_s = self._started_s
        self._pool_lock = trio.Lock()

    def close(self) -> None:
        """Give the pool up; what is in it stays for the Update Process. May be called twice."""
        self.doorbells.close()
        self.pool.close()

    async def run(self, listeners: list[trio.SocketListener], address: Address) -> None:
        """Serve until the stop is requested and the source, if there is one, has been told."""
        self._listen = str(address)
        self._look_at_update_process()
        await self.seeds.listen()
        self.tell(WAITING)
        self.context.figures, self.context.why_not_ready = partial(figures, self), partial(why_not_ready, self)
        self.context.ready(f"{WAITING} on {address}")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_house)
                nursery.start_soon(self._report)
                nursery.start_soon(self.seeds.serve)
                async with trio.open_nursery() as connections:
                    accepting = trio.CancelScope()
                    connections.start_soon(self._accept, listeners, connections, accepting)
                    await self.context.stop_requested.wait()
                    accepting.cancel()
                    for scope in self._unheard:
                        scope.cancel()
                nursery.cancel_scope.cancel()
        finally:
            self.context.figures = no_figures
            with suppress(ValueError):  # the pool was to be made anew, and could not
                self.pool.note_receiver(0, 0, connected=False)
        self.tell("stopped")

    async def _accept(
        self, listeners: list[trio.SocketListener], connections: trio.Nursery, scope: trio.CancelScope
    ) -> None:
        with scope:
            # Survives EMFILE and its kin: it waits a moment and accepts again.
            await trio.serve_listeners(self._connected, listeners, handler_nursery=connections)

    async def _connected(self, stream: trio.SocketStream) -> None:
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        where = f"{host}:{port}"
        refusal = self._gate.enter(host)
        if refusal:
            self.refused[refusal] += 1
            self.repetitions.line(
                self.log.warning, trio.current_time(), "connection closed unheard", host, refusal, where=where,
                reason=refusal, connections=self._gate.connections,
            )  # fmt: skip
            await trio.aclose_forcefully(stream)
            return
        try:
            hello_by = trio.current_time() + self.settings.hello_timeout_s
            peer = await self._authenticate(stream, host, where, hello_by)
            if peer is not None:
                connection = Connection(self, peer, where, hello_by)
                connection.say("connection made", host)
                await connection.run()
        finally:
            self._gate.leave(host)

    async def _authenticate(
        self, stream: trio.SocketStream, host: str, where: str, hello_by: float
    ) -> Authenticated | None:
        """None when the peer was not let in, or the stop came meanwhile; the connection is closed then."""
        with trio.CancelScope() as scope:
            self._unheard.add(scope)
            try:
                return await self.authenticator.source(stream, is_tls=self._is_tls, deadline=hello_by)
            except ReplicateError as error:
                reason = str(error.facts.get("reason", error.code))
                self.refused[reason] += 1
                self._last_refusal = f"; {host} was refused: {reason}"
                self.seeds.not_let_in(error, where)
                self.repetitions.line(
                    self.log.warning, trio.current_time(), "connection refused", host, reason, where=where,
                    reason=reason, error=str(error), code=error.code,
                )  # fmt: skip
            finally:
                self._unheard.discard(scope)
        return None

    # What a connection asks and tells.

    @property
    def is_update_running(self) -> bool:
        """Whether the Update Process was seen alive lately."""
        return self.update_state is UpdateState.RUNNING

    @property
    def applied_seqno(self) -> int:
        """The last transaction that is known to be applied."""
        return max(self._applied_seqno, self.pool.applied_seqno)

    @property
    def must_begin_anew(self) -> bool:
        """The Update Process has asked to begin anew, and nobody may put anything into the pool before that is done."""
        return bool(self.pool.restart_requested())

    def entered(self, connection: Connection) -> None:
        """The source of this connection is accepted."""
        self.active = connection
        self._last_refusal = ""
        self.last_contact_s = trio.current_time()
        self.tell("waiting for the start")

    def streams(self, connection: Connection, source_last_seqno: int) -> None:
        """Both sides agree on where it begins: from now on it is the source that we have, until another one is."""
        self.source_name = connection.peer_name
        self.source_last_seqno = source_last_seqno
        if source_last_seqno < self.lag.newest_seqno:
            self.lag = Lag()  # of another history, or of a source that had more: this one will never send that
        self.tell("receiving")

    def left(self) -> None:
        """The accepted source's connection has ended."""
        self.active = None
        self.tell(WAITING)

    def was_refused(self, source_name: str, code: str) -> None:
        """The source has refused us: status says why no stream comes, until a source is accepted again."""
        self._last_refusal = f"; {source_name or 'the source'} refused the stream: {code}"

    def heard(self, heartbeat: Heartbeat) -> None:
        """What the source says of itself."""
        self.source_last_seqno = heartbeat.last_seqno
        self.last_contact_s = trio.current_time()
        self.pool.note_source(heartbeat.last_seqno, heartbeat.last_commit_wall_ns)

    def received(self, last_seqno: int, transactions: int, size: int, parts: Parts | None) -> None:
        """A record is in the pool."""
        self.last_contact_s = trio.current_time()
        self.statistics.batch(transactions, size)
        self.parts = parts
        if transactions and (self.source_last_seqno is None or last_seqno > self.source_last_seqno):
            self.source_last_seqno = last_seqno

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

    async def replace_pool(self) -> None:
        """Make an empty pool behind what is applied; the Update Process notices by itself."""
        async with self._pool_lock:
            applied = await _find_applied(self.context, self.instance)
            self.parts = None
            self._applied_seqno = applied.last_seqno if applied is not None else 0
            self.pool.close()
            self.pool = ReceivePool.create(
                self.instance.content.uuid,
                configured_bytes=self.settings.pool_bytes,
                last_seqno=self._applied_seqno,
                replace=True,
            )
            self.pool.memory.note_home(self.instance.path)
        self.log.warning("receive pool made anew", last_applied_seqno=self._applied_seqno)

    def tell(self, state: str | None = None) -> None:
        """The status line (None: as it was) and the facts behind it."""
        self._state = state if state is not None else self._state
        pool, active = self.pool, self.active
        text = self._state + (self._last_refusal if active is None else "")
        if self.update_state is not UpdateState.RUNNING:
            text += f"; the Update Process is {self.update_state.text}"
        facts: dict[str, Any] = {
            "state": self._state,
            "listen": self._listen,
            "is_connected": active is not None,
            "source": self.source_name,
            "source_last_seqno": self.source_last_seqno,
            "last_received_seqno": pool.last_received_seqno,
            "last_applied_seqno": self.applied_seqno,
            "pool_bytes": pool.memory.bytes,
            "pool_percent": round(100 * pool.fill_fraction, 1),
            "update_process": self.update_state.text,
            "lag_s": self.lag_s(),
        }
        self.context.status(text, **facts)

    def lag_s(self) -> float:
        """Seconds since the oldest transaction that is known of and not applied was heard of; 0.0 when all are."""
        now_ns = time.monotonic_ns()
        self.lag.observed(max(self.source_last_seqno or 0, self.pool.last_received_seqno), now_ns)
        return self.lag.seconds(self.applied_seqno, now_ns)

    # House-keeping.

    async def _keep_house(self) -> None:
        while True:
            now_s = trio.current_time()
            if now_s >= self._next_pool_look_s:
                self._next_pool_look_s = now_s + POOL_LOOK_S
                if not self.pool.is_current():
                    await self._pool_is_gone()
            self.authenticator.warn_of_expiry(time.time())
            self.pool.note_receiver(os.getpid(), time.monotonic_ns(), connected=self.active is not None)
            if self.must_begin_anew:
                await self._begin_anew()
            self._look_at_update_process()
            if self.active is not None:
                self.active.report()
            self.tell()
            await trio.sleep(LOOK_S)

    async def _pool_is_gone(self) -> None:
        self.log.warning("receive pool was removed", where=str(self.pool.memory.path))
        await self._disconnect("the receive pool was removed")
        await self.replace_pool()

    async def _begin_anew(self) -> None:
        """What was received can not be used by the Update Process: drop it, and ask again behind what is applied."""
        self.log.warning("the Update Process asks to begin anew", last_received_seqno=self.pool.last_received_seqno)
        await self._disconnect("the Update Process asked to begin anew")
        try:
            async with self._pool_lock:
                applied = await trio.to_thread.run_sync(find_applied, self.instance)
                self._applied_seqno = applied.last_seqno if applied is not None else 0
                self.parts = None
                if self.pool.restart_requested():
                    self.pool.restart(self._applied_seqno)
        except ReplicateError as error:
            self.log.error("can not begin anew yet", error=str(error), code=error.code)

    async def make_way(self, reason: str) -> None:
        """End the stream, if there is one: the source comes again, and is asked for something else then."""
        await self._disconnect(reason)

    async def _disconnect(self, reason: str) -> None:
        """End the connection of the accepted source, if it has asked for the stream already."""
        active = self.active
        if active is not None and active.link.next_expected_seqno:
            active.end(reason)
            await active.gone.wait()

    def _look_at_update_process(self) -> None:
        silent_s = self.pool.update_alive_since_s(time.monotonic_ns())
        if silent_s is None:
            state = UpdateState.NOT_RUNNING
        else:
            state = UpdateState.RUNNING if silent_s <= UPDATE_DEAD_AFTER_S else UpdateState.NOT_ANSWERING
        was, self.update_state = self.update_state, state
        now_s = trio.current_time()
        if state is UpdateState.RUNNING:
            self._next_alarm_s = now_s
            if was is not UpdateState.RUNNING:
                self.log.info("the Update Process is running")
        elif now_s >= self._next_alarm_s:
            self._next_alarm_s = now_s + ALARM_PERIOD_S
            self.log.error(
                f"the Update Process is {state.text}",
                receiver_backlog=max(0, self.pool.last_received_seqno - self.applied_seqno),
                silent_s=None if silent_s is None else round(silent_s, 1),
                do="replicate -i INSTANCE update status; replicate -i INSTANCE update start",
            )

    async def _report(self) -> None:
        while True:
            await trio.sleep_until(self.statistics.deadline_s)
            last = self.pool.last_received_seqno
            report = self.statistics.report(trio.current_time(), last)
            known = max(self.source_last_seqno or 0, last)
            self.log.info(
                "statistics",
                state=self._state,
                source=self.source_name,
                source_backlog=None if self.source_last_seqno is None else max(0, self.source_last_seqno - last),
                receiver_backlog=max(0, last - self.applied_seqno),
                backlog=max(0, known - self.applied_seqno),
                last_applied_seqno=self.applied_seqno,
                lag_s=self.lag_s(),
                pool_percent=round(100 * self.pool.fill_fraction, 1),
                filter=None,
                **report.fields(),
            )
