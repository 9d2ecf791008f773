"""Progress of long work on one line of a terminal, written over; nothing where standard error is no terminal.

Guarantees: a terminal that goes away ends the line, never the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from update_process.replay.apply import Progress
    from update_process.replay.archive import Step

LINE_PERIOD_S = 0.5
_CLEAR = "\r\033[K"
_UNITS = {"reading": "transactions", "reading parts": "parts", "applying parts": "parts"}
"""What is counted in each step of a replay, where it is not rows."""


class Line:
    """One line, at most every LINE_PERIOD_S, but always where `what` is another."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._began_s = now()
        self._next_s = self._began_s
        self._what = ""
        self._first = (self._began_s, 0)
        self._shown = False
        self._is_gone = False

    def show(self, what: str, done: int, whole: int, unit: str, more: str) -> None:
        """`done` of `whole` (0: nobody knows) units, and how quickly; then `more`."""
        now_s = self._now()
        if what != self._what:
            self._what, self._next_s, self._first = what, now_s, (now_s, done)
        if now_s < self._next_s and not (whole and done >= whole):
            return
        self._next_s = now_s + LINE_PERIOD_S
        parts = [f"{now_s - self._began_s:.0f} s", what]
        if done or whole:
            parts.append(f"{done} of {whole} {unit}" if whole else f"{done} {unit}")
        parts += [one for one in (self._rate(now_s, done, whole, unit), more) if one]
        self._put(f"{_CLEAR}{', '.join(parts)}")
        self._shown = True

    def _rate(self, now_s: float, done: int, whole: int, unit: str) -> str:
        began_s, first = self._first
        if now_s <= began_s or done <= first:
            return ""
        rate = (done - first) / (now_s - began_s)
        left = f", about {(whole - done) / rate:.0f} s left" if whole > done else ""
        return f"{rate:.0f} {unit} a second{left}" if rate >= 1 else f"{1 / rate:.0f} s each of the {unit}{left}"

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._put(_CLEAR)
            self._shown = False

    def _put(self, text: str) -> None:
        if self._is_gone:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._is_gone = True


@contextmanager
def _line() -> Iterator[Line | None]:
    if not sys.stderr.isatty():
        yield None
        return
    line = Line(sys.stderr)
    try:
        yield line
    finally:
        line.close()


@contextmanager
def replaying() -> Iterator[Callable[[Progress], None]]:
    """What tells how far a replay is."""
    with _line() as line:
        yield (lambda _one: None) if line is None else (lambda one: tell_replay(line, one))


def tell_replay(line: Line, one: Progress) -> None:
    """One step of a replay."""
    touched = f"{one.keys} rows touched, " if one.keys else ""  # by Spark it is not known before the end
    more = f"at transaction {one.seqno}: {one.changes} changes, {touched}{one.written} written"
    if one.what == "starting Spark":
        line.show(one.what, 0, 0, "", "")
    elif one.what == "collapsing":  # how many tasks there will be nobody knows, and so no time
        line.show(one.what, 0, 0, "", (f"Spark: {one.done} of {one.whole} tasks, " if one.whole else "") + more)
    else:
        line.show(one.what, one.done, one.whole, _UNITS.get(one.what, "rows"), more)


@contextmanager
def archiving() -> Iterator[Callable[[Step], None]]:
    """What tells how far an archive is."""
    with _line() as line:
        if line is not None:
            line.show("starting Spark", 0, 0, "", "")
        yield (lambda _one: None) if line is None else (lambda one: tell_archive(line, one))


def tell_archive(line: Line, one: Step) -> None:
    """One range that is archived."""
    more = f"up to transaction {one.last_seqno}: {one.transactions} transactions, {one.changes} changes"
    if one.all_tasks:
        more += f"; Spark: {one.tasks} of {one.all_tasks} tasks"
    line.show("archiving", one.segments, one.all_segments, "segments", more)
