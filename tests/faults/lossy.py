"""A line that loses packets: real TCP over a mirror that drops some, in a network namespace of its own. As root.

    source ── TCP on loopback ──► here ── TCP through the mirror ──► here ── TCP on loopback ──► receiver

The mirror is a TUN device: each packet that the kernel sends into it comes back with both addresses swapped (which
leaves every checksum right), or not at all. So the kernel's own TCP between 10.99.0.1 and 10.99.0.2, which are one
host, has to send again, wait, and put in order. Guarantees: nothing but this process sees the namespace; it goes with
it. Leaves to others: what is carried.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import queue
import random
import socket
import struct
import subprocess
import threading
from pathlib import Path
from typing import Final

from tests.faults.town import Child, fork

_CLONE_NEWNET: Final = 0x40000000
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
_HERE, _THERE, _PORT = "10.99.0.1", "10.99.0.2", 7000
_PACKET_BYTES: Final = 65_536


class LossyLine:
    """`port` leads to `target_port`, and `loss` of the packets (0 to 1) is dropped in each direction."""

    def __init__(self, target_port: int, loss: float, errors: Path, seed: int) -> None:
        read, write = os.pipe()

        def serve() -> None:
            _Mirror(loss, seed).serve(target_port, write)

        self._child: Child = fork("lossy", serve, errors)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read(8)
        assert said, errors.read_text()[-2000:]
        self.port = int.from_bytes(said, "little")

    def sent_again(self) -> int:
        """Segments that TCP had to send again so far, as the kernel counts them for the namespace alone."""
        ours = os.readlink("/proc/self/ns/net")
        for task in Path(f"/proc/{self._child.pid}/task").iterdir():
            if os.readlink(task / "ns" / "net") != ours:
                names, values = (line.split() for line in (task / "net" / "snmp").read_text().splitlines()
                                 if line.startswith("Tcp:"))  # fmt: skip
                return int(values[names.index("RetransSegs")])
        raise AssertionError("there is no namespace of the mirror")

    def close(self) -> None:
        self._child.kill()


class _Mirror:
    def __init__(self, loss: float, seed: int) -> None:
        self._loss, self._dice = loss, random.Random(seed)
        self._wanted: queue.Queue[queue.Queue[tuple[socket.socket, socket.socket]]] = queue.Queue()
        self._tun = -1
        self._ready = threading.Event()

    def serve(self, target_port: int, told: int) -> None:
        threading.Thread(target=self._within, daemon=True).start()
        assert self._ready.wait(20), "the namespace cannot be made"
        threading.Thread(target=self._reflect, daemon=True).start()
        listener = socket.create_server(("127.0.0.1", 0))
        os.write(told, int(listener.getsockname()[1]).to_bytes(8, "little"))
        os.close(told)
        while True:
            source, _ = listener.accept()
            threading.Thread(target=self._connect, args=(source, target_port), daemon=True).start()

    def _within(self) -> None:
        """The one thread in the namespace: sockets belong to where they are made."""
        assert ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        self._tun = os.open("/dev/net/tun", os.O_RDWR)
        fcntl.ioctl(self._tun, _TUNSETIFF, struct.pack("16sH22x", b"mirror", _IFF_TUN_NO_PI))
        path = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
        for words in (f"addr add {_HERE}/24 dev mirror", "link set mirror up", "link set lo up"):
            subprocess.run(["ip", *words.split()], check=True, env=path)
        inner = socket.create_server((_HERE, _PORT))
        self._ready.set()
        while True:
            answer = self._wanted.get()
            one = socket.create_connection((_THERE, _PORT))
            other, _ = inner.accept()
            answer.put((one, other))

    def _reflect(self) -> None:
        while True:
            packet = bytearray(os.read(self._tun, _PACKET_BYTES))
            if packet[0] >> 4 != 4 or self._dice.random() < self._loss:
                continue
            packet[12:16], packet[16:20] = packet[16:20], packet[12:16]
            os.write(self._tun, packet)

    def _connect(self, source: socket.socket, target_port: int) -> None:
        answer: queue.Queue[tuple[socket.socket, socket.socket]] = queue.Queue()
        self._wanted.put(answer)
        one, other = answer.get()
        receiver = socket.create_connection(("127.0.0.1", target_port))
        for end in (source, one, other, receiver):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for here, there in ((source, one), (one, source), (other, receiver), (receiver, other)):
            threading.Thread(target=_carry, args=(here, there), daemon=True).start()


def _carry(here: socket.socket, there: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := here.recv(_PACKET_BYTES):
            there.sendall(piece)
    with contextlib.suppress(OSError):
        there.shutdown(socket.SHUT_WR)
