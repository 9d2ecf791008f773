"""A story as a table: for people, for a spreadsheet (CSV), and for programs (JSON).

Guarantees: all rows have one period; a row says of each daemon what its lines say, and leaves out what no line says;
times are UTC. What was left out of the story is told. Leaves to others: where it is printed. Pure.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from replicate.logs.line import US, Teller
from replicate.logs.period import PeriodRow, Periods, fitting_width_us
from replicate.logs.story import LogMark, LogStory, MarkKind
from replicate.model.moment import iso_us, shown_us

ROWS: Final = 40
"""For people, where they ask for no period of their own."""
MARKS: Final = 40
"""So many events are told, the newest ones."""
LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_VERB: Final = {"source": "sent", "receiver": "received", "update": "applied"}
AT_LEAST: Final = "≥"
QUIET: Final = frozenset({MarkKind.RESUMED, MarkKind.POOL, MarkKind.HEARD, MarkKind.CONNECTED})
"""How something ends: not told in a row, where it began is."""


class LogTable(Struct, frozen=True):
    """All rows of a story, with the period of all of them."""

    story: LogStory
    width_us: int
    tellers: tuple[Teller, ...]
    rows: Mapping[int, Mapping[Teller, PeriodRow]]
    """By the moment at which the period begins."""
    marks: Mapping[int, Sequence[LogMark]]
    notes: tuple[str, ...]

    @property
    def names(self) -> dict[Teller, str]:
        """Each daemon's name, and its host or directory too where that alone would stand for two."""
        short = Counter(teller.name for teller in self.tellers)
        made = {}
        for teller in self.tellers:
            name = teller.name
            if short[name] > 1:
                name = f"{teller.instance}/{teller.daemon}" if _differ(self.tellers, teller) else name
                name = f"{teller.host}:{name}" if teller.host else name
            made[teller] = name
        return made


def _differ(tellers: Iterable[Teller], one: Teller) -> bool:
    return len({teller.instance for teller in tellers if teller.name == one.name}) > 1


_ORDER: Final = {"source": 0, "receiver": 1, "update": 2}


