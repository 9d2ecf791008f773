"""Pictures as lines for a terminal, wide or narrow, each line made of pieces that know how they are meant.

Guarantees: no line is longer than the terminal is wide, but for a command, which must stay whole to be pasted; what a
colour says a sign or a word says too; with `ascii_only` no other character is in it; what is unknown reads "unknown".
Leaves to others: colours, keys and the screen (cli/screen.py). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import Final, Literal

from msgspec import Struct

from replicate.logs.line import US
from replicate.logs.story import FILES, Being
from replicate.model.moment import shown_us
from replicate.seeing.curve import CurvePoint, most_of
from replicate.seeing.picture import InstancePicture, ShownCurve, ShownEvent, ShownFinding, ShownLane
from replicate.seeing.street import Mood, ShownFigure, StreetPart, StreetRow, StreetWay
from replicate.status.text import seconds, wrapped

Meaning = Mood | Literal["plain", "strong", "faint"]
WIDTH_LEAST: Final = 40
EVENTS_SHOWN: Final = 8
OLD_US: Final = 4 * US
"""A picture that is older is said to be: it is frozen, or a disk does not answer."""
_GLUE: Final = "\xa0"
"""Stands for the spaces of a figure while lines are broken."""
STATE_MOST: Final = (28, 16)
"""Characters of a part's state in a wide street; in one that is not so wide."""


class Glyphs(Struct, frozen=True):
    """The characters of a terminal. `blocks`: from nothing to full; `marks`: by mood."""

    blocks: str
    marks: dict[Mood, str]
    beings: dict[str, str]
    corners: str
    across: str
    line: str
    down: str
    head: str
    point: str
    at_least: str
    cut: str


UNICODE: Final = Glyphs(
    blocks=" ▁▂▃▄▅▆▇█",
    marks={"well": "●", "busy": "◐", "warning": "▲", "error": "✖", "off": "○", "unknown": "·"},
    beings={
        Being.STREAMING.value: "█", Being.RUNNING.value: "█", Being.PAUSED.value: "▄", Being.WAITING.value: "x",
        Being.PASSIVE.value: "z", Being.STANDING_BY.value: "-", Being.DOWN.value: "_", FILES: "f",
    },
    corners="┌┐└┘", across="─", line="═", down="│", head="►", point="▼", at_least="≥", cut="…",
)  # fmt: skip
ASCII: Final = Glyphs(
    blocks=" .:-=+*#@",
    marks={"well": "*", "busy": "~", "warning": "!", "error": "X", "off": "o", "unknown": "?"},
    beings={**UNICODE.beings, Being.STREAMING.value: "#", Being.RUNNING.value: "#", Being.PAUSED.value: "p"},
    corners="++++", across="-", line="=", down="|", head=">", point="v", at_least=">=", cut="~",
)  # fmt: skip
_BEING_MOODS: Final[dict[str, Mood]] = {
    Being.STREAMING.value: "well", Being.RUNNING.value: "well", Being.PAUSED.value: "warning",
    Being.WAITING.value: "error", Being.DOWN.value: "error", FILES: "busy",
}  # fmt: skip
_WORDS: Final[dict[Mood, str]] = {
    "well": "well", "busy": "at work", "warning": "look at it", "error": "broken", "off": "off", "unknown": "unknown",
}  # fmt: skip


class ScreenPiece(Struct, frozen=True):
    """Some characters of one line, and what they mean: a terminal gives them a colour."""

    text: str
    meaning: Meaning = "plain"


ScreenLine = tuple[ScreenPiece, ...]
NOTHING: Final[ScreenLine] = ()


def text_of_line(line: ScreenLine) -> str:
    """Without what it means."""
    return "".join(piece.text for piece in line).rstrip()


def screen(
    pictures: Sequence[InstancePicture], width: int, *, ascii_only: bool = False, now_us: int | None = None
) -> Iterator[ScreenLine]:
    """All instances, one after another, for a terminal so wide. At `now_us` a picture that is old is said to be."""
    glyphs = ASCII if ascii_only else UNICODE
    wide = max(width, WIDTH_LEAST)
    for number, picture in enumerate(pictures):
        if number:
            yield NOTHING
        age_us = 0 if now_us is None else picture.age_us(now_us)
        for line in _instance(picture, wide, glyphs, age_us):
            yield tuple(_ascii(piece) for piece in line) if ascii_only else line


def _ascii(piece: ScreenPiece) -> ScreenPiece:
    if piece.text.isascii():
        return piece
    return ScreenPiece(piece.text.encode("ascii", "replace").decode(), piece.meaning)


