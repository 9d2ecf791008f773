"""A word of shared memory that processes sleep on until one of them wakes them: Linux's futex, beside a file lock.

A waiter marks the word, looks once more whether it must wait at all, and sleeps; the process that ends its wait does
that first, and then wakes. So no wake-up is lost, but when somebody is killed between the two, or where the platform
knows no futex that we know: every sleep has a time-out, and a waiter looks for itself then. Nothing but speed depends
on the word.

Guarantees: the process that wakes when nobody waits pays one look at memory and no system call; `sleep` returns at once
when the word is not marked any more. Leaves to others: what is waited for, and whether it is there (locks.py)."""

from __future__ import annotations

import errno
import functools
import platform
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from replicate.pool.shared_memory import SharedMemory

_CALL_NUMBERS: Final = {"x86_64": 202, "aarch64": 98, "riscv64": 98}
"""The system call `futex` by machine; all of them have 64-bit times."""
_WAIT: Final = 0
_WAKE: Final = 1
ALL: Final = 2**31 - 1
BLIND_PAUSE_S: Final = 0.000_25
"""Between two looks of a waiter that nobody can wake."""
_HALF: Final = 4 if sys.byteorder == "big" else 0
"""Bytes: where in a word of 64 bits those 32 stand that hold the mark."""


@functools.cache
def _futex() -> tuple[Callable[[int, int, int, float | None], bool], Callable[[Any, int], int]] | None:
    """The system call, and how to find the address of a byte; None where we do not know it. Made at the first wait: a
    writer that is alone needs no ctypes."""
    try:
        import ctypes
    except (ImportError, MemoryError, OSError):  # where no memory may be made executable, even the import fails
        return None
    number = _CALL_NUMBERS.get(platform.machine())
    if number is None or sys.platform != "linux":
        return None
    times = ctypes.c_long * 2
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = (ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p)
    call.restype = ctypes.c_long

    def futex(address: int, operation: int, value: int, timeout_s: float | None) -> bool:
        if timeout_s is None:
            return bool(call(number, address, operation, value, None) >= 0)
        seconds = int(timeout_s)
        limit = times(seconds, int((timeout_s - seconds) * 1e9))
        done = call(number, address, operation, value, ctypes.addressof(limit))
        return bool(done >= 0 or ctypes.get_errno() in (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT))

    def address_of(memory: Any, offset: int) -> int:
        return ctypes.addressof(ctypes.c_uint32.from_buffer(memory, offset))  # good as long as it is mapped

    return futex, address_of


class WakeWord:
    """One word of a pool's control words, in one process. It is not used any more once the pool is closed."""

    __slots__ = ("_address", "_index", "_memory", "_most", "_words")

    def __init__(self, memory: SharedMemory, index: int, *, most: int = ALL) -> None:
        """`index`: which of the control words, `most`: how many sleepers `wake` wakes."""
        self._words = memory.words
        self._memory = memory
        self._index = index
        self._most = most
        self._address = 0

    def mark(self) -> None:
        """Have the next `wake` look for sleepers. A process that marks looks whether it must wait, and only then
        sleeps."""
        self._words[self._index] = 1

    def sleep(self, timeout_s: float) -> None:
        """Sleep until woken, at most `timeout_s` seconds; perhaps less. A signal ends it too."""
        if not self._call(_WAIT, 1, timeout_s):
            time.sleep(min(timeout_s, BLIND_PAUSE_S))

    def wake(self) -> None:
        """Wake what sleeps. What they wait for has happened before."""
        words = self._words
        if words[self._index]:
            words[self._index] = 0
            self._call(_WAKE, self._most, None)

    def _call(self, operation: int, value: int, timeout_s: float | None) -> bool:
        known = _futex()
        if known is None:
            return False
        futex, address_of = known
        if not self._address:
            self._address = address_of(self._memory.map, self._index * 8 + _HALF)
        return futex(self._address, operation, value, timeout_s)
