"""The Update Process: takes what the Receiver Server has put into the receive pool, and applies it.

Guarantees: runs, stops and dies independently of the Receiver Server; sleeps on a doorbell when there is nothing to do;
applies in a thread of its own, so that it answers signals and says how far it is while a batch is being applied; on a
stop it applies what had been received by then, as far as the time allows, and flushes. What it cannot verify ends it,
by name. On a primary it stands by; it follows the role while it runs.
Leaves to others: how rows are applied (applier.py), and who feeds the pool.
"""

from __future__ import annotations

import gc
import math
import os
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.figures import no_figures
from replicate.daemon.role_watch import other_role
from replicate.daemon.statistics import BusyRate, Lag, Statistics
from replicate.daemon.statistics_lines import Reporting, ReportingOrders, configured_period_s
from replicate.daemon.ticks import sleep_to_tick
from replicate.door.flush import flush
from replicate.door.pruning import prune_journal
from replicate.door.recovery.opening import close_door
from replicate.door.secondary import ApplySession, open_apply_session
from replicate.errors import (
    BusyError,
    DamagedError,
    JournalIOError,
    NotFoundError,
    PoolReplacedError,
    ReplicateError,
    TryAgainError,
    TurnedBackError,
)
from replicate.instance.instance import Instance
from replicate.model.clock_skew import HEARD_NS, csn_end
from replicate.pool import control as word
from replicate.pool.doorbell import Doorbell
from replicate.pool.receive_pool import SOURCE_LAST_SEQNO, UPDATE_SLOT, ReceivePool
from replicate.status.partition_figures import PartitionFigures, in_records
from update_process.applier import Applier
from update_process.batch.by_partition import PartitionCounts
from update_process.figures import applied_of_each, known_of_source, measured, why_not_ready
from update_process.hook_keeper import begin_telling, keep_hook
from update_process.work_result import Done, Waiting

if TYPE_CHECKING:
    from update_process.supplied_transactions import SupplierApplier

STANDING_BY: Final = "standing by: this instance is primary"
SLICE_S: Final = 0.5
"""How long the applying thread works before it reports, at the end of its batch: that takes up to twice as long."""
NAP_S: Final = 0.5
"""Longest sleep on the doorbell, so that a lost ring, a stop, or a replaced pool is noticed."""
SHORT_NAP_S: Final = 0.02
"""While something outside must move first that rings no bell: a barrier, a lock, a restart of the stream."""
EARLY_S: Final = 0.002
"""So long the regions' transactions stay open for what the Receiver Server has announced by its ring."""
ALIVE_PERIOD_S: Final = 0.25
REPORT_PERIOD_S: Final = {Waiting.LOCK: 10.0, Waiting.RESTART: 30.0}
"""These causes of waiting are logged at once, and while they last or come again, only after this time."""
PRUNE_PERIOD_S: Final = 10.0
SWITCH_S: Final = 0.0005
"""After this time a thread that computes lets another one have the interpreter, instead of after 5 ms: a batch is
committed in one thread, in a dozen short calls of the kernel, while another one decodes the next."""
COLLECT_AFTER: Final = 200_000
"""Objects made between two runs of the garbage collector: decoded rows are no cycles, and a third of the time was
spent looking for some (measured)."""


AnyApplier: TypeAlias = "Applier | SupplierApplier"


