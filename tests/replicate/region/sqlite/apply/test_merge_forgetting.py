"""Where two rows want one unique value, all sites decide alike, whatever stamps each of them has forgotten meanwhile.

A row that comes back has had its value from before: from a transaction that its rival, which everybody has, may come
after.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from replicate.model.merged_row import Row
from replicate.region.sqlite.apply.merge import RowMerger
from replicate.region.sqlite.row_stamps import key_of
from tests.harness.merging_sites import Sent, Site, folded, world
from tests.harness.merging_worlds import CASES
from tests.replicate.region.sqlite.apply.test_merge_shapes import live

SCHEMA = ["CREATE TABLE t (id TEXT PRIMARY KEY, u, v UNIQUE) WITHOUT ROWID"]
MEMBERS = {b"\x01": [1], b"\x02": [2]}
TOLD_APART = (383, 783)
"""Worlds that came to another journal when all that everybody has was forgotten."""


def carry(start: Site, end: Site) -> None:
    for sent in start.journal:
        if sent.stamp.origin_seqno > end.here.get(sent.stamp.origin, 0):
            end.take(sent, MEMBERS, forgets=True)


def stamps(site: Site, key: str) -> Row | None:
    return site.merger._stamps.get(site.definition.table_id, key_of([key]))


def rivals(*, l_at: int, k_at: int) -> tuple[Site, Site]:
    """l gets the value 3 on one, and is deleted there; k gets it on the other one, which has not heard of that, and
    brings l back by an update."""
    one, other = Site(1, SCHEMA, 0), Site(2, SCHEMA, 0)
    other.write("INSERT INTO t VALUES ('k', NULL, 1), ('l', NULL, 2)", 1)
    carry(other, one)
    one.write("UPDATE t SET v = 3 WHERE id = 'l'", l_at)
    one.write("DELETE FROM t WHERE id = 'l'", l_at + 1)
    other.write("UPDATE t SET v = 3 WHERE id = 'k'", k_at)
    other.write("INSERT INTO t VALUES ('n', NULL, 9)", 20)
    carry(other, one)
    return one, other


def come_to_rest(one: Site, other: Site) -> None:
    other.write("UPDATE t SET u = 'x' WHERE id = 'l'", 21)
    carry(other, one)
    carry(one, other)
    carry(other, one)
    assert one.table() == other.table() == folded(one)


def test_a_rival_that_everybody_has_is_known_to_be_later_than_what_comes_back() -> None:
    one, other = rivals(l_at=5, k_at=10)
    assert stamps(one, "k") is not None, "it is after what the other one has not told"
    come_to_rest(one, other)
    assert one.table().keys() == {"l", "n"}, "one row gave way, not both"
    assert one.removed == other.removed == one.lost == other.lost == [("k", None, 3)]


def test_a_rival_that_is_forgotten_has_had_the_value_longer() -> None:
    one, other = rivals(l_at=10, k_at=5)
    assert stamps(one, "k") is None
    come_to_rest(one, other)
    assert one.table().keys() == {"k", "n"}
    assert one.removed == other.removed == one.lost == other.lost == [("l", "x", 3)]


# Random worlds, with and without.


def statement(rng: random.Random) -> str:
    key, v = rng.choice("klm"), rng.choice("12")
    return rng.choice(
        [
            f"UPDATE OR IGNORE t SET v = {v} WHERE id = '{key}'",
            f"UPDATE OR IGNORE t SET v = {v} WHERE id = '{key}'",
            f"UPDATE t SET u = {rng.randint(1, 9)} WHERE id = '{key}'",
            f"UPDATE t SET u = {rng.randint(1, 9)} WHERE id = '{key}'",
            f"DELETE FROM t WHERE id = '{key}'",
            f"INSERT OR IGNORE INTO t VALUES ('{key}', 0, {v})",
        ]
    )


def journals_of_two(seed: int, *, forgets: bool) -> list[list[Sent]]:
    rng = random.Random(seed)
    sites = [Site(at + 1, SCHEMA, rng.randint(-20, 20)) for at in range(2)]
    world(rng, sites, statement, steps=60, forgets=forgets)
    return journals(sites)


def journals(sites: Sequence[Site]) -> list[list[Sent]]:
    return [site.journal for site in sites]


@pytest.mark.parametrize(
    "first", [380, 780, *(pytest.param(first, marks=pytest.mark.long) for first in range(0, 5000, 50))]
)
def test_two_sites_write_the_same_journals_whatever_they_forget(first: int) -> None:
    for seed in range(first, first + (50 if first % 50 == 0 else 5)):
        assert journals_of_two(seed, forgets=True) == journals_of_two(seed, forgets=False), seed


@pytest.mark.parametrize("seed", TOLD_APART)
def test_they_would_not_if_all_that_everybody_has_were_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowMerger, "_has_unique", lambda _merger, _table_id: False)
    assert journals_of_two(seed, forgets=True) != journals_of_two(seed, forgets=False)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shape"), CASES)
@pytest.mark.parametrize("first", [1, *(pytest.param(first, marks=pytest.mark.long) for first in range(3, 200, 2))])
def test_many_sites_write_the_same_journals_whatever_they_forget(count: int, shape: str, first: int) -> None:
    for seed in (first, first + 1):
        remembering, forgetting = (live(seed, count, shape, forgets=forgets) for forgets in (False, True))
        assert journals(remembering) == journals(forgetting), seed
