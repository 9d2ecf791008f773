"""Of what another supplier has sent, those that are next here, under our numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import DivergedError, FrameDamaged, GapError
from replicate.journal.record import check_frame, pack_null, renumbered
from replicate.journal.walk import walk
from replicate.model.ruv import lacks
from replicate.model.vector import Position
from replicate.wire.vector_refusals import KNOWN_THERE
from tests.harness.journals import FrameMaker
from update_process.window.lacking import InOrder, Lacking


def frames(count: int, origin: int = 7) -> list[bytes]:
    maker = FrameMaker(origin=origin)
    return [maker.transaction() for _ in range(count)]


def two_origins(order: list[bool]) -> list[bytes]:
    """Of two origins in turns, numbered through as their source has them."""
    one, other = iter(frames(len(order))), iter(frames(len(order), origin=9))
    return [renumbered(next(one if first else other), number, 3) for number, first in enumerate(order, 1)]


@given(
    st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 40), st.integers(0, 12), st.integers(0, 12),
    st.integers(1, 40), st.integers(1, 3000), st.integers(1, 400),
)  # fmt: skip
def test_against_a_loop(
    order: list[bool], ahead: int, known_one: int, known_other: int, most: int, room: int, window: int
) -> None:
    made = two_origins(order)
    heads = [check_frame(one) for one in made]
    last = {origin: max((h.origin_seqno for h in heads if h.origin == origin), default=0) for origin in (7, 9)}
    known = {}
    for origin, number in ((7, known_one), (9, known_other)):
        chain = next((h.chain for h in heads if (h.origin, h.origin_seqno) == (origin, number)), 0)
        if number and number <= last.get(origin, 0):
            known[origin] = (number, chain)
    wanted, size, place, now = [], 0, 0, dict(known)
    for head in heads:
        if lacks(now, head.origin, head.origin_seqno):
            if wanted and (len(wanted) >= most or size + head.frame_bytes > room):
                break
            now[head.origin] = (head.origin_seqno, head.chain)
            wanted.append((place, head))
            size += head.frame_bytes
        place += 1
    lacking = Lacking(dict(known), ahead + 1, window)
    is_whole = lacking.take(b"".join(made), most, room)
    lacking.end_window()
    assert is_whole == (place == len(heads))
    assert (lacking.looked, lacking.skipped, lacking.places) == (place, place - len(wanted), [p for p, _ in wanted])
    assert (lacking.known, lacking.size_bytes) == (now, size)
    found = [head for data in lacking.windows for _, head in walk(data)]
    assert [head.seqno for head in found] == list(range(ahead + 1, ahead + 1 + len(wanted)))
    assert [(h.origin, h.origin_seqno, h.chain, h.csn) for h in found] == [
        (h.origin, h.origin_seqno, h.chain, h.csn) for _, h in wanted
    ]
    assert [sum(1 for _ in walk(data)) for data in lacking.windows] == lacking.counts
    for data in lacking.windows:
        for offset, _ in walk(data):
            check_frame(data, offset)


def test_a_frame_that_bears_its_number_already_is_taken_as_it_lies() -> None:
    made = frames(3)
    first = check_frame(made[0]).seqno
    lacking = Lacking({}, first, 1 << 20)
    assert lacking.take(b"".join(made), 10, 1 << 20)
    lacking.end_window()
    assert lacking.windows == [b"".join(made)]


@pytest.mark.parametrize("place", [0, 1, 3])
def test_another_transaction_of_the_last_known_number_is_diverged(place: int) -> None:
    """It may stand after others that are known, and are passed over."""
    made = frames(5)
    head = check_frame(made[place])
    known = {head.origin: (head.origin_seqno, head.chain ^ 1)}
    with pytest.raises(DivergedError, match="is one transaction here and another one at the source"):
        Lacking(known, 1, 100).take(b"".join(made), 10, 1000)


def test_a_number_that_comes_twice_in_one_record_is_taken_once() -> None:
    made = frames(3)
    heads = [check_frame(one) for one in made]
    lacking = Lacking({}, 1, 100)
    assert lacking.take(b"".join([made[0], made[1], made[1], made[0], made[2]]), 10, 1 << 20)
    lacking.end_window()
    assert (lacking.places, lacking.skipped, lacking.looked) == ([0, 1, 4], 2, 5)
    assert [h.chain for data in lacking.windows for _, h in walk(data)] == [head.chain for head in heads]
    other = FrameMaker(origin=7).transaction("another")
    assert (check_frame(other).origin_seqno, check_frame(other).chain != heads[0].chain) == (1, True)
    with pytest.raises(DivergedError):
        Lacking({}, 1, 100).take(made[0] + other, 10, 1 << 20)


def test_what_is_damaged_is_named() -> None:
    made = frames(1)[0]
    for broken in (made[:-1], made[:20], made[:-1] + bytes([made[-1] ^ 1])):
        with pytest.raises(FrameDamaged):
            Lacking({}, 1, 100).take(broken, 10, 1000)
    head = check_frame(made)
    null = pack_null(head, "x", ())
    lacking = Lacking({head.origin: (head.origin_seqno, head.chain)}, 1, 100)
    assert lacking.take(null, 1, 100)
    assert (lacking.skipped, lacking.windows) == (1, [])


def test_whole_records_in_their_order_are_taken_as_they_lie() -> None:
    made = frames(6)
    heads = [check_frame(one) for one in made]
    before = Position(heads[1].seqno, chains={7: (heads[1].origin_seqno, heads[1].chain)})
    records = [(b"".join(made[2:4]), heads[2].seqno, 2), (made[4], heads[4].seqno, 1), (made[5], heads[5].seqno, 1)]
    taken = InOrder(before, 3, 1 << 20, 10)
    assert [taken.take(*record) for record in records] == [True, True, False], "three at most"
    taken.end_window()
    assert (taken.windows, taken.counts, taken.count, taken.looked) == ([records[0][0], made[4]], [2, 1], 3, 3)
    assert (list(taken.places), taken.skipped, taken.ahead) == ([0, 1, 2], 0, 0)
    assert not InOrder(before, 9, 10, 10).take(*records[0]), "no room"
    assert not InOrder(before, 9, 1 << 20, 10).take(*records[1]), "not the next number"
    elsewhere = Position(before.last_seqno, chains={7: (heads[0].origin_seqno, heads[0].chain)})
    assert not InOrder(elsewhere, 9, 1 << 20, 10).take(*records[0]), "not the next one of its origin"


def test_small_records_in_their_order_are_decoded_together() -> None:
    made = frames(6)
    heads = [check_frame(one) for one in made]
    taken = InOrder(Position(heads[0].seqno + 40), 9, 1 << 20, 3 * len(made[0]))
    assert all(taken.take(one, head.seqno, 1) for one, head in zip(made, heads, strict=True))
    taken.end_window()
    assert (taken.windows, taken.counts) == ([b"".join(made[:3]), b"".join(made[3:])], [3, 3])
    assert (taken.ahead, taken.size_bytes) == (-41, sum(map(len, made)))


def test_records_that_are_not_of_one_origin_throughout_are_not_in_order() -> None:
    mixed = two_origins([True, False, True])
    first = check_frame(mixed[0]).seqno
    assert not InOrder(Position(0), 9, 1 << 20, 10).take(b"".join(mixed), first, 3), "the last one is another's second"
    taken = InOrder(Position(0), 9, 1 << 20, 10)
    assert taken.take(mixed[0], first, 1)
    assert not taken.take(mixed[1], first + 1, 1), "another origin"
    assert not taken.take(mixed[2], first + 2, 1), "not the next number of its source"
    for short in (b"", mixed[0][:20]):
        assert not InOrder(Position(0), 9, 1 << 20, 10).take(short, first, 1), "not even a head"
    again = InOrder(Position(0), 9, 1 << 20, 10)
    assert not again.take(mixed[0], first + 1, 1), "its record says another number"


def test_what_was_left_out_as_known_and_is_not_is_never_taken() -> None:
    """As a source may do that takes us for another incarnation."""
    made = frames(2)
    head = check_frame(made[0])
    stands_for = pack_null(head, KNOWN_THERE, ())
    with pytest.raises(GapError, match="was left out as known here, and is not"):
        Lacking({}, 1, 100).take(stands_for, 10, 1000)
    known = {head.origin: (head.origin_seqno, head.chain)}
    assert Lacking(known, 1, 100).take(stands_for, 10, 1000)
    before = Position(head.seqno - 1)
    assert not InOrder(before, 9, 1 << 20, 10).take(stands_for, head.seqno, 1)
    emptied = pack_null(head, "", ())
    assert InOrder(before, 9, 1 << 20, 10).take(emptied, head.seqno, 1), "a transaction of rows that stay at home"
