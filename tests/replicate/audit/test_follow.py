"""New transactions as they come, each once: across segments, pruning, a pool that is made again, and switchovers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replicate.audit.follow import Follower
from replicate.audit.query import Query
from replicate.door.recovery.opening import open_door
from replicate.errors import GapError, JournalMissingError, NotFoundError
from replicate.instance.instance import Instance
from replicate.journal.chain import Chain
from tests.harness import instances
from tests.harness.sites import Sites


@pytest.fixture
def primary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Instance:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    return instances.make_primary(tmp_path / "alpha")


def write(primary: Instance, *rows: int) -> None:
    with instances.session_of(primary) as session:
        for row in rows:
            instances.insert(session, row)


def test_each_is_given_once_as_it_comes(primary: Instance) -> None:
    with closing(Follower(primary, Query())) as follower:
        begin = follower.next_seqno
        assert list(follower.new()) == []
        write(primary, 1, 2)
        assert [one.seqno for one in follower.new()] == [begin, begin + 1]
        assert list(follower.new()) == []
        write(primary, 3)
        instances.lose_pool(primary)
        assert [one.seqno for one in follower.new()] == [begin + 2]  # from the files
        write(primary, 4)  # with a pool of another epoch
        assert [one.seqno for one in follower.new()] == [begin + 3]


def test_from_a_number_on_and_of_one_table(primary: Instance) -> None:
    write(primary, 1, 2)
    with closing(Follower(primary, Query(1, tables=("t",), ops=("insert",)))) as follower:
        assert [one.seqno for one in follower.new()] == [3, 4]
        write(primary, 3)
        assert [one.seqno for one in follower.new()] == [5]
    with pytest.raises(NotFoundError, match="'none'"):
        Follower(primary, Query(tables=("none",)))


def test_across_segments_and_pruning(primary: Instance) -> None:
    instances.configure(primary.path, segment_bytes=1024 * 1024, pool_bytes=1024 * 1024)
    with closing(Follower(primary, Query())) as follower:
        begin = follower.next_seqno
        with instances.session_of(Instance.open(primary.path)) as session:
            for row in range(6):
                instances.insert(session, row, "x" * 400_000)
        chain = Chain(primary.journal_directory)
        assert len(chain.first_seqnos()) > 1
        assert [one.seqno for one in follower.new()] == list(range(begin, begin + 6))
        chain.prune(chain.first_seqnos()[-1])
        write(primary, 10)
        assert [one.seqno for one in follower.new()] == [begin + 6]


def test_through_a_switchover_and_back_on_both_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    sites = Sites.level(tmp_path)
    with closing(Follower(sites.primary, Query())) as one, closing(Follower(sites.secondary, Query())) as other:
        for _ in range(2):
            begin = one.next_seqno
            assert other.next_seqno == begin
            sites.write(2)
            sites.switch()
            last = sites.write(2)
            sites.catch_up()
            for follower in (one, other):
                assert [match.seqno for match in follower.new()] == list(range(begin, last + 1))
            assert last - begin + 1 == 2 + 1 + 2, "a history record stands between"


def test_what_was_pruned_before_it_was_seen_is_said(primary: Instance) -> None:
    instances.configure(primary.path, segment_bytes=1024 * 1024, pool_bytes=1024 * 1024)
    with closing(Follower(primary, Query())) as follower:
        begin = follower.next_seqno
        with instances.session_of(Instance.open(primary.path)) as session:
            for row in range(9):
                instances.insert(session, row, "x" * 400_000)
        chain = Chain(primary.journal_directory)
        chain.prune(chain.first_seqnos()[-1])
        with pytest.raises(JournalMissingError, match=str(begin)):
            list(follower.new())


def test_a_rollback_is_said(primary: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    write(primary, 1, 2)
    with closing(Follower(primary, Query(1))) as follower:
        last = [one.seqno for one in follower.new()][-1]
        monkeypatch.setattr(Follower, "_bound", lambda _: last - 1)
        with pytest.raises(GapError, match=f"ends with transaction {last - 1}, {last} was there before"):
            list(follower.new())
    open_door(primary).close()
