"""filters/row_filter.py: what a condition says of an image is what SQLite's own WHERE says of the row."""

from __future__ import annotations

from typing import Any

import apsw
import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicate.errors import UsageError
from replicate.filters.row_filter import CHARACTERS_MAX, DEPTH_MAX, BoundFilter, parse
from replicate.model.transaction import RAW_TEXT_CODE, TableDefinition
from replicate.region.sqlite.schema import read_definition

TYPES = ("INTEGER", "TEXT", "VARCHAR(9)", "REAL", "NUMERIC", "DATE", "BLOB", "", "FLOATING POINT", "CHARINT")
COLLATIONS = ("", "COLLATE NOCASE", "COLLATE RTRIM")
OPERATORS = ("=", "<>", "<", "<=", ">", ">=")
texts = st.one_of(
    st.sampled_from(
        ("", "a", "A", "b ", "a ", "a  ", "5", " 5", "5.0", "5e0", "-0", "+5 ", "5x", "é", "É", "0x5", "_1")
    ),
    st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=4),
)
integers = st.one_of(st.integers(-6, 6), st.sampled_from((2**53, 2**53 + 1, -(2**63), 2**63 - 1)))
reals = st.one_of(
    st.sampled_from((0.0, -0.5, 5.0, 5.5, 0.1, 9007199254740992.0, 1e15, -2.5e10)),
    st.integers(-60, 60).map(lambda n: n / 8),
)
blobs = st.one_of(st.sampled_from((b"", b"5", b"a", b"a ")), st.binary(max_size=3))
stored = st.one_of(
    st.none(), integers, reals, texts, blobs, st.sampled_from((float("inf"), -1e300, "a\0b", "A\0c", "a\0", "b\0 "))
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


literals = st.one_of(
    integers.map(str),
    reals.map(lambda one: format(one, ".14g")),
    texts.map(quoted),
    blobs.map(lambda one: f"X'{one.hex()}'"),
)
columns = st.sampled_from(("a", "A", '"b"', "c"))
conditions = st.recursive(
    st.one_of(
        st.tuples(columns, st.sampled_from(OPERATORS), literals).map(" ".join),
        st.tuples(columns, st.sampled_from((" IS NULL", " is not null"))).map("".join),
        st.builds(
            lambda column, word, listed: f"{column} {word} ({', '.join(listed)})",
            columns, st.sampled_from(("IN", "NOT IN")), st.lists(literals, min_size=1, max_size=4),
        ),
        st.builds(
            lambda column, word, low, high: f"{column} {word} {low} AND {high}",
            columns, st.sampled_from(("BETWEEN", "NOT BETWEEN")), literals, literals,
        ),
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: f"NOT {one}"),
        inner.map(lambda one: f"NOT ({one})"),
        st.lists(inner, min_size=2, max_size=3).map(" AND ".join),
        st.lists(inner.map(lambda one: f"({one})"), min_size=2, max_size=3).map(" or ".join),
        st.lists(inner, min_size=2, max_size=3).map(" OR ".join),
    ),
    max_leaves=5,
)  # fmt: skip
rows = st.lists(st.tuples(stored, stored, stored), min_size=1, max_size=6)


