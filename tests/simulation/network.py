"""A simulated network: streams that delay, split, stall, break, or go on into nothing when the other host is gone.

Guarantees: within one direction of one connection bytes arrive in order, once, or the stream ends; between connections
nothing is in order. What trio's streams raise, these raise.
Leaves to others: what is said.
"""

from __future__ import annotations

import errno
import itertools
import random
from collections import Counter, deque
from collections.abc import Collection, Sequence
from types import SimpleNamespace
from typing import Any, Final

import trio

from tests.simulation.kernel import Kernel, Process, Task
from tests.simulation.trio_face import Event

WINDOW_BYTES: Final = 12 * 1024
"""Bytes that are on their way, or wait for the receiver to read, before a sender must wait."""
PATIENCE_S: Final = 2.0
"""From the moment on when the far host is there again: so long until it says that it knows no such connection."""


class Line:
    """Between two hosts, connected by either. `stalled_until`: nothing arrives before. `apart_until`: nobody connects
    before."""

    __slots__ = ("apart_until", "ends", "stalled_until")

    def __init__(self, ends: tuple[str, str]) -> None:
        self.ends = ends
        self.stalled_until = self.apart_until = 0.0


class Pipe:
    """One direction of a connection on a line."""

    def __init__(self, network: Network, line: Line) -> None:
        self.network = network
        self.line = line
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.waiting_bytes = 0
        self.last_arrival_s = 0.0
        self.ends_at: float | None = None
        self.is_broken = False
        self.is_dead = False
        """The far end is gone without a word: what is written disappears."""
        self.reader: tuple[Task, int] | None = None
        self.room = Event(network.kernel)
        self.put_bytes = 0
        self.harm_in = 0
        """The n-th write from now is harmed on its way (0: none)."""
        self.is_harmed = False
        self.harmed_at: int | None = None
        """The first byte, counted from the beginning, that is not what was sent; None: none, or not known."""

    def put(self, data: bytes) -> None:
        network, dice = self.network, self.network.dice
        if self.is_dead:
            return
        if self.harm_in:
            self.harm_in -= 1
            if not self.harm_in:
                data = self._harm(data)
        self.put_bytes += len(data)
        at = max(self.last_arrival_s, network.kernel.now + network.delay_s(), self.line.stalled_until)
        self.last_arrival_s = at
        size = network.piece_bytes
        if size and dice.random() < 0.3:
            for start in range(0, len(data), size):
                self.chunks.append((at, data[start : start + size]))
        else:
            self.chunks.append((at, data))
        self.waiting_bytes += len(data)
        self._wake(at)

    def _harm(self, data: bytes) -> bytes:
        """Some bytes are others, are missing, or come twice: fewer than a message has, so that none of it is whole."""
        dice = self.network.dice
        at, count = dice.randrange(len(data)), dice.choice([1, 1, 2, 8])
        there = data[at : at + count]
        kind = dice.choice(["flipped", "flipped", "lost", "doubled"])
        if kind == "flipped":
            there = bytes(byte ^ (1 << dice.randrange(8)) for byte in there)
        harmed = data[:at] + (b"" if kind == "lost" else there if kind == "flipped" else there + there)
        harmed += data[at + count :]
        self.network.harms[kind] += 1
        if not self.is_harmed:
            differ = (place for place, pair in enumerate(zip(data, harmed, strict=False)) if pair[0] != pair[1])
            first = next(differ, None)
            self.harmed_at = None if first is None else self.put_bytes + first
        self.is_harmed = True
        return harmed

    def end(self) -> None:
        """FIN: the end arrives after everything else."""
        if self.ends_at is None and not self.is_dead:
            self.ends_at = max(self.last_arrival_s, self.network.kernel.now + self.network.delay_s())
            self._wake(self.ends_at)

    def cut(self) -> None:
        """RST: what has not been read is lost."""
        self.is_broken = True
        self.chunks.clear()
        self._wake(0)
        self.room.set()

    def _wake(self, at: float) -> None:
        if self.reader is not None:
            self.network.kernel.wake(*self.reader, when=at)

    def take(self, count: int) -> bytes | None:
        """What has arrived; b"" at the end, None when there is nothing yet."""
        if self.is_broken:
            return b""
        now = self.network.kernel.now
        taken = bytearray()
        while self.chunks and self.chunks[0][0] <= now and len(taken) < count:
            at, chunk = self.chunks.popleft()
            if len(taken) + len(chunk) > count:
                self.chunks.appendleft((at, chunk[count - len(taken) :]))
                chunk = chunk[: count - len(taken)]
            taken += chunk
            if self.network.piece_bytes:
                break
        if taken:
            self.waiting_bytes -= len(taken)
            self.room.set()
            return bytes(taken)
        if self.ends_at is not None and not self.chunks and self.ends_at <= now:
            return b""
        return None

    def next_s(self) -> float | None:
        if self.chunks:
            return self.chunks[0][0]
        return self.ends_at


