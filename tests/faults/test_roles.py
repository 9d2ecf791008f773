"""The campaign of roles in short: the rounds that no other test lives with real processes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.faults.roles import ROLES_ZERO, Sites
from tests.harness.both_sites import KEPT, Both
from tests.harness.street import QUICK

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    both = Both(tmp_path_factory.mktemp("roles"), settings=QUICK, schema=KEPT).build()
    try:
        assert isinstance(both, Both)
        yield Sites(both.start(), random.Random(17))
    finally:
        both.close()


@pytest.mark.parametrize("name", ["split", "frozen", "both lost, the other first"])
def test_what_was_acknowledged_is_there_once(sites: Sites, name: str) -> None:
    before = sites.figures["rolled back"]
    sites.live(name)
    assert {one: sites.figures[one] for one in ROLES_ZERO} == dict.fromkeys(ROLES_ZERO, 0)
    assert sites.figures["rolled back"] > before


def test_what_is_lacking_is_seen(sites: Sites) -> None:
    """The judgement itself: a number that nobody has, and one too many."""
    if not sites.committed:
        sites.live("split")
    first = min(sites.committed)
    told = Sites(sites.both, random.Random(1), committed={**sites.committed, "nobody": 2})
    told.judge()
    assert told.figures["role changes that lost a transaction"] == 1
    told = Sites(sites.both, random.Random(1), committed={first: sites.committed[first] - 2})
    told.judge()
    assert told.figures["role changes that doubled a transaction"] == 1