def tabled(
    declared: list[str], content: list[tuple[Any, ...]], more: str = ""
) -> tuple[apsw.Connection, TableDefinition]:
    """A table of these columns with what SQLite takes of the rows, and its definition."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE _replicate_table (name, version, partition, definition)")
    made = ", ".join(f"{name} {column}" for name, column in zip("abc", declared, strict=True))
    connection.execute(f"CREATE TABLE t ({made}) {more}")
    for row in content:
        try:
            connection.execute("INSERT INTO t VALUES (?, ?, ?)", row)
        except apsw.ConstraintError:
            continue  # a STRICT table takes no other types
    return connection, read_definition(connection, "t", region="shop")


def only_what_nobody_reads_alike(error: UsageError, text: str) -> None:
    assert "is text, and" in str(error) or "digits, or is beyond" in str(error), (error, text)


def check(connection: apsw.Connection, bound: BoundFilter, text: str) -> None:
    images = connection.execute("SELECT rowid, a, b, c FROM t").fetchall()
    kept = [image[0] for image in images if bound.keeps(image)]
    for where in (bound.sql, text):
        assert kept == [one for (one,) in connection.execute(f"SELECT rowid FROM t WHERE {where}")], (where, images)


@given(
    types=st.lists(
        st.tuples(st.sampled_from(TYPES), st.sampled_from(COLLATIONS)).map(" ".join), min_size=3, max_size=3
    ),
    content=rows,
    text=conditions,
)
@example(types=["REAL", "TEXT", "BLOB"], content=[(2**53 + 1, "5", 5)], text="a = 9007199254740992 AND b = 5 AND c = 5")
@example(types=["INTEGER", "TEXT COLLATE NOCASE", ""], content=[(1, "a\0b", None)], text="b = 'A' OR NOT (c = 1)")
@example(types=["INTEGER", "TEXT", "NUMERIC"], content=[(5, "x", "5")], text="a IN (' 5', 7) AND c = '5.0'")
def test_it_says_what_sqlite_says(types: list[str], content: list[tuple[Any, ...]], text: str) -> None:
    connection, definition = tabled(types, content)
    try:
        bound = parse(text).bind(definition)
    except UsageError as error:
        only_what_nobody_reads_alike(error, text)
        return
    check(connection, bound, text)
    connection.close()


@given(
    types=st.lists(st.sampled_from(("INT", "INTEGER", "REAL", "TEXT", "BLOB", "ANY")), min_size=3, max_size=3),
    content=rows,
    text=conditions,
)
@settings(max_examples=50)
@example(types=["ANY", "ANY", "ANY"], content=[("5", 5, None)], text="a = 5 OR b = '5'")
def test_in_a_strict_table(types: list[str], content: list[tuple[Any, ...]], text: str) -> None:
    connection, definition = tabled(types, content, "STRICT")
    try:
        bound = parse(text).bind(definition)
    except UsageError as error:
        only_what_nobody_reads_alike(error, text)
        return
    check(connection, bound, text)
    connection.close()


def test_text_that_is_not_utf_8_is_compared_as_it_is() -> None:
    connection, definition = tabled(["TEXT", "", ""], [])
    connection.execute("INSERT INTO t VALUES (CAST(x'ff' AS TEXT), 1, 1), (CAST(x'61ff' AS TEXT), 2, 2)")
    raw = [[1, msgpack.ExtType(RAW_TEXT_CODE, b"\xff"), 1, 1], [2, msgpack.ExtType(RAW_TEXT_CODE, b"a\xff"), 2, 2]]
    for text in ("a > 'b'", "a BETWEEN 'a' AND 'b'", "a <> X'ff'", "NOT a > 'zz'"):
        kept = [image[0] for image in raw if parse(text).bind(definition).keeps(image)]
        assert kept == [one for (one,) in connection.execute(f"SELECT rowid FROM t WHERE {text}")], text


def test_a_key_that_is_the_rowid_stands_first_in_no_image() -> None:
    connection, definition = tabled(["INTEGER PRIMARY KEY", "TEXT", ""], [(7, "x", None), (8, "y", None)])
    bound = parse("a > 7").bind(definition)
    assert [bound.keeps(row) for row in connection.execute("SELECT * FROM t")] == [False, True]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a column was expected, not its end [character 1 of '']"),
        ("a =", "a literal: a number, 'text' or X'bytes' was expected, not its end [character 4 of"),
        ("a = NULL", "nothing is equal to NULL, nor unequal [character 5 of"),
        ("a == 3", "was expected, not '=' [character 4 of"),
        ("a LIKE 'x'", "was expected, not 'LIKE' [character 3 of"),
        ("a = 3 b", "AND, OR or the end was expected, not 'b' [character 7 of"),
        ("(a = 3", ") was expected, not its end"),
        ("a = 'x", 'cannot be read at "\'x" [character 5 of'),
        ("a = b", "a literal: a number, 'text' or X'bytes' was expected, not 'b'"),
        ("a = 5; DROP TABLE t", "cannot be read at '; DROP TABLE' [character 6 of"),
        ("a IN ()", "was expected, not ')'"),
        ("a NOT = 3", "IN or BETWEEN was expected, not '='"),
        ("a = 9223372036854775808", "a number of 64 bits was expected"),
        ("a = X'abc'", "an even number of hexadecimal digits was expected"),
        ("a = 1.2345678901234567", "has more than 15 digits, or is beyond 1e22"),
        ("a = 1e99", "has more than 15 digits, or is beyond 1e22"),
        ("a = '\n'", "holds a character that cannot be shown"),
        ("(" * (DEPTH_MAX + 2) + "a = 1", f"more than {DEPTH_MAX} parentheses and NOTs within"),
        ("NOT " * (DEPTH_MAX + 2) + "a = 1", f"more than {DEPTH_MAX} parentheses and NOTs within"),
        (f"a = '{'x' * CHARACTERS_MAX}'", f"{CHARACTERS_MAX} are the most"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_place(text: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert told in str(caught.value)


def test_what_says_nothing_of_the_table_is_refused_by_the_column() -> None:
    connection = apsw.Connection(":memory:")
    connection.create_collation("german", lambda one, other: (one > other) - (one < other))
    connection.execute("CREATE TABLE _replicate_table (name, version, partition, definition)")
    connection.execute("CREATE TABLE t (a TEXT, b TEXT COLLATE german, c AS (a || b))")
    definition = read_definition(connection, "t", region="shop")
    for text, told in (
        ("d = 1", "table t has no column d, or computes it [shop.t]. Name one of these: a, b"),
        ("c = 'x'", "table t has no column c, or computes it"),
        ("b = 'x'", "column b of table t is ordered by GERMAN, which only an application knows"),
        ("a > 1.5", "column a is text, and 1.5 a number with a fraction"),
    ):
        with pytest.raises(UsageError) as caught:
            parse(text).bind(definition)
        assert told in str(caught.value)
    assert parse("b IS NULL").bind(definition).keeps((1, "x", None))
