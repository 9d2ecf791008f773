"""Sleeping on a word of shared memory: woken at once, woken one by one, never for longer than asked, with and without a
futex."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicate.limits import MIB
from replicate.pool import wake_word
from replicate.pool.control import REGION_WAKE, SYNC_WAKE
from replicate.pool.journal_pool import JournalPool
from replicate.pool.shared_memory import SharedMemory
from replicate.pool.wake_word import WakeWord
from replicate.system import locks
from replicate.system.locks import FileLock
from tests.harness.waiting import wait_until

INSTANCE = uuid.UUID(int=78).bytes
SLEEPER = """
import sys
from replicate.pool.journal_pool import JournalPool
from replicate.pool.wake_word import WakeWord
pool = JournalPool.attach(bytes.fromhex(sys.argv[1]))
word = WakeWord(pool.memory, int(sys.argv[2]))
word.mark()
print("marked", flush=True)
word.sleep(60)
print("woken", flush=True)
pool.close()
"""


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    pool = JournalPool.create(INSTANCE, configured_bytes=MIB, last_seqno=0, replace=True)
    pool.mark_ready()
    yield pool.memory
    pool.close()


def test_another_process_is_woken(memory: SharedMemory) -> None:
    word = WakeWord(memory, SYNC_WAKE)
    words = [sys.executable, "-c", SLEEPER, INSTANCE.hex(), str(SYNC_WAKE)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "marked\n"
        word.wake()  # asleep already or not: the mark is gone
        assert process.stdout.readline() == "woken\n"
    assert memory.words[SYNC_WAKE] == 0


def test_who_wakes_without_a_mark_makes_no_call(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    word = WakeWord(memory, REGION_WAKE + 63)
    calls: list[object] = []
    monkeypatch.setattr(WakeWord, "_call", lambda *asked: bool(calls.append(asked)))
    word.wake()
    assert not calls
    word.mark()
    word.wake()
    word.wake()
    assert len(calls) == 1


def test_a_sleep_ends_at_once_when_the_word_is_not_marked_and_by_itself_when_it_is(memory: SharedMemory) -> None:
    word = WakeWord(memory, SYNC_WAKE)
    word.sleep(3600)
    word.mark()
    begun_s = time.monotonic()
    word.sleep(0.02)
    assert time.monotonic() - begun_s >= 0.019
    word.sleep(0)


@pytest.mark.parametrize("machine", ["x86_64", "an unknown one"])
def test_waiters_get_a_lock_one_by_one(
    memory: SharedMemory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    """Each wakes the next one; nobody looks by himself where there is a futex, and all do where there is none."""
    futex: Callable[[], object] = wake_word._futex
    if machine != "x86_64":
        monkeypatch.setattr(wake_word, "_futex", lambda: None)
    elif futex() is not None:
        monkeypatch.setattr(locks, "PAUSE_S_MAX", 3600.0)
    held: list[int] = []
    total = 0

    def take(number: int) -> None:
        nonlocal total
        lock = FileLock(tmp_path / "a")
        lock.wake = WakeWord(memory, REGION_WAKE, most=1)
        for _ in range(50):
            assert lock.acquire(60)
            held.append(number)
            total += 1
            assert held == [number]
            held.clear()
            lock.release()
        lock.close()

    first = FileLock(tmp_path / "a")
    first.wake = WakeWord(memory, REGION_WAKE, most=1)
    first.acquire(0)
    threads = [threading.Thread(target=take, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: memory.words[REGION_WAKE] == 1, what="somebody waits")
    first.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert total == 200


def test_a_call_that_is_refused_is_a_short_sleep(memory: SharedMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter of system calls may refuse it: no waiter may spin then."""
    word = WakeWord(memory, SYNC_WAKE)
    slept: list[float] = []
    monkeypatch.setattr(wake_word, "_futex", lambda: (lambda *_: False, lambda *_: 8))
    monkeypatch.setattr(time, "sleep", slept.append)
    word.mark()
    word.sleep(60)
    assert slept == [wake_word.BLIND_PAUSE_S]
