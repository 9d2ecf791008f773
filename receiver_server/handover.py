"""The taker's part of a switchover: a secondary says whether it could be primary, proves where it stands, and is made
primary when its source has given the role.

Guarantees: it takes the role only of the source whose stream it receives, only after that one has given it durably, and
only at exactly the transaction that was named (replicate/roles/handover.py); a source that asks again is told that it
is done. Nothing is changed by a check, which tries the way back with the connection that will be used.
Leaves to others: connections (connection.py), the change itself (roles/change_of_role.py), the way back (the Source
Server of this instance, which is asked by an order).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import trio

from receiver_server.position import find_applied
from receiver_server.source_state import ServedConnection, SourceState
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import start_again
from replicate.daemon.orders import PROBE, give
from replicate.errors import NotSupportedError, ReplicateError, TryAgainError
from replicate.instance.instance import Instance
from replicate.roles.change_of_role import NEVER_PRIMARY, become_primary
from replicate.roles.given_role import note_given
from replicate.roles.handover import TakerAnswer, TakerView, judge
from replicate.system.failpoint import hit
from replicate.transfer.seed.install import seed_lock
from replicate.wire.message import (
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    HandoverStep,
)

LOOK_S: Final = 0.01
"""How often it is looked whether all is applied, while applications wait for it."""
SETTLES_S: Final = 3.0
"""So long an Update Process may take to follow a role that has just changed."""
COMES_S: Final = 5.0
"""A source that has just become one comes within this time."""
TAKE_S: Final = 60.0
"""So long the regions' locks are waited for: a reader holds none."""


