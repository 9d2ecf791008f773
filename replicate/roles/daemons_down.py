"""Keeping an instance's daemons down while its role changes or its transactions are taken back.

Guarantees: for the length of the block no daemon of the instance works or can start, but the one that does it itself,
and no seed, replay or rebuild is under way; nothing was changed when it is refused. Daemons that run are asked to stand
aside, and go on after the block, in the same process and in the role that the instance has then. The order is that of a
seed: its lock, then the daemons' locks.
Leaves to others: what is done meanwhile. Applications are not daemons: they go by the regions' locks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from replicate.daemon.files import DaemonFiles
from replicate.daemon.lock_file import LockFile, daemon_names
from replicate.daemon.standing_aside import asked_aside
from replicate.errors import AlreadyRunningError
from replicate.instance.instance import Instance
from replicate.model.start_command import stop_command
from replicate.transfer.seed.install import seed_lock

LOOK_S: Final = 0.02
GIVING_WAY_S: Final = 5.0
"""A primary that is fenced becomes a secondary by itself, just when somebody demotes it: that takes a moment. A seed or
a replay takes longer, and is not waited for."""


@contextmanager
def daemons_down(instance: Instance, what: str, *, by: str = "", patience_s: float = 0.0) -> Iterator[None]:
    """`what`: what is done, as others are told that wait for its end. `by`: the daemon that does it by itself, and has
    its own lock. `patience_s`: so many seconds the others have to stand aside; those of `by`, as many as a stop may
    take.

    AlreadyRunningError names a daemon that has not stood aside, and the command that stops it; BusyError: a seed,
    replay or rebuild is under way."""
    names = {"receiver", "update", *daemon_names(instance.path), *(f"source-{peer.name}" for peer in instance.peers)}
    if by:
        patience_s = instance.config.daemon.stop_timeout_s
    with ExitStack() as stack:
        stack.enter_context(seed_lock(instance, timeout_s=min(patience_s, GIVING_WAY_S)))
        stack.enter_context(asked_aside(instance.path, patience_s))
        deadline_s = time.monotonic() + patience_s
        for name in sorted(names - {by}):
            lock = DaemonFiles(instance.path, name).lock
            wait_until_down(lock, deadline_s)
            running = lock.probe()
            if running is not None and not running.instead:
                raise AlreadyRunningError(
                    f"{name} runs (process {running.pid})",
                    where=str(instance.path),
                    do=f"Stop it first: {stop_command(name, of=instance.named)}",
                )
            stack.enter_context(lock.kept_down(what))
        yield


def wait_until_down(lock: LockFile, deadline_s: float) -> None:
    """Until no daemon holds the lock, or the deadline of the monotonic clock has come (seconds)."""
    while time.monotonic() < deadline_s:
        running = lock.probe()
        if running is None or running.instead:
            return
        time.sleep(LOOK_S)
