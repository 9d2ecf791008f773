"""Stamping the rows that several suppliers write by what stands in the own journal: which transaction wrote them last.

Guarantees: each transaction is taken once, in the journal's order; nothing is read but the journal. In the block of
`held_absorbed` all of the journal is taken, and nothing is committed.
Leaves to others: what stamps are worth (model/merged_row.py), when it is time (update_process/).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from replicate.door.door import Door
from replicate.door.merging_regions import MergingRegions
from replicate.door.recovery.opening import make_chain
from replicate.door.recovery.redo_region import redo_region
from replicate.instance.instance import Instance
from replicate.instance.writing_locks import region_locked
from replicate.journal.frame import FIXED_ELEMENTS
from replicate.journal.merged_large import as_its_writer_wrote, told_and_written
from replicate.journal.reader import ChainReader, LargeTransaction, SparseIndex
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
from replicate.limits import BATCH_BYTES_MAX, PARTITION_STREAM
from replicate.model.merged_row import Stamp
from replicate.model.seen import Told, told_by_all
from replicate.model.transaction import Kind, Op
from replicate.model.writers import Writers
from replicate.pool import control as word
from replicate.region.kind import KIND
from replicate.region.protocol import Absorbed, MergingRows

AT_ONCE: Final = 2000
"""Transactions whose rows are looked up together."""
_NOBODY: Final[Mapping[int, int]] = {}
_FIRST: Final = (0, 0)
"""(csn, origin) before every transaction."""
_ROWS: Final = frozenset(map(int, (Op.INSERT, Op.UPDATE, Op.DELETE)))


def absorb(
    rows: MergingRows,
    door: Door,
    last_seqno: int,
    is_shared: Callable[[int], bool],
    stable: Mapping[int, int] = _NOBODY,
    walked: SparseIndex | None = None,
) -> None:
    """Take what was not taken up to that number, in the open transaction. `is_shared`: whether several suppliers write
    a table; `stable`: origin -> the last of its transactions that all have; `walked`: where the caller's last ones have
    been, else the segment is walked from its beginning. Raises what reading the journal raises."""
    if isinstance(rows, MergingRegions):
        for one, is_its_own in rows.each(is_shared):
            absorb(one, door, last_seqno, is_its_own, stable, walked)
        return
    index: SparseIndex = {} if walked is None else walked
    absorbed = rows.absorbed
    if absorbed >= last_seqno:
        return
    least = _first_unstable(door, absorbed + 1, last_seqno, is_shared, stable, index) if rows.is_empty else _FIRST
    if least is None:
        return
    reader = ChainReader(make_chain(door.instance), absorbed + 1, index)
    is_wanted = False

    def wants(head: Head) -> bool:
        nonlocal is_wanted
        is_wanted = is_wanted or (head.csn, head.origin) >= least
        return is_wanted

    waiting: list[Absorbed] = []
    for body in bodies_of(reader, last_seqno, wants):
        if isinstance(body, LargeTransaction):
            rows.absorb(waiting, is_shared)
            waiting.clear()
            _absorb_large(rows, body, is_shared, stable)
            continue
        done = changes_of(body)
        if done:
            stamp, is_stable = Stamp(body[6], body[4], body[5]), body[5] <= stable.get(body[4], 0)
            waiting.append(Absorbed(_written(body, done), done, stamp, is_stable))
        if len(waiting) >= AT_ONCE:
            rows.absorb(waiting, is_shared)
            waiting.clear()
    rows.absorb(waiting, is_shared)


def _first_unstable(
    door: Door,
    next_seqno: int,
    last_seqno: int,
    is_shared: Callable[[int], bool],
    stable: Mapping[int, int],
    index: SparseIndex,
) -> tuple[int, int] | None:
    """(csn, origin) of the first transaction by its time which not everybody has, and which changes rows that are
    shared; None: there is none. Where no row has stamps, those before it need none: what is yet to come is later, too.
    What only tells does not count, so that a supplier which alone writes looks at nothing. Of the very first one that
    changes rows, if not everybody has that: then all of them are taken, whatever the time of those after it."""
    least: tuple[int, int] | None = None
    has_passed = False
    with closing(ChainReader(make_chain(door.instance), next_seqno, index)) as reader:
        while reader.next_seqno <= last_seqno and (found := reader.read(BATCH_BYTES_MAX, last_seqno)) is not None:
            data = found.data if (is_framed := isinstance(found, FrameBatch)) else found.commit_frame
            for offset, head in walk(data):
                time = head.csn, head.origin
                if head.origin_seqno <= stable.get(head.origin, 0):
                    has_passed = True
                elif least is not None and least <= time:
                    continue
                elif not is_framed or _changes_rows(data[offset : offset + head.frame_bytes], is_shared):
                    least = time
                    if not has_passed:
                        return least
    return least


def _changes_rows(frame: bytes, is_shared: Callable[[int], bool]) -> bool:
    changes = changes_of(decode_batch(frame, tuples=True)[2])
    return any(
        op == Op.RESOLVED or (op in _ROWS and is_shared(table_id))
        for op, table_id in zip(changes[0::4], changes[1::4], strict=True)
    )


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
    if body[0] != Kind.RESTATED or (resolved := resolved_of(body)) is None:
        return done
    stream = unpacker(tuples=True)
    stream.feed(resolved.payload)
    return list(stream)[CHANGES_BEGIN[resolved.kind] - FIXED_ELEMENTS :]


def bodies_of(
    reader: ChainReader, last_seqno: int, wants: Callable[[Head], bool] = lambda _head: True
) -> Iterator[Sequence[Any] | LargeTransaction]:
    """Decoded transactions up to that number, and large ones as they are, but for one that was merged and is large by
    what it came to: that is decoded. `wants`: of frames that lie together none is decoded where it wants none, and a
    large one that it does not want is left out."""
    try:
        while reader.next_seqno <= last_seqno and (found := reader.read(BATCH_BYTES_MAX, last_seqno)) is not None:
            if not isinstance(found, LargeTransaction):
                if any(wants(head) for _, head in walk(found.data)):
                    yield from decode_batch(found.data, tuples=True)[2::3]
            elif not wants(read_head(found.commit_frame)):
                continue
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
    """The regions are nobody else's in the block, and their stamps are those of all of the journal; at once where
    nothing is shared. For a copy of them, whose journal begins there. Raises BusyError, and what opening and reading
    raise."""
    instance = door.instance
    if not instance.is_supplier or not was_shared(instance):
        yield
        return
    deadline_s = time.monotonic() + timeout_s
    with ExitStack() as held:
        for entry in instance.regions:
            held.enter_context(region_locked(instance, entry, max(0.0, deadline_s - time.monotonic())))
            redo_region(door, entry, timeout_s)
        if len(instance.regions) > 1:
            door.sync_to_end(timeout_s)  # as in ApplySession.keep
        definitions, last_seqno = door.catalogue_now().definitions, int(door.words[word.LAST_SEQNO])
        for entry in instance.regions:
            with KIND.naming(str(entry.path)), closing(KIND.applied(entry.path, region=entry.uuid)) as region:
                writers = region.writers()
                region.begin(changed_do=f"Seed it again: {instance.way_out}")
                here = {table_id: one for table_id, one in definitions.items() if one.region == entry.name}
                merging = region.merging(region.rows(here, entry.name))
                merging.begin()
                absorb(merging, door, last_seqno, shared_tables(here, writers))
                merging.finish(last_seqno)
                region.commit()
        yield


def was_shared(instance: Instance) -> bool:
    """Whether several suppliers write something there, or have. All regions are told; some may be yet to get it."""
    for entry in instance.regions:
        with closing(KIND.reader(entry.path, region=entry.uuid)) as opened:
            if opened.writers().was_shared:
                return True
    return False


def writers_and_seen(instance: Instance) -> tuple[Writers, Mapping[int, Told]]:
    """Which supplier writes what, and of each origin what it has told, as a supplier's regions say it. Who writes what
    was told to all: the one that is furthest has it, where others are yet to get it."""
    with ExitStack() as opened:
        regions = [
            opened.enter_context(closing(KIND.reader(entry.path, region=entry.uuid))) for entry in instance.regions
        ]
        furthest = max(regions, key=lambda region: region.seqno())
        return furthest.writers(), told_by_all(region.seen() for region in regions)


def shared_tables(definitions: Mapping[int, Any], writers: Writers) -> Callable[[int], bool]:
    """Whether several suppliers write a table, or have, by its id."""

    def is_shared(table_id: int) -> bool:
        known = definitions.get(table_id)
        return known is not None and writers.was_merged(known.partition)

    return is_shared
