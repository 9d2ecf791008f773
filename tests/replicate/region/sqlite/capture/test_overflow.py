"""What leaves memory comes again as it was captured, through any writes and cuts; no file is left that nobody has."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from replicate.errors import DiskFullError
from replicate.journal.spool import Spool
from replicate.region.sqlite.capture.overflow import Overflow


@pytest.mark.parametrize("number", range(12))
def test_what_was_written_and_not_cut_comes_again(tmp_path: Path, number: int) -> None:
    chance = random.Random(number)
    overflow = Overflow(lambda: Spool.create(tmp_path, 7))
    assert (overflow.size_bytes, b"".join(overflow.stream()), list(tmp_path.iterdir())) == (0, b"", [])
    expected = b""
    for _ in range(12):
        data = chance.randbytes(chance.choice((1, 1000, 300_000)))
        overflow.write(data)
        expected += data
        if chance.random() < 0.4:
            expected = expected[: chance.randrange(len(expected) + 1)]
            overflow.cut(len(expected))
        assert overflow.size_bytes == len(expected)
        assert b"".join(overflow.stream()) == expected
    overflow.clear()
    assert (overflow.spool, overflow.size_bytes, os.listdir(tmp_path)) == (None, 0, [])


def test_one_that_was_cut_to_nothing_writes_into_the_same_spool(tmp_path: Path) -> None:
    overflow = Overflow(lambda: Spool.create(tmp_path, 7))
    overflow.write(b"first")
    spool = overflow.spool
    overflow.cut(0)
    overflow.write(b"second")
    assert overflow.spool is spool
    assert b"".join(overflow.stream()) == b"second"
    overflow.clear()


def test_an_adopted_spool_stays(tmp_path: Path) -> None:
    overflow = Overflow(lambda: Spool.create(tmp_path, 7))
    overflow.write(b"data")
    spool = overflow.spool
    overflow.clear(adopted=True)
    assert overflow.spool is None
    assert spool is not None
    assert os.path.exists(spool.path)
    overflow.clear()
    assert os.path.exists(spool.path)
    spool.abort()


def test_where_no_spool_can_be_made_nothing_has_left_memory() -> None:
    def full() -> Spool:
        raise DiskFullError("no room", where="/journal")

    overflow = Overflow(full)
    with pytest.raises(DiskFullError):
        overflow.write(b"data")
    assert (overflow.spool, overflow.size_bytes, list(overflow.stream())) == (None, 0, [])
