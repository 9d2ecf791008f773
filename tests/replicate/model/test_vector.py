"""Vectors rise, merge and pack canonically; decoders of positions refuse whatever is not theirs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import InternalError, JournalDamagedError
from replicate.model.vector import U64_MAX, Origin, Position, SynchronizationVector, pack_chains, unpack_chains

ENTRIES = st.dictionaries(st.tuples(st.integers(1, 2**32 - 1), st.integers(0, 5)), st.integers(0, U64_MAX), max_size=8)
VECTORS = ENTRIES.map(SynchronizationVector)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=9),
)


@given(VECTORS)
def test_packing_is_canonical(vector: SynchronizationVector) -> None:
    again = SynchronizationVector.unpack(vector.pack())
    assert again == vector
    assert hash(again) == hash(vector)
    assert again.pack() == vector.pack()


@given(VECTORS, VECTORS)
def test_merged_covers_both_and_nothing_more(one: SynchronizationVector, other: SynchronizationVector) -> None:
    both = one.merged(other)
    assert both == other.merged(one)
    assert both.covers(one)
    assert both.covers(other)
    assert all(last in (one.get(key), other.get(key)) for key, last in both.items())
    assert one.covers(other) == (both == one)
    assert bool(other.beyond(one)) == (not one.covers(other))


@given(VECTORS, st.integers(1, 9), st.integers(0, 3), st.integers(0, U64_MAX))
def test_raised_never_falls(vector: SynchronizationVector, origin: int, partition: int, last: int) -> None:
    raised = vector.raised(origin, partition, last)
    assert raised.last(origin, partition) == max(last, vector.last(origin, partition))
    assert raised.covers(vector)


def test_absent_means_nothing_seen() -> None:
    vector = SynchronizationVector({(7, 0): 3, (7, 2): 1, (9, 1): 4, (8, 0): 0})
    assert (vector.last(7), vector.last(7, 1), vector.last(8)) == (3, 0, 0)
    assert vector.origins() == (7, 9)
    assert len(vector) == 3
    assert "00000007/2: 1" in repr(vector)
    assert vector != {"no": "vector"}


@pytest.mark.slow
@given(JUNK)
def test_junk_is_refused(junk: object) -> None:
    for unpack in (SynchronizationVector.unpack, unpack_chains):
        try:
            unpack(junk)
        except JournalDamagedError:
            continue
        assert isinstance(junk, list)


@pytest.mark.parametrize("packed", [[1, 0, 0], [0, 0, 1], [2, 0, 1, 1, 0, 1], [1, 0, True], [1, 0], [1, 0, 2**64]])
def test_out_of_range_or_order_is_refused(packed: list[object]) -> None:
    with pytest.raises(JournalDamagedError):
        SynchronizationVector.unpack(packed)


def test_a_number_that_fits_no_field_is_our_bug() -> None:
    with pytest.raises(InternalError):
        SynchronizationVector({(1, 0): 2**64})
    with pytest.raises(InternalError):
        Origin(b"short", 1)


def test_origin_keys_differ_by_incarnation() -> None:
    keys = {Origin(bytes(16), incarnation).key for incarnation in range(1000)}
    assert len(keys) == 1000
    assert 0 not in keys


@given(st.dictionaries(st.integers(1, 2**32 - 1), st.tuples(st.integers(0, U64_MAX), st.integers(0, U64_MAX))))
def test_chains_round_trip(chains: dict[int, tuple[int, int]]) -> None:
    assert unpack_chains(pack_chains(chains)) == chains


def test_a_position_advances() -> None:
    there = Position().advanced(1, 7, 1, 0xAB, (1, 3)).advanced(2, 7, 2, 0xCD)
    assert there.last_seqno == 2
    assert there.chains == {7: (2, 0xCD)}
    assert dict(there.vector) == {(7, 0): 2, (7, 1): 1, (7, 3): 1}
