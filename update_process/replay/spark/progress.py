"""How far Spark is in what it does just now: the tasks that are done, of those that are known.

Guarantees: it only looks; what it cannot see is not told, and never fails the work. What the listener raises ends the
work's block, once that has come to its end.
Leaves to others: what the work is, and how an operator is told.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

LOOK_PERIOD_S: Final = 0.5

TasksTold = Callable[[int, int], None]
"""Called with how many tasks are done, of how many; both only grow. From another thread than the work's."""


@contextmanager
def tasks_told(spark: Any, told: TasksTold, *, period_s: float = LOOK_PERIOD_S) -> Iterator[None]:
    """Tell of the tasks of all that Spark does within."""
    ended = threading.Event()
    raised: list[BaseException] = []

    def look() -> None:
        tasks: Tasks | None = None
        while True:
            try:
                tasks = tasks or Tasks(spark.sparkContext.statusTracker())
                found = tasks.look()
            except Exception:  # whatever Java throws: it may just be going away
                found = None
            try:
                if found is not None:
                    told(*found)
            except BaseException as error:
                raised.append(error)
                return
            if ended.wait(period_s):
                return

    thread = threading.Thread(target=look, name="spark progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if raised:
        raise raised[0]


class Tasks:
    """The stages that were seen at work."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._stages: dict[int, tuple[int, int]] = {}

    def look(self) -> tuple[int, int] | None:
        """Tasks done, of how many; None while no stage was seen."""
        active = set(self._tracker.getActiveStageIds())
        for stage in active:
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                self._stages[stage] = info.numCompletedTasks, info.numTasks
        for stage, (_, whole) in self._stages.items():
            if stage not in active:  # its last tasks were done between two looks
                self._stages[stage] = whole, whole
        if not self._stages:
            return None
        return sum(done for done, _ in self._stages.values()), sum(whole for _, whole in self._stages.values())
