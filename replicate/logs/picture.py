"""A story as a picture: rates, backlog and lag over time, marks for what happened, and how each daemon was.

Guarantees: one picture of 1600 x 900 (PNG) or any size (SVG), whose axes have units and whose times are UTC; a gap in
the logs is a gap in the lines; what was not known is drawn as "at least". Nothing is shown on a screen.
Leaves to others: what is told (table.py). Matplotlib is an extra (`plot`), and loaded when a picture is made.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from replicate.errors import PrerequisiteMissingError, UsageError
from replicate.logs.line import Teller
from replicate.logs.period import PeriodRow
from replicate.logs.story import FILES, Being, MarkKind
from replicate.logs.table import LogTable, time_of
from replicate.system.os_errors import io_error

KINDS: Final = (".png", ".svg")
ROWS: Final = 1000
"""More points than that nobody tells apart in the width of a picture."""
DOTS_MAX: Final = 80
"""With fewer points each has a dot."""
FAR: Final = 200.0
"""A worst value so many times the usual one would press all others flat: the axis is logarithmic then."""
_LINES: Final = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:pink", "tab:olive", "tab:cyan")
_DASHES: Final = ("-", "--", "-.", ":")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_MARKS: Final[dict[MarkKind, tuple[str, str, float]]] = {
    MarkKind.ROLE: ("purple", "-", 2.4),
    MarkKind.DIED: ("black", "-", 1.8),
    MarkKind.FAILED: ("crimson", "-", 1.8),
    MarkKind.STARTED: ("dimgray", ":", 1.2),
    MarkKind.ENDED: ("darkgray", ":", 1.2),
    MarkKind.CONNECTED: ("seagreen", "-", 1.0),
    MarkKind.CUT: ("red", "--", 1.4),
    MarkKind.REFUSED: ("brown", "-.", 1.2),
    MarkKind.SILENT: ("magenta", "-.", 1.2),
    MarkKind.PAUSED: ("darkorange", "--", 1.2),
    MarkKind.FILES: ("royalblue", "-.", 1.2),
    MarkKind.POOL: ("deepskyblue", ":", 1.2),
    MarkKind.PASSIVE: ("slategray", "--", 1.2),
    MarkKind.SEED: ("goldenrod", "-", 1.2),
}
"""Those that are drawn: colour, dash, width."""
_BEINGS: Final = {
    Being.STREAMING.value: "#7bc67b",
    Being.RUNNING.value: "#a9dca9",
    Being.PAUSED.value: "#ffb347",
    Being.WAITING.value: "#f08080",
    Being.PASSIVE.value: "#b0b8c4",
    Being.STANDING_BY.value: "#d9dee6",
    Being.DOWN.value: "#4a4a4a",
}
_ROLES: Final = {"primary": "#8e44ad", "secondary": "#2e86c1"}


def check_picture(path: Path) -> None:
    """UsageError for a name that is none of a picture's; PrerequisiteMissingError where Matplotlib is not there."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"{path.name!r} does not say which kind of picture", do="Name one that ends with .png or .svg")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PrerequisiteMissingError(
            "the Python package matplotlib, which draws, is not installed",
            where=sys.prefix,
            do=f"Run: {sys.executable} -m pip install 'matplotlib>=3.8'; --csv and --json need nothing",
        ) from error


def draw(table: LogTable, path: Path) -> None:
    """Write the picture, over one that is there. As check_picture; JournalIOError, DiskFullError."""
    check_picture(path)
    figure = _figure(table)
    kind = path.suffix.lower()[1:]
    try:
        figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else {})
    except OSError as error:
        raise io_error(error, "the picture cannot be written", str(path)) from error


