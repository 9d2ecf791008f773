"""The Receiver Server: waits for the source, and puts what it sends into the receive pool.

Guarantees: one source at a time, a second is refused by name and the first does not notice; nothing enters the pool
that the link has not verified; the pool outlives connections and this daemon, so what has arrived is not asked for
again; a source is told what is applied and durable within a second. The Update Process is watched, and its absence is
said repeatedly; it is never started. On a primary it stands by (standby.py); it follows the role while it runs. An old
primary that another site took over from may go back by itself between two runs of the server (returning_primary.py).
Leaves to others: what is known of the source (source_state.py), what happens on a connection (connection.py), what is
in a transaction, how it is applied.
"""

from __future__ import annotations

import os
import time
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, cast

import trio

from receiver_server.connection import ReceiverConnection
from receiver_server.handover import RoleTaker
from receiver_server.pool import open_pool
from receiver_server.returning_primary import Returning
from receiver_server.seed import Seeds
from receiver_server.source_state import WAITING, SourceState
from receiver_server.standby import Standby
from replicate.daemon.admission import Admission, Guest, Standing
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import no_figures
from replicate.daemon.listening import Callers, listen
from replicate.daemon.orders import SWITCH_OVER, options_of
from replicate.daemon.repeated_lines import Repetitions
from replicate.daemon.role_watch import other_role
from replicate.daemon.statistics_lines import Reporting, ReportingOrders, no_such_order
from replicate.daemon.ticks import next_tick, sleep_to_tick
from replicate.errors import DamagedError, ReplicateError
from replicate.filters.switch import ORDER, FilterSwitch
from replicate.instance.instance import Instance
from replicate.roles.encounters import Encounters
from replicate.security.authenticate import LISTEN, Authenticated, Authenticator
from replicate.settings.load import Address, parse_address
from replicate.status.partition_figures import PartitionFigures, in_copy
from replicate.wire.introduction import reason_of
from replicate.wire.message import UpdateState

LOOK_S: Final = 0.25
"""How often the Update Process's words are looked at; the link tells the source at most once a second."""
TELL_PERIOD_S: Final = 1.0
"""How often the status is told how things stand, besides what happens."""
POOL_LOOK_S: Final = 5.0
ALARM_PERIOD_S: Final = 10.0
UPDATE_DEAD_AFTER_S: Final = 5.0


async def serve(context: DaemonContext) -> None:
    """Run until the stop is requested. Raises what opening the instance and listening raise."""
    instance = Instance.open(context.instance_path)
    wanted = parse_address(context.config.receiver.listen, where=LISTEN)
    authenticator = Authenticator(instance, context.config, context.log)
    authenticator.check(wanted, where=LISTEN, is_receiver=True)
    listeners, address = await listen(context.config.receiver.listen, where=LISTEN)
    kept = [cast("trio.SocketListener", KeptListener(listener)) for listener in listeners]
    taker = RoleTaker(context, instance)
    switch = FilterSwitch("receiver", context.config.receiver.filter)
    orders = ReportingOrders(instance, context, partial(_obey, context, instance, taker, switch))
    encounters = Encounters(instance, context.log)
    await orders.listen()
    try:
        with closing(authenticator):
            async with trio.open_nursery() as nursery:
                taker.nursery = nursery
                nursery.start_soon(orders.serve)
                nursery.start_soon(encounters.run)
                returning = Returning(context, instance)
                is_tls = authenticator.needs_tls(wanted)
                while not context.stop_requested.is_set():
                    await _serve_role(
                        context, taker, switch, returning, encounters, orders, authenticator, is_tls, kept, address
                    )
                nursery.cancel_scope.cancel()
    finally:
        for listener in listeners:
            await trio.aclose_forcefully(listener)


async def _serve_role(
    context: DaemonContext,
    taker: RoleTaker,
    switch: FilterSwitch,
    returning: Returning,
    encounters: Encounters,
    orders: ReportingOrders,
    authenticator: Authenticator,
    is_tls: bool,
    listeners: list[trio.SocketListener],
    address: Address,
) -> None:
    """What the role asks for, until it is another one or the stop is requested."""
    instance = taker.instance
    context.follows(instance)
    if not instance.receives:
        context.why_not_ready = lambda: ""
        await Standby(context, instance, encounters, authenticator, is_tls).run(listeners, address)
        return
    encounters.gone()
    context.status(**encounters.facts)
    await returning.go_back()
    if context.stop_requested.is_set():
        return
    pool = await open_pool(context, instance)
    with closing(SourceState(context, instance, pool, returning, switch)) as source:
        server = ReceiverServer(source, taker, authenticator, is_tls)
        taker.source, orders.reporting = source, server.reporting
        try:
            await server.run(listeners, address)
        finally:
            taker.source = orders.reporting = None


