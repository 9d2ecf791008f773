"""A screen that shows lines and takes keys, until somebody quits: the terminal of `replicate watch`.

Guarantees: the terminal is afterwards as it was, however it ends; what is longer than the screen can be scrolled; a
terminal without colours shows the same words and signs.
Leaves to others: what is shown (seeing/terminal.py).
"""

from __future__ import annotations

import locale
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from replicate.errors import PrerequisiteMissingError, UsageError
from replicate.seeing.picture_json import PAST_S
from replicate.seeing.terminal import Meaning, ScreenLine, ScreenPiece

if TYPE_CHECKING:
    import curses

WINDOWS_S: Final[tuple[float, ...]] = PAST_S
"""How long ago curves may begin."""
TICK_MS: Final = 200
"""What has changed is drawn within it: a look, the size of the terminal."""
REDRAW_S: Final = 2.0
"""Where no look comes to its end, it is shown how old the last one is."""
HELP: Final = (
    "q        quit",
    "f space  freeze, and go on",
    "+ -      a longer time, a shorter one",
    "tab      one instance after another, then all",
    "up down  scroll; also page up, page down, home",
    "?        this",
)


class Watching(Struct):
    """What the keys have chosen. `only`: the number of the one instance that is shown; None: all are."""

    instances: int
    past_s: float
    is_frozen: bool = False
    is_over: bool = False
    is_asking: bool = False
    only: int | None = None
    scrolled: int = 0

    def choice(self, width: int) -> tuple[object, ...]:
        """What decides how it is drawn."""
        return width, self.past_s, self.only, self.is_frozen, self.is_asking

    def key(self, name: str, page: int) -> None:
        """A key was pressed; `page`: lines of a screen."""
        if name in ("q", "Q"):
            self.is_over = True
        elif name in ("f", "F", " "):
            self.is_frozen = not self.is_frozen
        elif name in ("+", "="):
            self.past_s = next((one for one in WINDOWS_S if one > self.past_s), self.past_s)
        elif name in ("-", "_"):
            self.past_s = next((one for one in reversed(WINDOWS_S) if one < self.past_s), self.past_s)
        elif name in ("?", "h"):
            self.is_asking = not self.is_asking
        elif name == "\t":
            self._next_instance()
        else:
            self._scroll(name, page)

    def _next_instance(self) -> None:
        self.scrolled = 0
        if self.instances < 2:
            return
        after = 0 if self.only is None else self.only + 1
        self.only = after if after < self.instances else None

    def _scroll(self, name: str, page: int) -> None:
        steps = {"KEY_DOWN": 1, "j": 1, "KEY_UP": -1, "k": -1, "KEY_NPAGE": page, "KEY_PPAGE": -page}
        self.scrolled = 0 if name == "KEY_HOME" else max(0, self.scrolled + steps.get(name, 0))


Draw = Callable[[Watching, int], Sequence[ScreenLine]]
"""The lines for what is chosen now and a screen so wide."""


def watch(watching: Watching, draw: Draw, *, has_changed: Callable[[], bool]) -> None:
    """Show what `draw` gives, again whenever that has changed or keys want it, until somebody quits. UsageError where
    this is no terminal; PrerequisiteMissingError where this Python has no curses."""
    try:
        import curses
    except ImportError as error:
        raise PrerequisiteMissingError(
            "this Python was built without curses, which draws on terminals",
            where=sys.prefix,
            do="Take another Python (Debian's has it), or print it once: --once",
        ) from error
    check_terminal()
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")
    for name in ("COLUMNS", "LINES"):  # of a shell, which stand still whatever becomes of the window
        os.environ.pop(name, None)
    try:
        curses.setupterm()
    except curses.error as error:
        name = os.environ.get("TERM") or "not set"
        raise UsageError(
            f"the terminal is not known (TERM is {name})", do="Set TERM, or print it once: --once"
        ) from error
    with _ended_well(watching):
        curses.wrapper(lambda window: _Loop(window, watching, draw, has_changed).run())