def _figure(table: LogTable) -> Any:
    from matplotlib.figure import Figure

    lanes = max(1, len(table.tellers))
    figure = Figure(figsize=(16, 9), dpi=100, layout="constrained")
    heights = [3.0, 2.0, 2.0, min(4.0, 0.5 + 0.42 * lanes)]
    rates, backlog, lag, states = figure.subplots(4, 1, sharex=True, gridspec_kw={"height_ratios": heights})
    looks = {
        teller: (_LINES[number % len(_LINES)], _DASHES[number // len(_LINES) % len(_DASHES)])
        for number, teller in enumerate(table.tellers)
    }
    when = time_of(table.story) if table.tellers else "no lines of daemons"
    figure.suptitle(f"Dualsite Replicate: {when}", fontsize=14, fontweight="bold")
    _panel(rates, table, looks, lambda row: row.per_s, "transactions\nper second")
    _panel(backlog, table, looks, lambda row: row.backlog, "backlog\n(transactions)", is_worst=True)
    _panel(lag, table, looks, lambda row: row.lag_s, "lag\n(seconds)", is_worst=True)
    _draw_states(states, table)
    shown = _draw_marks((rates, backlog, lag, states), table)
    _draw_time(states, table)
    figure.legend(handles=_legend(table, looks, shown), loc="outside right upper", fontsize=9, frameon=False)
    return figure


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def _points(
    table: LogTable, teller: Teller, value: Callable[[PeriodRow], float | None]
) -> Iterator[tuple[datetime, float, bool]]:
    """Of one daemon: when, how much, and whether it is more than that perhaps. Not a number where its lines have a
    gap."""
    found = [
        (at_us, amount, row.is_at_least)
        for at_us, rows in table.rows.items()
        if (row := rows.get(teller)) is not None and (amount := value(row)) is not None
    ]
    steps = [later[0] - earlier[0] for earlier, later in pairwise(found)]
    widest = 3 * max(table.width_us, median(steps)) if steps else 0
    before = 0
    for at_us, amount, is_at_least in found:
        if before and at_us - before > widest:
            yield _moment(before + table.width_us), float("nan"), False
        yield _moment(at_us + table.width_us // 2), float(amount), is_at_least
        before = at_us


def _panel(
    axes: Any,
    table: LogTable,
    looks: dict[Teller, tuple[str, str]],
    value: Callable[[PeriodRow], float | None],
    label: str,
    *,
    is_worst: bool = False,
) -> None:
    amounts: list[float] = []
    for teller in table.tellers:
        points = list(_points(table, teller, value))
        if not points:
            continue
        colour, dash = looks[teller]
        moments, values = [at for at, _, _ in points], [amount for _, amount, _ in points]
        dot = "." if len(points) <= DOTS_MAX else ""
        axes.plot(moments, values, color=colour, linestyle=dash, linewidth=1.6, marker=dot, alpha=0.9)
        unsure = [(at, amount) for at, amount, is_at_least in points if is_at_least]
        if unsure:
            axes.plot(*zip(*unsure, strict=True), color=colour, linestyle="", marker="^", fillstyle="none")
        amounts += [amount for amount in values if amount == amount]
    axes.set_ylabel(label)
    axes.grid(visible=True, alpha=0.3)
    positive = [amount for amount in amounts if amount > 0]
    if is_worst and positive and max(positive) > FAR * max(median(positive), 1.0):
        axes.set_yscale("symlog", linthresh=1.0)
        axes.set_ylabel(f"{label}, log")
    axes.set_ylim(bottom=0)
    if not positive:
        axes.set_ylim(0, 1)
    if not amounts:
        axes.text(0.5, 0.5, "no line of statistics", transform=axes.transAxes, ha="center", va="center", color="gray")
    elif axes.get_yscale() == "linear":
        axes.yaxis.set_major_formatter(lambda amount, _place: f"{amount:,.10g}")


def _draw_states(axes: Any, table: LogTable) -> None:
    """A lane for each daemon: how it was, its instance's role below, and what it read from files."""
    names = table.names
    for lane, teller in enumerate(table.tellers):
        for span in table.story.tracks[teller].spans:
            bar = [(_moment(span.from_us), timedelta(microseconds=max(1, span.until_us - span.from_us)))]
            if span.what in _BEINGS:
                axes.broken_barh(bar, (lane - 0.25, 0.6), facecolors=_BEINGS[span.what], linewidth=0)
            elif span.what in _ROLES:
                axes.broken_barh(bar, (lane - 0.42, 0.15), facecolors=_ROLES[span.what], linewidth=0)
            elif span.what == FILES:
                axes.broken_barh(
                    bar, (lane - 0.25, 0.6), facecolors="none", edgecolors="navy", hatch="////", linewidth=0
                )
    axes.set_yticks(range(len(table.tellers)), [names[teller] for teller in table.tellers])
    axes.set_ylim(max(1, len(table.tellers)) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=True, axis="x", alpha=0.3)


def _draw_marks(panels: Sequence[Any], table: LogTable) -> list[MarkKind]:
    """What happened, through all panels; the kinds that there were."""
    shown = []
    for kind, (colour, dash, width) in _MARKS.items():
        moments = [_moment(mark.at_us) for mark in table.story.marks if mark.kind is kind]
        if not moments:
            continue
        shown.append(kind)
        alpha = 0.85 if len(moments) <= 30 else 0.35
        for axes in panels:
            axes.vlines(
                moments, 0, 1, transform=axes.get_xaxis_transform(), colors=colour, linestyles=dash,
                linewidths=width, alpha=alpha, zorder=1.5,
            )  # fmt: skip
    return shown


def _draw_time(axes: Any, table: LogTable) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("time (UTC)")
    story = table.story
    if table.tellers:
        first, last = story.first_us, max(story.last_us, story.first_us + 1_000_000)
        margin = (last - first) // 100
        axes.set_xlim(_moment(first - margin), _moment(last + margin))


def _legend(table: LogTable, looks: dict[Teller, tuple[str, str]], shown: Sequence[MarkKind]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def heading(text: str) -> Any:
        return Line2D([], [], linestyle="", label=rf"$\bf{{{text}}}$")

    names = table.names
    made = [heading("Daemons")]
    made += [
        Line2D([], [], color=colour, linestyle=dash, linewidth=1.6, label=names[teller])
        for teller, (colour, dash) in looks.items()
    ]
    if any(row.is_at_least for rows in table.rows.values() for row in rows.values()):
        made.append(Line2D([], [], color="gray", linestyle="", marker="^", fillstyle="none", label="at least so much"))
    if shown:
        made.append(heading("Events"))
        for kind in shown:
            colour, dash, width = _MARKS[kind]
            number = sum(mark.kind is kind for mark in table.story.marks)
            made.append(Line2D([], [], color=colour, linestyle=dash, linewidth=width, label=f"{kind.value} ({number})"))
    whats = {span.what for track in table.story.tracks.values() for span in track.spans}
    if whats:
        made.append(heading("States"))
        made += [Patch(facecolor=colour, label=what) for what, colour in _BEINGS.items() if what in whats]
        if FILES in whats:
            made.append(Patch(facecolor="none", edgecolor="navy", hatch="////", label="reads journal files"))
        made += [Patch(facecolor=colour, label=f"role: {what}") for what, colour in _ROLES.items() if what in whats]
    return made
