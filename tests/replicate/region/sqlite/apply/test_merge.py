"""Merging into the rows of one region: what is done, what is given back, what is lost."""

from __future__ import annotations

from typing import Any, cast

import apsw
import pytest

from replicate.errors import ConflictError
from replicate.model.merged_row import Stamp
from replicate.model.transaction import Op, mask_of
from replicate.region.protocol import Absorbed
from replicate.region.sqlite.apply.merge import RowMerger
from replicate.region.sqlite.apply.rows import RowApplier
from replicate.region.sqlite.bookkeeping import make_tables, write_writer
from replicate.region.sqlite.row_stamps import RowStamps, key_of, make_stamp_tables, pack_merged
from replicate.region.sqlite.schema import read_definition, record_definitions

OWN, OTHER = b"1" * 16, b"2" * 16
A, B, MINE = 1, 2, 3
NOTHING: dict[int, int] = {}


class Site:
    """A region with the table t (id, u UNIQUE, v), all of whose rows several suppliers write."""

    def __init__(self, unique: str = "UNIQUE") -> None:
        self.connection = apsw.Connection(":memory:")
        self.connection.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        make_tables(self.connection)
        make_stamp_tables(self.connection, begins_at=1)
        self.connection.execute(f"CREATE TABLE t (id TEXT PRIMARY KEY, u {unique}, v) WITHOUT ROWID")
        record_definitions(self.connection, region="main")
        write_writer(self.connection, 1, ["written", OTHER], 1)
        write_writer(self.connection, 1, ["shared", OWN, 1], 1)
        definition = read_definition(self.connection, "t", region="main")
        self.table_id = definition.table_id
        self.rows = RowApplier(self.connection, {definition.table_id: definition}, region="main")
        self.merger = RowMerger(self.connection, self.rows)
        self.merger.begin()

    def take(self, stamp: Stamp, *changes: list[Any], told: dict[int, int] = NOTHING) -> list[Any] | None:
        flat = [element for change in changes for element in change]
        removing = Stamp(stamp.csn + 1000, MINE, 1)
        return self.merger.take(flat, stamp, told, lambda _table: True, removing)

    def insert(self, *values: object) -> list[Any]:
        return [int(Op.INSERT), self.table_id, 0, list(values)]

    def delete(self, *values: object) -> list[Any]:
        return [int(Op.DELETE), self.table_id, 0, list(values)]

    def update(self, before: tuple[object, ...], **after: object) -> list[Any]:
        at = {"id": 0, "u": 1, "v": 2}
        changed = sorted(at[name] for name in after)
        names = {place: name for name, place in at.items()}
        values = [*(after[names[place]] for place in changed), *before]
        return [int(Op.UPDATE), self.table_id, mask_of(changed, 3), values]

    def all_rows(self) -> list[Any]:
        return self.connection.execute("SELECT * FROM t ORDER BY 1").fetchall()


@pytest.fixture
def site() -> Site:
    made = Site()
    assert made.take(Stamp(10, A, 1), made.insert("k", "u", "v")) is None
    return made


def test_what_its_writer_had_seen_is_done_as_it_is(site: Site) -> None:
    assert site.take(Stamp(20, B, 1), site.update(("k", "u", "v"), v="w"), told={A: 1}) is None
    assert site.all_rows() == [("k", "u", "w")]


def test_a_row_that_is_not_as_its_writer_saw_it_stops_and_is_as_it_was(site: Site) -> None:
    with pytest.raises(ConflictError, match="differs from its before-image") as told:
        site.take(Stamp(20, B, 1), site.update(("k", "u", "other"), v="w"), told={A: 1})
    assert told.value.conflict.found == ("k", "u", "v")
    assert site.all_rows() == [("k", "u", "v")]


def test_what_was_merged_comes_back_as_it_fits_what_was_here(site: Site) -> None:
    """The writer changed u, and had not seen the row's newest v."""
    site.take(Stamp(20, A, 2), site.update(("k", "u", "v"), v="newest"))
    done = site.take(Stamp(15, B, 1), site.update(("k", "u", "v"), u="x"), told={A: 1})
    assert done == [*site.delete("k", "u", "newest"), *site.insert("k", "x", "newest")]
    done = site.take(Stamp(16, B, 2), site.update(("k", "x", "v"), v="older"), told={A: 1})
    assert done == []
    assert [(one.lost.values, one.left) for one in site.merger.lost] == [(("k", "x", "older"), ("k", "x", "newest"))]


