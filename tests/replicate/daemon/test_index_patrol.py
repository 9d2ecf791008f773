"""A site's own indexes, all the time: a round, its pace, one daemon of several, and what ends a finding."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from msgspec.structs import replace

from replicate.admin.reindexing import reindex_region
from replicate.compare import index_check
from replicate.compare.index_found import IndexesFound, Looked, OrphanRows, look_at_indexes
from replicate.compare.patrol_rounds import Place
from replicate.daemon import index_patrol
from replicate.daemon.index_patrol import IndexPatrol
from replicate.door.recovery.opening import SEEDING_MARKER
from replicate.errors import DiskFullError
from replicate.instance.instance import Instance
from replicate.settings.table import ReceiverConfig
from replicate.system.locks import FileLock
from replicate.transfer.seed.install import finish
from tests.harness.counting import count_calls
from tests.harness.pair import Pair
from tests.harness.servers import ListLog
from tests.harness.stale_index import change_without_index
from tests.harness.waiting import wait_until_async

QUICK = replace(ReceiverConfig(), patrol_percent=100.0, patrol_speed_mb=10_000.0, patrol_round_s=1000.0)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("REPLICATE_SHM_DIR", str(tmp_path / "shm"))
    monkeypatch.setattr(index_patrol, "LOOK_S", 0.01)
    monkeypatch.setattr(index_check, "ROWS_MAX", 5)
    made = Pair.create(tmp_path, "CREATE TABLE t (id INTEGER PRIMARY KEY, a, b UNIQUE); CREATE INDEX i ON t (a);")
    made.seed()
    with closing(made.connect()) as connection:
        connection.executemany("INSERT INTO t VALUES (?1, ?1, ?1)", [(n,) for n in range(1, 31)])
        connection.commit()
    made.catch_up()
    return made


def patrol_of(instance: Instance, **settings: Any) -> IndexPatrol:
    return IndexPatrol(instance, replace(QUICK, **settings), structlog.get_logger())


async def goes_until(patrol: IndexPatrol, condition: Any) -> None:
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol.run)
            await wait_until_async(condition)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("role", ["primary", "secondary"])
@pytest.mark.trio
async def test_damage_is_found_within_one_round_and_over_when_it_is_mended(pair: Pair, role: str) -> None:
    instance: Instance = getattr(pair, role)
    patrol = patrol_of(instance)
    assert patrol.figures(0) == {}
    await goes_until(patrol, lambda: patrol.found.whole.ended_wall_ns)
    assert patrol.found.damaged == ()
    assert patrol.found.whole.entries == 60
    assert look_at_indexes(instance.path) == patrol.found
    figures = patrol.figures(patrol.found.whole.began_wall_ns + 3 * 10**9)
    assert figures == {"index_entries": 60, "index_age_s": 3.0, "index_left_out": 0, "index_damaged": 0}
    change_without_index(instance.region("main").path, "i", "UPDATE t SET a = 'x' WHERE id = 17")
    patrol = patrol_of(instance, patrol_round_s=0.1)
    await goes_until(patrol, lambda: patrol.found.damaged)
    assert {one.key for one in patrol.found.damaged} <= {"17", "17, 17"}
    await goes_until(patrol, lambda: len(patrol.found.damaged) == 2)
    assert look_at_indexes(instance.path).damaged == patrol.found.damaged
    assert reindex_region(instance, "main", [], timeout_s=5) == ["i"]
    before = patrol.found.whole.ended_wall_ns
    await goes_until(patrol, lambda: patrol.found.whole.ended_wall_ns > before)
    assert patrol.found.damaged == ()
    assert look_at_indexes(instance.path).damaged == ()


@pytest.mark.trio
async def test_a_round_goes_on_where_it_was(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[Place] = []
    take = index_check.take_slice

    def taken(instance: Instance, place: Place) -> index_check.Slice:
        places.append(place)
        return take(instance, place)

    monkeypatch.setattr(index_patrol, "take_slice", taken)
    await goes_until(patrol_of(pair.primary), lambda: len(places) > 3)
    before = list(places)
    patrol = patrol_of(pair.primary)
    await goes_until(patrol, lambda: patrol.found.whole.ended_wall_ns)
    assert len(set(places)) >= len(places) - 1  # the one that was cut short may be taken again
    assert places[: len(before)] == before
    assert {place.round_wall_ns for place in places} == {before[0].round_wall_ns}
    assert patrol.found.whole.entries in (60, 65)


@pytest.mark.trio
async def test_what_was_looked_at_before_a_seed_is_not_told_of_what_came_with_it(
    tmp_path: Path, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secondary that waited for its first copy said for an hour after it: all 0 entries verified."""
    pair.secondary = Instance.create(
        tmp_path / "new", role="secondary", network=pair.primary.content.network, name="north"
    )
    pair.primary.register_peer("north", "127.0.0.1", 7431)
    looks = count_calls(monkeypatch, IndexPatrol, "_place")
    patrol = patrol_of(pair.secondary)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(patrol.run)
            await wait_until_async(looks.since_now(3))
            assert patrol.found == IndexesFound()
            await trio.to_thread.run_sync(pair.seed)
            await wait_until_async(lambda: patrol.found.whole.ended_wall_ns)
            assert patrol.found.whole.entries == 60
            # While it is filled again, nothing is looked at, and what was found before is of other files.
            seeding = pair.secondary.path / SEEDING_MARKER
            seeding.touch()
            await wait_until_async(lambda: patrol.found == IndexesFound())
            assert not patrol.goes
            finish(pair.secondary)
            await wait_until_async(lambda: patrol.found.whole.ended_wall_ns)
            assert patrol.found.whole.entries == 60
            nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_one_of_several_daemons_goes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    acquire = FileLock.try_acquire

    def tried(lock: FileLock) -> bool:
        looks.append(acquire(lock))
        return looks[-1]

    with closing(FileLock(pair.primary.locks_directory / "indexes.lock")) as lock:
        assert lock.try_acquire()
        monkeypatch.setattr(FileLock, "try_acquire", tried)
        patrol = patrol_of(pair.primary)
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(patrol.run)
                await wait_until_async(lambda: len(looks) > 3)
                assert not any(looks)
                assert not patrol.goes
                lock.release()
                await wait_until_async(lambda: patrol.found.whole.ended_wall_ns)
                nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_there_is_none(pair: Pair) -> None:
    with trio.fail_after(5):
        await patrol_of(pair.primary, patrol_percent=0.0).run()


