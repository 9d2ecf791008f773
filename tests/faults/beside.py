"""Several jobs of one part beside one another, each in a process of its own, with its share of the time.

Guarantees: the figures of a job are added when it ends, also when an interrupt ends it; what it prints comes out then,
in one piece; a job that fails fails the part; none is left running. Leaves to others: what the jobs do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.faults.report import merge
from tests.faults.town import Child, fork
from tests.harness.forking import INTERRUPTS

POLL_S: Final = 0.05
INTERRUPTED_S: Final = 20.0
Job = Callable[[str, float, "Counter[str]"], None]
"""Of a name: has until then (on the monotonic clock), and fills its figures."""


def run_beside(jobs: Mapping[str, int], job: Job, figures: Counter[str], *, deadline_s: float, at_once: int) -> None:
    """Each job once, in this order. `jobs`: their weights, where time is short. AssertionError when one fails."""
    todo = list(jobs)
    running: dict[str, Child] = {}
    with tempfile.TemporaryDirectory(prefix="replicate-jobs-", ignore_cleanup_errors=True) as place:

        def end(name: str) -> None:
            status, where = running.pop(name).status, _place(Path(place), name)
            print((where / "output.txt").read_text(), end="", flush=True)
            if (where / "figures.json").exists():
                merge(figures, json.loads((where / "figures.json").read_text()))
            errors = where / "errors.txt"
            assert status == 0, f"{name}: {status}: {errors.read_text()[-3000:] if errors.exists() else ''}"

        try:
            while todo or running:
                while todo and len(running) < at_once:
                    share = at_once * jobs[todo[0]] / sum(jobs[name] for name in [*todo, *running])
                    until_s = time.monotonic() + (deadline_s - time.monotonic()) * min(1.0, share)
                    name = todo.pop(0)
                    # An interrupt that comes meanwhile waits until the job is known.
                    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
                    try:
                        running[name] = _start(name, job, until_s, _place(Path(place), name))
                    finally:
                        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                for name in [name for name, child in running.items() if child.poll()]:
                    end(name)
                time.sleep(POLL_S)
        except KeyboardInterrupt:
            for child in running.values():
                if not child.poll():
                    os.kill(child.pid, signal.SIGTERM)
            for name in list(running):
                if running[name].wait(INTERRUPTED_S):
                    try:
                        end(name)
                    except AssertionError as failure:
                        print(failure, flush=True)
            raise
        finally:
            for child in running.values():
                child.kill()


def _place(directory: Path, name: str) -> Path:
    return directory / name.replace(" ", "-")


def _start(name: str, job: Job, deadline_s: float, where: Path) -> Child:
    where.mkdir()
    (where / "output.txt").touch()

    def call() -> None:
        signal.signal(signal.SIGTERM, _interrupt)
        tempfile.tempdir = os.fspath(where)
        figures: Counter[str] = Counter()
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
            job(name, deadline_s, figures)
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            sys.stdout.flush()
            (where / "figures.json").write_text(json.dumps(figures))

    return fork(name, call, where / "errors.txt")


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
