"""One of a supplier's sources: what is freed in the pool is applied, each source by its own numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from receiver_server.supplier_sources import SuppliedSource, SuppliedSources
from replicate.limits import LANES_MAX


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


def test_what_was_dropped_from_the_pool_is_not_taken_for_applied() -> None:
    """Its places mean nothing in the next one, nor where a restart has moved on to the end."""
    both: SuppliedSources[str] = SuppliedSources()
    both.entered(b"b", "b", "first")
    one = both.by[b"b"]
    one.begins(1, 7)
    one.received(3, 100, 1)
    one.received(7, 200, 2)
    one.freed(100)
    both.dropped()
    assert (one.freed(1000), one.received_seqno, one.backlog, one.was_level) == (3, 3, 4, False)


def test_lanes_are_given_again_when_nothing_is_in_them() -> None:
    """A pool that is made again has one for each source that is left: none is to have that of one that is gone."""
    three: SuppliedSources[str] = SuppliedSources()
    for name in ("b", "c", "d"):
        three.entered(name.encode(), name, name)
    three.forget(b"c")
    assert [one.lane for one in three.by.values()] == [0, 2]
    three.dropped()
    assert [one.lane for one in three.by.values()] == [0, 1]


def test_it_was_level_once_all_is_applied_that_it_had_at_its_start() -> None:
    one = SuppliedSource("b")
    one.begins(1, 4)
    one.received(3, 100, 1)
    one.freed(100)
    assert not one.was_level
    one.received(9, 200, 2)
    one.freed(200)
    assert one.was_level
    one.was_level = False
    one.begins(10, 9)
    assert one.was_level, "nothing is lacking from the start"


def is_paused(connection: str) -> bool:
    return connection == "second"


def test_all_sources_together() -> None:
    both: SuppliedSources[str] = SuppliedSources()
    assert (both.last_seqno, both.are_all_connected, both.lag_s(1)) == (None, False, None)
    both.entered(b"b", "b", "first")
    both.entered(b"c", "c", "second")
    for number, one in enumerate(both.by.values(), 1):
        one.begins(1, 10 * number)
        one.received(number, 100 * number, 1)
    assert (both.last_seqno, both.received_seqno, both.names, both.are_all_connected) == (30, 3, "b, c", True)
    assert both.left("first") == "second"
    assert not both.are_all_connected
    assert [(one["name"], one["is_connected"]) for one in both.facts(0.0, is_paused)] == [("b", False), ("c", True)]
    assert [one["is_paused"] for one in both.facts(0.0, is_paused)] == [False, True]
    assert both.left("second") is None
    assert [one["is_paused"] for one in both.facts(0.0, is_paused)] == [False, False]
    both.by[b"b"].was_level = True
    assert both.were_level == {"b"}
    both.forget_levels()
    assert both.were_level == set()


def test_each_source_has_a_lane_of_its_own_until_there_are_no_more() -> None:
    many: SuppliedSources[str] = SuppliedSources()
    for number in range(LANES_MAX + 1):
        many.entered(bytes([number]), str(number), str(number))
    assert [one.lane for one in many.by.values()] == [*range(LANES_MAX), 0]
    many.left("3")
    many.entered(b"\x03", "3", "again")
    assert many.by[b"\x03"].lane == 3, "what it sent before lies there"
    many.forget(b"\x05")
    many.entered(b"new", "new", "new")
    assert many.by[b"new"].lane == 5


def test_each_is_silent_by_its_own_period() -> None:
    both: SuppliedSources[str] = SuppliedSources()
    both.entered(b"b", "b", "first")
    both.entered(b"c", "c", "second")
    assert both.silent_s(1000.0) is None, "nobody has looked yet"
    both.by[b"b"].heard(100.0, 1.0)
    both.by[b"c"].heard(100.0, 60.0)
    assert both.silent_s(101.0) is None
    assert both.silent_s(130.0) == 30.0
    assert [(one["name"], one["silent_s"]) for one in both.facts(130.0, is_paused)] == [("b", 30.0), ("c", None)]
    both.by[b"b"].heard(130.0, 1.0)
    assert both.silent_s(130.0) is None
    both.left("first")
    assert both.silent_s(1000.0) == 900.0
    assert [one["silent_s"] for one in both.facts(1000.0, is_paused)] == [None, 900.0], "that one is not connected"


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50), st.integers(0, 60)), max_size=20))
def test_two_sources_in_one_lane_count_each_for_itself(steps: list[tuple[int, int, int]]) -> None:
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
