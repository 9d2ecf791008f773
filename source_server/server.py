"""The Source Server: connects to one secondary and streams the journal to it, for as long as it is told to.

Guarantees: a lost or refusing peer is tried again, hard then soft, for ever; the consumer's position is stored durably
before anything that it needs can be pruned, and never lies above what the consumer has; on a stop, what was committed
by then is still sent as far as the time allows; damage in our own journal ends the daemon by name, nothing is ever
skipped. A commit on this host never waits for us.
Refuses to know: what happens on a connection (connection.py), when to try again (retry.py), where transactions come
from (reader.py).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio

from replicate.config import Address
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.files import seed_runs
from replicate.daemon.repetition import Repetitions
from replicate.door.damage import with_way_out
from replicate.door.door import Door
from replicate.door.opening import close_door, is_being_seeded, open_door
from replicate.errors import (
    JournalIOError,
    PeerUnreachableError,
    PoolReplacedError,
    ReplicateError,
    WrongInstanceError,
)
from replicate.instance.consumers import Consumer, read_hold, write_hold
from replicate.instance.instance import Instance
from replicate.metrics.gauges import no_figures
from replicate.metrics.statistics import Lag, Statistics, was_there_ns
from replicate.pool import control as word
from replicate.pool.doorbell import Doorbell
from replicate.pruning import prune_journal
from replicate.security.authenticate import Authenticated, Authenticator
from replicate.wire.event import Acknowledged, Closed, CloseReason
from replicate.wire.message import RefuseCode, UpdateState
from source_server.connection import Connection
from source_server.figures import figures, why_not_ready
from source_server.position import ConsumerPosition
from source_server.reader import FILES
from source_server.retry import Retry, Tries
from source_server.seed import SeedKeeper

PRUNE_PERIOD_S: Final = 10.0
CONSUMER_PERIOD_S: Final = 1.0
"""A consumer's position is stored at most this often: an older one only keeps more journal."""
WAITING: Final = "waiting for a connection"
SEEDED: Final = "waiting for the end of the seed of this instance"
BRIEF_REASONS: Final = ("CUT", "HELLO_TIMEOUT", "KEY_MISSING")
"""Why an opening fails while the peer is only being stopped or started."""


async def serve(context: DaemonContext, peer: str) -> None:
    """Run until the stop is requested. Raises what opening the instance raises, and damage in our own journal."""
    instance = Instance.open(context.instance_path)
    entry = instance.peer(peer)
    authenticator = Authenticator(instance, context.config, context.log)
    authenticator.check(Address(entry.host, entry.port), where=f"peer {peer}", is_receiver=False)
    await _outlast_seed(context, instance, is_sure=False)
    while not context.stop_requested.is_set():
        door = await trio.to_thread.run_sync(open_door, instance)
        try:
            with closing(Doorbell.claim(door.pool, instance.run_directory)) as doorbell:
                await Source(context, instance, door, doorbell, peer, authenticator).run()
            return
        except* PoolReplacedError:
            # Somebody has recovered the instance: what we had mapped is nobody's any more.
            context.log.warning("journal pool replaced", peer=peer)
        finally:
            close_door(door)
        await _outlast_seed(context, instance, is_sure=True)


async def _outlast_seed(context: DaemonContext, instance: Instance, *, is_sure: bool) -> None:
    """A secondary that sends on is being seeded anew: wait for the end of that, or for the stop. Unless that `is_sure`,
    for a seed that runs: one that was interrupted may never end, and opening the instance says so."""
    is_sure = is_sure or seed_runs(instance.path)
    while is_sure and is_being_seeded(instance) and not context.stop_requested.is_set():
        context.why_not_ready = lambda: SEEDED
        context.ready(SEEDED)
        with trio.move_on_after(CONSUMER_PERIOD_S):
            await context.stop_requested.wait()
    instance.reload()  # its regions are others since


