"""The network between source and receiver of a town, in a process of its own that can be told to be bad.

It is `BadNetwork` of tests/harness, with delay and jitter. Guarantees: bytes arrive in their order, each after the
delay that held when it came; the process ends with its town. Leaves to others: frames.
"""

from __future__ import annotations

import heapq
import json
import random
import socket
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from replicate.wire.frame import FRAME_HEAD_BYTES
from replicate.wire.message import MessageType
from tests.faults.town import Child, fork
from tests.harness.bad_network import BadNetwork

TYPE_AT: Final = 8
"""Where a frame says what it carries."""


class DelayingNetwork(BadNetwork):
    """`delay_s` and `jitter_s` of every piece, in both directions."""

    delay_s = 0.0
    jitter_s = 0.0
    mangled = 0
    """Frames that were changed, of the kind asked for last."""

    def spoil(self, kind: str) -> None:
        """One frame of data on the connections of from now on: it comes twice, never, late, flipped or shortened."""
        self.mangled = 0
        held: list[bytes] = []

        def mangle(frame: bytes) -> Iterable[bytes]:
            if frame[TYPE_AT] != MessageType.DATA or self.mangled:
                return [frame]
            if kind == "late" and not held:
                held.append(frame)
                return []
            self.mangled = 1
            if kind == "late":
                return [frame, held.pop()]
            if kind == "flipped":
                at = self._dice.randrange(FRAME_HEAD_BYTES, len(frame))
                return [frame[:at] + bytes([frame[at] ^ 1 << self._dice.randrange(8)]) + frame[at + 1 :]]
            return {"twice": [frame, frame], "never": [], "shortened": [frame[:-1]]}[kind]

        self.mangle = mangle

    def __init__(self, target_port: int, seed: int) -> None:
        self._dice = random.Random(seed)
        self._queue: list[tuple[float, int, bytes, socket.socket]] = []
        self._last_due: dict[int, float] = {}
        self._pieces = 0
        self._filled = threading.Condition()
        super().__init__(target_port)
        self._spawn(self._deliver)

    def _put(self, piece: bytes, target: socket.socket) -> None:
        if not self.delay_s:
            super()._put(piece, target)
            return
        with self._filled:
            due = time.monotonic() + self.delay_s + self._dice.random() * self.jitter_s
            due = self._last_due[id(target)] = max(due, self._last_due.get(id(target), 0.0))
            self._pieces += 1
            heapq.heappush(self._queue, (due, self._pieces, piece, target))
            self._filled.notify()

    def _deliver(self) -> None:
        while not self._is_closed:
            with self._filled:
                while not self._queue or self._queue[0][0] > time.monotonic():
                    wait_s = self._queue[0][0] - time.monotonic() if self._queue else 1.0
                    self._filled.wait(max(0.0, wait_s))
                _, _, piece, target = heapq.heappop(self._queue)
            try:
                target.sendall(piece)
            except OSError:
                continue


class BadLine:
    """Told from the process of the town. `port`: what the source connects to."""

    def __init__(self, target_port: int, errors: Path, seed: int) -> None:
        ours, theirs = socket.socketpair()
        self._pipe = ours.makefile("rw")

        def serve() -> None:
            ours.close()
            network = DelayingNetwork(target_port, seed)
            pipe = theirs.makefile("rw")
            print(json.dumps(network.port), file=pipe, flush=True)
            for line in pipe:
                answer = _obey(network, *json.loads(line))
                print(json.dumps(answer), file=pipe, flush=True)

        self._child: Child = fork("line", serve, errors)
        theirs.close()
        self.port: int = json.loads(self._pipe.readline())

    def tell(self, verb: str, *arguments: Any) -> Any:
        """`part`, `heal`, `forget`, `cut`, `mangle`, `mangled`, `set`, `lines`: see _obey."""
        print(json.dumps([verb, *arguments]), file=self._pipe, flush=True)
        return json.loads(self._pipe.readline())

    def close(self) -> None:
        self._child.kill()
        self._pipe.close()


def _obey(network: DelayingNetwork, verb: str, *arguments: Any) -> Any:
    if verb == "part":
        network.part(there=arguments[0], back=arguments[1])
    elif verb == "heal":
        network.heal()
    elif verb == "forget":
        network.forget()
    elif verb == "cut":
        for line in network.lines:
            line.close(reset=arguments[0])
    elif verb == "mangle":
        network.spoil(arguments[0])
    elif verb == "mangled":
        return network.mangled
    elif verb == "set":
        setattr(network, arguments[0], arguments[1])
    elif verb != "lines":
        raise ValueError(verb)
    return len(network.lines)
