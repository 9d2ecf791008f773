"""Rows that want one unique value, whatever the index is of: random worlds of several sites, beside brute force.

At rest all sites have one table: that to which all transactions fold by their stamps.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import chain, product

import pytest

from tests.harness.merging_sites import Site, Values, folded, world

Wants = Callable[[Values], object]
"""What a row (id, u, v, w) has in a unique index; None: nothing that another one may not have."""


def _lower(text: str | None) -> str | None:
    return None if text is None else text.lower()


INDEXES: dict[str, Wants] = {
    "(u) WHERE v > 1": lambda row: row[1] if row[2] is not None and row[2] > 1 else None,
    "(lower(u))": lambda row: _lower(row[1]),
    "(lower(u), v) WHERE w IS NOT NULL": lambda row: (
        (_lower(row[1]), row[2]) if row[3] is not None and None not in row[1:3] else None
    ),
    "(coalesce(v, 7))": lambda row: 7 if row[2] is None else row[2],
    "((1)) WHERE v = 3": lambda row: 1 if row[2] == 3 else None,
    "(u COLLATE NOCASE, w)": lambda row: (_lower(row[1]), row[3]) if None not in (row[1], row[3]) else None,
    "(g)": lambda row: _lower(row[1]),
    "(w || u) WHERE g <> 'p'": lambda row: (
        row[3] + row[1] if None not in (row[1], row[3]) and _lower(row[1]) != "p" else None
    ),
}


def statement_of(rng: random.Random) -> str:
    key = rng.choice("klmn")
    u = rng.choice(["'p'", "'P'", "'q'", "'Q'", "NULL"])
    v, w = rng.choice(["1", "2", "3", "NULL"]), rng.choice(["'x'", "'x'", "NULL"])
    return rng.choice(
        [
            f"INSERT OR IGNORE INTO t (id, u, v, w) VALUES ('{key}', {u}, {v}, {w})",
            f"INSERT OR REPLACE INTO t (id, u, v, w) VALUES ('{key}', {u}, {v}, {w})",
            f"UPDATE OR IGNORE t SET u = {u} WHERE id = '{key}'",
            f"UPDATE OR IGNORE t SET v = {v} WHERE id = '{key}'",
            f"UPDATE OR IGNORE t SET w = {w} WHERE id = '{key}'",
            f"UPDATE OR REPLACE t SET u = {u}, v = {v} WHERE id = '{key}'",
            f"DELETE FROM t WHERE id = '{key}'",
        ]
    )


def world_of(seed: int, *, large: random.Random | None = None) -> tuple[list[Site], list[Wants]]:
    rng = random.Random(seed)
    chosen = rng.sample(sorted(INDEXES), rng.randint(1, 2))
    table = "CREATE TABLE t (id TEXT PRIMARY KEY, u, v, w, g AS (lower(u)) STORED) WITHOUT ROWID"
    schema = [table, *(f"CREATE UNIQUE INDEX i{at} ON t {text}" for at, text in enumerate(chosen))]
    wants = [INDEXES[text] for text in chosen]
    sites = [Site(at + 1, schema, rng.randint(-20, 20)) for at in range(rng.randint(2, 3))]

    def taken(site: Site, removed: list[Values]) -> None:
        rivals = [*site.table().values(), *removed]
        for row in removed if large is None else ():
            assert any(collide(row, other, wants) for other in rivals), f"{row} gave way to nobody"

    world(rng, sites, statement_of, large=large, taken=taken)
    return sites, wants


def collide(one: Values, other: Values, wants: list[Wants]) -> bool:
    return one[0] != other[0] and any(wanted(one) is not None and wanted(one) == wanted(other) for wanted in wants)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(100, 5000, 100))]
)
def test_every_world_comes_to_rest_in_one_table_and_who_gave_way_is_kept_once(first: int) -> None:
    gave_way = 0
    for seed in range(first, first + 100):
        sites, wants = world_of(seed)
        wanted = folded(sites[0])
        for site in sites:
            assert site.table() == wanted, (seed, site.origin)
            assert site.lost == site.removed, (seed, site.origin)
            gave_way += len(site.removed)
        rows = wanted.values()
        assert not any(collide(one, other, wants) for one, other in product(rows, rows)), seed
    assert gave_way > 50


@pytest.mark.long
def test_each_index_has_rows_that_give_way() -> None:
    """So that none of them is there for nothing."""
    worlds = [world_of(seed) for seed in range(100)]
    for text, wanted in INDEXES.items():
        found = chain.from_iterable(site.removed for sites, wants in worlds for site in sites if wanted in wants)
        assert any(wanted(row) is not None for row in found), text
