"""What `receiver start` and `receiver stop` do with the Update Process: may it be started, and how both are stopped.

The request is the signal by which `update stop` stops it, and the answer is its end: words in the receive pool would
not reach one that has no pool yet, or that is of an earlier release.

Guarantees: the Update Process applies all that had been received when it was asked, or it is said how much it did not;
what a quick source sends after that keeps nobody, and waits in the receive pool. The Receiver Server is stopped after
it, whatever became of it. One that something else stands in for (a replay) is left alone.
Leaves to others: how daemons are started; the command line does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from replicate.daemon import control
from replicate.daemon.control import Stopped
from replicate.daemon.files import DaemonFiles
from replicate.daemon.last_run import read_last_run
from replicate.door.recovery.opening import is_seeded
from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.model.start_command import text_of
from replicate.pool.receive_pool import ReceivePool

UPDATE: Final = "update"
RECEIVER: Final = "receiver"


class StoppedBoth(Struct, frozen=True):
    """How each ended, and how many whole transactions that had been received at the request are not applied."""

    stopped: Mapping[str, Stopped]
    left: int


def why_not_start(instance: Instance) -> str:
    """Why the Update Process is not to be started now: it runs, something is at work in its place, or the secondary
    waits for its first copy. "": start it."""
    running = DaemonFiles(instance.path, UPDATE).lock.probe()
    if running is not None:
        what = f"a {running.instead} is under way" if running.instead else "runs already"
        return f"{what} (process {running.pid})"
    if instance.role == "secondary" and not is_seeded(instance):
        return f"starts after the first copy; next: replicate -i {instance.named} seed"
    return ""


def as_it_ran(instance: Instance) -> dict[str, object]:
    """The settings that the last run of the Update Process was given, as flags: it comes back as it ran."""
    missing = read_last_run(DaemonFiles(instance.path, UPDATE)).missing(instance.config, {})
    return {key: text_of(key, value) for key, value in missing.items()}


def stop_both(path: Path, *, timeout_s: float) -> StoppedBoth:
    """Stop the Update Process of the instance in that directory, and then its Receiver Server, each within `timeout_s`
    seconds. Raises what `control.stop` raises; the Receiver Server is stopped then, if it can be."""
    stopped: dict[str, Stopped] = {}
    received, _ = _standing(path)
    files = DaemonFiles(path, UPDATE)
    running = files.lock.probe()
    try:
        if running is None or not running.instead:
            stopped[UPDATE] = control.stop(files, timeout_s=timeout_s)
    finally:
        stopped[RECEIVER] = control.stop(DaemonFiles(path, RECEIVER), timeout_s=timeout_s)
    _, applied = _standing(path)
    return StoppedBoth(stopped, max(0, received - applied))


def _standing(path: Path) -> tuple[int, int]:
    """The last transaction that was received whole, and the last one applied, as far as the receive pool can say."""
    try:
        pool = ReceivePool.attach(Instance.open(path, needs=()).content.uuid)
    except ReplicateError:  # no pool, or an instance that cannot be opened: it is stopped all the same
        return 0, 0
    try:
        return pool.last_received_seqno, pool.applied_seqno
    finally:
        pool.close()
