"""What goes into a packet: all that is there, or what is lacked, as it was written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import DivergedError
from replicate.journal.record import FrameBatch, pack_resolved, read_head
from replicate.journal.walk import walk
from replicate.model.transaction import Op
from replicate.transfer.packet.passing import Everything, Lacked
from replicate.transfer.packet.rows import UNPROVEN
from replicate.wire.vectors import MERGED_HERE
from tests.harness.journals import FrameMaker


def batch(frames: list[bytes]) -> FrameBatch:
    first = read_head(frames[0]).seqno
    return FrameBatch(first, first + len(frames) - 1, len(frames), b"".join(frames))


def written(count: int) -> list[bytes]:
    maker = FrameMaker()
    return [maker.transaction() for _ in range(count)]


def test_everything_goes_as_it_lies() -> None:
    made = batch(written(3))
    assert Everything().frames(made) is made.data
    assert Everything().large(made.data, list) is None


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
    assert Lacked({}, {}).large(frame, list) is None
    assert Lacked({head.origin: (head.origin_seqno, head.chain)}, {}).large(frame, list) == b""
