"""What goes into a packet: all that is there, or what is lacked, as it was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import DivergedError
from replicate.filters.restating import StreamLarge, StreamParts
from replicate.filters.selection import PartitionSelection, changes_in
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import (
    FrameBatch,
    large_payload,
    pack_changes,
    pack_frame,
    pack_part,
    pack_resolved,
    read_head,
)
from replicate.journal.walk import walk
from replicate.model.transaction import Column, Kind, Op, TableDefinition
from replicate.transfer.packet.packet_changes import Chosen, Everything, Lacked, LargeTold
from replicate.transfer.packet.supplier_rows import UNPROVEN
from replicate.wire.vector_refusals import MERGED_HERE
from tests.harness.journals import FrameMaker


def batch(frames: list[bytes]) -> FrameBatch:
    first = read_head(frames[0]).seqno
    return FrameBatch(first, first + len(frames) - 1, len(frames), b"".join(frames))


class Large(LargeTransaction, frozen=True):
    """One whose frame names no partition."""

    pieces: tuple[bytes, ...] = ()

    def parts(self, from_part: int = 0) -> Iterator[bytes]:
        yield from self.pieces[from_part:]


def large_of(commit_frame: bytes, pieces: Sequence[bytes] = (), partitions: tuple[int, ...] = ()) -> Large:
    return Large(5, "the journal", 99, len(pieces), 0, 0, partitions, commit_frame, tuple(pieces))


def written(count: int) -> list[bytes]:
    maker = FrameMaker()
    return [maker.transaction() for _ in range(count)]


def test_everything_goes_as_it_lies() -> None:
    made = batch(written(3))
    assert Everything().frames(made) is made.data
    assert Everything().large(large_of(made.data)) is None


@given(st.integers(-1, 8), st.sets(st.integers(0, 5)))
def test_what_is_lacked_goes_as_it_was_written_whatever_was_merged_here(last: int, merged: set[int]) -> None:
    frames = written(6)
    heads = [read_head(one) for one in frames]
    done = [int(Op.COMMENT), 0, 0, ["what it came to"]]
    here = [pack_resolved(one, MERGED_HERE, done) if at in merged else one for at, one in enumerate(frames)]
    known = {heads[0].origin: (last, UNPROVEN)} if last >= 0 else {}
    told = Lacked(known, {}).frames(batch(here))
    assert told == b"".join(one for one, head in zip(frames, heads, strict=True) if head.origin_seqno > last)
    assert [head.seqno for _, head in walk(told)] == [head.seqno for head in heads if head.origin_seqno > last]


def test_another_transaction_under_the_last_number_is_refused() -> None:
    frames = written(3)
    head = read_head(frames[1])
    well = {head.origin: (head.origin_seqno, head.chain)}
    assert Lacked(well, {}).frames(batch(frames)) == frames[2]
    with pytest.raises(DivergedError, match="number 2 of east"):
        Lacked({head.origin: (head.origin_seqno, head.chain ^ 1)}, {head.origin: "east"}).frames(batch(frames))


def test_a_large_transaction_goes_itself_or_not_at_all() -> None:
    (frame,) = written(1)
    head = read_head(frame)
    assert Lacked({}, {}).large(large_of(frame)) is None
    assert Lacked({head.origin: (head.origin_seqno, head.chain)}, {}).large(large_of(frame)) == b""


def defined(name: str, partition: int) -> TableDefinition:
    column = Column("id", "INTEGER", False, "BINARY")
    return TableDefinition("shop", partition, "main", name, 1, (column,), (0,), False, False, False)


FIRST, SECOND = defined("first", 2), defined("second", 3)
DEFINITIONS = {one.table_id: one for one in (FIRST, SECOND)}
TABLES = {1: FIRST.table_id, 2: SECOND.table_id}


def chosen(*wanted: int) -> Chosen:
    return Chosen(PartitionSelection(wanted, DEFINITIONS))


def inserted(*tables: int) -> list[object]:
    return [
        element for number, table in enumerate(tables) for element in (int(Op.INSERT), TABLES[table], None, [number])
    ]


def large(
    *tables: int, kind: Kind = Kind.LARGE, partitions: tuple[int, ...] = (2, 3), before: Sequence[object] = ()
) -> Large:
    stream, pieces, chain = pack_changes([*before, *inserted(*tables)]), list[bytes](), 0
    for at in range(0, len(stream), 300_000):
        part, chain = pack_part(7, 99, len(pieces), stream[at : at + 300_000], chain)
        pieces.append(part)
    payload, count = large_payload(99, len(pieces), len(stream), chain, partitions)
    commit, _ = pack_frame(kind, 5, 0, 3, 7, 5, 5 << 12, payload, count)
    return large_of(commit, pieces, partitions)


def test_of_partitions_every_number_goes_once() -> None:
    maker = FrameMaker()
    frames = [maker.transaction(payload=(pack_changes(inserted(table)), 4)) for table in (1, 2, 1)]
    told = chosen(2).frames(batch(frames))
    heads = [head for _, head in walk(told)]
    assert [head.seqno for head in heads] == [read_head(one).seqno for one in frames]
    assert [head.kind for head in heads] == [Kind.TRANSACTION, Kind.NULL, Kind.TRANSACTION]
    assert chosen(2, 3).frames(batch(frames)) == b"".join(frames)


def test_a_large_transaction_of_partitions() -> None:
    assert chosen(2, 3).large(large(1, 2)) is None
    nothing = chosen(9).large(large(1, 2))
    some = chosen(2).large(large(1, 2))
    assert isinstance(nothing, bytes)
    assert isinstance(some, bytes)
    assert (read_head(nothing).kind, read_head(some).kind) == (Kind.NULL, Kind.RESTATED)
    told_before = large(1, 1, kind=Kind.RESTATED_LARGE, partitions=(2, 3))
    assert chosen(2).large(told_before) is None, "it is of these partitions only, whatever its frame names"


def test_a_large_transaction_that_stays_large_is_told_in_parts() -> None:
    """The same words have the same token, other words another one."""
    found = large(*[1, 2] * 40_000)
    made = [chosen(wanted).large(found) for wanted in (9, 2, 2, 3)]
    assert isinstance(made[0], bytes)
    assert read_head(made[0]).kind == Kind.NULL
    told = [one for one in made if isinstance(one, LargeTold)]
    assert len({one.token for one in told}) == 2
    first, again, other = (list(one.items) for one in told)
    assert first == again != other
    *parts, last = first
    assert all(isinstance(one, StreamParts) for one in parts)
    assert isinstance(last, StreamLarge)
    assert read_head(last.frame).kind == Kind.RESTATED_LARGE
    frames = [one.frames[at : at + head.frame_bytes] for one in parts for at, head in walk(one.frames)]
    changes = list(changes_in(frames))
    assert [change[1] for change in changes] == [FIRST.table_id] * 40_000
    assert [change[3] for change in changes] == [[number] for number in range(0, 80_000, 2)]


def test_who_has_the_parts_already_learns_what_they_define() -> None:
    made = Chosen(PartitionSelection((2,), {SECOND.table_id: SECOND}))
    defined_in_it = [int(Op.DEFINE), FIRST.table_id, None, FIRST.pack()]
    told = made.large(large(*[1, 2] * 40_000, before=defined_in_it))
    assert isinstance(told, LargeTold)
    told.learn()
    maker = FrameMaker()
    frame = maker.transaction(payload=(pack_changes(inserted(1)), 4))
    assert made.frames(batch([frame])) == frame
