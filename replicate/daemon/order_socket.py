"""A daemon's end of the sockets over which commands talk to it: who is heard, and how an order is answered (orders.py
has the lines, and the command's end).

Guarantees: only the instance's owner (or root) is heard; a command that hangs up harms nobody, and what was ordered is
done to its end; a daemon that cannot have its socket does everything else.
Leaves to others: what is ordered.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from replicate.daemon.orders import read_order
from replicate.errors import ReplicateError

ASK_S: Final = 5.0
"""So long a command may take to say what it wants."""
KEEP_ALIVE_S: Final = 1.0
LINE_BYTES_MAX: Final = 4096
GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)
"""The command has ended, however it did. Never out of a nursery: what leaves one is a group."""
_CREDENTIALS: Final = struct.Struct("3i")

Obey = Callable[[str], Awaitable[Mapping[str, Any]]]
"""Carries an order out, and gives what is told of it. A ReplicateError of it is told to the command."""


class CommandSocket:
    """Where a daemon is there for commands: `listen` before it says that it serves, then `serve` as long as it does."""

    def __init__(self, directory: Path, name: str, log: Any, what: str) -> None:
        """`name` of the socket in the run `directory`; `what` it is for, as the log says it."""
        self._directory = directory
        self._name = name
        self._log = log
        self._what = what
        self._listener: trio.SocketListener | None = None

    async def listen(self) -> None:
        """Be there for commands. A socket that cannot be had is logged: everything else goes on without it."""
        directory, path = self._directory, self._directory / self._name
        handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        listening = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # By the descriptor: the name of a socket may have 107 bytes, that of an instance's directory more.
            path.unlink(missing_ok=True)
            await listening.bind(f"/proc/self/fd/{handle}/{self._name}")
            os.chmod(path, 0o600)
            listening.listen(4)
        except OSError as error:
            listening.close()
            self._log.error(f"no socket for {self._what}", error=str(error), where=str(directory))
            return
        finally:
            os.close(handle)
        self._listener = trio.SocketListener(listening)

    async def serve(self, heard: Callable[[trio.SocketStream], Awaitable[None]]) -> None:
        """Hear commands, after `listen`, until cancelled: each has a call of `heard`, which may raise GONE."""
        if self._listener is None:
            return

        async def command(stream: trio.SocketStream) -> None:
            with suppress(*GONE):
                async with stream:
                    raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
                    _, uid, _ = _CREDENTIALS.unpack(raw)
                    if uid not in (0, os.geteuid()):
                        self._log.warning("a command of another user was not heard", uid=uid)
                        return
                    await heard(stream)

        async with self._listener:
            try:
                await trio.serve_listeners(command, [self._listener])
            finally:
                with suppress(OSError):
                    (self._directory / self._name).unlink()


async def asked(stream: trio.SocketStream) -> bytes:
    """The line that a command begins with, as far as it has come in time."""
    line = b""
    with trio.move_on_after(ASK_S):
        while b"\n" not in line and len(line) <= LINE_BYTES_MAX and (piece := await stream.receive_some(4096)):
            line += piece
    return line


async def answer(stream: trio.SocketStream, obey: Obey) -> None:
    """Hear one order, have it obeyed, and tell what became of it."""
    done = trio.Event()

    async def keep_alive() -> None:
        while True:
            with trio.move_on_after(KEEP_ALIVE_S):
                await done.wait()
            if done.is_set():
                return
            with suppress(*GONE):  # what was begun is done to its end, if somebody listens or not
                await stream.send_all(b'{"working": true}\n')

    said: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive)
        try:
            said = {"done": dict(await obey(read_order(await asked(stream))))}
        except ReplicateError as error:
            said = {"error": str(error), "exit_code": error.exit_code}
        finally:
            done.set()
    await stream.send_all(json.dumps(said).encode() + b"\n")
