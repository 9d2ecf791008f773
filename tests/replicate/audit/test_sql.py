"""Undo and redo, run as an operator runs them: what was taken back is as before, what was done again as after."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicate
from replicate.audit.changes import ChangeRecord, records_backwards, records_of
from replicate.audit.query import Query
from replicate.audit.sources import find_in_instance
from replicate.audit.sql import Script, literal
from replicate.errors import NotSupportedError, UsageError
from replicate.instance.instance import Instance
from tests.harness import instances

SCRIPT = """
    CREATE TABLE plain (id INTEGER PRIMARY KEY, name TEXT, amount REAL, any_, body BLOB);
    CREATE TABLE hidden (k, rowid TEXT, g AS (k), s AS (k || 'x') STORED);
    CREATE TABLE texts (k TEXT COLLATE NOCASE, n INT, "v ?1'q" TEXT COLLATE RTRIM, PRIMARY KEY (k, n)) WITHOUT ROWID;
    CREATE TABLE strict_ (k TEXT PRIMARY KEY, n INT, a ANY) STRICT;
    CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, u INT UNIQUE CHECK (u > 0));
    CREATE TABLE child (id INTEGER PRIMARY KEY, parent INT REFERENCES counted (id) ON DELETE CASCADE);
"""
TABLES = {
    "plain": "id, name, amount, any_, body",
    "hidden": "_rowid_, k, rowid",
    "texts": 'k, n, "v ?1\'q"',
    "strict_": "k, n, a",
    "counted": "id, u",
    "child": "id, parent",
}


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return instances.make_primary(tmp_path / "alpha", script=SCRIPT)


def state(connection: Any) -> dict[str, list[str]]:
    """Every row, each value with its type to the last bit."""
    return {
        table: sorted(
            repr([(type(value), value) for value in row])
            for row in connection.execute(f"SELECT {columns} FROM {table}")
        )
        for table, columns in TABLES.items()
    }


def a_value(dice: random.Random) -> Any:
    return dice.choice(
        (
            None, 0, 1, -(2**63), 2**63 - 1, 1.0, 0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf,
            dice.random() * 10 ** dice.randint(-20, 20), "", "x", "it's", "a\0b", "-- ;\n", "😀", b"", b"\x00'\xff",
        )
    )  # fmt: skip


def work(connection: Any, dice: random.Random, transactions: int) -> None:
    """Statements of every kind, over every table; what a constraint refuses is not done."""
    for _ in range(transactions):
        with connection:
            connection.execute("PRAGMA foreign_keys = ON")
            for _ in range(dice.randint(1, 6)):
                number, value = dice.randint(1, 20), a_value(dice)
                text, values = dice.choice(
                    (
                        ("INSERT OR REPLACE INTO plain VALUES (?, ?, ?, ?, ?)", (number, *map(a_value, [dice] * 4))),
                        ("UPDATE plain SET any_ = ?, name = 'y' || id WHERE id % 3 = ?", (value, number % 3)),
                        ("UPDATE plain SET id = id + 100 WHERE id = ?", (number,)),
                        ("DELETE FROM plain WHERE id % 7 = ?", (number % 7,)),
                        ("INSERT INTO hidden (k, rowid) VALUES (?, ?)", (value, a_value(dice))),
                        ("UPDATE hidden SET k = ? WHERE _rowid_ % 2 = ?", (value, number % 2)),
                        ("DELETE FROM hidden WHERE _rowid_ % 9 = ?", (number % 9,)),
                        ("INSERT OR IGNORE INTO texts VALUES (?, ?, ?)", (f"K{number}", number, f"v{number}  ")),
                        ("UPDATE texts SET k = lower(k), \"v ?1'q\" = 'v ' WHERE n % 3 = ?", (number % 3,)),
                        ("INSERT OR REPLACE INTO strict_ VALUES (?, ?, ?)", (f"k{number}", number, value)),
                        ("UPDATE strict_ SET a = ? WHERE n > ?", (value, number)),
                        ("INSERT OR IGNORE INTO counted (u) VALUES (?)", (number,)),
                        ("INSERT OR IGNORE INTO child SELECT ?, max(id) FROM counted", (number,)),
                        ("DELETE FROM counted WHERE u = ?", (number,)),
                    )
                )
                try:
                    connection.execute(text, values)
                except replicate.IntegrityError:
                    pass


def script(primary: Instance, query: Query, *, is_undo: bool, with_triggers: bool = False) -> str:
    found = find_in_instance(primary, query)
    known = found.known().in_force()
    in_force = {(one.region, one.table): one for one in known.values()}
    made = Script(in_force, is_undo=is_undo, with_triggers=with_triggers)

    def records() -> Iterator[ChangeRecord]:
        for match in found.backwards() if is_undo else iter(found):
            yield from records_backwards(match) if is_undo else records_of(match)

    made.check(records())
    return "\n".join(made.lines(records()))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_undo_restores_and_redo_does_it_again(primary: Instance, seed: int) -> None:
    dice = random.Random(seed)
    with closing(replicate.connect(str(primary.path))) as connection:
        work(connection, dice, 10)
        before, first = state(connection), connection.last_seqno + 1
        work(connection, dice, 25)
        after, last = state(connection), connection.last_seqno
        assert before != after
        query = Query(first, last)
        connection.executescript(script(primary, query, is_undo=True))
        assert state(connection) == before
        assert connection.last_seqno == last + 1
        connection.executescript(script(primary, query, is_undo=False))
        assert state(connection) == after
        connection.executescript(script(primary, Query(last + 1, last + 2), is_undo=True))  # what a script did, too
        assert state(connection) == after


def test_a_selection_alone_is_taken_back(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.execute("INSERT INTO plain (id, name) VALUES (1, 'a'), (2, 'b')")
            connection.execute("INSERT INTO strict_ VALUES ('k', 1, 1)")
        with connection:
            connection.execute("UPDATE plain SET name = 'z'")
            connection.execute("DELETE FROM strict_")
        connection.executescript(script(primary, Query(tables=("plain",), key=("2",), ops=("update",)), is_undo=True))
        assert connection.execute("SELECT id, name FROM plain").fetchall() == [(1, "z"), (2, "b")]
        assert connection.execute("SELECT count(*) FROM strict_").fetchone() == (0,)


@pytest.mark.parametrize("late", ["UPDATE plain SET amount = 2.0 WHERE id = 2", "DELETE FROM plain WHERE id = 2"])
def test_a_script_stops_where_a_row_is_not_as_it_was(primary: Instance, late: str) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.execute("INSERT INTO plain (id, name) VALUES (1, 'a'), (2, 'b')")
        first = connection.last_seqno + 1
        with connection:
            connection.execute("UPDATE plain SET name = 'z'")
        with connection:
            connection.execute(late)
        before = state(connection)
        with pytest.raises(replicate.DatabaseError, match="integer overflow"):
            connection.executescript(script(primary, Query(first, first), is_undo=True))
        connection.rollback()
        assert state(connection) == before


def test_a_large_transaction_is_taken_back(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.executemany("INSERT INTO plain (id, name) VALUES (?, 'a')", [(n,) for n in range(1, 301)])
        before, first = state(connection), connection.last_seqno + 1
        with connection:
            connection.execute("UPDATE plain SET id = id + 1000, body = zeroblob(2000)")
            connection.execute("DELETE FROM plain WHERE id % 3 = 0")
            connection.log_comment("a large one")
        (match,) = find_in_instance(primary, Query(first))
        assert match.large is not None
        after = state(connection)
        connection.executescript(script(primary, Query(first), is_undo=True))
        assert state(connection) == before
        connection.executescript(script(primary, Query(comment="a large one"), is_undo=False))
        assert state(connection) == after


def test_a_foreign_key_that_would_be_broken_stops_it(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.execute("INSERT INTO counted VALUES (1, 1)")
        first = connection.last_seqno
        with connection:
            connection.execute("INSERT INTO child VALUES (1, 1)")
        with closing(replicate.connect(str(primary.path))) as other:
            with pytest.raises(replicate.DatabaseError, match="integer overflow"):
                other.executescript(script(primary, Query(first, first), is_undo=True))
        assert connection.execute("SELECT count(*) FROM counted").fetchone() == (1,)


MISMATCH = """
    CREATE TABLE named (id INTEGER PRIMARY KEY, n);
    CREATE TABLE by_name (id INTEGER PRIMARY KEY, n REFERENCES named (n));
