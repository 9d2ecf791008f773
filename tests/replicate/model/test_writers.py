"""Which supplier writes what: one for each partition, and the rest is somebody's, too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicate.limits import PARTITION_NONE, PARTITION_STREAM
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
