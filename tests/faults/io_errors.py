"""The n-th write, sync or rename of a short run fails, for every n: what must hold then.

    python -m tests.faults.io_errors [--calls fdatasync,fsync,…] [--errors EIO,…] [--stride N | --seconds S]

The run is a child that commits small and large rows, a large transaction and a segment switch. In it the one call in
`os` fails for journal, durable mark and instance file (SQLite's own calls are not Python's; tests of the door plant
those). Afterwards another process opens the instance. Guarantees: an error of a segment, a directory or the instance
file is fatal to the writer, also by the sight of what it answers afterwards, unless it is a full disk that took
everything back; one of the mark beside the journal or of a large transaction's own file stays that commit's; nothing
acknowledged is missing, nothing that was refused is there; recovery needs nobody. Left to others: which call is which.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import math
import os
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Final

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from tests.faults.every_call import Step, every_call
from tests.faults.part import parser, run_part
from tests.faults.region_disk import Counted
from tests.harness import instances

CALLS: Final = ("fdatasync", "fsync", "pwrite", "write", "rename")
ERRORS: Final = ("EIO", "ENOSPC")
ROWS: Final = (
    (10, 1),
    (11, 100),
    (12, 9000),
    (13, 200_000),
    (14, 200_000),
    (15, 200_000),
    (16, 200_000),
    (17, 400_000),
)
LARGE: Final = (100, 300)
"""First row, and how many: of a large transaction."""
FATAL: Final = frozenset({"EIO", "EROFS"})
"""Errors that leave open what is on the disk: the writer must end with them."""
NOT_FATAL: Final = ("durable", "*.spool")
"""Names of files of which even these errors concern one commit only: the mark, and what holds one large transaction."""
LEAST: Final = ("I/O errors made",)


class Plant:
    """Makes the n-th of one call fail, below one directory; counts them all (`counted`: also for who forked us)."""

    def __init__(self, call: str, number: int, error: int, below: Path, counted: Counted | None = None) -> None:
        self.counted = counted or Counted()
        self.later = 0
        self.failed = ""
        """The name of the file or directory whose call failed."""
        self._number, self._error, self._below = number, error, os.fspath(below)
        self._real: Callable[..., Any] = getattr(os, call)
        self._call = call
        setattr(os, call, self)

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        path = str(arguments[0])
        if isinstance(arguments[0], int):
            mode = os.fstat(arguments[0]).st_mode
            is_disk = stat.S_ISREG(mode) or stat.S_ISDIR(mode)  # a pipe or socket has none
            path = os.readlink(f"/proc/self/fd/{arguments[0]}") if is_disk else ""
        if path.startswith(self._below):
            count = self.counted.next()
            if self.counted.is_due(count, self._number):
                self.failed = os.path.basename(path)
                if self._call == "pwrite" and self._error == errno.ENOSPC and len(arguments[1]) > 1:
                    self._real(
                        arguments[0], arguments[1][: len(arguments[1]) // 2], arguments[2]
                    )  # half of it is there
                raise OSError(self._error, os.strerror(self._error))
            self.later += count > self._number
        return self._real(*arguments, **more)

    def undo(self) -> None:
        setattr(os, self._call, self._real)


def work(path: Path, call: str, number: int, error: str, told: Path) -> None:
    """The child: commits, and writes down what it was told. The last line says how many calls there were."""
    instance = Instance.open(path)
    lines: list[str] = []
    with instances.door_of(instance):
        pass
    plant = Plant(call, number, getattr(errno, error), path)
    try:
        with instances.session_of(instance) as session:
            for row_id, size in ROWS:
                lines.append(_commit(str(row_id), lambda r=row_id, n=size: instances.insert(session, r, "x" * n)))
            lines.append(
                _commit("large", lambda: session.commit(instances.begin_large(session, LARGE[0], LARGE[1])), session)
            )
            lines.append(_commit("18", lambda: instances.insert(session, 18)))
            lines.append(f"fatal {session.door.words[_fatal()]}")
    except ReplicateError as failure:
        lines.append(f"opening {failure.code}")
    plant.undo()
    if plant.failed:
        lines.append(f"failed {plant.failed}")
    lines.append(f"calls {plant.counted.count}")
    told.write_text("\n".join(lines) + "\n")


def _fatal() -> int:
    from replicate.pool import control as word

    return int(word.FATAL)


def _commit(name: str, call: Callable[[], Any], session: Any = None) -> str:
    try:
        call()
    except ReplicateError as error:
        if session is not None:
            with contextlib.suppress(ReplicateError):
                session.rollback()
        return f"{name} {'unknown' if error.code == 'OUTCOME_UNKNOWN' else 'failed'} {error.code}"
    return f"{name} ok -"


def judge(path: Path, told: Path, error: str = "") -> None:
    """Another process: recovery, and what is there against what was told. `error`: was made, somebody must know."""
    results = dict(line.split(" ", 1) for line in told.read_text().splitlines())
    found = instances.check(Instance.open(path))
    there = set(found.rows["main"])
    names = {**{str(row_id): {row_id} for row_id, _ in ROWS}, "18": {18}, "large": set(range(LARGE[0], sum(LARGE)))}
    for name, rows in names.items():
        result = results.get(name, "failed").split()[0]
        if result == "ok":
            assert rows <= there, f"{name} was acknowledged and is missing"
        elif result == "failed":
            assert not rows & there, f"{name} failed and is present"
        else:
            assert rows <= there or not rows & there, f"{name} is there in part"
    codes = [text.split()[1] for name, text in results.items() if name in names]
    first = next((place for place, code in enumerate(codes) if code != "-"), len(codes))
    fatal = int(results.get("fatal", "0"))
    if error:
        assert "failed" in results, "the call that was to fail did not come"
        failed = results["failed"]
        assert first < len(codes) or "opening" in results, f"{failed}: {error}, and nobody was told"
        if error in FATAL and "fatal" in results and not any(fnmatch(failed, name) for name in NOT_FATAL):
            assert fatal, f"{failed}: {error}, and it is not fatal to the writer: {results}"
    if fatal:
        assert "-" not in codes[first + 1 :], f"a commit was acknowledged after a fatal error: {results}"
    with instances.session_of(Instance.open(path)) as session:
        instances.insert(session, 999_999)
    instances.check(Instance.open(path))


def sweep(
    call: str, error: str, figures: Counter[str], *, stride: int = 1, seed: int = 0, deadline_s: float = math.inf
) -> list[str]:
    """Every n of one call, or every `stride`-th; with a deadline in an order of the seed. What was violated."""
    violations: list[str] = []

    def steps(disk: Path, outside: Path, number: int) -> list[Step]:
        path, told = disk / "alpha", outside / "told"
        return [
            ("build", lambda: instances.make_primary(path, segment_bytes=1 << 20)),
            ("work", lambda: work(path, call, number, error, told)),
            ("judge", lambda: judge(path, told, error if number else "")),
        ]

    def count(outside: Path) -> int:
        return int((outside / "told").read_text().split("calls ")[1])

    dice = f"{seed} {call} {error}"
    for run in every_call(steps, count, stride=stride, dice=dice, deadline_s=deadline_s):
        figures[f"I/O errors: {call} {error}"] += run.number > 0
        figures["I/O errors made"] += run.number > 0
        figures["I/O errors planned"] += run.planned
        if run.failed:
            figures["violations"] += 1
            violations.append(f"{call} {run.number} {error}: {run.failed}")
    return violations


def work_all(options: argparse.Namespace, figures: Counter[str]) -> None:
    todo = [(call, error) for call in options.calls.split(",") for error in options.errors.split(",")]
    for number, (call, error) in enumerate(todo):
        left_s = (options.deadline_s - time.monotonic()) / (len(todo) - number)
        for violation in sweep(
            call, error, figures, stride=options.stride, seed=options.seed, deadline_s=time.monotonic() + left_s
        ):
            print(violation, flush=True)


def main() -> int:
    made = parser("tests.faults.io_errors")
    made.add_argument("--calls", default=",".join(CALLS))
    made.add_argument("--errors", default=",".join((*ERRORS, "EROFS")))
    made.add_argument("--stride", type=int, default=1)
    return run_part(made.parse_args(), work_all, ("violations", "parts that failed"), least=LEAST)


if __name__ == "__main__":
    sys.exit(main())
