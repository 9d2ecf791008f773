"""Which tables several suppliers may write, and which columns stand together."""

from __future__ import annotations

import re

import apsw
import pytest

from replicate.region.sqlite.mergeable import column_groups, unmergeable, unsummable
from replicate.region.sqlite.schema import read_definition


def connection_with(*statements: str) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for statement in statements:
        connection.execute(statement)
    return connection


def why(table: str, *statements: str, keys_chosen: bool = False) -> str:
    connection = connection_with(*statements)
    found = unmergeable(connection, read_definition(connection, table, region="main"), keys_chosen=keys_chosen)
    return "" if found is None else f"{found.why}|{found.do}"


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v)",
        "CREATE TABLE t (id TEXT PRIMARY KEY, v UNIQUE) WITHOUT ROWID",
        "CREATE TABLE t (id TEXT PRIMARY KEY, v UNIQUE)",
        "CREATE TABLE t (a INT, b, c AS (a + 1) STORED, PRIMARY KEY (a, b))",
        "CREATE TABLE t (a, b, v, PRIMARY KEY (a, b)) WITHOUT ROWID",
        "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, a, b, UNIQUE (a, b)) STRICT".replace(
            "a, b,", "a ANY, b ANY,"
        ),
    ],
)
def test_these_can(statement: str) -> None:
    assert why("t", statement) == ""


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("CREATE TABLE t (a, b)", r"hidden rowid alone.*\|Give it a primary key"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY DESC, v)", "hidden rowid alone"),
        ("CREATE TABLE t (id TEXT PRIMARY KEY, v, c AS (v + 1))", "VIRTUAL generated.*STORED"),
        ("CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, v)", "different texts for the same.*BINARY"),
        ("CREATE TABLE t (id INTEGER PRIMARY KEY, v)", "next free key.*AUTOINCREMENT.*--keys-chosen"),
        (
            "CREATE TABLE t (id TEXT COLLATE NOCASE PRIMARY KEY, v) WITHOUT ROWID",
            "different texts for the same.*BINARY",
        ),
    ],
)
def test_these_cannot_and_it_is_said_what_to_do(statement: str, told: str) -> None:

    assert re.search(told, why("t", statement))


def test_rows_without_a_key() -> None:
    told = why("t", "CREATE TABLE t (a TEXT, b, PRIMARY KEY (a, b))", "INSERT INTO t VALUES ('x', NULL)")
    assert "rows of it have no key: a, b is NULL" in told


def test_a_key_that_the_application_chooses() -> None:
    assert why("t", "CREATE TABLE t (id INTEGER PRIMARY KEY, v)", keys_chosen=True) == ""


@pytest.mark.parametrize("rowid", ["rowid", "_ROWID_", '"oid"'])
def test_a_unique_index_that_reads_the_hidden_rowid(rowid: str) -> None:
    index = f"CREATE UNIQUE INDEX by_rowid ON t (v) WHERE {rowid} > 7"
    assert "by_rowid reads the hidden rowid" in why("t", "CREATE TABLE t (id TEXT PRIMARY KEY, v)", index)
    assert why("t", "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT, v)", index) == "", "there it is the key"
    named = f"CREATE TABLE t (id TEXT PRIMARY KEY, v, {rowid})"
    assert why("t", named, index) == "", "there it is a column"


@pytest.mark.parametrize("index", ["(q)", "(p COLLATE NOCASE)", "(lower(q))", "(p) WHERE q <> 'x'", "((1))"])
def test_a_unique_index_over_columns_of_the_key_alone(index: str) -> None:
    """Two rows of it are two keys: neither is another state of the other, so neither can give way by its stamps."""
    made = f"CREATE UNIQUE INDEX i ON t {index}"
    found = why("t", "CREATE TABLE t (p TEXT, q TEXT, v, PRIMARY KEY (p, q)) WITHOUT ROWID", made)
    assert "columns of the key alone" in found


def test_the_content_of_a_virtual_table() -> None:
    assert "virtual table" in why("f_content", "CREATE VIRTUAL TABLE f USING fts5(a)", keys_chosen=True)


