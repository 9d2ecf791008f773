"""Doorbells: nobody is rung who does not sleep, nobody sleeps long who should not, nobody is hurt by a dead reader."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from replicate.errors import JournalIOError, PermissionRefusedError, TryAgainError
from replicate.limits import MIB, READERS_MAX
from replicate.pool import doorbell
from replicate.pool.control import LAST_SEQNO, SLEEPERS_OFFSET
from replicate.pool.doorbell import CAP_S, Doorbell, Doorbells, doorbell_path
from replicate.pool.journal_pool import JournalPool
from replicate.pool.shared_memory import PoolKind
from tests.harness.descriptors import open_descriptors
from tests.harness.waiting import wait_until, wait_until_async

INSTANCE = uuid.UUID(int=78).bytes


@pytest.fixture
def pool() -> Iterator[JournalPool]:
    made = JournalPool.create(INSTANCE, configured_bytes=MIB, last_seqno=0)
    made.mark_ready()
    yield made
    made.close()


@pytest.fixture
def bell(pool: JournalPool, tmp_path: Path) -> Iterator[Doorbell]:
    made = Doorbell.claim(pool, tmp_path)
    yield made
    made.close()


@pytest.fixture
def bells(tmp_path: Path) -> Iterator[Doorbells]:
    made = Doorbells(tmp_path)
    yield made
    made.close()


def test_nobody_sleeps_nobody_is_rung(pool: JournalPool, bell: Doorbell, bells: Doorbells) -> None:
    assert pool.sleeping() == 0
    assert bells.ring(pool) == 0


@pytest.mark.trio
async def test_a_sleeper_is_woken(
    pool: JournalPool, bell: Doorbell, bells: Doorbells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "CAP_S", 3600.0)
    words = pool.words
    woken: list[bool] = []

    async def sleep() -> None:
        woken.append(await bell.wait(lambda: words[LAST_SEQNO] == 1, 60.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)
        await wait_until_async(pool.sleeping)
        words[LAST_SEQNO] = 1
        assert bells.ring(pool) == 1
        assert bells.ring(pool) == 0  # once is enough
        await wait_until_async(lambda: woken, what="it is woken")
    assert woken == [True]
    assert pool.sleeping() == 0


def test_a_sleeping_thread_is_woken(
    pool: JournalPool, bell: Doorbell, bells: Doorbells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "CAP_S", 3600.0)
    words = pool.words
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(bell.wait_sync(lambda: words[LAST_SEQNO] == 1, 3600.0)))
    thread.start()
    wait_until(pool.sleeping)
    words[LAST_SEQNO] = 1
    assert bells.ring(pool) == 1
    thread.join(60.0)
    assert woken == [True]


def test_a_ring_before_its_time_is_told_and_shortens_the_wait(
    pool: JournalPool, bell: Doorbell, bells: Doorbells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "CAP_S", 3600.0)
    rung: list[float] = []
    woken: list[bool] = []

    def on_ring() -> float:
        rung.append(0.01)
        return rung[-1]

    thread = threading.Thread(target=lambda: woken.append(bell.wait_sync(lambda: False, 3600.0, on_ring)))
    thread.start()
    wait_until(pool.sleeping)
    assert bells.ring(pool) == 1
    thread.join(60.0)
    assert (woken, rung) == ([False], [0.01])
    assert pool.sleeping() == 0
    assert bell.wait_sync(lambda: True, 3600.0, on_ring)
    assert rung == [0.01]


@pytest.mark.trio
async def test_the_call_follows_the_ring_in_the_thread_that_slept(
    pool: JournalPool, bell: Doorbell, bells: Doorbells
) -> None:
    words = pool.words
    called: list[int] = []

    async def sleep() -> None:
        called.append(await bell.wait_and_call(lambda: words[LAST_SEQNO] == 1, 20.0, threading.get_ident))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)
        await wait_until_async(pool.sleeping)
        words[LAST_SEQNO] = 1
        assert bells.ring(pool) == 1
    assert len(called) == 1
    assert called[0] != threading.get_ident()
    assert pool.sleeping() == 0
    assert await bell.wait_and_call(lambda: False, 0.01, lambda: "called all the same") == "called all the same"


@pytest.mark.trio
async def test_a_sleeper_is_woken_by_its_own_process(
    pool: JournalPool, bell: Doorbell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doorbell, "CAP_S", 3600.0)
    over = trio.Event()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bell.wait_and_call, over.is_set, 3600.0, int)
            await wait_until_async(pool.sleeping)
            over.set()
            bell.wake()
    assert pool.sleeping() == 0


@pytest.mark.trio
async def test_a_lost_ring_costs_the_cap(pool: JournalPool, bell: Doorbell, autojump_clock: object) -> None:
    begin = trio.current_time()
    assert await bell.wait(lambda: trio.current_time() > begin + 0.1, 60.0)
    assert trio.current_time() - begin == pytest.approx(CAP_S)


@pytest.mark.trio
async def test_time_out(bell: Doorbell, pool: JournalPool, autojump_clock: object) -> None:
    begin = trio.current_time()
    assert not await bell.wait(lambda: False, 1.7)
    assert trio.current_time() - begin == pytest.approx(1.7)
    assert pool.sleeping() == 0


def test_time_out_of_a_thread(bell: Doorbell, pool: JournalPool) -> None:
    assert not bell.wait_sync(lambda: False, 0.01)
    assert bell.wait_sync(lambda: True, 0.0)
    assert pool.sleeping() == 0


@pytest.mark.trio
async def test_cancelled(bell: Doorbell, pool: JournalPool) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bell.keep_looking)
        await wait_until_async(lambda: bell.is_looked_after)
        for sleep in (bell.sleep, partial(bell.wait, timeout_s=60.0)):
            with trio.move_on_after(0.01):
                await sleep(lambda: False)
            assert pool.sleeping() == 0
            with trio.CancelScope() as scope:
                scope.cancel()
                await sleep(lambda: True)  # always a checkpoint
            assert scope.cancelled_caught
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_sleep(pool: JournalPool, bell: Doorbell, bells: Doorbells, autojump_clock: object) -> None:
    """It ends by a ring, by what is true already, and after CAP_S when the ring was lost."""
    with pytest.raises(AssertionError, match="slept through"):
        await bell.sleep(lambda: True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bell.keep_looking)
        await wait_until_async(lambda: bell.is_looked_after)
        begin = trio.current_time()
        await bell.sleep(lambda: True)
        bell.wake()
        await bell.sleep(lambda: True)  # that drains the ring before it
        assert trio.current_time() == begin
        await bell.sleep(lambda: False)
        assert CAP_S / 2 < trio.current_time() - begin <= CAP_S
        begin = trio.current_time()
        nursery.start_soon(_clear_after, 0.1, pool)  # as a writer that is killed before it rings
        with trio.fail_after(CAP_S + 0.1):
            await bell.sleep(lambda: False)
        begin = trio.current_time()
        nursery.start_soon(_ring_after, 0.1, bells, pool)
        await bell.sleep(lambda: False)
        assert trio.current_time() - begin == pytest.approx(0.1)
        assert pool.sleeping() == 0
        nursery.cancel_scope.cancel()


async def _clear_after(seconds: float, pool: JournalPool) -> None:
    await trio.sleep(seconds)
    assert pool.sleeping()
    pool.memory.view[SLEEPERS_OFFSET : SLEEPERS_OFFSET + READERS_MAX] = bytes(READERS_MAX)


async def _ring_after(seconds: float, bells: Doorbells, pool: JournalPool) -> None:
    await trio.sleep(seconds)
    assert bells.ring(pool) == 1


def test_what_comes_between_the_last_look_and_the_sleep(
    pool: JournalPool, bell: Doorbell, bells: Doorbells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer that publishes right after the reader's look sees the byte: it was set before the look."""
    monkeypatch.setattr(doorbell, "CAP_S", 3600.0)
    looks = []

    def ready() -> bool:
        looks.append(1)
        if len(looks) == 1:
            assert bells.ring(pool) == 1
            return False
        return True

    start = time.monotonic()
    assert bell.wait_sync(ready)
    assert time.monotonic() - start < 60.0


