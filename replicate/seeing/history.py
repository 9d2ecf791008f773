"""What was before: curves and events of one instance, from the lines of its logs and from one status after another.

Guarantees: a view that starts again knows what the logs tell, and forgets nothing of that; memory is bounded. What no
log says by itself (a daemon was killed, and nobody has started it) is taken from the statuses, once.
Leaves to others: reading the files (follow.py), clocks, and how it is shown. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from replicate.logs.line import US, LogLine, Teller
from replicate.logs.period import row_of
from replicate.logs.story import FILES, LogMark, LogStory, MarkKind, Track
from replicate.seeing.curve import Curve, CurveKind, CurveSpan
from replicate.status.report import DaemonReport, Status

EVENTS_MAX: Final = 1000
SPANS_MAX: Final = 1000
"""So many events are kept, and so many changes of a daemon's state, the newest ones."""
PACE_US: Final = 3 * US
"""A rate is measured over so long, and over half of it at least: daemons tell their numbers once a second, so that what
passed between two looks may be nothing, or what passed in all of a second."""
GAP_US: Final = 30 * US
"""Between two looks that are farther apart nobody looked."""
_KINDS: Final[Mapping[str, CurveKind]] = {"lag_s": "most", "backlog": "most", "per_s": "mean"}


class PlaceInStreet(Struct, frozen=True):
    """A number that only grows, at a place of the street: `written`, `sent:west`, `applied`."""

    key: str
    seqno: int


class SeenHistory:
    """`line` for each line of the instance's logs, in their order; `status` for each status that was taken."""

    def __init__(self, since_us: int) -> None:
        """Nothing that ended before `since_us` is told."""
        self.since_us = since_us
        self.curves: dict[tuple[str, str], Curve] = {}
        """By (daemon, figure): `source-west`, `receiver`, `update` or `journal`; `lag_s`, `backlog` or `per_s`."""
        self._story = LogStory(since_us=since_us)
        self._written: dict[Teller, tuple[int, int]] = {}
        self._looks: dict[str, list[tuple[int, int]]] = {}
        self._pace: dict[str, float] = {}
        self._before: Status | None = None
        self._before_us = 0
        self._own: list[LogMark] = []

    # From the logs.

    def line(self, line: LogLine) -> None:
        """The next line of a log."""
        self._story.take(line)
        story, teller = self._story, line.teller
        if len(story.marks) > 2 * EVENTS_MAX:
            del story.marks[:-EVENTS_MAX]
        track = story.tracks.get(teller)
        if track is not None and len(track.spans) > 2 * SPANS_MAX:
            del track.spans[:-SPANS_MAX]
        if line.event != "statistics" or line.at_us < self.since_us:
            return
        row = row_of(line)
        from_us = line.at_us - round(row.seconds * US)
        figures = {"lag_s": row.lag_s, "backlog": row.backlog, "per_s": row.per_s}
        for figure, value in figures.items():
            if value is not None:
                least = row.is_at_least and figure != "per_s"
                self._curve(teller.daemon, figure).tell(CurveSpan(from_us, line.at_us, value, least))
        self._written_by(line)

    def _written_by(self, line: LogLine) -> None:
        """How many a second the primary has committed: a Source Server's lines tell its last number."""
        written = line.number("last_written_seqno")
        if line.teller.kind != "source" or written is None:
            return
        before = self._written.get(line.teller)
        self._written[line.teller] = (line.at_us, int(written))
        if before is not None and line.at_us > before[0] and written >= before[1]:
            per_s = (written - before[1]) * US / (line.at_us - before[0])
            self._curve("journal", "per_s").tell(CurveSpan(before[0], line.at_us, per_s))

    def _curve(self, daemon: str, figure: str) -> Curve:
        return self.curves.setdefault((daemon, figure), Curve(_KINDS[figure]))

    # From looking.

    def status(self, status: Status, now_us: int) -> None:
        """How it stands at `now_us`, by the wall clock: later than the last one."""
        if self._before is not None and now_us <= self._before_us:
            return  # the clock was set back: until it is where it was, nothing is drawn
        is_known = self._before is not None and now_us - self._before_us <= GAP_US
        if not is_known:
            self._looks.clear()
        since_us = self._before_us if is_known else now_us - US  # of daemons that tell once a second
        for place in places_of(status):
            self._at(place, now_us)
        for daemon, figure, value, least in _measured(status, self._pace):
            if value is not None:
                self._curve(daemon, figure).see(CurveSpan(since_us, now_us, value, least))
        if is_known and self._before is not None:
            self._own += _happened(self._before, status, now_us)
            del self._own[:-EVENTS_MAX]
        self._before, self._before_us = status, now_us

    def _at(self, place: PlaceInStreet, now_us: int) -> None:
        looks = self._looks.setdefault(place.key, [])
        if looks and place.seqno < looks[-1][1]:
            looks.clear()  # another journal, or a role that was changed
        looks.append((now_us, place.seqno))
        while len(looks) > 2 and now_us - looks[1][0] >= PACE_US:
            del looks[0]
        self._pace.pop(place.key, None)
        span_us = looks[-1][0] - looks[0][0]
        if span_us >= PACE_US // 2:
            self._pace[place.key] = (looks[-1][1] - looks[0][1]) * US / span_us

    # What is known.

    def per_s(self, key: str, now_us: int) -> float | None:
        """How many transactions a second pass that place: measured by looking, or else what the newest line of a log
        says, as long as that is not old."""
        if key in self._pace:
            return self._pace[key]
        curve = self.curves.get((_DAEMONS.get(key.partition(":")[0], "{}").format(key.partition(":")[2]), "per_s"))
        return None if curve is None else curve.lately(now_us).value

    def reads_files(self, daemon: str) -> bool:
        """Whether that Source Server reads journal files: the pool does not hold what it needs next."""
        return any(track.place == FILES for track in self.tracks if track.teller.daemon == daemon)

    @property
    def tracks(self) -> list[Track]:
        """Each daemon that has written a line."""
        return list(self._story.tracks.values())

    @property
    def events(self) -> list[LogMark]:
        """What happened, the oldest first. What a log has told by now is not told by looking too."""
        told = self._story.marks
        started = {mark.teller.daemon: mark.at_us for mark in told if mark.kind is MarkKind.STARTED}
        roles = {mark.text for mark in told if mark.kind is MarkKind.ROLE}
        own = [mark for mark in self._own if mark.text not in roles and started.get(mark.teller.daemon, 0) < mark.at_us]
        return sorted((*told, *own), key=_at_us)[-EVENTS_MAX:]

    def died_us(self, daemon: str) -> int:
        """When it was seen to have died; 0 where it was not."""
        own = (mark.at_us for mark in self._own if mark.kind is MarkKind.DIED and mark.teller.daemon == daemon)
        return max(own, default=0)

    def tally(self, from_us: int) -> dict[MarkKind, int]:
        """How often each kind of thing has happened since then."""
        return dict(Counter(mark.kind for mark in self.events if mark.at_us >= from_us))


