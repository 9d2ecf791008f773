"""replay/spark/progress.py, without Spark: tasks add up over stages, also of those that ended between two looks."""

from __future__ import annotations

from dataclasses import dataclass

from update_process.replay.spark.progress import Tasks


@dataclass
class Info:
    numCompletedTasks: int
    numTasks: int


class Tracker:
    def __init__(self) -> None:
        self.active: dict[int, Info | None] = {}

    def getActiveStageIds(self) -> list[int]:
        return list(self.active)

    def getStageInfo(self, stage: int) -> Info | None:
        return self.active[stage]


def test_tasks_add_up_and_never_go_back() -> None:
    tracker = Tracker()
    tasks = Tasks(tracker)
    assert tasks.look() is None
    tracker.active = {7: None}
    assert tasks.look() is None, "it has gone between two questions"
    tracker.active = {7: Info(2, 10)}
    assert tasks.look() == (2, 10)
    tracker.active = {7: Info(9, 10), 8: Info(0, 4)}
    assert tasks.look() == (9, 14)
    tracker.active = {8: Info(1, 4)}  # 7 has ended
    assert tasks.look() == (11, 14)
    tracker.active = {}
    assert tasks.look() == (14, 14)
