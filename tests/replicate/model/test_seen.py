"""What suppliers have told that they have seen, and what all of them have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.errors import JournalDamagedError
from replicate.model.merged_row import NEVER, Stamp
from replicate.model.seen import has_seen, merged_told, stable, unseen_of, values_of
from replicate.model.transaction import told_of

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
MEMBERS = {A: [1], B: [2], C: [3]}
TOLD = st.dictionaries(st.integers(1, 2**32 - 1), st.integers(0, 2**64 - 1), max_size=5)


@given(st.integers(1, 2**32 - 1), TOLD)
def test_what_is_told_comes_back(teller: int, told: dict[int, int]) -> None:
    assert told_of(values_of(teller, told)) == (teller, told)


@pytest.mark.parametrize("values", [[], [1, 2], [0], [1, 0, 5], [1, 2**32, 5], [1, 2, -1], [1, 2, 2**64], [1, "2", 3]])
def test_nonsense_is_named(values: list[object]) -> None:
    with pytest.raises(JournalDamagedError):
        told_of(values)


@given(TOLD, TOLD)
def test_the_later_word_counts(one: dict[int, int], other: dict[int, int]) -> None:
    both = merged_told(one, other)
    assert both == merged_told(other, one)
    assert all(both[origin] == max(one.get(origin, 0), other.get(origin, 0)) for origin in both)


def test_what_all_have_is_stable() -> None:
    told = {2: {1: 5, 3: 1}, 3: {1: 7, 2: 4}}
    assert stable(MEMBERS, told, {1: 9, 2: 6, 3: 2}, A) == {1: 5, 2: 4, 3: 1}


def test_who_has_told_nothing_has_seen_nothing() -> None:
    assert stable(MEMBERS, {2: {1: 5}}, {1: 9, 2: 6}, A) == {1: 0, 2: 0}


def test_alone_all_of_it_is_stable() -> None:
    assert stable({A: [1]}, {}, {1: 9}, A) == {1: 9}


def test_a_new_incarnation_has_what_the_one_before_it_had_told() -> None:
    members = {A: [1], B: [2, 22]}
    assert stable(members, {2: {1: 5}, 22: {1: 3}}, {1: 9, 2: 6, 22: 1}, A) == {1: 5, 2: 6, 22: 1}


def test_nobody_is_asked_what_it_wrote_itself() -> None:
    assert has_seen({}, 2, 2, 100)
    assert not has_seen({1: 4}, 2, 1, 5)
    assert has_seen({1: 5}, 2, 1, 5)


def test_stamps_that_a_writer_had_not_seen() -> None:
    stamps = [Stamp(9, 1, 5), Stamp(8, 1, 4), Stamp(7, 2, 1), Stamp(6, 3, 1), NEVER]
    assert unseen_of(stamps, {1: 4}, 2) == {Stamp(9, 1, 5), Stamp(6, 3, 1)}
