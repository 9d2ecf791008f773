"""A supplier's transaction that does nothing but tell what was applied here of others (seen_told.py).

Guarantees: nothing is committed where there is no news.
Leaves to others: when it is time (update_process/supplier_upkeep.py).
"""

from __future__ import annotations

from typing import Final

from replicate.door.door import Door
from replicate.door.primary import RegionSession
from replicate.door.seen_told import is_news
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges

NOTHING: Final = CapturedChanges(b"", 0, (), False, None, False)


class SeenTeller:
    """One per process. What it commits by stays open, since to open it takes longer than to commit: `close` it."""

    def __init__(self, door: Door) -> None:
        self._door = door
        self._session: RegionSession | None = None

    def tell(self, *, timeout_s: float) -> None:
        """Commit it. Raises what opening a session and a commit raise; all is opened again after that."""
        door = self._door
        try:
            session = self._session = self._session or RegionSession(door, door.instance.regions[0].name)
            session.begin(timeout_s=timeout_s)
            own, told = door.words[word.OWN_ORIGIN], door.words[word.TOLD_SEQNO]
            if is_news(door) and session.parts[0].region.foreign_since(told, own):
                session.commit(NOTHING, tells=True)
            else:
                session.rollback()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """May be called twice, and it may tell again after it."""
        if self._session is not None:
            self._session.close()
            self._session = None
