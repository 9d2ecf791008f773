"""A port for a daemon whose address must be known before it listens, or stays the same when it is started again.

Guarantees: nobody listens there now, and no outgoing connection is given it by the kernel meanwhile: it lies below the
ports that the kernel chooses from. Where a test can let the kernel choose (port 0), and
nobody listens there twice, it should: what the kernel chose it may give to another as soon as it is free.
Refuses to know: who will listen.
"""

from __future__ import annotations

import contextlib
import random
import socket

LOWEST = 10_240
HIGHEST = 32_000
_dice = random.SystemRandom()


def free_port() -> int:
    """A port of 127.0.0.1, between LOWEST and HIGHEST; OSError when a hundred in a row are taken."""
    for _ in range(100):
        port = _dice.randint(LOWEST, HIGHEST)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port was found")
