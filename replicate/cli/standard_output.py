"""Standard output whose reader has gone (`replicate status | head -1`), or that takes nothing any more.

Guarantees: after `drop_output` nothing fails that writes there. Leaves to others: what is printed.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress


def drop_output() -> None:
    """The interpreter flushes once more when it ends, and would fail again: give it somewhere to flush to."""
    with suppress(AttributeError, OSError, ValueError):
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def is_reader_gone(*, of_output: bool = False) -> bool:
    """Whether it is standard output or standard error that a BrokenPipeError speaks of, and not a socket of ours.
    `of_output`: whether that of standard output is gone, before anything is written."""
    poll = select.poll()
    for stream in (sys.stdout,) if of_output else (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):
            poll.register(stream.fileno(), 0)
    return any(found & select.POLLERR for _, found in poll.poll(0))
