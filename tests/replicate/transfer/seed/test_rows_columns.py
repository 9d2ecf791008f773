"""transfer/seed/rows.py with columns: random tables, lists, conditions and histories against SQL, and what leaves.

What is not listed bears a mark in each value; the secondary's files are searched for it.
"""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import apsw
import pytest

from replicate.admin import partitions, subscriptions
from replicate.compare.compare import compare
from replicate.errors import UsageError
from replicate.instance.file import WITH_COLUMNS
from replicate.model.column_list import blank_of
from replicate.model.table_wish import TableWish
from replicate.model.transaction import Column
from replicate.region.sqlite.digest import TableVerdict
from replicate.transfer.container import ROWS_FORMAT_VERSION
from replicate.transfer.seed.file import SeedReader
from replicate.transfer.seed.install import install_file
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.partition import load_from_instance
from replicate.transfer.seed.rows import is_cut_as_wanted, tables_by_partition
from tests.harness.pair import Pair

MARK = "never leaves"
PERSON = """
CREATE TABLE person (id INTEGER PRIMARY KEY, name TEXT, mail TEXT NOT NULL, age INTEGER, UNIQUE (name, age));
CREATE INDEX by_mail ON person (mail);
CREATE TABLE other (id INTEGER PRIMARY KEY, v);
"""


@pytest.fixture(autouse=True)
def _pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair.create(tmp_path, PERSON)


def write(pair: Pair, *texts: str) -> None:
    with closing(pair.connect()) as connection:
        for text in texts:
            connection.execute(text)
        connection.commit()


