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


def tell(door: Door, *, timeout_s: float) -> None:
    """Commit it. Raises what a commit raises."""
    session = RegionSession(door, door.instance.regions[0].name)
    try:
        session.begin(timeout_s=timeout_s)
        own, told = door.words[word.OWN_ORIGIN], door.words[word.TOLD_SEQNO]
        if is_news(door) and session.parts[0].region.foreign_since(told, own):
            session.commit(NOTHING, tells=True)
    finally:
        session.close()
