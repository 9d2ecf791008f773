"""Freezing an instance: nothing is committed, or applied, until an operator thaws it.

    commit lock · instance file: frozen, by whom and since when · the pool's word

Guarantees: when `freeze` returns, no transaction gets a number after the one that it tells, whatever is killed or
started again meanwhile (an Update Process may end the batch that it has begun); given again, it ends the same. Reading
goes on, and so do sending and receiving.
Leaves to others: how writers wait (door/barrier.py).
"""

from __future__ import annotations

import getpass
import time
from typing import Final

from replicate.door.snapshot import door_of
from replicate.instance.file import Frozen
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.system.failpoint import hit

LOCK_TIMEOUT_S: Final = 30.0


def freeze(instance: Instance, *, on: bool) -> int:
    """Freeze the instance, or thaw it; the last transaction of its journal. Raises BusyError (the commit lock), and
    what opening the door and writing the instance file raise; after a failure the same call may be made again."""
    with door_of(instance) as door, door.locked(LOCK_TIMEOUT_S):
        instance.set_frozen(Frozen(time.time_ns(), getpass.getuser()) if on else None)
        hit("freeze.noted")
        seqno = int(door.words[word.LAST_SEQNO])
        door.words[word.FROZEN] = max(1, seqno) if on else 0
    return seqno