"""


def test_a_foreign_key_elsewhere_that_sqlite_cannot_check_is_in_no_way(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.executescript(MISMATCH)
        with connection:
            connection.execute("INSERT INTO counted VALUES (1, 1)")
            connection.execute("INSERT INTO child VALUES (1, 1)")
        with connection:
            connection.execute("DELETE FROM child")
        connection.executescript(script(primary, Query(connection.last_seqno), is_undo=True))
        assert connection.execute("SELECT * FROM child").fetchall() == [(1, 1)]


def test_one_that_is_mended_hides_no_other_that_is_broken(primary: Instance) -> None:
    """The child is orphaned, and another table's row is put right by the same script."""
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.execute("CREATE TABLE other (id INTEGER PRIMARY KEY, parent INT REFERENCES counted (id))")
        connection.execute("PRAGMA foreign_keys = OFF")
        first = connection.last_seqno + 1
        with connection:
            connection.execute("INSERT INTO counted VALUES (1, 1)")
            connection.execute("INSERT INTO other VALUES (1, 77)")
        last = connection.last_seqno
        with connection:
            connection.execute("INSERT INTO child VALUES (1, 1)")
        with pytest.raises(replicate.DatabaseError, match="integer overflow"):
            connection.executescript(script(primary, Query(first, last), is_undo=True))
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM counted").fetchone() == (1,)


