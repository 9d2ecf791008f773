"""A network between two real Servers that can be as bad as networks are: a TCP relay of threads on loopback.

What it can do, at any moment: stop carrying in one direction or both without a word to either end (a one-way cut, a
power failure: no FIN, no RST), let a connection end in the middle of a piece by FIN or by RST, carry slowly, carry
single bytes, refuse connections, lead to another port, and change, drop, double or swap whole wire frames towards the
receiver. Time and bytes of each connection are counted.

Guarantees: what is not broken is carried unchanged and in order; after `close` no thread and no socket is left.
Leaves to others: what frames mean.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from replicate.wire.frame import FRAME_HEAD_BYTES

PIECE_BYTES: Final = 64 * 1024
CUT_OFF_BYTES: Final = 100
_RESET: Final = struct.pack("ii", 1, 0)

Mangle = Callable[[bytes], Iterable[bytes]]
"""Gets every whole wire frame towards the receiver, and gives what is to be carried in its place. Over TLS (`is_tls`)
it gets every record."""
TLS_HEAD_BYTES: Final = 5


class Line:
    """One connection through the relay."""

    def __init__(self, source: socket.socket, receiver: socket.socket) -> None:
        self.source = source
        self.receiver = receiver
        self.there_bytes = 0
        """Carried towards the receiver."""
        self.is_dead = False
        """Nothing is carried any more, and nobody is told."""

    def close(self, *, reset: bool = False) -> None:
        """End both sides: by RST, or by FIN after what was carried."""
        self.is_dead = True
        for end in (self.source, self.receiver):
            if reset:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            # Wakes our own thread that waits in recv.
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            end.close()


class BadNetwork:
    """Listens on `port` from its creation on; `target_port` is where connections lead to, and may change."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.lines: list[Line] = []
        """All connections so far, the last one last."""
        self.tried = 0
        """Connections that were tried, refused ones too."""
        self.is_refusing = False
        self.there = threading.Event()
        """Set: bytes go from source to receiver."""
        self.back = threading.Event()
        self.there.set()
        self.back.set()
        self.bytes_per_s = 0.0
        """0: as fast as it goes."""
        self.piece_bytes = PIECE_BYTES
        self.mangle: Mangle | None = None
        """Set it before the connection is made."""
        self.mangle_back: Mangle | None = None
        """The same, towards the source."""
        self.is_tls = False
        """Set as `mangle`: what it gets are TLS records."""
        self._cut: Callable[[Line], None] | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    # What a test breaks.

    def part(self, *, there: bool = True, back: bool = True) -> None:
        """From now on nothing gets through in these directions; TCP at both ends goes on waiting for it."""
        if there:
            self.there.clear()
        if back:
            self.back.clear()

    def heal(self) -> None:
        """What waited goes on."""
        self.there.set()
        self.back.set()

    def forget(self) -> None:
        """The connections of now are dead for ever, as those of a host that lost power; later ones work."""
        for line in self.lines:
            line.is_dead = True

    def cut_next(self, *, reset: bool) -> threading.Event:
        """Carry the next frame-sized piece to the receiver but for its end, then end the connection; set when that is
        done. (Half of it would be whole frames where a piece has two of a length.)"""
        done = threading.Event()

        def cut(line: Line) -> None:
            self._cut = None
            line.close(reset=reset)
            done.set()

        self._cut = cut
        return done

    def close(self) -> None:
        """End all threads and close all sockets."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for line in self.lines:
            line.close(reset=True)
        self.heal()
        for thread in self._threads:
            thread.join(60.0)

    # Carrying.

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                source, _ = self._listener.accept()
            except OSError:
                return
            self.tried += 1
            try:
                if self.is_refusing:
                    raise ConnectionRefusedError
                receiver = socket.create_connection(("127.0.0.1", self.target_port), timeout=60.0)
            except OSError:
                source.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                source.close()
                continue
            receiver.settimeout(None)
            for end in (source, receiver):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line = Line(source, receiver)
            self.lines.append(line)
            self._spawn(self._carry, line, source, receiver, self.there)
            self._spawn(self._carry, line, receiver, source, self.back)

    def _carry(self, line: Line, origin: socket.socket, target: socket.socket, way: threading.Event) -> None:
        is_there = way is self.there
        frames = bytearray()
        whole = whole_records if self.is_tls else whole_frames
        try:
            while True:
                way.wait()
                piece = origin.recv(PIECE_BYTES)
                way.wait()
                if line.is_dead:
                    return  # without a word; the sockets are closed at the end
                if not piece:
                    break
                mangle = self.mangle if is_there else self.mangle_back
                if mangle is not None:
                    frames += piece
                    piece = b"".join(out for one in whole(frames) for out in mangle(one))
                if is_there and self._cut is not None and len(piece) >= 2 * CUT_OFF_BYTES:
                    target.sendall(piece[:-CUT_OFF_BYTES])
                    self._cut(line)
                    return
                self._put(piece, target)
                if is_there:
                    line.there_bytes += len(piece)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            if not line.is_dead:
                line.close()

    def _put(self, piece: bytes, target: socket.socket) -> None:
        step = min(self.piece_bytes, 512) if self.bytes_per_s else self.piece_bytes
        for at in range(0, len(piece), step):
            target.sendall(piece[at : at + step])
            if self.bytes_per_s:
                time.sleep(step / self.bytes_per_s)


def whole_frames(waiting: bytearray) -> list[bytes]:
    """Take the whole wire frames off the front of `waiting`."""
    return _whole(waiting, FRAME_HEAD_BYTES, slice(0, 4))


def whole_records(waiting: bytearray) -> list[bytes]:
    """Take the whole TLS records off the front of `waiting`."""
    return _whole(waiting, TLS_HEAD_BYTES, slice(3, 5))


def _whole(waiting: bytearray, head_bytes: int, length: slice) -> list[bytes]:
    made = []
    while len(waiting) >= head_bytes:
        end = head_bytes + int.from_bytes(waiting[length], "big")
        if len(waiting) < end:
            break
        made.append(bytes(waiting[:end]))
        del waiting[:end]
    return made