class Stream:
    """One end of a connection. `far`: the name of the host at the other end, `address` that one's."""

    def __init__(self, process: Process, inward: Pipe, outward: Pipe, far: str, address: str) -> None:
        self.process = process
        self.far = far
        self.inward = inward
        self.outward = outward
        self.is_closed = False
        self.socket = SimpleNamespace(getpeername=lambda: (address, 1))

    async def receive_some(self, count: int) -> bytes:
        kernel = self.process.kernel
        await kernel.sleep(0)
        while True:
            self._check()
            data = self.inward.take(count)
            if data is not None:
                if not data and self.inward.is_broken:
                    raise trio.BrokenResourceError
                return data
            self.inward.reader = kernel.me()
            at = self.inward.next_s()
            if at is not None:
                kernel.wake(*self.inward.reader, when=at)
            await kernel.suspend()

    async def send_all(self, data: bytes) -> None:
        kernel = self.process.kernel
        await kernel.sleep(0)
        self._check()
        if self.outward.is_broken:
            raise trio.BrokenResourceError
        self.outward.put(bytes(data))
        while self.outward.waiting_bytes > self.outward.network.window_bytes and not self.outward.is_broken:
            self.outward.room = Event(kernel)
            await self.outward.room.wait()
        self._check()
        if self.outward.is_broken:
            raise trio.BrokenResourceError

    async def send_eof(self) -> None:
        await self.process.kernel.sleep(0)
        self._check()
        self.outward.end()

    def _check(self) -> None:
        self.process.check()
        if self.is_closed:
            raise trio.ClosedResourceError

    def close(self) -> None:
        self.process.check()
        self.is_closed = True
        self.ended()

    def ended(self) -> None:
        """Closed, or its process has died: what was sent is still delivered; what is unread resets the connection."""
        if self.inward.chunks and self.inward.network.dice.random() < 0.5:
            self.outward.cut()
        self.outward.end()
        self.inward.cut()


