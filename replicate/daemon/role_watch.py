"""A daemon that does what its instance's role asks for, while the role may change.

Guarantees: `other_role` returns soon after the instance file says another role than this daemon serves, and when the
daemon is to stop. A look costs one call of the kernel while the file is the same.
Leaves to others: who changes the role, and what a daemon does in each.
"""

from __future__ import annotations

import os
from typing import Final

import trio

from replicate.daemon.ticks import next_tick
from replicate.errors import ReplicateError
from replicate.instance.instance import FILE_NAME, Instance

LOOK_S: Final = 0.25


class RoleWatch:
    """Which role a daemon serves, and whether that is still the instance's."""

    def __init__(self, instance: Instance) -> None:
        self.role = instance.told_role
        self._instance = instance
        self._path = instance.path / FILE_NAME
        self._seen = (0, 0)

    def is_other(self) -> bool:
        """Whether the role is another one now. The instance is read again when its file is a new one."""
        try:
            facts = os.stat(self._path)
            now = (facts.st_ino, facts.st_mtime_ns)
            if now != self._seen:
                self._instance.reload()
                self._seen = now
        except (OSError, ReplicateError):
            return False  # of an instance that cannot be read, others tell
        return self._instance.told_role != self.role


async def other_role(instance: Instance, stop_requested: trio.Event) -> None:
    """Wait until the instance has another role than now, or the stop is requested."""
    watch = RoleWatch(instance)
    while not stop_requested.is_set() and not watch.is_other():
        with trio.move_on_at(next_tick(LOOK_S)):
            await stop_requested.wait()
