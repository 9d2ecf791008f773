"""The net change: what folding gives, phase by phase, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from replicate.errors import ConflictError, DamagedError, FormatUnknownError, JournalDamagedError
from replicate.model.transaction import Column, Kind, Op, TableDefinition
from update_process.replay.net import (
    NetChange,
    NetRow,
    NetSequence,
    Part,
    as_delete,
    as_insert,
    as_update,
    same_value,
)

T = TableDefinition(
    "main",
    1,
    "main",
    "t",
    1,
    (Column("id", "INTEGER", False, "BINARY"), Column("u", "", False, "BINARY"), Column("v", "", False, "BINARY")),
    (0,),
    False,
    False,
    False,
)
ID = T.table_id


def definition_of(table_id: int) -> TableDefinition:
    if table_id != ID:
        raise DamagedError("no such table")
    return T


def folded(*changes: list[Any]) -> NetChange:
    net = NetChange(definition_of)
    for seqno, change in enumerate(changes, 1):
        net.fold([[int(Kind.TRANSACTION), seqno, 0, 0, 0, seqno, 0, *change]])
    return net


def insert(*image: Any) -> list[Any]:
    return [int(Op.INSERT), ID, 0, list(image)]


def delete(*image: Any) -> list[Any]:
    return [int(Op.DELETE), ID, 0, list(image)]


def update(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[Any]:
    changed = [at for at in range(3) if not same_value(before[at], after[at])]
    return [int(Op.UPDATE), ID, sum(1 << at for at in changed), [*(after[at] for at in changed), *before]]


def test_a_row_that_comes_and_goes_leaves_only_its_key() -> None:
    assert list(folded(insert(1, 2, 3), delete(1, 2, 3)).rows()) == [NetRow(ID, None, None, 1, (1,))]


def test_first_before_and_last_after_remain() -> None:
    net = folded(update((1, 2, 3), (1, 2, 4)), update((1, 2, 4), (1, 2, 5)))
    assert list(net.rows()) == [NetRow(ID, [1, 2, 3], [1, 2, 5], 1)]
    assert (net.change_count, net.key_count) == (2, 1)


def test_deleted_and_inserted_again_is_an_update() -> None:
    (row,) = folded(delete(1, 2, 3), insert(1, 2, 9)).rows()
    assert as_update(row, frozenset()) == [int(Op.UPDATE), ID, 4, [9, 1, 2, 3]]
    assert as_delete(row, frozenset()) is None
    assert as_insert(row, frozenset()) is None


def test_a_unique_column_makes_it_a_delete_and_an_insert() -> None:
    (row,) = folded(update((1, 2, 3), (1, 7, 3))).rows()
    for unique in (frozenset((1,)), None):
        assert as_delete(row, unique) == [int(Op.DELETE), ID, 0, [1, 2, 3]]
        assert as_update(row, unique) is None
        assert as_insert(row, unique) == [int(Op.INSERT), ID, 0, [1, 7, 3]]


def test_a_changed_key_is_two_rows() -> None:
    net = folded(update((1, 2, 3), (5, 2, 3)), update((5, 2, 3), (5, 2, 4)))
    assert list(net.rows()) == [NetRow(ID, [1, 2, 3], None, 1), NetRow(ID, None, [5, 2, 4], 1)]
    assert net.change_count == 2


def test_back_to_where_it_was_is_nothing_but_a_check() -> None:
    (row,) = folded(update((1, 2, 3), (1, 2, 4)), update((1, 2, 4), (1, 2, 3))).rows()
    assert as_update(row, frozenset()) is None
    assert as_update(row, frozenset(), verify=True) == [int(Op.UPDATE), ID, 0, [1, 2, 3]]


@pytest.mark.parametrize(("before", "after"), [(1, 1.0), (0.0, -0.0), ("a", b"a"), (None, 0)])
def test_storage_classes_are_values(before: Any, after: Any) -> None:
    (row,) = folded(update((1, 2, before), (1, 2, after))).rows()
    assert as_update(row, frozenset()) == [int(Op.UPDATE), ID, 4, [after, 1, 2, before]]
    assert not same_value(before, after)


def test_rows_come_by_parts_and_by_their_keys() -> None:
    net = folded(
        update((7, 2, 3), (7, 2, 4)), insert(5, 2, 3), delete(6, 2, 3), insert(4, 2, 3), delete(4, 2, 3),
        update((3, 2, 3), (3, 9, 3)),
    )  # fmt: skip
    assert list(net.table_ids()) == [ID]
    by_part = {part: [row.passed or row.after or row.before for row in net.rows(part)] for part in Part}
    assert by_part == {
        Part.GONE: [[6, 2, 3]],
        Part.STAYED: [[3, 9, 3], [7, 2, 4]],
        Part.CAME: [[5, 2, 3]],
        Part.PASSED: [(4,)],
    }
    assert [row.seqno for row in net.rows()] == [6, 4, 2, 3, 1]


def test_keys_of_several_storage_classes_have_no_order() -> None:
    net = folded(insert("b", 2, 3), insert(1, 2, 3), insert(None, 2, 3))
    assert [row.after for row in net.rows() if row.after] == [["b", 2, 3], [1, 2, 3], [None, 2, 3]]


def test_counters_fold_too() -> None:
    net = folded([int(Op.SEQUENCE), ID, 0, [None, 4]], [int(Op.SEQUENCE), ID, 0, [4, 2]])
    assert list(net.sequences()) == [NetSequence(ID, None, 2)]


@pytest.mark.parametrize(
    "changes",
    [
        (insert(1, 2, 3), insert(1, 2, 3)),
        (delete(1, 2, 3), delete(1, 2, 3)),
        (insert(1, 2, 3), delete(1, 2, 4)),
        (delete(1, 2, 3), update((1, 2, 3), (1, 2, 4))),
        ([int(Op.SEQUENCE), ID, 0, [1, 2]], [int(Op.SEQUENCE), ID, 0, [3, 4]]),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(changes: tuple[list[Any], ...]) -> None:
    with pytest.raises(ConflictError, match="transaction 2 does not fit"):
        folded(*changes)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(JournalDamagedError):
        folded(insert(1, 2))
    with pytest.raises(JournalDamagedError):
        folded([int(Op.UPDATE), ID, 8, [1, 1, 2, 3]])
    with pytest.raises(JournalDamagedError):
        folded([int(Op.INSERT), ID, 0])
    for senseless in ([int(Op.INSERT), ID, 0, 5], [int(Op.UPDATE), ID, [1], [1, 2]], insert([1], 2, 3)):
        with pytest.raises(JournalDamagedError):
            folded(senseless)
    with pytest.raises(DamagedError):
        folded([int(Op.INSERT), 7, 0, [1]])
    with pytest.raises(FormatUnknownError):
        folded([int(Op.SCHEMA), 0, "main", ["CREATE TABLE x (a)"]])
