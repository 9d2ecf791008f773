"""transfer/seed/rows.py: a copy keeps the rows that the stream brings from there on, whichever way it comes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest

from replicate.admin import partitions, subscriptions
from replicate.compare.compare import compare
from replicate.errors import CopyTooOldError, PeerRefusedError, UsageError
from replicate.instance.file import WITH_ROWS
from replicate.instance.instance import Instance
from replicate.model.column_list import WHOLE, TableShare
from replicate.region.sqlite.digest import TableVerdict
from replicate.system import failpoint
from replicate.transfer.container import ROWS_FORMAT_VERSION
from replicate.transfer.seed.direct import seed
from replicate.transfer.seed.file import SeedReader
from replicate.transfer.seed.install import check_header, install_file
from replicate.transfer.seed.make import make_seed
from replicate.transfer.seed.partition import load_from_file, load_from_instance
from replicate.transfer.seed.rows import definitions_here, place_rows, require_wanted, shares_of, tables_by_partition
from tests.harness.pair import Pair

SCHEMA = """
CREATE TABLE item (id INTEGER PRIMARY KEY AUTOINCREMENT, size INTEGER, name TEXT COLLATE NOCASE, UNIQUE (name, id));
CREATE TABLE pair (one TEXT, two REAL, note, PRIMARY KEY (one, two)) WITHOUT ROWID;
CREATE TABLE loose (a NUMERIC, b);
CREATE TABLE other (id INTEGER PRIMARY KEY, v);
"""
WISHES = {
    "item": ("size > 3 OR name = 'X'", "size IS NULL OR NOT (name IN ('x', 'z'))", "id BETWEEN 3 AND 40"),
    "pair": ("two < 4.5", "one >= 'b' AND note IS NOT NULL"),
    "loose": ("a = 5", "NOT (a > 5 AND b <> X'61')"),
}
VALUES = (None, 1, 3, 5, 5.0, 7.5, "x", "X ", "z", "5", b"a")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return Pair.create(tmp_path, SCHEMA)


def write(pair: Pair, *texts: str) -> None:
    with closing(pair.connect()) as connection:
        for text in texts:
            connection.execute(text)
        connection.commit()


def a_transaction(dice: Random, connection: Any) -> None:
    for _ in range(dice.choice((1, 1, 3, 8))):
        with suppress(Exception):  # a key that is there already
            connection.execute(*_a_statement(dice))
    connection.commit()


def _a_statement(dice: Random) -> tuple[str, tuple[Any, ...]]:
    one, two, number = dice.choice(VALUES), dice.choice(VALUES), dice.randrange(60)
    return dice.choice(
        [
            ("INSERT INTO item (size, name) VALUES (?, ?)", (one, two)),
            ("UPDATE item SET size = ? WHERE id % 4 = ?", (one, number % 4)),
            ("UPDATE item SET id = ?, name = ? WHERE id = ?", (number + 100, two, number)),
            ("DELETE FROM item WHERE id % 7 = ?", (number % 7,)),
            ("INSERT OR REPLACE INTO pair VALUES (?, ?, ?)", (str(one), number / 8, two)),
            ("UPDATE pair SET two = two + 1.5, note = ? WHERE two < ?", (one, number / 8)),
            ("INSERT INTO loose VALUES (?, ?)", (one, two)),
            ("UPDATE loose SET a = ?, rowid = rowid + 1000 WHERE rowid % 5 = ?", (one, number % 5)),
            ("DELETE FROM loose WHERE rowid % 3 = ?", (number % 3,)),
            ("INSERT INTO other (v) VALUES (?)", (one,)),
        ]
    )


def here(pair: Pair, wishes: dict[str, str]) -> None:
    """The secondary is SELECT … WHERE of the primary, by what people would ask, and by `compare`."""
    for table in ("item", "pair", "loose", "other"):
        where = f" WHERE {wishes[table]}" if table in wishes else ""
        assert rows(pair, table) == rows(pair, table + where, pair.primary), (table, where)
    found = compare(pair.primary, pair.secondary, timeout_s=60)
    assert found.equal, found
    (region,) = found.regions
    assert region.comparison is not None
    assert {one.status for one in region.comparison.tables} == {TableVerdict.EQUAL}


def rows(pair: Pair, source: str, instance: Any = None) -> list[tuple[Any, ...]]:
    (entry,) = (instance or pair.secondary).regions
    connection = apsw.Connection(str(entry.path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        key = "one, two" if source.startswith("pair") else "rowid"
        return connection.execute(f"SELECT {key}, * FROM {source} ORDER BY {key}").fetchall()
    finally:
        connection.close()


def by_file(pair: Pair) -> None:
    path = pair.directory / "west.seed"
    make_seed(pair.primary, "west", path, replace=True)
    install_file(pair.secondary, path, restart=True)
    pair.secondary.reload()


def from_the_instance(pair: Pair) -> None:
    pair.seed(restart=True)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_random_histories_and_wishes(pair: Pair, number: int) -> None:
    """Before the first seed, and changed by another one; moves in and out, keys that change, large transactions."""
    dice = Random(number)
    with closing(pair.connect()) as connection:
        for _ in range(30):
            a_transaction(dice, connection)
        for way in (by_file, from_the_instance):
            wishes = {table: dice.choice(found) for table, found in WISHES.items() if dice.random() < 0.8}
            for table in WISHES:
                if table in wishes:
                    subscriptions.filter_(pair.secondary, table, wishes[table])
                elif any(key[1] == table for key in pair.secondary.content.rows):
                    subscriptions.filter_(pair.secondary, table, None)
            way(pair)
            here(pair, wishes)
            for step in range(4):
                for _ in range(10):
                    a_transaction(dice, connection)
                if step == 1:
                    for place in range(16_000):
                        connection.execute("INSERT INTO loose VALUES (?, ?)", (place % 11, None))
                    connection.commit()
                    connection.execute("UPDATE loose SET a = a + 1")
                    connection.commit()
                if step == 2:
                    connection.execute("ALTER TABLE item ADD COLUMN more DEFAULT 3")
                    connection.execute("UPDATE item SET more = 4 WHERE id % 2")
                    connection.commit()
                    connection.execute("ALTER TABLE item DROP COLUMN more")
                    connection.commit()
                pair.catch_up()
                here(pair, wishes)


def test_until_the_rows_are_copied_those_come_that_were(pair: Pair) -> None:
    write(pair, "INSERT INTO item (size) VALUES (1), (5), (9)")
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    assert b'"format": 10' in (pair.secondary.path / "instance.json").read_bytes()
    assert WITH_ROWS == 10
    pair.seed()
    assert pair.secondary.content.held_rows == {("main", "item"): "size > 3"}
    assert not pair.secondary.content.choice.uncopied
    subscriptions.filter_(pair.secondary, "main.item", "size < 3")
    write(pair, "INSERT INTO item (size) VALUES (2), (7)")
    pair.catch_up()
    here(pair, {"item": "size > 3"})
    assert pair.secondary.content.choice.uncopied == (("main", "item"),)
    by_file(pair)
    here(pair, {"item": "size < 3"})
    subscriptions.filter_(pair.secondary, "item", None)
    pair.seed(restart=True)
    here(pair, {})
    assert b'"format": 1,' in (pair.secondary.path / "instance.json").read_bytes()


@pytest.mark.parametrize("way", [by_file, from_the_instance])
def test_a_table_that_the_copy_has_not_is_refused_before_anything_is_given_up(
    pair: Pair, way: Callable[[Pair], None]
) -> None:
    subscriptions.filter_(pair.secondary, "itm", "size > 3")
    with pytest.raises(UsageError, match="there is no table itm"):
        way(pair)
    subscriptions.filter_(pair.secondary, "itm", None)
    subscriptions.filter_(pair.secondary, "item", "weight > 3")
    with pytest.raises(UsageError, match="table item has no column weight"):
        way(pair)
    assert not pair.secondary.regions
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    way(pair)
    held = pair.secondary.content.held_rows
    write(pair, "ALTER TABLE other RENAME TO others")
    pair.secondary.change_subscription(lambda now: now.filtering(("main", "other"), "v = 1"))
    with pytest.raises(UsageError, match=r"there is no table main\.other"):
        way(pair)
    assert pair.secondary.regions
    assert pair.secondary.content.held_rows == held


def test_a_seed_that_was_killed_is_done_again(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    write(pair, "INSERT INTO item (size) VALUES (1), (5), (9)")
    pair.seed()
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    killed = RuntimeError("killed")

    def hit(name: str) -> None:
        if name == "seed.journal_begun":
            raise killed

    monkeypatch.setattr("replicate.transfer.seed.install.hit", hit)
    with pytest.raises(RuntimeError):
        pair.seed(restart=True)
    monkeypatch.setattr("replicate.transfer.seed.install.hit", failpoint.hit)
    subscriptions.filter_(pair.secondary, "item", "size < 6")  # meanwhile
    pair.secondary.reload()
    pair.seed(restart=True)
    write(pair, "INSERT INTO item (size) VALUES (2), (7)")
    pair.catch_up()
    here(pair, {"item": "size < 6"})


def test_a_partition_is_loaded_by_what_is_wanted_then(pair: Pair) -> None:
    for instance in (pair.primary, pair.secondary):
        partitions.create(instance, "stock")
    partitions.assign(pair.primary, "stock", ["item"])
    write(pair, "INSERT INTO item (size) VALUES (1), (5), (9)", "INSERT INTO other VALUES (1, 1), (2, 2)")
    subscriptions.set_(pair.secondary, ["DEFAULT", "stock"])
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    subscriptions.filter_(pair.secondary, "other", "v = 1")
    pair.seed()
    subscriptions.filter_(pair.secondary, "item", "size < 6")
    subscriptions.filter_(pair.secondary, "other", "v = 2")
    subscriptions.remove(pair.secondary, ["stock"])
    subscriptions.add(pair.secondary, ["stock"])
    write(pair, "INSERT INTO item (size) VALUES (2), (7)", "INSERT INTO other VALUES (3, 1), (4, 2)")
    pair.catch_up()
    subscriptions.filter_(pair.secondary, "item", "weight < 6", is_ahead=True)
    with pytest.raises(UsageError, match="table item has no column weight"):
        load_from_instance(pair.primary, pair.secondary, (pair.secondary.content.partitions.number("stock"),))
    assert not pair.secondary.content.choice.loading
    subscriptions.filter_(pair.secondary, "item", "size < 6")
    with pair.receive_pool() as pool:
        number = pair.secondary.content.partitions.number("stock")
        pair.secondary.change_subscription(lambda now: now.begun((number,), tables_by_partition(pair.secondary)))
        assert pair.secondary.content.held_rows == {("main", "item"): "size < 6", ("main", "other"): "v = 1"}
        pair.deliver(pool)
    load_from_instance(pair.primary, pair.secondary, (number,))
    pair.secondary.reload()
    write(pair, "INSERT INTO item (size) VALUES (3), (8)", "UPDATE item SET size = size + 2")
    pair.catch_up()
    here(pair, {"item": "size < 6", "other": "v = 1"})
    assert pair.secondary.content.choice.uncopied == (("main", "other"),)


def test_a_copy_with_some_rows_serves_who_wants_these(pair: Pair) -> None:
    """From a secondary that has some, and from a primary that was told what is wanted."""
    write(pair, "INSERT INTO item (size) VALUES (1), (5), (9)")
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    pair.seed()
    third = Instance.create(
        pair.directory / "third", role="secondary", name="third", network=pair.primary.content.network
    )
    pair.secondary.register_peer("third", "127.0.0.1", 7431)
    path = pair.directory / "third.seed"

    def by_file() -> None:
        make_seed(pair.secondary, "third", path, replace=True)
        with SeedReader(path) as reader:
            assert reader.header.version == ROWS_FORMAT_VERSION
            assert reader.header.rows == {("main", "item"): "size > 3"}
        install_file(third, path, restart=True)

    def beside() -> None:
        seed(pair.secondary, third, restart=True)

    for told, wish in (
        ("third wants all of them", None),
        (r"third wants of table main\.item where size > 4", "size > 4"),
    ):
        if wish is not None:
            subscriptions.filter_(third, "item", wish)
        for way in (by_file, beside):
            with pytest.raises(CopyTooOldError, match=told):
                way()
    for way in (by_file, beside):
        subscriptions.filter_(third, "item", "size > 3")
        way()
        third.reload()
        assert third.content.held_rows == {("main", "item"): "size > 3"}
        assert rows(pair, "item", third) == rows(pair, "item WHERE size > 3", pair.primary)
    with pytest.raises(CopyTooOldError, match="east wants all of them"):
        require_wanted(pair.primary, third.content.held_rows, (None, {}), definitions_here(third), "here")
    with pytest.raises(PeerRefusedError, match=r"has of table main\.item where size > 3, no other rows, and its peer"):
        make_seed(pair.secondary, "third", path, replace=True, rows={("main", "item"): "size > 4"})


def test_a_copy_with_some_rows_serves_who_wants_no_partition_of_the_table(pair: Pair) -> None:
    """By a file, beside, and for the load of another partition; not for a load of that one."""
    for instance in (pair.primary, pair.secondary):
        partitions.create(instance, "sales")
        partitions.create(instance, "stock")
    partitions.assign(pair.primary, "sales", ["item"])
    partitions.assign(pair.primary, "stock", ["pair"])
    write(pair, "INSERT INTO item (size) VALUES (1), (5), (9)", "INSERT INTO other VALUES (1, 1), (2, 2)")
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    subscriptions.set_(pair.secondary, ["DEFAULT", "sales", "stock"])
    pair.seed()
    third = Instance.create(
        pair.directory / "third", role="secondary", name="third", network=pair.primary.content.network
    )
    pair.secondary.register_peer("third", "127.0.0.1", 7431)
    path = pair.directory / "third.seed"

    def by_file() -> None:
        make_seed(pair.secondary, "third", path, replace=True)
        install_file(third, path, restart=True)

    def beside() -> None:
        seed(pair.secondary, third, restart=True)

    for wanted in (["2"], ["1", "2"]):
        subscriptions.set_(third, wanted)
        for way in (by_file, beside):
            with pytest.raises(CopyTooOldError, match="third wants all of them"):
                way()
    subscriptions.set_(third, ["1"])
    for way in (by_file, beside):
        way()
        third.reload()
        assert not third.content.held_rows
        assert rows(pair, "other", third) == rows(pair, "other", pair.primary) != []
        assert rows(pair, "item", third) == rows(pair, "pair", third) == []
        assert compare(pair.secondary, third, timeout_s=60).equal
    subscriptions.add(third, ["3", "2"])
    make_seed(pair.secondary, "third", path, replace=True, partitions=(2,))
    for load in (
        lambda: load_from_instance(pair.secondary, third, (2,)),
        lambda: load_from_file(third, path, (2,)),
    ):
        with pytest.raises(CopyTooOldError, match="third wants all of them"):
            load()
        assert not third.content.choice.loading  # nothing was asked of the stream
    make_seed(pair.secondary, "third", path, replace=True, partitions=(3,))
    with SeedReader(path) as reader:
        check_header(third, reader, "here", wanted=(3,))


def test_the_other_rows_stay_at_the_source_that_was_told(pair: Pair) -> None:
    write(pair, "INSERT INTO item (size, name) VALUES (1, 'stays at home'), (5, 'goes')")
    path = pair.directory / "west.seed"
    with pytest.raises(UsageError, match="has no column weight"):
        make_seed(pair.primary, "west", path, rows={("", "item"): "weight > 3"})
    make_seed(pair.primary, "west", path, rows={("", "item"): "size > 3"})
    data = path.read_bytes()
    assert b"goes" in data
    assert b"stays at home" not in data
    with pytest.raises(CopyTooOldError):
        install_file(pair.secondary, path)
    assert not pair.secondary.regions
    subscriptions.filter_(pair.secondary, "item", "size > 3")
    subscriptions.filter_(pair.secondary, "other", "v = 1")  # of which the copy has all
    install_file(pair.secondary, path)
    pair.secondary.reload()
    write(pair, "UPDATE item SET size = 7")
    pair.catch_up()
    here(pair, {"item": "size > 3", "other": "v = 1"})


def test_shares(pair: Pair) -> None:
    pair.seed()
    (item,) = [one for one in definitions_here(pair.secondary) if one.table == "item"]
    assert shares_of({("main", "item"): "SIZE > 3"})(item) == TableShare('"SIZE" > 3')
    assert shares_of({("", "item"): "size > 3"})(item) == TableShare('"size" > 3')
    assert shares_of({("side", "item"): "size > 3"})(item) == WHOLE
    assert place_rows({}, pair.directory / "none") == {}
    copies = pair.secondary.path / "regions"
    assert place_rows({("", "item"): "size > 3"}, copies) == {("main", "item"): "size > 3"}