def test_no_reader_has_ever_been_there(pool: JournalPool, bells: Doorbells) -> None:
    pool.memory.view[SLEEPERS_OFFSET + 3] = 1
    assert bells.ring(pool) == 0
    assert pool.sleeping() == 0


def test_the_reader_is_dead(pool: JournalPool, tmp_path: Path, bells: Doorbells) -> None:
    """Neither EPIPE nor SIGPIPE, even where the application wants it; the next reader gets the slot at once."""
    program = (
        "import sys\nfrom pathlib import Path\n"
        "from replicate.pool.doorbell import Doorbell\nfrom replicate.pool.journal_pool import JournalPool\n"
        f"bell = Doorbell.claim(JournalPool.attach({INSTANCE!r}), Path(sys.argv[1]))\n"
        "bell.wait_sync(lambda: False)\n"
    )
    reader = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        wait_until(pool.sleeping)
        with pytest.raises(TryAgainError):
            Doorbell.claim(pool, tmp_path, 0)
        assert bells.ring(pool) == 1
        wait_until(pool.sleeping)
    finally:
        reader.kill()
        reader.wait()
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert bells.ring(pool) == 1
        assert bells.ring(pool) == 0
        pool.memory.view[SLEEPERS_OFFSET] = 1
        assert bells.ring(pool) == 1
    finally:
        signal.signal(signal.SIGPIPE, before)
    with Closing(Doorbell.claim(pool, tmp_path)) as bell:
        assert bell.path == doorbell_path(tmp_path, PoolKind.JOURNAL, 0)
        assert not bell.wait_sync(lambda: False, 0.01)  # what was rung before is drained


class Closing:
    def __init__(self, bell: Doorbell) -> None:
        self.bell = bell

    def __enter__(self) -> Doorbell:
        return self.bell

    def __exit__(self, *_: object) -> None:
        self.bell.close()


