"""Digests of ranges: of equal rows equal, of any difference another, and taken back by what was changed later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import apsw
import pytest

from replicate.errors import NotSupportedError
from replicate.model.transaction import Op
from replicate.region.sqlite.range_digest import (
    SCHEMA,
    Later,
    RangeDigest,
    cut_range,
    digest_range,
    packed_key,
    unpacked_key,
)

TABLES = """
CREATE TABLE t (id INTEGER PRIMARY KEY, v);
CREATE TABLE w (a TEXT COLLATE NOCASE, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE loose (v, made AS (v || 'x'));
"""


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    with closing(apsw.Connection(":memory:")) as made:
        made.execute(TABLES)
        yield made


def cut(
    connection: apsw.Connection, table: str, after: tuple[object, ...] | None, rows: int = 3, size: int = 10**9
) -> RangeDigest:
    return cut_range(connection, table, after, rows_max=rows, bytes_max=size, key_bytes_max=2048)


def ranges_of(connection: apsw.Connection, table: str, rows: int = 3, size: int = 10**9) -> list[RangeDigest]:
    found: list[RangeDigest] = []
    after: tuple[object, ...] | None = None
    while True:
        one = cut(connection, table, after, rows, size)
        assert digest_range(connection, table, after, one.upto) == one._replace(upto=None)
        found.append(one)
        if one.upto is None:
            return found
        after = one.upto


def test_ranges_leave_nothing_out_and_have_nothing_twice(connection: apsw.Connection) -> None:
    connection.execute(
        "WITH n(i) AS (VALUES (-5) UNION ALL SELECT i + 1 FROM n WHERE i < 9) INSERT INTO t SELECT i * 3, i FROM n"
    )
    connection.execute("INSERT INTO w VALUES ('b', 1, 1), ('A', 2, 1), ('a', 1, 1), ('C', x'00', 1), ('c', 'z', 1)")
    connection.execute("INSERT INTO loose (rowid, v) VALUES (7, 1), (-3, 2), (100, 3), (8, 4)")
    for table, count in (("t", 15), ("w", 5), ("loose", 4)):
        assert sum(one.rows for one in ranges_of(connection, table)) == count
        assert sum(one.rows for one in ranges_of(connection, table, rows=1)) == count
        assert len(ranges_of(connection, table, rows=100)) == 1
    assert [one.upto for one in ranges_of(connection, "w", rows=2)] == [("A", 2), ("c", "z"), None]
    assert [one.rows for one in ranges_of(connection, "t", rows=100, size=1)] == [1] * 15 + [0]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE t SET v = 1.0 WHERE id = 1",
        "UPDATE t SET v = '1' WHERE id = 1",
        "UPDATE t SET v = x'31' WHERE id = 1",
        "UPDATE t SET v = NULL WHERE id = 1",
        "UPDATE t SET id = 99 WHERE id = 1",
        "DELETE FROM t WHERE id = 1",
        "INSERT INTO t VALUES (99, NULL)",
        "UPDATE t SET v = (SELECT sum(v) FROM t) - v",  # the same values, on other rows
        "ALTER TABLE t RENAME v TO u",
    ],
)
def test_any_difference_gives_another_digest(connection: apsw.Connection, statement: str) -> None:
    connection.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    before = digest_range(connection, "t", None, None)
    connection.execute(statement)
    assert digest_range(connection, "t", None, None).digest != before.digest


def test_text_that_is_no_utf_8_is_digested_as_it_is(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (1, 'ä'), (2, CAST(x'ff41' AS TEXT)), (3, x'ff41')")
    (one,) = ranges_of(connection, "t", rows=9)
    connection.execute("DELETE FROM t WHERE id = 2")
    later = Later(connection, "t", None, None)
    later.take(int(Op.DELETE), 1, 0, (2, "\udcffA"), "t")
    assert later.taken_out(digest_range(connection, "t", None, None)).digest == one.digest


def test_later_changes_within_the_range_are_taken_out(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO w VALUES ('a', 1, 'x'), ('b', 1, 'x'), ('c', 1, 'x')")
    after, upto = ("a", 1), ("B", 1)
    before = digest_range(connection, "w", after, upto)
    assert before.rows == 1
    later = Later(connection, "w", after, upto)
    connection.execute("UPDATE w SET v = 'y' WHERE a = 'b'")
    later.take(int(Op.UPDATE), 1, 0b100, ("y", "b", 1, "x"), "w")
    connection.execute("UPDATE w SET a = 'Z' WHERE a = 'B'")
    later.take(int(Op.UPDATE), 1, 0b1, ("Z", "b", 1, "y"), "w")
    connection.execute("INSERT INTO w VALUES ('AA', 5, NULL)")
    later.take(int(Op.INSERT), 1, 0, ("AA", 5, None), "w")
    later.take(int(Op.INSERT), 1, 0, ("AA", 5, None), "another table")
    connection.execute("DELETE FROM w WHERE a = 'c'")
    later.take(int(Op.DELETE), 1, 0, ("c", 1, "x"), "w")
    assert later.taken_out(digest_range(connection, "w", after, upto)) == before


def test_a_change_outside_touches_nothing(connection: apsw.Connection) -> None:
    connection.execute("INSERT INTO t VALUES (6, 1), (9, 2)")
    now = digest_range(connection, "t", (5,), (9,))
    later = Later(connection, "t", (5,), (9,))
    for key in (5, 10, -1):
        later.take(int(Op.INSERT), 1, 0, (key, None), "t")
    assert later.taken_out(now) == now
    later.take(int(Op.INSERT), 1, 0, (9, 2), "t")
    assert later.taken_out(now).rows == 1


def test_the_schema(connection: apsw.Connection) -> None:
    before = digest_range(connection, SCHEMA, None, None)
    connection.execute("CREATE INDEX i ON t (v)")
    assert digest_range(connection, SCHEMA, None, None).digest != before.digest
    assert cut(connection, SCHEMA, None).upto is None


def test_no_such_table(connection: apsw.Connection) -> None:
    with pytest.raises(NotSupportedError):
        cut(connection, "nothing", None)
    with pytest.raises(NotSupportedError, match="another key"):
        cut(connection, "t", (1, 2))


def test_keys_travel() -> None:
    for key in (None, (1,), ("a", -(2**63), 0.5, b"\xff")):
        assert unpacked_key(packed_key(key)) == key
    for garbage in (
        b"\xc1",
        b"\x01",
        b"\x90",
        b"\x80",
        b"\x91\xc0",
        b"\x91\xc3",
        b"\x91\x91\x01",
        b"\x91\xcf" + b"\xff" * 8,
    ):
        with pytest.raises((ValueError, TypeError)):
            unpacked_key(garbage)
