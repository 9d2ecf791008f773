"""What the lines of many logs tell together: figures by the time, marks for what happened, and how each daemon was.

Guarantees: memory is bounded, however many lines there are: rows are put together to longer periods, marks beyond
MARKS_MAX are counted; lines may come in any order of their daemons; a clock that was set back is said and loses
nothing. What the story does not know (the time before the first line) it does not invent.
Leaves to others: files (files.py), how it is shown (table.py, picture.py). Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from msgspec import Struct, field

from replicate.errors import UsageError
from replicate.logs.line import US, LogLine, Teller
from replicate.logs.period import Periods, next_width_us, row_of

MARKS_MAX: Final = 5000
SPANS_MAX: Final = 5000
TELLERS_MAX: Final = 256
SET_BACK_US: Final = US
"""A line that is older than the one before it by more than this: the clock was set back."""


class MarkKind(Enum):
    """What may happen. The value is how people are told."""

    ROLE = "role changed"
    STARTED = "started"
    ENDED = "ended"
    FAILED = "failed"
    DIED = "died without a word"
    CONNECTED = "stream begins"
    CUT = "stream lost"
    CLOSED = "stream ended"
    REFUSED = "refused"
    PAUSED = "paused (XOFF)"
    RESUMED = "goes on (XON)"
    FILES = "reads files"
    POOL = "reads the pool"
    SILENT = "silent"
    HEARD = "heard again"
    PASSIVE = "passive"
    ACTIVE = "active"
    SEED = "seed"
    LOST_LINES = "log lines lost"


class Being(Enum):
    """How a daemon is, as long as nothing else is told."""

    DOWN = "not running"
    RUNNING = "running"
    WAITING = "no stream"
    STREAMING = "streaming"
    PAUSED = "paused (XOFF)"
    PASSIVE = "passive"
    STANDING_BY = "standing by"


class LogMark(Struct, frozen=True):
    """Something that happened."""

    at_us: int
    teller: Teller
    kind: MarkKind
    text: str = ""


class StateSpan(Struct, frozen=True):
    """From when to when something was so: a Being, a role, or "files" for what is read from journal files."""

    from_us: int
    until_us: int
    what: str


class Track(Struct):
    """One daemon, as far as its lines have come."""

    teller: Teller
    periods: Periods
    lines: int = 0
    first_us: int = 0
    newest_us: int = 0
    last_us: int = 0
    """Of the line that was taken last."""
    role: str = ""
    set_back: int = 0
    """How often its clock was, and by how much at most."""
    set_back_us: int = 0
    spans: list[StateSpan] = field(default_factory=list)
    spans_left_out: int = 0
    _pid: int = 0
    _open: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What is so since when: `being`, `role` and `place`."""

    @property
    def being(self) -> str:
        """ "" where nothing is known."""
        return self._open.get("being", (0, ""))[1]

    @property
    def place(self) -> str:
        """From where a Source Server reads: FILES, or "" for the pool."""
        return self._open.get("place", (0, ""))[1]

    def spans_until(self, until_us: int) -> list[StateSpan]:
        """All spans so far, and what still is so, until then."""
        lasting = [StateSpan(since_us, until_us, value) for since_us, value in self._open.values() if value]
        return [*self.spans, *(span for span in lasting if span.until_us > span.from_us)]

    def becomes(self, what: str, value: str, at_us: int) -> None:
        """`what` (being, role, place) is `value` from then on; "": nothing is known, or told."""
        since_us, known = self._open.get(what, (at_us, ""))
        if known == value:
            return
        if known and at_us > since_us:
            if len(self.spans) < SPANS_MAX:
                self.spans.append(StateSpan(since_us, at_us, known))
            else:
                self.spans_left_out += 1
        self._open[what] = (max(at_us, since_us), value)

    def end(self) -> None:
        """There are no more lines: what is so, is so until the last one."""
        for what in tuple(self._open):
            self.becomes(what, "", max(self.last_us, self._open[what][0]))

    def process_is(self, pid: int) -> int:
        """Another process tells from now on (0: none does); the one that did."""
        was, self._pid = self._pid, pid
        return was


