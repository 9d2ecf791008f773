"""Sums that several sites add to at once: random worlds beside brute force, and what of them is lost."""

from __future__ import annotations

import random

import pytest

from replicate.region.sqlite.row_stamps import read_merged
from tests.harness.merging_sites import Site, folded, world

SCHEMA = ("CREATE TABLE t (id TEXT PRIMARY KEY, v, n INTEGER, u UNIQUE) WITHOUT ROWID",)


def statement_of(rng: random.Random) -> str:
    key, more = rng.choice("klm"), rng.randint(-9, 9)
    u = rng.choice(["'p'", "'q'", "NULL", "NULL"])
    return rng.choice(
        [
            f"INSERT INTO t VALUES ('{key}', 'new', 1, NULL) ON CONFLICT DO UPDATE SET n = n + {more}",
            f"UPDATE t SET n = n + {more} WHERE id = '{key}'",
            f"UPDATE t SET n = n + {more}, v = 'v{more}'",
            f"UPDATE t SET n = n + {more}, u = NULL WHERE id = '{key}'",
            f"UPDATE OR IGNORE t SET u = {u} WHERE id = '{key}'",
            f"UPDATE t SET n = {rng.choice(['NULL', '9223372036854775807', '0.5', str(more)])} WHERE id = '{key}'",
            f"INSERT OR REPLACE INTO t VALUES ('{key}', 'put', {more}, {u})",
            f"DELETE FROM t WHERE id = '{key}'",
        ]
    )


@pytest.mark.parametrize(
    "first", [0, 25, *(pytest.param(first, marks=pytest.mark.long) for first in range(50, 5000, 25))]
)
def test_every_world_comes_to_what_its_transactions_fold_to(first: int) -> None:
    for seed in range(first, first + 25):
        rng = random.Random(seed)
        sites = [Site(at + 1, SCHEMA, rng.randint(-20, 20), ["n"]) for at in range(rng.randint(2, 3))]
        world(rng, sites, statement_of)
        wanted = folded(sites[0])
        for site in sites:
            assert site.table() == wanted, (seed, site.origin)


def test_what_all_add_without_a_delete_adds_up() -> None:
    """However often stamps are forgotten between: nothing is counted twice, and nothing is left out."""
    for seed in range(12):
        rng = random.Random(seed)
        sites = [Site(at + 1, SCHEMA, rng.randint(-20, 20), ["n"]) for at in range(3)]
        added: list[int] = []

        def statement(rng: random.Random, added: list[int] = added) -> str:
            added.append(rng.randint(1, 9))
            text = f"VALUES ('k', 'new', {added[-1]}, NULL) ON CONFLICT DO UPDATE SET n = n + excluded.n"
            return f"INSERT INTO t {text}"

        world(rng, sites, statement, steps=60)
        assert [site.table()["k"][2] for site in sites] == [sum(added)] * 3, seed


def both(*statements: str) -> tuple[Site, Site]:
    """Two sites that have the row k with 100, and each of which does one of the statements, beside the other."""
    one, other = (Site(origin, SCHEMA, 0, ["n"]) for origin in (1, 2))
    one.write("INSERT INTO t VALUES ('k', 'old', 100, NULL)", 1)
    carry_all(one, other)
    for now, (site, statement) in enumerate(zip((one, other), statements, strict=True), 2):
        site.write(statement, now)
    carry_all(one, other)
    assert one.table() == other.table() == folded(one)
    return one, other


def carry_all(one: Site, other: Site) -> None:
    for start, end in ((one, other), (other, one)):
        for sent in list(start.journal):
            if sent.stamp.origin_seqno > end.here.get(sent.stamp.origin, 0):
                end.take(sent, 2)


def losses(site: Site) -> list[tuple[str, object]]:
    found = [one.merged.lost for one in read_merged(site.connection)]
    return [(one.what, one.values[2]) for one in found]


def test_two_that_add_at_once_lose_nothing() -> None:
    one, other = both("UPDATE t SET n = n + 5", "UPDATE t SET n = n - 2, v = 'new'")
    assert one.table()["k"] == ("k", "new", 103, None)
    assert losses(one) == losses(other) == []


