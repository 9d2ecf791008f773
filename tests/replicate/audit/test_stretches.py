"""Stretches one after the other answer as the whole chain does, and open no more than they must."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from replicate.audit.count import Counts
from replicate.audit.query import Query, find
from replicate.audit.sources import NamedFiles
from replicate.audit.stretches import Stretch, StretchMatches
from replicate.errors import UsageError
from replicate.journal.chain import Chain
from tests.harness.random_journal import RandomJournal


class Opener:
    """A stretch for each segment; notes which were opened."""

    def __init__(self, chain: Chain) -> None:
        self.opened: list[int] = []
        ends = [*chain.first_seqnos(), find(chain, Query()).last_seqno + 1]
        self.stretches = [
            Stretch(first, following - 1, partial(self.open, chain, first)) for first, following in pairwise(ends)
        ]

    @contextmanager
    def open(self, chain: Chain, first: int) -> Iterator[Chain]:
        self.opened.append(first)
        yield NamedFiles({first: chain.path_of(first)}, "an archive")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_they_answer_as_the_whole_does(seed: int, tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", seed, 80)
    opener = Opener(made.chain)
    dice = random.Random(seed)
    for _ in range(8):
        first, last = sorted(dice.randint(1, 80) for _ in range(2))
        table = dice.choice(((), ("plain",), ("double", "hidden")))
        for query in (Query(first, last, tables=table), Query(tables=table, last_count=5), Query(ops=("delete",))):
            whole, parts = find(made.chain, query), StretchMatches(opener.stretches, query, "an archive")
            wanted = [one.body for one in whole]
            assert [one.body for one in parts] == wanted
            assert [one.body for one in parts.backwards()] == wanted[::-1]
            counted, counted_whole = Counts(("table", "op")), Counts(("table", "op"))
            counted.add(parts.frames())
            counted_whole.add(find(made.chain, query).frames())
            assert list(counted.rows()) == list(counted_whole.rows())


def test_what_the_numbers_leave_out_is_not_opened(tmp_path: Path) -> None:
    made = RandomJournal(tmp_path / "journal", 1, 80)
    opener = Opener(made.chain)
    at = opener.stretches[1]
    assert [one.seqno for one in StretchMatches(opener.stretches, Query(at.first_seqno, at.last_seqno), "")]
    assert opener.opened == [at.first_seqno]
    with pytest.raises(UsageError, match="the journal holds transactions 1 to"):
        StretchMatches(opener.stretches, Query(1000), "")
