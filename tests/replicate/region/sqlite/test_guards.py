"""Guards: every table has exactly its own, whatever becomes of its name; they keep strangers out, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import apsw
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from replicate.errors import NotSupportedError
from replicate.region.sqlite.guards import (
    guards_of,
    install_guards,
    refuse_own,
    register_guard,
    remove_guards,
)
from replicate.region.sqlite.sql.names import fold, quote

NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).filter(
    lambda name: not name.lower().startswith("sqlite_")
)


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    """Of a stranger: any client of SQLite."""
    made = apsw.Connection(":memory:")
    yield made
    made.close()


def triggers(connection: apsw.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'trigger'").get)


def try_to_write(connection: apsw.Connection, table: str) -> list[str]:
    """What is refused."""
    refused = {}
    connection.execute("BEGIN")
    for text in ("INSERT INTO {} VALUES (2)", "UPDATE {} SET a = 3", "DELETE FROM {}"):
        try:
            connection.execute(text.format(quote(table)))
        except apsw.SQLError as error:
            refused[text[:6]] = str(error)
    connection.execute("ROLLBACK")
    assert all("no such function: replicate_connect_is_required" in said for said in refused.values())
    return list(refused)


@settings(max_examples=50)
@given(st.lists(NAMES, min_size=1, max_size=3, unique_by=fold), NAMES)
@example(["o'r\"d", "t"], "T")
@example(["insert_t", "t"], "x")
def test_each_table_has_its_own(names: list[str], later: str) -> None:
    with closing(apsw.Connection(":memory:")) as connection:
        for name in names:
            connection.execute(f"CREATE TABLE {quote(name)} (a); INSERT INTO {quote(name)} VALUES (1)")
        assert install_guards(connection, names) == names
        version = connection.pragma("schema_version")
        assert install_guards(connection, names) == []
        assert connection.pragma("schema_version") == version, "what is there already is no change of the schema"
        for name in names:
            assert guards_of(connection, name)
            assert try_to_write(connection, name) == ["INSERT", "UPDATE", "DELETE"]

        if fold(later) not in map(fold, names[1:]) and later != names[0]:
            connection.execute(f"ALTER TABLE {quote(names[0])} RENAME TO {quote(later)}")
            assert not guards_of(connection, later), "they bear the old name"
            now = [later, *names[1:]]
            assert install_guards(connection, now) == [later]
            assert all(guards_of(connection, name) for name in now)
            assert triggers(connection) == 3 * len(now)
        remove_guards(connection)
        assert triggers(connection) == 0


def test_who_is_registered_writes(connection: apsw.Connection) -> None:
    connection.execute("CREATE TABLE t (a)")
    install_guards(connection, ["t"])
    assert try_to_write(connection, "t") == ["INSERT", "UPDATE", "DELETE"]
    register_guard(connection)
    connection.execute("PRAGMA trusted_schema = 0")
    assert try_to_write(connection, "t") == []


def test_a_table_that_is_guarded_no_longer(connection: apsw.Connection) -> None:
    connection.execute(
        "CREATE TABLE t (a); CREATE TABLE u (a); CREATE TRIGGER mine AFTER INSERT ON u BEGIN SELECT 1; END"
    )
    install_guards(connection, ["t", "u"])
    assert install_guards(connection, ["u"]) == []
    assert (guards_of(connection, "t"), guards_of(connection, "u"), triggers(connection)) == (False, True, 4)
    remove_guards(connection)
    assert triggers(connection) == 1, "an application's own one stays"


def test_a_guard_that_was_changed_is_made_again(connection: apsw.Connection) -> None:
    connection.execute("CREATE TABLE t (a)")
    install_guards(connection, ["t"])
    connection.execute("DROP TRIGGER _replicate_guard_insert_t; CREATE TRIGGER _replicate_guard_insert_t AFTER INSERT "
                       "ON t WHEN 0 BEGIN SELECT 1; END")  # fmt: skip
    assert not guards_of(connection, "t")
    assert install_guards(connection, ["t"]) == ["t"]
    assert try_to_write(connection, "t") == ["INSERT", "UPDATE", "DELETE"]


def test_those_of_an_attached_region(connection: apsw.Connection) -> None:
    connection.execute("ATTACH ':memory:' AS other; CREATE TABLE other.t (a); CREATE TABLE t (a)")
    assert install_guards(connection, ["t"], "other") == ["t"]
    assert install_guards(connection, ["t"], "other") == []
    assert not guards_of(connection, "t"), "that is main's"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("DELETE FROM _replicate_state", "_replicate_state"),
        ("CREATE TABLE _Replicate_x (a)", "_Replicate_x"),
        ("CREATE TEMP VIEW _replicate_x AS SELECT 1", "_replicate_x"),
        ("DROP TABLE _replicate_state", "_replicate_state"),
        ("CREATE INDEX i ON _replicate_state (a)", "_replicate_state"),
        ("ALTER TABLE _replicate_state ADD b", "_replicate_state"),
        ("CREATE TRIGGER x AFTER INSERT ON _replicate_state BEGIN SELECT 1; END", "_replicate_state"),
        ("INSERT INTO fires VALUES (1)", "_replicate_state"),
    ],
)
def test_an_application_does_not_change_our_bookkeeping(connection: apsw.Connection, text: str, name: str) -> None:
    connection.execute("CREATE TABLE _replicate_state (a); CREATE TABLE fires (a)")
    connection.execute("CREATE TRIGGER f AFTER INSERT ON fires BEGIN DELETE FROM _replicate_state; END")

    def ask(action: int, *names: str | None) -> int:
        refuse_own(action, *names)
        return apsw.SQLITE_OK

    connection.authorizer = ask
    connection.execute("SELECT * FROM _replicate_state; DELETE FROM fires; CREATE TABLE t (a)")
    with pytest.raises(NotSupportedError, match=f"{name} belongs to replication's bookkeeping") as caught:
        connection.execute(text)
    assert ("(trigger f would change it)" in str(caught.value)) is text.startswith("INSERT")


def test_what_stands_in_no_region_of_ours_may_bear_any_name(connection: apsw.Connection) -> None:
    refuse_own(apsw.SQLITE_CREATE_TABLE, "_replicate_x", None, "elsewhere", None)
    with pytest.raises(NotSupportedError):
        refuse_own(apsw.SQLITE_CREATE_TABLE, "_replicate_x", None, "elsewhere", None, {"elsewhere"})
