"""A round through a site's own indexes, on a primary and on a secondary."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replicate.compare import index_check
from replicate.compare.index_check import take_slice
from replicate.compare.index_found import IndexDamage, Looked
from replicate.compare.patrol_rounds import Place
from replicate.instance.instance import Instance
from tests.harness.pair import Pair
from tests.harness.stale_index import change_without_index, flip_in_tree

SCHEMA = """
CREATE TABLE account (id INTEGER PRIMARY KEY, owner TEXT COLLATE NOCASE, at, note AS (owner || '!') STORED);
CREATE INDEX by_owner ON account (owner, at DESC);
CREATE INDEX open_ones ON account (at) WHERE owner IS NULL;
CREATE TABLE plain (x);
CREATE TABLE word (word TEXT PRIMARY KEY, n) WITHOUT ROWID;
CREATE INDEX by_number ON word (n);
INSERT INTO account (owner, at) VALUES ('ann', 1), ('bob', 2), ('carol', 3), (NULL, 4), (NULL, 5);
INSERT INTO word VALUES ('one', 1), ('two', 2), ('three', 3);
"""


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr("replicate.compare.index_check.ROWS_MAX", 2)
    made = Pair.create(tmp_path, SCHEMA)
    made.seed()
    return made


def parts_of(instance: Instance, place: Place | None = None) -> list[Looked]:
    """A round."""
    found, at = [], place or Place(7)
    while True:
        part = take_slice(instance, at)
        found.append(part.looked)
        assert part.busy_s >= 0
        if part.place is None:
            return found
        assert part.place != at
        at = part.place


def damage_of(instance: Instance) -> set[tuple[str, str, str]]:
    parts = parts_of(instance)
    assert all(part.left_out == {} for part in parts), parts
    return {(str(one).rpartition(" ")[0], one.key, one.region) for part in parts for one in part.damaged}


@pytest.fixture(params=["primary", "secondary"])
def instance(pair: Pair, request: pytest.FixtureRequest) -> Instance:
    found: Instance = getattr(pair, request.param)
    return found


def test_all_that_is_right(instance: Instance) -> None:
    parts = parts_of(instance)
    assert sum(part.entries for part in parts) == 5 + 2 + 3
    assert damage_of(instance) == set()
    assert next(part.at for part in parts) == "main.account"
    assert {part.at for part in parts} == {"main.account", "main.word"}


def test_a_row_that_an_index_lacks(instance: Instance) -> None:
    change_without_index(instance.region("main").path, "by_owner", "INSERT INTO account (id, owner) VALUES (50, 'zed')")
    assert damage_of(instance) == {("index by_owner of main.account lacks the entry of the row", "50", "main")}


def test_an_entry_too_many(instance: Instance) -> None:
    change_without_index(instance.region("main").path, "open_ones", "UPDATE account SET owner = 'x' WHERE id = 4")
    what = "index open_ones of main.account has an entry that no row gives it 4,"
    assert damage_of(instance) == {(what, "4, 4", "main")}


def test_a_bit_of_a_page(instance: Instance) -> None:
    flip_in_tree(instance.region("main").path, "by_owner", b"bob", by=2)
    assert {key for _, key, _ in damage_of(instance)} == {"2", "'boc', 2, 2"}


def test_a_table_without_rowid(instance: Instance) -> None:
    change_without_index(instance.region("main").path, "by_number", "DELETE FROM word WHERE word = 'two'")
    assert {key for _, key, _ in damage_of(instance)} == {"2, 'two'"}


def test_a_stored_column(instance: Instance) -> None:
    flip_in_tree(instance.region("main").path, "account", b"carol!", by=4)
    ((what, key, _),) = damage_of(instance)
    assert (what, key) == ("main.account has STORED generated columns (note) that do not follow from the row", "3")


def test_a_region_that_cannot_be_opened_is_named(pair: Pair) -> None:
    pair.secondary.region("main").path.write_bytes(b"no database" * 1000)
    (part,) = parts_of(pair.secondary)
    assert part.left_out.keys() == {"main"}
    assert "main" in part.at


def test_whatever_is_raised_ends_no_daemon(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(index_check, "walk", raising)
    (part,) = parts_of(pair.primary)
    assert part.left_out == {"main": "ZeroDivisionError()"}


def test_a_place_that_is_gone_is_gone_past(pair: Pair) -> None:
    assert parts_of(pair.primary, Place(7, 0, "zone", "t\0i"))[0] == Looked()
    (part, *_) = parts_of(pair.primary, Place(7, 0, "main", "b\0i", (b"\x91\x07",)))
    assert part.at == "main.word"
    assert parts_of(pair.primary, Place(7, 0, "main", "account\0by_owner", (b"\xc1",)))[0].entries == 2  # no key


def test_a_long_key_is_shown_short(pair: Pair) -> None:
    assert index_check._text((None, b"\x00", "é" * 80)) == "NULL, x'00', '" + "é" * 46 + "..."
    assert index_check._text(("\udcff", 1.5)) == "'\\udcff', 1.5"


def test_a_table_that_comes_while_it_goes_is_looked_at(pair: Pair) -> None:
    part = take_slice(pair.primary, Place(7))
    with closing(pair.connect()) as connection:
        connection.execute("CREATE TABLE later (x UNIQUE)")
        connection.commit()
    assert part.place is not None
    assert "main.later" in {one.at for one in parts_of(pair.primary, part.place)}


def test_damage_is_one_value() -> None:
    assert IndexDamage("r", "t", "", "is", "", 0).name == "r.t"
