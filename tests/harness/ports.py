"""A port for a daemon whose address must be known before it listens, or stays the same when it is started again.

Guarantees: nobody listens there now, and no outgoing connection is given it by the kernel meanwhile: it lies below the
ports that the kernel chooses from. No other test of this machine is given it as long as this process lives, or has
asked for KEPT others. Where a test can let the kernel choose (port 0), and nobody listens there twice, it should: what
the kernel chose it may give to another as soon as it is free.
Leaves to others: who will listen.
"""

from __future__ import annotations

import random
import socket
from collections import deque

LOWEST = 10_240
HIGHEST = 32_000
KEPT = 64
_MARK = "127.77.0.1"
"""Of this machine too, and nobody listens there: who is bound to a port there has it."""
_dice = random.SystemRandom()
_kept: deque[socket.socket] = deque()


def free_port() -> int:
    """A port of 127.0.0.1, between LOWEST and HIGHEST; OSError when a hundred in a row are taken."""
    for _ in range(100):
        port = _dice.randint(LOWEST, HIGHEST)
        mark = socket.socket()
        try:
            mark.bind((_MARK, port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        _kept.append(mark)
        if len(_kept) > KEPT:
            _kept.popleft().close()
        return port
    raise OSError("no free port was found")
