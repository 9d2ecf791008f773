"""Where stamps of rows and losses are kept."""

from __future__ import annotations

import apsw
import pytest

from replicate.errors import RegionDamagedError
from replicate.model.merged_row import Lost, Row, Stamp
from replicate.region.protocol import Merged
from replicate.region.sqlite.bookkeeping import make_tables
from replicate.region.sqlite.row_stamps import (
    RowStamps,
    forget_merged,
    key_of,
    make_stamp_tables,
    note_losses,
    pack_merged,
    read_absorbed,
    read_merged,
    settle_merged,
    write_absorbed,
)

ONE, TWO = Stamp(10, 1, 1), Stamp(20, 2, 1)
LOSS = Merged(7, "t", ("id", "v"), (1,), Lost("update", TWO, ONE, (1, b"x"), (1,)), (1, None))


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection(":memory:")
    make_tables(made)
    make_stamp_tables(made, begins_at=5)
    return made


def test_what_was_put_is_there_after_a_flush_and_only_then(connection: apsw.Connection) -> None:
    stamps, row = RowStamps(connection), Row((1, "x"), True, ONE, {1: ONE})
    stamps.put(7, key_of([1]), row)
    assert RowStamps(connection).get(7, key_of([1])) is None
    stamps.flush(9)
    found = RowStamps(connection).get(7, key_of([1]))
    assert found == Row(None, True, ONE, {1: ONE}), "the values of a row that is there are in the table"
    assert read_absorbed(connection) == 9
    assert stamps.get(7, key_of([1])) is row


def test_what_was_taken_back_is_forgotten(connection: apsw.Connection) -> None:
    stamps = RowStamps(connection)
    stamps.put(7, key_of([1]), Row((1, "x"), True, ONE))
    stamps.forget_cached()
    assert stamps.get(7, key_of([1])) is None
    stamps.flush(9)
    assert RowStamps(connection).get(7, key_of([1])) is None


def test_numbers_that_sqlite_takes_for_one_are_one_key() -> None:
    assert key_of([1, "a"]) == key_of([1.0, "a"])
    assert key_of([0.0]) == key_of([-0.0])
    assert key_of([-(2**63)]) == key_of([-(2.0**63)]), "the least that SQLite has"
    assert key_of([2**63 - 1]) != key_of([2.0**63])
    assert len({key_of([one]) for one in (1, "1", b"1", 1.5, None)}) == 5


def test_a_purge_leaves_what_is_not_stable(connection: apsw.Connection) -> None:
    stamps = RowStamps(connection)
    for number, stamp in enumerate((ONE, TWO)):
        stamps.put(7, key_of([number]), Row((number,), False, stamp))
    stamps.flush(9)
    assert stamps.kept_since_purge == 2
    assert not stamps.is_empty
    stamps.put(7, key_of([2]), Row((2,), True, ONE, {1: TWO}))
    stamps.flush(9)
    assert stamps.purge({1: 1}, lambda _table: False) == 2
    assert stamps.get(7, key_of([0])) is None
    assert stamps.get(7, key_of([1])) == Row((1,), False, TWO)
    assert stamps.kept_since_purge == 0
    assert stamps.purge({1: 1, 2: 1}, lambda _table: False) == 0
    assert stamps.is_empty


@pytest.mark.parametrize("is_several", [False, True])
def test_with_unique_values_a_purge_leaves_what_is_after_something_that_not_everybody_has(
    connection: apsw.Connection, is_several: bool
) -> None:
    """Of each origin, and of a row that several have stamped; times from 2041 on, too, and each table by itself."""
    late = 2**63
    kept = {
        (7, 1): Stamp(late + 10, 1, 1),
        (7, 2): Stamp(late + 20, 1, 2),
        (7, 3): Stamp(late + 30, 1, 3),
        (7, 4): Stamp(late + 15, 2, 5),
        (7, 5): Stamp(late + 16, 2, 6),
        (8, 6): Stamp(late + 30, 1, 3),
    }
    stamps = RowStamps(connection)
    for (table_id, number), stamp in kept.items():
        row = Row((number,), False, stamp, {1: Stamp(late + 9, 1, 0)} if is_several else {})
        stamps.put(table_id, key_of([number]), row)
    stamps.flush(9)
    assert stamps.purge({1: 3, 2: 4}, lambda _table: True) == 4
    left = {number for (table_id, number) in kept if stamps.get(table_id, key_of([number])) is not None}
    assert left == {2, 3, 4, 5}, "number 5 of origin 2 is the first that not everybody has"
    assert stamps.purge({1: 3, 2: 5}, lambda _table: True) == 3
    assert stamps.purge({1: 3, 2: 5}, lambda table_id: table_id == 8) == 1
    assert stamps.purge({1: 3, 2: 6}, lambda _table: True) == 0


def test_a_journal_that_begins_later_counts_from_there(connection: apsw.Connection) -> None:
    assert read_absorbed(connection) == 4
    write_absorbed(connection, 40)
    make_stamp_tables(connection, begins_at=20)
    assert read_absorbed(connection) == 40


def test_losses_come_back_as_they_were_and_are_settled(connection: apsw.Connection) -> None:
    for _ in range(3):
        note_losses(connection, LOSS.seqno, [pack_merged(LOSS)])
    found = list(read_merged(connection))
    assert [(one.number, one.state) for one in found] == [(1, "open"), (2, "open"), (3, "open")]
    assert {one.merged for one in found} == {LOSS}
    assert settle_merged(connection, [1, 3, 1]) == 2
    assert [one.number for one in read_merged(connection) if one.state == "open"] == [2]
    assert forget_merged(connection) == 2
    assert [one.number for one in read_merged(connection)] == [2]


def test_another_sites_losses_do_not_stay_in_a_copy(connection: apsw.Connection) -> None:
    note_losses(connection, LOSS.seqno, [pack_merged(LOSS)])
    make_stamp_tables(connection, begins_at=5)
    assert list(read_merged(connection)) == []


def test_where_there_are_none_there_is_nothing() -> None:
    assert list(read_merged(apsw.Connection(":memory:"))) == []


def test_stamps_that_cannot_be_read_are_named(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO _replicate_version VALUES (7, ?, 0, 0, x'ff')", (key_of([1]),))
    with pytest.raises(RegionDamagedError, match="stamps of a row"):
        RowStamps(connection).get(7, key_of([1]))