def test_what_a_transaction_lost_is_told_in_order_without_looking_at_the_others(site: Site) -> None:
    """At which nobody looks: ten thousand may lose in one batch."""
    site.take(Stamp(20, A, 2), site.update(("k", "u", "v"), v="newest"), site.insert("l", "ul", "newest"))
    for seqno in (7, 8):
        site.rows.seqno = seqno
        older = f"older {seqno}"
        changes = site.update(("k", "u", "v"), v=older), site.insert("l", "ul", older)
        assert site.take(Stamp(10 + seqno, B, seqno), *changes, told={A: 1}) == []
    (_, _, one, other) = merged = list(site.merger.lost)
    assert [(found.seqno, found.key) for found in merged] == [(7, ("k",)), (7, ("l",)), (8, ("k",)), (8, ("l",))]
    site.merger.lost[:1] = [cast(Any, object())]
    assert site.merger.losses(8) == [pack_merged(one), pack_merged(other)]


def test_a_change_of_an_ordinary_column_is_an_update(site: Site) -> None:
    site.take(Stamp(20, A, 2), site.update(("k", "u", "v"), u="x"))
    done = site.take(Stamp(15, B, 1), site.update(("k", "u", "v"), v="w"), told={A: 1})
    assert done == [int(Op.UPDATE), site.table_id, mask_of([2], 3), ["w", "k", "x", "v"]]


def test_the_one_that_has_had_a_value_longer_keeps_it(site: Site) -> None:
    done = site.take(Stamp(20, B, 1), site.insert("l", "u", "w"))
    assert done == []
    assert site.merger.removed == site.delete("l", "u", "w")
    assert site.all_rows() == [("k", "u", "v")]
    (told,) = site.merger.lost
    assert (told.lost.what, told.key, told.left, told.lost.ordinals) == ("unique", ("l",), ("k",), (1,))


def test_or_the_one_that_is_here_goes(site: Site) -> None:
    done = site.take(Stamp(5, B, 1), site.insert("l", "u", "w"))
    assert done == [*site.delete("k", "u", "v"), *site.insert("l", "u", "w")]
    assert site.merger.removed == site.delete("k", "u", "v")
    assert site.all_rows() == [("l", "u", "w")]


def test_values_that_are_swapped_within_a_transaction_are_nobodys_rivals(site: Site) -> None:
    site.take(Stamp(11, A, 2), site.insert("l", "w", 0))
    site.take(Stamp(20, A, 3), site.update(("k", "u", "v"), v="newest"))
    swap = [
        site.update(("k", "u", "v"), u=None),
        site.update(("l", "w", 0), u="u"),
        site.update(("k", None, "v"), u="w"),
    ]
    assert site.take(Stamp(15, B, 1), *swap, told={A: 2})
    assert site.merger.removed == []
    assert site.all_rows() == [("k", "w", "newest"), ("l", "u", 0)]


def test_a_table_may_say_that_a_row_in_the_way_is_replaced(site: Site) -> None:
    """What an INSERT of the application would do is not done: who has had the value longer keeps it."""
    site.connection.execute("DROP TABLE t")
    site.connection.execute("CREATE TABLE t (id TEXT PRIMARY KEY, u UNIQUE ON CONFLICT REPLACE, v) WITHOUT ROWID")
    site.connection.execute("INSERT INTO t VALUES ('k', 'u', 'v')")
    assert site.take(Stamp(20, B, 1), site.insert("l", "u", "w")) == []
    assert site.all_rows() == [("k", "u", "v")]


def test_a_row_that_everybody_has_gives_way_to_nobody(site: Site) -> None:
    site.merger.finish(1)
    assert site.merger.purge({A: 1}) == 0
    with pytest.raises(ConflictError, match="UNIQUE"):
        site.take(Stamp(20, B, 1), site.insert("l", "u", "w"))


def test_a_journal_that_is_read_later_gives_the_same_stamps(site: Site) -> None:
    """The fast way applies, and stamps nothing; `absorb` makes up for it."""
    later = Site()
    later.rows.apply_all([*later.insert("k", "u", "v")])
    change = later.insert("k", "u", "v")
    later.merger.absorb([Absorbed(change, change, Stamp(10, A, 1), False)], lambda _t: True)
    for one in (site, later):
        one.take(Stamp(20, B, 1), one.update(("k", "u", "v"), v="w"))
        one.take(Stamp(15, A, 2), one.delete("k", "u", "v"))
    assert site.all_rows() == later.all_rows() == [("k", "u", "w")]


@pytest.mark.parametrize("unique", ["", "UNIQUE"])
def test_a_stable_transaction_stamps_what_has_stamps_or_unique_values(unique: str) -> None:
    site = Site(unique)
    site.take(Stamp(10, A, 1), site.insert("k", "u", "v"))
    change = site.insert("new", None, None)
    site.rows.apply_all(change)
    site.merger.absorb([Absorbed(change, change, Stamp(12, B, 1), True)], lambda _t: True)
    site.merger.finish(3)
    stamps = RowStamps(site.connection)
    assert (stamps.get(site.table_id, key_of(("new",))) is not None) == bool(unique)
    assert stamps.get(site.table_id, key_of(("k",))) is not None
