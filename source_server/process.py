"""The Source Server: connects to one secondary and streams the journal to it, for as long as it is told to.

Guarantees: a lost or refusing peer is tried again, hard then soft, for ever; the consumer's position is stored durably
before anything that it needs can be pruned, and never lies above what the consumer has; on a stop, what was committed
by then is still sent as far as the time allows, journal and regions are flushed, and it is said how far the peer is;
damage in our own journal ends the daemon by name, nothing is ever
skipped. A commit on this host never waits for us.
Leaves to others: what is known of the consumer (consumer_state.py), what happens on a connection (connection.py), when
to try again (retry.py), where transactions come from (reader.py).
"""

from __future__ import annotations

import random
import time
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final

import trio

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import no_figures
from replicate.daemon.files import seed_runs
from replicate.daemon.order_socket import CommandSocket, answer
from replicate.daemon.orders import FOLLOW, PROBE, PROGRESS, SWITCH_OVER, options_of, socket_name
from replicate.daemon.source_progress import progress_facts
from replicate.daemon.statistics_lines import Reporting, no_such_order
from replicate.daemon.ticks import next_tick
from replicate.door.flush import flush
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import close_door, is_being_seeded, open_door
from replicate.door.recovery.way_out import with_way_out
from replicate.errors import JournalIOError, PoolReplacedError, ReplicateError
from replicate.filters.switch import ORDER as FILTER
from replicate.filters.switch import FilterSwitch
from replicate.instance.consumers import Consumer
from replicate.instance.file import PASSIVE
from replicate.instance.instance import Instance
from replicate.model.takeover import takeover_from
from replicate.model.vector import U32_MAX
from replicate.pool.doorbell import Doorbell
from replicate.roles.encounters import Encounters
from replicate.roles.succession import Other
from replicate.roles.superseded import own_takeovers
from replicate.security.authenticate import Authenticated, Authenticator
from replicate.settings.load import Address
from replicate.status.partition_figures import PartitionFigures, not_applied
from replicate.wire.event import Closed, CloseReason
from replicate.wire.introduction import reason_of
from replicate.wire.message import RefuseCode
from source_server.connection import SourceConnection
from source_server.consumer_state import WAITING, ConsumerState, last_word
from source_server.handover import RoleGiver
from source_server.probe import probe
from source_server.retry import Tries
from source_server.seed import SeedKeeper
from source_server.unreachable import unreachable

PRUNE_PERIOD_S: Final = 10.0
CONSUMER_PERIOD_S: Final = 1.0
"""A consumer's position is stored at most this often: an older one only keeps more journal."""
SEEDED: Final = "waiting for the end of the seed of this instance"
PRIMARY_THERE_S: Final = 60.0
"""So long after a peer has said that it is primary too it is tried again: that changes by an operator's command. (The
first hard tries come as quickly as others: its Receiver Server may be about to follow its role.)"""
GIVES_WAY_S: Final = 5.0
"""And so long after one that has to give way to us has said so."""
POOL_LOOK_S: Final = 0.5
PENDING_TRY_S: Final = 0.3
"""So often a successor is tried to be told: applications wait for it."""
BRIEF_REASONS: Final = ("CUT", "HELLO_TIMEOUT", "KEY_MISSING")
"""Why an opening fails while the peer is only being stopped or started."""


def primary_of(name: str, uuid: str, error: ReplicateError) -> Other:
    """Who has refused us because it is primary, by its refusal. `uuid`: what is known of it, in hexadecimal; releases
    before this one do not say it."""
    facts = error.facts.get("peer_facts")
    told = facts if isinstance(facts, dict) else {}
    incarnation, takeover = told.get("incarnation"), takeover_from(told)
    return Other(
        name,
        _uuid(told.get("uuid")) or _uuid(uuid) or bytes(16),
        incarnation if type(incarnation) is int and 0 <= incarnation <= U32_MAX else 0,
        () if takeover is None else (takeover,),
    )


def _uuid(text: object) -> bytes:
    """ "" where it is none."""
    with suppress(ValueError, TypeError):
        raw = bytes.fromhex(str(text))
        return raw if len(raw) == 16 else b""
    return b""