def columns_of(width: int) -> int:
    """How many columns a curve has on a terminal so wide."""
    wide = max(width, WIDTH_LEAST)
    return min(240, wide - _CURVE_HEAD - (_CURVE_TAIL if wide >= _WITH_TAIL else 0))


_CURVE_HEAD: Final = 26
_CURVE_TAIL: Final = 15
_WITH_TAIL: Final = 72
"""On a narrower terminal a curve has its room alone, and what stands after it is left out."""


def _instance(picture: InstancePicture, width: int, glyphs: Glyphs, age_us: int) -> Iterator[ScreenLine]:
    yield from _head(picture, width, glyphs, age_us)
    if picture.error:
        yield from (_plain(line, "error") for line in wrapped(picture.error, 2, width))
        return
    # What is wrong comes first, as on the page: what stands below is cut off by a short terminal.
    yield from _findings([one for one in picture.findings if one.severity != "info"], width, glyphs)
    for row in picture.rows:
        yield NOTHING
        drawn = (_across(row, glyphs, most) for most in STATE_MOST)
        yield from next((lines for lines in drawn if _is_within(lines, width)), _downwards(row, width, glyphs))
    yield NOTHING
    yield from _over_time(picture, width, glyphs)
    for note in picture.notes:
        yield from (_plain(line, "faint") for line in wrapped(note, 2, width))
    yield from _findings([one for one in picture.findings if one.severity == "info"], width, glyphs)


def _is_within(lines: Iterable[ScreenLine], width: int) -> bool:
    return all(len(text_of_line(line)) <= width for line in lines)


def _plain(text: str, meaning: Meaning = "plain") -> ScreenLine:
    return (ScreenPiece(text, meaning),)


def _head(picture: InstancePicture, width: int, glyphs: Glyphs, age_us: int) -> Iterator[ScreenLine]:
    mark = glyphs.marks[picture.mood]
    is_first = f"{picture.role} " if picture.role else ""
    more = f" (incarnation {picture.incarnation})" if picture.incarnation else ""
    more += f", {picture.mode}" if picture.mode else ""
    is_old = age_us > OLD_US
    at = f"{shown_us(picture.at_us)[11:]} UTC" + (f", {age_us // US} s ago" if is_old else "")
    first = f"{mark} {is_first}{picture.name}"
    space = width - len(first) - len(more) - len(at)
    if space >= 2:
        yield (
            ScreenPiece(first, picture.mood),
            ScreenPiece(more),
            ScreenPiece(" " * space),
            ScreenPiece(at, "warning" if is_old else "faint"),
        )
    else:
        yield (ScreenPiece(first[:width], picture.mood),)
        yield _plain(f"  {more.lstrip(' ,')} {at}"[:width], "faint")
    yield _plain(_cut(f"  {picture.path}", width, glyphs), "faint")
    if not picture.error:
        told = picture.headline or "none, everything is level"
        yield from (_plain(line, picture.mood) for line in wrapped(f"bottleneck: {told}", 2, width))


def _cut(text: str, most: int, glyphs: Glyphs) -> str:
    return text if len(text) <= most else text[: most - 1] + glyphs.cut


# The street.


def figure_text(figure: ShownFigure, at_least: str = "≥") -> str:
    """A figure's value for people."""
    value = figure.value
    if value is None:
        return "unknown"
    text = str(value)
    if figure.unit == "seconds":
        text = seconds(value)
    elif figure.unit == "percent":
        text = f"{value:.0f} %"
    return f"{at_least} {text}" if figure.is_at_least else text


def rate_text(per_s: float | None) -> str:
    """Transactions a second for people; "" where nobody knows."""
    if per_s is None:
        return ""
    return f"{per_s:,.0f}/s" if per_s >= 100 or per_s == 0 else f"{per_s:.1f}/s"


def _of_part(part: StreetPart, glyphs: Glyphs, most: int) -> list[ScreenLine]:
    """What stands in its box."""
    state = _cut(part.state, most, glyphs)
    made: list[ScreenLine] = [(ScreenPiece(part.title, "strong"),)]
    if part.state or part.mood != "unknown":
        made.append((ScreenPiece(f"{glyphs.marks[part.mood]} {state or _WORDS[part.mood]}", part.mood),))
    made += [_plain(f"{one.label} {figure_text(one, glyphs.at_least)}") for one in part.figures]
    return made


def _of_way(way: StreetWay, glyphs: Glyphs) -> tuple[list[ScreenLine], list[ScreenLine]]:
    """What stands above its arrow, and below it."""
    above = []
    if way.seqno is not None or way.label:
        number = "" if way.seqno is None else f" {'or more ' if way.is_at_least else ''}{way.seqno}"
        above.append(_plain(f"{way.label}{number or (' unknown' if way.is_line else '')}"))
    below = []
    if rate := rate_text(way.per_s):
        below.append(_plain(rate))
    if way.state:
        below.append(_plain(way.state, "plain" if way.mood == "well" else way.mood))
    if way.waiting:
        below.append(_plain(f"{way.waiting} wait", "busy"))
    return above, below