async def serve(context: DaemonContext) -> None:
    """Run until a stop is requested. Raises what opening the instance raises, and what the applier refuses by."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 50, 100)
    sys.setswitchinterval(SWITCH_S)
    instance = Instance.open(context.instance_path)
    orders = ReportingOrders(instance, context)
    await orders.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(orders.serve)
        while not context.stop_requested.is_set():
            context.follows(instance)
            if not instance.receives:
                context.why_not_ready = lambda: ""
                context.ready(STANDING_BY)
                await other_role(instance, context.stop_requested)
            else:
                hook = trio.CancelScope()
                if context.config.update.comment_hook:
                    await trio.to_thread.run_sync(begin_telling, instance, context.log)
                    nursery.start_soon(_keep_hook, context, hook)
                try:
                    await _apply(context, instance, orders)
                finally:
                    hook.cancel()
        nursery.cancel_scope.cancel()
    context.status("stopped")


async def _keep_hook(context: DaemonContext, scope: trio.CancelScope) -> None:
    with scope:
        await keep_hook(context.instance_path, context.log)


async def _apply(context: DaemonContext, instance: Instance, orders: ReportingOrders) -> None:
    """What a secondary asks for, until its role has changed (be it twice) or the stop is requested."""
    lock_timeout_s = context.config.update.lock_timeout_s
    try:
        session = await trio.to_thread.run_sync(lambda: open_apply_session(instance, lock_timeout_s=lock_timeout_s))
    except ReplicateError as error:
        instance.reload()
        if not instance.receives:
            return  # it became that while we opened
        if instance.is_supplier and isinstance(error, BusyError):  # an application's transaction lasts long
            context.status(Waiting.LOCK.value, last_error=str(error))
            context.ready(Waiting.LOCK.value)
            return
        raise
    turned_back: TurnedBackError | None = None
    own = session.door.instance.content.origin.key
    try:
        driver = _Driver(context, instance, session)
        orders.reporting = driver.reporting
        await driver.run()
    except* TurnedBackError as group:
        turned_back = _first(group)
    except* PoolReplacedError:
        context.log.warning("journal pool replaced")  # in the middle of our work; nothing of it is lost
    finally:
        context.figures, orders.reporting = no_figures, None
        session.close()
        close_door(session.door)
    if turned_back is not None:
        from replicate.roles.restored_supplier import turn_back

        context.log.error("it takes no writes until all of it is back", error=str(turned_back), code=turned_back.code)
        await trio.to_thread.run_sync(partial(turn_back, instance, origin=own))
    instance.reload()


def _first(group: BaseExceptionGroup[TurnedBackError]) -> TurnedBackError:
    one = group.exceptions[0]
    return _first(one) if isinstance(one, BaseExceptionGroup) else one


class _Driver:
    """One run of the daemon."""

    def __init__(self, context: DaemonContext, instance: Instance, session: ApplySession) -> None:
        self._context = context
        self._instance = instance
        self._session = session
        self._log = context.log
        settings = context.config.update
        self._statistics = Statistics(
            configured_period_s(settings),
            trio.current_time(),
            seqno=session.position.last_seqno,
            each=settings.statistics_transactions,
        )
        self.reporting = Reporting(
            context,
            self._statistics,
            settings,
            seqno=lambda: session.position.last_seqno,
            measure=self._measure,
        )
        self._last_waiting = Waiting.MORE
        self._reported_s: dict[Waiting, float] = {}
        self._stop_at: tuple[int, ...] | None = None
        """Up to where is applied what was received when the stop was asked for, as the applier's `arrived` counts."""
        self._lag = Lag()
        self._by_partition = PartitionCounts()
        self._busy = BusyRate()
        self._pool: ReceivePool | None = None
        """The one that is attached."""
        self._fenced_since_us: int | None = None
        """See SupplierApplier."""

    async def run(self) -> None:
        context = self._context
        context.status("waiting for the Receiver Server", last_applied_seqno=self._session.position.last_seqno)
        context.figures, context.why_not_ready = self._figures, self._why_not_ready
        context.from_files = PartitionFigures(self._session.door.instance.path, in_records).look
        context.ready("waiting for the Receiver Server")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.reporting.run)
            nursery.start_soon(self._prune)
            while not context.stop_requested.is_set():
                pool = await self._attach()
                if pool is None:
                    if context.stop_requested.is_set():
                        await self._flush()
                    break
                with closing(pool):
                    await self._apply_from(pool)
            nursery.cancel_scope.cancel()

    def _figures(self) -> dict[str, Any]:
        measure = measured(self._session, self._pool, self._statistics, self._lag)
        if self._session.door.instance.is_supplier:
            since_us = self._fenced_since_us
            measure["schema_fence_s"] = 0 if since_us is None else max(0.0, time.time() - since_us / 1e6)
        return {"state": self._last_waiting.value, **measure, **self._applied_of_each()}

    def _applied_of_each(self) -> dict[str, Any]:
        counts = self._by_partition
        return applied_of_each(counts, self._instance.partitions_now().name) if counts.found else {}

    def _why_not_ready(self) -> str:
        return why_not_ready(self._session, self._pool, self._lag, self._last_waiting)

    async def _attach(self) -> ReceivePool | None:
        """The receive pool, as soon as there is one. None when a stop was requested meanwhile, or our session is
        nobody's any more: each change of the role retires both pools, and of what was written by a secondary that was
        primary for a moment its session knows nothing."""
        while not self._context.stop_requested.is_set() and self._session.door.pool.is_current():
            try:
                return ReceivePool.attach(self._instance.content.uuid)
            except (NotFoundError, TryAgainError, PoolReplacedError):
                pass  # not there yet, or just being made
            with trio.move_on_after(NAP_S):
                await self._context.stop_requested.wait()
        return None

    async def _apply_from(self, pool: ReceivePool) -> None:
        context = self._context
        applier = self._applier(pool)
        content = self._instance.content
        self._log.info("receive pool attached", next_seqno=applier.next_seqno, **content.told_partitions(content.held))
        if not self._lag.newest_seqno and not self._instance.is_supplier:
            with suppress(DamagedError):  # the applier finds that, and says what to do
                # The oldest only: to go through a full pool takes a second, in which nothing would be applied.
                oldest = islice(pool.commit_times(applier.applied_seqno, time.monotonic_ns()), 1)
                await trio.to_thread.run_sync(self._lag.look_back, oldest)
        self._pool = pool
        pool.note_update_process(os.getpid(), time.monotonic_ns())
        try:
            with closing(Doorbell.claim(pool, self._instance.run_directory, UPDATE_SLOT)) as bell:
                async with trio.open_nursery() as nursery:
                    self._judge_own_clock(pool)  # before anything is applied
                    nursery.start_soon(self._say_alive, pool)
                    nursery.start_soon(self._wake_to_stop, bell)
                    await self._loop(pool, applier, bell)
                    if context.stop_requested.is_set():
                        await self._flush()
                        applier.publish()  # all of it is durable now: the Receiver Server tells the source
                    nursery.cancel_scope.cancel()
        finally:
            if context.stop_requested.is_set():
                self._say_last_word(applier)
            self._pool = None
            self._busy = BusyRate()
            context.status(applied_per_s=None)
            applier.close()
            pool.note_update_process(0, 0)

    def _applier(self, pool: ReceivePool) -> AnyApplier:
        instance, session = self._instance, self._session
        settings, directory = self._context.config.update, instance.conflict_directory
        if instance.is_supplier:  # nobody else needs that room
            from update_process.supplied_transactions import SupplierApplier

            return SupplierApplier(session, pool, settings, conflict_directory=directory)
        return Applier(session, pool, settings, conflict_directory=directory, counted=self._by_partition)

    async def _flush(self) -> None:
        """At an end in order: nothing of what is applied has to be rolled forward at the next start."""
        try:
            problems = await trio.to_thread.run_sync(flush, self._session.door)
        except ReplicateError as error:
            problems = [str(error)]
        for problem in problems:
            self._log.error("not flushed", error=problem)

    def _say_last_word(self, applier: AnyApplier) -> None:
        """At a stop, whether or not there was time for all that had been received when it was asked for."""
        left, applied = applier.left(self._stop_at or applier.arrived), applier.applied_seqno
        said = f"applied {applied}, {left} received and not applied"
        self._context.status(last_word=said)
        self._log.info("applying ended", last_word=said, last_applied_seqno=applied, receiver_backlog=left)

    async def _say_alive(self, pool: ReceivePool) -> None:
        while True:
            pool.note_update_process(os.getpid(), time.monotonic_ns())
            self._judge_own_clock(pool)
            self._sample(pool)
            if by_partition := self._applied_of_each():
                self._context.status(**by_partition)
            await sleep_to_tick(ALIVE_PERIOD_S)

    def _judge_own_clock(self, pool: ReceivePool) -> None:
        """A supplier whose clock is ahead of all others' is kept from writing: they would stop at what it writes."""
        door = self._session.door
        if not door.instance.is_supplier:
            return
        most_s, now_ns = self._context.config.update.clock_ahead_max_s, time.monotonic_ns()
        end = csn_end(*pool.clocks_note, time.time_ns(), now_ns, most_s)
        if bool(end) != bool(door.words[word.CSN_END]):
            told = self._log.error if end else self._log.info
            told("nothing is committed here: this host's clock is ahead" if end else "this host's clock is right again")
        door.words[word.CSN_END_UNTIL_NS] = now_ns + HEARD_NS
        door.words[word.CSN_END] = end

    def _note_lag(self, pool: ReceivePool) -> None:
        if self._session.door.instance.is_supplier:
            return  # its sources count each by its own journal: the Receiver Server knows
        self._lag.observed(max(pool.words[SOURCE_LAST_SEQNO], pool.last_received_seqno), time.monotonic_ns())

    def _sample(self, pool: ReceivePool) -> None:
        """For the statistics: how bad it is at this moment."""
        peaks: dict[str, float | None] = {}
        if not self._session.door.instance.is_supplier:
            known = known_of_source(self._session, pool, self._lag)
            peaks = {
                "lag_s": known.lag_at_least_s,
                "backlog": known.backlog,
                "backlog_at_least": known.backlog_at_least,
            }
        self._statistics.sample(trio.current_time(), peaks=peaks, lasting={"cut_s": not pool.is_connected})

    async def _wake_to_stop(self, bell: Doorbell) -> None:
        await self._context.stop_requested.wait()
        bell.wake()

    async def _loop(self, pool: ReceivePool, applier: AnyApplier, bell: Doorbell) -> None:
        context = self._context
        seen = -1
        while True:
            if not pool.is_current():
                self._log.info("receive pool replaced", last_applied_seqno=applier.applied_seqno)
                return
            if context.stop_requested.is_set() and self._stop_at is None:
                self._stop_at = applier.arrived
            self._note_lag(pool)
            # Asleep in the thread that applies: what arrives is applied without a turn of this loop's before it.
            asked, work = partial(self._has_arrived, pool, seen), partial(self._work, pool, applier)
            seen, done = await bell.wait_and_call(asked, NAP_S, work, partial(self._get_ready, applier))
            self._note(done, applier)
            is_held_up = done.waiting not in (Waiting.MORE, Waiting.LOCK)
            if self._stop_at is not None and (is_held_up or applier.has_reached(self._stop_at)):
                return
            if done.waiting not in (Waiting.NOTHING, Waiting.PART):
                seen = -1
                if done.waiting is not Waiting.MORE:
                    await trio.sleep(SHORT_NAP_S)

    # In the applying thread: they read, and change nothing of ours.

    def _has_arrived(self, pool: ReceivePool, seen: int) -> bool:
        """Whether there is something to look at since the pool was written up to `seen`."""
        return pool.arrived_address != seen or self._context.stop_requested.is_set()

    def _get_ready(self, applier: AnyApplier) -> float:
        """The Receiver Server has rung before there is anything: it verifies what has just arrived. So long we wait."""
        return EARLY_S if applier.begin_early() else NAP_S

    def _work(self, pool: ReceivePool, applier: AnyApplier) -> tuple[int, Done]:
        """Apply what is there, unless the pool was replaced while we slept; first: up to where it was written when we
        began to look."""
        seen = pool.arrived_address
        return seen, applier.work(SLICE_S, self._stop_asked(applier)) if pool.is_current() else Done()

    def _stop_asked(self, applier: AnyApplier) -> Callable[[], bool]:
        """For the applying thread: whether what was received before the stop is applied. Reads, changes nothing."""
        return lambda: self._stop_at is not None and applier.has_reached(self._stop_at)

    def _note(self, done: Done, applier: AnyApplier) -> None:
        statistics = self._statistics
        if done.batches or done.parts or done.skipped:
            statistics.batch(done.transactions, done.bytes)
            statistics.count("batches", done.batches)
            statistics.count("parts", done.parts)
            statistics.count("skipped", done.skipped)
            statistics.count("merged", done.merged)
            statistics.count("lost", done.lost)
        waiting = done.waiting
        # A large transaction counts as one when it has come to its end, and as none until then.
        is_busy = waiting is Waiting.MORE and not done.parts
        self._busy.worked(trio.current_time(), done.transactions, has_more=is_busy)
        changed = waiting is not self._last_waiting
        if changed or done.transactions:
            text = "applying" if waiting is Waiting.MORE else waiting.value
            self._context.status(
                text,
                last_applied_seqno=applier.applied_seqno,
                state=text,
                transactions_total=statistics.total("transactions"),
                skipped_total=statistics.total("skipped"),
                applied_per_s=self._busy.per_s,
            )
        if not isinstance(applier, Applier):
            self._context.status(awaited=applier.awaited(), told=applier.told())
            self._fenced_since_us = applier.fenced_since_us()
        for region, is_made in done.arrived:
            if is_made:
                self._log.info("region made", region=region)
            else:
                self._log.warning("region waits for its seed, the others go on", region=region)
        for seqno, by in done.left_out:
            self._log.warning("transaction left out", seqno=seqno, decided_by=by)
        for seqno, by in done.overwritten:
            self._log.warning("transaction overwrote rows", seqno=seqno, decided_by=by)
        if done.abandoned:
            self._log.info("large transaction begins again", why=done.abandoned, next_seqno=applier.next_seqno)
        if waiting in REPORT_PERIOD_S:
            now_s = trio.current_time()
            if now_s >= self._reported_s.get(waiting, -math.inf) + REPORT_PERIOD_S[waiting]:
                self._reported_s[waiting] = now_s
                self._log.warning(waiting.value, why=done.text, next_seqno=applier.next_seqno)
        elif changed and waiting is Waiting.BARRIER:
            self._log.info(waiting.value, last_applied_seqno=applier.applied_seqno)
        self._last_waiting = waiting

    def _measure(self) -> dict[str, Any]:
        """For a line of statistics."""
        if self._pool is not None:
            self._sample(self._pool)
        return self._figures()

    async def _prune(self) -> None:
        """Nobody else does it on a secondary: what all regions hold on the disk, only recovery of the newest needs."""
        while True:
            await trio.sleep(PRUNE_PERIOD_S)
            try:
                removed = await trio.to_thread.run_sync(prune_journal, self._session.door)
            except JournalIOError as error:
                # After a failed sync nobody can say what is on the disk: keep the journal, which recovery needs.
                self._log.error("pruning stopped", error=str(error), code=error.code)
                return
            except ReplicateError as error:
                self._log.error("journal not pruned", error=str(error), code=error.code)
                continue
            if removed:
                self._log.info("journal pruned", segments=len(removed), last_removed_segment=removed[-1])