class LogStory:
    """Take each line, then `end`; what is there then stands in the attributes."""

    def __init__(self, *, since_us: int = 0, until_us: int = 2**63, every_us: int | None = None) -> None:
        """Lines before `since_us` only say how things stood then; those from `until_us` on are not heard. `every_us`:
        the period of a row; None: a short one, longer where there are many rows."""
        self.since_us = since_us
        self.until_us = until_us
        self.every_us = every_us
        self.tracks: dict[Teller, Track] = {}
        self.marks: list[LogMark] = []
        self.marks_left_out = 0
        self.tellers_left_out = 0
        self.lines = 0
        """Of daemons, within the time."""
        self._roles: dict[tuple[str, str], tuple[str, int]] = {}

    @property
    def first_us(self) -> int:
        return min((track.first_us for track in self.tracks.values() if track.lines), default=0)

    @property
    def last_us(self) -> int:
        return max((track.newest_us for track in self.tracks.values() if track.lines), default=0)

    def take(self, line: LogLine) -> None:
        """The next line of some daemon. UsageError: more rows than can be kept with the period that was asked for."""
        if line.at_us >= self.until_us:
            return
        track = self.tracks.get(line.teller)
        if track is None:
            if len(self.tracks) >= TELLERS_MAX:
                self.tellers_left_out += 1
                return
            periods = Periods() if self.every_us is None else Periods(self.every_us)
            track = self.tracks[line.teller] = Track(line.teller, periods)
        is_within = line.at_us >= self.since_us
        if track.last_us - line.at_us > SET_BACK_US:
            track.set_back += 1
            track.set_back_us = max(track.set_back_us, track.last_us - line.at_us)
        at_us = max(line.at_us, self.since_us)
        if is_within:
            self.lines += 1
            track.first_us = min(track.first_us, line.at_us) if track.lines else line.at_us
            track.newest_us = max(track.newest_us, line.at_us)
            track.lines += 1
        self._follow(track, line, at_us, is_within)
        track.last_us = line.at_us

    def end(self) -> None:
        """No more lines: marks in the order of their times."""
        for track in self.tracks.values():
            track.end()
        self.tracks = {teller: track for teller, track in self.tracks.items() if track.lines}
        self.marks.sort(key=lambda mark: mark.at_us)

    # What a line means.

    def _mark(self, track: Track, line: LogLine, kind: MarkKind, text: str = "", at_us: int | None = None) -> None:
        at_us = line.at_us if at_us is None else at_us
        if at_us < self.since_us:
            return
        if len(self.marks) >= MARKS_MAX:
            self.marks_left_out += 1
            return
        self.marks.append(LogMark(at_us, track.teller, kind, " ".join(text.split())[:200]))

    def _follow(self, track: Track, line: LogLine, at_us: int, is_within: bool) -> None:
        event = line.event
        if event == "statistics":
            if is_within:
                track.periods.add(line.at_us, row_of(line))
                self._keep_few(track)
            if track.being in ("", *_BY_STATE.values()):
                state = _BY_STATE.get(line.text("state"))
                if state is None and track.being == "":
                    state = Being.RUNNING.value if track.teller.kind == "update" else Being.WAITING.value
                if state is not None:
                    track.becomes("being", state, at_us)
        elif event == "daemon started":
            self._started(track, line, at_us)
        elif event == "role followed":
            track.becomes("being", _being_in(line.text("role"), track.teller.kind), at_us)
            self._in_role(track, line, at_us)
        elif event == "serving" and line.text("status").startswith("standing by"):
            track.becomes("being", Being.STANDING_BY.value, at_us)
        elif event == "daemon failed":
            self._mark(track, line, MarkKind.FAILED, line.text("error") or "unexpectedly; its log has the traceback")
        elif event == "daemon ended":
            track.process_is(0)
            if line.text("state") != "failed":
                self._mark(track, line, MarkKind.ENDED)
            track.becomes("being", Being.DOWN.value, at_us)
            track.becomes("place", "", at_us)
        else:
            self._of_a_stream(track, line, at_us)

    def _started(self, track: Track, line: LogLine, at_us: int) -> None:
        before = track.process_is(line.pid or -1)
        if before:
            gone_us = min(max(track.last_us, self.since_us), at_us)
            self._mark(track, line, MarkKind.DIED, f"process {before}: killed, or the power went", at_us=gone_us)
            track.becomes("being", Being.DOWN.value, gone_us)
            track.becomes("place", "", gone_us)
        self._mark(track, line, MarkKind.STARTED)
        track.becomes("being", (Being.RUNNING if track.teller.kind == "update" else Being.WAITING).value, at_us)
        self._in_role(track, line, at_us)

    def _in_role(self, track: Track, line: LogLine, at_us: int) -> None:
        role, incarnation = line.text("role"), line.count("incarnation")
        if not role:
            return
        track.role = role
        track.becomes("role", role, at_us)
        instance = (line.teller.host, line.teller.instance)
        was = self._roles.get(instance)
        self._roles[instance] = (role, incarnation)
        if was is not None and was[0] != role:
            name = line.text("name") or line.teller.name.partition("/")[0]
            self._mark(track, line, MarkKind.ROLE, f"{name} is {role}, it was {was[0]} (incarnation {incarnation})")

    def _of_a_stream(self, track: Track, line: LogLine, at_us: int) -> None:
        event = line.event
        if event in ("streaming", "receiving"):
            track.becomes("being", Being.STREAMING.value, at_us)
            self._mark(track, line, MarkKind.CONNECTED, f"from transaction {line.count('from_seqno')}")
        elif event == "connection closed":
            if track.being in _STREAMS:
                is_bye = line.text("reason") == "bye"
                text = line.text("text") if is_bye else line.text("error") or line.text("reason")
                self._mark(track, line, MarkKind.CLOSED if is_bye else MarkKind.CUT, text)
                track.becomes("being", Being.WAITING.value, at_us)
        elif event == "connection refused":
            self._mark(track, line, MarkKind.REFUSED, line.text("reason") or line.text("error"))
        elif event.startswith(("XOFF", "XON")):
            is_pause = event.startswith("XOFF")
            self._mark(track, line, MarkKind.PAUSED if is_pause else MarkKind.RESUMED)
            track.becomes("being", (Being.PAUSED if is_pause else Being.STREAMING).value, at_us)
        elif event.startswith("now reading from"):
            is_pool = event.startswith("now reading from the journal pool")
            self._mark(track, line, MarkKind.POOL if is_pool else MarkKind.FILES)
            track.becomes("place", "" if is_pool else FILES, at_us)
        elif event in ("the peer is silent", "the source is silent"):
            self._mark(track, line, MarkKind.SILENT, f"for {line.number('silent_s') or 0:g} s")
        elif event.endswith("is silent no more"):
            self._mark(track, line, MarkKind.HEARD)
        elif event in ("passive", "active"):
            is_passive = event == "passive"
            self._mark(track, line, MarkKind.PASSIVE if is_passive else MarkKind.ACTIVE)
            track.becomes("being", (Being.PASSIVE if is_passive else Being.WAITING).value, at_us)
        elif event in ("seed made", "seed received", "seed begins"):
            self._mark(track, line, MarkKind.SEED, event.removeprefix("seed "))
        elif event == "log lines lost":
            self._mark(track, line, MarkKind.LOST_LINES, f"{line.count('lost_lines')}: its disk was full, perhaps")

    def _keep_few(self, track: Track) -> None:
        if len(track.periods.rows) <= Periods.ROWS_MAX:
            return
        if self.every_us is None:
            track.periods.widen(next_width_us(track.periods.width_us))
        elif len(track.periods.rows) > ROWS_ASKED_MAX:
            raise UsageError(
                f"there are more than {ROWS_ASKED_MAX} rows of {self.every_us / US:g} s",
                do="Ask for longer ones with --every, or for less time with --since and --until",
            )


def _being_in(role: str, kind: str) -> str:
    """How a daemon of that kind is that has just begun to follow the role."""
    begun = Being.RUNNING if kind == "update" else Being.WAITING
    return str((Being.STANDING_BY if role == "primary" and kind != "source" else begun).value)


FILES: Final = "files"
"""What the place of a Source Server is called while it reads journal files."""
ROWS_ASKED_MAX: Final = 100_000
_STREAMS: Final = (Being.STREAMING.value, Being.PAUSED.value)
_BY_STATE: Final = {
    "sending": Being.STREAMING.value,
    "receiving": Being.STREAMING.value,
    "waiting for XON": Being.PAUSED.value,
    "waiting for a connection": Being.WAITING.value,
    "passive": Being.PASSIVE.value,
}
"""How a daemon is, by the `state` of its statistics."""