@pytest.mark.parametrize("beside", ["", "main.t"])
@pytest.mark.trio
async def test_it_takes_what_it_is_given(pair: Pair, monkeypatch: pytest.MonkeyPatch, beside: str) -> None:
    asked: list[dict[str, float]] = []
    monkeypatch.setattr(index_patrol, "pause_s", lambda **facts: (asked.append(facts), 0.0)[1])
    patrol = patrol_of(pair.primary, patrol_percent=3.0, patrol_speed_mb=8.0)
    patrol.beside = beside
    await goes_until(patrol, lambda: patrol.found.whole.ended_wall_ns)
    assert {(one["percent"], one["mb_per_s"]) for one in asked} == {(1.5, 4.0) if beside else (3.0, 8.0)}
    assert all(one["busy_s"] > 0 for one in asked)
    assert sum(one["size"] for one in asked) > 0


@pytest.mark.trio
async def test_a_full_disk_stops_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise DiskFullError("no room")

    monkeypatch.setattr(index_patrol, "note_indexes", full)
    patrol = patrol_of(pair.primary)
    await goes_until(patrol, lambda: patrol.found.whole.ended_wall_ns)


@pytest.mark.trio
async def test_rows_without_a_parent_are_told_once_and_kept_at_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    lonely = Looked("main.t", orphans=(OrphanRows("main", "t", "other", "7", 1, 100),))
    steps: list[Place] = []

    def taken(_instance: Instance, place: Place) -> index_check.Slice:
        steps.append(place)
        return index_check.Slice(lonely, replace(place, told=place.told + 1), 0.0, 0)

    monkeypatch.setattr(index_patrol, "take_slice", taken)
    log: Any = ListLog()
    patrol = IndexPatrol(pair.primary, QUICK, log)
    await goes_until(patrol, lambda: len(steps) > 3)
    assert log.lines == [
        ("warning", "a row names one that is not there", {"table": "main.t", "key": "7", "parent": "other"})
    ]
    (kept,) = look_at_indexes(pair.primary.path).orphans
    assert kept.name == ("main", "t", "other")
