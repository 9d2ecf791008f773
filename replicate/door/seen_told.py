"""What a supplier's transaction tells: what was applied here of others since the last one that told it (model/seen.py).

Guarantees: exact, since it is asked with the region's lock held, without which nothing of others is applied; nothing is
told where no partition is shared, nor where nothing has come since.
Leaves to others: the lock, the commit (door/primary.py), who reads it.
"""

from __future__ import annotations

from replicate.door.door import Door
from replicate.journal.record import pack_elements
from replicate.limits import PARTITION_STREAM
from replicate.model.seen import values_of
from replicate.model.transaction import Op
from replicate.pool import control as word
from replicate.region.protocol import CapturedChanges, WrittenRegion


def is_news(door: Door) -> bool:
    """Whether something of others has come since it was told last."""
    words = door.words
    return bool(words[word.FOREIGN_SEQNO] >= words[word.TOLD_SEQNO])


def with_seen(captured: CapturedChanges, region: WrittenRegion, door: Door) -> CapturedChanges:
    """The changes with what is to be told in front of them, of a large transaction after them; the region notes it in
    the open transaction. Raises what spooling raises."""
    if not is_news(door):
        return captured
    own = door.words[word.OWN_ORIGIN]
    told = region.foreign_since(door.words[word.TOLD_SEQNO], own)
    if not told:
        return captured
    region.note_seen(own, told)
    payload, count = pack_elements(int(Op.SEEN), PARTITION_STREAM, 0, values_of(own, told))
    if captured.spool is None:
        return captured._replace(payload=payload + captured.payload, count=captured.count + count)
    captured.spool.write(payload)
    return captured._replace(count=captured.count + count)