@pytest.mark.parametrize(
    ("columns", "groups"),
    [
        ("id TEXT PRIMARY KEY, a, b, c", (0, 1, 2, 3)),
        ("id TEXT PRIMARY KEY, a, b, c, UNIQUE (a, c)", (0, 1, 2, 1)),
        ("id TEXT PRIMARY KEY, a, b, c, FOREIGN KEY (b, c) REFERENCES t2 (x, y)", (0, 1, 2, 2)),
        ("id TEXT PRIMARY KEY, a, b, c, UNIQUE (a, b), FOREIGN KEY (b, c) REFERENCES t2 (x, y)", (0, 1, 1, 1)),
        ("id TEXT PRIMARY KEY, a, b, c CHECK (c > 0)", (0, 0, 0, 0)),
    ],
)
def test_what_one_constraint_names_is_one_group(columns: str, groups: tuple[int, ...]) -> None:
    connection = connection_with(f"CREATE TABLE t ({columns}) WITHOUT ROWID")
    assert column_groups(connection, read_definition(connection, "t", region="main"), by_row=False) == groups


@pytest.mark.parametrize(
    ("index", "groups"),
    [
        ("(c)", (0, 1, 2, 3)),
        ("(a, c)", (0, 1, 2, 1)),
        ("(a) WHERE c IS NULL", (0, 1, 2, 1)),
        ("(lower(a), b)", (0, 1, 1, 2)),
        ("(lower([A]) || `C`)", (0, 1, 2, 1)),
        ('(b) WHERE "a" > 0 AND id <> 7', (0, 0, 0, 1)),
        ("(g)", (0, 0, 0, 0)),
        ("(a) WHERE g > 7", (0, 0, 0, 0)),
    ],
)
def test_all_that_a_unique_index_reads_is_one_group(index: str, groups: tuple[int, ...]) -> None:
    """Its own name, and its table's, are nothing that it reads."""
    connection = connection_with(
        "CREATE TABLE b (id TEXT PRIMARY KEY, a, b, c, g AS (a + b) STORED)", f"CREATE UNIQUE INDEX c ON b {index}"
    )
    assert (
        column_groups(connection, read_definition(connection, "b", region="main", by_key=True), by_row=False) == groups
    )


def test_a_row_that_is_merged_whole_is_one_group() -> None:
    connection = connection_with("CREATE TABLE t (id TEXT PRIMARY KEY, a, b) WITHOUT ROWID")
    assert column_groups(connection, read_definition(connection, "t", region="main"), by_row=True) == (0, 0, 0)


def test_a_sum_is_a_group_of_its_own_whatever_else_is() -> None:
    connection = connection_with("CREATE TABLE t (id TEXT PRIMARY KEY, a, n INT, b CHECK (b > 0)) WITHOUT ROWID")
    definition = read_definition(connection, "t", region="main")
    for by_row in (True, False):
        assert column_groups(connection, definition, by_row=by_row, sums=["n"]) == (0, 0, -1, 0)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("n INTEGER", ""),
        ("n BIGINT, b CHECK (b > 0 AND (b < 7)), CHECK (length(c) < 9)", ""),
        ("m INTEGER", "has no column n"),
        ("n REAL", "only an INTEGER"),
        ("n", "only an INTEGER"),
        ("n INTEGER UNIQUE", "a unique index reads it"),
        ("n INTEGER REFERENCES other (id)", "foreign key"),
        ("n INTEGER CHECK (n >= 0)", "a CHECK reads it"),
        ('n INTEGER, CHECK (length(c) > 3), CHECK ((c > 0) AND "N" < 9)', "a CHECK reads it"),
        ("n INTEGER, g AS (n * 2) STORED CHECK (g > 0)", "a CHECK reads it"),
    ],
)
def test_which_columns_can_be_sums(columns: str, told: str) -> None:
    named, _, constraints = columns.partition(", CHECK")
    rest = f", CHECK{constraints}" if constraints else ""
    connection = connection_with(f"CREATE TABLE t (id TEXT PRIMARY KEY, {named}, c{rest}) WITHOUT ROWID")
    found = unsummable(connection, read_definition(connection, "t", region="main"), "n")
    assert (told in found) if told else not found


def test_a_key_is_no_sum() -> None:
    connection = connection_with("CREATE TABLE t (n INT, m INT, PRIMARY KEY (n, m)) WITHOUT ROWID")
    assert "key" in unsummable(connection, read_definition(connection, "t", region="main"), "n")
