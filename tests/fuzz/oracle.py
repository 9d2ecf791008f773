"""What a decoder may do with bytes that came from elsewhere: give a value, or raise one of our errors. Nothing else.

Guarantees: `judge` raises Finding, naming the target, for another exception (InternalError too: bad bytes are never
our bug), for more than a second of processor time whenever it is run, and for more than MEMORY_BYTES_MAX of memory; a
target that never ends is interrupted. Which of two measures of memory is used is the caller's choice: `traced` counts
every allocation and is slow; otherwise it is by how much the process has grown.
Leaves to others: what the targets do, and where the bytes come from.
"""

from __future__ import annotations

import resource
import signal
import time
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Final

from replicate.errors import InternalError, ReplicateError
from replicate.limits import MIB

MEMORY_BYTES_MAX: Final = 64 * MIB
TIME_S_MAX: Final = 1.0
TIMES: Final = 3
"""Once, the collector may look through all that a long run of tests has left, and a virtual machine's processor counts
what its host did for others."""
ENDLESS_S: Final = 10.0
"""Of processor time: a target that has not come back by then never will."""

Target = Callable[[bytes], None]


class Finding(Exception):
    """A decoder did what it must not do. Not one of our errors, or the oracle would take it for a good answer."""


class Endless(BaseException):
    """Interrupts a target. No decoder's `except Exception` may swallow it."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Endless


def judge(name: str, target: Target, data: bytes, *, traced: bool = False) -> str:
    """Run `target` on `data`: the code of the error that it raised, "" for none.

    Raises Finding when it breaks one of the three rules."""
    for _ in range(TIMES):
        refused, used_s = _run(name, target, data, traced)
        if used_s <= TIME_S_MAX:
            return refused
    raise Finding(f"{name}: {used_s:.1f} s of processor time for {len(data)} bytes")


def _run(name: str, target: Target, data: bytes, traced: bool) -> tuple[str, float]:
    """What `judge` returns, and the seconds of processor time."""
    signal.signal(signal.SIGVTALRM, _interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, ENDLESS_S)
    if traced:
        tracemalloc.start()
    before_s, before_bytes = time.thread_time(), _peak_bytes(traced)
    refused = ""
    try:
        target(data)
    except InternalError as error:
        raise Finding(f"{name}: bad bytes were called our own bug: {error!r}") from error
    except ReplicateError as error:
        if not str(error):
            raise Finding(f"{name}: {type(error).__name__} says nothing") from error
        refused = error.code
    except Endless:
        raise Finding(f"{name}: did not end within {ENDLESS_S:g} s") from None
    except Exception as error:
        raise Finding(f"{name}: {type(error).__name__} is not one of our errors: {error}") from error
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        used_s, used_bytes = time.thread_time() - before_s, _peak_bytes(traced) - before_bytes
        if traced:
            tracemalloc.stop()
    if used_bytes > MEMORY_BYTES_MAX:
        raise Finding(f"{name}: {used_bytes // MIB} MiB of memory for {len(data)} bytes")
    return refused, used_s


def _peak_bytes(traced: bool) -> int:
    return tracemalloc.get_traced_memory()[1] if traced else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