class Listener:
    """Connections that wait to be accepted."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._held: deque[Stream] = deque()
        self._arrived = Event(process.kernel)

    def give(self, stream: Stream) -> None:
        self._held.append(stream)
        self._arrived.set()

    async def accept(self) -> Stream:
        await self.process.kernel.sleep(0)
        while not self._held:
            self._arrived = Event(self.process.kernel)
            await self._arrived.wait()
        return self._held.popleft()

    def close(self) -> None:
        pass


class Network:
    """Between hosts, each of which has an address: 10.0.0.1 the first one, and so on. What happens to connections
    happens on some `lines`; None: on all."""

    def __init__(self, kernel: Kernel, dice: random.Random) -> None:
        self.kernel = kernel
        self.dice = dice
        self.base_delay_s = 0.001
        self.jitter_s = 0.0
        self.piece_bytes = 0
        self.window_bytes = WINDOW_BYTES
        self.harms: Counter[str] = Counter()
        self.hosts: list[Any] = []
        self.lines: dict[frozenset[str], Line] = {}
        self.pairs: list[tuple[Stream, Stream]] = []

    def delay_s(self) -> float:
        return self.base_delay_s + (self.dice.random() * self.jitter_s if self.jitter_s else 0.0)

    def join(self, hosts: Sequence[Any]) -> None:
        """These are on it, with a line between each two."""
        self.hosts = list(hosts)
        for ends in itertools.combinations([host.name for host in hosts], 2):
            self.lines[frozenset(ends)] = Line((ends[0], ends[1]))

    def listen(self, process: Process) -> Listener:
        listener = process.host.listener = Listener(process)
        return listener

    async def connect(self, address: str, _port: int) -> Stream:
        process = self.kernel.process
        assert process is not None
        near, far = process.host, self.hosts[int(address.rpartition(".")[2]) - 1]
        line = self.lines[frozenset((near.name, far.name))]
        await self.kernel.sleep(2 * self.delay_s())
        if line.apart_until > self.kernel.now or not far.is_up or line.stalled_until > self.kernel.now:
            await self.kernel.suspend()  # until the caller's patience ends
        listener = far.listener
        if listener is None or listener.process.is_dead:
            raise OSError(errno.ECONNREFUSED, "Connection refused")
        there, back = Pipe(self, line), Pipe(self, line)
        near_end = Stream(process, back, there, far.name, address)
        far_end = Stream(listener.process, there, back, near.name, f"10.0.0.{1 + self.hosts.index(near)}")
        self.pairs = [pair for pair in self.pairs if not (pair[0].is_closed and pair[1].is_closed)]
        self.pairs.append((near_end, far_end))
        listener.give(far_end)
        return near_end

    # What happens to connections.

    def _on(self, lines: Collection[Line] | None) -> list[tuple[Stream, Stream]]:
        return [pair for pair in self.pairs if lines is None or pair[0].inward.line in lines]

    def harm(self, lines: Collection[Line] | None = None) -> None:
        """One of the next writes into one of the connections that are open arrives damaged."""
        pipes = [end.inward for pair in self._on(lines) for end in pair if not end.is_closed]
        if pipes:
            self.dice.choice(pipes).harm_in = self.dice.randrange(1, 6)

    def is_harmed(self, process: Process) -> bool:
        """Whether a connection of the process that is on record had damaged bytes, in either direction."""
        return any(
            end.inward.is_harmed or end.outward.is_harmed
            for pair in self.pairs
            for end in pair
            if end.process is process
        )

    def heal(self) -> None:
        """Nothing more happens to what is sent from now on."""
        for line in self.lines.values():
            line.stalled_until = line.apart_until = 0.0
        for pair in self.pairs:
            for end in pair:
                end.inward.harm_in = 0

    def cut(self, lines: Collection[Line] | None = None) -> None:
        """Every connection is reset."""
        for pair in self._on(lines):
            for end in pair:
                end.inward.cut()

    def stall(self, until: float, lines: Collection[Line] | None = None) -> None:
        """Nothing arrives before then; nothing is lost."""
        for line in self.lines.values() if lines is None else lines:
            line.stalled_until = max(line.stalled_until, until)
        for pair in self._on(lines):
            for end in pair:
                pipe = end.inward
                pipe.chunks = deque((max(at, until), chunk) for at, chunk in pipe.chunks)
                pipe.last_arrival_s = max(pipe.last_arrival_s, until)

    def part(self, until: float, *, one_way: int | None = None, lines: Collection[Line] | None = None) -> None:
        """What is sent meanwhile is lost, and a connection that lost something is dead for good, as TCP gives up.
        `one_way`: only what comes to that end of each line."""
        for line in self.lines.values() if lines is None else lines:
            line.apart_until = max(line.apart_until, until)
        for pair in self._on(lines):
            for end in pair:
                if one_way is None or end.inward.line.ends[one_way] == end.process.host.name:
                    end.inward.is_dead = True
                    end.inward.chunks.clear()
                    end.inward.waiting_bytes = 0

    def process_died(self, process: Process) -> None:
        """Its kernel lives: it closes what the process had open."""
        for pair in self.pairs:
            for end in pair:
                if end.process is process and not end.is_closed:
                    end.is_closed = True
                    end.ended()

    def host_died(self, host: Any) -> None:
        """Nobody closes anything: half open until the host is back and says that it knows nothing."""
        for pair in self.pairs:
            for place, end in enumerate(pair):
                if end.process.host is host and not end.is_closed:
                    end.is_closed = True
                    end.inward.is_dead = True
                    end.inward.chunks.clear()
                    end.inward.waiting_bytes = 0
                    pair[1 - place].inward.is_dead = True

    def host_back(self, host: Any) -> None:
        """The other side's next bytes are answered by a reset."""
        for pair in self.pairs:
            for place, end in enumerate(pair):
                if end.process.host is host and end.inward.is_dead:
                    other = pair[1 - place]
                    self.kernel.at(self.kernel.now + PATIENCE_S, lambda other=other: self._reset(other))

    @staticmethod
    def _reset(end: Stream) -> None:
        if not end.is_closed:
            end.inward.cut()
            end.outward.cut()