class Source(ConsumerPosition):
    """The daemon between connections: what it knows of its consumer, and when it tries again."""

    def __init__(
        self,
        context: DaemonContext,
        instance: Instance,
        door: Door,
        doorbell: Doorbell,
        peer_name: str,
        authenticator: Authenticator,
    ) -> None:
        super().__init__(context, instance, door, peer_name)
        self.doorbell = doorbell
        self.authenticator = authenticator
        self.settings = context.config.source
        self.words = door.words
        self.committers_flush = context.config.journal.durability == "durable"
        """Whoever commits flushes, and rings when that is done."""
        self.statistics = Statistics(
            self.settings.statistics_period_s, trio.current_time(), seqno=self.words[word.LAST_SEQNO]
        )
        self.seeds = SeedKeeper(self)
        self.retry = Retry(self.settings.hard_tries, self.settings.hard_period_s, self.settings.soft_period_s)
        self.lag = Lag()
        self.repetitions = Repetitions()
        """Of the lines of connections: a peer that refuses for days does not fill the disk."""
        self.progressed = trio.Event()
        """Set, and replaced, when the consumer has told how far it is."""
        self.failure: ReplicateError | None = None
        """What ends the daemon: damage in our own journal, a failed disk."""
        self.last_sent_seqno = 0
        self.last_received_seqno = 0
        self.last_applied_seqno = 0
        self.peer_update_state = ""
        """What the peer says of its Update Process; "": nothing yet on this connection."""
        self.not_applying_since_wall_ns = 0
        """Since when its Update Process has not been running; 0: it runs, or we do not know."""
        self.round_trip_s: float | None = None
        self.last_contact_s: float | None = None
        """On trio's clock: when the peer was last heard of."""
        self._connection: Connection | None = None
        self._clock_ns = 0
        """What trio's clock is behind the machine's."""
        self.refused: Counter[str] = Counter()
        """Connections that either side has refused, by reason."""
        self.place = FILES
        """Where transactions were read from last."""
        self.from_pool = self.from_files = self.switches = 0
        self._state = WAITING
        self._connecting = trio.CancelScope()

    async def run(self) -> None:
        """Connect, stream, connect again, until the stop. The consumer's position is stored last."""
        self.load_consumer()
        self.tell(WAITING, last_error=None)
        self.context.figures, self.context.why_not_ready = partial(figures, self), partial(why_not_ready, self)
        self.context.ready(WAITING)
        try:
            async with trio.open_nursery() as nursery:
                for task in (self._report, self._keep_house, self._prune, self._cut_connecting, self.seeds.run):
                    nursery.start_soon(task)
                await self._connect_again_and_again()
                nursery.cancel_scope.cancel()
        finally:
            self.context.figures = no_figures
            with trio.CancelScope(shield=True), suppress(PoolReplacedError):
                await self.keep_stored()
        self.tell("stopped")

    async def _connect_again_and_again(self) -> None:
        stop = self.context.stop_requested
        while not stop.is_set():
            failure = await self._connect_once()
            if self.failure is not None:
                raise with_way_out(self.failure, self.instance)
            if stop.is_set():
                return
            await self._wait(failure)

    async def _connect_once(self) -> ReplicateError | None:
        """One attempt and, if it succeeds, one connection. None when the peer ended it in order."""
        self.instance.reload()
        entry = self.instance.peer(self.peer_name)
        where = f"[{entry.host}]:{entry.port}" if ":" in entry.host else f"{entry.host}:{entry.port}"
        self.load_consumer()
        peer: Authenticated | None = None
        hello_by = trio.current_time() + self.settings.connect_timeout_s
        with trio.CancelScope() as self._connecting:
            if self.context.stop_requested.is_set():
                return None
            try:
                with trio.fail_at(hello_by):
                    stream = await trio.open_tcp_stream(entry.host, entry.port)
            except (OSError, trio.TooSlowError) as error:
                text = str(error) or f"not within {self.settings.connect_timeout_s:g} s"
                return PeerUnreachableError(
                    f"nobody answers: {text}", where=where, do=f"There: replicate -i {self.peer_name} receiver start"
                )
            try:
                peer = await self.authenticator.receiver(stream, entry, deadline=hello_by)
            except ReplicateError as error:
                return self._not_let_in(error, where)
        if peer is None:
            return None
        self.say("connection made", where, where=where)
        self._connection = connection = Connection(self, peer, hello_by)
        try:
            closed = await connection.run()
        finally:
            self._connection = None
        if closed.reason is CloseReason.CONNECTION_LOST and (alert := peer.alert) is not None:
            return self._not_let_in(alert, where)
        closed = peer.judged(closed)
        self._closed(closed, connection.has_streamed)
        return closed.error

    def _not_let_in(self, error: ReplicateError, where: str) -> ReplicateError:
        """Either side does not let the other in: trying quickly again will not help, unless the peer was only away."""
        reason = str(error.facts.get("reason", error.code))
        self.refused[reason] += 1
        self.say("connection refused", where, reason, is_warning=True, where=where, reason=reason, error=str(error),
                 code=error.code)  # fmt: skip
        if reason not in BRIEF_REASONS:
            self.retry.refused()
        return error

    def _closed(self, closed: Closed, has_streamed: bool) -> None:
        self.round_trip_s = None
        error, reason = closed.error, closed.reason.value
        is_refused = closed.reason in (CloseReason.PEER_REFUSED, CloseReason.WE_REFUSED)
        if has_streamed and not is_refused:
            self.repetitions.forget()  # the loss of a stream is always worth its lines
        if error is None:
            self.say("connection closed", reason, closed.text, reason=reason, text=closed.text)
        else:
            key = (reason, error.code, error.facts.get("reason"))
            self.say("connection closed", *key, is_warning=True, reason=reason, error=str(error), code=error.code)
        if is_refused:
            self.refused[str(error.facts.get("reason") or error.code) if error is not None else reason] += 1
            self.retry.refused()

    async def _wait(self, failure: ReplicateError | None) -> None:
        attempt = self.retry.next_attempt(random.random())
        text = str(failure) if failure is not None else ""
        if failure is not None:
            # Every hard try has its line; a soft one when it fails for another reason than those before.
            is_hard = attempt.tries is Tries.HARD
            self.say(
                f"{'hard' if is_hard else 'soft'} connection attempt failed",
                attempt.number if is_hard else (failure.code, failure.facts.get("reason")),
                is_warning=True,
                error=text,
                number=attempt.number,
                attempts=self.retry.attempts,
                next_in_s=round(attempt.wait_s, 3),
            )
        self.peer_update_state = ""  # nobody tells us now
        self.not_applying_since_wall_ns = 0
        self.tell(WAITING, last_error=text or None)
        with trio.move_on_after(attempt.wait_s):
            await self.context.stop_requested.wait()

    async def _cut_connecting(self) -> None:
        await self.context.stop_requested.wait()
        self._connecting.cancel()

    # What others ask and tell.

    @property
    def state(self) -> str:
        """The status line."""
        return self._state

    def say(self, event: str, *reason: object, is_warning: bool = False, **fields: object) -> None:
        """A line about a connection: at once for every new reason, then once a period, with a count."""
        write = self.log.warning if is_warning else self.log.info
        self.repetitions.line(write, trio.current_time(), event, *reason, **fields)

    def tell(self, state: str | None = None, **facts: Any) -> None:
        """The status line (None: as it was) and the facts behind it."""
        self._state = state if state is not None else self._state
        words = self.words
        self.context.status(
            self._state,
            peer=self.peer_name,
            state=self._state,
            last_written_seqno=words[word.LAST_SEQNO],
            last_durable_seqno=words[word.LAST_DURABLE_SEQNO],
            last_sent_seqno=self.last_sent_seqno,
            last_received_seqno=self.last_received_seqno,
            last_applied_seqno=self.last_applied_seqno,
            last_acknowledged_seqno=self.consumer.acknowledged_seqno,
            transactions_from_pool=self.from_pool,
            transactions_from_files=self.from_files,
            switches=self.switches,
            peer_update_state=self.peer_update_state,
            peer_not_applying_since_wall_ns=self.not_applying_since_wall_ns,
            lag_s=self.lag_s(),
            last_heard_monotonic_ns=self._last_heard_ns(),
            round_trip_s=None if self.round_trip_s is None else round(self.round_trip_s, 6),
            **facts,
        )

    def _last_heard_ns(self) -> int | None:
        """When the peer's last bytes came, by the clock that all processes of this machine share. The same as long as
        none come: a status that says nothing new is not written."""
        if self._connection is None:
            return None
        if not self._clock_ns:
            self._clock_ns = time.monotonic_ns() - int(trio.current_time() * 1e9)
        return self._clock_ns + int(self._connection.link.last_heard * 1e9)

    def lag_s(self) -> float:
        """Seconds since the oldest transaction that the consumer has not applied was seen here; 0.0 when it has all. No
        step of the wall clock moves it, but one before the transaction was first looked at."""
        now_ns, words = time.monotonic_ns(), self.words
        last_seqno = words[word.LAST_SEQNO]
        self.saw(last_seqno, words[word.LAST_COMMIT_WALL_NS] or time.time_ns())
        self.lag.looked(last_seqno, now_ns)
        return self.lag.seconds(self.last_applied_seqno, now_ns)

    def saw(self, seqno: int, committed_wall_ns: int) -> None:
        """For the lag: this transaction is in the journal, committed at that time of the wall clock then."""
        self.lag.observed(seqno, was_there_ns(committed_wall_ns, time.time_ns(), time.monotonic_ns()))

    def acknowledged(self, event: Acknowledged) -> None:
        """The consumer has told how far it is."""
        reply = event.reply
        self.last_contact_s = trio.current_time()
        self.last_received_seqno = reply.last_received_seqno
        self.last_applied_seqno = reply.last_applied_seqno
        self._note_update_process(reply.update_state)
        if event.round_trip_s is not None:
            self.round_trip_s = event.round_trip_s
        self.progressed.set()
        self.progressed = trio.Event()
        if reply.last_durable_seqno > self.consumer.acknowledged_seqno:
            self.consumer = replace(
                self.consumer, acknowledged_seqno=reply.last_durable_seqno, acknowledged_wall_ns=time.time_ns()
            )

    def _note_update_process(self, number: int) -> None:
        """What the consumer sees of its Update Process, which alone applies what we send."""
        known = {state.value: state for state in UpdateState}.get(number)
        state = f"in a state {number} that this release does not know" if known is None else known.text
        if state == self.peer_update_state:
            return
        self.peer_update_state = state
        if known in (UpdateState.NOT_RUNNING, UpdateState.NOT_ANSWERING):
            self.not_applying_since_wall_ns = self.not_applying_since_wall_ns or time.time_ns()
            self.log.warning(
                "the peer applies nothing", update_process=state, last_applied_seqno=self.last_applied_seqno
            )
        else:
            if self.not_applying_since_wall_ns:
                self.log.info("the peer applies again", update_process=state)
            self.not_applying_since_wall_ns = 0
        self.tell()

    def met(self, uuid: bytes) -> None:
        """Remember who the consumer is. WrongInstanceError when it was another one before."""
        self.last_contact_s = trio.current_time()
        known = self.consumer.uuid
        if known and known != uuid.hex():
            raise WrongInstanceError(
                f"the instance that answers is named {self.peer_name}, but is another one than before",
                where=self.peer_name,
                do="If the secondary was made anew: replicate -i INSTANCE peer remove, peer add, then seed it",
                reason=str(RefuseCode.WRONG_INSTANCE),
            )
        if not known:
            self.consumer = replace(self.consumer, uuid=uuid.hex())

    async def begins_at(self, next_seqno: int) -> None:
        """The stream begins there, so the consumer has nothing from there on, whatever it said before (it may have been
        restored): stored durably before anything is sent."""
        if next_seqno - 1 < self.consumer.acknowledged_seqno:
            self.consumer = replace(self.consumer, acknowledged_seqno=next_seqno - 1)
        await self.store_consumer()
        await trio.to_thread.run_sync(self._seed_arrived, next_seqno - 1)
        self.last_received_seqno = next_seqno - 1
        self.last_applied_seqno = min(self.last_applied_seqno, next_seqno - 1)
        self.retry.streaming()

    def _seed_arrived(self, last_seqno: int) -> None:
        """A consumer that stands exactly at its seed has taken it over: from now on its position says what it needs."""
        if read_hold(self.instance.consumers_directory, self.peer_name) == last_seqno:
            write_hold(self.instance.consumers_directory, self.peer_name, None)

    # House-keeping.

    async def _keep_house(self) -> None:
        while True:
            self.authenticator.warn_of_expiry(time.time())
            await trio.sleep(CONSUMER_PERIOD_S)
            if self.has_moved:
                await self.keep_stored()
            self.tell()

    async def _prune(self) -> None:
        while True:
            await trio.sleep(PRUNE_PERIOD_S)
            try:
                dropped: list[Consumer] = []
                removed = await trio.to_thread.run_sync(prune_journal, self.door, dropped.append)
            except JournalIOError as error:
                # After a failed sync nobody can say what is on the disk: keep the journal, which recovery needs.
                self.log.error("pruning stopped", error=str(error), code=error.code)
                return
            except ReplicateError as error:
                self.log.error("journal not pruned", error=str(error), code=error.code)
                continue
            for consumer in dropped:
                self.log.error(
                    "consumer dropped at the journal's cap",
                    consumer=consumer.name,
                    acknowledged_seqno=consumer.acknowledged_seqno,
                    do=f"Seed it anew, there: replicate -i {consumer.name} seed --restart",
                )
            if removed:
                self.log.info("journal pruned", segments=len(removed), last_removed_segment=removed[-1])

    async def _report(self) -> None:
        words = self.words
        while True:
            await trio.sleep_until(self.statistics.deadline_s)
            report = self.statistics.report(trio.current_time(), self.last_sent_seqno)
            last = words[word.LAST_SEQNO]
            self.log.info(
                "statistics",
                state=self._state,
                source_backlog=max(0, last - self.last_sent_seqno) if self.last_sent_seqno else None,
                receiver_backlog=max(0, self.last_received_seqno - self.last_applied_seqno),
                unacknowledged=max(0, last - self.consumer.acknowledged_seqno),
                last_written_seqno=last,
                last_applied_seqno=self.last_applied_seqno,
                lag_s=self.lag_s(),
                from_pool=self.from_pool,
                from_files=self.from_files,
                switches=self.switches,
                filter=None,
                **report.fields(),
            )
