"""Listening at a HOST:PORT of the settings.

Guarantees: what can not be listened on is refused by an error that names the setting; nothing is open then.
Refuses to know: who connects, and what for.
"""

from __future__ import annotations

import errno

import trio

from replicate.config import Address, parse_address
from replicate.errors import AlreadyExistsError, ConfigurationError, PermissionRefusedError


async def listen(text: str, *, where: str) -> tuple[list[trio.SocketListener], Address]:
    """Listeners at HOST:PORT, and the address as it was bound. `where`: the setting that says so.

    Raises AlreadyExistsError (somebody listens there), PermissionRefusedError, ConfigurationError.
    """
    wanted = parse_address(text, where=where)
    # One address only: port 0 would give localhost's two families a port each.
    host = "127.0.0.1" if wanted.host == "localhost" else wanted.host
    try:
        listeners = await trio.open_tcp_listeners(wanted.port, host=host)
    except OSError as error:
        causes = [error, error.__cause__, *getattr(error.__cause__, "exceptions", ())]
        numbers = {getattr(cause, "errno", None) for cause in causes}
        if errno.EADDRINUSE in numbers:
            do = f"Find it with `ss -ltnp sport = :{wanted.port}`, or choose another port (0 takes a free one)"
            raise AlreadyExistsError(f"somebody listens on {wanted} already", where=where, do=do) from error
        if numbers & {errno.EACCES, errno.EPERM}:
            do = "Choose a port above 1023"
            raise PermissionRefusedError(f"{wanted} may not be listened on", where=where, do=do) from error
        raise ConfigurationError(
            f"{wanted} can not be listened on: {error}", where=where, do="Choose another address"
        ) from error
    return listeners, Address(host, listeners[0].socket.getsockname()[1])