def test_a_delete_takes_what_was_there_and_later_additions_begin_from_nothing() -> None:
    one, other = both("DELETE FROM t", "UPDATE t SET n = n + 5")
    assert one.table()["k"] == ("k", "old", 5, None)
    assert losses(other) == [("delete", 100)]
    one, other = both("UPDATE t SET n = n + 5", "DELETE FROM t")
    assert one.table() == {}
    assert losses(one) == [("update", 105)]


def test_a_value_that_is_no_integer_is_the_later_one() -> None:
    one, other = both("UPDATE t SET n = n + 5", "UPDATE t SET n = NULL")
    assert one.table()["k"][2] is None
    assert losses(one) == losses(other) == [("update", 105)]
    one, other = both("UPDATE t SET n = NULL", "UPDATE t SET n = n + 5")
    assert one.table()["k"][2] is None, "NULL and five more is NULL"


def test_two_new_rows_of_one_key_are_one_with_both_sums() -> None:
    one, other = Site(1, SCHEMA, 0, ["n"]), Site(2, SCHEMA, 0, ["n"])
    for site in (one, other):
        site.write(f"INSERT INTO t VALUES ('k', 'of {site.origin}', 1, NULL)", site.origin)
    carry_all(one, other)
    assert one.table() == other.table() == {"k": ("k", "of 2", 2, None)}


def test_a_row_that_gives_way_takes_its_sum_along() -> None:
    one, other = Site(1, SCHEMA, 0, ["n"]), Site(2, SCHEMA, 0, ["n"])
    one.write("INSERT INTO t VALUES ('k', 'of 1', 3, 'p')", 1)
    other.write("INSERT INTO t VALUES ('l', 'of 2', 4, 'p')", 2)
    carry_all(one, other)
    other.write("INSERT INTO t VALUES ('l', 'again', 1, NULL)", 3)
    carry_all(one, other)
    assert one.table() == other.table() == folded(one)
    assert one.table()["l"][2] == 1


def test_what_is_added_later_than_a_row_gave_way_begins_from_nothing() -> None:
    one, other = Site(1, SCHEMA, 0, ["n"]), Site(2, SCHEMA, 0, ["n"])
    one.write("INSERT INTO t VALUES ('k', 'of 1', 3, 'p')", 1)
    other.write("INSERT INTO t VALUES ('l', 'of 2', 4, 'p')", 2)
    one.take(other.journal[0], 2)
    assert one.removed == [("l", "of 2", 4, "p")]
    other.write("UPDATE t SET n = n + 5, u = NULL", 10)
    carry_all(one, other)
    assert one.table() == other.table() == folded(one)
    assert one.table()["l"] == ("l", "of 2", 5, None)


def test_a_site_that_was_killed_after_a_merged_delete_has_no_more_of_the_sum_than_others() -> None:
    """Its journal says of the row that is gone what it had here; of the sum nothing is left."""
    one, other, third = (Site(origin, SCHEMA, 0, ["n"]) for origin in (1, 2, 3))
    one.write("INSERT INTO t VALUES ('k', 'old', 100, NULL)", 1)
    other.take(one.journal[0], 3)
    third.take(one.journal[0], 3)
    other.write("UPDATE t SET n = n + 7, u = 'p'", 2)
    one.write("DELETE FROM t", 5)
    third.write("UPDATE t SET n = n + 5", 10)
    other.take(one.journal[1], 3, is_killed=True)
    other.take(third.journal[1], 3)
    assert other.table() == folded(other) == {"k": ("k", "old", 5, "p")}


def test_what_everybody_has_is_kept_no_longer() -> None:
    one, other = Site(1, SCHEMA, 0, ["n"]), Site(2, SCHEMA, 0, ["n"])
    one.write("INSERT INTO t VALUES ('k', 'old', 0, NULL)", 1)
    carry_all(one, other)
    for now in range(2, 60):
        for site in (one, other):
            site.write("UPDATE t SET n = n + 1", now)
        for start, end in ((one, other), (other, one)):
            for sent in start.journal[-2:]:
                if sent.stamp.origin_seqno > end.here.get(sent.stamp.origin, 0):
                    end.take(sent, {b"\x01": [1], b"\x02": [2]}, forgets=True)
    kept = one.connection.execute("SELECT length(stamps) FROM _replicate_version").get
    assert kept is not None
    assert kept < 100
    assert one.table() == other.table()
    assert one.table()["k"][2] == 116
