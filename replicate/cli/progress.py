"""Progress of long work on one line of a terminal, written over; nothing where standard error is no terminal.

Guarantees: a terminal that goes away ends the line, never the work; a line is never longer than the terminal is wide;
where nobody looks nothing is asked.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from replicate.limits import MIB

if TYPE_CHECKING:
    from replicate.compare.compare import CompareProgress as CompareStep
    from update_process.replay.apply import Progress
    from update_process.replay.archive.archive import Step

LINE_PERIOD_S = 0.5
BYTES = "bytes"
_CLEAR = "\r\033[K"
_SEEDING = {
    "receiving": BYTES,
    "waiting until that transaction is applied": "transactions",
    "bringing the copy forward": "regions",
    "putting rows in": "tables",
}
"""What the steps of a seed are counted in."""
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

    def show(self, what: str, done: int, whole: int, unit: str, more: str = "") -> None:
        """`done` of `whole` (0: nobody knows) units (BYTES are told in MiB), and how quickly; then `more`."""
        now_s = self._now()
        if what != self._what:
            self._what, self._next_s, self._first = what, now_s, (now_s, done)
        if now_s < self._next_s and not (whole and done >= whole):
            return
        self._next_s = now_s + LINE_PERIOD_S
        parts = [_span(now_s - self._began_s), what]
        if done or whole:
            parts.append(f"{_count(done, unit)} of {_amount(whole, unit)}" if whole else _amount(done, unit))
        parts += [one for one in (self._rate(now_s, done, whole, unit), more) if one]
        self._put(_CLEAR + ", ".join(parts)[: self._width()])
        self._shown = True

    def _rate(self, now_s: float, done: int, whole: int, unit: str) -> str:
        began_s, first = self._first
        if now_s <= began_s or done <= first:
            return ""
        rate = (done - first) / (now_s - began_s)
        left = f", about {_span((whole - done) / rate)} left" if whole > done else ""
        if unit == BYTES:
            return f"{_amount(rate, unit)}/s{left}"
        return f"{rate:.0f} {unit} a second{left}" if rate >= 1 else f"{1 / rate:.0f} s each of the {unit}{left}"

    def _width(self) -> int | None:
        """What is longer goes on in the next row, and stays there."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns
        except (OSError, ValueError):  # no terminal
            return None
        return columns - 1 if columns > 1 else None

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


def _count(number: float, unit: str) -> str:
    return f"{number / MIB:.1f}" if unit == BYTES else f"{number:.0f}"


def _amount(number: float, unit: str) -> str:
    return f"{_count(number, unit)} {'MiB' if unit == BYTES else unit}"


def _span(seconds: float) -> str:
    if seconds < 180:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"


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
def exporting() -> Iterator[Callable[[int, int], None]]:
    """What tells how many transactions are in packets."""
    with _line() as line:
        yield lambda done, whole: None if line is None else line.show("exporting", done, whole, "transactions")


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


@contextmanager
def seeding(more: str, doing: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """What tells how far a seed is: a label (after `doing`), and how much of how much, by _SEEDING or in pages."""
    with _line() as line:
        yield lambda label, done, whole: None if line is None else tell_seed(line, label, done, whole, more, doing)


def tell_seed(line: Line, label: str, done: int, whole: int, more: str, doing: str = "") -> None:
    """One step of a seed, or of the load of a partition."""
    line.show(f"{doing} {label}".lstrip(), done, whole, _SEEDING.get(label, "pages"), more)


@contextmanager
def counting(doing: str, unit: str) -> Iterator[Callable[[int], None]]:
    """What tells how many of something are done, where nobody knows how many there are."""
    with _line() as line:
        yield lambda done: None if line is None else line.show(doing, done, 0, unit)


@contextmanager
def reading() -> Iterator[Callable[[str, int, int], None] | None]:
    """What tells how much of a file is read; None where nobody looks."""
    with _line() as line:
        yield None if line is None else lambda what, done, whole: line.show(what, done, whole, BYTES)


@contextmanager
def comparing() -> Iterator[Callable[[CompareStep], None] | None]:
    """What tells how far a digest or a comparison is; None where nobody looks."""
    with _line() as line:
        yield None if line is None else lambda one: tell_compare(line, one)


def tell_compare(line: Line, one: CompareStep) -> None:
    """One step of a digest or a comparison."""
    line.show(one.what, one.done_bytes, one.whole_bytes, BYTES, one.more)
