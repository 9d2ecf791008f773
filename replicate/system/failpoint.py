"""Named places where a test can make the process die, stop or fail: `hit("publish.after_early")`.

Inert unless the environment variable REPLICATE_FAILPOINT names one, as `name:n:action`, several separated by commas:
at the n-th time that `name` is reached (counted in this process, from 1), the action is taken, once.

    kill         SIGKILL ourselves                 exit          leave at once, exit code 70
    stop         SIGSTOP ourselves                 raise         FailpointError
    errno=NAME   OSError with that errno, for example errno=ENOSPC

Guarantees: while inert, a hit costs one call and one look at a global.
Leaves to others: what stands at the places.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import Final

from replicate.errors import ConfigurationError, InternalError

VARIABLE: Final = "REPLICATE_FAILPOINT"

_armed = False
_plans: dict[str, dict[int, Callable[[], None]]] = {}
_reached: dict[str, int] = {}


class FailpointError(InternalError):
    """The action `raise` of a failpoint; only tests meet it."""

    code = "FAILPOINT"


def hit(name: str) -> None:
    """The place `name` is reached. Does nothing, unless armed for it."""
    if _armed:
        _take(name)


def arm(specification: str) -> None:
    """Arm what `specification` says (see the module), besides what is armed already. ConfigurationError."""
    global _armed
    for part in specification.split(","):
        name, _, rest = part.strip().partition(":")
        number, _, action = rest.partition(":")
        if not name or not number.isdecimal() or int(number) < 1:
            raise ConfigurationError(f"a failpoint is name:n:action, not {part!r}", where=VARIABLE)
        _plans.setdefault(name, {})[int(number)] = _action(name, action)
    _armed = True


def watch(name: str, number: int, action: Callable[[], None]) -> None:
    """For tests in the same process: call `action` at the `number`-th hit of `name`."""
    global _armed
    _plans.setdefault(name, {})[number] = action
    _armed = True


def disarm() -> None:
    """Forget all plans and counts."""
    global _armed
    _armed = False
    _plans.clear()
    _reached.clear()


def _take(name: str) -> None:
    number = _reached.get(name, 0) + 1
    _reached[name] = number
    action = _plans.get(name, {}).pop(number, None)
    if action is not None:
        action()


def _action(name: str, text: str) -> Callable[[], None]:
    if text == "kill":
        return lambda: os.kill(os.getpid(), signal.SIGKILL)
    if text == "stop":
        return lambda: os.kill(os.getpid(), signal.SIGSTOP)
    if text == "exit":
        return lambda: os._exit(70)
    if text == "raise":
        return lambda: _raise(FailpointError(f"failpoint {name}"))
    number = getattr(errno, text.removeprefix("errno="), None) if text.startswith("errno=E") else None
    if number is None:
        raise ConfigurationError(
            f"failpoint action {text!r} is unknown", where=VARIABLE, do="Use kill, stop, exit, raise or errno=NAME"
        )
    return lambda: _raise(OSError(number, f"failpoint {name}"))


def _raise(error: Exception) -> None:
    raise error


if os.environ.get(VARIABLE):
    arm(os.environ[VARIABLE])
