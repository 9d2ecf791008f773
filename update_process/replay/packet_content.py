"""What a packet brings, transaction by transaction, also where it does not fit what is here.

Guarantees: the packet has verified, every byte of it, before anything of it is told; it is unpacked into a directory
that goes again; no instance is changed, and none is needed. Memory does not grow with the packet.
Leaves to others: whether it may be imported (transfer/packet/judge_packets.py), how a transaction is told
(audit/show.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from replicate.audit.show import ShownTransaction, shown_between
from replicate.door.recovery.opening import make_chain
from replicate.errors import NotFoundError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from replicate.journal.reader import ChainReader
from replicate.model.vector import SynchronizationVector
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.judge_packets import Offered
from replicate.transfer.packet.sealed import Unseal
from update_process.replay.run import silent
from update_process.replay.unpacking import unpack


def transactions_in(packet: Offered, unseal: Unseal | None, stage: Path) -> Iterator[ShownTransaction]:
    """Those that the packet holds whole, in its order, with the changes of large ones. `stage`: an empty directory.
    DamagedError before the first where the packet does not verify; DiskFullError, JournalIOError."""
    if packet.summary.is_receipt:
        return
    for directory, last_seqno in unpack(unseal, [packet], stage, silent):
        chain = Chain(directory, network=packet.summary.network)
        first = max(chain.oldest_seqno(), _first_seqno(packet.summary))
        if first <= last_seqno:
            yield from shown_between(chain, first, last_seqno, parts=True)


def _first_seqno(packet: PacketSummary) -> int:
    """Of the first transaction that it brings, by the sender's numbers."""
    return packet.base.last_seqno + 1


def vector_here(instance: Instance) -> SynchronizationVector:
    """What the instance's journal holds, of each origin; nothing where it is not seeded."""
    chain = make_chain(instance)
    try:
        last_seqno = chain.scan_last()[1].last_seqno
    except NotFoundError:
        return SynchronizationVector()
    with closing(ChainReader(chain, last_seqno)) as reader:
        return reader.catalogue_at(last_seqno + 1).vector
