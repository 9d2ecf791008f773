"""A filter's process: each way in which it can fail, the end that is made of it, and what it may say on the side."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from replicate.errors import FilterError
from replicate.filters.conversation import FilterTalk
from replicate.filters.encoding import Form
from replicate.filters.filter_process import LINES_MAX, FilterChild
from replicate.filters.program import program
from replicate.filters.restating import StreamItem
from replicate.journal.record import FrameBatch
from tests.harness.frames import Writer
from tests.harness.servers import ListLog
from tests.harness.talking import PERSON, known

pytestmark = pytest.mark.trio

ECHO = "import sys\nfor line in sys.stdin:\n    print(line, end='', flush=True)\n"
HELLO = "import os, sys, time\nprint(sys.stdin.readline(), end='', flush=True)\n"


class Run:
    """One run of a script as a filter."""

    def __init__(self, directory: Path, script: str, *, timeout_s: float = 60.0) -> None:
        path = directory / "filter.py"
        path.write_text(script)
        self.log = ListLog()
        self.out: list[StreamItem] = []
        self.came = trio.Event()
        self.writer = Writer()
        made = program(shlex.join([sys.executable, str(path)]), "json")
        talk = FilterTalk(
            "mine", Form.JSON, known(PERSON), known(PERSON), side="source", token=lambda: 1, timeout_s=timeout_s,
            now=trio.current_time(),
        )  # fmt: skip
        self.may = True
        self.child = FilterChild(made, talk, self._came, lambda: self.may, self.log)

    def _came(self, made: list[StreamItem]) -> None:
        self.out += made
        self.came.set()

    async def give(self, count: int) -> None:
        for _ in range(count):
            seqno = self.writer.seqno + 1
            await self.child.give(FrameBatch(seqno, seqno, 1, self.writer.insert(PERSON.table_id, seqno, "a", None)))

    async def failure(self, count: int = 1) -> FilterError:
        """Give it so many, and wait until it has failed."""
        found: list[BaseException] = []
        with trio.fail_after(60):
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.child.run)
                    nursery.start_soon(self.give, count)
            except BaseExceptionGroup as group:
                found = list(group.exceptions)
        (error,) = found
        assert isinstance(error, FilterError), error
        return error


def filter_pid(run: Run) -> int:
    return int(run.log.events("filter started")[0]["filter_pid"])


def is_gone(pid: int) -> bool:
    return not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("import sys\nsys.exit('no idea')", "it ended: exit code 1; it wrote last: no idea"),
        (HELLO + "sys.exit(3)", "failed at transaction 1: it ended: exit code 3"),
        (HELLO + "sys.stdin.readline()\nsys.exit(0)", "failed at transaction 1: it ended: exit code 0"),
        (HELLO + "os.kill(os.getpid(), 9)", "it ended: killed by SIGKILL"),
        (HELLO + "print('rubbish', flush=True)\ntime.sleep(600)", "a line is no JSON"),
        ("import time\nprint('rubbish', flush=True)\ntime.sleep(600)", "a line is no JSON"),
        (HELLO + "print(sys.stdin.readline(), flush=True)\nos.kill(os.getpid(), 9)", "failed at transaction 1"),
    ],
)
async def test_each_way_to_fail_has_its_words_and_leaves_no_process(tmp_path: Path, script: str, text: str) -> None:
    run = Run(tmp_path, script)
    error = await run.failure()
    assert text in str(error)
    assert run.out == []
    assert is_gone(filter_pid(run))


@pytest.mark.parametrize("script", ["import time\ntime.sleep(600)", HELLO + "sys.stdin.readline()\ntime.sleep(600)"])
async def test_one_that_stands_still_is_ended_in_time(tmp_path: Path, script: str) -> None:
    run = Run(tmp_path, script, timeout_s=0.2)
    error = await run.failure()
    assert "it has read and said nothing for 0.2 s" in str(error)
    assert is_gone(filter_pid(run))


async def test_one_that_reads_nothing_is_given_no_more_and_is_ended_in_time(tmp_path: Path) -> None:
    run = Run(tmp_path, HELLO + "time.sleep(600)", timeout_s=0.5)
    error = await run.failure(1_000_000)
    assert "it has read and said nothing for 0.5 s" in str(error)
    assert run.writer.seqno < 50_000


async def test_what_it_says_on_the_side_is_logged_to_a_bound(tmp_path: Path) -> None:
    loud = "for _ in range(500):\n    print('z' * 2000, file=sys.stderr)\nsys.exit('the end')"
    run = Run(tmp_path, HELLO + loud)
    error = await run.failure()
    assert "it wrote last: the end" in str(error)
    said = run.log.events("the filter says")
    assert len([fields for fields in said if "text" in fields]) == LINES_MAX
    assert max(len(str(fields.get("text", ""))) for fields in said) <= 500


async def test_what_is_given_comes_out_and_the_process_ends_with_its_input(tmp_path: Path) -> None:
    run = Run(tmp_path, ECHO)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.child.run)
            await run.give(100)
            while sum(item.count for item in run.out if isinstance(item, FrameBatch)) < 100:
                run.came = trio.Event()
                await run.came.wait()
            nursery.cancel_scope.cancel()
    assert run.child.talk.passed == 100
    assert is_gone(filter_pid(run))


async def test_what_has_no_room_waits_and_no_time_is_counted_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def deadline(talk: FilterTalk) -> float | None:
        nonlocal looks
        looks += 1
        return none_left if run.child._is_held else None

    run = Run(tmp_path, ECHO)
    run.may, none_left = False, -1.0
    monkeypatch.setattr(FilterTalk, "deadline", property(deadline))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.child.run)
            await run.give(2000)
            await _until(lambda: run.child._is_held)
            before, count = looks, run.child.talk.passed
            await _until(lambda: looks > before + 3)
            assert run.child.talk.passed == count < 2000
            run.may = True
            await _until(lambda: run.child.talk.passed == 2000)
            nursery.cancel_scope.cancel()


async def test_what_it_has_started_goes_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    script = HELLO + (
        "import subprocess\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\nprint('rubbish', flush=True)\ntime.sleep(600)\n"
    )
    run = Run(tmp_path, script)
    await run.failure()
    pid = int(note.read_text())
    await _until(lambda: is_gone(pid) or _is_zombie(pid))


async def _until(done: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not done():  # noqa: ASYNC110
            await trio.sleep(0.01)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