SEARCHED = """
    CREATE TABLE docs (id INTEGER PRIMARY KEY, body TEXT);
    CREATE VIRTUAL TABLE found USING fts5 (body, content = 'docs', content_rowid = 'id');
    CREATE TRIGGER brought AFTER INSERT ON docs BEGIN INSERT INTO found (rowid, body) VALUES (new.id, new.body); END;
    CREATE TRIGGER changed AFTER UPDATE ON docs BEGIN
        INSERT INTO found (found, rowid, body) VALUES ('delete', old.id, old.body);
        INSERT INTO found (rowid, body) VALUES (new.id, new.body);
    END;
"""


def test_what_triggers_wrote_is_not_done_twice(primary: Instance) -> None:
    """A full-text index would be damaged by it: its rows are taken back, and then its triggers do that again."""
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.executescript(SEARCHED)
        with connection:
            connection.execute("INSERT INTO docs (body) VALUES ('alpha beta'), ('gamma')")
        with connection:
            connection.execute("UPDATE docs SET body = 'delta' WHERE id = 1")
        last = connection.last_seqno

        def found(word: str) -> Any:
            connection.execute("INSERT INTO found (found, rank) VALUES ('integrity-check', 1)")
            return connection.execute("SELECT rowid FROM found WHERE found MATCH ?", (word,)).fetchall()

        with pytest.raises(replicate.DatabaseError, match="integer overflow"):
            connection.executescript(script(primary, Query(last, last), is_undo=True))
        connection.rollback()
        assert found("delta") == [(1,)]
        connection.rollback()
        docs = Query(last, last, tables=("docs",))
        with pytest.raises(replicate.DatabaseError, match="integer overflow"):
            connection.executescript(script(primary, docs, is_undo=True))
        connection.rollback()
        connection.executescript(script(primary, docs, is_undo=True, with_triggers=True))
        assert (found("alpha"), found("delta"), found("gamma")) == ([(1,)], [], [(2,)])


