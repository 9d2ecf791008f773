"""Why a peer cannot be reached: what the kernel or the name service says, told apart for the operator.

Guarantees: refused at once, silent, no such name and no way there are different reasons with different advice, each
with its errno where there is one. Leaves to others: how and when the connection was tried.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from contextlib import suppress
from errno import ECONNREFUSED, EHOSTUNREACH, ENETUNREACH, ETIMEDOUT, errorcode
from typing import Final

from replicate.errors import PeerUnreachableError

REFUSED_AT_ONCE: Final = "REFUSED_AT_ONCE"
SILENT: Final = "SILENT"
NO_SUCH_NAME: Final = "NO_SUCH_NAME"
NO_NAME_SERVICE: Final = "NO_NAME_SERVICE"
NO_WAY: Final = "NO_WAY"
CONNECT_FAILED: Final = "CONNECT_FAILED"

_TELLING: Final = (ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH)
"""Of several addresses of a name the one that came nearest says most."""
_NAME_ERRORS: Final = {number: name for name, number in vars(socket).items() if name.startswith("EAI_")}


def unreachable(error: Exception, *, peer: str, host: str, where: str, timeout_s: float) -> PeerUnreachableError:
    """The named error of a connection to `host` that was not made. `error`: what was raised; anything but an OSError
    means that nothing was heard within `timeout_s` seconds. `reason` and `errno` are among its facts."""
    cause = _telling(error)
    number = cause.errno if cause is not None else None
    there = f"There: replicate -i {peer} receiver"
    line = "Look at the firewall, the routes and the line between"
    if isinstance(cause, socket.gaierror):
        name = _NAME_ERRORS.get(number or 0, "unknown")
        reason, text = NO_SUCH_NAME, f"there is no such name as {host}"
        if number == socket.EAI_AGAIN:
            reason, text = NO_NAME_SERVICE, f"the name service does not answer for {host}"
        do = f"Mend the name service, or the address: replicate -i INSTANCE peer add {peer} HOST:PORT --replace"
        return _made(f"{text} ({name}, errno {number})", where, do, reason, number)
    if cause is None or number == ETIMEDOUT:
        whom = "" if _is_address(host) else ", from it or from the name service"
        text = f"silence: no answer for {timeout_s:g} s{whom}"
        if cause is not None:
            text = f"silence: the kernel has given up ({errorcode[ETIMEDOUT]}, errno {ETIMEDOUT})"
        return _made(text, where, f"{line}. {there} status", SILENT, number)
    known = f"{errorcode.get(number or 0, 'unknown')}, errno {number}"
    if number == ECONNREFUSED:
        text = f"refused at once: the host is there, and nobody listens at that port ({known})"
        return _made(text, where, f"There: replicate -i {peer} status says how to start it", REFUSED_AT_ONCE, number)
    if number in (EHOSTUNREACH, ENETUNREACH):
        return _made(f"there is no way to that host ({known})", where, line, NO_WAY, number)
    text = os.strerror(number) if number else str(cause)
    return _made(f"the connection failed: {text} ({known})", where, f"{line}. {there} status", CONNECT_FAILED, number)


def _made(text: str, where: str, do: str, reason: str, number: int | None) -> PeerUnreachableError:
    return PeerUnreachableError(f"nobody answers: {text}", where=where, do=do, reason=reason, errno=number)


def _telling(error: Exception) -> OSError | None:
    """The error of one address; None where there is none but the passing of time."""
    tried = error.__cause__
    found = tried.exceptions if isinstance(tried, ExceptionGroup) else (tried, error)
    errors = [one for one in found if isinstance(one, OSError)]
    return min(errors, key=lambda one: _TELLING.index(one.errno) if one.errno in _TELLING else 9, default=None)


def _is_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False
