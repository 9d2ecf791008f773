"""A site that is restored from a backup, and gets back rows that want one unique value: they wait beside their table.

At rest all sites have one table, nothing waits, and who went for good is kept where it waited.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from replicate.region.sqlite.apply.merge import RowMerger
from tests.harness.merging_sites import Site, folded, world
from tests.replicate.region.sqlite.apply.test_merge_unique import INDEXES, collide, statement_of


def world_of(seed: int, *, is_large: bool = False) -> list[Site]:
    rng, restored = random.Random(seed), random.Random(f"restored {seed}")
    chosen = rng.sample(sorted(INDEXES), rng.randint(1, 2))
    table = "CREATE TABLE t (id TEXT PRIMARY KEY, u, v, w, g AS (lower(u)) STORED) WITHOUT ROWID"
    schema = [table, *(f"CREATE UNIQUE INDEX i{at} ON t {text}" for at, text in enumerate(chosen))]
    wants = [INDEXES[text] for text in chosen]
    sites = [Site(at + 1, schema, rng.randint(-20, 20)) for at in range(rng.randint(2, 4))]
    large = random.Random(f"large {seed}") if is_large else None
    world(rng, sites, statement_of, steps=60, large=large, restored=restored)
    wanted = folded(sites[0])
    for site in sites:
        assert site.table() == wanted, (seed, site.origin)
        assert not site.merger.has_waiting, (seed, site.origin)
    rows = wanted.values()
    assert not any(collide(one, other, wants) for one, other in product(rows, rows)), seed
    return sites


class Counted:
    """What became of rows that waited: how many began to, and by whose word they went."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited = self.gone = 0
        kept, note = RowMerger.take, RowMerger._note_waited

        def take(merger: RowMerger, *args: object, **more: object) -> object:
            before = set(merger._stamps.waiting)
            done = kept(merger, *args, **more)  # type: ignore[arg-type]
            self.waited += len(set(merger._stamps.waiting) - before)
            return done

        def noted(merger: RowMerger, *args: object) -> None:
            self.gone += 1
            note(merger, *args)  # type: ignore[arg-type]

        monkeypatch.setattr(RowMerger, "take", take)
        monkeypatch.setattr(RowMerger, "_note_waited", noted)


@pytest.mark.parametrize("is_large", [False, True], ids=["small", "large"])
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in range(60, 3000, 60))])
def test_every_world_with_one_that_is_restored_comes_to_rest_in_one_table(
    first: int, is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    for seed in range(first, first + 60):
        world_of(seed, is_large=is_large)
    assert counted.waited > 10
    assert 0 < counted.gone < counted.waited, "some came back to their tables"


@pytest.mark.parametrize("values", ["u, v", "v, u"])
def test_one_that_waits_leaves_those_whose_values_it_would_have_had(values: str) -> None:
    """It comes after one that has had the first value longer, and before one that has had the other one less long."""
    schema = ["CREATE TABLE t (id TEXT PRIMARY KEY, u UNIQUE, v UNIQUE) WITHOUT ROWID"]
    early, between, late, here = (Site(number, schema, 0) for number in range(1, 5))
    early.write(f"INSERT INTO t (id, {values}) VALUES ('early', 'p', NULL)", 1)
    between.write(f"INSERT INTO t (id, {values}) VALUES ('between', 'p', 'q')", 2)
    late.write(f"INSERT INTO t (id, {values}) VALUES ('late', NULL, 'q')", 3)
    here.lacks = {9}
    members = {bytes([site.number]): site.origins for site in (early, between, late, here)}
    for site in (early, late, between):
        here.take(site.journal[0], members)
    assert sorted(here.table()) == ["early", "late"]
    assert [row.values and row.values[0] for row in here.merger._stamps.waiting.values()] == ["between"]
    early.write("DELETE FROM t", 4)
    here.take(early.journal[1], members)
    assert sorted(here.table()) == ["between"]
    assert [row.values and row.values[0] for row in here.merger._stamps.waiting.values()] == ["late"]
