"""A daemon that does as it is told, run as a real process: what the tests of the daemon frame start and kill.

Usage: python -m tests.harness.toy_daemon INSTANCE MODE [--ready-fd N]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import trio

from replicate.daemon.daemon import DaemonContext, run_daemon
from replicate.errors import PeerRefusedError, ReplicateError

NAME = "toy"
_said: list[str] = []
"""Its last words: of its first work alone."""


async def serve(context: DaemonContext, mode: str) -> None:
    if mode == "refused":
        raise PeerRefusedError("the toy was refused", where="nowhere", do="Play with another", reason="TOY")
    if mode == "crash":
        raise ValueError("two\nlines")
    if mode == "never-ready":
        await trio.sleep_forever()
    if mode in ("vanish", "no-room"):
        sys.stderr.flush()
        import os

        os._exit(9 if mode == "vanish" else 74)
    context.ready("listening on nothing")
    if mode in ("no-memory", "no-thread"):
        async with trio.open_nursery():
            raise MemoryError if mode == "no-memory" else RuntimeError("can't start new thread")
    if mode == "crash-later":
        async with trio.open_nursery():
            raise KeyError("later")
    if mode == "deaf":
        time.sleep(600)  # noqa: ASYNC251 - the point: the loop hangs, no signal is heard
    if mode == "end":
        return
    number = 0
    while not context.stop_requested.is_set():
        number += 1
        context.status("counting", last_number=number)
        with trio.move_on_after(0.05):
            await context.stop_requested.wait()
    if mode == "first-word" and not _said:
        _said.append(f"counted {number}")
        context.status(last_word=_said[0])
    if mode == "slow-drain":
        await trio.sleep_forever()
    context.status("drained", last_number=-1, timeout_s=context.stop_deadline_s)


def main() -> int:
    instance, mode = Path(sys.argv[1]), sys.argv[2]
    ready_fd = int(sys.argv[4]) if "--ready-fd" in sys.argv else None
    try:
        run_daemon(NAME, instance, lambda context: serve(context, mode), ready_fd=ready_fd)
    except ReplicateError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if mode == "slow-end":
        time.sleep(0.3)  # its lock is given up already
    return 0


if __name__ == "__main__":
    sys.exit(main())
