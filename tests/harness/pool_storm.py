"""The pool storm: writers killed at every step of an append, readers stopped and lapped, one simple journal file.

    python -m tests.harness.pool_storm DIRECTORY SEED KILLS TRANSACTIONS [PLANT]

runs it and prints one line of JSON. The director forks writers and readers. A writer appends under a flock, as the
commit door does: intent, frames into the file in two halves, end and seqno, publish; it is armed to SIGKILL itself at
one of STEPS, or is killed from outside at any moment. The next to take the lock mends. A reader follows from seqno 1,
reads the file when it is lapped or told so, and proves every transaction's content. PLANT names a bug to build into the
pool first (PLANTS): the storm must then fail.

Guarantees: ends when each step has killed at least twice and KILLS and TRANSACTIONS are reached, and everybody has
seen the last transaction; a reader that sees a gap, a repetition or a bad byte fails the run.
Leaves to others: SQLite, segments, durability: the door's own storm is elsewhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from replicate.errors import DamagedError
from replicate.journal.record import FrameBatch
from replicate.limits import MIB
from replicate.pool import journal_pool
from replicate.pool.control import (
    BARRIER_SEQNO,
    END_OFFSET,
    INTENT_BYTES,
    INTENT_OFFSET,
    INTENT_SEQNO,
    LAST_SEQNO,
    WRITTEN,
)
from replicate.pool.doorbell import Doorbell, Doorbells
from replicate.system import failpoint
from replicate.system.failpoint import hit
from tests.harness.changed_frames import batch_of
from tests.harness.forking import fork
from tests.harness.pools import frames, prove

INSTANCE: Final = bytes(range(16))
STOP: Final = BARRIER_SEQNO
"""The storm's use of this word: 1 = writers, leave; 2 = readers, leave once you have everything."""

PUBLISH_STEPS: Final = ("after_early", "after_padding", "after_data", "after_head", "after_published", "after_written")
STEPS: Final = (
    "storm.locked",
    "storm.intent",
    "storm.half",
    "storm.appended",
    "storm.end_moved",
    "storm.visible",
    *(f"publish.{step}" for step in PUBLISH_STEPS),
    "storm.published",
    "storm.done",
    "storm.unlocked",
    "storm.mended",
    "repair.before_written",
)
RARE: Final = ("publish.after_padding", "repair.before_written", "storm.mended")
PLANTS: Final = {
    "reader does not look at a record's own first number": (
        ("if record_first != expected or kind != _FRAMES:", "if kind != _FRAMES:"),
        ('self._put(words[WRITTEN], _IN_FILES, published + 1, first_seqno - 1, 0, b"")', "pass"),
    ),
    "repair shows what is half written": (
        ("ring[offset : offset + HEAD_BYTES] = pack_padding(start, early - start)", "pass"),
    ),
}
"""Bugs, as replacements in the text of journal_pool.py: each breaks one rule that its docstring states."""
WRITERS: Final = 3
READERS: Final = 3
TIME_LIMIT_S: Final = 200.0
LONG_STOPS: Final = 3
"""So many stops of a reader last until it was overtaken, however slow the machine is."""


