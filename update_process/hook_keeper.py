"""Keeps the process of the comment hook running beside the Update Process, while the instance is a secondary.

Guarantees: applying never waits for it. Where it ends, that is logged, and it is started again: after a second, then
ever later, after a minute at most. What it prints is in the log `comment-hook.log`. What is applied before it has come
up for the first time is told, too.
Leaves to others: what is told to whom (comment_hook.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance

LOG: Final = "comment-hook.log"
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


def begin_telling(instance: Instance, log: Any) -> None:
    """Where nobody was told anything yet, note that all that is applied from now on is to be told: whenever the process
    comes up, and its function can be loaded."""
    from update_process.comment_hook import CommentHook  # and what reads journals, which nothing else here needs

    try:
        CommentHook(instance, lambda *_: None).close()
    except (ReplicateError, OSError) as error:
        log.warning("where the comment hook begins is not noted", error=str(error))


async def keep_hook(instance: Path, log: Any) -> None:
    """Until it is cancelled; the process is killed then, and goes on the next time with what it has not told yet."""
    pause_s = FIRST_PAUSE_S
    command = [sys.executable, "-m", "update_process.comment_hook", str(instance)]
    while True:
        begun_s = trio.current_time()
        code: int | str
        try:
            code = await _run(command, instance / "log" / LOG)
        except OSError as error:
            code = error.strerror or str(error)
        log.warning("comment hook ended", exit_code=code, again_in_s=pause_s, see=str(instance / "log" / LOG))
        if trio.current_time() - begun_s > LONGEST_PAUSE_S:
            pause_s = FIRST_PAUSE_S
        await trio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def _run(command: list[str], log: Path) -> int:
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        process = await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, stdout=fd, stderr=fd)
    finally:
        os.close(fd)
    try:
        return await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            if process.stdin is not None:
                await process.stdin.aclose()