def _across(row: StreetRow, glyphs: Glyphs, most: int) -> list[ScreenLine]:
    """Boxes beside each other, with arrows between them."""
    boxes = [_of_part(part, glyphs, most) for part in row.parts]
    ways = [_of_way(way, glyphs) for way in row.ways]
    height = max(*(len(box) for box in boxes), *(2 + len(below) for _, below in ways))
    left, right, low_left, low_right = tuple(glyphs.corners)
    made: list[list[ScreenPiece]] = [[] for _ in range(height + 2)]
    for number, box in enumerate(boxes):
        mood = row.parts[number].mood
        wide = max(len(text_of_line(line)) for line in box)
        edge: Meaning = "plain" if mood == "well" else mood
        made[0].append(ScreenPiece(f"{left}{glyphs.across * (wide + 2)}{right}", edge))
        for at in range(height):
            line = box[at] if at < len(box) else NOTHING
            fill = " " * (wide - len(text_of_line(line)) + 1)
            made[1 + at] += [ScreenPiece(f"{glyphs.down} ", edge), *line, ScreenPiece(f"{fill}{glyphs.down}", edge)]
        made[height + 1].append(ScreenPiece(f"{low_left}{glyphs.across * (wide + 2)}{low_right}", edge))
        if number < len(row.ways):
            _arrow(made, row.ways[number], ways[number], glyphs)
    return [tuple(line) for line in made]


