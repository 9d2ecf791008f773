"""The descriptors 0, 1 and 2, where the process that started this process has closed them.

Guarantees: no file of ours gets one of these numbers, into which whatever prints (a C library, an interpreter that
ends) would write then; it is /dev/null that does. Leaves to others: who prints what.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Final

LAST_STANDARD: Final = 2


def hold_standard_descriptors() -> None:
    """Open /dev/null under each of these numbers that nobody has.

    Where that fails, the next file that is opened fails too, and says so."""
    with suppress(OSError):
        while (fd := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) <= LAST_STANDARD:
            os.set_inheritable(fd, True)
        os.close(fd)


def hold_standard_streams() -> None:
    """The same, and have `sys.stdout` and `sys.stderr` write there, of which Python makes None in such a process."""
    hold_standard_descriptors()
    for name, fd in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w", encoding="utf-8", closefd=False))
