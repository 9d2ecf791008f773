"""Large transactions, which are merged part by part, among small ones: random worlds beside brute force."""

from __future__ import annotations

import random

import pytest

from tests.harness.merging_sites import Site, folded, world
from tests.replicate.region.sqlite.apply import test_merge_sums, test_merge_unique

LATER = [pytest.param(first, marks=pytest.mark.long) for first in range(40, 5000, 20)]


@pytest.mark.parametrize("first", [0, 20, *LATER])
def test_what_has_sums_comes_to_what_its_transactions_fold_to(first: int) -> None:
    for seed in range(first, first + 20):
        rng = random.Random(seed)
        sites = [Site(at + 1, test_merge_sums.SCHEMA, rng.randint(-20, 20), ["n"]) for at in range(rng.randint(2, 4))]
        world(rng, sites, test_merge_sums.statement_of, large=random.Random(seed))
        wanted = folded(sites[0])
        for site in sites:
            assert site.table() == wanted, (seed, site.origin)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(100, 5000, 100))]
)
def test_rows_that_give_way_to_a_large_one_or_in_it_are_gone_everywhere(first: int) -> None:
    gave_way = 0
    for seed in range(first, first + 100):
        sites, wants = test_merge_unique.world_of(seed, large=random.Random(seed))
        wanted = folded(sites[0])
        for site in sites:
            assert site.table() == wanted, (seed, site.origin)
            gave_way += len(site.removed)
        rows = wanted.values()
        assert not any(test_merge_unique.collide(one, other, wants) for one in rows for other in rows), seed
    assert gave_way > 50


def test_a_row_that_was_gone_comes_back_with_its_own_values_wherever_its_merger_died() -> None:
    """A later delete, by one that knew other values, does not change what an update brings back."""
    one, other, third = (Site(origin, test_merge_sums.SCHEMA, 0, ["n"]) for origin in (1, 2, 3))
    sites = (one, other, third)
    one.write("INSERT INTO t VALUES ('k', 'old', 1, NULL)", 1)
    for site in (other, third):
        site.take(one.journal[0], 3)
    other.write("UPDATE t SET v = 'newer' WHERE id = 'k'", 2)
    third.write("UPDATE t SET u = 'x' WHERE id = 'k'", 6)
    other.write("DELETE FROM t", 5)
    one.write("DELETE FROM t", 4)
    other.take(one.journal[1], 3, is_killed=True)
    for start in sites:
        for end in sites:
            for sent in [one for one in start.journal if one.stamp.origin_seqno > end.here.get(one.stamp.origin, 0)]:
                end.take(sent, 3)
    assert other.table() == one.table() == third.table() == folded(one)
    assert other.table()["k"][1] == "newer"
