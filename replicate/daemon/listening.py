"""Listening at a HOST:PORT of the settings, and finding out beforehand whether that could be done.

Guarantees: what cannot be listened on is refused by an error that names the setting; nothing is open then. A mere
question (`try_listen`) never listens, so nobody connects to it, and a daemon that starts meanwhile gets the port.
However many connect, no more are heard at once than may in.
Leaves to others: who connects, and what for.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Awaitable, Callable

import trio
from msgspec import Struct

from replicate.daemon.admission import Admission, Guest
from replicate.errors import AlreadyExistsError, ConfigurationError, PermissionRefusedError, ReplicateError
from replicate.settings.load import Address, parse_address


async def listen(text: str, *, where: str) -> tuple[list[trio.SocketListener], Address]:
    """Listeners at HOST:PORT, and the address as it was bound. `where`: the setting that says so.

    Raises AlreadyExistsError (somebody listens there), PermissionRefusedError, ConfigurationError.
    """
    wanted = parse_address(text, where=where)
    host = _host(wanted)
    try:
        listeners = await trio.open_tcp_listeners(wanted.port, host=host)
    except OSError as error:
        raise _refused(error, wanted, where) from error
    return listeners, Address(host, listeners[0].socket.getsockname()[1])


def try_listen(text: str, *, where: str) -> None:
    """Refuse what `listen` would refuse now, with the same errors. Nothing is open afterwards."""
    wanted = parse_address(text, where=where)
    try:
        kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        for family, _, _, _, address in socket.getaddrinfo(_host(wanted), wanted.port, type=kind, flags=flags):
            with socket.socket(family, kind) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as trio does: connections that have ended
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                one.bind(address)
    except OSError as error:
        raise _refused(error, wanted, where) from error


def _host(wanted: Address) -> str:
    """One address only: port 0 would give localhost's two families a port each."""
    return "127.0.0.1" if wanted.host == "localhost" else wanted.host


def _refused(error: OSError, wanted: Address, where: str) -> ReplicateError:
    causes = [error, error.__cause__, *getattr(error.__cause__, "exceptions", ())]
    numbers = {getattr(cause, "errno", None) for cause in causes}
    if errno.EADDRINUSE in numbers:
        do = f"Find it with `ss -ltnp sport = :{wanted.port}`, or choose another port (0 takes a free one)"
        return AlreadyExistsError(f"somebody listens on {wanted} already", where=where, do=do)
    if numbers & {errno.EACCES, errno.EPERM}:
        return PermissionRefusedError(f"{wanted} may not be listened on", where=where, do="Choose a port above 1023")
    return ConfigurationError(f"{wanted} cannot be listened on: {error}", where=where, do="Choose another address")


class Callers(Struct, frozen=True):
    """A process that connects: `hear` is called with the stream, the guest and his HOST:PORT, for each that is let in;
    `closed_unheard` with his host, HOST:PORT and the reason for each that is not, or that goes for a newcomer."""

    admission: Admission
    hear: Callable[[trio.SocketStream, Guest, str], Awaitable[None]]
    closed_unheard: Callable[[str, str, str], None]

    async def connected(self, stream: trio.SocketStream) -> None:
        """For `trio.serve_listeners`."""
        try:
            host, port = stream.socket.getpeername()[:2]
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        where = f"{host}:{port}"
        scope = trio.CancelScope()
        guest = self.admission.enter(host, scope.cancel)
        if isinstance(guest, str):
            self.closed_unheard(host, where, guest)
            await trio.aclose_forcefully(stream)
            return
        try:
            with scope:
                await self.hear(stream, guest, where)
        finally:
            self.admission.leave(guest)
            if guest.closed_for:
                self.closed_unheard(host, where, guest.closed_for)
