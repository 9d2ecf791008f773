"""What a source has, as the decision about a restart wants it (wire/resync.py): looked up in its door and its journal.

Guarantees: one look; what is told of the place before the restart is what the journal's own catalogues and frames say.
Leaves to others: the decision, and who asks: the Source Server for a stream, `replicate scr` for a word on it. Blocks
on the disk.
"""

from __future__ import annotations

from msgspec import Struct

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.journal.reader import ChainReader, LargeTransaction, SparseIndex
from replicate.model.transaction import Catalogue
from replicate.model.vector import Position
from replicate.wire.message import Restart
from replicate.wire.resync import LargeHead, SourceView, is_reachable


class Viewed(Struct, frozen=True):
    """`here`: what is in force at the restart's place (at the end, where that cannot be reached). `index`: what is
    known of the way there."""

    source: SourceView
    here: Catalogue
    index: SparseIndex


def view_for(door: Door, restart: Restart) -> Viewed:
    """Raises what reading our own journal raises."""
    with door.locked():
        end = door.position()
        catalogue = door.catalogue()
    chain = make_chain(door.instance)
    oldest = chain.oldest_seqno()
    before: Position | None = None
    large: LargeHead | None = None
    here = catalogue
    index: SparseIndex = {}
    if is_reachable(restart, end.last_seqno, oldest):
        reader = ChainReader(chain, index=index)
        try:
            if restart.next_seqno == end.last_seqno + 1:  # level: as at our end, and no segment need be walked
                here = catalogue.at(end.vector, end.chains)
            else:
                here = reader.catalogue_at(restart.next_seqno)
            before = Position(restart.next_seqno - 1, here.vector, here.chains)
            if restart.next_part:
                large = _large_at(reader, restart.next_seqno, end.last_seqno)
        finally:
            reader.close()
    return Viewed(SourceView(end, oldest, catalogue.histories, before, large), here, index)


def _large_at(reader: ChainReader, seqno: int, last_seqno: int) -> LargeHead | None:
    if seqno > last_seqno:
        return None
    reader.seek(seqno)
    found = reader.read(1, seqno)
    return LargeHead(found.token, found.part_count) if isinstance(found, LargeTransaction) else None