def finish_received(instance: Instance, *, timeout_s: float) -> int:
    """Apply, in this process, what the receive pool still holds; the last seqno applied. For `region release`.

    No Update Process may run. Returns at once when there is no pool. Of a large transaction that was received in part
    nothing is applied. Raises TryAgainError when `timeout_s` seconds are not enough, or when a whole transaction that
    was received cannot be applied (a part before it is missing); and what the applier raises.
    """
    session = open_apply_session(instance)
    try:
        try:
            pool = ReceivePool.attach(instance.content.uuid)
        except NotFoundError:
            return session.position.last_seqno
        with closing(pool):
            applier = Applier(session, pool, instance.config.update, conflict_directory=instance.conflict_directory)
            try:
                done = applier.work(timeout_s)
            finally:
                applier.close()
            applied, received = applier.applied_seqno, pool.last_received_seqno
            if done.waiting in (Waiting.NOTHING, Waiting.PART, Waiting.RESTART):
                if applied >= received:
                    return applied
                # What is after a hole is lost with the region, so it is not ours to leave.
                raise TryAgainError(
                    f"transactions up to {received} were received, but only those up to {applied} can be applied: "
                    f"{done.text or done.waiting.value}",
                    where=str(instance.path),
                    do="Start receiver and update once more, so that they finish; or leave them out: --force",
                    applied=applied,
                    received=received,
                )
            raise TryAgainError(
                f"what was received could not be applied within {timeout_s:g} s: {done.text or done.waiting.value}",
                where=str(instance.path),
                do="Try again with a larger --timeout",
                applied=applied,
                received=received,
            )
    finally:
        session.close()
        close_door(session.door)