def test_a_trigger_that_writes_the_row_itself_stops_it(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.executescript(
            "CREATE TABLE tallied (id INTEGER PRIMARY KEY, v, n); CREATE TRIGGER tally AFTER UPDATE OF v ON tallied "
            "BEGIN UPDATE tallied SET n = n + 1 WHERE id = new.id; END;"
        )
        with connection:
            connection.execute("INSERT INTO tallied VALUES (1, 'a', 0)")
        with connection:
            connection.execute("UPDATE tallied SET v = 'b'")
        with pytest.raises(replicate.DatabaseError, match="integer overflow"):
            connection.executescript(script(primary, Query(connection.last_seqno), is_undo=True))
        connection.rollback()
        assert connection.execute("SELECT * FROM tallied").fetchall() == [(1, "b", 1)]


def test_a_generated_column_may_be_called_as_the_hidden_rowid_is(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        connection.execute("CREATE TABLE ids (k, rowid AS (k))")
        first = connection.last_seqno + 1
        with connection:
            connection.execute("INSERT INTO ids (k) VALUES (7), (1), (7)")
        with connection:
            connection.execute("DELETE FROM ids WHERE _rowid_ = 3")
        rows = "SELECT _rowid_, k FROM ids"
        connection.executescript(script(primary, Query(first + 1), is_undo=True))
        assert connection.execute(rows).fetchall() == [(1, 7), (2, 1), (3, 7)]
        connection.executescript(script(primary, Query(first), is_undo=True))
        assert connection.execute(rows).fetchall() == []


def test_schema_changes_and_rows_from_before_them_are_refused_by_number(primary: Instance) -> None:
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.execute("INSERT INTO plain (id, name) VALUES (1, 'a')")
        row = connection.last_seqno
        with connection:
            connection.execute("ALTER TABLE plain ADD COLUMN more")
        with pytest.raises(NotSupportedError, match=f"table plain was changed after transaction {row}"):
            script(primary, Query(row, row), is_undo=True)
        for is_undo in (True, False):
            with pytest.raises(NotSupportedError, match=f"transaction {row + 1} changes the schema"):
                script(primary, Query(row + 1), is_undo=is_undo)


def test_rows_of_two_regions_are_two_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    made = instances.make_primary(tmp_path / "alpha", regions=("main", "stock"))
    for region in ("main", "stock"):
        with closing(replicate.connect(str(made.path), region)) as connection, connection:
            connection.execute("INSERT INTO t VALUES (1, 'x')")
    with pytest.raises(UsageError, match="regions stock and main"):
        script(made, Query(ops=("insert",)), is_undo=True)
    assert "DELETE FROM" in script(made, Query(ops=("insert",), tables=("stock.t",)), is_undo=True)


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8")),
    st.binary(),
)


@settings(max_examples=500)
@given(VALUES)
def test_a_literal_is_the_value_to_the_last_bit(value: Any) -> None:
    connection = apsw.Connection(":memory:")
    (found,) = connection.execute(f"SELECT {literal(value)}").fetchall()[0]
    assert type(found) is type(value)
    assert found == value
    if isinstance(value, float):  # -0.0, too
        assert struct.pack(">d", found) == struct.pack(">d", value)
    connection.close()


def test_a_script_is_read_from_a_file_as_it_was_written(primary: Instance, tmp_path: Path) -> None:
    """Python reads other ends of lines as its own, and a terminal obeys what it is shown."""
    texts = ("a\r\nb", "\r", "\x1b[31mred", "\x9b", "tab\tand\nline", "é")
    with closing(replicate.connect(str(primary.path))) as connection:
        with connection:
            connection.executemany("INSERT INTO plain (name) VALUES (?)", [(text,) for text in texts])
        with connection:
            connection.execute("DELETE FROM plain")
        file = tmp_path / "undo.sql"
        made = script(primary, Query(connection.last_seqno), is_undo=True)
        file.write_text(made, encoding="utf-8", newline="")
        connection.executescript(file.read_text(encoding="utf-8"))
        assert connection.execute("SELECT name FROM plain ORDER BY id").fetchall() == [(text,) for text in texts]
    assert all(letter.isprintable() or letter in "\n\t" for letter in made)


def test_text_that_is_not_utf_8() -> None:
    connection = apsw.Connection(":memory:")
    made = literal(msgpack.ExtType(1, b"\xff\x00'"))
    assert connection.execute(f"SELECT typeof({made}), CAST({made} AS BLOB)").fetchall() == [("text", b"\xff\x00'")]
    connection.close()
