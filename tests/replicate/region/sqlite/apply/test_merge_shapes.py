"""Two to five sites, linked in each way: random worlds of rows with unique values, beside brute force.

Clocks are skewed, sites are killed after an append, one may be restored, and stamps are forgotten in every second
world. At rest all sites have the same transactions, and one table: that to which all of them fold by their stamps.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise, product

import pytest

from tests.harness.merging_sites import Site, folded, world
from tests.harness.merging_worlds import CASES
from tests.replicate.region.sqlite.apply.test_merge_unique import INDEXES, collide, statement_of
from tests.simulation.suppliers.climate import links_of

TABLE = "CREATE TABLE t (id TEXT PRIMARY KEY, u, v, w, g AS (lower(u)) STORED) WITHOUT ROWID"


def links(count: int, shape: str) -> Sequence[tuple[int, int]]:
    """By the sites' places."""
    names = tuple(map(str, range(count)))
    return [(int(one), int(other)) for one, other in links_of(shape, names)]


def live(seed: int, count: int, shape: str, *, forgets: bool | None = None) -> list[Site]:
    rng = random.Random(f"{shape} of {count}: {seed}")
    chosen = rng.sample(sorted(INDEXES), rng.randint(1, 2))
    schema = [TABLE, *(f"CREATE UNIQUE INDEX i{at} ON t {text}" for at, text in enumerate(chosen))]
    sites = [Site(at + 1, schema, rng.randint(-20, 20)) for at in range(count)]
    large = random.Random(f"large {seed}") if seed % 2 else None
    restored = random.Random(f"restored {seed}") if seed % 3 == 0 else None
    linked = links(count, shape)
    world(rng, sites, statement_of, steps=20 * count, large=large, restored=restored, links=linked, forgets=forgets)
    wanted = folded(sites[0])
    wants = [INDEXES[text] for text in chosen]
    for site in sites:
        assert site.here == sites[0].here, (seed, site.origin)
        assert site.table() == wanted, (seed, site.origin)
        assert not site.merger.has_waiting, (seed, site.origin)
        if restored is large is None:
            assert site.lost == site.removed, (seed, site.origin)
    rows = wanted.values()
    assert not any(collide(one, other, wants) for one, other in product(rows, rows)), seed
    return sites


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shape"), CASES)
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(9, 450, 9))])
def test_every_world_comes_to_rest_in_one_table(count: int, shape: str, first: int) -> None:
    gave_way = sum(len(site.removed) for seed in range(first, first + 9) for site in live(seed, count, shape))
    assert gave_way or first  # nine worlds of a line may have none


def test_each_shape_is_what_it_says() -> None:
    assert links(5, "line") == list(pairwise(range(5)))
    assert links(5, "ring") == [*pairwise(range(5)), (4, 0)]
    assert links(5, "star") == [(0, at) for at in range(1, 5)]
    assert len(links(5, "mesh")) == 10
