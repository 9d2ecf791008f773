"""The record of a region that was added: there and back, and what makes no sense in one."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from replicate.errors import JournalDamagedError
from replicate.model.region_record import Making, RegionAdded, pack, read_added, without_making
from replicate.model.transaction import Column, Op, TableDefinition

TABLE = TableDefinition(
    region="two", partition=1, owner="main", table="t", version=1, columns=(Column("a", "INT", False, "BINARY"),),
    key=(0,), rowid=True, strict=False, without_rowid=False,
)  # fmt: skip
UUID = b"u" * 16
EMPTY = RegionAdded("two", UUID, Making(("PRAGMA page_size = 4096", "CREATE TABLE t (a INT)"), {"t": 7}))
ROW = [int(Op.INSERT), TABLE.table_id, 0, [1, 1]]


@pytest.mark.parametrize("use_list", [False, True])
@pytest.mark.parametrize("added", [EMPTY, RegionAdded("two", UUID, None)])
def test_there_and_back(added: RegionAdded, use_list: bool) -> None:
    flat = msgpack.unpackb(msgpack.packb(pack(added, [TABLE])), use_list=use_list)
    assert read_added(flat) == added
    left = without_making(flat)
    assert list(left[0::4]) == [Op.REGION, Op.DEFINE]


def test_one_with_rows_is_told_in_the_bytes_of_before() -> None:
    assert pack(RegionAdded("two", UUID, None), [TABLE]) == [
        *(8, 0, "two", ["added", UUID]),
        *(4, TABLE.table_id, 1, TABLE.pack()),
    ]


@pytest.mark.parametrize("flat", [[], ROW, [8, 0, "two", ["released", UUID]], [5, 0, "two", ["CREATE TABLE t (a)"]]])
def test_other_transactions_add_nothing_and_stay_whole(flat: list[Any]) -> None:
    assert read_added(flat) is None
    if flat[:1] != [8]:
        assert without_making(flat) is flat


@pytest.mark.parametrize(
    "flat",
    [
        [8, 0, "two", ["added", UUID], 5],
        [8, 0, "two", ["added", "no bytes"]],
        [8, 0, "../two", ["added", UUID]],
        [8, 0, "two", None],
        [*pack(EMPTY, [TABLE]), *ROW],
        [*pack(EMPTY, [TABLE]), 5, 0, "main", ["DROP TABLE t"]],
        [8, 0, "two", ["added", UUID], 7, TABLE.table_id, 0, [None, 1]],
    ],
)
def test_what_makes_no_sense_is_damage(flat: list[Any]) -> None:
    with pytest.raises(JournalDamagedError):
        read_added(flat)
