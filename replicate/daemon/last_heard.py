"""When a daemon last heard the other site, as other processes of this machine and later boots can read it.

Guarantees: the numbers stay the same as long as nothing comes, so that a status that says nothing new is not written.
Leaves to others: sockets, and what follows from it (replicate/model/contact.py).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

from replicate.model.contact import Moment
from replicate.system.boot import boot_word

MONOTONIC: Final = "last_heard_monotonic_ns"
WALL: Final = "last_heard_wall_ns"
TOLD: Final = "told_monotonic_ns"
BOOT: Final = "boot"
"""Facts of a daemon's status; `boot` says which boot of the machine the monotonic ones count from."""


def now() -> Moment:
    """This moment."""
    return Moment(time.monotonic_ns(), time.time_ns(), boot_word())


def utc(wall_ns: int) -> str:
    """A time of the wall clock, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall_ns / 1e9))


class Heard:
    """Of one daemon. `at` takes times of the event loop's clock, which differs from the machine's by a constant."""

    def __init__(self, loop_now_s: float, before_ns: int = 0) -> None:
        """`before_ns`: when a predecessor has heard it (monotonic); 0: nobody knows."""
        self._behind_ns = time.monotonic_ns() - int(loop_now_s * 1e9)
        self._boot = boot_word()
        self.last: Moment | None = None
        """None: never."""
        if before_ns:
            self._note(before_ns)

    def at(self, loop_s: float) -> None:
        """Something has come at that time; an older one than the last changes nothing."""
        self._note(self._behind_ns + int(loop_s * 1e9))

    def _note(self, monotonic_ns: int) -> None:
        if self.last is None or monotonic_ns > self.last.monotonic_ns:
            wall_ns = time.time_ns() - (time.monotonic_ns() - monotonic_ns)
            self.last = Moment(monotonic_ns, wall_ns, self._boot)

    def age_s(self) -> float | None:
        """Seconds since the last of it; None: never."""
        return None if self.last is None else max(0, time.monotonic_ns() - self.last.monotonic_ns) / 1e9

    def facts(self) -> dict[str, int | None]:
        """For the daemon's status. TOLD is for a daemon to add that is told positions: when that was, the last time."""
        last = self.last
        return {
            MONOTONIC: None if last is None else last.monotonic_ns,
            WALL: None if last is None else last.wall_ns,
            BOOT: self._boot,
        }


def read_facts(facts: Mapping[str, Any]) -> tuple[Moment | None, Moment | None]:
    """When it was last heard, and when it last told its position, by a daemon's status; None: never, or not said."""
    heard_ns, wall_ns, told_ns, boot = (facts.get(name) for name in (MONOTONIC, WALL, TOLD, BOOT))
    if not isinstance(boot, int):
        return None, None
    heard = Moment(heard_ns, wall_ns, boot) if isinstance(heard_ns, int) and isinstance(wall_ns, int) else None
    if not isinstance(told_ns, int) or not told_ns:
        return heard, None
    # Of its wall clock nobody has made a note; both were read in one boot.
    return heard, Moment(told_ns, heard.wall_ns - (heard.monotonic_ns - told_ns) if heard is not None else 0, boot)