class Writer:
    """One life of a writer process."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.pool = journal_pool.JournalPool.attach(INSTANCE)
        self.words = self.pool.words
        self.bells = Doorbells(directory)
        self.file = os.open(directory / "journal", os.O_RDWR | os.O_CLOEXEC)
        self.lock = os.open(directory / "lock", os.O_RDWR | os.O_CLOEXEC)
        self.rng = rng

    def live(self) -> None:
        while not self.words[STOP]:
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            hit("storm.locked")
            self.mend()
            self.append()
            fcntl.flock(self.lock, fcntl.LOCK_UN)
            hit("storm.unlocked")
            self.bells.ring(self.pool)

    def mend(self) -> None:
        words = self.words
        if not words[INTENT_SEQNO]:
            return
        begin = words[INTENT_OFFSET]
        data = os.pread(self.file, words[INTENT_BYTES], begin)
        batch = None
        if len(data) == words[INTENT_BYTES]:
            try:
                batch = batch_of(data, verify=True)
            except DamagedError:
                batch = None
        if batch is None:
            os.ftruncate(self.file, begin)
        else:
            words[END_OFFSET] = begin + len(data)
            words[LAST_SEQNO] = batch.last_seqno
            hit("storm.mended")
            if self.rng.random() < 0.7:  # else the next publish has to name it as being in the files
                self.pool.publish(data, batch.first_seqno, batch.last_seqno, batch.count)
        words[INTENT_SEQNO] = 0

    def append(self) -> None:
        words = self.words
        first = words[LAST_SEQNO] + 1
        count = self.rng.choice((1, 1, 1, 1, 5))
        last = first + count - 1
        data = frames(first, last)
        end = words[END_OFFSET]
        words[INTENT_OFFSET] = end
        words[INTENT_BYTES] = len(data)
        words[INTENT_SEQNO] = first
        hit("storm.intent")
        half = len(data) // 2
        os.pwrite(self.file, data[:half], end)
        hit("storm.half")
        os.pwrite(self.file, data[half:], end + half)
        hit("storm.appended")
        words[END_OFFSET] = end + len(data)
        hit("storm.end_moved")
        words[LAST_SEQNO] = last
        hit("storm.visible")
        if self.rng.random() < 0.002:
            self.pool.publish_in_files(first, last)
        else:
            self.pool.publish(data, first, last, count)
        hit("storm.published")
        words[INTENT_SEQNO] = 0
        hit("storm.done")


class Reader:
    """One reader process, from the first transaction to the last."""

    def __init__(self, directory: Path) -> None:
        self.pool = journal_pool.JournalPool.attach(INSTANCE)
        self.words = self.pool.words
        self.bell = Doorbell.claim(self.pool, directory)
        self.file = os.open(directory / "journal", os.O_RDONLY | os.O_CLOEXEC)
        self.reader = journal_pool.PoolReader(self.pool, 1)
        self.file_seqno, self.file_offset = 1, 0
        self.counts: Counter[str] = Counter()

    def live(self) -> dict[str, int]:
        reader, words = self.reader, self.words
        place = "pool"
        while True:
            expected = reader.next_seqno
            found = reader.poll(64 * 1024)
            if found is None:
                if words[STOP] == 2 and expected > words[LAST_SEQNO]:
                    break
                self.bell.wait_sync(lambda: words[LAST_SEQNO] >= reader.next_seqno or words[STOP] == 2, 0.5)
                continue
            before = place
            if isinstance(found, FrameBatch):
                assert found.first_seqno == expected, f"{found.first_seqno} instead of {expected}"
                prove(found)
                self.counts["from_pool"] += found.count
                place = "pool"
            elif isinstance(found, journal_pool.InFiles):
                assert found.first_seqno == expected
                self.read_files(found.first_seqno, found.last_seqno)
                reader.advance(found.last_seqno + 1)
                place = "files"
            else:
                address = reader.note_written()
                last = words[LAST_SEQNO]
                self.read_files(expected, last)
                reader.resume(address, last + 1)
                place = "files"
            self.counts["switches"] += place != before
        assert self.counts["from_pool"] + self.counts["from_files"] == reader.next_seqno - 1
        return {
            **self.counts,
            "last_seqno": reader.next_seqno - 1,
            "laps": reader.laps,
            "damaged_records": reader.damaged_records,
        }

    def read_files(self, first: int, last: int) -> None:
        """All of first … last, from the file; what lies before is passed over."""
        while self.file_seqno <= last:
            data = os.pread(self.file, 1 << 20, self.file_offset)
            end = offset = 0
            seqno = self.file_seqno
            while seqno <= last and offset + 10 <= len(data):
                end = offset + 10 + int.from_bytes(data[offset + 1 : offset + 5], "big")
                if end > len(data):
                    break
                if seqno >= first:
                    batch = batch_of(data[offset:end], verify=True)
                    assert batch.first_seqno == seqno
                    prove(batch)
                    self.counts["from_files"] += 1
                offset = end
                seqno += 1
            assert seqno > self.file_seqno, f"transaction {seqno} should be in the file"
            self.file_seqno, self.file_offset = seqno, self.file_offset + offset


def plant(name: str) -> None:
    """Build that bug into the pool of this process and its children."""
    path = Path(str(journal_pool.__file__))
    text = path.read_text()
    for old, new in PLANTS[name]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    exec(compile(text, str(path), "exec"), vars(journal_pool))


def life(body: Callable[[], None], log: Path) -> Callable[[], int]:
    """A child's: it ends with 0, or 1 and a traceback in `log`."""

    def live() -> int:
        try:
            body()
        except BaseException:
            with log.open("a") as file:
                traceback.print_exc(file=file)
            return 1
        return 0

    return live


