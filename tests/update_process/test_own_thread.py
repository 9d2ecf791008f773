"""A call in a thread of its own: it has ended, or never begins, when the caller goes on."""

from __future__ import annotations

import contextlib
import threading
from threading import Event, Thread, get_ident

import pytest

from tests.harness.interrupts import interrupting
from tests.harness.waiting import wait_until
from update_process.own_thread import run_beside


def test_both_run_at_once_and_both_have_ended() -> None:
    here, there = Event(), Event()
    threads: list[int] = []

    def call() -> None:
        threads.append(get_ident())
        there.set()
        assert here.wait(60)

    def meanwhile() -> bool:
        assert there.wait(60)
        here.set()
        return False

    run_beside(call, meanwhile, name="commit")
    assert threads != [get_ident()]
    assert here.is_set()
    assert there.is_set()


def test_who_has_nothing_to_do_is_asked_again() -> None:
    asked, often = [0], Event()

    def meanwhile() -> bool:
        asked[0] += 1
        if asked[0] == 3:
            often.set()
        return False

    run_beside(lambda: _wait(often), meanwhile, name="commit")
    assert asked[0] >= 3


def _wait(event: Event) -> None:
    assert event.wait(60)


def test_what_the_call_raises_is_raised_here() -> None:
    def call() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        run_beside(call, lambda: True, name="commit")


def test_an_error_meanwhile_is_raised_when_the_call_has_ended() -> None:
    failed, ended = Event(), Event()

    def call() -> None:
        assert failed.wait(60)
        ended.set()

    def meanwhile() -> bool:
        failed.set()
        raise ValueError("no window")

    with pytest.raises(ValueError, match="no window"):
        run_beside(call, meanwhile, name="commit")
    assert ended.is_set()


def test_interrupts_are_raised_when_the_call_has_ended() -> None:
    gone, ended = Event(), Event()

    def call() -> None:
        for _ in range(3):
            interrupts.send()
            with contextlib.suppress(AssertionError):
                wait_until(gone.is_set, what="the caller has gone", timeout_s=0.1)
        if not gone.is_set():
            ended.set()

    with interrupting() as interrupts, pytest.raises(KeyboardInterrupt):
        run_beside(call, lambda: False, name="commit")
    gone.set()
    assert ended.is_set()


def test_without_another_thread_the_call_is_made_in_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    threads = []
    run_beside(lambda: threads.append(get_ident()), lambda: True, name="commit")
    assert threads == [get_ident()]


def test_a_call_that_was_not_begun_when_the_caller_left_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Thread] = []
    calls: list[int] = []
    real = Thread.start

    def interrupted(thread: Thread) -> None:
        started.append(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_beside(lambda: calls.append(1), lambda: True, name="commit")
    real(started[0])  # the kernel runs it now
    started[0].join(60)
    assert not started[0].is_alive()
    assert calls == []
