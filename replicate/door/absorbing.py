"""Stamping the rows that several suppliers write by what stands in the own journal: which transaction wrote them last.

Guarantees: each transaction is taken once, in the journal's order; nothing is read but the journal. In the block of
`held_absorbed` all of the journal is taken, and nothing is committed.
Leaves to others: what stamps are worth (model/registers.py), when it is time (update_process/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, Final

from replicate.door.door import Door
from replicate.door.recovery.opening import make_chain
from replicate.door.recovery.redo_region import redo_region
from replicate.instance.instance import Instance
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.reader import ChainReader, LargeTransaction
from replicate.journal.record import (
    CHANGES_BEGIN,
    FrameBatch,
    Head,
    changes_of,
    decode_batch,
    read_head,
    read_part,
    resolved_of,
    unpacker,
)
from replicate.journal.walk import walk
from replicate.journal.written import as_its_writer_wrote, told_and_written
from replicate.limits import BATCH_BYTES_MAX, PARTITION_STREAM
from replicate.model.registers import Stamp
from replicate.model.transaction import Kind, Op
from replicate.model.writers import Writers
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.protocol import Absorbed, MergingRows
from replicate.system.locks import FileLock

AT_ONCE: Final = 2000
"""Transactions whose rows are looked up together."""
_NOBODY: Final[Mapping[int, int]] = {}


def absorb(
    rows: MergingRows,
    door: Door,
    last_seqno: int,
    is_shared: Callable[[int], bool],
    stable: Mapping[int, int] = _NOBODY,
) -> None:
    """Take what was not taken up to that number, in the open transaction. `is_shared`: whether several suppliers write
    a table; `stable`: origin -> the last of its transactions that all have. Raises what reading the journal raises."""
    absorbed = rows.absorbed
    if absorbed >= last_seqno:
        return
    reader = ChainReader(make_chain(door.instance), absorbed + 1)
    stamped = [] if rows.is_empty else [True]

    def wants(head: Head) -> bool:
        return bool(stamped) or head.origin_seqno > stable.get(head.origin, 0)

    waiting: list[Absorbed] = []
    for body in bodies_of(reader, last_seqno, wants):
        if isinstance(body, LargeTransaction):
            rows.absorb(waiting, is_shared)
            waiting.clear()
            stamped[:] = [True]
            _absorb_large(rows, body, is_shared, stable)
            continue
        done = changes_of(body)
        if done:
            stamped[:] = [True]
            stamp, is_stable = Stamp(body[6], body[4], body[5]), body[5] <= stable.get(body[4], 0)
            waiting.append(Absorbed(_written(body, done), done, stamp, is_stable))
        if len(waiting) >= AT_ONCE:
            rows.absorb(waiting, is_shared)
            waiting.clear()
    rows.absorb(waiting, is_shared)


def _absorb_large(
    rows: MergingRows, large: LargeTransaction, is_shared: Callable[[int], bool], stable: Mapping[int, int]
) -> None:
    """Piece by piece: of no more than one are the stamps at hand."""
    head = read_head(large.commit_frame)
    stamp = Stamp(head.csn, head.origin, head.origin_seqno)
    is_stable = stamp.origin_seqno <= stable.get(stamp.origin, 0)
    for written, done in told_and_written(large):
        rows.write_stamps()
        rows.absorb([Absorbed(written, done, stamp, is_stable)], is_shared)
    rows.write_stamps()


def _written(body: Sequence[Any], done: Sequence[Any]) -> Sequence[Any]:
    """The changes as the transaction's writer made them."""
    resolved = resolved_of(body)
    if resolved is None:
        return done
    stream = unpacker(tuples=True)
    stream.feed(resolved.payload)
    return list(stream)[CHANGES_BEGIN[resolved.kind] - FIXED_ELEMENTS :]


def bodies_of(
    reader: ChainReader, last_seqno: int, wants: Callable[[Head], bool] = lambda _head: True
) -> Iterator[Sequence[Any] | LargeTransaction]:
    """Decoded transactions up to that number, and large ones as they are, but for one that was merged and is large by
    what it came to: that is decoded. `wants`: of frames that lie together none is decoded where it wants none."""
    try:
        while reader.next_seqno <= last_seqno and (found := reader.read(BATCH_BYTES_MAX, last_seqno)) is not None:
            if not isinstance(found, LargeTransaction):
                if any(wants(head) for _, head in walk(found.data)):
                    yield from decode_batch(found.data, tuples=True)[2::3]
            elif isinstance(written := as_its_writer_wrote(found), FrameBatch):
                yield _merged_body(found, decode_batch(written.data, tuples=True)[2])
            else:
                yield found
    finally:
        reader.close()


def _merged_body(large: LargeTransaction, written: Sequence[Any]) -> list[Any]:
    """As if it had been told in one frame: `written` is the body of what its writer wrote."""
    stream = unpacker(tuples=True)
    for part in large.parts():
        stream.feed(read_part(part)[2])
    told = [int(Op.COMMENT), PARTITION_STREAM, 0, [""]]
    return [int(Kind.RESTATED), large.seqno, *written[2:FIXED_ELEMENTS], *told, *stream]


@contextmanager
def held_absorbed(door: Door, *, timeout_s: float) -> Iterator[None]:
    """The region is nobody else's in the block, and its stamps are those of all of the journal; at once where nothing
    is shared. For a copy of it, whose journal begins there. Raises BusyError, and what opening and reading raise."""
    instance = door.instance
    if not instance.is_supplier or not was_shared(instance):
        yield
        return
    entry = instance.regions[0]
    lock = FileLock(instance.locks_directory / f"region-{entry.region_id}.lock")
    try:
        lock.acquire(timeout_s, what=f"region {entry.name}")
        redo_region(door, entry, timeout_s)
        with closing(KIND.applied(entry.path, region=entry.uuid)) as region:
            writers = region.writers()
            region.begin(changed_do=f"Seed it again: {instance.way_out}")
            definitions = door.catalogue_now().definitions
            merging = region.merging(region.rows(definitions, entry.name))
            merging.begin()
            last_seqno = int(door.words[word.LAST_SEQNO])
            absorb(merging, door, last_seqno, shared_tables(definitions, writers))
            merging.finish(last_seqno)
            region.commit()
        yield
    finally:
        lock.close()


def was_shared(instance: Instance) -> bool:
    """Whether several suppliers write something there, or have."""
    entry = instance.regions[0]
    with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
        return opened.writers().was_shared


def shared_tables(definitions: Mapping[int, Any], writers: Writers) -> Callable[[int], bool]:
    """Whether several suppliers write a table, or have, by its id."""

    def is_shared(table_id: int) -> bool:
        known = definitions.get(table_id)
        return known is not None and writers.was_merged(known.partition)

    return is_shared
