"""The picture of one instance at one moment: all that `replicate watch` and `replicate web` show of it, as values.

Guarantees: what is shown of now is what `replicate status` says at the same moment; what is shown of before is what the
logs say, and what was seen since. The same status and the same history give the same picture.
Leaves to others: reading (instance_view.py) and drawing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from replicate.logs.line import US
from replicate.logs.story import FILES, Being, LogMark, MarkKind
from replicate.model.findings import Severity
from replicate.seeing.curve import CurvePoint
from replicate.seeing.history import SeenHistory, daemons_of
from replicate.seeing.street import Mood, StreetRow, street_of
from replicate.status.report import Status
from replicate.status.text import COMMAND, seconds

COLUMNS: Final = 120
"""Points of a curve, unless told otherwise."""
EVENTS: Final = 200
"""So many events are in a picture, the newest ones of its time."""
_BEINGS: Final = frozenset({being.value for being in Being} | {FILES})
_PROSE: Final = re.compile(
    r"(?:`|\.(?=\s|\Z)|\s(?:names|says|tells|lists|again|where|and|or|then|there|which|if)\b).*", re.DOTALL
)
"""How a sentence goes on after a command that it begins with."""
_UNITS: Final = {"lag_s": "seconds", "backlog": "transactions", "per_s": "per second"}
_LABELS: Final = {"lag_s": "lag", "backlog": "backlog"}
_BAD: Final = frozenset({MarkKind.FAILED, MarkKind.DIED, MarkKind.CUT, MarkKind.REFUSED, MarkKind.LOST_LINES})
_ODD: Final = frozenset({MarkKind.PAUSED, MarkKind.SILENT, MarkKind.FILES, MarkKind.PASSIVE, MarkKind.ROLE})


class ShownCurve(Struct, frozen=True):
    """A figure over the picture's time. `now`: what it is; None: nobody knows."""

    key: str
    label: str
    unit: str
    now: CurvePoint
    points: tuple[CurvePoint, ...]


class ShownEvent(Struct, frozen=True):
    """Something that happened, to the daemon `of`."""

    at_us: int
    of: str
    what: str
    text: str
    mood: Mood


class ShownLane(Struct, frozen=True):
    """How one daemon was, stretch after stretch: (from, until, what), in microseconds since 1970."""

    daemon: str
    spans: tuple[tuple[int, int, str], ...]


class ShownFinding(Struct, frozen=True):
    """A finding, and the commands in what it says to do, each as it can be pasted. `brief`: see Finding."""

    code: str
    severity: Severity
    text: str
    do: str
    commands: tuple[str, ...]
    brief: str = ""


class InstancePicture(Struct, frozen=True):
    """One instance. `tally`: how often what happened within the time of the curves. `error`: why nothing is known of
    now; "" when it could be read. `seen_us`: when it was looked at by the clock of this host; 0: `at_us` is by it."""

    name: str
    path: str
    at_us: int
    from_us: int
    role: str = ""
    mode: str = ""
    incarnation: int = 0
    error: str = ""
    mood: Mood = "unknown"
    headline: str = ""
    rows: tuple[StreetRow, ...] = ()
    curves: tuple[ShownCurve, ...] = ()
    lanes: tuple[ShownLane, ...] = ()
    events: tuple[ShownEvent, ...] = ()
    tally: tuple[tuple[str, int], ...] = ()
    findings: tuple[ShownFinding, ...] = ()
    notes: tuple[str, ...] = ()
    seen_us: int = 0

    def age_us(self, now_us: int) -> int:
        """For how long nobody has looked, at `now_us` by the clock of this host."""
        return max(0, now_us - (self.seen_us or self.at_us))

    @property
    def is_wrong(self) -> bool:
        """Whether an operator should act."""
        return bool(self.error) or any(finding.severity != "info" for finding in self.findings)


def picture_of(
    status: Status, history: SeenHistory, *, now_us: int, past_s: float, columns: int = COLUMNS
) -> InstancePicture:
    """The picture at `now_us`, with curves of the last `past_s` seconds in so many columns."""
    from_us = now_us - round(past_s * US)
    shown = tuple(
        ShownFinding(one.code, one.severity, one.text, one.do, commands_in(one.do), one.brief)
        for one in status.findings
    )
    return InstancePicture(
        name=status.name,
        path=status.path,
        at_us=now_us,
        from_us=from_us,
        role=status.role,
        mode=_mode(status),
        incarnation=status.incarnation,
        mood=_mood(status),
        headline=status.bottleneck,
        rows=street_of(status, lambda key: history.per_s(key, now_us), history.reads_files),
        curves=tuple(_curves(status, history, from_us, now_us, columns)),
        lanes=tuple(_lanes(status, history, from_us, now_us)),
        events=tuple(_event(mark) for mark in history.events if mark.at_us >= from_us)[-EVENTS:],
        tally=tuple((kind.value, count) for kind, count in history.tally(from_us).items() if kind in _BAD | _ODD),
        findings=shown,
        notes=tuple(_notes(status)),
    )


