"""What a consumer lacks goes byte for byte, the rest as a head of its number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import DivergedError
from replicate.journal.reader import LargeTransaction
from replicate.journal.record import FrameBatch, as_written, check_frame, pack_null, pack_resolved, read_head
from replicate.journal.walk import walk
from replicate.model.ruv import lacks
from replicate.model.transaction import Kind, Op
from replicate.wire.vector_refusals import KNOWN_THERE, MERGED_HERE
from source_server.unseen_transactions import Unseen
from tests.harness.journals import FrameMaker


def batch(count: int = 6) -> FrameBatch:
    maker = FrameMaker()
    frames = [maker.transaction() for _ in range(count)]
    first = read_head(frames[0]).seqno
    return FrameBatch(first, first + count - 1, count, b"".join(frames))


def test_where_nothing_is_known_all_of_it_goes_as_it_is() -> None:
    made = batch()
    assert Unseen({}, {}, 1, {}).take(made) is made


@given(st.integers(-1, 8))
def test_what_is_known_goes_as_its_head_alone(last: int) -> None:
    made = batch()
    heads = [head for _, head in walk(made.data)]
    place = next((head.chain for head in heads if head.origin_seqno == last), 1)
    known = {heads[0].origin: (last, place)} if last >= 0 else {}
    unseen = Unseen(known, {}, 1, {})
    told = unseen.take(made)
    assert (told.first_seqno, told.last_seqno, told.count) == (made.first_seqno, made.last_seqno, made.count)
    found = list(walk(told.data))
    assert [head.seqno for _, head in found] == [head.seqno for head in heads]
    for before, (offset, after) in zip(heads, found, strict=True):
        check_frame(told.data, offset)
        assert (after.origin, after.origin_seqno, after.chain) == (before.origin, before.origin_seqno, before.chain)
        if lacks(known, before.origin, before.origin_seqno):
            assert after == before
        else:
            assert after.kind == Kind.NULL
    assert unseen.skipped == sum(not lacks(known, head.origin, head.origin_seqno) for head in heads)


def test_another_transaction_under_the_last_known_number_is_refused() -> None:
    made = batch()
    head = read_head(made.data)
    with pytest.raises(DivergedError, match="is another transaction here"):
        Unseen({head.origin: (head.origin_seqno, head.chain ^ 1)}, {}, 1, {}).take(made)


def test_a_large_transaction_goes_itself_or_as_a_head() -> None:
    frame = batch(1).data
    head = read_head(frame)
    large = LargeTransaction(head.seqno, "nowhere", 1, 0, 0, 0, (), frame)
    assert Unseen({}, {}, 1, {}).takes_large(large) is large
    told = Unseen({head.origin: (head.origin_seqno, head.chain)}, {}, 1, {}).takes_large(large)
    assert isinstance(told, FrameBatch)
    assert (told.first_seqno, told.count, read_head(told.data).kind) == (head.seqno, 1, Kind.NULL)


def test_what_the_consumer_writes_itself_goes_as_heads_whatever_was_known_at_the_start() -> None:
    made = batch()
    origin = read_head(made.data).origin
    unseen = Unseen({}, {}, origin, {})
    told = unseen.take(made)
    assert {head.kind for _, head in walk(told.data)} == {Kind.NULL}
    assert unseen.skipped == made.count


def test_what_our_journal_has_before_the_start_is_not_looked_for() -> None:
    """And that is all that the consumer has of that origin: the batch goes as it is."""
    made = batch()
    heads = [head for _, head in walk(made.data)]
    known = {heads[0].origin: (heads[2].origin_seqno, heads[2].chain)}
    assert Unseen(known, known, 1, {}).take(made) is made


@pytest.mark.parametrize("count", [1, 5])
def test_what_was_merged_here_goes_as_its_writer_wrote_it(count: int) -> None:
    """Nothing of what it came to here; around it all goes byte for byte."""
    maker = FrameMaker()
    written = [maker.transaction() for _ in range(count)]
    at = count // 2
    done = [int(Op.COMMENT), 0, 0, ["what it came to"]]
    here = [*written[:at], pack_resolved(written[at], MERGED_HERE, done), *written[at + 1 :]]
    first = read_head(written[0]).seqno
    batch = FrameBatch(first, first + count - 1, count, b"".join(here))
    told = Unseen({}, {}, 1, {}).take(batch)
    assert told.data == b"".join(written)
    assert as_written(here[at]) == written[at]
    assert as_written(written[at]) is None


def test_what_was_merged_and_is_known_there_goes_as_its_head() -> None:
    written = FrameMaker().transaction()
    head = read_head(written)
    here = pack_resolved(written, MERGED_HERE, [])
    batch = FrameBatch(head.seqno, head.seqno, 1, here)
    told = Unseen({head.origin: (head.origin_seqno, head.chain)}, {}, 1, {}).take(batch)
    assert read_head(told.data).kind == Kind.NULL


@given(st.lists(st.tuples(st.sampled_from((1, 2, 3)), st.booleans()), max_size=30), st.integers(0, 12))
def test_frames_of_several_origins_go_as_they_would_go_one_by_one(drawn: list[tuple[int, bool]], known: int) -> None:
    """Of the first one nothing is known, of the second some, and the third one is the consumer's own."""
    makers = {origin: FrameMaker(origin=origin) for origin in (1, 2, 3)}
    frames, wanted, skipped, place = list[bytes](), list[bytes](), 0, 1
    for seqno, (origin, is_merged) in enumerate(drawn, 1):
        makers[origin].next_seqno = seqno
        written = makers[origin].transaction()
        head = read_head(written)
        is_known = origin == 3 or (origin == 2 and head.origin_seqno <= known)
        if origin == 2 and head.origin_seqno == known:
            place = head.chain
        skipped += is_known
        frames.append(pack_resolved(written, MERGED_HERE, []) if is_merged else written)
        wanted.append(pack_null(head, KNOWN_THERE, ()) if is_known else written)
    unseen = Unseen({2: (known, place)}, {}, 3, {})
    told = unseen.take(FrameBatch(1, len(frames), len(frames), b"".join(frames)))
    assert told.data == b"".join(wanted)
    assert unseen.skipped == skipped
