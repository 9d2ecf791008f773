"""Opening a region for an application: the instance, its door (one per process), and a session of it.

Guarantees: a failure leaves nothing open; a region that the standard library's sqlite3 has open in this process is not
opened. Refuses to know: SQL.
"""

from __future__ import annotations

import functools
import os

from replicate import dbapi_watch
from replicate.commit import RegionSession
from replicate.door import Door
from replicate.instance import Instance, resolve_instance
from replicate.journal.spool import Spool
from replicate.opening import close_door, open_door
from replicate.other_package import check_other_package
from replicate.pool import control as word


@functools.cache
def _check_package() -> None:
    """Once a process, unless it is refused: an upgrade beside the other package would replace half of us."""
    check_other_package()


class OpenedRegion:
    """One connection's hold on an instance: what dbapi_connection.Opened asks for."""

    def __init__(self, door: Door, region: str) -> None:
        """A session of `door` for `region`. After a ReplicateError nothing is open, and the door is the caller's."""
        self._watched = dbapi_watch.enter(str(door.instance.region(region).path))
        try:
            self.session = RegionSession(door, region)
        except BaseException:
            dbapi_watch.leave(self._watched)
            raise
        self.region = region

    def new_spool(self) -> Spool:
        """A spool for a large transaction, in the instance's journal directory."""
        return Spool.create(self.session.door.instance.journal_directory, self.session.door.words[word.OWN_ORIGIN])

    @property
    def busy_timeout_s(self) -> float:
        """application.busy_timeout_s of the instance."""
        return self.session.door.instance.config.application.busy_timeout_s

    def wait_durable(self, seqno: int) -> None:
        """Return once the journal is durable up to `seqno`."""
        self.session.door.wait_durable(seqno)

    def close(self) -> None:
        """Give the door back. The session has been closed by its user."""
        dbapi_watch.leave(self._watched)
        close_door(self.session.door)


def open_region(instance: str | os.PathLike[str], region: str) -> OpenedRegion:
    """Open `region` of `instance`. Raises ReplicateErrors; nothing is open then."""
    _check_package()
    door = open_door(Instance.open(resolve_instance(instance)))
    try:
        return OpenedRegion(door, region)
    except BaseException:
        close_door(door)
        raise
