"""One instance, looked at again and again: its status, and what its logs have told since the last look.

Guarantees: nothing is changed, no lock is taken that a writer needs; an instance that cannot be read gives a picture
that says why, and the next look tries again; what was seen before stays.
Leaves to others: what is shown (picture.py), when to look, and which instances there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from replicate.errors import ReplicateError
from replicate.instance.instance import Instance
from replicate.logs.line import US
from replicate.seeing.follow import FollowedLogs
from replicate.seeing.history import SeenHistory
from replicate.seeing.picture import COLUMNS, InstancePicture, picture_of, unreadable
from replicate.status.collect import collect
from replicate.status.report import Status

PAST_S_MAX: Final = 7 * 86_400.0
"""No curve begins longer ago."""


class InstanceView:
    """`look`, then `picture`: as often as is wanted, from one thread at a time."""

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
        self.status: Status | None = None
        """The last one; None while it cannot be read."""
        self._error = ""
        self._at_us = wall_ns() // 1000

    def look(self) -> None:
        """See how it stands now."""
        try:
            self.status = collect(Instance.open(self.named, needs=()))
            self._error = ""
        except ReplicateError as error:
            self.status, self._error = None, str(error)
        self._at_us = self._wall_ns() // 1000
        for line in self._logs.new_lines():
            self._history.line(line)
        if self.status is not None:
            self._history.status(self.status, self._at_us)

    def picture(self, *, past_s: float, columns: int = COLUMNS) -> InstancePicture:
        """As it was at the last look, with so long a past."""
        if self.status is None:
            error = self._error or "not looked at yet"
            return unreadable(self.name, str(self.path), error, now_us=self._at_us, past_s=past_s)
        return picture_of(self.status, self._history, now_us=self._at_us, past_s=past_s, columns=columns)