class Director:
    """Keeps WRITERS writers and READERS readers going, and the faults coming."""

    def __init__(self, directory: Path, seed: int, kills: int, transactions: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.kills_wanted, self.transactions_wanted = kills, transactions
        self.log = directory / "log"
        for name in ("journal", "lock", "log"):
            (directory / name).touch()
        self.pool = journal_pool.JournalPool.create(INSTANCE, configured_bytes=MIB, last_seqno=0)
        self.pool.mark_ready()
        self.killed: Counter[str] = Counter()
        self.killed_outside = 0
        self.lives = 0
        self.writers: dict[int, str] = {}
        self.readers: dict[int, Path] = {}
        self.failed: list[int] = []
        self.overtaken = 0

    def start_writer(self) -> None:
        self.lives += 1
        armed = list(self.writers.values())
        # One writer at most waits for what only another one's death can bring about.
        choice = [step for step in STEPS if step not in RARE or not set(armed) & set(RARE)]
        step = min(choice, key=lambda step: self.killed[step] + armed.count(step))
        number = self.rng.randrange(1, 3) if step in RARE else self.rng.randrange(1, 200)
        seed = self.rng.randrange(2**32)

        def body() -> None:
            failpoint.arm(f"{step}:{number}:kill")
            Writer(self.directory, random.Random(seed)).live()

        fork(life(body, self.log), lambda pid: self.writers.update({pid: step}))

    def start_reader(self, number: int) -> None:
        result = self.directory / f"reader-{number}.json"

        def body() -> None:
            result.write_text(json.dumps(Reader(self.directory).live()))

        fork(life(body, self.log), lambda pid: self.readers.update({pid: result}))

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self.readers:
                if status:
                    self.failed.append(pid)
                self.readers[pid].touch()
                del self.readers[pid]
                continue
            step = self.writers.pop(pid)
            if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                if step:
                    self.killed[step] += 1
                else:
                    self.killed_outside += 1
            elif status:
                self.failed.append(pid)

    def enough(self) -> bool:
        return (
            sum(self.killed.values()) + self.killed_outside >= self.kills_wanted
            and all(self.killed[step] >= 2 for step in STEPS)
            and self.pool.words[LAST_SEQNO] >= self.transactions_wanted
            and self.overtaken >= LONG_STOPS
        )

    def run(self) -> dict[str, object]:
        begin = time.monotonic()
        results = [self.directory / f"reader-{number}.json" for number in range(READERS)]
        for number in range(READERS):
            self.start_reader(number)
        stopped: list[int] = []
        until_address = 0
        while not self.enough() and not self.failed and time.monotonic() - begin < TIME_LIMIT_S:
            while len(self.writers) < WRITERS:
                self.start_writer()
            time.sleep(self.rng.uniform(0.0, 0.02))  # the pace of the faults, not a wait for anything
            if self.pool.words[WRITTEN] >= until_address:
                for pid in stopped:
                    if pid in self.readers:
                        os.kill(pid, signal.SIGCONT)
                self.overtaken += bool(stopped and until_address)
                stopped.clear()
            if not stopped and self.readers and self.rng.random() < 0.25:
                stopped.append(self.rng.choice(list(self.readers)))
                os.kill(stopped[0], signal.SIGSTOP)
                until_address = 0
                if self.overtaken < LONG_STOPS:
                    until_address = self.pool.words[WRITTEN] + 2 * MIB
                else:
                    time.sleep(self.rng.uniform(0.0, 0.3))
            if self.rng.random() < 0.1:
                pid = self.rng.choice(list(self.writers))
                self.writers[pid] = ""
                os.kill(pid, signal.SIGKILL)
            self.reap()
        for pid in stopped:
            if pid in self.readers:
                os.kill(pid, signal.SIGCONT)
        finished = self.enough() and not self.failed
        self.finish(begin)
        return {
            "finished": finished,
            "seconds": round(time.monotonic() - begin, 1),
            "killed": dict(self.killed),
            "killed_outside": self.killed_outside,
            "lives": self.lives,
            "transactions": self.pool.words[LAST_SEQNO],
            "failed": len(self.failed),
            "log": self.log.read_text()[-3000:],
            "readers": [json.loads(path.read_text() or "{}") for path in results if path.exists()],
        }

    def close(self) -> None:
        """Nobody stays running, however the run has ended."""
        for pid in (*self.readers, *self.writers):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.pool.close()

    def finish(self, begin: float) -> None:
        words = self.pool.words
        words[STOP] = 1
        while self.writers and time.monotonic() - begin < TIME_LIMIT_S:
            self.reap()
            time.sleep(0.005)
        last = Writer(self.directory, random.Random(0))
        last.mend()  # the last killed one has nobody else after it
        last.append()
        words[STOP] = 2
        while self.readers and time.monotonic() - begin < TIME_LIMIT_S + 30:
            last.bells.ring(self.pool)
            self.reap()
            time.sleep(0.005)
        for pid in (*self.readers, *self.writers):
            self.failed.append(pid)
            os.kill(pid, signal.SIGKILL)


def main() -> None:
    """See the module."""
    directory, seed, kills, transactions, *bugs = sys.argv[1:]
    for bug in bugs:
        plant(bug)
    director = Director(Path(directory), int(seed), int(kills), int(transactions))
    try:
        print(json.dumps(director.run()))
    finally:
        director.close()


if __name__ == "__main__":
    main()
