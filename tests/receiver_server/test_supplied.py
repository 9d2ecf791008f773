"""One of a supplier's sources: what is freed in the pool is applied, each source by its own numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from receiver_server.supplied import SuppliedSource


def test_a_stream_begins_where_both_vectors_say() -> None:
    one = SuppliedSource("b")
    one.begins(41, 50)
    assert (one.received_seqno, one.applied_seqno, one.last_seqno, one.backlog) == (40, 40, 50, 10)


def test_what_is_freed_is_applied() -> None:
    one = SuppliedSource("b")
    one.begins(1, 0)
    one.received(3, 100, 1)
    one.received(7, 200, 2)
    assert one.freed(99) == 0
    assert one.freed(100) == 3
    assert (one.backlog, one.last_seqno) == (4, 7)
    assert one.freed(500) == 7


def test_a_stream_that_begins_again_forgets_what_lies_in_the_pool() -> None:
    one = SuppliedSource("b")
    one.begins(1, 9)
    one.received(9, 100, 1)
    one.begins(4, 12)
    assert one.freed(1000) == 3
    one.told(10, 5)
    assert one.last_seqno == 12, "its word of before is older"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50), st.integers(0, 60)), max_size=20))
def test_two_sources_in_one_pool_count_each_for_itself(steps: list[tuple[int, int, int]]) -> None:
    """Records of both lie in turns; what is applied of each is its newest record that was freed whole."""
    both = [SuppliedSource("b"), SuppliedSource("c")]
    records: list[list[tuple[int, int]]] = [[], []]
    address = read = 0
    for place, (count, size, free) in enumerate(steps):
        source = both[place % 2]
        address += size
        source.received(source.received_seqno + count, address, place)
        records[place % 2].append((address, source.received_seqno))
        read = min(address, read + free)
        for one, found in zip(both, records, strict=True):
            assert one.freed(read) == max((seqno for end, seqno in found if end <= read), default=0)
            assert one.applied_seqno <= one.received_seqno <= one.last_seqno
