"""Taking nothing more from suppliers that are gone for good, on each of the others.

Once it is known that one is gone, the Receiver Server lets it in no longer. What came from it before may still lie in
the receive pool: so all streams are asked to begin again, which empties the pool; then this one says that it has
parted. One that hears of the last parting says that the one that is gone is retired (roles/retiring.py).

Guarantees: what is said is true when it is said, also after a kill: a process that comes after begins with the streams
again. Nothing is held between two calls.
Leaves to others: who is gone (model/writers.py), connections, the pool's memory (supplied_transactions.py asks it).
"""

from __future__ import annotations

import time
from typing import Final

from replicate.door.secondary import ApplySession
from replicate.door.writer_check import suppliers_known
from replicate.errors import BusyError
from replicate.model.writers import Writers
from replicate.pool import control as word
from replicate.roles.retiring import finish, part, writers_of

BUSY_S: Final = 1.0
LOOK_S: Final = 1.0


class Parting:
    """One per applier. `work` between two batches."""

    def __init__(self, session: ApplySession) -> None:
        self._door = session.door
        self._own = session.door.instance.content.uuid
        self._seen: tuple[int, int] | None = None
        self._again_s = 0.0
        """When to look once more: the generation rises before what it stands for is committed, and no lock is held."""
        self._writers = Writers()
        self._asked: frozenset[bytes] = frozenset()
        """Of whom it was known that they are gone when the streams were asked to begin again."""
        self._dropped: frozenset[bytes] = frozenset()
        """Of whom nothing is on its way here any more."""

    def look(self) -> bool:
        """Whether something may have to be done: somebody is gone. Not while this one takes no writes: it was restored,
        and says nothing before it has back what it had."""
        words, instance, now_s = self._door.words, self._door.instance, time.monotonic()
        seen = words[word.WRITERS_GENERATION], words[word.CATALOGUE_GENERATION]
        if seen != self._seen or now_s >= self._again_s:
            self._writers = writers_of(instance)
            self._seen, self._again_s = seen, now_s + LOOK_S
        if not self._writers.leaving:
            return False
        if not instance.takes_writes:
            instance.reload()  # another process may have settled that
        return instance.takes_writes

    @property
    def writers(self) -> Writers:
        """Who writes what, as of the last `look`."""
        return self._writers

    @property
    def wants_restart(self) -> bool:
        """Whether all streams are to begin again. After `look`."""
        return not self._dropped.issuperset(self._writers.to_part(self._own))

    def asked(self) -> None:
        """They were asked to, just now."""
        self._asked = frozenset(self._writers.to_part(self._own))

    def dropped(self) -> None:
        """What was received before that is gone from the pool."""
        self._dropped |= self._asked
        self._asked = frozenset()

    def work(self) -> None:
        """Say what is to be said. After `look`. Raises what a commit raises; where somebody holds the region, the next
        call says it."""
        try:
            for gone in self._writers.to_part(self._own):
                if gone in self._dropped:
                    part(self._door, gone, timeout_s=BUSY_S)
            self.look()
            for gone in self._writers.to_retire(self._own, suppliers_known(self._door, self._writers)):
                finish(self._door, gone, timeout_s=BUSY_S)
        except BusyError:
            return
