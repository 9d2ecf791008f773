"""Opening a region for an application: the instance, its door (one per process), and a session of it.

Guarantees: connections of one process to one instance share one door, which is closed with the last of them; a failure leaves nothing
open. A forked child never uses its parent's door.
Refuses to know: SQL.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

from replicate import dbapi_watch
from replicate.commit import RegionSession, open_door
from replicate.door import Door
from replicate.errors import InternalError
from replicate.instance import Instance, resolve_instance
from replicate.journal.spool import Spool

_lock = threading.Lock()
_doors: dict[tuple[int, Path], tuple[Door, int]] = {}
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))


def _take_door(path: Path) -> Door:
    key = (os.getpid(), path)
    with _lock:
        door, users = _doors.get(key, (None, 0))
        if door is None:
            door = open_door(Instance.open(path))
        _doors[key] = (door, users + 1)
        return door


def _give_door(path: Path) -> None:
    key = (os.getpid(), path)
    with _lock:
        if key not in _doors:
            return
        door, users = _doors.pop(key)
        if users > 1:
            _doors[key] = (door, users - 1)
        else:
            door.close()


class OpenedRegion:
    """One connection's hold on an instance: what dbapi_connection.Opened asks for."""

    def __init__(self, path: Path, door: Door, session: RegionSession, region: str, leave: Callable[[], None]) -> None:
        self._path, self._door, self._leave = path, door, leave
        self.session = session
        self.region = region

    def new_spool(self) -> Spool:
        """A spool for a large transaction, in the instance's journal directory."""
        raise InternalError("spools are not there yet")

    def wait_durable(self, seqno: int) -> None:
        """Return once the journal is durable up to `seqno`."""
        self._door.wait_durable(seqno)

    def close(self) -> None:
        """Give the door back. The session is closed by its user."""
        self._leave()
        _give_door(self._path)


def open_region(instance: str | os.PathLike[str], region: str) -> OpenedRegion:
    """Open `region` of `instance`. Raises ReplicateErrors; nothing is open then."""
    path = resolve_instance(instance)
    door = _take_door(path)
    try:
        file = str(door.instance.region(region).path)
        key = dbapi_watch.enter(file)
        try:
            session = RegionSession(door, region)
        except BaseException:
            dbapi_watch.leave(key)
            raise
    except BaseException:
        _give_door(path)
        raise
    return OpenedRegion(path, door, session, region, lambda: dbapi_watch.leave(key))


__all__ = ["OpenedRegion", "open_region", "uuid"]