def table_of(story: LogStory, *, notes: Iterable[str] = (), most: int | None = None) -> LogTable:
    """The rows of a story that has ended: of the period that it was asked for, or of one by which there are `most`."""
    tracks = story.tracks
    width_us = max((track.periods.width_us for track in tracks.values()), default=US)
    if story.every_us is None and most is not None:
        moments = {at_us for track in tracks.values() for at_us in track.periods.rows}
        width_us = fitting_width_us(moments, width_us, most)
    rows: dict[int, dict[Teller, PeriodRow]] = {}
    for teller, track in tracks.items():
        periods = Periods(width_us)
        for at_us, row in track.periods.rows.items():
            copy = PeriodRow()
            copy.add(row)
            periods.add(at_us, copy)
        for at_us, row in periods.rows.items():
            rows.setdefault(at_us, {})[teller] = row
    marks: dict[int, list[LogMark]] = {}
    for mark in story.marks:
        marks.setdefault(mark.at_us // width_us * width_us, []).append(mark)
    tellers = sorted(tracks, key=lambda one: (_ORDER[one.kind], one.host, one.instance, one.daemon))
    told = (*notes, *_notes(story))
    return LogTable(story, width_us, tuple(tellers), dict(sorted(rows.items())), marks, told)


def _notes(story: LogStory) -> Iterator[str]:
    hosts = sorted({teller.host for teller in story.tracks if teller.host})
    if len(hosts) > 1:
        yield f"these are logs of {len(hosts)} hosts, each by its own clock: {', '.join(hosts)}"
    for teller, track in story.tracks.items():
        if track.set_back:
            yield (
                f"{teller.name}: the clock was set back {_times(track.set_back)}, by {track.set_back_us / US:.1f} s at "
                "most; its lines stand at the times that they say"
            )
        if track.spans_left_out:
            yield f"{teller.name}: {track.spans_left_out} changes of its state are more than are kept"
    if story.marks_left_out:
        yield f"{story.marks_left_out} events are more than are kept; ask for less time with --since and --until"
    if story.tellers_left_out:
        yield f"{story.tellers_left_out} lines are of more daemons than are kept"


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


# For people.


def lines(table: LogTable) -> Iterator[str]:
    """The table with a heading, then what happened, then what is odd about the logs."""
    story, names = table.story, table.names
    if not table.tellers:
        yield "no daemon has written a line within that time"
        yield from _told(table.notes)
        return
    letters = {teller: _letter(number) for number, teller in enumerate(table.tellers)}
    yield (
        f"{time_of(story)}, "
        f"{len(table.tellers)} daemon{'' if len(table.tellers) == 1 else 's'}, {story.lines} lines; "
        f"a row for every {_span(table.width_us)}"
    )
    wide = max(len(name) for name in names.values())
    for teller in table.tellers:
        role = story.tracks[teller].role
        yield f"  {letters[teller]}  {names[teller].ljust(wide)}  {_VERB[teller.kind]:8}  {role}".rstrip()
    yield ""
    if table.rows:
        yield from _rows(table, letters)
    else:
        yield "There is no line of statistics: replicate -i INSTANCE statistics on --every 10 asks for some."
    yield from _events(table, letters)
    yield from _told(table.notes)


def time_of(story: LogStory) -> str:
    """From its first line to its last one."""
    first, last = shown_us(story.first_us), shown_us(story.last_us)
    return f"{first} to {last[11:] if last[:10] == first[:10] else last} UTC"


def _letter(number: int) -> str:
    return LETTERS[number] if number < len(LETTERS) else f"{LETTERS[number // 26 - 1]}{LETTERS[number % 26]}"


def _rows(table: LogTable, letters: Mapping[Teller, str]) -> Iterator[str]:
    is_fine = table.width_us < US
    stamp = 12 if is_fine else 8
    rates = 10 * len(table.tellers)
    yield f"{'':{stamp}}{'transactions/s':>{max(rates, 14)}}  {'most':>10}{'most':>9}"
    heads = "".join(f"{letters[teller]:>10}" for teller in table.tellers)
    yield f"{'UTC':{stamp}}{heads:>14}  {'backlog':>10}{'lag, s':>9}{'MB/s':>8}"
    day = ""
    for at_us in sorted({*table.rows, *table.marks}):
        found = table.rows.get(at_us, {})
        happened = _happened(table.marks.get(at_us, ()), letters)
        if not found and not happened:
            continue
        date, _, time = shown_us(at_us, "milliseconds").partition(" ")
        if date != day:
            day = date
            yield date
        cells = "".join(f"{_rate(found.get(teller)):>10}" for teller in table.tellers)
        speeds = [row.bytes_per_s for row in found.values() if row.bytes_per_s is not None]
        speed = f"{max(speeds) / 1e6:.2f}" if speeds else "-"
        backlog, lag = _worst(found.values(), "backlog"), _worst(found.values(), "lag_s")
        moment = time if is_fine else time[:8]
        yield f"{moment:{stamp}}{cells:>14}  {backlog:>10}{lag:>9}{speed:>8}  {happened}".rstrip()
    yield ""


def _rate(row: PeriodRow | None) -> str:
    if row is None or row.per_s is None:
        return "-"
    return f"{row.per_s:,.0f}" if row.per_s >= 1000 else f"{row.per_s:.1f}"


def _worst(rows: Iterable[PeriodRow], name: str) -> str:
    """The most that any daemon knows; where the one that says the most does not know all, that is the least it is."""
    known = [(getattr(row, name), row.is_at_least) for row in rows if getattr(row, name) is not None]
    if not known:
        return "-"
    most = max(value for value, _ in known)
    sign = AT_LEAST if all(is_at_least for value, is_at_least in known if value == most) else ""
    return f"{sign}{most:,.0f}" if name == "backlog" else f"{sign}{most:,.1f}"


def _happened(marks: Iterable[LogMark], letters: Mapping[Teller, str]) -> str:
    counted = Counter((letters.get(mark.teller, "?"), mark.kind) for mark in marks if mark.kind not in QUIET)
    return "; ".join(f"{letter} {kind.value}{f' ×{n}' if n > 1 else ''}" for (letter, kind), n in counted.items())


def _events(table: LogTable, letters: Mapping[Teller, str]) -> Iterator[str]:
    marks = table.story.marks
    if not marks:
        return
    before = len(marks) - MARKS
    yield "What happened" + (f" (the last {MARKS} of {len(marks)}; --json has more)" if before > 0 else "")
    for mark in marks[max(0, before) :]:
        text = f": {mark.text}" if mark.text else ""
        yield f"  {shown_us(mark.at_us, 'milliseconds')}  {letters.get(mark.teller, '?')}  {mark.kind.value}{text}"
    yield ""


def _told(notes: Iterable[str]) -> Iterator[str]:
    for note in notes:
        yield f"Note: {note}."


def _span(us: int) -> str:
    for unit, size in (("d", 86400 * US), ("h", 3600 * US), ("min", 60 * US)):
        if us % size == 0:
            return f"{us // size} {unit}"
    return f"{us / US:g} s"


# For programs.

_FIGURES: Final = (
    "per_s", "bytes_per_s", "backlog", "lag_s", "is_at_least", "transactions", "bytes", "seconds", "cuts", "cut_s",
    "pauses", "paused_s", "silent_s", "last_seqno", "last_acknowledged_seqno", "lines",
)  # fmt: skip
COLUMNS: Final = ("time", "host", "instance", "daemon", *_FIGURES)


def records(table: LogTable) -> Iterator[dict[str, Any]]:
    """A record for each period and daemon."""
    for at_us, found in table.rows.items():
        for teller in table.tellers:
            row = found.get(teller)
            if row is not None:
                yield {"time": iso_us(at_us), **_whose(teller), **{name: _value(row, name) for name in _FIGURES}}


def _value(row: PeriodRow, name: str) -> Any:
    value = getattr(row, name)
    return round(value, 3) if isinstance(value, float) else value


def _whose(teller: Teller) -> dict[str, str]:
    return {"host": teller.host, "instance": teller.instance, "daemon": teller.daemon}


class _Line:
    """What csv writes to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        self.text = text


def csv_lines(table: LogTable) -> Iterator[str]:
    """The records, a heading first; empty where nothing is known."""
    line = _Line()
    writer = csv.writer(line, lineterminator="")
    writer.writerow(COLUMNS)
    yield line.text
    for record in records(table):
        writer.writerow([record[name] if record[name] is not None else "" for name in COLUMNS])
        yield line.text


def document(table: LogTable) -> dict[str, Any]:
    """All of it."""
    story = table.story
    is_any = bool(table.tellers)
    return {
        "from": iso_us(story.first_us) if is_any else None,
        "until": iso_us(story.last_us) if is_any else None,
        "every_s": table.width_us / US,
        "daemons": [
            {**_whose(teller), "name": table.names[teller], "role": story.tracks[teller].role or None}
            for teller in table.tellers
        ],
        "rows": list(records(table)),
        "events": [
            {"time": iso_us(mark.at_us), **_whose(mark.teller), "event": mark.kind.value, "text": mark.text}
            for mark in story.marks
        ],
        "states": [
            {**_whose(teller), "from": iso_us(span.from_us), "until": iso_us(span.until_us), "state": span.what}
            for teller in table.tellers
            for span in story.tracks[teller].spans
        ],
        "notes": list(table.notes),
    }
