"""The secondary's door when something around it fails: its file swapped, its disk broken or full. As on a primary."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from replicate.door.secondary import ApplySession
from replicate.errors import DiskFullError, JournalIOError, OutcomeUnknownError, RegionReplacedError
from replicate.journal.durable import DurableSidecar
from replicate.journal.segment import SegmentFile
from replicate.pool import control as word
from replicate.pool.receive_pool import ReceivePool
from replicate.status.collect import collect
from tests.harness.pair import Pair, work_all


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair.create(tmp_path)
    made.seed()
    yield made
    del os.environ["REPLICATE_SHM_DIR"]


@pytest.fixture
def pool(pair: Pair) -> Iterator[ReceivePool]:
    with pair.connect() as connection:
        connection.execute("INSERT INTO account VALUES (1, 'ann', 100, NULL)")
    connection.close()
    with pair.receive_pool() as made:
        pair.deliver(made)
        yield made


def check_applied(pair: Pair, pool: ReceivePool) -> None:
    """The Update Process starts again: everything is there, once."""
    pool.close()
    with pair.session():
        pass  # recovery, and what it redoes
    with pair.receive_pool() as fresh, pair.applier(fresh) as applier:
        pair.deliver(fresh)
        work_all(applier)
    assert pair.rows("account") == pair.rows("account", pair.primary) != []
    assert pair.last_seqno(pair.secondary) == pair.last_seqno(pair.primary)


def test_a_region_file_swapped_under_the_session_is_refused_before_anything_is_written(
    pair: Pair, pool: ReceivePool
) -> None:
    path = pair.secondary.region("main").path
    aside = path.with_suffix(".right")
    last = pair.last_seqno(pair.secondary)
    with pair.applier(pool) as applier:
        os.link(path, aside)
        shutil.copy(path, path.with_suffix(".copy"))
        path.with_suffix(".copy").rename(path)
        for _ in range(2):
            with pytest.raises(RegionReplacedError, match=r"was replaced while it was open.*put the right file"):
                work_all(applier)
        path.unlink()
        with pytest.raises(RegionReplacedError, match="is gone"):
            work_all(applier)
        assert applier.session.door.words[word.LAST_SEQNO] == last
        aside.rename(path)
    check_applied(pair, pool)


@pytest.mark.parametrize("what", ["write", "sync", "mark"])
def test_a_journal_that_fails_after_the_append_says_outcome_unknown(
    pair: Pair, pool: ReceivePool, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def failing(self: Any, *_: object) -> None:
        raise JournalIOError("planted", where="the disk", errno=errno.EIO)

    kind, name = {"write": (SegmentFile, "append"), "sync": (SegmentFile, "sync"), "mark": (DurableSidecar, "write")}[
        what
    ]
    with pair.applier(pool) as applier, monkeypatch.context() as patch:
        patch.setattr(kind, name, failing)
        expected = "is committed, but" if what == "mark" else "was being written into the journal"
        with pytest.raises(OutcomeUnknownError, match=f"{expected}.*planted"):
            work_all(applier)
    check_applied(pair, pool)


def test_a_full_disk_at_the_append_is_told_as_it_is_and_nothing_happened(
    pair: Pair, pool: ReceivePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Any, *_: object) -> None:
        raise DiskFullError("planted", where="the disk", errno=errno.ENOSPC)

    with pair.applier(pool) as applier:
        with monkeypatch.context() as patch:
            patch.setattr(SegmentFile, "append", failing)
            with pytest.raises(DiskFullError, match="planted"):
                work_all(applier)
        assert applier.session.door.words[word.FATAL] == 0
        work_all(applier)  # there is room again
    assert pair.rows("account") == pair.rows("account", pair.primary)


class FullAtCommit:
    """A connection whose COMMIT finds the disk full."""

    def __init__(self, real: apsw.Connection) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def execute(self, sql: str, *more: Any, **named: Any) -> Any:
        if sql == "COMMIT":
            raise apsw.FullError("database or disk is full")
        return self._real.execute(sql, *more, **named)


def fill_disk(session: ApplySession) -> None:
    region = session._open[0].region
    region.connection = FullAtCommit(region.connection)  # type: ignore[assignment]


def test_a_disk_that_is_full_as_what_is_nobody_elses_is_kept_is_told_as_it_is(pair: Pair, pool: ReceivePool) -> None:
    """It stands in no journal, so nothing has happened. Found by a simulated world: SQLite's own error left."""
    with pair.session() as session:
        real = session._open[0].region.connection
        fill_disk(session)
        session.begin()
        with pytest.raises(DiskFullError, match="database or disk is full"):
            session.keep()
        assert not session.door.words[word.FATAL]
        session._open[0].region.connection = real
        session.begin()
        session.keep()
    check_applied(pair, pool)


def test_a_disk_that_is_full_at_commit_stays_a_full_disk_for_everybody(pair: Pair, pool: ReceivePool) -> None:
    with pair.applier(pool) as applier:
        fill_disk(applier.session)
        with pytest.raises(OutcomeUnknownError, match="disk is full"):
            work_all(applier)
        assert applier.session.door.words[word.FATAL] == errno.ENOSPC
        with pytest.raises(DiskFullError, match=r"disk full\) and takes nothing more.*Make space"):
            applier.session.door.enter()
        (found,) = [one for one in collect(pair.secondary).findings if one.code == "JOURNAL_FATAL"]
        assert "disk full: ENOSPC" in found.text
        assert "make space" in found.do
    check_applied(pair, pool)
