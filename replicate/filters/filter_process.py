"""A filter's process: started, fed, read, watched and ended.

Guarantees: a filter that is silent for too long, ends, or says what is no transaction, ends `run` with a FilterError
that names it, and no process of it is left; what it writes to standard error goes into the log, so many lines of it.
What is given waits while the filter has enough to do, so memory is bounded.
Leaves to others: what is said (conversation.py), which program it is (program.py), and when it is tried again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio

from replicate.errors import FilterError
from replicate.filters.conversation import FilterTalk
from replicate.filters.encoding import DO
from replicate.filters.program import Program
from replicate.filters.restating import StreamItem

_READ_BYTES: Final = 256 * 1024
_PIPE_BYTES: Final = 1024 * 1024
LINES_MAX: Final = 100
"""Of a filter's standard error: so many go into the log in one run."""
LINE_CHARACTERS_MAX: Final = 500
HELD_LOOK_S: Final = 0.02
"""How often it is looked whether what comes out has room again."""
END_S: Final = 2.0
"""So long a filter has to end by itself when its input has ended."""

LAST_WORDS_S: Final = 10.0
"""So long its exit code and the rest of its standard error are waited for, when its output has ended."""


class FilterChild:
    """One run of a filter. `run` it in a nursery, and give it what comes; a new run needs a new one."""

    def __init__(
        self,
        program: Program,
        talk: FilterTalk,
        come_out: Callable[[list[StreamItem]], None],
        may_come_out: Callable[[], bool],
        log: Any,
    ) -> None:
        """`come_out` is called with what comes out, in the order in which it was given; nothing more is read from the
        filter while it may not."""
        self.talk = talk
        self._program = program
        self._come_out = come_out
        self._may_come_out = may_come_out
        self._is_held = False
        """Nothing is read from the filter, so it need not be quick."""
        self._log = log
        self._given = trio.Event()
        self._moved = trio.Event()
        self._is_logged = trio.Event()
        """Its standard error has ended."""
        self._lines = 0
        self._last_line = ""

    async def run(self) -> None:
        """Until cancelled. FilterError when the filter cannot be started, or fails."""
        process = await self._start()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._log_lines, process)
                nursery.start_soon(self._tell, process)
                nursery.start_soon(self._listen, process)
                nursery.start_soon(self._watch)
        except BaseExceptionGroup as group:
            failed = [one for one in group.exceptions if isinstance(one, FilterError)]
            if not failed:
                raise
            raise failed[0] from None
        finally:
            await self._end(process)

    async def give(self, item: StreamItem) -> None:
        """What comes next in the stream. Waits while the filter has enough to do."""
        await self._room()
        self._out(self.talk.give(item, trio.current_time()))
        self._given.set()

    async def _room(self) -> None:
        while self.talk.is_full:
            self._moved = trio.Event()
            await self._moved.wait()
        await trio.lowlevel.checkpoint()

    def _out(self, made: list[StreamItem]) -> None:
        if made:
            self._come_out(made)
        self._moved.set()

    async def _start(self) -> trio.Process:
        try:
            process: trio.Process = await trio.lowlevel.open_process(
                self._program.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise FilterError(f"the filter {self._program.name} cannot be started: {error.strerror}", do=DO) from error
        for stream in (process.stdin, process.stdout):
            with suppress(OSError, AttributeError):  # a user may have reached the limit of the machine
                fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)  # type: ignore[union-attr]
        self._log.info("filter started", filter=self._program.identity, filter_pid=process.pid)
        return process

    async def _tell(self, process: trio.Process) -> None:
        assert process.stdin is not None
        talk = self.talk
        while True:
            data = talk.bytes_to_send()
            if not data:
                self._given = trio.Event()
                await self._given.wait()
                continue
            try:
                await process.stdin.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await trio.sleep_forever()  # the other end tells what became of it, or the time does
            talk.sent(trio.current_time())
            self._moved.set()

    async def _listen(self, process: trio.Process) -> None:
        assert process.stdout is not None
        while data := await process.stdout.receive_some(_READ_BYTES):
            self._out(self.talk.receive(bytes(data), trio.current_time()))
            while not self._may_come_out():
                self._is_held = True
                await trio.sleep(HELD_LOOK_S)
            if self._is_held:
                self._is_held = False
                self.talk.resumed(trio.current_time())
        with trio.move_on_after(LAST_WORDS_S):
            await process.wait()
            await self._is_logged.wait()
        raise self.talk.ended(self._how(process.returncode))

    def _how(self, returncode: int | None) -> str:
        if returncode is None:
            how = "it closed its output"
        elif returncode < 0:
            how = f"killed by {signal.Signals(-returncode).name}"
        else:
            how = f"exit code {returncode}"
        return f"{how}; it wrote last: {self._last_line}" if self._last_line else how

    async def _log_lines(self, process: trio.Process) -> None:
        assert process.stderr is not None
        rest = b""
        while data := await process.stderr.receive_some(65536):
            *lines, rest = (rest + bytes(data)).split(b"\n")
            rest = rest[-65536:]
            for line in lines:
                self._line(line)
        self._line(rest)
        self._is_logged.set()

    def _line(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip()[:LINE_CHARACTERS_MAX]
        if not text:
            return
        self._last_line = text
        self._lines += 1
        if self._lines <= LINES_MAX:
            self._log.warning("the filter says", filter=self._program.name, text=text)
        if self._lines == LINES_MAX:
            self._log.warning("the filter says more; no more of it is logged", filter=self._program.name)

    async def _watch(self) -> None:
        while True:
            deadline = self.talk.deadline
            now = trio.current_time()
            if not self._is_held:
                self.talk.tick(now)
            # What is given later has its whole time: a look each second is soon enough.
            await trio.sleep(min(1.0, max(0.01, deadline - now)) if deadline is not None else 1.0)

    async def _end(self, process: trio.Process) -> None:
        with trio.CancelScope(shield=True):
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    await trio.aclose_forcefully(stream)
            with trio.move_on_after(END_S):
                await process.wait()
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # with what it has started
                await process.wait()