def check_terminal() -> None:
    """UsageError where nobody could look, or press a key."""
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout)):
        raise UsageError("this is no terminal that can be drawn on", do="Print it once: --once")


def takes_unicode() -> bool:
    """Whether a terminal of this locale is sent more than ASCII."""
    return locale.nl_langinfo(locale.CODESET).upper().replace("-", "") == "UTF8"


@contextmanager
def _ended_well(watching: Watching) -> Iterator[None]:
    """A signal that ends the process lets the terminal be put back first."""

    def end(*_: object) -> None:
        watching.is_over = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


class _Loop:
    """One screen."""

    def __init__(self, window: curses.window, watching: Watching, draw: Draw, has_changed: Callable[[], bool]) -> None:
        import curses

        self._window = window
        self._watching = watching
        self._draw = draw
        self._has_changed = has_changed
        self._key_name = curses.keyname
        self._attributes = _attributes()
        with suppress(curses.error):
            curses.curs_set(0)
        window.timeout(TICK_MS)

    def run(self) -> None:
        """Until it is over."""
        watching = self._watching
        lines: Sequence[ScreenLine] = ()
        drawn_s, shown = 0.0, watching.choice(0)
        while not watching.is_over:
            height, width = self._window.getmaxyx()
            wanted = watching.choice(width)
            if self._has_changed() or shown != wanted or time.monotonic() - drawn_s > REDRAW_S:
                lines, drawn_s, shown = self._draw(watching, width), time.monotonic(), wanted
            self._paint(lines, height, width)
            key = self._window.getch()
            while key >= 0:
                watching.key(self._key_name(key).decode("ascii", "replace").replace("^I", "\t"), max(1, height - 2))
                self._window.timeout(0)
                key = self._window.getch()
            self._window.timeout(TICK_MS)

    def _paint(self, lines: Sequence[ScreenLine], height: int, width: int) -> None:
        room, watching = height - 1, self._watching
        watching.scrolled = max(0, min(watching.scrolled, len(lines) - room))
        self._window.erase()
        for at, line in enumerate(lines[watching.scrolled : watching.scrolled + room]):
            self._put(at, line, width)
        self._put(height - 1, (footer(watching, len(lines), room),), width - 1)  # the last cell would scroll
        self._window.refresh()

    def _put(self, at: int, line: ScreenLine, width: int) -> None:
        import curses

        place = 0
        with suppress(curses.error):  # a screen that was made smaller at this moment
            for piece in line:
                text = piece.text[: width - place]
                if text:
                    self._window.addstr(at, place, text, self._attributes.get(piece.meaning, 0))
                place += len(text)


def _attributes() -> dict[Meaning, int]:
    """How each meaning looks: by colours where the terminal has some, else by bold and dim."""
    import curses

    made: dict[Meaning, int] = {"strong": curses.A_BOLD, "faint": curses.A_DIM, "off": curses.A_DIM}
    made |= {"error": curses.A_BOLD | curses.A_REVERSE, "warning": curses.A_BOLD}
    if not curses.has_colors() or os.environ.get("NO_COLOR"):
        return made
    curses.use_default_colors()
    colours: dict[Meaning, int] = {
        "well": curses.COLOR_GREEN, "busy": curses.COLOR_CYAN,
        "warning": curses.COLOR_YELLOW, "error": curses.COLOR_RED,
    }  # fmt: skip
    for number, (meaning, colour) in enumerate(colours.items(), start=1):
        curses.init_pair(number, colour, -1)
        made[meaning] = curses.color_pair(number) | (curses.A_BOLD if meaning == "error" else 0)
    return made


def footer(watching: Watching, lines: int, room: int) -> ScreenPiece:
    """The last line: what was chosen, and the keys."""
    frozen = "FROZEN  " if watching.is_frozen else ""
    more = f"  lines {watching.scrolled + 1}-{min(lines, watching.scrolled + room)} of {lines}" if lines > room else ""
    return ScreenPiece(
        f"{frozen}q quit  f {'go on' if watching.is_frozen else 'freeze'}  +/- time  tab instance  ? help{more}",
        "warning" if watching.is_frozen else "faint",
    )