class RoleTaker:
    """Of one Receiver Server, across roles and connections. All of it belongs to the event loop's thread."""

    def __init__(self, context: DaemonContext, instance: Instance) -> None:
        self.instance = instance
        self._log = context.log
        self.nursery: trio.Nursery | None = None
        """For what outlives a connection."""
        self.source: SourceState | None = None
        """While the instance is secondary."""
        self.is_taking = False
        """The pool is retired under our hands."""
        self.taken = trio.Event()
        """Set, and replaced, when the role was taken: this instance is primary."""
        self._moved = trio.Event()
        self._ended: HandoverAsk | None = None
        self._asked_s: float | None = None
        """When the source asked where we stand: its door was closed by then."""
        self._result: dict[str, Any] = {}

    def heard(self, connection: ServedConnection, message: object) -> None:
        """What the source says of an exchange of roles."""
        assert self.nursery is not None
        if isinstance(message, HandoverAsk):
            if message.step == HandoverStep.CHECK:
                self.nursery.start_soon(self._check, connection, message)
            elif message.step == HandoverStep.PROVE:
                self._asked_s = time.monotonic()
                self.nursery.start_soon(self._prove, connection, message)
            else:
                self._ended = message
        elif isinstance(message, Handover) and not self.is_taking:
            self.is_taking = True
            self.nursery.start_soon(self._take, connection, message.seqno)
        self._move()

    def left(self) -> None:
        """The source's connection has ended."""
        self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    def _say(self, connection: ServedConnection, message: HandoverReady | HandoverDone) -> None:
        if connection.link.can_exchange_roles:
            connection.link.say_handover(message)
            connection.drive.poke()

    # What the source asks.

    async def _check(self, connection: ServedConnection, asked: HandoverAsk) -> None:
        await self._until(lambda: not self._problems(), SETTLES_S, look_s=0.05)
        problems = self._problems() or await trio.to_thread.run_sync(self._way_back, connection.peer_name)
        hit("handover.checked")
        seqno = 0 if self.source is None else self.source.applied_seqno
        self._say(connection, HandoverReady(asked.step, seqno, 0, texts=tuple(problems)))

    def _problems(self) -> list[str]:
        """What bars it here, each with what to do."""
        source, instance = self.source, self.instance
        if source is None:
            return [f"{instance.name} is not secondary"]
        problems = []
        if instance.is_feed:
            problems.append(f"{instance.name} is a data feed, and {NEVER_PRIMARY}: name another secondary with --to")
        if told := instance.told_held:
            problems.append(f"{instance.name} {told}: it cannot be primary of the others; name another one with --to")
        if not source.is_update_running:
            problems.append(
                f"the Update Process of {instance.name} is {source.update_state.text}: see replicate -i "
                f"{instance.named} status"
            )
        if (frozen := instance.content.frozen) is not None:
            problems.append(f"{instance.name} is {frozen}: thaw it: replicate -i {instance.named} instance freeze off")
        if instance.waiting:
            given = "".join(f" --region {name}" for name in instance.waiting)
            lacks = f"{instance.name} has not got region {', '.join(instance.waiting)}"
            problems.append(f"{lacks}: seed it: replicate -i {instance.named} seed{given}")
        return problems

    def _way_back(self, peer: str) -> list[str]:
        """The stream will run the other way: through our Source Server for the one that is our source now."""
        instance, daemon = self.instance, f"source-{peer}"
        instance.reload()
        if peer not in {one.name for one in instance.peers}:
            return [
                f"{instance.name} does not know where {peer} listens: replicate -i {instance.named} peer add {peer} "
                "HOST:PORT"
            ]
        not_running = f"the Source Server of {instance.name} for {peer} does not run: {start_again(instance, daemon)}"
        if DaemonFiles(instance.path, daemon).lock.probe() is None:
            return [not_running]
        try:
            found = give(instance, daemon, PROBE)
        except ReplicateError as error:
            return [f"the way back from {instance.name} to {peer} does not work: {error}"]
        return [not_running] if found is None else []

    async def _prove(self, connection: ServedConnection, asked: HandoverAsk) -> None:
        """When all up to there is applied and durable: where we stand."""
        until_s = trio.current_time() + asked.timeout_ms / 1000
        while trio.current_time() < until_s and connection.link.can_exchange_roles and (source := self.source):
            pool = source.pool
            if min(source.applied_seqno, pool.durable_seqno) >= asked.seqno:
                break
            await trio.sleep(LOOK_S)
        try:
            position = await trio.to_thread.run_sync(find_applied, self.instance)
        except ReplicateError as error:
            self._say(connection, HandoverReady(asked.step, 0, 0, texts=(str(error),)))
            return
        hit("handover.before_proof")
        if position is None:
            self._say(connection, HandoverReady(asked.step, 0, 0, texts=(f"{self.instance.name} is not seeded",)))
            return
        ready = HandoverReady(
            asked.step, position.last_seqno, 0, position.vector, dict(position.chains), tuple(self._problems())
        )
        self._say(connection, ready)

    async def _take(self, connection: ServedConnection, seqno: int) -> None:
        """The source has given the role."""
        instance, source, peer = self.instance, self.source, connection.link.peer
        try:
            received = connection.link.last_received_seqno
            applied = received if source is None else source.applied_seqno
            gave = peer is not None and peer.role != "primary"
            answer, why = judge(TakerView(instance.role == "primary", applied, received, gave), seqno)
            if answer is TakerAnswer.REFUSES:
                raise TryAgainError(why, where=instance.name)
            if answer is TakerAnswer.TAKES:
                hit("handover.before_take")

                def take() -> None:
                    with seed_lock(instance):
                        become_primary(instance, timeout_s=TAKE_S, expect=seqno)
                        note_given(instance)

                await trio.to_thread.run_sync(take)
        except ReplicateError as error:
            if instance.role != "primary":
                self._log.error("the role was not taken", error=str(error), code=error.code)
                self._say(connection, HandoverDone(seqno, error.exit_code, str(error)))
                return
            self._log.warning("the role was taken, and not all that belongs to it is done", error=str(error))
        finally:
            self.is_taking = False
        hit("handover.taken")
        waited_s = None if self._asked_s is None else round(time.monotonic() - self._asked_s, 3)
        self._result = {"primary": instance.name, "secondary": connection.peer_name, "seqno": seqno}
        self._result["waited_s"] = waited_s
        self._log.info("the role was taken", seqno=seqno, source=connection.peer_name)
        self._say(connection, HandoverDone(seqno))
        self.taken.set()
        self.taken = trio.Event()
        self._move()

    # The command on this side.

    async def wish(self, timeout_s: float, *, dry_run: bool) -> dict[str, Any]:
        """Ask the source to hand its role over; what became of it, as RoleGiver.give tells it. Raises TryAgainError."""
        instance, where = self.instance, str(self.instance.path)
        instance.reload()
        if is_primary(instance):
            return {"problems": [], "primary": instance.name, "secondary": "", "seqno": None, "finished": True}
        await self._until(self._is_served, min(timeout_s, COMES_S), look_s=0.05)
        source = self.source
        connection = None if source is None else source.active
        if source is None or connection is None or not connection.link.can_exchange_roles:
            if connection is not None and connection.link.is_streaming:
                raise NotSupportedError(
                    f"{connection.peer_name} runs a release that cannot exchange roles",
                    where=where,
                    do="Upgrade it; or change the roles step by step (replicate help roles)",
                )
            state = "it begins" if source is None else source.activity
            raise TryAgainError(
                f"no source serves {instance.name} that could hand its role over: {state}",
                where=where,
                do=f"See replicate -i {instance.named} status; then again: replicate -i {instance.named} switchover",
            )
        self._ended, self._asked_s = None, None
        step = HandoverStep.TRY if dry_run else HandoverStep.WISH
        connection.link.say_handover(HandoverReady(step, source.applied_seqno, int(timeout_s * 1000)))
        connection.drive.poke()
        name = connection.peer_name

        def is_over() -> bool:
            gone = source.active is not connection and self._asked_s is None
            return (is_primary(instance) and not self.is_taking) or self._ended is not None or gone

        await self._until(is_over, timeout_s)
        ended = self._ended
        if is_primary(instance):
            return {"problems": [], "finished": False, **self._result}
        if ended is None:
            raise TryAgainError(
                f"{name} has not handed its role over within {timeout_s:g} s, or the connection was lost",
                where=where,
                do=f"See replicate -i {instance.named} status on both sites, then again: replicate -i "
                f"{instance.named} switchover --to {instance.name}",
            )
        if ended.seqno:
            raise TryAgainError(f"{name} says: {'; '.join(ended.texts)}", where=where)
        told = {"primary": instance.name, "secondary": name, "seqno": None, "finished": False}
        return {**told, "problems": list(ended.texts), "is_done": False}

    def _is_served(self) -> bool:
        connection = None if self.source is None else self.source.active
        return connection is not None and connection.link.can_exchange_roles

    async def _until(self, is_true: Callable[[], bool], timeout_s: float, look_s: float = 1.0) -> None:
        with trio.move_on_after(timeout_s):
            while not is_true():
                with trio.move_on_after(look_s):
                    await self._moved.wait()


def is_primary(instance: Instance) -> bool:
    """As its file said when it was read last."""
    return instance.role == "primary"
