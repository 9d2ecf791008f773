"""What Spark does is told while it does it: tasks of an archive in the making, and of a net change."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from replicate.journal.chain import Chain
from tests.harness.backlog import Backlog
from tests.harness.waiting import wait_until
from update_process.replay.apply import Progress
from update_process.replay.archive.archive import Archive, Step
from update_process.replay.command import replay
from update_process.replay.spark.progress import Tasks, tasks_told


class Tracker:
    """Stages by their number: tasks done, and how many; only active ones are seen."""

    def __init__(self, *looks: dict[int, tuple[int, int]]) -> None:
        self.looks = list(looks)
        self.now: dict[int, tuple[int, int]] = {}
        self.count = 0

    def getActiveStageIds(self) -> list[int]:
        self.count += 1
        if self.looks:
            self.now = self.looks.pop(0)
        if not self.now and self.count % 2:
            raise OSError("Java is not there for a moment")
        return list(self.now)

    def getStageInfo(self, stage: int) -> Any:
        done, whole = self.now[stage]
        return None if whole == 0 else SimpleNamespace(numCompletedTasks=done, numTasks=whole)


def spark_with(tracker: Tracker) -> Any:
    return SimpleNamespace(sparkContext=SimpleNamespace(statusTracker=lambda: tracker))


def test_tasks_of_all_stages_are_counted_and_only_grow() -> None:
    tracker = Tracker({}, {7: (0, 0)}, {7: (1, 4)}, {7: (3, 4), 8: (0, 2)}, {8: (1, 2)}, {9: (0, 5)}, {})
    told: list[tuple[int, int]] = []
    with tasks_told(spark_with(tracker), lambda *one: told.append(one), period_s=0.001):
        wait_until(lambda: told[-1:] == [(11, 11)])
    assert list(dict.fromkeys(told)) == [(1, 4), (3, 6), (5, 6), (6, 11), (11, 11)]
    assert not [one for one in threading.enumerate() if one.name == "spark progress"]


def test_what_the_listener_raises_ends_the_block_and_an_error_of_the_work_comes_first() -> None:
    heard = threading.Event()

    def told(*_: int) -> None:
        heard.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), tasks_told(spark_with(Tracker({1: (1, 1)})), told, period_s=0.001):
        assert heard.wait(60)
    heard.clear()
    with pytest.raises(KeyError):
        _fails(tasks_told(spark_with(Tracker({1: (1, 1)})), told, period_s=0.001), heard)


def _fails(block: AbstractContextManager[None], heard: threading.Event) -> None:
    with block:
        assert heard.wait(60)
        raise KeyError


@pytest.mark.slow
def test_a_replay_and_an_archive_tell_of_them(
    backlog: Backlog, spark: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = spark.sparkContext.statusTracker()
    assert Tasks(tracker).look() is None  # nothing is at work
    stages = [stage for job in tracker.getJobIdsForGroup() for stage in tracker.getJobInfo(job).stageIds]
    known = [info for info in map(tracker.getStageInfo, stages) if info is not None]
    assert all(0 <= info.numCompletedTasks <= info.numTasks for info in known)
    assert known
    monkeypatch.setattr(Tasks, "look", lambda _: (1, 2))
    heard: list[Progress] = []
    replay(backlog.secondary(), [backlog.archive], spark=lambda: nullcontext(spark), told=heard.append)
    assert heard[0].what == "starting Spark"
    tasks = [one for one in heard if one.what == "collapsing" and one.whole]
    assert {(one.done, one.whole) for one in tasks} == {(1, 2)}
    assert tasks[0].seqno > backlog.base_seqno  # with all that was told before
    steps: list[Step] = []
    archive = Archive(spark, (tmp_path / "archive").as_uri(), range_segments=2)
    archive.add(Chain(backlog.pair.primary.journal_directory), told=steps.append)
    assert (steps[0].segments, steps[0].all_segments > 2, steps[0].tasks) == (0, True, 0)
    assert steps[-1].segments == steps[-1].all_segments
    assert {(one.tasks, one.all_tasks) for one in steps} == {(0, 0), (1, 2)}
    assert [one.segments for one in steps] == sorted(one.segments for one in steps)
