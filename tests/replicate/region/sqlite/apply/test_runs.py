"""Many rows a statement: stored as one by one, up to the first that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from replicate.errors import ConflictError, JournalDamagedError, NotSupportedError
from replicate.model.transaction import Op
from replicate.region.sqlite.apply.runs import ROWS_MAX
from tests.replicate.region.sqlite.apply.test_rows import Site

COUNT = 3 * ROWS_MAX + 5


def insert_all(site: Site, table: str, rows: list[Any]) -> None:
    table_id = site.table[table].table_id
    site.applier.apply_columns([int(Op.INSERT)] * len(rows), [table_id] * len(rows), [0] * len(rows), rows)


@pytest.mark.parametrize("count", [0, 1, ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 1, COUNT])
def test_all_rows_are_stored_whatever_their_number(tmp_path: Path, count: int) -> None:
    site = Site(tmp_path / "a.db")
    rows = [[n, f"n{n}", n / 3, None if n % 2 else b"any", b"\0" * (n % 5)] for n in range(1, count + 1)]
    insert_all(site, "plain", rows)
    assert site.rows("SELECT id, name, amount, any_, body FROM plain ORDER BY id") == [tuple(row) for row in rows]


def test_hidden_rowids_and_counters_are_the_same(tmp_path: Path) -> None:
    many, single = Site(tmp_path / "a.db"), Site(tmp_path / "b.db")
    for table, rows in {
        "hidden": [[n * 7, n, f"text {n}"] for n in range(1, COUNT)],
        "counted": [[n * 3, n] for n in range(1, COUNT)],
        "texts": [[f"k{n}", n, "v"] for n in range(1, COUNT)],
    }.items():
        insert_all(many, table, rows)
        for row in rows:
            single.apply(Op.INSERT, table, 0, *row)
        for query in (f"SELECT * FROM {table}", "SELECT * FROM sqlite_sequence"):
            assert many.rows(query) == single.rows(query)
    assert many.rows("SELECT _rowid_ FROM hidden") == single.rows("SELECT _rowid_ FROM hidden")


@pytest.mark.parametrize("place", [0, 1, ROWS_MAX - 1, ROWS_MAX, ROWS_MAX + 3, COUNT - 1])
@pytest.mark.parametrize(
    ("row", "error"),
    [
        ([7_000_000, "x", 1.0, None, None], ConflictError),  # is there already
        ([1, "x"], JournalDamagedError),
        ([1, "x", 1.0, None, None, None], JournalDamagedError),
        ([8_000_000, msgpack.ExtType(1, b"\xff"), 1.0, None, None], NotSupportedError),
        ([8_000_000, [], 1.0, None, None], JournalDamagedError),
    ],
)
def test_the_row_that_does_not_fit_is_named_and_all_before_it_are_stored(
    tmp_path: Path, place: int, row: Any, error: type[Exception]
) -> None:
    site = Site(tmp_path / "a.db")
    site.apply(Op.INSERT, "plain", 0, 7_000_000, "rival", 0.0, None, None)
    rows: list[Any] = [[n, "x", 1.0, None, None] for n in range(100, 100 + COUNT)]
    rows[place] = row
    with pytest.raises(error) as caught:
        insert_all(site, "plain", rows)
    if isinstance(caught.value, ConflictError):
        assert caught.value.facts["key"] == "(7000000)"
    assert site.rows("SELECT count(*) FROM plain WHERE id < 7000000") == [(place,)]
