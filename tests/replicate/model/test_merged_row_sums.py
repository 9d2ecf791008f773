"""Columns that are sums: what several suppliers add to one at once, whatever order it arrives in. See merged_row.py."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.merged_row import Added, Image, Lost, Row, RowChanged, Stamp, lost, merged, pack_row, unpack_row
from replicate.model.transaction import Op

GROUPS = (0, -1, 1)
"""A key, a sum, and a column that keeps the later value."""
COUNT = 1
Transaction = tuple[Stamp, list[RowChanged]]
BASE = Row((1, 10, "a"), True)
EARLY, LATE, LATEST = Stamp(10, 1, 1), Stamp(20, 2, 1), Stamp(30, 1, 2)
MOST = 2**63 - 1


def insert(count: Any, value: str = "i") -> RowChanged:
    return RowChanged(int(Op.INSERT), (1, count, value), frozenset(GROUPS))


def update(before: Any, after: Any) -> RowChanged:
    return RowChanged(int(Op.UPDATE), (1, after, "a"), frozenset([-1]), (1, before, "a"))


def delete(count: Any = 10) -> RowChanged:
    return RowChanged(int(Op.DELETE), (1, count, "a"), frozenset([-1]))


def made(row: Row, transactions: Sequence[Transaction]) -> Row:
    for stamp, changes in transactions:
        for change in changes:
            row = merged(row, change, stamp, GROUPS)
    return row


def of_any_order(row: Row, *transactions: Transaction) -> tuple[bool, Any]:
    """Whether it is there, and the sum, which has to be one of any order."""
    found = {(one.is_there, one.values) for one in (made(row, some) for some in itertools.permutations(transactions))}
    assert len(found) == 1, found
    ((is_there, values),) = found
    assert values is not None
    return is_there, values[COUNT]


def test_what_two_add_at_once_is_added_up() -> None:
    assert of_any_order(BASE, (EARLY, [update(10, 15)]), (LATE, [update(10, 8)])) == (True, 13)


def test_two_that_take_all_at_once_take_it_twice() -> None:
    assert of_any_order(BASE, (EARLY, [update(10, 0)]), (LATE, [update(10, 0)])) == (True, -10)


def test_two_inserts_of_one_key_are_added_up() -> None:
    assert of_any_order(Row(), (EARLY, [insert(1)]), (LATE, [insert(1)])) == (True, 2)


def test_a_delete_takes_what_is_earlier_and_what_is_later_brings_that_alone_back() -> None:
    later = (LATEST, [update(10, 12)])
    assert of_any_order(BASE, (EARLY, [update(10, 15)]), (LATE, [delete()])) == (False, 0)
    assert of_any_order(BASE, (EARLY, [update(10, 15)]), (LATE, [delete()]), later) == (True, 2)


def test_of_one_time_the_greater_origin_is_the_later_one() -> None:
    """Whether it adds, or deletes."""
    lower, greater = Stamp(10, 1, 1), Stamp(10, 2, 1)
    assert of_any_order(BASE, (lower, [update(10, 15)]), (greater, [delete()])) == (False, 0)
    assert of_any_order(BASE, (greater, [update(10, 15)]), (lower, [delete()])) == (True, 5)


def test_a_value_that_is_no_integer_stands_from_its_time_on() -> None:
    assert of_any_order(BASE, (EARLY, [update(10, 15)]), (LATE, [update(10, None)])) == (True, None)
    assert of_any_order(BASE, (LATE, [update(10, 15)]), (EARLY, [update(10, None)])) == (True, None)
    back = (LATEST, [update(None, 3)])
    assert of_any_order(BASE, (EARLY, [update(10, 15)]), (LATE, [update(10, None)]), back) == (True, 3)


def test_beyond_64_bits_it_goes_round() -> None:
    assert of_any_order(BASE, (EARLY, [update(10, MOST)]), (LATE, [update(10, 11)])) == (True, -(2**63))
    assert of_any_order(BASE, (EARLY, [update(MOST, -(2**63))]), (LATE, [update(10, 9)])) == (True, 10)


def test_what_one_transaction_adds_in_several_steps_is_one() -> None:
    row = made(BASE, [(EARLY, [update(10, 11), update(11, 15)])])
    assert row.sums == {-1: {1: (Added(10, 1, 5),)}}
    assert of_any_order(BASE, (EARLY, [update(10, 11), update(11, 15)]), (LATE, [delete()])) == (False, 0)
    assert of_any_order(BASE, (LATE, [update(10, 11), update(11, 15)]), (EARLY, [delete()])) == (True, 5)


def test_what_everybody_has_is_not_kept_and_counts_on() -> None:
    row = made(BASE, [(EARLY, [update(10, 15)]), (LATE, [update(10, 12)]), (LATEST, [update(17, 18)])])
    left = row.without({1: 1, 2: 0})
    assert left.sums == {-1: {1: (Added(30, 2, 1),), 2: (Added(20, 1, 2),)}}
    assert row.without({1: 2, 2: 1}).sums == {}
    later = (Stamp(40, 2, 2), [update(18, 20)])
    assert made(left, [later]).values == made(row, [later]).values == (1, 20, "a")


def change() -> st.SearchStrategy[RowChanged]:
    count = st.one_of(st.integers(-3, 3), st.sampled_from([None, "x", 1.5, MOST, -(2**63)]))
    return st.one_of(st.builds(insert, count), st.builds(update, count, count), st.builds(delete, count))


def transactions() -> st.SearchStrategy[list[Transaction]]:
    stamp = st.tuples(st.integers(1, 4), st.integers(1, 3)).map(lambda pair: Stamp(*pair, pair[0]))
    one = st.tuples(stamp, st.lists(change(), min_size=1, max_size=3))
    return st.lists(one, min_size=1, max_size=5, unique_by=lambda one: one[0])


def folded(values: Image, some: Sequence[Transaction]) -> tuple[bool, Any]:
    """What they come to one after the other, by their stamps."""
    is_there, count = True, values[COUNT]
    for _, changes in sorted(some, key=lambda one: one[0]):
        for one in changes:
            is_there, told = one.op != Op.DELETE, one.values[COUNT]
            old = 0 if one.before is None else one.before[COUNT]
            if not is_there:
                count = 0
            elif type(told) is not int or type(old) is not int:
                count = told
            elif type(count) is int:
                count = (count + told - old + 2**63) % 2**64 - 2**63
    return is_there, count


@given(transactions(), st.randoms(use_true_random=False))
def test_any_order_comes_to_what_the_transactions_fold_to(some: list[Transaction], source: random.Random) -> None:
    assert BASE.values is not None
    source.shuffle(some)
    row = made(BASE, some)
    assert row.values is not None
    found = (row.is_there, row.values[COUNT])
    assert repr(found) == repr(folded(BASE.values, some))
    unpacked = unpack_row(pack_row(row, row.writer))
    assert (unpacked.life, unpacked.stamps, unpacked.sums) == (row.life, row.stamps, row.sums)


# What was lost.


@pytest.mark.parametrize("is_unseen", [True, False])
def test_what_is_added_too_late_for_a_value_that_stands_is_lost(is_unseen: bool) -> None:
    unseen = frozenset({LATE} if is_unseen else ())
    row = made(BASE, [(LATE, [update(10, None)])])
    found = lost(row, update(10, 15), EARLY, GROUPS, unseen)
    assert found == ([Lost("update", LATE, EARLY, (1, 15, "a"), (COUNT,))] if is_unseen else [])
    assert lost(row, update(10, 10), EARLY, GROUPS, unseen) == [], "it adds nothing"


@pytest.mark.parametrize("is_unseen", [True, False])
def test_what_a_value_that_stands_takes_away_is_lost(is_unseen: bool) -> None:
    unseen = frozenset({EARLY} if is_unseen else ())
    row = made(BASE, [(EARLY, [update(10, 15)])])
    found = lost(row, update(10, None), LATE, GROUPS, unseen)
    assert found == ([Lost("update", LATE, EARLY, (1, 15, "a"), (COUNT,))] if is_unseen else [])


def test_what_a_delete_takes_away_is_lost_and_what_is_only_added_up_is_not() -> None:
    row, unseen = made(BASE, [(EARLY, [update(10, 15)])]), frozenset({EARLY})
    assert lost(row, update(10, 12), LATE, GROUPS, unseen) == []
    assert lost(row, delete(), LATE, GROUPS, unseen) == [Lost("update", LATE, EARLY, (1, 15, "a"), (COUNT,))]
