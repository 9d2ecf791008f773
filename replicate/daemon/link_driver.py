"""Drives one link over one socket: bytes in, bytes out, the clock, and the last word. The same for both servers.

Guarantees: a heartbeat waits for nothing but the one write that is under way; a dead peer is noticed while a write
hangs; what is written is whole messages, and the last word leaves (and is read, as far as the peer takes it within
LAST_WORD_S) before the socket is closed. The tasks given to `run` end when the link is closed.
Leaves to others: what the link says and what its events mean (the servers).
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from replicate.limits import KIB
from replicate.wire.connection import Link
from replicate.wire.event import Closed, CloseReason, Event

RECEIVE_BYTES: Final = 512 * KIB
"""So many bytes one read takes at most."""
LEAST_ROOM_BYTES: Final = 16 * KIB
"""And so many it has room for at least."""
LAST_WORD_S: Final = 2.0
LOOK_S: Final = 1.0
"""Longest time between two looks at the link's clock."""
LOOK_AGAIN_S: Final = 0.005
"""Least time between two, so that a deadline that stays in the past cannot make a busy loop."""
_LOST: Final = (CloseReason.PEER_DEAD, CloseReason.CONNECTION_LOST)
_PLAIN: Final = trio.SocketStream
"""What has bytes as they are: a TLS stream makes records of them."""
_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


def _nothing() -> None:
    pass


async def _at_once() -> None:
    pass


def next_room_bytes(room_bytes: int, got_bytes: int) -> int:
    """For how many bytes the next read makes room when the last one got so many of `room_bytes`: for more when it was
    full, for less when it was nearly empty.

    Room that is not used is cut off, and what lives a little longer comes to stand in the rest of it: with room for
    512 KiB before each read of a few hundred bytes, a Receiver Server at 140 transactions a second had a heap of 42 MiB
    after one minute, and of 64 after ten. (glibc can keep large blocks out of the heap, M_MMAP_THRESHOLD: as flat, but
    each page of a backlog is mapped again then: of CPU 1.5 µs a transaction in the Receiver Server, not 0.65.)
    """
    if got_bytes >= room_bytes:
        return min(4 * room_bytes, RECEIVE_BYTES)
    return room_bytes if got_bytes > room_bytes // 8 else max(room_bytes // 4, LEAST_ROOM_BYTES)