def query(instance: Any, text: str) -> list[tuple[Any, ...]]:
    (entry,) = instance.regions
    with closing(apsw.Connection(str(entry.path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        return connection.execute(text).fetchall()


def files_with(directory: Path, mark: str = MARK) -> list[str]:
    """Files of the secondary, those of its journal and its WALs among them, with that mark in any encoding we have."""
    found = sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
    assert found
    return [str(path) for path in found if mark.encode() in path.read_bytes()]


def equal(pair: Pair) -> None:
    for one, other in ((pair.primary, pair.secondary), (pair.secondary, pair.primary)):
        found = compare(one, other, timeout_s=60)
        assert found.equal, found
        (region,) = found.regions
        assert region.comparison is not None
        assert {table.status for table in region.comparison.tables} == {TableVerdict.EQUAL}


# Random ones.


class Drawn(NamedTuple):
    """A table; `columns`: (name, type, NOT NULL) of those beside the key."""

    sql: str
    key: tuple[str, ...]
    has_rowid: bool
    strict: bool
    columns: tuple[tuple[str, str, bool], ...]


def drawn(dice: Random) -> Drawn:
    strict = dice.random() < 0.3
    kinds = ["TEXT", "INTEGER", "BLOB", "REAL"] + (["ANY"] if strict else ["", "NUMERIC", "VARCHAR(9) COLLATE NOCASE"])
    columns = tuple((f"c{at}", dice.choice(kinds), dice.random() < 0.4) for at in range(dice.choice((2, 3, 5))))
    way = dice.randrange(4)
    keys: list[str] = [["k INTEGER PRIMARY KEY"], ["k INTEGER", "l TEXT"], ["k INT", "l TEXT"], ["k INT"]][way]
    more = ["PRIMARY KEY (k, l)"] if way in (1, 2) else []
    parts = [*keys, *(f"{name} {kind}{' NOT NULL' * strictly}" for name, kind, strictly in columns)]
    if dice.random() < 0.5:
        parts.insert(dice.randrange(len(parts)), parts.pop())  # a column that may be left out stands in the middle
    options = ", ".join(["WITHOUT ROWID"] * (way == 1) + ["STRICT"] * strict)
    names = tuple(part.split()[0] for part in parts if part.split()[0] not in ("k", "l"))
    by_name = {name: (name, kind, strictly) for name, kind, strictly in columns}
    return Drawn(
        f"CREATE TABLE thing ({', '.join([*parts, *more])}) {options}",
        () if way == 3 else ("k",) if way == 0 else ("k", "l"),
        way in (2, 3),
        strict,
        tuple(by_name[name] for name in names),
    )


def a_value(dice: Random, kind: str, *, strictly: bool, marked: bool) -> Any:
    if not strictly and dice.random() < 0.2:
        return None
    number = dice.randrange(12)
    base = kind.split()[0] if kind else ""
    if base == "INTEGER":
        return number
    if base == "REAL":
        return number / 4
    text = f"{MARK} {number}" if marked else dice.choice(("x", "X", "y", ""))
    if base == "BLOB":
        return text.encode()
    return text if base == "TEXT" or marked else dice.choice((number, text))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(8))
def test_random_tables_lists_conditions_and_histories(tmp_path: Path, number: int) -> None:
    dice = Random(number)
    table = drawn(dice)
    pair = Pair.create(tmp_path, f"{table.sql}; CREATE TABLE other (id INTEGER PRIMARY KEY, v);")
    others = [name for name, *_ in table.columns]
    listed = [*table.key, *(name for name in others if dice.random() < 0.5)]
    listed = listed or ["k"]
    marked = {name for name in others if name not in listed}
    dice.shuffle(listed)
    on = dice.choice([name for name in listed if name in ("k", *others)])
    condition = dice.choice(("", f"{on} IS NOT NULL", "k < 9" if "k" in listed else f"NOT {on} IS NULL"))
    wish = TableWish(tuple(listed), condition)

    def a_row() -> list[Any]:
        keys = [dice.randrange(16), dice.choice("abc")][: max(1, len(table.key))]
        return [
            *keys,
            *(a_value(dice, kind, strictly=strictly, marked=name in marked) for name, kind, strictly in table.columns),
        ]

    names = [*(table.key or ("k",)), *others]

    def a_transaction(connection: Any) -> None:
        for _ in range(dice.choice((1, 2, 6))):
            row, key = a_row(), dice.randrange(16)
            with suppress(Exception):  # a key that is there, a NULL that may not be
                what = dice.randrange(6)
                if what < 2:
                    marks = ", ".join("?" * len(names))
                    connection.execute(f"INSERT INTO thing ({', '.join(names)}) VALUES ({marks})", row)
                elif what == 2:
                    connection.execute("DELETE FROM thing WHERE k % 5 = ?", (key % 5,))
                elif what == 3:
                    connection.execute("UPDATE thing SET k = ? WHERE k = ?", (dice.randrange(16), key))
                else:
                    one = dice.randrange(len(names) - len(others), len(names))
                    connection.execute(f"UPDATE thing SET {names[one]} = ? WHERE k % 3 = ?", (row[one], key % 3))
            connection.execute("INSERT INTO other (v) VALUES (?)", (key,))
        connection.commit()

    left = {name: (kind, strictly) for name, kind, strictly in table.columns if name in marked}
    left |= {name: ("", False) for name in ("k",) if name not in listed and not table.key}

    def here() -> None:
        every = [name for (name,) in query(pair.primary, "SELECT name FROM pragma_table_info('thing') ORDER BY cid")]
        blanks = {
            name: blank_of(Column(name, kind, strictly, "BINARY"), strict=table.strict)
            for name, (kind, strictly) in left.items()
        }
        sql = {None: "NULL", "": "''", b"": "x''", 0: "0"}
        shown = ", ".join(
            (["rowid"] * table.has_rowid)
            + [
                f"{sql[blanks[name]]}, typeof({sql[blanks[name]]})" if name in blanks else f"{name}, typeof({name})"
                for name in every
            ]
        )
        whole = ", ".join((["rowid"] * table.has_rowid) + [f"{name}, typeof({name})" for name in every])
        where = f" WHERE {condition}" if condition else ""
        assert sorted(map(repr, query(pair.secondary, f"SELECT {whole} FROM thing"))) == sorted(
            map(
                repr,
                [
                    _as_real(row, every, blanks, table)
                    for row in query(pair.primary, f"SELECT {shown} FROM thing{where}")
                ],
            )
        )
        assert query(pair.secondary, "SELECT * FROM other") == query(pair.primary, "SELECT * FROM other")
        equal(pair)
        assert not marked or not files_with(pair.secondary.path)

    with closing(pair.connect()) as connection:
        for _ in range(10):
            a_transaction(connection)
        subscriptions.filter_(pair.secondary, "thing", wish.text)
        pair.seed()
        here()
        for step in range(5):
            for _ in range(6):
                a_transaction(connection)
            if step == 1:
                default = dice.choice(("", " DEFAULT 'so'"))
                connection.execute(f"ALTER TABLE thing ADD COLUMN more TEXT{default}")
                connection.execute("UPDATE thing SET more = ? WHERE k % 2", (f"{MARK} more",))
                connection.commit()
                left["more"] = ("TEXT", False)
            if step == 2:
                connection.execute("CREATE INDEX by_more ON thing (more)")
                connection.execute("ALTER TABLE thing RENAME COLUMN more TO most")
                connection.commit()
                left["most"] = left.pop("more")
            if step == 3:
                connection.execute("DROP INDEX by_more")
                connection.execute("ALTER TABLE thing DROP COLUMN most")
                connection.commit()
                del left["most"]
            if step == 4:
                for at in range(9_000):
                    connection.execute("INSERT INTO other (v) VALUES (?)", (at,))
                a_transaction(connection)
            pair.catch_up()
            here()


def _as_real(row: tuple[Any, ...], every: list[str], blanks: dict[str, Any], table: Drawn) -> tuple[Any, ...]:
    """A blank of REAL is 0.0, which the dictionary above takes for 0."""
    made = list(row)
    for at, name in enumerate(every):
        if type(blanks.get(name)) is float:
            made[table.has_rowid + 2 * at] = 0.0
            made[table.has_rowid + 2 * at + 1] = "real"
    return tuple(made)


# Single ones.


def test_a_seed_over_the_connection_is_made_without_them(pair: Pair) -> None:
    """And without what ANALYZE has seen of them, nor what was there once."""
    write(pair, *(f"INSERT INTO person VALUES ({at}, 'n{at}', '{MARK} {at}', {at})" for at in range(50)), "ANALYZE")
    write(pair, f"UPDATE person SET mail = '{MARK} again' WHERE id % 2", "DELETE FROM person WHERE id = 3")
    assert query(pair.primary, "SELECT count(*) FROM sqlite_stat4 WHERE tbl = 'person'") != [(0,)]
    path = pair.directory / "west.seed"
    make_seed(pair.primary, "west", path, rows={("", "person"): "COLUMNS (id, name, age)"})
    with SeedReader(path) as reader:
        assert reader.header.version == ROWS_FORMAT_VERSION
        assert reader.header.rows == {("main", "person"): "COLUMNS (id, name, age)"}
    assert MARK.encode() not in path.read_bytes()
    subscriptions.filter_(pair.secondary, "person", "COLUMNS (id, name, age)")
    assert b'"format": 11' in (pair.secondary.path / "instance.json").read_bytes()
    assert WITH_COLUMNS == 11
    install_file(pair.secondary, path)
    pair.secondary.reload()
    assert {mail for (mail,) in query(pair.secondary, "SELECT mail FROM person")} == {""}
    write(pair, f"UPDATE person SET name = 'z', mail = '{MARK} yet' WHERE id = 5", "DELETE FROM person WHERE id = 7")
    pair.catch_up()
    equal(pair)
    assert not files_with(pair.secondary.path)
    assert files_with(pair.primary.path)


def test_a_copy_that_was_made_for_more_is_not_sent_again(pair: Pair) -> None:
    path = pair.directory / "west.seed"
    make_seed(pair.primary, "west", path, rows={("main", "person"): "COLUMNS (id, name)", ("", "other"): "v = 1"})
    with SeedReader(path) as reader:
        header = reader.header
    for rows, is_so in (
        ({}, True),
        ({("main", "person"): "COLUMNS (id, name)"}, True),
        ({("", "person"): "COLUMNS (id, name)", ("main", "other"): "v = 1"}, True),
        ({("side", "person"): "COLUMNS (id)"}, True),  # a region that it does not have
        ({("main", "person"): "COLUMNS (id)"}, False),
        ({("", "person"): "COLUMNS (id)", ("", "other"): "v = 1"}, False),
        ({("main", "other"): "v = 2"}, False),
        ({("main", "person"): "v = 1"}, False),
        ({("", "more"): "COLUMNS (id)"}, False),
    ):
        assert is_cut_as_wanted(header, rows) is is_so, rows


def test_rows_that_were_taken_out_leave_no_samples_either(pair: Pair) -> None:
    write(pair, *(f"INSERT INTO person VALUES ({at}, 'n', '{MARK} {at}', {at})" for at in range(50)), "ANALYZE")
    path = pair.directory / "west.seed"
    make_seed(pair.primary, "west", path, rows={("", "person"): "id = 999"})
    assert MARK.encode() not in path.read_bytes()


REFUSED = {
    "COLUMNS (name)": "column id is of the key",
    "COLUMNS (id, weight)": "has no column weight",
    "COLUMNS (id, name) WHERE mail = 'x'": "the condition names column mail",
    "COLUMNS (id, name, age)": "column mail is never NULL, and keeps rows unique",
    "COLUMNS (id, mail)": "column name is in a CHECK",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_left_out_is_refused_before_anything_is_given_up(pair: Pair, text: str) -> None:
    """When it is said, where the table is here; else by the copy."""
    write(
        pair,
        "DROP TABLE person",
        "CREATE TABLE person (id INTEGER PRIMARY KEY, name CHECK (name <> ''), mail NOT NULL UNIQUE, age)",
    )
    path = pair.directory / "west.seed"
    subscriptions.filter_(pair.secondary, "person", text)
    for way in (
        lambda: make_seed(pair.primary, "west", path, rows={("", "person"): text}),
        lambda: _by_file(pair, path),
        pair.seed,
    ):
        with pytest.raises(UsageError, match=REFUSED[text]):
            way()
    assert not pair.secondary.regions
    subscriptions.filter_(pair.secondary, "person", None)
    pair.seed()
    with pytest.raises(UsageError, match=REFUSED[text]):
        subscriptions.filter_(pair.secondary, "person", text)
    subscriptions.filter_(pair.secondary, "person", text, is_ahead=True)
    with pytest.raises(UsageError, match=REFUSED[text]):
        pair.seed(restart=True)
    assert not pair.secondary.content.held_rows
    equal(pair)


def _by_file(pair: Pair, path: Path) -> None:
    make_seed(pair.primary, "west", path, replace=True)
    install_file(pair.secondary, path)


def test_a_partition_is_loaded_by_the_columns_that_are_wanted_then(pair: Pair) -> None:
    for instance in (pair.primary, pair.secondary):
        partitions.create(instance, "people")
    partitions.assign(pair.primary, "people", ["person"])
    write(pair, f"INSERT INTO person VALUES (1, 'a', '{MARK}', 5), (2, 'b', '{MARK}', 6)")
    subscriptions.set_(pair.secondary, ["DEFAULT"])
    subscriptions.filter_(pair.secondary, "person", "COLUMNS (id, name, age) WHERE id > 1")
    pair.seed()
    assert query(pair.secondary, "SELECT * FROM person") == []
    subscriptions.add(pair.secondary, ["people"])
    number = pair.secondary.content.partitions.number("people")
    with pair.receive_pool() as pool:
        pair.secondary.change_subscription(lambda now: now.begun((number,), tables_by_partition(pair.secondary)))
        pair.deliver(pool)
    write(pair, f"INSERT INTO person VALUES (3, 'c', '{MARK}', 7)", f"UPDATE person SET mail = '{MARK} too'")
    pair.catch_up()
    load_from_instance(pair.primary, pair.secondary, (number,))
    pair.secondary.reload()
    write(pair, f"UPDATE person SET name = 'z', mail = '{MARK} again' WHERE id = 2", "INSERT INTO other VALUES (1, 2)")
    pair.catch_up()
    assert query(pair.secondary, "SELECT * FROM person") == [(2, "z", "", 6), (3, "c", "", 7)]
    equal(pair)
    assert not files_with(pair.secondary.path)


@pytest.mark.parametrize(
    ("change", "is_equal"),
    [
        ("", True),
        ("UPDATE person SET mail = 'x' WHERE id = 1", False),
        ("UPDATE person SET name = 'x' WHERE id = 1", False),
        ("DELETE FROM person WHERE id = 1", False),
    ],
)
def test_a_value_that_should_not_be_here_is_a_difference(pair: Pair, change: str, is_equal: bool) -> None:
    write(pair, "DROP TABLE person", "CREATE TABLE person (id INTEGER PRIMARY KEY, name, mail, age REAL NOT NULL)")
    write(pair, f"INSERT INTO person VALUES (1, 'a', '{MARK}', 5), (2, 'b', NULL, 6)")
    subscriptions.filter_(pair.secondary, "person", "COLUMNS (id, name)")
    pair.seed()
    assert query(pair.secondary, "SELECT * FROM person") == [(1, "a", None, 0.0), (2, "b", None, 0.0)]
    (entry,) = pair.secondary.regions
    if change:
        with closing(apsw.Connection(str(entry.path))) as connection:
            connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
            connection.execute(change)
    for one, other in ((pair.primary, pair.secondary), (pair.secondary, pair.primary)):
        assert compare(one, other, timeout_s=60).equal is is_equal
