"""The demonstration's network: a TCP relay between Source Server and Receiver Server that can cut their connection.

What it is: threads that copy bytes both ways over loopback. `cut` breaks the connection in the middle of a piece of
the stream, with a reset, and refuses the next ones until `mend`. `swallow` leaves the connection as it is, and nothing
comes through it any more until `mend`.
Guarantees: `cut` returns only when a connection that was carrying data has really been broken; what was carried, and
in how many connections, is counted; after `close` no thread and no socket is left.
Leaves to others: what the bytes mean.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Final

PIECE_BYTES: Final = 64 * 1024
WORTH_CUTTING_BYTES: Final = 200
"""A piece at least this large is part of the stream of transactions, not a heartbeat."""

PORTS: Final = (10_240, 32_000)
"""Below those that the kernel gives where any will do: where the demonstration is kept, the Receiver Server is
to take the relay's place later."""

_LINGER_RESET: Final = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Carried:
    """What went through, towards the receiver. `per_connection` has one entry for each connection, in their order."""

    per_connection: list[int] = field(default_factory=list)
    cuts: int = 0


class Relay:
    """Listens on a free loopback port (`port`) from its creation on, and carries to `target_port`."""

    def __init__(self, target_port: int) -> None:
        self.carried = Carried()
        self._target_port = target_port
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._armed = False
        self._refusing = False
        self._connections_cut = 0
        """So many connections there had been when the last one was cut."""
        self._cut_done = threading.Event()
        self._carries = threading.Event()
        self._carries.set()
        self._threads: list[threading.Thread] = []
        self._listener = _listen()
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def cut(self, timeout_s: float) -> bool:
        """Break the connection in mid-stream; False if nothing was carried that could be cut within the time."""
        self._cut_done.clear()
        with self._lock:
            self._armed = True
        happened = self._cut_done.wait(timeout_s)
        with self._lock:
            self._armed = False
        return happened

    def swallow(self) -> None:
        """Let nothing through, and let nobody know: no end, no reset; both ends wait."""
        self._carries.clear()

    def mend(self) -> None:
        """Let connections through again, and what has waited in them."""
        with self._lock:
            self._refusing = False
        self._carries.set()

    def carries_again(self, timeout_s: float, worth_bytes: int = WORTH_CUTTING_BYTES) -> bool:
        """Whether a later connection than the cut one has carried so much; waits at most `timeout_s` for it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self._lock:
                later = self.carried.per_connection[self._connections_cut :]
                if self._connections_cut and any(carried >= worth_bytes for carried in later):
                    return True
            time.sleep(0.02)
        return False

    def close(self) -> None:
        """End all threads and close all sockets."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            self._refusing = True
        self._break_all()
        self._carries.set()
        for thread in self._threads:
            thread.join(5.0)

    def _spawn(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                source, _ = self._listener.accept()
            except OSError:
                return
            try:
                receiver = socket.create_connection(("127.0.0.1", self._target_port), timeout=5.0)
            except OSError:
                _reset(source)
                continue
            receiver.settimeout(None)
            with self._lock:
                refused = self._refusing
                if not refused:
                    self._open |= {source, receiver}
                    self.carried.per_connection.append(0)
            if refused:
                _reset(source)
                _reset(receiver)
                continue
            self._spawn(self._carry, source, receiver, True)
            self._spawn(self._carry, receiver, source, False)

    def _carry(self, origin: socket.socket, target: socket.socket, is_stream: bool) -> None:
        try:
            while piece := origin.recv(PIECE_BYTES):
                self._carries.wait()
                if is_stream and len(piece) >= WORTH_CUTTING_BYTES and self._is_to_be_cut():
                    target.sendall(piece[: len(piece) // 2])
                    self._count(len(piece) // 2)
                    self._break_all()
                    self._cut_done.set()
                    return
                target.sendall(piece)
                if is_stream:
                    self._count(len(piece))
        except OSError:
            pass
        self._drop(origin, target)

    def _is_to_be_cut(self) -> bool:
        with self._lock:
            if not self._armed:
                return False
            self._armed = False
            self._refusing = True
            self.carried.cuts += 1
            self._connections_cut = len(self.carried.per_connection)
            return True

    def _count(self, length: int) -> None:
        with self._lock:
            self.carried.per_connection[-1] += length

    def _break_all(self) -> None:
        with self._lock:
            broken = tuple(self._open)
            self._open.clear()
        for one in broken:
            _reset(one)

    def _drop(self, *ended: socket.socket) -> None:
        with self._lock:
            self._open.difference_update(ended)
        for one in ended:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _reset(broken: socket.socket) -> None:
    """Close so that the peer sees a reset, as from a network that lost its state."""
    with contextlib.suppress(OSError):
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_RESET)
    # Wakes our own thread that waits in recv; the reset follows with close.
    with contextlib.suppress(OSError):
        broken.shutdown(socket.SHUT_RD)
    broken.close()


def _listen() -> socket.socket:
    for _ in range(100):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", random.randint(*PORTS)))
    return socket.create_server(("127.0.0.1", 0))
