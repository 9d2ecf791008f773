"""Virtual tables: which can be replicated, where their content is, and that it is there when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from replicate.errors import NotSupportedError
from replicate.region.sqlite.virtual_tables import (
    MODULES,
    VIEWS,
    check_module,
    flush,
    forget_first_rows,
    shadow_tables,
    tables_together,
    virtual_tables,
)


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    made = apsw.Connection(":memory:")
    yield made
    made.close()


MADE = {
    "fts3": "f3 USING fts3 (text)",
    "fts4": "f4 USING FTS4 (text)",
    "fts5": '"f 5" USING fts5 (text)',
    "rtree": "r USING rtree (id, a, b)",
    "rtree_i32": "i USING rtree_i32 (id, a, b)",
    "geopoly": "g USING geopoly (a)",
}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_each_module_keeps_all_in_tables_that_are_named_so(connection: apsw.Connection, module: str) -> None:
    """Else its content would not travel: without its shadow tables there is nothing left."""
    before = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    connection.execute(f"CREATE VIRTUAL TABLE {MADE[module]}")
    (name,) = virtual_tables(connection)
    assert virtual_tables(connection) == {name: module}
    check_module(name, module, where="")
    made = {one for (one,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    assert shadow_tables(connection) == made - before - {name} != set()
    assert tables_together(connection) == [frozenset({name, *shadow_tables(connection)})]


def test_what_only_shows_another_one(connection: apsw.Connection) -> None:
    connection.execute("CREATE VIRTUAL TABLE f USING fts5 (text); CREATE VIRTUAL TABLE v USING fts5vocab (f, row)")
    assert virtual_tables(connection) == {"f": "fts5", "v": "fts5vocab"}
    for module in VIEWS:
        check_module("v", module, where="")


@pytest.mark.parametrize("module", ["csv", "dbstat", ""])
def test_others_are_refused(module: str) -> None:
    with pytest.raises(NotSupportedError, match=rf"virtual table x of module ({module}|\(none\)) cannot"):
        check_module("x", module, where="")


@pytest.mark.parametrize(
    ("told", "content"),
    [
        ("content='words'", {"words"}),
        ('CONTENT = "words", content_rowid=id', {"words"}),
        ("content=words", {"words"}),
        ("content=[words]", {"words"}),
        ("content=''", set()),
        ("content_rowid=id", set()),
    ],
)
def test_an_index_and_what_it_is_an_index_of(connection: apsw.Connection, told: str, content: set[str]) -> None:
    connection.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, text)")
    connection.execute(f"CREATE VIRTUAL TABLE f USING fts5 (text, {told})")
    (found,) = tables_together(connection)
    assert found == {"f", *shadow_tables(connection), *content}


def test_two_whose_names_begin_alike(connection: apsw.Connection) -> None:
    connection.execute("CREATE VIRTUAL TABLE a USING fts5 (t); CREATE VIRTUAL TABLE ab USING fts5 (t)")
    one, other = tables_together(connection)
    assert not one & other
    assert len(one) == len(other) == 6


def test_what_it_keeps_in_memory_is_written(connection: apsw.Connection) -> None:
    connection.execute("CREATE VIRTUAL TABLE f USING fts5 (text); BEGIN; INSERT INTO f VALUES ('hello')")
    before = connection.execute("SELECT count(*) FROM f_data").get
    flush(connection)
    assert connection.execute("SELECT count(*) FROM f_data").get > before
    assert connection.in_transaction
    connection.execute("ROLLBACK")


def test_the_first_rows_of_a_create_are_thrown_away(connection: apsw.Connection) -> None:
    connection.execute('BEGIN; CREATE VIRTUAL TABLE "f 5" USING fts5 (text)')
    shadows = sorted(shadow_tables(connection))
    forget_first_rows(connection, shadows)
    assert [connection.execute(f'SELECT count(*) FROM "{name}"').get for name in shadows] == [0] * len(shadows)
