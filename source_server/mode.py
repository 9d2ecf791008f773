"""Whether a Source Server is active (it streams to its peer, or tries to) or passive (it sleeps, and waits to be made
active).

Guarantees: a task that waits for a change goes on when it has come. A change that is taken back before anybody saw it
was none.
Leaves to others: where the mode is kept (the instance file), and who changes it.
"""

from __future__ import annotations

import trio

from replicate.instance.file import PeerEntry


class Mode:
    """The mode of one Source Server. All of it belongs to the event loop's thread."""

    def __init__(self, entry: PeerEntry) -> None:
        self.entry = entry
        """The peer, and how it is to be served, by the newest word."""
        self.asleep = trio.Event()
        """It is passive, and all is flushed; or its mode has changed before it came to that."""
        self._changed = trio.Event()

    @property
    def is_passive(self) -> bool:
        """Nothing is to be sent."""
        return self.entry.passive

    def follow(self, entry: PeerEntry) -> bool:
        """Take the entry as it is now; whether the mode is another one."""
        is_other = entry.passive != self.entry.passive
        self.entry = entry
        if is_other:
            for event in (self.asleep, self._changed):
                event.set()
            self.asleep, self._changed = trio.Event(), trio.Event()
        return is_other

    async def until_passive(self) -> None:
        """Wait until it is passive."""
        while not self.is_passive:
            await self._changed.wait()