class Drive:
    """One connection. `closed`: the link's last event, None before. `nursery`: for tasks of the connection."""

    nursery: trio.Nursery

    def __init__(
        self,
        link: Link,
        stream: trio.abc.HalfCloseableStream,
        on_event: Callable[[Event], None],
        *,
        before_write: Callable[[], None] = _nothing,
        before_tick: Callable[[], None] = _nothing,
        before_read: Callable[[], Awaitable[None]] = _at_once,
        after_read: Callable[[], None] = _nothing,
    ) -> None:
        """Takes over `stream`. `before_write` may give the link bulk, each time that the writer is free; `before_tick`
        may tell it the newest progress; `before_read` may hold the peer back; `after_read` knows that bytes are here
        which the link has not seen yet, and perhaps nobody has read."""
        self.link = link
        self.stream = stream
        self.closed: Closed | None = None
        self._on_event = on_event
        self._before_write = before_write
        self._before_tick = before_tick
        self._before_read = before_read
        self._after_read = after_read
        self._poked = trio.Event()
        self._look = trio.Event()
        self._next_look_s = 0.0
        self._is_writing = False
        self._rest = b""
        """What `write_now` could not write."""
        self._ended = trio.Event()
        self._sent = trio.Event()
        self._received = trio.Event()

    def poke(self) -> None:
        """Make the writer look whether there is something to send, and the clock whether the deadline is nearer now."""
        self._poked.set()
        if self.link.deadline < self._next_look_s:
            self._look.set()

    @property
    def is_free(self) -> bool:
        """Nothing is being written: what the link is given now can leave by `write_now`."""
        return not self._is_writing and not self._rest and self.closed is None

    def write_now(self) -> None:
        """Write what the link has to say here and now, without a turn of the writer's in between (80 µs, when nothing
        of ours is in the processor's caches); what the socket does not take at once is left to the writer. Only while
        `is_free`."""
        if isinstance(self.stream, _PLAIN) and (pieces := self.link.bytes_to_send()):
            data = b"".join(pieces)
            try:
                # Never waits, as trio's sockets do not block; and no signal, since Python ignores SIGPIPE.
                written = os.write(self.stream.socket.fileno(), data)
            except BlockingIOError:
                written = 0
            except OSError:
                self.take(self.link.receive_eof(trio.current_time()))
                return
            if written == len(data):
                if self.link.deadline < self._next_look_s:
                    self._look.set()
                return
            self._rest = data[written:]
        self.poke()

    def take(self, events: list[Event]) -> None:
        """Act on what the link has told, also what `refuse` or `bye` gave."""
        for event in events:
            if isinstance(event, Closed):
                self.closed = event
                self._ended.set()
            self._on_event(event)
        if events:
            self.poke()

    async def run(self, *tasks: Callable[[], Awaitable[None]]) -> Closed:
        """Until the link is closed and its last word has left; the socket is closed then. Raises what `tasks` raise."""
        try:
            async with trio.open_nursery() as transport:
                for io in (self._receive, self._send, self._clock):
                    transport.start_soon(io)
                async with trio.open_nursery() as self.nursery:
                    for task in tasks:
                        self.nursery.start_soon(task)
                    await self._ended.wait()
                    self.nursery.cancel_scope.cancel()
                assert self.closed is not None
                if self.closed.reason not in _LOST:
                    with trio.move_on_after(LAST_WORD_S):
                        await self._sent.wait()
                        await self._received.wait()
                transport.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self.stream)
        return self.closed

    async def _receive(self) -> None:
        data: bytes | bytearray = b"-"
        room_bytes = LEAST_ROOM_BYTES
        while data:
            if self.closed is None:
                await self._before_read()
            data = await self._read(room_bytes)
            room_bytes = next_room_bytes(room_bytes, len(data))
            if self.closed is None:
                now = trio.current_time()
                self.take(self.link.receive(data, now) if data else self.link.receive_eof(now))
                if self.link.has_bytes_to_send or self.link.deadline < self._next_look_s:
                    self.poke()
        self._received.set()

    async def _read(self, room_bytes: int) -> bytes | bytearray:
        """What has come, at most so much; b"" at its end, however that came about."""
        try:
            if not isinstance(self.stream, _PLAIN):
                data = await self.stream.receive_some(room_bytes)
                if self.closed is None:
                    self._after_read()
                return data
            # Not by trio's own: it tries before it waits, and the process that is knocked for waits for that, too.
            while True:
                await trio.lowlevel.wait_readable(self.stream.socket)
                if self.closed is None:
                    self._after_read()
                with suppress(BlockingIOError):
                    return os.read(self.stream.socket.fileno(), room_bytes)
        except (*_GONE, OSError):
            return b""

    async def _send(self) -> None:
        while True:
            if self.closed is None and not self._rest:
                self._before_write()
            data, self._rest = self._rest or b"".join(self.link.bytes_to_send()), b""
            if data:
                self._is_writing = True
                try:
                    await self.stream.send_all(data)
                except _GONE:
                    self.take(self.link.receive_eof(trio.current_time()))
                    return
                self._is_writing = False
                continue
            if self.closed is not None:
                break
            await self._poked.wait()
            self._poked = trio.Event()
        try:
            await self.stream.send_eof()
        except _GONE:
            pass
        self._sent.set()

    async def _clock(self) -> None:
        while self.closed is None:
            self._before_tick()
            self.take(self.link.tick(trio.current_time(), time.time_ns()))
            if self.link.has_bytes_to_send:
                self.poke()
            now = trio.current_time()
            self._next_look_s = max(min(self.link.deadline, now + LOOK_S), now + LOOK_AGAIN_S)
            # Made here: what has asked for a look until now has it, our own poke too.
            self._look = trio.Event()
            with trio.move_on_at(self._next_look_s):
                await self._look.wait()
