"""Which transactions of a lost file the history of this instance has: they were never lost here, or not any more.

A file may have such ones: a rollback was killed before it undid anything, and the role was taken back, or it went back
less far the second time; a peer had more than it could say.

Guarantees: what is told to be there stands in the journal under the same number of the same origin, with the same chain
hash, which covers all that this origin wrote before it. Of what was pruned nothing is told but that. The journal is
read only where the vector says that it has such numbers.
Refuses to know: what becomes of them (apply.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.lost.read import LostTransaction
from replicate.model.vector import Position


@dataclass(frozen=True, slots=True)
class InHistory:
    """Numbers are those in the file. `there`: with the number in the journal here. `untold`: this history has such a
    number of that origin, and the journal begins behind it."""

    there: dict[int, int] = field(default_factory=dict)
    untold: frozenset[int] = frozenset()


def find_in_history(chain: Chain, position: Position, wanted: Collection[LostTransaction]) -> InHistory:
    """Those of `wanted` that the journal up to `position`, its end, has. Raises what reading the journal does."""
    sought = {
        (origin, one.origin_seqno): one
        for one in wanted
        if one.origin_seqno <= position.vector.last(origin := int(one.origin, 16))
    }
    there: dict[int, int] = {}
    if not sought:
        return InHistory()
    reader = ChainReader(chain, chain.oldest_seqno())
    try:
        while sought and (found := reader.read(BATCH_BYTES_MAX, position.last_seqno)) is not None:
            for _, head in walk(found.commit_frame if isinstance(found, LargeTransaction) else found.data):
                one = sought.pop((head.origin, head.origin_seqno), None)
                if one is not None and int(one.chain, 16) == head.chain:
                    there[one.seqno] = head.seqno
    finally:
        reader.close()
    return InHistory(there, frozenset(one.seqno for one in sought.values()))
