"""One instance, looked at again and again: its status, and what its logs have told since the last look.

Guarantees: nothing is changed, no lock is taken that a writer needs; an instance that cannot be read gives a picture
that says why, and the next look tries again; what was seen before stays. A disk that does not answer keeps nobody from
the last picture.
Leaves to others: what is shown (picture.py), when to look, and which instances there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.logs.line import US
from replicate.seeing.follow import FollowedLogs
from replicate.seeing.history import SeenHistory
from replicate.seeing.picture import COLUMNS, InstancePicture, picture_of, unreadable
from replicate.seeing.picture_json import RecordTable
from replicate.seeing.site_records import record_tables
from replicate.status.collect import collect
from replicate.status.report import Status

PAST_S_MAX: Final = 7 * 86_400.0
"""No curve begins longer ago."""
PERIOD_S: Final = 0.4
"""Between two looks."""
_LINES_TOGETHER: Final = 500


class SeenView(Protocol):
    """One instance as it is looked at, of this host or of another one: `look` again and again, from one thread; all
    else from any other, whenever it is wanted."""

    name: str
    period_s: float

    def look(self) -> None:
        """See how it stands now. Never raises what concerns the instance."""

    def picture(self, *, past_s: float, columns: int = COLUMNS) -> InstancePicture:
        """As it was at the last look."""

    def records(self) -> tuple[RecordTable, ...]:
        """The tables of what it knows of all, now. Never raises."""


class InstanceView:
    """An instance of this host."""

    period_s = PERIOD_S

    def __init__(self, named: str, *, past_s: float = PAST_S_MAX, wall_ns: Callable[[], int] = time.time_ns) -> None:
        """`named`: as a command names it; errors of opening it are raised now. `past_s`: the longest time that a curve
        will show."""
        self.named = named
        self._wall_ns = wall_ns
        opened = Instance.open(named, needs=())
        self.name, self.path = opened.name, opened.path
        since_us = wall_ns() // 1000 - round(past_s * US)
        self._logs = FollowedLogs(self.path / "log", since_us)
        self._history = SeenHistory(since_us)
        self._lock = threading.Lock()
        """Of what a picture is made of; never held while something is read."""
        self.status: Status | None = None
        """The last one; None while it cannot be read."""
        self._error = ""
        self._at_us = wall_ns() // 1000

    def look(self) -> None:
        """See how it stands now."""
        status, error = None, ""
        try:
            status = collect(Instance.open(self.named, needs=()))
        except ReplicateError as found:
            error = str(found)
        at_us = self._wall_ns() // 1000
        with self._lock:
            self.status, self._error, self._at_us = status, error, at_us
            if status is not None:
                self._history.status(status, at_us)
        lines = self._logs.new_lines()
        while some := list(islice(lines, _LINES_TOGETHER)):
            with self._lock:
                for line in some:
                    self._history.line(line)

    def picture(self, *, past_s: float, columns: int = COLUMNS) -> InstancePicture:
        """As it was at the last look, with so long a past."""
        with self._lock:
            if self.status is None:
                error = self._error or "not looked at yet"
                return unreadable(self.name, str(self.path), error, now_us=self._at_us, past_s=past_s)
            return picture_of(self.status, self._history, now_us=self._at_us, past_s=past_s, columns=columns)

    def records(self) -> tuple[RecordTable, ...]:
        """The tables of what it knows of all."""
        return record_tables(self.named)


class InstanceLooker:
    """Looks at one instance in a thread of its own, every `period_s`, until it is closed. A look that hangs delays no
    other instance."""

    def __init__(self, view: SeenView) -> None:
        self.view = view
        self._is_closed = threading.Event()
        self._looks = 0
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"look at {view.name}", daemon=True)
        self._thread.start()

    @property
    def looks(self) -> int:
        """How often it has looked. Raises what has ended it, a defect of ours."""
        if self._failed is not None:
            raise self._failed
        return self._looks

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                self.view.look()
                self._looks += 1
                self._is_closed.wait(self.view.period_s)
        except BaseException as error:
            self._failed = error

    def close(self) -> None:
        """It looks no more. One that hangs ends with the process."""
        self._is_closed.set()
        self._thread.join(timeout=1.0)