def _arrow(
    made: list[list[ScreenPiece]], way: StreetWay, words: tuple[list[ScreenLine], list[ScreenLine]], glyphs: Glyphs
) -> None:
    above, below = words
    wide = max([6, *(len(text_of_line(line)) for line in (*above, *below))]) + 2
    body = (glyphs.line if way.is_line else glyphs.across) * (wide - 1) + glyphs.head
    if way.is_line and way.mood == "error":
        middle = wide // 2
        body = f"{body[: middle - 1]} {glyphs.marks['error']} {body[middle + 2 :]}"
    rows: dict[int, ScreenLine] = {2: (ScreenPiece(body, "plain" if way.mood == "well" else way.mood),)}
    if above:
        rows[1] = above[0]
    rows |= {3 + at: line for at, line in enumerate(below)}
    for at, line in enumerate(made):
        text = rows.get(at, NOTHING)
        space = wide - len(text_of_line(text))
        line += [ScreenPiece(" " * (space // 2)), *text, ScreenPiece(" " * (space - space // 2))]


def _downwards(row: StreetRow, width: int, glyphs: Glyphs) -> Iterator[ScreenLine]:
    """One part below another, for a narrow terminal."""
    for number, part in enumerate(row.parts):
        state = part.state or ("" if part.mood == "unknown" else _WORDS[part.mood])
        mark = glyphs.marks[part.mood]
        title = _cut(f"{mark} {part.title}{f': {state}' if state else ''}", width, glyphs)
        yield (ScreenPiece(title, part.mood if part.mood != "unknown" else "strong"),)
        told = ", ".join(f"{one.label} {figure_text(one, glyphs.at_least)}".replace(" ", _GLUE) for one in part.figures)
        bar = glyphs.down if number < len(row.ways) else " "
        yield from (_plain(f"{bar}{line[1:].replace(_GLUE, ' ')}") for line in wrapped(told, 4, width))
        if number < len(row.ways):
            way = row.ways[number]
            above, below = _of_way(way, glyphs)
            words = ", ".join(text_of_line(line) for line in (*above, *below))
            yield _plain(_cut(f"{glyphs.point} {words}", width, glyphs), "plain" if way.mood == "well" else way.mood)


# What was before.


def _over_time(picture: InstancePicture, width: int, glyphs: Glyphs) -> Iterator[ScreenLine]:
    span_s = (picture.at_us - picture.from_us) / US
    span = f"{span_s:.0f} s" if span_s < 120 else seconds(span_s)
    if picture.curves:
        yield _plain(f"  the last {span}, until now", "faint")
    count = columns_of(width)
    for curve in picture.curves:
        yield _curve(curve, count, glyphs)[: None if width >= _WITH_TAIL else 2]
    for lane in picture.lanes:
        drawn = _lane(lane, picture.from_us, picture.at_us, count, glyphs)
        yield drawn if width >= _WITH_TAIL else drawn[:-1]
    if picture.tally:
        words = ", ".join(f"{what}{f' ×{number}' if number > 1 else ''}" for what, number in picture.tally)
        if glyphs is ASCII:
            words = words.replace("×", "x")
        yield from (_plain(line) for line in wrapped(f"in that time: {words}", 2, width))
    yield from _events(picture.events[-EVENTS_SHOWN:], width, glyphs)


def _curve(curve: ShownCurve, count: int, glyphs: Glyphs) -> ScreenLine:
    points = fitted(curve.points, count)
    most = most_of([*points, curve.now])  # a rate of now is one of moments, and may be above any column's mean
    # The first column that is not a hand's breadth from the bottom is 1: a small figure is seen, too.
    drawn = "".join(_block(point, most.value or 0.0, glyphs) for point in points)
    head = f"  {_cut(curve.label, 12, glyphs):12} {value_text(curve.now, curve.unit, glyphs.at_least):>10} "
    tail = f" most {value_text(most, curve.unit, glyphs.at_least)}" if most.value is not None else ""
    return (
        ScreenPiece(head),
        ScreenPiece(drawn, "busy" if curve.unit == "per second" else "warning"),
        ScreenPiece(tail),
    )


def fitted(points: Sequence[CurvePoint], count: int) -> list[CurvePoint]:
    """As many columns as there is room for: each the most of those that it stands for."""
    if len(points) <= count:
        return list(points)
    edges = [at * len(points) // count for at in range(count + 1)]
    return [most_of(points[first:last]) for first, last in pairwise(edges)]


def _block(point: CurvePoint, most: float, glyphs: Glyphs) -> str:
    if point.value is None:
        return " "
    steps = len(glyphs.blocks) - 1
    return glyphs.blocks[1 if most <= 0 or point.value <= 0 else max(1, ceil(point.value / most * steps))]


def value_text(point: CurvePoint, unit: str, at_least: str = "≥") -> str:
    """A curve's value for people."""
    if point.value is None:
        return "unknown"
    if unit == "seconds":
        text = seconds(point.value)
    else:
        text = rate_text(point.value) if unit == "per second" else f"{point.value:,.0f}"
    return f"{at_least} {text}" if point.is_at_least else text


def _lane(lane: ShownLane, from_us: int, until_us: int, count: int, glyphs: Glyphs) -> ScreenLine:
    """How a daemon was, one character for each column: that of the worst state that it had within."""
    order = [FILES, Being.STREAMING.value, Being.RUNNING.value, Being.STANDING_BY.value, Being.PASSIVE.value]
    order += [Being.PAUSED.value, Being.WAITING.value, Being.DOWN.value]
    states: list[str] = [""] * count
    width_us = max(1, until_us - from_us) / count
    for begin_us, end_us, what in lane.spans:
        first, last = int((begin_us - from_us) / width_us), int((end_us - 1 - from_us) / width_us)
        for at in range(max(0, first), min(count - 1, last) + 1):
            known = states[at]
            is_worse = not known or order.index(what) > order.index(known)
            # To read files is told where all else is well: then it is what there is to see.
            is_files = FILES in (known, what) and {known, what} <= {FILES, Being.STREAMING.value}
            states[at] = FILES if is_files else what if is_worse else known
    pieces = [ScreenPiece(f"  {_cut(lane.daemon, 23, glyphs):23} ")]
    pieces += [
        ScreenPiece(glyphs.beings.get(state, " "), _BEING_MOODS.get(state, "off")) if state else ScreenPiece(" ")
        for state in states
    ]
    now = next((what for _, end_us, what in reversed(lane.spans) if end_us >= until_us and what != FILES), "")
    return (*pieces, ScreenPiece(f" {now}"[:_CURVE_TAIL]))


def _events(events: Iterable[ShownEvent], width: int, glyphs: Glyphs) -> Iterator[ScreenLine]:
    for event in events:
        text = f"  {shown_us(event.at_us)[11:]} {event.of} {event.what}{f': {event.text}' if event.text else ''}"
        yield _plain(_cut(text, width, glyphs), event.mood if event.mood != "well" else "plain")


# What to do.


def _findings(findings: Sequence[ShownFinding], width: int, glyphs: Glyphs) -> Iterator[ScreenLine]:
    if findings:
        yield NOTHING
    for finding in findings:
        mood: Mood = "error" if finding.severity == "error" else "warning" if finding.severity == "warning" else "busy"
        head = f"{glyphs.marks[mood]} {finding.code} {finding.severity}: {finding.text}"
        yield from (_plain(line, mood) for line in wrapped(head, 0, width))
        yield from (_plain(line) for line in wrapped(f"Next: {finding.do}", 4, width))