def commands_in(do: str) -> tuple[str, ...]:
    """The commands in what a finding says to do, without the words that go on after them."""
    found = (_PROSE.sub("", command[0]).strip() for command in COMMAND.finditer(do))
    return tuple(dict.fromkeys(command for command in found if " " in command))


def unreadable(name: str, path: str, error: str, *, now_us: int, past_s: float) -> InstancePicture:
    """Of an instance that cannot be read at this moment."""
    return InstancePicture(name, path, now_us, now_us - round(past_s * US), error=error, mood="error", headline=error)


def _mood(status: Status) -> Mood:
    severities = {finding.severity for finding in status.findings}
    if "error" in severities:
        return "error"
    if "warning" in severities:
        return "warning"
    return "busy" if status.bottleneck else "well"


def _mode(status: Status) -> str:
    """Active or passive: what its Source Servers are told to do."""
    if not status.peers:
        return ""
    passive = [peer.name for peer in status.peers if peer.source.is_passive]
    if not passive:
        return "active"
    return "passive" if len(passive) == len(status.peers) else f"passive to {', '.join(passive)}"


def _curves(status: Status, history: SeenHistory, from_us: int, now_us: int, columns: int) -> Iterator[ShownCurve]:
    for key, label, daemon, figure in _wanted(status):
        curve = history.curves.get((daemon, figure))
        if curve is None:
            continue
        points = curve.columns(from_us, now_us, columns)
        yield ShownCurve(key, label, _UNITS[figure], curve.lately(now_us), points)


def _wanted(status: Status) -> Iterator[tuple[str, str, str, str]]:
    """(key, label, daemon, figure) of each curve, in the order in which they are shown."""
    if status.receiving is not None:
        for figure, label in _LABELS.items():
            yield figure, label, "receiver", figure
        yield "received_per_s", "received", "receiver", "per_s"
        yield "applied_per_s", "applied", "update", "per_s"
    if status.role != "secondary":
        yield "written_per_s", "written", "journal", "per_s"
    for peer in status.peers:
        to = f" to {peer.name}" if len(status.peers) > 1 or status.receiving is not None else ""
        for figure, label in _LABELS.items():
            yield f"{figure}:{peer.name}", f"{label}{to}", peer.source.name, figure
        yield f"sent_per_s:{peer.name}", f"sent{to}", peer.source.name, "per_s"


def _lanes(status: Status, history: SeenHistory, from_us: int, now_us: int) -> Iterator[ShownLane]:
    order = {"source": 0, "receiver": 1, "update": 2}
    ended = {one.name for one in daemons_of(status) if not one.is_running}
    for track in sorted(history.tracks, key=lambda one: (order[one.teller.kind], one.teller.daemon)):
        daemon, until_us = track.teller.daemon, now_us
        if daemon in ended:  # of one that was killed no log says so
            until_us = max(track.last_us, history.died_us(daemon))
        spans = [
            (max(from_us, span.from_us), min(until_us, span.until_us), span.what)
            for span in track.spans_until(now_us)
            if span.until_us > from_us and span.from_us < until_us and span.what in _BEINGS
        ]
        if until_us < now_us:
            spans.append((max(from_us, until_us), now_us, Being.DOWN.value))
        if spans:
            yield ShownLane(daemon, tuple(sorted(spans)))


def _event(mark: LogMark) -> ShownEvent:
    mood: Mood = "error" if mark.kind in _BAD else "warning" if mark.kind in _ODD else "well"
    return ShownEvent(mark.at_us, mark.teller.daemon, mark.kind.value, mark.text, mood)


def _notes(status: Status) -> Iterator[str]:
    for region in status.regions:
        at = "unknown" if region.last_seqno is None else region.last_seqno
        yield f"region {region.name}: {'see below' if region.problem else 'well'}, applied {at}"
    if status.partitions:
        yield f"partitions: {'; '.join(f'{one.name} {one.state}' for one in status.partitions)}"
    if status.patrol is not None:
        yield f"patrol: {status.patrol.line}"
    if status.indexes is not None:
        yield f"indexes: {status.indexes.line}"
    for one in status.suppliers:
        state = "connected" if one.is_connected else "not connected"
        yield f"supplier {one.name}: {state}, received {one.last_received_seqno}, applied {one.last_applied_seqno}"
    receiving = status.receiving
    if receiving is not None and receiving.level_in_s:
        yield f"level in {seconds(receiving.level_in_s)}"
