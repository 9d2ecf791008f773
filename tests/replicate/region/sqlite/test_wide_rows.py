"""region/sqlite/wide_rows.py: rows of any width come whole, in their order, by as few statements as can be."""

from __future__ import annotations

import apsw
import pytest

from replicate.region.sqlite.wide_rows import read_row, read_rows

COLUMNS = [f"c{number}" for number in range(10)]


@pytest.fixture
def connection() -> apsw.Connection:
    made = apsw.Connection("")
    made.execute(f"CREATE TABLE t ({', '.join(COLUMNS)})")
    for row in range(5):
        made.execute(f"INSERT INTO t VALUES ({', '.join(str(100 * row + place) for place in range(10))})")
    return made


@pytest.mark.parametrize("most", [11, 10, 9, 5, 4, 3, 2, 1])
def test_rows_of_any_width(connection: apsw.Connection, most: int) -> None:
    expected = connection.execute("SELECT * FROM t WHERE c0 >= 100 ORDER BY c0 DESC").fetchall()
    connection.limit(apsw.SQLITE_LIMIT_COLUMN, most)
    asked: list[str] = []
    connection.exec_trace = lambda _cursor, text, _values: asked.append(text) or True  # type: ignore[func-returns-value]
    assert list(read_rows(connection, COLUMNS, "FROM t WHERE c0 >= ? ORDER BY c0 DESC", (100,))) == expected
    assert len(asked) == -(-10 // most)
    assert read_row(connection, COLUMNS, "FROM t WHERE c0 = ?", (300,)) == expected[1]
    assert read_row(connection, COLUMNS, "FROM t WHERE c0 = ?", (7,)) is None
