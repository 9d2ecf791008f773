"""The name of a hidden rowid, beside SQLite itself."""

from __future__ import annotations

import itertools

import apsw
import pytest

from replicate.model.rowid import RAREST_FIRST, ROWID_NAMES, rowid_name


@pytest.mark.parametrize("names", [ROWID_NAMES, RAREST_FIRST])
def test_it_reaches_the_hidden_rowid_whatever_columns_there_are(names: tuple[str, ...]) -> None:
    for count in range(3):
        for columns in itertools.permutations(("RowID", "_rowid_", "OID"), count):
            connection = apsw.Connection(":memory:")
            listed = ", ".join(("v", *columns))
            connection.execute(f"CREATE TABLE t ({listed}); INSERT INTO t DEFAULT VALUES; UPDATE t SET v = 1")
            name = rowid_name(("v", *columns), names)
            assert connection.execute(f"SELECT {name} FROM t").get == 1
            assert name == next(one for one in names if one not in [column.lower() for column in columns])


def test_all_may_be_taken() -> None:
    assert rowid_name(["oid", "RowId", "_ROWID_"]) is None
