"""Children of a process that is ended by Ctrl-C or SIGTERM, and has one thread.

Guarantees: an interrupt that comes while a child is made is neither lost nor raised before the child's number is noted;
it is the parent's alone; a child never outlives its parent. Leaves to others: what the child does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
from collections.abc import Callable
from typing import Final, NoReturn

INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM)
PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


def fork(body: Callable[[], int], note: Callable[[int], object]) -> None:
    """A child that runs `body` and ends with what that returns, 70 where it raises. `note` is told the child's number.

    Signals wait meanwhile: Python throws away what is raised in a function that it calls at a fork (logging has some),
    and with it an interrupt that came just then; in the child it would run through the parent's own `finally`s."""
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        pid = os.fork()
        if not pid:
            _live(body, parent, mask)
        note(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _live(body: Callable[[], int], parent: int, mask: set[signal.Signals]) -> NoReturn:
    code = 70
    try:
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        gc.freeze()  # what is inherited stays: to look through it would copy most of the parent's memory
        if os.getppid() == parent:  # else it died before we asked for that
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            code = body()
    finally:
        os._exit(code)
