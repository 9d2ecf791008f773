"""Both servers in one trio process, over real loopback TCP: contexts, logs that can be asked, a relay to break.

Guarantees: `servers` stops what it has started when its block is left; a daemon that fails fails the test, unless the
test takes its error with `failed`.
Leaves to others: what is committed on the primary.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import trio

from receiver_server.process import serve as serve_receiver
from replicate.daemon.daemon import DaemonContext
from replicate.daemon.lock_file import LockFile
from replicate.door.door import Door
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.journal.record import pack_elements
from replicate.model.transaction import Op
from replicate.pool import control as word
from replicate.security.shared_key import default_path, read_key
from replicate.settings.load import Config
from replicate.wire.proof import Proof
from replicate.wire.state import Role
from source_server.process import serve as serve_source
from tests.harness.waiting import PATIENCE_S, wait_until_async

QUICK: dict[str, object] = {
    "source.heartbeat_period_s": 0.2,
    "source.dead_after_s": 60.0,
    "source.hard_period_s": 0.05,
    "source.soft_period_s": 0.1,
    "source.connect_timeout_s": 20.0,
    "receiver.heartbeat_period_s": 0.2,
    "receiver.dead_after_s": 60.0,
    "receiver.listen": "127.0.0.1:0",
    "receiver.pool_bytes": 4 * 1024 * 1024,
}
"""Tries that come soon. Nobody is taken for dead where this process stands still for a while; a test that is about that
says after how long."""


class ListLog:
    """What a daemon logs: (level, event, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def bind(self, **_fields: Any) -> ListLog:
        return self

    def __getattr__(self, level: str) -> Callable[..., None]:
        def write(event: str, **fields: Any) -> None:
            self.lines.append((level, event, fields))

        return write

    def events(self, text: str) -> list[dict[str, Any]]:
        """The fields of every line whose event contains `text`."""
        return [fields for _, event, fields in self.lines if text in event]


@dataclass
class Daemon:
    """One daemon of the test."""

    context: DaemonContext
    log: ListLog
    failure: BaseException | None = None
    ended: trio.Event = field(default_factory=trio.Event)

    @property
    def facts(self) -> dict[str, Any]:
        return self.context.facts

    async def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        self.context.stop_requested.set()
        with trio.fail_after(PATIENCE_S):
            await self.ended.wait()

    async def failed(self) -> ReplicateError:
        """Wait until it has failed; the one error."""
        with trio.fail_after(PATIENCE_S):
            await self.ended.wait()
        error = self.failure
        while isinstance(error, BaseExceptionGroup):
            assert len(error.exceptions) == 1, error.exceptions
            error = error.exceptions[0]
        assert isinstance(error, ReplicateError), error
        self.failure = None
        return error


@dataclass
class Servers:
    """Starts daemons in one nursery."""

    nursery: trio.Nursery
    daemons: list[Daemon] = field(default_factory=list)

    def start(self, name: str, instance: Instance, serve: Callable[[DaemonContext], Any], **settings: object) -> Daemon:
        """Start a daemon; `settings` as section__name."""
        config = Config().with_values({**QUICK, **{key.replace("__", "."): value for key, value in settings.items()}})
        log = ListLog()
        context = DaemonContext(name, instance.path, config=config, log=cast(Any, log))
        daemon = Daemon(context, log)
        self.daemons.append(daemon)
        self.nursery.start_soon(self._run, daemon, serve)
        return daemon

    async def _run(self, daemon: Daemon, serve: Callable[[DaemonContext], Any]) -> None:
        lock = LockFile(daemon.context.instance_path, daemon.context.name).acquire()  # as a process has it
        try:
            await serve(daemon.context)
        except Exception as error:
            daemon.failure = error
        finally:
            os.close(lock)
            daemon.ended.set()

    async def receiver(self, instance: Instance, **settings: object) -> Daemon:
        """A Receiver Server that listens."""
        daemon = self.start("receiver", instance, serve_receiver, **settings)
        await wait_until_async(lambda: daemon.context.state == "serving" or daemon.failure, what="receiver serves")
        if daemon.failure is not None and daemon.context.state != "serving":
            raise await daemon.failed()
        return daemon

    def source(self, instance: Instance, peer: str = "west", **settings: object) -> Daemon:
        """A Source Server."""
        return self.start(f"source-{peer}", instance, lambda context: serve_source(context, peer), **settings)


@asynccontextmanager
async def servers() -> AsyncIterator[Servers]:
    """A place for daemons; all of them are stopped at the end, and must not have failed."""
    async with trio.open_nursery() as nursery:
        made = Servers(nursery)
        yield made
        for daemon in reversed(made.daemons):
            await daemon.stop()
            if daemon.failure is not None:
                raise daemon.failure


def point(primary: Instance, peer: str, daemon_or_port: Daemon | int) -> None:
    """Make a receiver's (or relay's) port the address of a peer."""
    port = daemon_or_port if isinstance(daemon_or_port, int) else int(daemon_or_port.facts["listen"].rpartition(":")[2])
    primary.register_peer(peer, "127.0.0.1", port, replace_address=True)


def commit(door: Door, size: int = 60, count: int = 1) -> int:
    """Commit transactions without a database, through the door; the last seqno."""
    for _ in range(count):
        with door.locked():
            payload, elements = pack_elements(Op.INSERT, 0x8000_0001, 0, [door.words[word.LAST_SEQNO] + 1, bytes(size)])
            allotted = door.allot(payload, elements)
            door.append(allotted.frame, allotted.seqno, 0)
            door.finish_own(allotted)
    return int(door.words[word.LAST_SEQNO])


async def prove_to(stream: trio.abc.Stream, source: Instance) -> None:
    """The opening of a plain connection, as the Source Server of `source` does it."""
    key = read_key(default_path(source.content.network))
    proof = Proof(Role.SOURCE, key, source.content.network, source.name, os.urandom(32))
    while not proof.is_done:
        await stream.send_all(proof.bytes_to_send())
        proof.receive(await stream.receive_some(4096))


class Relay:
    """Stands between source and receiver. `cut_after`: bytes towards the receiver, then both sides are cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.port = 0
        self.cut_after: int | None = None
        self.is_frozen = False
        self.connections = 0
        self.forwarded = 0
        self._streams: set[trio.SocketStream] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Accept and forward, until cancelled."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listeners[0].socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._connected, listeners)

    async def cut(self) -> None:
        """Cut what is connected now."""
        for stream in list(self._streams):
            await trio.aclose_forcefully(stream)

    async def _connected(self, source: trio.SocketStream) -> None:
        self.connections += 1
        receiver = await trio.open_tcp_stream("127.0.0.1", self._port)
        self._streams |= {source, receiver}
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._forward, source, receiver, True, nursery.cancel_scope)
                nursery.start_soon(self._forward, receiver, source, False, nursery.cancel_scope)
        finally:
            self._streams -= {source, receiver}
            for stream in (source, receiver):
                await trio.aclose_forcefully(stream)

    async def _forward(
        self, one: trio.SocketStream, other: trio.SocketStream, counted: bool, scope: trio.CancelScope
    ) -> None:
        try:
            while data := await one.receive_some(65536):
                if counted and self.cut_after is not None:
                    data = data[: self.cut_after]
                    self.cut_after -= len(data)
                while self.is_frozen:  # noqa: ASYNC110
                    await trio.sleep(0.01)
                await other.send_all(data)
                self.forwarded += len(data) if counted else 0
                if self.cut_after == 0 and counted:
                    self.cut_after = None
                    scope.cancel()
            await other.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            scope.cancel()
