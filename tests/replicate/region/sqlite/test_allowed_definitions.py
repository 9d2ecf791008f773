"""Which schema changes there are: what no door sends is refused by name, and a counter's row travels exactly."""

from __future__ import annotations

from contextlib import closing

import apsw
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicate.errors import NotSupportedError
from replicate.region.sqlite.allowed_definitions import (
    Value,
    check_definable,
    check_travelling,
    counter_statements,
)
from replicate.region.sqlite.sql.statements import classify

TRAVELS = (
    "CREATE TABLE t (a)",
    "CREATE TABLE main.t (a)",
    "ALTER TABLE t ADD b",
    "DROP INDEX i",
    "CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM u; SELECT 1; END",
    "CREATE VIRTUAL TABLE words USING fts5 (text)",
)


@pytest.mark.parametrize("text", TRAVELS)
def test_what_a_door_sends(text: str) -> None:
    check_travelling(text, where="main.db")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("CREATE TABLE t (a); DROP TABLE u", "several statements"),
        ("CREATE TEMP TABLE t (a)", "a temporary object"),
        ("CREATE TABLE temp.t (a)", "a temporary object|database temp"),
        ("CREATE TABLE other.t (a)", "database other"),
        ("CREATE TABLE t AS SELECT 1", "a CREATE TABLE AS"),
        ("CREATE TABLE t (a\0)", "a null character"),
        ("DELETE FROM t", "DELETE"),
        ("INSERT INTO t VALUES (1)", "INSERT"),
        ("SELECT 1", "SELECT"),
        ("COMMIT", "COMMIT"),
        ("ATTACH 'x' AS y", "ATTACH"),
        ("VACUUM", "VACUUM"),
        ("", "no statement"),
        ("PRAGMA journal_mode = DELETE", "PRAGMA journal_mode"),
        ("PRAGMA writable_schema = 1", "PRAGMA writable_schema"),
        ("DELETE FROM main.sqlite_sequence", "DELETE"),
        ("DELETE FROM main.sqlite_sequence WHERE name IS 't' OR 1", "DELETE"),
        ("DELETE FROM main.sqlite_sequence WHERE name IS 't'; DROP TABLE t", "several statements"),
        ("INSERT INTO main.sqlite_sequence (name, seq) VALUES ('t', (SELECT 1))", "INSERT"),
    ],
)
def test_what_no_door_sends(text: str, what: str) -> None:
    with pytest.raises(NotSupportedError, match=f": ({what})") as caught:
        check_travelling(text, where="main.db")
    assert caught.value.where == ("" if what.startswith("PRAGMA") else "main.db")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE _replicate_x (a)",
        "CREATE VIEW v AS SELECT * FROM _Replicate_state",
        "CREATE TRIGGER x AFTER INSERT ON t BEGIN DELETE FROM _replicate_ring; END",
        'CREATE VIRTUAL TABLE w USING fts5 (text, content="_replicate_state")',
    ],
)
def test_our_bookkeeping_is_named_nowhere(text: str) -> None:
    for check in (lambda: check_definable(classify(text), where=""), lambda: check_travelling(text, where="")):
        with pytest.raises(NotSupportedError, match=r"belongs to replication's bookkeeping"):
            check()


def test_a_module_out_of_reach() -> None:
    with pytest.raises(NotSupportedError, match="of module csv cannot be replicated"):
        check_travelling("CREATE VIRTUAL TABLE x USING csv (filename=y)", where="")


VALUES = (
    st.none()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
    | st.binary(max_size=8)
)


@given(VALUES, VALUES)
@example("it's; DROP TABLE t --", 5)
@example("a", 1e300)
@example("a", -(2**63))
@example("a", -0.0)
@example(5, "x'00'")
def test_a_counter_travels_exactly(name: Value, seq: Value) -> None:
    texts = counter_statements(name, seq, where="main.db")
    with closing(apsw.Connection(":memory:")) as connection:
        connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO sqlite_sequence "
                           "VALUES ('other', 1)")  # fmt: skip
        connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (name, 7))
        for text in texts:
            check_travelling(text, where="main.db")
            connection.execute(text)
        found = list(connection.execute("SELECT name, seq FROM sqlite_sequence WHERE name IS ?", (name,)))
        assert [list(map(repr, row)) for row in found] == [[repr(name), repr(seq)]]
        for text in counter_statements(name, where="main.db"):
            check_travelling(text, where="main.db")
            connection.execute(text)
        left = [row[0] for row in connection.execute("SELECT name FROM sqlite_sequence")]
        assert left == ([] if name == "other" else ["other"])


def test_a_name_that_no_literal_holds() -> None:
    with pytest.raises(NotSupportedError, match=r"the counter of 'a\\x00b' in sqlite_sequence cannot travel"):
        counter_statements("a\0b", 5, where="main.db")