async def serve(context: DaemonContext, peer: str) -> None:
    """Run until the stop is requested. Raises what opening the instance raises, and damage in our own journal."""
    instance = Instance.open(context.instance_path)
    entry = instance.peer(peer)
    authenticator = Authenticator(instance, context.config, context.log)
    authenticator.check(Address(entry.host, entry.port), where=f"peer {peer}", is_receiver=False)
    giver = RoleGiver(context, instance, peer)
    encounters = Encounters(instance, context.log.bind(peer=peer))
    orders = Orders(context, instance, giver, authenticator)
    await _outlast_seed(context, instance, is_sure=False)
    await orders.listen()
    async with trio.open_nursery() as nursery:
        giver.nursery = nursery
        nursery.start_soon(orders.serve)
        nursery.start_soon(encounters.run)
        while not context.stop_requested.is_set() and not await _serve_door(
            instance, giver, encounters, orders, authenticator
        ):
            # Somebody has recovered the instance, or changed its role: what we had mapped is nobody's any more.
            context.log.warning("journal pool replaced", peer=peer)
            await _outlast_seed(context, instance, is_sure=True)
        nursery.cancel_scope.cancel()


async def _serve_door(
    instance: Instance, giver: RoleGiver, encounters: Encounters, orders: Orders, authenticator: Authenticator
) -> bool:
    """As long as the pool is the instance's. False: it is another one now; True: the stop was requested."""
    door = await trio.to_thread.run_sync(open_door, instance)
    orders.context.follows(instance)
    try:
        with closing(Doorbell.claim(door.pool, instance.run_directory)) as doorbell:
            consumer = giver.consumer = ConsumerState(orders.context, instance, door, orders.peer, orders.switch)
            server = SourceServer(consumer, giver, encounters, doorbell, authenticator)
            orders.now_served_by(server)
            await server.run()
        return True
    except* PoolReplacedError:
        pass
    finally:
        giver.consumer = None
        orders.now_served_by(None)
        close_door(door)
    return False


async def _outlast_seed(context: DaemonContext, instance: Instance, *, is_sure: bool) -> None:
    """A secondary that sends on is being seeded again: wait for the end of that, or for the stop. Where that is not
    sure (`is_sure`) only for a seed that runs: one that was interrupted may never end, as opening the instance says."""
    is_sure = is_sure or seed_runs(instance.path)
    while is_sure and is_being_seeded(instance) and not context.stop_requested.is_set():
        context.why_not_ready = lambda: SEEDED
        context.ready(SEEDED)
        with trio.move_on_after(CONSUMER_PERIOD_S):
            await context.stop_requested.wait()
    instance.reload()  # its regions are others since


class Orders:
    """The daemon's end of its order socket, whichever door is open."""

    def __init__(
        self, context: DaemonContext, instance: Instance, giver: RoleGiver, authenticator: Authenticator
    ) -> None:
        self.context = context
        self.peer = context.name.partition("-")[2]
        self._instance = instance
        self._giver = giver
        self._authenticator = authenticator
        self.switch = FilterSwitch("source", context.config.source.filter)
        self._server: SourceServer | None = None
        self._there = trio.Event()
        self._socket = CommandSocket(instance.run_directory, socket_name(context.name), context.log, "orders")

    async def listen(self) -> None:
        """Be there for commands."""
        await self._socket.listen()

    async def serve(self) -> None:
        """Hear orders, after `listen`, until cancelled."""
        await self._socket.serve(self._heard)

    def now_served_by(self, server: SourceServer | None) -> None:
        """Who follows the instance file; None between two doors."""
        self._server = server
        if server is not None:
            self._there.set()
            self._there = trio.Event()

    async def _heard(self, stream: trio.SocketStream) -> None:
        await answer(stream, self._obey)

    async def _obey(self, order: str) -> dict[str, Any]:
        name = order.partition(" ")[0]
        if name == SWITCH_OVER:
            options = options_of(order)
            return await self._giver.give(float(options["timeout_s"]), dry_run=bool(options["dry_run"]))
        if name == PROBE:
            self._instance.reload()
            return await probe(self._instance, self._instance.peer(self.peer), self.context.config, self._authenticator)
        if name == FILTER:
            return self._obey_filter(order.partition(" ")[2])
        while self._server is None:
            await self._there.wait()
        server = self._server
        if (done := server.reporting.obey(order)) is not None:
            return done
        if name == PROGRESS:
            return progress_facts(server.consumer.measured(), self.context.facts.get("last_error"))
        if name != FOLLOW:
            raise no_such_order(self._instance, self.context, order)
        return await server.follow()

    def _obey_filter(self, wish: str) -> dict[str, Any]:
        if self.switch.obey(wish):
            self.context.log.info(f"the filter was turned {wish}", filter=self.switch.told)
            if self._server is not None:
                self._server.begin_again(f"the filter was turned {wish}")
        return self.switch.facts()


