"""Which transactions of a lost file the history of this instance has: they were never lost here, or not any more.

`find_in_history` reads the journal, for an apply; `stands` and `standing` look at single places of it, for a list or a
status: a chain hash covers all that its origin wrote before.

A file may have such ones: a rollback was killed before it undid anything, and the role was taken back, or it went back
less far the second time.

Guarantees: what is told to be there stands in the journal with the same number of the same origin and the same chain
hash. Of what was pruned nothing is told but that. A look takes no lock and raises nothing; it counts only what has its
own number here, and nothing at all while a rollback is under way.
Leaves to others: what becomes of them (apply.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from pathlib import Path

from msgspec import Struct, field

from replicate.door.recovery.opening import ROLLBACK_MARKER
from replicate.errors import ReplicateError
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.walk import walk
from replicate.limits import BATCH_BYTES_MAX
from replicate.lost.read import LostTransaction
from replicate.model.vector import Position


class InHistory(Struct, frozen=True):
    """Numbers are those in the file. `there`: with the number in the journal here. `untold`: this history has such a
    number of that origin, and the journal begins after it."""

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


def stands(instance_path: Path, origin: str, seqno: int, origin_seqno: int, chain: str) -> bool:
    """Whether the journal of the instance in that directory has that very transaction (as a lost file names it) under
    that number. One that cannot be read has not."""
    if (instance_path / ROLLBACK_MARKER).exists():
        return False  # of what the journal has, regions may have been taken back
    try:
        reader = ChainReader(Chain(instance_path / "journal"), seqno)
        try:
            found = reader.read(1, seqno)
        finally:
            reader.close()
        if found is None:
            return False
        _, head = next(walk(found.commit_frame if isinstance(found, LargeTransaction) else found.data))
        return (head.origin, head.origin_seqno, head.chain) == (int(origin, 16), origin_seqno, int(chain, 16))
    except (ReplicateError, ValueError, StopIteration):
        return False


def standing(instance_path: Path, data: Iterable[LostTransaction]) -> set[int]:
    """The numbers of those of a file's transactions that stand in that journal."""
    by_origin: dict[str, list[LostTransaction]] = {}
    for one in data:
        by_origin.setdefault(one.origin, []).append(one)

    def is_missing(one: LostTransaction) -> bool:
        return not stands(instance_path, one.origin, one.seqno, one.origin_seqno, one.chain)

    return {one.seqno for found in by_origin.values() for one in found[: bisect_left(found, True, key=is_missing)]}
