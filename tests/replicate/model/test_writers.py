"""Which supplier writes what: one for each partition, and the rest is somebody's, too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import JournalDamagedError
from replicate.limits import PARTITION_NONE, PARTITION_STREAM
from replicate.model.transaction import LEFT, SHARED, WRITTEN
from replicate.model.writers import REST, Writers

ONE, OTHER = b"1" * 16, b"2" * 16
GIVEN = st.lists(st.tuples(st.integers(0, 5), st.sampled_from([ONE, OTHER])), max_size=6)


def test_where_nobody_was_named_nobody_writes() -> None:
    none = Writers()
    assert none.of(3) == b""
    assert not none.all_by(ONE)
    assert none.not_of(ONE, (3,)) == (3,)


def test_what_was_never_given_by_name_is_who_has_the_rest() -> None:
    writers = Writers({REST: ONE}).given(2, OTHER)
    assert (writers.of(1), writers.of(2)) == (ONE, OTHER)
    assert writers.not_of(ONE, (1, 2, 3)) == (2,)
    assert writers.not_of(OTHER, {3, 1, 2}) == (1, 3)


def test_comments_for_everybody_and_what_never_leaves_are_anybodys() -> None:
    assert Writers({REST: ONE}).not_of(OTHER, (PARTITION_STREAM, PARTITION_NONE)) == ()


@given(GIVEN)
def test_the_last_word_counts_and_all_is_all(given_: list[tuple[int, bytes]]) -> None:
    writers = Writers({REST: ONE})
    for number, to in given_:
        writers = writers.given(number, to)
    by = {REST: ONE, **dict(given_)}
    for number in range(7):
        assert writers.of(number) == by.get(number, by[REST])
    assert writers.all_by(ONE) == (OTHER not in by.values())


# Written by several.


def told(writers: Writers, *values: object, partition: int = 2) -> Writers:
    return writers.told(partition, values)


def test_who_shares_writes_beside_whose_it_is() -> None:
    writers = told(Writers({REST: ONE}).given(2, ONE), SHARED, OTHER, 1)
    assert writers.not_of(OTHER, (1, 2)) == (1,)
    assert writers.not_of(ONE, (1, 2)) == ()
    assert (writers.place(2, ONE), writers.place(2, OTHER), writers.place(1, OTHER)) == (0, 1, -1)
    assert writers.merged((0, 1, 2, PARTITION_NONE)) == (2,)
    assert (writers.sharing, writers.was_shared) == ((2,), True)
    assert not writers.all_by(ONE)
    assert writers.members() == {ONE, OTHER}


def test_who_has_left_writes_no_longer_and_keeps_its_place() -> None:
    writers = told(told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1), LEFT, OTHER)
    assert writers.not_of(OTHER, (2,)) == (2,)
    assert writers.all_by(ONE)
    assert (writers.sharing, writers.was_merged(2), writers.was_merged(1)) == ((), True, False)
    assert writers.members() == {ONE}, "it may have written beside what the other one wrote"
    assert (writers.free_place(2, OTHER), writers.free_place(2, b"3" * 16)) == (1, 2)


def test_all_that_has_no_writer_of_its_own_is_shared_together() -> None:
    writers = told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, partition=REST)
    assert writers.not_of(OTHER, (1, 2, 5)) == (2,)
    assert writers.merged((1, 2, 5)) == (1, 5)


def test_rows_are_merged_whole_where_that_was_said_last() -> None:
    writers = told(Writers({REST: ONE, 2: ONE}), SHARED, OTHER, 1, True)
    assert writers.is_by_row(2)
    assert not writers.is_by_row(1)
    assert told(writers, LEFT, OTHER).is_by_row(2)
    assert not told(writers, SHARED, OTHER, 1).is_by_row(2)


@pytest.mark.parametrize("values", [(LEFT, OTHER), (SHARED, OTHER, "1"), (SHARED, OTHER, 0)])
def test_nonsense_is_named(values: tuple[object, ...]) -> None:
    with pytest.raises(JournalDamagedError):
        told(Writers({REST: ONE}), *values)


def test_what_is_given_is_a_change_like_the_others() -> None:
    assert told(Writers({REST: ONE}), WRITTEN, OTHER) == Writers({REST: ONE}).given(2, OTHER)