class SourceServer:
    """The daemon between connections: it connects, stores the consumer's position, prunes and reports."""

    def __init__(
        self,
        consumer: ConsumerState,
        giver: RoleGiver,
        encounters: Encounters,
        doorbell: Doorbell,
        authenticator: Authenticator,
    ) -> None:
        self.consumer = consumer
        self._giver = giver
        self._encounters = encounters
        self.seeds = SeedKeeper(consumer)
        self._context = consumer.context
        self._log = consumer.log
        self._doorbell = doorbell
        self._authenticator = authenticator
        self.reporting = Reporting(
            self._context,
            consumer.statistics,
            consumer.settings,
            seqno=lambda: consumer.progress.last_sent_seqno,
            measure=self._measure,
            log=consumer.log,
        )
        self._connection: SourceConnection | None = None
        self._pause = trio.CancelScope()
        """Of what a stop or an order cuts short: an attempt to connect, or a sleep."""

    async def run(self) -> None:
        """Connect, stream, connect again, until the stop. The consumer's position is stored last."""
        consumer, context = self.consumer, self._context
        consumer.position.load()
        with suppress(ReplicateError):  # the stream finds that, and says what to do
            await trio.to_thread.run_sync(consumer.look_back)
            consumer.takeovers = await trio.to_thread.run_sync(own_takeovers, consumer.door)
        consumer.tell(PASSIVE if consumer.mode.is_passive else WAITING, last_error=None)
        context.figures, context.why_not_ready = consumer.metrics, consumer.why_not_ready
        figures_of = partial(not_applied, at=consumer.stands_at)
        context.from_files = PartitionFigures(consumer.instance.path, figures_of).look
        context.ready(consumer.activity)
        try:
            async with trio.open_nursery() as nursery:
                for task in (self.reporting.run, self._keep_house, self._prune, self._cut_short, self.seeds.run):
                    nursery.start_soon(task)
                nursery.start_soon(self._watch_pool)
                nursery.start_soon(consumer.indexes.run)
                await self._work()
                nursery.cancel_scope.cancel()
        finally:
            context.figures = no_figures
            with trio.CancelScope(shield=True):
                with suppress(PoolReplacedError):
                    await consumer.position.keep_stored()
                if context.stop_requested.is_set():
                    await self._say_last_word()
        consumer.tell("stopped")

    async def _say_last_word(self) -> None:
        """At a stop, whether or not all could be drained: flush, and say what was."""
        consumer = self.consumer
        try:
            await self._flush()
        except ReplicateError as error:
            self._log.error("not flushed", error=str(error), code=error.code)
        found = consumer.measured()
        sent, acknowledged = found["last_sent_seqno"], found["last_acknowledged_seqno"]
        said = last_word(sent, acknowledged, found["unacknowledged"])
        consumer.context.status(last_word=said)
        self._log.info("sending ended", last_word=said, last_sent_seqno=max(sent, acknowledged),
                       last_acknowledged_seqno=acknowledged, unacknowledged=found["unacknowledged"])  # fmt: skip

    async def _work(self) -> None:
        """Connect again and again while we are active, sleep while we are passive; until the stop."""
        stop, mode = self._context.stop_requested, self.consumer.mode
        while not stop.is_set():
            if mode.is_passive:
                await self._sleep()
                continue
            error = await self._connect_once()
            if not stop.is_set() and not mode.is_passive:
                await self._wait(error)

    async def _sleep(self) -> None:
        """Passive: flushed, until we are made active."""
        consumer, stop = self.consumer, self._context.stop_requested
        consumer.retry.streaming()  # once active again, the first tries come quickly, and have their lines
        consumer.repetitions.forget()
        await consumer.position.keep_stored()
        await self._flush()
        if consumer.mode.is_passive:
            consumer.tell(PASSIVE, last_error=None)
            consumer.mode.asleep.set()
            self._log.info("passive")
        with trio.CancelScope() as self._pause:
            if consumer.mode.is_passive and not stop.is_set():
                await trio.sleep_forever()
        if not stop.is_set():
            consumer.tell(WAITING)
            self._log.info("active")

    async def _flush(self) -> None:
        for problem in await trio.to_thread.run_sync(flush, self.consumer.door):
            self._log.error("region not flushed", error=problem)

    async def _watch_pool(self) -> None:
        """PoolReplacedError soon after the instance has another pool, as after a change of its role."""
        while True:
            self.consumer.door.pool.check_current()
            with trio.move_on_at(next_tick(POOL_LOOK_S)):
                await self._giver.changed.wait()

    async def follow(self) -> dict[str, object]:
        """Be what the instance file says; what we are then, once all is flushed that is to be."""
        consumer = self.consumer
        consumer.instance.reload()
        mode = consumer.mode
        if mode.follow(consumer.instance.peer(consumer.peer_name)):
            self._log.info("ordered to change its mode", mode=mode.entry.mode)
        self._pause.cancel()  # also of one that is active already: it tries now
        if mode.is_passive:
            await mode.asleep.wait()
        return {"mode": mode.entry.mode}

    def begin_again(self, reason: str) -> None:
        """End the connection that streams, if there is one, and connect again."""
        if self._connection is not None:
            self._connection.begin_again(reason)
        self._pause.cancel()

    async def _connect_once(self) -> ReplicateError | None:
        """One attempt and, if it succeeds, one connection. None when the peer ended it in order. Raises what is wrong
        with our own journal or disk."""
        consumer = self.consumer
        consumer.instance.reload()
        entry = consumer.instance.peer(consumer.peer_name)
        where = f"[{entry.host}]:{entry.port}" if ":" in entry.host else f"{entry.host}:{entry.port}"
        consumer.position.load()
        consumer.is_primary_there = False
        peer: Authenticated | None = None
        limit_s = consumer.settings.connect_timeout_s
        hello_by = trio.current_time() + limit_s
        with trio.CancelScope() as self._pause:
            if self._context.stop_requested.is_set():
                return None
            try:
                with trio.fail_at(hello_by):
                    stream = await trio.open_tcp_stream(entry.host, entry.port)
            except (OSError, trio.TooSlowError) as error:
                return unreachable(error, peer=consumer.peer_name, host=entry.host, where=where, timeout_s=limit_s)
            try:
                peer = await self._authenticator.receiver(stream, entry, deadline=hello_by)
            except ReplicateError as error:
                return self._not_let_in(error, where)
        if peer is None:
            return None
        consumer.say("connection made", where, where=where)
        return await self._converse(peer, where, hello_by)

    async def _converse(self, peer: Authenticated, where: str, hello_by: float) -> ReplicateError | None:
        """One connection, to its end; why it ended."""
        consumer = self.consumer
        connection = SourceConnection(consumer, self.seeds, self._giver, self._doorbell, peer, hello_by)
        consumer.link, self._connection = connection.link, connection
        try:
            closed = await connection.run()
        finally:
            self._connection = None
            consumer.left()
        error: ReplicateError | None
        if closed.reason is CloseReason.CONNECTION_LOST and (alert := peer.alert) is not None:
            error = self._not_let_in(alert, where)
        else:
            closed = peer.judged(closed)
            if connection.has_streamed:
                consumer.statistics.count("cuts", closed.reason is not CloseReason.BYE)
            self._closed(closed, connection.has_streamed)
            error = closed.error
            if error is not None and closed.reason is CloseReason.PEER_REFUSED:
                await self._look_whether_retired(error)
            if consumer.is_primary_there and error is not None:
                await self._encounters.met(primary_of(consumer.peer_name, consumer.position.record.uuid, error))
        if connection.filter_failure is not None:
            error = connection.filter_failure
            consumer.retry.refused()
        if connection.failure is not None:
            raise with_way_out(connection.failure, consumer.instance)
        return error

    async def _look_whether_retired(self, error: ReplicateError) -> None:
        """The peer has refused us: takes no writes where it says that this supplier is gone for good."""
        if reason_of(error) != RefuseCode.RETIRED:
            return
        from replicate.roles.retired_supplier import note_retired  # here: of few

        consumer = self.consumer
        try:
            if await trio.to_thread.run_sync(note_retired, consumer.instance, consumer.peer_name):
                consumer.log.error("this supplier takes no writes: it was retired", error=str(error), code=error.code)
        except ReplicateError as failure:
            consumer.log.error("retired, and takes writes still", error=str(failure), code=failure.code)

    def _not_let_in(self, error: ReplicateError, where: str) -> ReplicateError:
        """Either side does not let the other in: trying quickly again will not help, unless the peer was only away."""
        consumer, reason = self.consumer, reason_of(error)
        consumer.refused[reason] += 1
        consumer.say("connection refused", where, reason, is_warning=True, where=where, reason=reason, error=str(error),
                     code=error.code)  # fmt: skip
        if reason not in BRIEF_REASONS:
            consumer.retry.refused()
        return error

    def _closed(self, closed: Closed, has_streamed: bool) -> None:
        consumer = self.consumer
        error, reason = closed.error, closed.reason.value
        is_refused = closed.reason in (CloseReason.PEER_REFUSED, CloseReason.WE_REFUSED)
        if has_streamed and not is_refused:
            consumer.repetitions.forget()  # the loss of a stream is always worth its lines
        if error is None:
            consumer.say("connection closed", reason, closed.text, reason=reason, text=closed.text)
        else:
            consumer.is_primary_there = reason_of(error) == RefuseCode.WRONG_ROLE
            if consumer.is_primary_there:
                self._giver.is_primary_there()
            facts = {"reason": reason, "error": str(error), "code": error.code}
            consumer.say(
                "connection closed", reason, reason_of(error), is_warning=not consumer.is_primary_there, **facts
            )
        if is_refused:
            assert error is not None  # only a BYE has none
            consumer.refused[reason_of(error)] += 1
            if not consumer.is_primary_there:
                consumer.retry.refused()

    async def _wait(self, failure: ReplicateError | None) -> None:
        consumer = self.consumer
        attempt = consumer.retry.next_attempt(random.random())
        text = str(failure) if failure is not None else ""
        wait_s = attempt.wait_s
        if consumer.is_primary_there and attempt.tries is Tries.SOFT:
            wait_s = GIVES_WAY_S if self._encounters.gives_way else PRIMARY_THERE_S
        if self._giver.is_pending:
            wait_s = min(wait_s, PENDING_TRY_S)
        if failure is not None and not consumer.is_primary_there:
            # Every hard try has its line; a soft one when it fails for another reason than those before.
            is_hard = attempt.tries is Tries.HARD
            why = {name: failure.facts[name] for name in ("reason", "errno") if failure.facts.get(name) is not None}
            consumer.say(
                f"{'hard' if is_hard else 'soft'} connection attempt failed",
                attempt.number if is_hard else (failure.code, failure.facts.get("reason")),
                is_warning=True,
                error=text,
                **why,
                number=attempt.number,
                attempts=consumer.retry.attempts,
                next_in_s=round(wait_s, 3),
            )
        consumer.progress.update_state = ""  # nobody tells us now
        consumer.progress.not_applying_since_wall_ns = 0
        waiting = f"{PASSIVE}: {consumer.peer_name} is primary" if consumer.is_primary_there else WAITING
        consumer.tell(waiting, last_error=text or None, **self._encounters.facts)
        with trio.move_on_after(wait_s) as self._pause:
            await self._context.stop_requested.wait()

    async def _cut_short(self) -> None:
        await self._context.stop_requested.wait()
        self._pause.cancel()

    # House-keeping.

    async def _keep_house(self) -> None:
        consumer = self.consumer
        while True:
            self._authenticator.warn_of_expiry(time.time())
            await trio.sleep(CONSUMER_PERIOD_S)
            if consumer.position.has_moved:
                await consumer.position.keep_stored()
            if consumer.link is not None and consumer.link.peer is not None:
                self._encounters.gone()  # it takes our stream
            consumer.tell(**self._encounters.facts)
            consumer.sample()

    async def _prune(self) -> None:
        while True:
            await trio.sleep(PRUNE_PERIOD_S)
            try:
                dropped: list[Consumer] = []
                removed = await trio.to_thread.run_sync(prune_journal, self.consumer.door, dropped.append)
            except JournalIOError as error:
                # After a failed sync nobody can say what is on the disk: keep the journal, which recovery needs.
                self._log.error("pruning stopped", error=str(error), code=error.code)
                return
            except ReplicateError as error:
                self._log.error("journal not pruned", error=str(error), code=error.code)
                continue
            for gone in dropped:
                self._log.error(
                    "consumer dropped at the journal's cap",
                    consumer=gone.name,
                    acknowledged_seqno=gone.acknowledged_seqno,
                    do=f"Seed it again, there: replicate -i {gone.name} seed --restart",
                )
            if removed:
                self._log.info("journal pruned", segments=len(removed), last_removed_segment=removed[-1])

    def _measure(self) -> dict[str, Any]:
        """For a line of statistics."""
        self.consumer.sample()
        return self.consumer.measured()
