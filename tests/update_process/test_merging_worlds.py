"""Suppliers that write the same tables at once, two to five of them, linked in each way: with real journals and regions
they come to rest in one state, which is what all their transactions come to.

Transactions of one change and of several, unique values of each kind, sums, and what everybody has is forgotten.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.harness.merging_worlds import CASES, assert_as_folded, world
from tests.update_process.test_merging_large import larges

pytestmark = pytest.mark.slow


SEVERAL = pytest.mark.parametrize("is_apart", [False, True], ids=["one region", "two regions"])


@pytest.mark.parametrize(("count", "shape"), CASES)
@SEVERAL
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 20))])
def test_a_world_of_several_writers_comes_to_rest_in_one_state(
    tmp_path: Path, count: int, shape: str, is_apart: bool, seed: int
) -> None:
    seed += CASES.index((count, shape))
    assert_as_folded(world(tmp_path, seed, count, shape, is_apart=is_apart), seed)


@pytest.mark.parametrize(("count", "shape"), CASES)
@SEVERAL
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10))])
def test_a_world_with_large_ones_comes_to_rest_in_one_state(
    tmp_path: Path, count: int, shape: str, is_apart: bool, seed: int
) -> None:
    """Any of them may change rows that others change, in any of its parts, and rows may give way in it."""
    seed += CASES.index((count, shape))
    made = world(tmp_path, seed, count, shape, large=random.Random(seed), is_apart=is_apart)
    assert_as_folded(made, seed)
    assert made.rows("a")["filler"] == []
    assert larges(made, made.names[-1])
