"""Stopping Source Servers with a proof that their peers have all: the door is closed until they have ended.

Guarantees: where it says that the backlog is zero at a number, each peer named had made all up to there durable, and
nothing was committed from before that until its Source Server had ended. Where it is not zero in time, the Source
Servers are stopped all the same, and what each peer lacks is counted. The door opens again at the end, and whenever
this process, or one of the Source Servers, dies.
Leaves to others: the door (door/closed_door.py); what an application does that was refused meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from replicate.daemon import control
from replicate.daemon.control import Stopped
from replicate.daemon.files import DaemonFiles
from replicate.daemon.source_progress import progress_of
from replicate.door.closed_door import closed_door
from replicate.door.snapshot import door_of
from replicate.errors import UsageError
from replicate.instance.instance import Instance

END_S: Final = 3.0
"""As long, at least, a Source Server has for its end: it has nothing to send any more, or has had its time."""


class StoppedLevel(Struct, frozen=True):
    """`seqno`: the last transaction of the journal. `lacking`: by Source Server that lacks any, how many its peer
    had not acknowledged. `stopped`: how each of them ended."""

    seqno: int
    lacking: Mapping[str, int]
    stopped: Mapping[str, Stopped]

    @property
    def is_zero(self) -> bool:
        """Whether all peers have all."""
        return not self.lacking


def stop_level(instance: Instance, names: Sequence[str], *, timeout_s: float) -> StoppedLevel:
    """Stop the Source Servers of these names once their peers have acknowledged all, or after `timeout_s` seconds.

    Nothing is stopped by what is raised before: UsageError (there is none, or one is passive), NotFoundError (one does
    not run), BusyError (a compare holds the instance), what opening the door and asking a daemon raise, and
    TryAgainError when the door did not stay closed, or a daemon does not end.
    """
    if not names:
        raise UsageError(
            "no peer is registered, so there is nothing to be level with",
            where=str(instance.path),
            do="Add it: replicate -i INSTANCE peer add NAME HOST:PORT",
        )
    for name in names:
        _refuse_passive(instance, name)
        progress_of(instance, name)
    acknowledged: dict[str, int] = {}

    def least() -> int:
        acknowledged.update((name, progress_of(instance, name).last_acknowledged_seqno) for name in names)
        return min(acknowledged.values())

    with door_of(instance) as door, closed_door(door, timeout_s=timeout_s) as closed:
        drained = closed.drain(least)
        files = {name: DaemonFiles(instance.path, name) for name in names}
        end_s = END_S if drained.lacking == 0 else 0.0  # those that are behind have had their time
        stopped = {name: control.stop(one, timeout_s=end_s) for name, one in files.items()}
        if drained.lacking == 0:
            closed.check()
    lacking = {name: drained.seqno - seqno for name, seqno in acknowledged.items() if seqno < drained.seqno}
    return StoppedLevel(drained.seqno, lacking, stopped)


def _refuse_passive(instance: Instance, name: str) -> None:
    """UsageError where that Source Server sleeps."""
    peer = name.partition("-")[2]
    if instance.peer(peer).passive:
        raise UsageError(
            f"{name} is passive: it sends nothing",
            where=str(instance.path),
            do=f"Make it active: replicate -i {instance.named} source activate --peer {peer}",
        )
