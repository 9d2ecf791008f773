"""The policy `interval`: when the thread syncs, and when nobody does any more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from replicate.door.interval_sync import IntervalSync
from replicate.errors import BusyError, JournalIOError, ReplicateError
from tests.harness.waiting import wait_until


class Syncs:
    """What is called; it notes when, and raises what it is told to."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.errors: list[ReplicateError] = []
        self.called = threading.Condition()

    def __call__(self) -> None:
        with self.called:
            self.at_s.append(time.monotonic())
            self.called.notify_all()
        if self.errors:
            raise self.errors.pop(0)

    def wait_for(self, count: int) -> None:
        with self.called:
            assert self.called.wait_for(lambda: len(self.at_s) >= count, timeout=30), len(self.at_s)


@contextmanager
def thread_of(syncs: Callable[[], object], interval_s: float) -> Iterator[IntervalSync]:
    made = IntervalSync(syncs, interval_s)
    try:
        yield made
    finally:
        made.close()


def threads() -> int:
    return sum(one.name == "replicate-interval-sync" for one in threading.enumerate())


def test_a_commit_is_synced_before_the_interval_ends_and_many_at_once() -> None:
    syncs = Syncs()
    with thread_of(syncs, 0.4) as interval:
        assert threads() == 0, "nothing was committed: there is no thread"
        begun_s = time.monotonic()
        for _ in range(100):
            interval.wake()
        assert threads() == 1
        syncs.wait_for(1)
        assert syncs.at_s[0] - begun_s >= 0.2, "the first half of the time is for further commits"
        interval.wake()
        syncs.wait_for(2)
        assert syncs.at_s[1] - syncs.at_s[0] >= 0.2
    assert len(syncs.at_s) == 3, "as it ends it syncs what came since; 100 commits were one"
    assert threads() == 0


def test_what_is_left_is_synced_as_it_ends_and_twice_is_once() -> None:
    syncs = Syncs()
    interval = IntervalSync(syncs, 3600.0)
    interval.wake()
    assert syncs.at_s == []
    interval.close()
    assert len(syncs.at_s) == 1
    interval.close()
    interval.wake()
    assert len(syncs.at_s) == 1
    assert threads() == 0


def test_one_that_was_never_woken_has_nothing_to_do() -> None:
    syncs = Syncs()
    IntervalSync(syncs, 0.01).close()
    assert syncs.at_s == []


def test_a_lock_that_is_held_is_tried_again_and_a_failure_ends_it() -> None:
    syncs = Syncs()
    syncs.errors = [BusyError("held"), BusyError("held"), JournalIOError("the disk is gone")]
    with thread_of(syncs, 0.02) as interval:
        interval.wake()
        syncs.wait_for(3)
        wait_until(lambda: threads() == 0, what="the thread ends")
        interval.wake()
        assert threads() == 0
    assert len(syncs.at_s) == 4, "once more at the end, whose error nobody is told: the door has kept the first"


def test_a_child_of_a_fork_syncs_nothing() -> None:
    syncs = Syncs()
    with thread_of(syncs, 3600.0) as interval:
        interval.wake()
        child = os.fork()
        if child == 0:
            interval.close()
            os._exit(len(syncs.at_s))
        assert os.waitpid(child, 0)[1] == 0
        assert syncs.at_s == []
    assert len(syncs.at_s) == 1