def test_a_full_fifo_never_blocks(pool: JournalPool, bell: Doorbell, bells: Doorbells) -> None:
    for _ in range(70_000):
        pool.memory.view[SLEEPERS_OFFSET] = 1
        bells.ring(pool)
    assert not bell.wait_sync(lambda: False, 0.01)


def test_the_directory_was_emptied(pool: JournalPool, tmp_path: Path, bell: Doorbell, bells: Doorbells) -> None:
    pool.memory.view[SLEEPERS_OFFSET] = 1
    assert bells.ring(pool) == 1
    bell.close()
    os.unlink(bell.path)
    pool.memory.view[SLEEPERS_OFFSET] = 1
    assert bells.ring(pool) == 0
    with Closing(Doorbell.claim(pool, tmp_path)) as new:
        pool.memory.view[SLEEPERS_OFFSET] = 1
        assert bells.ring(pool) == 1
        assert select.select([new._fd], [], [], 0)[0]


def test_only_one_slot_is_rung(pool: JournalPool, tmp_path: Path, bells: Doorbells) -> None:
    with Closing(Doorbell.claim(pool, tmp_path)), Closing(Doorbell.claim(pool, tmp_path)) as second:
        assert second.path.name == "journal-1.doorbell"
        pool.memory.view[SLEEPERS_OFFSET : SLEEPERS_OFFSET + 2] = b"\1\1"
        assert bells.ring(pool, 1) == 1
        assert bytes(pool.memory.view[SLEEPERS_OFFSET : SLEEPERS_OFFSET + 2]) == b"\1\0"


def test_sixteen_readers(pool: JournalPool, tmp_path: Path) -> None:
    readers = [Doorbell.claim(pool, tmp_path) for _ in range(READERS_MAX)]
    with pytest.raises(TryAgainError, match="16 readers"):
        Doorbell.claim(pool, tmp_path)
    readers.pop(4).close()
    with Closing(Doorbell.claim(pool, tmp_path)) as again:
        assert again.path == doorbell_path(tmp_path, PoolKind.JOURNAL, 4)
    for reader in readers:
        reader.close()


def test_descriptors_are_closed_on_exec(pool: JournalPool, bell: Doorbell, bells: Doorbells) -> None:
    pool.memory.view[SLEEPERS_OFFSET] = 1
    bells.ring(pool)
    for fd in (bell._fd, *bells._fds.values()):
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK


def test_what_is_no_doorbell_is_refused(pool: JournalPool, tmp_path: Path, bells: Doorbells) -> None:
    path = doorbell_path(tmp_path, PoolKind.JOURNAL, 0)
    opened = open_descriptors()
    path.write_text("precious")
    with pytest.raises(PermissionRefusedError):
        Doorbell.claim(pool, tmp_path)
    pool.memory.view[SLEEPERS_OFFSET] = 1
    assert bells.ring(pool) == 0
    assert path.read_text() == "precious"
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionRefusedError):
        Doorbell.claim(pool, tmp_path)
    pool.memory.view[SLEEPERS_OFFSET] = 1
    assert bells.ring(pool) == 0
    path.unlink()
    os.mkfifo(path, 0o600)
    path.chmod(0o622)
    with pytest.raises(PermissionRefusedError):
        Doorbell.claim(pool, tmp_path)
    with pytest.raises(JournalIOError):
        Doorbell.claim(pool, tmp_path / "missing")
    assert open_descriptors() == opened


def test_closing_after_the_pool(tmp_path: Path) -> None:
    pool = JournalPool.create(INSTANCE, configured_bytes=MIB, last_seqno=0)
    bell = Doorbell.claim(pool, tmp_path)
    pool.close()
    bell.close()
    bell.close()


def test_importing_the_writers_side_does_not_import_trio() -> None:
    program = "import sys, replicate.pool.doorbell, replicate.pool.journal_pool\nsys.exit('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_no_wake_up_is_lost_for_longer_than_the_cap(pool: JournalPool, bell: Doorbell, bells: Doorbells) -> None:
    """Two threads play ping-pong 300 times; each round that missed its ring would cost CAP_S."""
    words = pool.words
    rounds = 300
    slowest = 0.0

    def answer() -> None:
        for number in range(1, rounds + 1):
            bell.wait_sync(lambda number=number: words[LAST_SEQNO] >= number)  # type: ignore[misc]
            words[LAST_SEQNO + 1] = number

    thread = threading.Thread(target=answer)
    thread.start()
    begin = time.monotonic()
    for number in range(1, rounds + 1):
        start = time.monotonic()
        words[LAST_SEQNO] = number
        bells.ring(pool)
        wait_until(lambda number=number: words[LAST_SEQNO + 1] >= number)  # type: ignore[misc]
        slowest = max(slowest, time.monotonic() - start)
    thread.join()
    assert slowest < CAP_S + 30.0
    assert time.monotonic() - begin < rounds * CAP_S / 4