async def _obey(
    context: DaemonContext, instance: Instance, taker: RoleTaker, switch: FilterSwitch, order: str
) -> dict[str, Any]:
    kind, _, wish = order.partition(" ")
    if kind == ORDER:
        if switch.obey(wish):
            context.log.info(f"the filter was turned {wish}", filter=switch.told)
            if taker.source is not None:  # the stream begins again, at the border of two transactions
                await taker.source.disconnect(f"the filter was turned {wish}")
        return switch.facts()
    if order.partition(" ")[0] != SWITCH_OVER:
        raise no_such_order(instance, context, order)
    options = options_of(order)
    return await taker.wish(float(options["timeout_s"]), dry_run=bool(options["dry_run"]))


class KeptListener(trio.abc.Listener[trio.SocketStream]):
    """A listener that outlives its task: callers wait through a change of the role."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    async def accept(self) -> trio.SocketStream:
        """The next caller."""
        return await self._listener.accept()

    async def aclose(self) -> None:
        """It is closed at the daemon's end."""
        await trio.lowlevel.checkpoint()


class ReceiverServer:
    """The daemon between connections: it lets sources in, and watches the pool and the Update Process."""

    def __init__(self, source: SourceState, taker: RoleTaker, authenticator: Authenticator, is_tls: bool) -> None:
        """`is_tls`: whether connections speak TLS."""
        self.source = source
        self._taker = taker
        self.seeds = Seeds(source)
        self._context = source.context
        self._log = source.log
        self._settings = source.settings
        self._strangers = Repetitions()
        """Of the lines of those that are not let in: however many they are, they crowd out none of a source's."""
        self._admission = Admission(self._settings.connections_max, self._settings.connections_per_address_max)
        self._authenticator = authenticator
        self._is_tls = is_tls
        self.reporting = Reporting(
            self._context,
            source.statistics,
            source.settings,
            seqno=lambda: source.received_seqno,
            measure=self._measure,
        )
        started_s = trio.current_time()
        self._next_alarm_s = started_s + UPDATE_DEAD_AFTER_S
        self._next_pool_look_s = started_s
        self._next_told_s = started_s

    async def run(self, listeners: list[trio.SocketListener], address: Address) -> None:
        """Serve until the stop is requested, or the role is another one, and the source, if there is one, has been
        told."""
        source, context = self.source, self._context
        source.listen = str(address)
        with suppress(DamagedError):  # the first connection finds that, and makes the pool again
            if not source.instance.is_supplier:  # its sources count each by its own journal
                times = source.pool.commit_times(source.applied_seqno, time.monotonic_ns())
                await trio.to_thread.run_sync(source.lag.look_back, times)
        self._look_at_update_process()
        await self.seeds.listen()
        source.tell(WAITING)
        context.figures, context.why_not_ready = source.metrics, source.why_not_ready
        context.from_files = PartitionFigures(source.instance.path, in_copy).look
        context.ready(f"{WAITING} on {address}")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_house)
                nursery.start_soon(self.reporting.run)
                nursery.start_soon(self.seeds.serve)
                nursery.start_soon(source.returning.fill_again)
                nursery.start_soon(source.found.indexes.run)
                async with trio.open_nursery() as connections:
                    accepting = trio.CancelScope()
                    connections.start_soon(self._accept, listeners, connections, accepting)
                    await self._until_over()
                    accepting.cancel()
                    if not context.stop_requested.is_set() and source.returning.wanted.is_set():
                        connections.cancel_scope.cancel()  # nobody streams: our source has refused us
                    for one in source.all_connections:
                        one.end("the Receiver Server follows another role, or was stopped")
                    for guest in self._admission:
                        if guest.standing < Standing.PROVEN:
                            guest.close()
                nursery.cancel_scope.cancel()
        finally:
            context.figures = no_figures
            with suppress(ValueError):  # the pool was to be made again, and could not
                source.pool.note_receiver(0, 0, connected=False)
        if context.stop_requested.is_set():
            source.tell("stopped")

    async def _until_over(self) -> None:
        """The stop, another role (one that is being taken here is told first), or until we can go back to where another
        site took over."""
        source, stop = self.source, self._context.stop_requested

        async with trio.open_nursery() as waiting:
            for one in (self._taker.taken, source.returning.wanted):
                waiting.start_soon(_cancel_after, one, waiting.cancel_scope)
            await other_role(source.instance, stop)
            while self._taker.is_taking and not stop.is_set():
                with trio.move_on_after(LOOK_S):
                    await stop.wait()
            waiting.cancel_scope.cancel()

    async def _accept(
        self, listeners: list[trio.SocketListener], connections: trio.Nursery, scope: trio.CancelScope
    ) -> None:
        with scope:
            # Survives EMFILE and its kin: it waits a moment and accepts again.
            callers = Callers(self._admission, self._hear, self._closed_unheard)
            await trio.serve_listeners(callers.connected, listeners, handler_nursery=connections)

    def _closed_unheard(self, host: str, where: str, reason: str) -> None:
        """One connection too many: for a newcomer, or the newcomer itself."""
        self.source.refused[reason] += 1
        self._strangers.line(
            self._log.warning, trio.current_time(), "connection closed unheard", host, reason, where=where,
            reason=reason, connections=self._admission.connections,
        )  # fmt: skip

    async def _hear(self, stream: trio.SocketStream, guest: Guest, where: str) -> None:
        hello_by = trio.current_time() + self._settings.hello_timeout_s
        peer = await self._authenticate(stream, guest, where, hello_by)
        if peer is not None:
            guest.standing = Standing.PROVEN
            connection = ReceiverConnection(self.source, self.seeds, self._taker, peer, where, hello_by, guest)
            connection.say("connection made", guest.address)
            await connection.run()

    async def _authenticate(
        self, stream: trio.SocketStream, guest: Guest, where: str, hello_by: float
    ) -> Authenticated | None:
        """None when the peer was not let in; the connection is closed then."""
        try:
            return await self._authenticator.source(
                stream, is_tls=self._is_tls, deadline=hello_by, answers=guest.answered
            )
        except ReplicateError as error:
            host, reason = guest.address, reason_of(error)
            self.source.refused[reason] += 1
            self.source.last_refusal = f"; {host} was refused: {reason}"
            self.seeds.not_let_in(error, where)
            self._strangers.line(
                self._log.warning, trio.current_time(), "connection refused", host, reason, where=where,
                reason=reason, error=str(error), code=error.code,
            )  # fmt: skip
        return None

    # House-keeping.

    async def _keep_house(self) -> None:
        source = self.source
        while True:
            now_s = trio.current_time()
            if now_s >= self._next_pool_look_s and not self._taker.is_taking and source.instance.receives:
                self._next_pool_look_s = now_s + POOL_LOOK_S
                if not source.pool.is_current():
                    await source.renew_pool()
                source.look_for_waiting()
            self._authenticator.warn_of_expiry(time.time())
            source.pool.note_receiver(os.getpid(), time.monotonic_ns(), connected=source.active is not None)
            if source.must_begin_anew:
                await source.begin_anew()
            self._look_at_update_process()
            for one in source.all_connections:
                one.report()
            await source.look_whether_restored()
            if now_s >= self._next_told_s:
                self._next_told_s = next_tick(TELL_PERIOD_S)
                source.tell()
                source.sample()
            await sleep_to_tick(LOOK_S)

    def _look_at_update_process(self) -> None:
        source = self.source
        silent_s = source.pool.update_alive_since_s(time.monotonic_ns())
        if silent_s is None:
            state = UpdateState.NOT_RUNNING
        else:
            state = UpdateState.RUNNING if silent_s <= UPDATE_DEAD_AFTER_S else UpdateState.NOT_ANSWERING
        was, source.update_state = source.update_state, state
        now_s = trio.current_time()
        if state is UpdateState.RUNNING:
            self._next_alarm_s = now_s
            if was is not UpdateState.RUNNING:
                self._log.info("the Update Process is running")
        elif now_s >= self._next_alarm_s:
            self._next_alarm_s = now_s + ALARM_PERIOD_S
            self._log.error(
                f"the Update Process is {state.text}",
                receiver_backlog=max(0, source.received_seqno - source.applied_seqno),
                silent_s=None if silent_s is None else round(silent_s, 1),
                do="replicate -i INSTANCE status says why, and how to start it",
            )

    def _measure(self) -> dict[str, Any]:
        """For a line of statistics."""
        found, states = self.source.measured(self.source.sample()), self.source.instance.content.told_states
        return found if states is None else found | {"partition_states": states}


async def _cancel_after(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
