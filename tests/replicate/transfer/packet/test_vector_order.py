"""Packets between suppliers in any order: as far as their bases allow; what is missing, and what must not be."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from replicate.model.ruv import covers
from replicate.model.vector import Chains, Position
from replicate.transfer.packet.format import NO_LARGE, BetweenSuppliers, PacketSummary
from replicate.transfer.packet.supplier_rows import UNPROVEN, joined, vector_of
from replicate.transfer.packet.vector_order import (
    MissingRange,
    forked_packet,
    knows_more_of,
    vector_gap,
    vector_order,
)
from tests.harness.packets import SENDER, summary

A, B, C = 1, 2, 3
OTHER = bytes(16)


def at(seqno: int, **epochs: int) -> Position:
    keys = {"a": A, "b": B, "c": C}
    chains = {keys[name]: (number, keys[name] * 1000 + number) for name, number in epochs.items()}
    return Position(seqno, vector_of(chains), chains)


def packet(
    base: Position, end: Position, *, number: int = 2, inside: int = 0, end_inside: int = 0,
    goes_on: tuple[int, int] = NO_LARGE, goes_on_after: tuple[int, int] = NO_LARGE, sender: bytes = SENDER,
) -> PacketSummary:  # fmt: skip
    said = BetweenSuppliers(1, goes_on, goes_on_after, (1,))
    made = summary(0, 1, number=number, before=number - 1, inside=inside, end_inside=end_inside, sender=sender)
    return replace(made, base=base, end=end, own=end, suppliers=said)


ONE = packet(at(1, a=1), at(3, a=2, b=1))
TWO = packet(at(3, a=2, b=1), at(5, a=2, b=3), number=3)
THREE = packet(at(5, a=2, b=3), at(6, a=3, b=3), number=4)


def test_in_a_row_whatever_the_order() -> None:
    for some in itertools.permutations((ONE, TWO, THREE, ONE)):
        order = vector_order(at(0, a=1).chains, some)
        assert [some[at_] for at_ in order.chosen] == [ONE, TWO, THREE]
        assert (order.waiting, order.reached) == ((), at(0, a=3, b=3).chains)


def test_the_bases_need_nothing_of_origins_that_they_do_not_name() -> None:
    """Of others it may have more than its sender, or have met what that one has not."""
    order = vector_order(at(9, a=1, b=7, c=4).chains, [ONE, THREE])
    assert order.chosen == (0, 1)
    assert order.reached == at(0, a=3, b=7, c=4).chains


def test_what_is_here_is_not_taken_again() -> None:
    order = vector_order(at(0, a=2, b=3).chains, [ONE, TWO, THREE])
    assert (order.chosen, order.waiting) == ((2,), ())


def test_one_that_leads_further_makes_others_needless() -> None:
    both = packet(at(1, a=1), at(5, a=2, b=3), number=9)
    assert vector_order(at(0, a=1).chains, [ONE, TWO, both]).chosen == (2,)


def test_a_gap_names_epochs_by_origin() -> None:
    order = vector_order(at(0, a=1).chains, [THREE, TWO])
    assert (order.chosen, order.waiting) == ((), (0, 1))
    gap = vector_gap(order.reached, [THREE, TWO])
    assert gap is not None
    assert (gap.packet, gap.missing) == (TWO, (MissingRange(A, 2, 2), MissingRange(B, 0, 1)))
    assert vector_gap(order.reached, []) is None


def test_a_receipt_is_never_taken_nor_waited_for() -> None:
    receipt = packet(at(9, a=9), at(9, a=9))
    assert receipt.is_receipt
    assert vector_order(at(0, a=1).chains, [receipt, ONE]) == vector_order(at(0, a=1).chains, [ONE]).__class__(
        (1,), (), at(0, a=2, b=1).chains
    )


LARGE = (A, 2)
FIRST = packet(at(1, a=1), at(1, a=1), end_inside=100, goes_on_after=LARGE)
MIDDLE = packet(at(1, a=1), at(1, a=1), number=3, inside=100, end_inside=200, goes_on=LARGE, goes_on_after=LARGE)
LAST = packet(at(1, a=1), at(3, a=3), number=4, inside=200, goes_on=LARGE)


def test_a_large_transaction_over_three_packets() -> None:
    here = at(0, a=1).chains
    for some in itertools.permutations((FIRST, MIDDLE, LAST)):
        order = vector_order(here, some)
        assert [some[at_] for at_ in order.chosen] == [FIRST, MIDDLE, LAST]
        assert (order.waiting, order.reached) == ((), at(0, a=3).chains)
    without = vector_order(here, [FIRST, LAST])
    assert (without.chosen, without.waiting) == ((0,), (0, 1))
    gap = vector_gap(without.reached, [FIRST, LAST])
    assert gap is not None
    assert (gap.packet, gap.missing, gap.is_after) == (LAST, (), False)
    begun = vector_order(here, [FIRST])
    after = vector_gap(begun.reached, [FIRST])
    assert (begun.waiting, after and after.is_after) == ((0,), True)


def test_the_bytes_of_a_large_transaction_are_its_senders() -> None:
    other = replace(MIDDLE, sender=OTHER)
    assert vector_order(at(0, a=1).chains, [FIRST, other, LAST]).chosen == (0,)


def test_parts_of_what_came_another_way_are_not_waited_for() -> None:
    here = at(0, a=2).chains
    order = vector_order(here, [FIRST, LAST])
    assert (order.chosen, order.waiting) == ((1,), ())
    assert vector_order(at(0, a=3).chains, [FIRST, MIDDLE, LAST]).waiting == ()


def test_two_transactions_of_one_number_are_found() -> None:
    fork = {A: (2, 77)}
    found = forked_packet(fork, [ONE])
    assert found is not None
    assert (found[0], found[1].origin, found[1].origin_seqno) == (ONE, A, 2)
    assert forked_packet({A: (2, UNPROVEN)}, [ONE]) is None
    assert forked_packet({A: (9, 77)}, [ONE]) is None, "its chain shows that when it comes"


def test_less_of_our_own_than_others_have_is_found() -> None:
    assert knows_more_of(B, at(0, a=5, b=0).chains, [ONE]) is ONE
    assert knows_more_of(B, at(0, a=5, b=1).chains, [ONE]) is None
    assert knows_more_of(C, at(0, a=5).chains, [ONE, TWO]) is None


NUMBERS = st.fixed_dictionaries({A: st.integers(0, 6), B: st.integers(0, 6)})


def chained(numbers: dict[int, int]) -> Chains:
    return {origin: (number, 1) for origin, number in numbers.items()}


@given(NUMBERS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=7))
def test_as_far_as_the_bases_allow_and_by_a_valid_way(
    here: dict[int, int], given_: list[tuple[dict[int, int], dict[int, int]]]
) -> None:
    packets = []
    for base, more in given_:
        end = joined(chained(base), chained(more))
        first, last = chained(base), end
        packets.append(packet(Position(0, vector_of(first), first), Position(1, vector_of(last), last)))
    order = vector_order(chained(here), packets)
    reached: Chains = chained(here)
    for at_ in order.chosen:
        assert covers(reached, packets[at_].base.chains)
        assert not covers(reached, packets[at_].end.chains)
        reached = joined(reached, packets[at_].end.chains)
    assert vector_of(reached) == vector_of(order.reached)
    for at_, one in enumerate(packets):
        if covers(reached, one.base.chains):
            assert covers(reached, one.end.chains), "nothing more fits"
        assert (at_ in order.waiting) == (not covers(reached, one.end.chains))
