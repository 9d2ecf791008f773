"""A host's journal, once the host has recovered: what is mended, and what stands in it.

Guarantees: what is left of a killed writer's commit is finished, as the next writer would.
Leaves to others: what must be there (the oracles).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replicate.door.recovery.redo_region import redo_region
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader
from replicate.journal.walk import walk
from replicate.pool import control as word


def bring_forward(door: Any) -> int:
    """Mend the journal's end and roll its regions forward; the journal's last number."""
    with door.locked():
        pass  # mends the journal's end
    for entry in door.instance.regions:
        if door.words[word.REGION_APPENDED + entry.region_id] != door.words[word.REGION_DONE + entry.region_id]:
            redo_region(door, entry)
    return int(door.words[word.LAST_SEQNO])


def found_in(chain: Chain, last_seqno: int) -> Iterator[Any]:
    """What the journal's reader finds up to there: batches, and large transactions."""
    reader = ChainReader(chain, chain.oldest_seqno())
    try:
        while (found := reader.read(1 << 20, last_seqno)) is not None:
            yield found
    finally:
        reader.close()


def chain_hashes(chain: Chain, last_seqno: int) -> dict[int, int]:
    """The chain hash of each transaction up to there."""
    hashes: dict[int, int] = {}
    for found in found_in(chain, last_seqno):
        data = found.commit_frame if hasattr(found, "commit_frame") else found.data
        hashes.update((head.seqno, head.chain) for _, head in walk(data))
    return hashes
