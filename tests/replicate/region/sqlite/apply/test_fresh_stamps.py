"""Stamps of rows that have none, made many at once, against the same made change by change."""

from __future__ import annotations

from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicate.model.merged_row import Stamp
from replicate.model.transaction import Op, mask_of
from replicate.region.protocol import Absorbed
from replicate.region.sqlite.apply.fresh_stamps import FreshStamps, StampedTable
from replicate.region.sqlite.apply.merge import RowMerger
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.bookkeeping import make_tables, write_writer
from replicate.region.sqlite.row_stamps import key_of, make_stamp_tables
from replicate.region.sqlite.schema import read_definition, record_definitions

TABLES = (
    "CREATE TABLE t (id TEXT PRIMARY KEY, v, w) WITHOUT ROWID",
    "CREATE TABLE t (id INTEGER PRIMARY KEY, v, w)",
    "CREATE TABLE t (id, v, w, PRIMARY KEY (w, id)) WITHOUT ROWID",
    "CREATE TABLE t (id TEXT PRIMARY KEY, v, w, CHECK (v IS NOT w)) WITHOUT ROWID",
    "CREATE TABLE t (id TEXT PRIMARY KEY, v, w INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE t (id TEXT PRIMARY KEY, v UNIQUE, w) WITHOUT ROWID",
)
"""One key column, another, two, all columns one group; one whose w is a sum; one with unique values."""
KEYS = (1, 1.0, 2, "a", "b")


class Stamped:
    """The stamps of a region's one table."""

    def __init__(self, number: int) -> None:
        self.connection = apsw.Connection(":memory:")
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        make_tables(self.connection)
        make_stamp_tables(self.connection, begins_at=1)
        self.connection.execute(TABLES[number])
        record_definitions(self.connection, region="main")
        write_writer(self.connection, 1, ["shared", b"1" * 16, 1, False, ["t", "w"] if number == 4 else []], 1)
        self.definition = read_definition(self.connection, "t", region="main")
        rows = RowApplier(self.connection, {self.definition.table_id: self.definition}, region="main")
        self.merger = RowMerger(self.connection, rows)
        self.merger.begin()

    def kept(self) -> list[Any]:
        self.merger.finish(1)
        self.merger.begin()
        return self.connection.execute("SELECT * FROM _replicate_version ORDER BY 1, 2").fetchall()


def change_of(table_id: int, drawn: tuple[int, Any, Any, int, int]) -> list[Any]:
    """Of rows that a history could have is not asked: stamps know of none."""
    op, key, other, changed, value = drawn
    image = [key, value, value + 1]
    if op != Op.UPDATE:
        return [op, table_id, 0, image]
    ordinals = [at for at in range(3) if changed >> at & 1] or [1]
    return [op, table_id, mask_of(ordinals, 3), [*((other, 7, 8)[at] for at in ordinals), *image]]


CHANGE = st.tuples(
    st.sampled_from([int(Op.INSERT), int(Op.UPDATE), int(Op.DELETE)]),
    st.sampled_from(KEYS),
    st.sampled_from(KEYS),
    st.integers(1, 7),
    st.integers(0, 3),
)
TRANSACTIONS = st.lists(st.tuples(st.lists(CHANGE, max_size=3), st.integers(1, 2), st.booleans()), max_size=12)


@given(number=st.integers(0, len(TABLES) - 1), before=TRANSACTIONS, told=TRANSACTIONS)
def test_many_at_once_come_to_what_each_comes_to(number: int, before: Any, told: Any) -> None:
    many, single = Stamped(number), Stamped(number)
    csn = 0
    for batch in (before, told):
        transactions = []
        for changes, origin, is_stable in batch:
            csn += 1
            flat = [part for change in changes for part in change_of(many.definition.table_id, change)]
            transactions.append(Absorbed(flat, flat, Stamp(csn, origin, csn), is_stable))
        many.merger.absorb(transactions, lambda _table: True)
        for one in transactions:
            single.merger._absorb_one(one, lambda _table: True)
        assert many.kept() == single.kept()


def test_a_row_that_is_written_once_is_packed_at_once_and_no_other_is() -> None:
    site = Stamped(1)
    table, stamp, table_id = (
        StampedTable(site.definition, (0, 1, 2), has_unique=False),
        Stamp(1, 2, 3),
        site.definition.table_id,
    )
    drawn = [(Op.INSERT, 1, 1, 1, 1), (Op.UPDATE, 2, 2, 2, 1), (Op.UPDATE, 2, 2, 2, 1), (Op.UPDATE, "a", "b", 1, 1)]
    changes = [(*change_of(table_id, (int(one[0]), *one[1:])), stamp, False) for one in drawn]
    found = FreshStamps(changes, lambda _table: table)  # type: ignore[arg-type]
    one, two, old, new = ((table_id, key_of((key,))) for key in (1, 2, "a", "b"))
    assert (set(found.kept), found.others, found.names) == ({one, two}, {two, old, new}, [one, two, two, None])
    assert found.all_names() == {one, two, old, new}


@pytest.mark.parametrize(("number", "kept"), [(0, 0), (5, 1)])
def test_of_what_everybody_has_only_rows_with_unique_values_are_stamped(number: int, kept: int) -> None:
    site = Stamped(number)
    flat = change_of(site.definition.table_id, (int(Op.INSERT), "a", "a", 1, 1))
    site.merger.absorb([Absorbed(flat, flat, Stamp(1, 2, 3), True)], lambda _table: True)
    assert len(site.kept()) == kept


@pytest.mark.parametrize("groups", [(0, 1, -1), (0, 1, 256)])
def test_of_a_table_with_sums_or_very_many_groups_none_is(groups: tuple[int, ...]) -> None:
    site = Stamped(1)
    changes = [(*change_of(site.definition.table_id, (int(Op.INSERT), 1, 1, 1, 1)), Stamp(1, 2, 3), False)]
    found = FreshStamps(changes, lambda _table: StampedTable(site.definition, groups, has_unique=False))  # type: ignore[arg-type]
    assert (found.kept, len(found.others)) == ({}, 1)
