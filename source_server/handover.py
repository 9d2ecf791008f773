"""The giver's part of a switchover: a primary hands its role over to the peer of this Source Server, step by step.

Guarantees: the steps are those of replicate/roles/handover.py; before the role is given the peer could be primary, the
way back was tried, nothing is committed beyond N, and vector and chain hashes are equal at N; any failure before that
leaves the role here and the door open. A role that is given is told until the peer is primary: also after a restart,
without a command.
Leaves to others: connections (connection.py), the door (replicate/door/closed_door.py), the change itself
(roles/change_of_role.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, Protocol

import trio

from replicate.daemon.daemon import DaemonContext
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import start_again
from replicate.door.closed_door import ClosedDoor, closed_door
from replicate.door.recovery.opening import close_door, open_door
from replicate.errors import ReplicateError, TryAgainError
from replicate.instance.file import Successor
from replicate.instance.instance import Instance
from replicate.model.vector import Position
from replicate.roles.change_of_role import become_secondary
from replicate.roles.handover import ENDS, GiverStanding, GiverStep, first_step, next_step
from replicate.system.failpoint import hit
from replicate.transfer.seed.install import seed_lock
from replicate.wire.message import (
    Handover,
    HandoverAsk,
    HandoverDone,
    HandoverReady,
    HandoverStep,
    Restart,
)
from source_server.consumer_state import ConsumerState
from source_server.restart import agree

LAG_S_MAX: Final = 10.0
"""A peer that lags more is not ready: applications would wait for it."""
NEAR_S: Final = 1.5
"""The door is closed when the peer lags no more than this: it says once a second how far it is."""
NEAR_WITHIN_S: Final = 5.0
"""Writers that never rest may keep it above that: after this time LAG_S_MAX counts."""
CHECK_S: Final = 20.0
COMES_S: Final = 5.0
TELL_AGAIN_S: Final = 0.5
"""A peer that could not take the role is told again after this time."""


class StreamingConnection(Protocol):
    """The connection on which the stream runs, as this module sees it."""

    @property
    def can_exchange_roles(self) -> bool:
        """The stream runs, and the peer knows how."""

    def say_handover(self, message: HandoverAsk | Handover) -> None:
        """Say it now."""


class RoleGiver:
    """Of one Source Server, across its connections and doors. All of it belongs to the event loop's thread."""

    def __init__(self, context: DaemonContext, instance: Instance, peer_name: str) -> None:
        self._instance = instance
        self._peer = peer_name
        self._log = context.log.bind(peer=peer_name)
        self.nursery: trio.Nursery | None = None
        """For what outlives a connection."""
        self.consumer: ConsumerState | None = None
        """Of the door that is open now."""
        self.changed = trio.Event()
        """The role has gone: every door that was opened before is nobody's any more."""
        self._connection: StreamingConnection | None = None
        self._moved = trio.Event()
        """Set, and replaced, when something has happened."""
        self._answer: HandoverReady | None = None
        self._refusal = ""
        """Why the peer has not taken the role, by its last word."""
        self._is_busy = False
        self._closed: ClosedDoor | None = None
        """While the role is being given: nothing is committed."""
        self._compared_at = 0
        """Up to here both sites were found equal."""
        self._proof: dict[str, Any] = {}
        self._closed_s: float | None = None

    # What is known.

    @property
    def is_pending(self) -> bool:
        """The role was handed to our peer, which has not said yet that it has it."""
        successor = self._instance.content.successor
        return successor is not None and successor.is_pending and successor.name == self._peer

    def _standing(self) -> GiverStanding:
        self._instance.reload()
        if self._instance.role == "primary":
            return GiverStanding.HAS_ROLE
        successor = self._instance.content.successor
        if successor is None or successor.name != self._peer:
            raise TryAgainError(
                f"{self._instance.name} is secondary, and has not handed its role over to {self._peer}",
                where=str(self._instance.path),
                do=f"Ask for it here: replicate -i {self._instance.named} switchover --to {self._instance.name}",
            )
        return GiverStanding.HAS_GIVEN if successor.is_pending else GiverStanding.HAS_SUCCESSOR

    # What connections tell.

    def streams(self, connection: StreamingConnection) -> None:
        """The stream runs on it."""
        self._connection = connection
        self._move()
        self._tell()

    def left(self) -> None:
        """It has ended."""
        self._connection = None
        self._move()

    def heard(self, message: object) -> None:
        """What the peer says of an exchange of roles."""
        assert self.nursery is not None
        if isinstance(message, HandoverReady):
            if message.step in (HandoverStep.WISH, HandoverStep.TRY):
                self.nursery.start_soon(self._wished, message)
            else:
                self._answer = message
        elif isinstance(message, HandoverDone):
            if message.exit_code:
                self._refusal = message.text
                self._log.error("the role was not taken", error=message.text)
                self.nursery.start_soon(self._tell_later)
            else:
                self.is_primary_there()
        self._move()

    def is_primary_there(self) -> None:
        """The peer says that it is primary: of one that was handed the role that is the end of it."""
        if self.is_pending:
            assert self.nursery is not None
            self.nursery.start_soon(self._settle)

    async def _settle(self) -> None:
        await trio.to_thread.run_sync(self._instance.successor_is_primary)
        self._log.info("the role was taken", primary=self._peer)
        if self.consumer is not None:
            self.consumer.mode.follow(self._instance.peer(self._peer))
        self._move()

    def _tell(self) -> None:
        successor, connection = self._instance.content.successor, self._connection
        if self.is_pending and successor is not None and connection is not None and connection.can_exchange_roles:
            hit("handover.before_tell")
            self._log.info("handing the role over", seqno=successor.seqno)
            connection.say_handover(Handover(successor.seqno))

    async def _tell_later(self) -> None:
        await trio.sleep(TELL_AGAIN_S)
        self._tell()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    # The command.

    async def give(self, timeout_s: float, *, dry_run: bool) -> dict[str, Any]:
        """Hand the role over, or go on with that; what is told of it. With `dry_run`, or where something bars it:
        `problems`, and all is as it was.

        Raises TryAgainError and what the steps raise: what has become of the roles stands in the error."""
        if self._is_busy:
            raise TryAgainError("a switchover is under way already", where=self._instance.name, do="Wait for its end")
        self._is_busy = True
        try:
            return await self._give(trio.current_time() + timeout_s, dry_run=dry_run)
        finally:
            self._is_busy = False

    async def _give(self, deadline_s: float, *, dry_run: bool) -> dict[str, Any]:
        step, problems, failure = first_step(self._standing()), [], None
        has_begun = step is GiverStep.CHECK
        self._closed_s, self._proof, waited_s = None, {}, None
        async with AsyncExitStack() as held:
            while step not in ENDS:
                at, is_well = step, True
                try:
                    if step is GiverStep.CHECK:
                        problems = await self._check(deadline_s)
                        if problems or dry_run:
                            return self._told(problems=problems, is_done=False)
                    else:
                        await self._act(step, held, deadline_s)
                except ReplicateError as error:
                    failure, is_well = error, False
                step = next_step(step, is_well=is_well, standing=self._standing())
                self._log.info("switchover", step=at.name, is_well=is_well, next=step.name)
            if step is GiverStep.DONE and self._closed_s is not None:
                waited_s = round(time.monotonic() - self._closed_s, 3)
        if step is not GiverStep.DONE:
            assert failure is not None
            raise self._failed(step, failure)
        return self._told(is_done=True, waited_s=waited_s, finished=not has_begun)

    def _told(self, **facts: Any) -> dict[str, Any]:
        successor = self._instance.content.successor
        others = [one.name for one in self._instance.peers if one.name != self._peer]
        return {
            "problems": [],
            "primary": self._peer,
            "secondary": self._instance.name,
            "seqno": None if successor is None else successor.seqno,
            "other_peers": others,
            "waited_s": None,
            "finished": False,
            **self._proof,
            **facts,
        }

    def _failed(self, step: GiverStep, failure: ReplicateError) -> ReplicateError:
        again = f"replicate -i {self._instance.named} switchover --to {self._peer}"
        if step is GiverStep.KEPT:
            failure.args = (f"{failure}. Roles and writers are as they were",)
            return failure
        why = self._refusal or str(failure)
        return TryAgainError(
            f"{self._instance.name} is secondary, and {self._peer} has not said yet that it is primary: {why}",
            where=str(self._instance.path),
            do=f"Its Source Server goes on trying; wait for it: {again}. Should {self._peer} never come back, here: "
            f"replicate -i {self._instance.named} promote --force",
        )

    async def _wished(self, wish: HandoverReady) -> None:
        """The peer wishes to be primary: what becomes of it is its own role, or why not."""
        texts, exit_code = [], 0
        try:
            told = await self.give(wish.timeout_ms / 1000, dry_run=wish.step == HandoverStep.TRY)
            texts = told["problems"]
        except ReplicateError as error:
            texts, exit_code = [str(error)], error.exit_code
        connection = self._connection
        if self._instance.role == "primary" and connection is not None and connection.can_exchange_roles:
            connection.say_handover(HandoverAsk(HandoverStep.ENDED, exit_code, 0, tuple(texts)))

    # The steps.

    async def _act(self, step: GiverStep, held: AsyncExitStack, deadline_s: float) -> None:
        if step is GiverStep.CATCH_UP:
            await self._catch_up(deadline_s)
        elif step is GiverStep.CLOSE:
            await self._close(held, deadline_s)
        elif step is GiverStep.PROVE:
            await self._prove(deadline_s)
        elif step is GiverStep.GIVE:
            await self._change(deadline_s)
        else:
            await self._until(lambda: not self.is_pending, deadline_s, f"{self._peer} to take the role")

    async def _check(self, deadline_s: float) -> list[str]:
        """What bars it, each with what to do."""
        with suppress(TryAgainError):  # a peer that has just become secondary comes within this time
            await self._until(
                lambda: self._connection is not None, min(deadline_s, trio.current_time() + COMES_S), self._peer
            )
        instance, consumer, named = self._instance, self.consumer, self._instance.named
        if self._connection is None or consumer is None:
            state = "its Source Server is not ready" if consumer is None else consumer.activity
            return [f"{self._peer} is not served by {instance.name} now: {state}. See replicate -i {named} status"]
        if not self._connection.can_exchange_roles:
            return [
                f"{self._peer} runs a release that cannot exchange roles: upgrade it, or change the roles step by step "
                "(replicate help roles)"
            ]
        problems = [
            f"{name} of {instance.name} does not run, and what is sent back would find nobody: start it: "
            f"{start_again(instance, name)}"
            for name in ("receiver", "update")
            if DaemonFiles(instance.path, name).lock.probe() is None
        ]
        if instance.content.frozen is not None:
            problems.append(f"{instance.name} is {instance.content.frozen}: replicate -i {named} instance freeze off")
        if (lag_s := consumer.lag_s()) > LAG_S_MAX:
            problems.append(f"{self._peer} lags {lag_s:.0f} s: wait until it is less than {LAG_S_MAX:g} s")
        hit("handover.before_check")
        found = await self._ask(HandoverStep.CHECK, 0, min(deadline_s, trio.current_time() + CHECK_S))
        return [*problems, *found.texts]

    async def _catch_up(self, deadline_s: float) -> None:
        """So that writers wait for little."""
        near_by_s = trio.current_time() + NEAR_WITHIN_S

        def is_near() -> bool:
            limit_s = NEAR_S if trio.current_time() < near_by_s else LAG_S_MAX
            return self.consumer is not None and self.consumer.lag_s() <= limit_s

        await self._until(is_near, deadline_s, f"{self._peer} to have nearly all", look_s=0.05)

    async def _close(self, held: AsyncExitStack, deadline_s: float) -> None:
        door = await trio.to_thread.run_sync(open_door, self._instance)
        held.callback(close_door, door)
        left_s = max(0.001, deadline_s - trio.current_time())
        self._closed_s = time.monotonic()
        self._closed = await trio.to_thread.run_sync(held.enter_context, closed_door(door, timeout_s=left_s))
        await trio.to_thread.run_sync(door.sync_to_end)
        hit("handover.closed")

    async def _prove(self, deadline_s: float) -> None:
        """The peer has all up to N, and it is the same. Raises the refusal of a stream that would part."""
        closed = self._closed
        assert closed is not None
        seqno = closed.seqno
        found = await self._ask(HandoverStep.PROVE, seqno, deadline_s)
        if found.texts or found.seqno != seqno:
            why = "; ".join(found.texts) or f"it has {found.seqno}"
            raise TryAgainError(f"{self._peer} does not have all up to {seqno}: {why}", where=self._instance.name)
        await trio.to_thread.run_sync(agree, closed.door, Restart(seqno + 1, found.vector, found.chains))
        self._compared_at = seqno
        self._proof = proof_of(Position(seqno, found.vector, found.chains))
        hit("handover.proved")

    async def _change(self, deadline_s: float) -> None:
        instance, successor = self._instance, Successor(self._peer, self._compared_at, is_pending=True)
        left_s = max(0.1, deadline_s - trio.current_time())

        def change() -> None:
            with seed_lock(instance):
                become_secondary(instance, timeout_s=left_s, successor=successor)

        assert self._closed is not None
        self._closed.turn_away()
        try:
            await trio.to_thread.run_sync(change)
        finally:
            if instance.role != "primary":
                self.changed.set()
                self.changed = trio.Event()
        hit("handover.given")

    async def _ask(self, step: HandoverStep, seqno: int, deadline_s: float) -> HandoverReady:
        """The peer's answer. TryAgainError when there is none in time, or the connection is lost."""
        connection, self._answer = self._connection, None
        if connection is None or not connection.can_exchange_roles:
            raise TryAgainError(f"the connection to {self._peer} was lost", where=self._instance.name, do="Try again")
        left_ms = max(1, int(1000 * (deadline_s - trio.current_time())))
        connection.say_handover(HandoverAsk(step, seqno, min(left_ms, 2**31)))

        def answered() -> bool:
            if self._connection is not connection:
                raise TryAgainError(
                    f"the connection to {self._peer} was lost", where=self._instance.name, do="Try again"
                )
            return self._answer is not None and self._answer.step == step

        await self._until(answered, deadline_s, f"an answer of {self._peer}")
        assert self._answer is not None
        return self._answer

    async def _until(self, is_true: Callable[[], bool], deadline_s: float, what: str, look_s: float = 1.0) -> None:
        """Wait. TryAgainError at the deadline."""
        while not is_true():
            if trio.current_time() >= deadline_s:
                raise TryAgainError(
                    f"waited in vain for {what}", where=self._instance.name, do="Try again, with a longer --timeout"
                )
            with trio.move_on_at(min(deadline_s, trio.current_time() + look_s)):
                await self._moved.wait()


def proof_of(position: Position) -> dict[str, Any]:
    """What was found equal on both sides, as it is printed."""
    return {
        "vector": {f"{origin:08x}": position.vector.last(origin) for origin in sorted(position.vector.origins())},
        "chains": {f"{origin:08x}": f"{chain:016x}" for origin, (_, chain) in sorted(position.chains.items())},
    }