_DAEMONS: Final = {
    "written": "journal", "sent": "source-{}", "received_there": "source-{}", "received": "receiver",
    "applied": "update",
}  # fmt: skip
"""By the first word of a place, whose lines of statistics count what passes it."""


def _at_us(mark: LogMark) -> int:
    return mark.at_us


def places_of(status: Status) -> Iterator[PlaceInStreet]:
    """The numbers of the street that are known."""
    found: list[tuple[str, int | None]] = [("written", status.journal.last_written_seqno)]
    for peer in status.peers:
        found += [
            (f"sent:{peer.name}", peer.last_sent_seqno),
            (f"received_there:{peer.name}", peer.last_received_seqno),
            (f"applied_there:{peer.name}", peer.last_applied_seqno),
        ]
    if status.receiving is not None:
        receiving = status.receiving
        found += [
            ("source_written", receiving.source_last_seqno),
            ("received", receiving.last_received_seqno),
            ("applied", receiving.last_applied_seqno),
        ]
    return (PlaceInStreet(key, seqno) for key, seqno in found if seqno is not None)


def _measured(status: Status, pace: Mapping[str, float]) -> Iterator[tuple[str, str, float | None, bool]]:
    """(daemon, figure, value, whether it is that or more)."""
    yield "journal", "per_s", pace.get("written"), False
    for peer in status.peers:
        daemon = peer.source.name
        is_old = not peer.is_connected or peer.is_silent  # it may have applied more since
        yield daemon, "lag_s", peer.lag_s, False
        yield daemon, "backlog", None if peer.backlog is None else float(peer.backlog), False
        yield daemon, "per_s", None if is_old else pace.get(f"sent:{peer.name}"), False
    receiving = status.receiving
    if receiving is None:
        return
    is_least = receiving.backlog is None
    backlog = receiving.backlog_at_least if is_least else receiving.backlog
    yield "receiver", "lag_s", receiving.lag_at_least_s if is_least else receiving.lag_s, is_least
    yield "receiver", "backlog", None if backlog is None else float(backlog), is_least
    yield "receiver", "per_s", pace.get("received"), False
    yield "update", "per_s", pace.get("applied"), False


def daemons_of(status: Status) -> Iterator[DaemonReport]:
    """All that are reported."""
    yield from (peer.source for peer in status.peers)
    if status.receiving is not None:
        yield from (status.receiving.receiver, status.receiving.update)


def _happened(before: Status, now: Status, now_us: int) -> Iterator[LogMark]:
    """What no log says at once."""
    was = {daemon.name: daemon for daemon in daemons_of(before)}
    for daemon in daemons_of(now):
        known = was.get(daemon.name)
        if daemon.state == "dead" and known is not None and known.state != "dead":
            teller = Teller("", now.path, daemon.name)
            yield LogMark(now_us, teller, MarkKind.DIED, f"process {known.pid}: killed, or the power went")
    if now.role != before.role:
        text = f"{now.name} is {now.role}, it was {before.role} (incarnation {now.incarnation})"
        yield LogMark(now_us, Teller("", now.path, "receiver"), MarkKind.ROLE, text)
