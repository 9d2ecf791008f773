"""Packets in any order: as far as the bases allow, by a valid way, and the gap is named."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.model.vector import Position, SynchronizationVector
from replicate.transfer.packet.format import PacketSummary
from replicate.transfer.packet.order import Reached, gap_of, lacks_of, order_of, too_much
from tests.harness.packets import SENDER, summary

OTHER = bytes(16)


def test_in_a_row_whatever_the_order() -> None:
    packets = [summary(20, 30), summary(0, 10), summary(10, 20)]
    order = order_of(0, packets)
    assert order.chosen == (1, 2, 0)
    assert (order.waiting, order.seqno) == ((), 30)


def test_what_is_there_is_not_taken_again() -> None:
    order = order_of(10, [summary(0, 10), summary(0, 10), summary(5, 12)])
    assert (order.chosen, order.waiting, order.seqno) == ((2,), (), 12)


def test_a_gap_is_named() -> None:
    packets = [summary(0, 10), summary(20, 30, number=3, before=2), summary(40, 50, number=5, before=4)]
    order = order_of(0, packets)
    assert (order.chosen, order.waiting, order.seqno) == ((0,), (1, 2), 10)
    gap = gap_of(10, [packets[at] for at in order.waiting])
    assert gap is not None
    assert (gap.packet.number, gap.first_seqno, gap.last_seqno, gap.is_after) == (3, 11, 20, False)
    assert gap_of(10, []) is None


def test_a_large_transaction_over_three_packets() -> None:
    packets = [
        summary(0, 5, end_inside=100, number=1),
        summary(5, 5, inside=100, end_inside=200, number=2),
        summary(5, 7, inside=200, number=3),
    ]
    for some in itertools.permutations(range(3)):
        order = order_of(0, [packets[at] for at in some])
        assert [some[at] for at in order.chosen] == [0, 1, 2]
        assert (order.waiting, order.seqno) == ((), 7)
    without = order_of(0, [packets[0], packets[2]])
    assert (without.chosen, without.waiting, without.seqno) == ((0,), (0, 1), 5)
    gap = gap_of(5, [packets[0], packets[2]])
    assert gap is not None
    assert (gap.packet.number, gap.first_seqno, gap.last_seqno, gap.is_after) == (3, 6, 0, False)
    begun = order_of(0, packets[:1])
    assert (begun.chosen, begun.waiting, begun.seqno) == ((0,), (0,), 5)
    after = gap_of(5, packets[:1])
    assert after is not None
    assert (after.packet.number, after.is_after) == (1, True)


def test_a_large_transaction_goes_on_in_packets_of_its_sender_only() -> None:
    packets = [summary(0, 5, end_inside=100), summary(5, 7, inside=100, sender=OTHER)]
    assert order_of(0, packets).seqno == 5
    assert order_of(0, [*packets, summary(5, 6, inside=90)]).seqno == 7  # after it there is no part any more
    assert Reached(5, {SENDER: 100}).takes(summary(5, 7, inside=100))


PACKETS = st.lists(
    st.tuples(
        st.integers(0, 8), st.integers(0, 4), st.integers(0, 2), st.integers(0, 2), st.sampled_from([SENDER, OTHER])
    ),
    max_size=6,
)


def reachable(place: Reached, packets: list[PacketSummary]) -> int:
    """By trying every way."""
    best = place.seqno
    for packet in packets:
        if place.takes(packet):
            rest = [one for one in packets if one is not packet]
            best = max(best, reachable(place.after(packet), rest))
    return best


@given(st.integers(0, 5), PACKETS)
@settings(max_examples=300)
def test_no_other_way_leads_further(seqno: int, made: list[tuple[int, int, int, int, bytes]]) -> None:
    packets = [
        summary(base, base + more, inside=inside, end_inside=inside + end if not more else end, sender=sender)
        for base, more, inside, end, sender in made
    ]
    order = order_of(seqno, packets)
    assert order.seqno == reachable(Reached(seqno), packets)
    place = Reached(seqno)
    for at in order.chosen:
        assert place.takes(packets[at])
        place = place.after(packets[at])
    assert place.seqno == order.seqno
    left = [at for at, one in enumerate(packets) if (one.last_seqno, one.end_inside) > (order.seqno, 0)]
    assert list(order.waiting) == left


def test_a_site_that_was_overtaken_takes_back_what_is_more() -> None:
    def at(seqno: int, **numbers: int) -> Position:
        keys = {"old": 1, "new": 2}
        return Position(seqno, SynchronizationVector({(keys[name], 0): number for name, number in numbers.items()}))

    further = replace(summary(22, 28), base=at(22, old=21), end=at(28, old=21, new=5))
    found = too_much(at(25, old=24), [further])
    assert found is not None
    assert (found.origin, found.ours, found.theirs, found.seqno) == (1, 24, 21, 22)
    assert too_much(at(22, old=21), [further]) is None
    assert too_much(at(24, old=21, new=1), [further]) is None
    found = too_much(at(29, old=28), [further])  # our number is higher, and what it brings is not here
    assert found is not None
    assert (found.ours, found.theirs, found.seqno) == (28, 21, 22)
    assert too_much(at(29, old=21, new=6), [further]) is None
    assert lacks_of(at(29, old=28), further) == (2,)
    assert lacks_of(at(29, old=21, new=5), further) == ()
