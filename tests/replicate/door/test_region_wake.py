"""Who waits for a region: woken by the writer before it under `durable`, else looking for itself; killed holders."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from replicate.door.primary import RegionSession
from replicate.errors import PoolReplacedError
from replicate.instance.instance import Instance
from replicate.pool import control as word
from replicate.pool.wake_word import WakeWord
from replicate.system import locks
from tests.harness.instances import (
    Writer,
    begin_insert,
    check,
    door_of,
    insert,
    lose_pool,
    make_primary,
    rows,
    session_of,
)
from tests.harness.waiting import wait_until


@pytest.fixture(autouse=True)
def pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "pools"
    directory.mkdir()
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(directory))


def wake_of(session: RegionSession) -> object:
    (part,) = session.parts
    return part.lock.wake


def test_under_durable_one_that_ends_its_transaction_wakes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks for itself here: a waiter that is not woken waits for an hour. Commits and rollbacks in turns."""
    instance = make_primary(tmp_path / "alpha")
    monkeypatch.setattr(locks, "PAUSE_S_MAX", 3600.0)
    done: list[int] = []

    def work(number: int) -> None:
        with session_of(instance) as session:
            for at in range(20):
                found = begin_insert(session, number * 100 + at, timeout_s=3000.0)
                if at % 4 == 3:
                    session.rollback()
                else:
                    session.commit(found)
                    done.append(number * 100 + at)

    with session_of(instance) as first:
        words = first.door.words
        begin_insert(first, 9999)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: words[word.REGION_WAKE + first.entry.region_id] == 1, what="somebody waits")
        first.rollback()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert rows(instance.region("main").path).keys() == set(done)
    assert len(done) == 4 * 15
    check(instance)


@pytest.mark.parametrize("durability", ["interval", "off"])
def test_without_a_wait_for_the_disk_nobody_is_woken(tmp_path: Path, durability: str) -> None:
    """The writer that has just written mostly wants the region again, and is the quickest to use it."""
    instance = make_primary(tmp_path / "alpha", durability=durability)
    with session_of(instance) as session:
        insert(session, 1)
        assert wake_of(session) is None


def test_a_killed_holder_wakes_nobody_and_is_noticed(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha")
    with Writer(instance) as holder, session_of(instance) as session, door_of(instance) as door:
        assert holder.ask("begin", "main", 1) == "begun"
        thread = threading.Thread(target=insert, args=(session, 2), kwargs={"timeout_s": 60.0})
        thread.start()
        place = word.REGION_WAKE + session.entry.region_id
        wait_until(lambda: door.words[place] == 1, what="somebody waits")
        holder.process.kill()
        thread.join(30)
        assert not thread.is_alive()
    assert rows(instance.region("main").path).keys() == {2}


def test_a_session_sleeps_on_the_pool_that_it_uses(tmp_path: Path) -> None:
    instance = make_primary(tmp_path / "alpha", regions=("main", "two"))
    with session_of(instance) as session:
        insert(session, 1)
        before = wake_of(session)
        assert isinstance(before, WakeWord)
        lose_pool(Instance.open(instance.path))
        begun = begin_insert(session, 2)
        with pytest.raises(PoolReplacedError):
            session.commit(begun)
        insert(session, 2)
        after = wake_of(session)
        assert isinstance(after, WakeWord)
        assert after._memory is session.door.pool.memory is not before._memory
